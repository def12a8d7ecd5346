"""Agents of our own models: a very small one with random weights, from a run and from a directory."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest

from launch import export
from tests.run.small import small_config
from vict_jax import run_state
from vict_jax.agents import sources
from vict_jax.agents.conversation import Conversation, Turn
from vict_jax.agents.model import Reply, Request
from vict_jax.agents.own import OwnModel
from vict_jax.agents.sources import Asked
from vict_jax.config import RunConfig, from_config_dict, to_plain
from vict_jax.evaluate import evaluate
from vict_jax.job import Job, new_params, open_job, policy
from vict_jax.metrics import write_json
from vict_jax.rollout.collector import collect, open_session, open_sessions
from vict_jax.rollout.template import make_template

SPLIT = "valid_unseen"


@pytest.fixture(scope="module")
def config() -> RunConfig:
    config = small_config().unlock()
    config.env.update(num_valid=2, workers=0, max_steps=2)
    config.model.vocab_size = 800
    # The same sizes everywhere, so that all tests share their compiled programs.
    config.rollout.update(max_context=128, max_new_tokens=8, rows=2)
    config.warm_start.tasks = 0
    config.eval.update(temperature=1.0, batch=2)
    return from_config_dict(config)


@pytest.fixture(scope="module")
def run(
    config: RunConfig, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[pathlib.Path, Job, Any]]:
    """A run before its first update, its job and its parameters."""
    folder = tmp_path_factory.mktemp("run")
    write_json(folder / "config.json", to_plain(config))
    with open_job(config, folder) as job:
        params = new_params(job)
        run_state.save_reference(folder, params)
        yield folder, job, params


def own_model(job: Job, params: Any, *, seats: int, **options: Any) -> OwnModel:
    options = dataclasses.replace(job.config.rollout, **options)
    session = open_session(*policy(job, params), job.codec, options, job.mesh)
    return OwnModel(session, make_template(job.codec, options), seats=seats, key=jax.random.key(3))


def told(text: str, *turns: Turn) -> Conversation:
    return Conversation(turns, (f"{text}\n",))


def test_a_reply_depends_on_its_own_conversation_alone(run: tuple[pathlib.Path, Job, Any]) -> None:
    _, job, params = run
    together, alone = own_model(job, params, seats=2), own_model(job, params, seats=1)
    first = told("You are in a room.")
    together.ask({0: Request(5, 0, told("Another room.")), 1: Request(7, 0, first)})
    alone.ask({0: Request(7, 0, first)})
    one, other = together.answers()[1], alone.answers()[0]
    assert one == other
    assert len(one.ids) == one.usage.completion_tokens > 0
    # The second turn goes on in the row in one model, and is computed from the start in another.
    turn = Turn(("You are in a room.\n",), one.text, one.ids)
    fresh = own_model(job, params, seats=1)
    for model, seat in ((together, 1), (fresh, 0)):
        model.ask({seat: Request(7, 1, told("You see a drawer.", turn))})
    assert together.answers()[1] == fresh.answers()[0]


def test_turns_that_do_not_fit_are_left_out_and_a_task_that_does_not_ends_it(
    run: tuple[pathlib.Path, Job, Any],
) -> None:
    _, job, params = run
    model = own_model(job, params, seats=2)
    ids = tuple(job.codec.reply("go to drawer 1"))
    turns = [Turn(("look\n",), "go to drawer 1", ids)] * 40
    model.ask({0: Request(0, 0, told("now", *turns)), 1: Request(1, 0, told("word " * 300))})
    long, full = model.answers().values()
    assert long.shortened
    assert not long.full
    assert 90 < long.usage.prompt_tokens <= 128 - job.config.rollout.max_new_tokens
    assert full == Reply("", (), stopped=False, usage=full.usage, full=True)


def test_prompts_are_those_of_the_run(run: tuple[pathlib.Path, Job, Any]) -> None:
    """A plain agent of a run that appends, without lists, sees the ids that the run's policy saw."""
    _, job, params = run
    template = make_template(job.codec, job.config.rollout)
    ids = np.array([*job.codec.reply("look"), template.end_id])
    expected = [
        *template.opening,
        *template.turn(["first\n"]),
        *ids,
        *template.close(ids),
        *template.turn(["now\n"]),
    ]
    model = own_model(job, params, seats=1)
    model.ask({0: Request(0, 0, told("now", Turn(("first\n",), "look", tuple(ids))))})
    assert model.answers()[0].usage.prompt_tokens == len(expected)


def agents_actions(out: pathlib.Path) -> dict[str, tuple[str, ...]]:
    rows = [json.loads(line) for line in (out / "tasks.jsonl").read_text().splitlines()]
    return {row["task"]: tuple(step["action"] for step in row["trials"][0]["transcript"]) for row in rows}


def runs_actions(job: Job, params: Any) -> dict[str, tuple[str, ...]]:
    played = collect(
        job.pool,
        open_sessions(*policy(job, params), job.codec, job.config.rollout, job.mesh),
        job.codec,
        job.eval_tasks,
        rollouts=1,
        key=job.keys.evaluate,
        options=job.config.rollout,
        max_steps=job.max_steps,
    )
    return {group[0].task.id: group[0].actions for group in played.groups}


@pytest.mark.parametrize("kind", ["plain", "reflexion"])
def test_a_run_is_evaluated_in_its_environment(
    run: tuple[pathlib.Path, Job, Any], config: RunConfig, tmp_path: pathlib.Path, kind: str
) -> None:
    folder, job, params = run
    trials = 2 if kind == "reflexion" else 1
    report = sources.with_run(Asked(kind=kind, trials=trials), config, folder, 0, tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["model"] == {"run": folder.name, "update": 0, "seed": 0}
    assert summary["counts"]["trials"] == 2 * trials
    assert summary["usage"]["completion_tokens"] > 0
    assert not summary["counts"]["context_ends"]
    assert summary["agent"]["prompts"]["reply"] == ("line" if kind == "plain" else "tags")
    assert "no prices given" in report
    if kind == "plain":  # the prompts and the keys are those of the run's own evaluation
        assert summary["trials"]["trial 1"] == evaluate(job, params)
        assert agents_actions(tmp_path) == runs_actions(job, params)
    calls = summary["usage"]["calls"]
    sources.with_run(Asked(kind=kind, trials=trials, batch=1), config, folder, 0, tmp_path)
    assert json.loads((tmp_path / "summary.json").read_text())["usage"]["calls"] == calls  # nothing was left


def test_a_checkpoint_directory_is_evaluated_in_any_environment(
    run: tuple[pathlib.Path, Job, Any], tmp_path: pathlib.Path
) -> None:
    _, job, params = run
    folder = tmp_path / "model"
    export.export_model(job, params, folder, None)
    assert sources.is_model_directory(folder)
    assert not sources.is_model_directory(run[0])
    sections = sources.model_sections(folder)
    sections["rollout"] = {**sections["rollout"], "max_context": 128, "max_new_tokens": 8}
    options = {"num_valid": 2, "max_steps": 8, "workers": 0}
    config = sources.environment_config("examples.refunds", options, "valid", **sections)
    asked = Asked(kind="plain", reply="line", batch=2, temperature=1.0, instruction="Act.")
    sources.with_model(asked, config, folder, tmp_path / "out")
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["trials"]["trial 1"]["tasks"] == 2
    assert summary["agent"]["prompts"]["template"] == "chat"
    assert summary["model"]["files"]
