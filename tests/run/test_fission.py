"""Fission-GRPO: errors found, kept and recovered from; a run with recoveries that is killed and resumed."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import pyarrow.parquet as pq
import pytest

from envs.base import Domain, StepNote
from tests.envs import toy_env
from tests.rollout import test_collector as toy
from tests.run.results import Killed, comparable, final_state
from tests.run.small import small_config
from tests.run.test_resampling import job as job_of
from vict_jax import fission, header, proofs, train
from vict_jax.batching import EndReason, credit_inputs, to_host
from vict_jax.config import RunConfig, from_config_dict
from vict_jax.corrections import CorrectionBuffer, Error, ErrorKind, FissionOptions
from vict_jax.credit.assign import assign_credit
from vict_jax.credit.options import VictOptions
from vict_jax.packing import token_rows
from vict_jax.presets import preset
from vict_jax.rollout.collector import Collected
from vict_jax.rollout.prefix import Past, Prefix

ON = FissionOptions(branches=3, recoveries=1)
DOMAIN = toy_env.DOMAIN


# --- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"branches": 1}, r"fission.branches=1 is not allowed: it must be 0 \(off\), or 2 or more"),
        ({"branches": -1}, "fission.branches=-1"),
        ({"branches": 5}, "fission.branches=5 is not allowed: it must be at most train.rollouts=4"),
        ({"recoveries": 0}, "fission.recoveries=0 is not allowed: it must be 1 or more"),
        ({"recoveries": 9, "capacity": 8}, "fission.capacity=8 is not allowed: it must be 9 or more"),
        ({"max_age": -1}, "fission.max_age=-1"),
        ({"order": "random"}, r"fission.order='random'.*one of \['fifo', 'lifo'\]"),
        ({"error": "typo"}, r"fission.error='typo'.*one of \['any', 'unparsed', 'refused'\]"),
        ({"feedback": "oracle"}, r"fission.feedback='oracle'.*one of \['diagnosis', 'fixed', 'none'\]"),
    ],
)
def test_options_that_make_no_sense_are_refused(values: dict[str, Any], message: str) -> None:
    config = small_config().unlock()
    config.fission.update(values)
    with pytest.raises(ValueError, match=message):
        from_config_dict(config)


@pytest.mark.parametrize("method", ["gae", "hcapo", "hcapo+vict"])
def test_methods_that_read_sampled_tokens_of_every_step_are_refused(method: str) -> None:
    config = small_config().unlock()
    config.credit.method = method
    from_config_dict(config)
    config.fission.branches = 2
    with pytest.raises(ValueError, match=r"fission.branches=2 is not allowed: it must be 0 with credit.meth"):
        from_config_dict(config)


def test_the_preset_tells_a_diagnosis_only_to_models_that_were_not_made_here() -> None:
    config = small_config().unlock()
    assert preset(config, "fission").fission.feedback == "none"
    config.model.path = "models/some"
    assert preset(config, "fission").fission.feedback == "diagnosis"


def test_the_header_says_so() -> None:
    config = preset(small_config().unlock(), "fission")
    assert header.fission(from_config_dict(config)) == (
        "; 4 recoveries from each of 1 errors, lifo, up to 5 updates old"
    )
    assert header.fission(from_config_dict(small_config())) == ""


# --- the buffer -----------------------------------------------------------------------------------


def error(name: str, update: int = 1) -> Error:
    """An error told apart from others by its one action."""
    past = Past((1, 2), name, "", truncated=False, taken=True, answer="Nothing happens.")
    return Error("task", update, Prefix("You are here.", (past,), "Error."))


def names(errors: Sequence[Error]) -> str:
    return "".join(one.actions[0] for one in errors)


@pytest.mark.parametrize(("order", "taken"), [("fifo", ["ab", "cd", ""]), ("lifo", ["ed", "cb", ""])])
def test_errors_leave_in_order_and_only_so_many_together(order: str, taken: list[str]) -> None:
    options = FissionOptions(branches=2, recoveries=2, order=order)
    buffer = CorrectionBuffer().add([error(name) for name in "abcde"], options)
    for expected in taken:
        found, buffer = buffer.take(1, options)
        assert names(found) == expected
    assert names(buffer.errors) == ("e" if order == "fifo" else "a")  # one is too few: it waits


def test_the_oldest_are_dropped_above_the_capacity_and_beyond_an_age() -> None:
    options = FissionOptions(branches=2, recoveries=2, capacity=3, max_age=2)
    buffer = CorrectionBuffer().add([error("a", 1), error("b", 1)], options)
    buffer = buffer.add([error("c", 2), error("d", 3)], options)
    assert names(buffer.errors) == "bcd"
    assert names(buffer.take(3, options)[0]) == "dc"
    assert names(buffer.take(4, options)[1].errors) == ""  # b has gone, c and d are taken
    found, left = buffer.take(5, options)
    assert (found, names(left.errors)) == ((), "d")
    own = dataclasses.replace(options, max_age=0)
    assert names(buffer.add([error("e", 4), error("f", 4)], own).take(4, own)[0]) == "fe"


def test_an_error_waits_once_as_its_newest() -> None:
    options = FissionOptions(branches=2, recoveries=1)
    buffer = CorrectionBuffer().add([error("a", 1), error("b", 1), error("a", 1)], options)
    assert names(buffer.errors) == "ba"
    buffer = buffer.add([error("b", 2)], options)
    assert [(one.actions[0], one.update) for one in buffer.errors] == [("a", 1), ("b", 2)]
    other = dataclasses.replace(error("b", 3), task="another")
    assert len(buffer.add([other], options).errors) == 3


def test_the_buffer_goes_through_json() -> None:
    buffer = CorrectionBuffer((error("go \ud800 \n\x00"), error("✓", 7)))
    assert CorrectionBuffer.from_plain(json.loads(json.dumps(buffer.to_plain()))) == buffer


# --- errors ---------------------------------------------------------------------------------------


def played(*replies: str, task: int = 0, options: Any = toy.APPEND) -> Collected:
    """One rollout of the toy environment with these replies, the last one again and again."""
    result, _ = toy.run(toy.scripted(*replies), options, tasks=toy.TASKS[task : task + 1], rollouts=1)
    return result


def errors_of(result: Collected, domain: Domain = DOMAIN, **options: Any) -> list[Error]:
    chosen = dataclasses.replace(ON, **options)
    return fission.find_errors(result.groups, result.marks, domain=domain, options=chosen, update=3)


def test_the_first_error_of_a_failed_rollout_is_found() -> None:
    result = played("next door", "", "fly to moon", "next door")
    (rollout,) = result.groups[0]
    (marks,) = result.marks[0]
    kinds = fission.error_kinds(rollout, marks, DOMAIN)
    assert kinds == [None, ErrorKind.UNPARSED, ErrorKind.REFUSED, None, None, None]
    (found,) = errors_of(result)
    assert (found.task, found.update, found.actions) == (rollout.task.id, 3, ("next door", ""))
    assert found.prefix.first == rollout.observations[0]
    assert [one.answer for one in found.prefix.past] == list(rollout.observations[1:3])
    assert [one.taken for one in found.prefix.past] == [True, False]
    assert found.prefix.past[0].ids == (*toy.CODEC.reply("next door"), toy.CODEC.end_id)
    (refused,) = errors_of(result, error="refused")
    assert refused.actions == ("next door", "", "fly to moon")
    assert errors_of(result, error="unparsed") == [found]


def test_what_the_policy_is_told() -> None:
    told = {
        "": "Error: the last reply was not an action: empty action. Try again.",
        "fly to\nmoon": "Error: the last reply was not an action: more than one line of action. Try again.",
        "fly to moon": "Error: 'fly to moon' was refused. Try something else.",
        "f" * 100: f"Error: '{'f' * 80}...' was refused. Try something else.",
    }
    for reply, text in told.items():
        (found,) = errors_of(played(reply, "next door"))
        assert found.prefix.remark == text
    (found,) = errors_of(played("", "next door"), feedback="fixed")
    assert found.prefix.remark == "Error: that was a mistake. Try again."
    (found,) = errors_of(played("", "next door"), feedback="none")
    assert found.prefix.remark == ""


def test_an_answer_that_the_environment_calls_a_refusal_is_an_error() -> None:
    """As in tau-bench, where a call that fails is accepted and answered."""

    def notes(observations: Sequence[str], actions: Sequence[str], valid: Sequence[bool]) -> list[StepNote]:
        return [StepNote(refused=t == 1) for t in range(len(actions))]

    strict = dataclasses.replace(DOMAIN, notes=notes)
    result = played("next door")
    assert errors_of(result) == []
    (found,) = errors_of(result, strict)
    assert found.actions == ("next door", "next door")


def test_nothing_to_recover_from() -> None:
    solved = played("", "next door", "take key", "next door", "open chest")
    assert solved.groups[0][0].end is EndReason.SUCCESS  # it recovered by itself
    lost = played("", "raise")
    assert lost.groups[0][0].end is EndReason.ENV_ERROR
    late = played(*["next door"] * 5, "")
    assert late.groups[0][0].valid.tolist() == [True] * 5 + [False]
    ended = played("next door", "", options=dataclasses.replace(toy.APPEND, invalid="end"))
    assert len(ended.groups[0][0].actions) == 2
    for result in (solved, lost, late, ended):
        assert errors_of(result) == []


def test_without_enough_errors_an_update_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_of(0)
    config = dataclasses.replace(job.config, fission=FissionOptions(branches=2, recoveries=2))
    job = dataclasses.replace(job, config=config, domain=DOMAIN)
    unused: Any = None
    result = played("", "next door")
    recovered = fission.recover(job, unused, 3, unused, result, CorrectionBuffer())
    assert recovered.played == result
    assert recovered.corrections.errors == tuple(errors_of(result))
    assert recovered.figures == {"fission/errors": 1, "fission/waiting": 1, "fission/rollouts": 0}
    clean = fission.recover(job, unused, 4, unused, played("next door"), recovered.corrections)
    assert clean.corrections == recovered.corrections  # the error of update 3 still waits
    assert clean.figures["fission/errors"] == 0


def test_off_it_does_nothing() -> None:
    unused: Any = None
    result, corrections = played("", "next door"), CorrectionBuffer()
    recovered = fission.recover(job_of(0), unused, 3, unused, result, corrections)
    assert recovered.played is result
    assert recovered.corrections is corrections
    assert (recovered.figures, recovered.numbers) == ({}, (0, 1, 2))


# --- credit ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def together() -> Collected:
    """4 rollouts that take the key, err and fail; behind the error 3 recoveries, of which the first wins."""
    replies = ("next door", "take key", "fly to moon", "next door")
    first, _ = toy.run(toy.scripted(*replies), toy.APPEND, tasks=toy.TASKS[:1], rollouts=4)
    found = errors_of(first)
    assert len(found) == 4
    (one,), _ = CorrectionBuffer().add(found, ON).take(3, ON)
    wins = jax.random.fold_in(toy.KEY, 100)
    keys = {tuple(jax.random.key_data(jax.random.fold_in(wins, t)).tolist()) for t in range(6)}

    def script(text: str, key: Any) -> str:
        return toy.listed(text)[-1] if tuple(key.tolist()) in keys else "fly to moon"

    more, _ = toy.run(script, toy.APPEND, tasks=toy.TASKS[:1], rollouts=3, prefixes=[one.prefix], first=100)
    return fission.behind(first, more.groups, more.marks, size=4)


def test_recoveries_are_a_group_of_their_own(together: Collected) -> None:
    """Returns 1, 0, 0: mean 1/3, std 0.57735, so 1.154701 and twice -0.577350; the place that is left gets
    nothing, and neither does the group of equal failures."""
    ends = [rollout.end for rollout in together.groups[1]]
    assert ends == [EndReason.SUCCESS, EndReason.STEP_CAP, EndReason.STEP_CAP, EndReason.ABSENT]
    assert [len(rollout.actions) for rollout in together.groups[1]] == [5, 6, 6, 0]
    inputs = credit_inputs(together.groups, domain=DOMAIN, max_steps=6, group_size=4, conforming=[True] * 2)
    assert inputs.rollout_mask.tolist() == [[True] * 4, [True, True, True, False]]
    output, violations = to_host(
        assign_credit(inputs, method="grpo", aggregate=DOMAIN.aggregate, options=VictOptions())
    )
    assert violations == 0
    expected = np.array([[0, 0, 0, 0], [1.154701, -0.577350, -0.577350, 0]])[..., None]
    np.testing.assert_allclose(output.advantages, expected * inputs.step_mask, atol=1e-5)


def test_only_what_was_sampled_behind_the_error_is_trained(together: Collected) -> None:
    batch, report = token_rows(together.groups, group_size=4, row_length=toy.APPEND.max_context)
    trained = {
        (int(r), int(t))
        for r, t in zip(batch.rollout[batch.loss_mask], batch.step[batch.loss_mask], strict=True)
    }
    whole = {(n, t) for n in range(4) for t in range(6)}
    assert trained == whole | {(4, 3), (4, 4)} | {(n, t) for n in (5, 6) for t in (3, 4, 5)}
    replies = [m.sampled_tokens for some in together.marks for m in some]
    assert report.trained_tokens == sum(replies)
    assert replies[7] == 0


def test_vict_on_top_keeps_its_proofs(together: Collected) -> None:
    """The record of a recovery is that of its whole rollout, so every edge is there; what all recoveries
    share (the key was taken before the error) has no spread among them and gets nothing."""
    inputs = credit_inputs(together.groups, domain=DOMAIN, max_steps=6, group_size=4, conforming=[True] * 2)
    output, violations = to_host(
        assign_credit(inputs, method="vict", aggregate=DOMAIN.aggregate, options=VictOptions())
    )
    assert violations == 0
    key, chest = range(2)
    assert output.proofs is not None
    assert output.proofs.witness[1, :3, 1, key].any(axis=-1).all()  # taken at the replayed step 1
    assert output.proofs.witness[1, 0, 4, chest].any()
    assert output.proofs.core[1, 0, :2].tolist() == [True, True]
    assert not output.correction[1, :, :3].any()
    assert not output.advantages[1, 3].any()


# --- a run ----------------------------------------------------------------------------------------


def fission_config() -> RunConfig:
    """The small run; only the length of a reply tells rollouts apart, and the newest errors are taken."""
    config = small_config().unlock()
    config.warm_start.tasks = 0
    config.conformance.update(rollouts=0, every=0)
    config.credit.method = "grpo"
    config.reward.update(overlong_of="reply", overlong_buffer=24)
    config.train.update(eval_every=9, checkpoint_every=2)
    config.eval.tasks = 1
    config.fission.update(branches=3, recoveries=2, capacity=12, max_age=1)
    return from_config_dict(config)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    workdir = tmp_path_factory.mktemp("fission") / "whole"
    train.train(fission_config(), workdir)
    return workdir


def rows_of(workdir: pathlib.Path) -> list[dict[str, Any]]:
    return [row for row in comparable(workdir) if row["kind"] == "train"]


def test_a_run_with_recoveries(whole: pathlib.Path) -> None:
    rows = rows_of(whole)
    assert [row["update"] for row in rows] == [1, 2, 3]
    for row in rows:
        assert row["first_log_ratio_max"] < 1e-4  # what was sampled behind a prefix is scored behind it
        assert (row["count/rollouts"], row["fission/rollouts"], row["groups"]) == (8, 6, 4.0)
        assert row["fission/lost"] == 0
        assert row["fission/errors"] >= 4
        groups = row["fission/groups"]
        assert [one["group"] for one in groups] == [2, 3]
        assert [one["made_in"] for one in groups] == [row["update"]] * 2  # newest first
        inputs = proofs.read_inputs(whole, row["update"])
        assert inputs.commits.shape[:2] == (4, 4)
        assert inputs.rollout_mask.tolist() == [[True] * 4] * 2 + [[True] * 3 + [False]] * 2
        table = pq.read_table(whole / "rollouts" / f"{proofs.file_stem(row['update'])}.parquet").to_pylist()
        for one in groups:
            steps = [step for step in table if step["group"] == one["group"]]
            assert {step["task_id"] for step in steps} == {one["task_id"]}
            for t in range(one["replayed"]):
                assert len({(s["observation"], s["action"]) for s in steps if s["step"] == t}) == 1
            assert not [s for s in steps if s["step"] == one["replayed"] - 1 and s["valid"]]
    assert rows[1]["fission/waiting"] > rows[0]["fission/waiting"]
    assert rows[2]["fission/waiting"] <= 12 - 2


def test_a_killed_run_with_recoveries_continues_exactly(
    whole: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in update 3: the errors of update 2 that wait come out of its checkpoint."""

    update = train.run_update

    def run_update(*args: Any) -> Any:
        if args[4] == 3:
            raise Killed
        return update(*args)

    with monkeypatch.context() as patch:
        patch.setattr(train, "run_update", run_update)
        with pytest.raises(Killed):
            train.train(fission_config(), tmp_path / "run")
    manifest = tmp_path / "run" / "checkpoints" / "state" / "step_00000002" / "manifest.json"
    waiting = CorrectionBuffer.from_plain(json.loads(manifest.read_text())["metadata"]["corrections"])
    assert len(waiting.errors) == rows_of(whole)[1]["fission/waiting"] > 0
    train.train(fission_config(), tmp_path / "run")
    assert comparable(tmp_path / "run") == comparable(whole)
    expected = final_state(whole, fission_config())
    for name, value in final_state(tmp_path / "run", fission_config()).items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)
