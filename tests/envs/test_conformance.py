"""Conformance: the household domain passes, and verifiers with planted faults are caught."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from envs import conformance
from envs.alfworld import domain, verifier
from envs.alfworld.domain import DOMAIN, AlfworldEnv, AlfworldOptions
from envs.base import Atom, ScoreRole, Status, Variable, VerifierRecord
from envs.verdict import Finding, Kind
from tests.envs import toy_env
from vict_jax.audit import __main__ as audit

HEAT = AlfworldOptions(task_types=("pick_heat_then_place_in_recep",), num_train=24)


class SomeObjectEnv(AlfworldEnv):
    """Planted fault: `heated` and `placed` may speak of different objects."""

    def record(self):
        record = super().record()
        moments = [[snapshot[id_] for id_ in self._spec.objects] for snapshot in self._history]
        status = record.status.copy()
        names = [atom.id for atom in record.atoms]
        for t, now in enumerate(moments):
            hot = any("hot" in m.flags for m in now)
            inside = any(m.inside & frozenset(self._spec.targets) for m in now)
            for name, holds in (("heated", hot), ("placed", inside)):
                status[t, names.index(name)] = Status.SATISFIED if holds else Status.UNSATISFIED
        return dataclasses.replace(record, status=status)


class ForgetsHeatEnv(AlfworldEnv):
    """Planted fault: `placed` and `heated` do not look at the heat."""

    def record(self):
        spec = dataclasses.replace(self._spec, transform=("heated", ""))
        return verifier.record(spec, self._history, float(self._engine.won()))


class ForgetsStepsEnv(AlfworldEnv):
    """Planted fault: the place of the object is not among the evidence."""

    def record(self):
        record = super().record()
        put = [variable.id for variable in record.variables].index("object_put")
        evidence = tuple(
            tuple("?" if v == put else text for v, text in enumerate(row)) for row in record.evidence
        )
        return dataclasses.replace(record, evidence=evidence)


def _check(make, options=HEAT, **kwargs):
    planted = dataclasses.replace(DOMAIN, make=make, **kwargs)
    return conformance.check(planted, options, domain.tasks(options, "train"), rollouts=1)


def test_generated_games_conform():
    for split in DOMAIN.splits:
        options = AlfworldOptions(num_train=66, num_valid=66)
        report = conformance.check(DOMAIN, options, domain.tasks(options, split), rollouts=2)
        assert report.conforming, conformance.failures_by_name(report)
        assert report.share(kind="expert").won == 66
        # The check is worth something only if it sees both outcomes, in every kind of rollout.
        for kind in ("random", "edited", "mutated"):
            share = report.share(kind=kind)
            assert 0 < share.won < share.rollouts


def test_real_games_conform(shared_dir):
    options, games = AlfworldOptions(data_dir=str(shared_dir / "data" / "alfworld")), 0
    for split in DOMAIN.splits:
        tasks = domain.tasks(options, split)
        report = conformance.check(DOMAIN, options, tasks, rollouts=3)
        assert report.conforming, conformance.failures_by_name(report)
        games += len(tasks)
    assert games == 60


def test_forgetting_the_same_object_is_caught():
    report = _check(SomeObjectEnv)
    assert not report.conforming
    assert "mutated other instance transformed" in conformance.failures_by_name(report)
    wrong = [r for r in report.rollouts if not r.agrees]
    assert all((r.rebuilt, r.score) == (1.0, 0.0) for r in wrong)
    assert {family for r in wrong for family in r.blamed} == {"heated", "placed"}
    assert report.aggregator_fails, "two families explain it alike, so neither can be masked"
    assert all(f.kind is not Kind.SCORE for f in report.verdict().findings)


def test_forgetting_the_heat_is_caught():
    report = _check(ForgetsHeatEnv)
    failures = conformance.failures_by_name(report)
    assert {"mutated transformation dropped", "mutated cool instead", "mutated then cool"} <= set(failures)
    assert report.share(kind="expert").agree == report.share(kind="expert").rollouts


def test_an_aggregator_that_forgets_an_atom_is_caught():
    """The last atom, the placing, is left out."""
    report = _check(AlfworldEnv, aggregate=lambda s, p: (s | ~p["required"])[:-1].all())
    assert not report.conforming
    assert "mutated never placed" in conformance.failures_by_name(report)


def test_missing_evidence_is_caught():
    report = _check(ForgetsStepsEnv)
    assert report.share().agree == report.share().rollouts, "the score is rebuilt, the record is not sound"
    faults = {(f.family, f.text.split(" at step")[0]) for r in report.rollouts for f in r.faults}
    assert faults == {("placed", "placed changes")}
    assert not report.conforming


def test_mutations_do_what_their_names_say():
    options = AlfworldOptions(num_train=120)
    expected = {
        "transformation dropped": {"placed": Status.UNSATISFIED, "acquired": Status.SATISFIED},
        "never placed": {"placed": Status.UNSATISFIED, "acquired": Status.SATISFIED},
        "second elsewhere": {"placed_1": Status.SATISFIED, "placed_2": Status.UNSATISFIED},
        "the same one twice": {"placed_1": Status.SATISFIED, "acquired_1": Status.SATISFIED},
        "lamp not used": {
            "holding": Status.SATISFIED,
            "at_lamp": Status.SATISFIED,
            "lit": Status.UNSATISFIED,
        },
        "left the lamp": {"holding": Status.SATISFIED, "lit": Status.SATISFIED},
    }
    seen = dict.fromkeys(expected, 0)
    env = AlfworldEnv(options)
    for task in domain.tasks(options, "train"):
        for name, actions in DOMAIN.mutations(options, task).items():
            if name not in expected:
                continue
            env.reset(task)
            done = any(env.step(action).done for action in actions)
            record = env.record()
            ids = [atom.id for atom in record.atoms]
            if not done:
                assert {a: record.status[-1, ids.index(a)] for a in expected[name]} == expected[name], name
                seen[name] += 1
    assert min(seen.values()) >= 10, seen


def _record(**changes):
    """Two steps, two atoms: `b` requires `a`."""
    fields = {
        "atoms": (Atom("a", "a", ("x",)), Atom("b", "b", ("y",), requires=("a",))),
        "variables": (Variable("x"), Variable("y")),
        "status": np.array([[2, 2], [1, 2], [1, 1]], np.int8),
        "evidence": (("0", "0"), ("1", "0"), ("1", "1")),
        "commits": np.array([False, True]),
        "scope": np.array([[False, False], [False, True]]),
        "params": {"required": np.array([True, True])},
        "eta": 0.0,
        "score": 1.0,
    }
    return VerifierRecord(**(fields | changes))


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"status": np.array([[2, 2], [2, 2], [2, 1]], np.int8)}, "b holds without a, which it requires"),
        ({"evidence": (("0", "0"), ("1", "0"), ("1", "0"))}, "b changes at step 1 without a change"),
        ({"commits": np.array([False, False])}, "b is finalised at step 1, which is no commit"),
        (
            {"atoms": (Atom("a", "a", ("x",), requires=("b",)), Atom("b", "b", ("y",), requires=("a",)))},
            "a has a cycle among its requirements",
        ),
        ({"atoms": (Atom("a", "a", ()), Atom("b", "b", ("y",)))}, "a is scored but reads no variable"),
        (
            {
                "atoms": (Atom("a", "a", ("x",), irreversible=True), Atom("b", "b", ("y",))),
                "status": np.array([[2, 2], [3, 2], [1, 1]], np.int8),
                "evidence": (("0", "0"), ("1", "0"), ("2", "1")),
            },
            "a is irreversible but recovers from a violation",
        ),
    ],
)
def test_faults_of_records(changes, fault):
    assert list(conformance.faults(_record())) == []
    assert any(
        found.text.startswith(fault) and found.family == fault[0]
        for found in conformance.faults(_record(**changes))
    )


def test_what_becomes_known_may_become_so_through_a_requirement():
    seen = Atom("seen", "seen", ("s",), role=ScoreRole.SUPPORT)
    record = _record(
        atoms=(seen, Atom("b", "b", ("y",), requires=("seen",))),
        variables=(Variable("s", observation=True), Variable("y")),
        status=np.array([[0, 0], [1, 2], [1, 1]], np.int8),
        evidence=(("", "0"), ("1", "0"), ("1", "1")),
    )
    assert list(conformance.faults(record)) == []


def test_family_to_blame():
    """`a` says no although the score says yes: setting `a` alone repairs it."""
    apart = (Atom("a", "a", ("x",)), Atom("b", "b", ("y",)))
    record = _record(atoms=apart, status=np.array([[2, 2], [2, 2], [2, 1]], np.int8))
    task = domain.tasks(AlfworldOptions(), "train")[0]
    rollout = conformance.judge(DOMAIN, record, task, "expert")
    assert (rollout.agrees, rollout.blamed) == (False, ("a",))
    report = conformance.Report("planted", (rollout,))
    assert (report.masked_families(), report.aggregator_fails) == (("a",), False)
    both = _record(atoms=apart, status=np.full((3, 2), Status.UNSATISFIED, np.int8))
    rollout = conformance.judge(DOMAIN, both, task, "expert")
    assert conformance.Report("planted", (rollout,)).aggregator_fails


def test_a_domain_without_mutations():
    options = toy_env.ToyOptions()
    report = conformance.check(toy_env.DOMAIN, options, toy_env.tasks(options, "train")[:3], rollouts=1)
    assert report.share().rollouts == 9
    assert {r.kind for r in report.rollouts} == {"expert", "random", "edited"}
    with pytest.raises(ValueError, match="tasks is empty"):
        conformance.check(toy_env.DOMAIN, options, [])


def test_result_is_a_function_of_the_arguments():
    tasks = domain.tasks(HEAT, "train")[:4]
    first, again = (conformance.check(DOMAIN, HEAT, tasks, rollouts=2, seed=3) for _ in range(2))
    assert first == again
    assert first != conformance.check(DOMAIN, HEAT, tasks, rollouts=2, seed=4)


def test_audit_command(tmp_path, capsys):
    out = tmp_path / "report.json"
    arguments = [
        "--env",
        "alfworld",
        "--split",
        "train",
        "--tasks",
        "6",
        "--plays",
        "1",
        "--json",
        str(out),
    ]
    assert audit.main(arguments) == 0
    printed = capsys.readouterr().out
    assert "alfworld train: 6 tasks" in printed
    report = json.loads(out.read_text())["conformance"]["train"]
    assert report["conforming"]
    assert report["total"]["rollouts"] == sum(kind["rollouts"] for kind in report["kinds"].values())
    assert report["failures"] == []
    assert len(report["types"]) == 6


def test_audit_command_fails_with_the_domain(monkeypatch, capsys):
    planted = dataclasses.replace(DOMAIN, make=ForgetsHeatEnv)
    monkeypatch.setattr(domain, "DOMAIN", planted)
    options = ["--option", "task_types=('pick_heat_then_place_in_recep',)", "--option", "num_train=4"]
    assert audit.main(["--env", "alfworld", "--split", "train", *options]) == 1
    assert "mutated transformation dropped" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"unknown config key 'env\.num_tran'"):
        audit.main(["--env", "alfworld", "--option", "num_tran=4"])
    with pytest.raises(ValueError, match="must look like KEY=VALUE"):
        audit.main(["--env", "alfworld", "--option", "num_train"])


@pytest.mark.parametrize("changes", [{"score": float("nan")}, {"score": float("inf")}, {"eta": -0.1}])
def test_a_record_has_a_score_and_a_tolerance_that_are_numbers(changes):
    [(name, value)] = changes.items()
    with pytest.raises(ValueError, match=rf"{name}={value} .*are not allowed|VerifierRecord.{name}={value}"):
        _record(**changes)


def test_an_aggregator_without_a_number_agrees_with_nothing_and_is_written_as_null():
    nan = dataclasses.replace(DOMAIN, aggregate=lambda satisfied, params: float("nan"))
    task = DOMAIN.tasks(AlfworldOptions(num_train=1), "train")[0]
    rollout = conformance.judge(nan, _record(), task, "random")
    assert not rollout.agrees
    report = conformance.Report("nan", (rollout,))
    written = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert [failure["rebuilt"] for failure in written["failures"]] == [None]
    [finding] = written["findings"]
    assert np.isnan(Finding.from_json(finding).example.rebuilt)
