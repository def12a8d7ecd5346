"""The environment as the rest of the project sees it: options, tasks, prompts, records."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

import pytest

from envs import conformance
from envs.lookup import environment
from envs.tau_bench import conduct
from envs.tau_bench.domain import DOMAIN, Options, TauBenchEnv
from tests.envs.tau_bench import golden


def test_it_is_built_in() -> None:
    assert environment("tau_bench") == (DOMAIN, Options)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"domain": "telecom"}, "domain='telecom'"),
        ({"style": "xml"}, "style='xml'"),
        ({"score": "strict"}, "score='strict'"),
        ({"customer": "human"}, "customer='human'"),
        ({"task_types": ("bags",)}, "retail has"),
        ({"num_dev": 0}, "num_dev=0"),
        ({"max_steps": 0}, "max_steps=0"),
        ({"seed": -1}, "seed=-1"),
        ({"customer": "endpoint"}, "base_url=''"),
        ({"customer": "endpoint", "base_url": "http://x"}, "model=''"),
    ],
)
def test_wrong_options_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Options(**changes)


@pytest.mark.parametrize("domain", ["retail", "airline"])
def test_ids_carry_the_domain_and_splits_are_disjoint(domain: str) -> None:
    options = Options(domain=domain, num_train=20)
    ids = [task.id for split in DOMAIN.splits for task in DOMAIN.tasks(options, split)]
    assert len(ids) == len(set(ids)) == 20 + 96 + 96
    assert all(id_.startswith(f"{domain}/") for id_ in ids)
    other = dataclasses.replace(options, seed=1)
    assert not set(ids) & {task.id for task in DOMAIN.tasks(other, "train")}
    few = dataclasses.replace(options, task_types=("deny",))
    assert {task.type for task in DOMAIN.tasks(few, "train")} == {"deny"}


@pytest.mark.parametrize("domain", ["retail", "airline"])
def test_generated_tasks_conform(domain: str) -> None:
    """A few of each type; a thousand are the audit's (docs/tau_bench.md)."""
    options = Options(domain=domain, num_train=12, score="procedure")
    report = conformance.check(DOMAIN, options, DOMAIN.tasks(options, "train"), rollouts=2)
    assert report.conforming, report.to_json()["failures"][:3]
    scores = {report.share(kind=kind).won for kind in ("random", "edited", "mutated")}
    assert 0 not in scores


def test_both_scores_conform_and_differ_by_procedure() -> None:
    options = Options(num_train=6)
    strict = dataclasses.replace(options, score="procedure")
    tasks = DOMAIN.tasks(options, "train")
    loose, held = (conformance.check(DOMAIN, o, tasks, rollouts=1) for o in (options, strict))
    assert loose.conforming
    assert held.conforming
    differ = {
        a.name for a, b in zip(loose.rollouts, held.rollouts, strict=True) if a.score > b.score and a.name
    }
    assert "write 1 without confirmation" in differ
    assert not any(a.score < b.score for a, b in zip(loose.rollouts, held.rollouts, strict=True))


def test_the_end_of_an_episode_stays() -> None:
    options = Options(task_types=("cancel",))
    env = TauBenchEnv(options)
    env.reset(DOMAIN.tasks(options, "train")[0])
    while not env.step(action := env.expert_action()).done:
        pass
    record = env.record()
    result = env.step("say Who are you?")
    assert action == "say Done."
    assert result.done
    assert result.info["valid"]
    after = env.record()
    assert after.score == record.score == 1
    assert (after.status[-1] == record.status[-1]).all()
    assert not after.commits[-1]


def test_the_step_cap_ends_it() -> None:
    options = Options(max_steps=3)
    env = TauBenchEnv(options)
    env.reset(DOMAIN.tasks(options, "train")[0])
    assert [env.step(text).done for text in ("think a", "nonsense", "think b")] == [False, False, True]
    assert env.record().score == 0


@pytest.mark.parametrize("style", ["compact", "json"])
@pytest.mark.parametrize("domain", ["retail", "airline"])
def test_the_policy_can_be_shown(domain: str, style: str) -> None:
    options = Options(domain=domain, style=style, show_policy=True)
    task = DOMAIN.tasks(options, "train")[0]
    text = TauBenchEnv(options).reset(task).text
    plain = TauBenchEnv(dataclasses.replace(options, show_policy=False)).reset(task).text
    assert text.endswith(plain)
    tool = "GetUserDetails" if style == "compact" else "get_user_details"
    for word in ("You help customers", tool, "respond" if style == "json" else "say"):
        assert word in text


def test_real_tasks(shared_dir: pathlib.Path) -> None:
    folder = str(golden.folder(shared_dir))
    options = Options(domain="airline", data_dir=folder, style="json", show_policy=True)
    tasks = DOMAIN.tasks(options, "test")
    assert (len(tasks), tasks[3].id, tasks[3].type) == (50, "airline/test/3", "several writes")
    assert tasks[1].type == "cancel_reservation"
    with pytest.raises(ValueError, match=r"'train' is not in .* there are \['test'\]"):
        DOMAIN.tasks(options, "train")
    env = TauBenchEnv(options)
    text = env.reset(tasks[3]).text
    assert "Airline Agent Policy" in text
    assert "sofia_kim_7287" in text
    names = [json.loads(line)["function"]["name"] for line in text.splitlines() if line.startswith('{"type"')]
    assert len(names) == 14
    manifest = DOMAIN.manifest(options, ("test",))
    assert set(manifest) == {
        *(f"airline_{name}.json" for name in ("flights", "reservations", "users", "rules", "tools")),
        "airline_tasks_test.json",
        "airline_wiki.md",
    }
    assert DOMAIN.manifest(Options(), ("test",)) == {}
    assert len(DOMAIN.corpus(options)) > 200


def test_what_a_score_depends_on_is_said() -> None:
    assert DOMAIN.about(Options()) == "retail, generated tasks, scripted customer, original score"
    real = Options(domain="airline", data_dir="d", customer="endpoint", base_url="http://x", model="m")
    assert DOMAIN.about(real) == "airline, real tasks, m as customer, original score"


def test_followed_needs_a_yes_of_an_identified_customer() -> None:
    options = Options(task_types=("cancel",), score="procedure")
    env = TauBenchEnv(options)
    task = DOMAIN.tasks(options, "train")[0]
    env.reset(task)
    actions = list[str]()
    done = False
    while not done:
        actions.append(env.expert_action())
        done = env.step(actions[-1]).done
    assert env.record().score == 1
    for left_out in ("say Who", "FindUser", "say OK"):
        env.reset(task)
        for action in actions:
            if not action.startswith(left_out):
                env.step(action)
        session = env._session
        original = session.score().reward
        assert original == 1
        assert env.record().score == (1 if left_out == "say Who" else 0)
        database = session.bench.database
        kept = conduct.followed("retail", "", session.trace, database)
        assert kept == (left_out == "say Who")
