"""Verifiers with one planted fault: the check finds it, and the right corrections vanish, and only those."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from envs import conformance
from envs.alfworld.domain import tasks
from envs.play import PoolEnv, play
from envs.pool import EnvPool
from envs.verdict import NOTHING_FOUND, Fault, Finding, Kind, Rollout, Verdict, texts
from tests.envs import toy_env
from tests.envs.planted import DOMAIN, Options
from vict_jax import batching
from vict_jax.credit.assign import assign_credit
from vict_jax.credit.vict import VictOptions
from vict_jax.gate import conforming_groups

# The fault shows in tasks with an even seed. What it does to them must not hide what masking does to others.
HEAT = Options(task_types=("pick_heat_then_place_in_recep",), num_train=24, of=2)
LOOK = dataclasses.replace(HEAT, task_types=("look_at_obj_in_light",))
SOUND_TASK = 1
# Two of each task type, so that all groups are of one size.
DEPARTURES = ("wrong order", "then cool", "left the lamp", "object put down")


def episode(env, task, actions):
    observations, valid = [env.reset(task).text], []
    for action in actions:
        result = env.step(action)
        observations.append(result.observation.text)
        valid.append(result.info["valid"])
        if result.done:
            break
    record, steps = env.record(), len(valid)
    end = batching.EndReason.SUCCESS if record.score else batching.EndReason.FAILURE
    return batching.Rollout(
        task=task,
        sequences=(),
        actions=tuple(actions[:steps]),
        observations=tuple(observations),
        taken=np.ones(steps, bool),
        valid=np.array(valid, bool),
        record=record,
        score=record.score,
        end=end,
    )


def group_of(domain, options, task, names):
    """The expert's rollout twice, and departures from it."""
    env = domain.make(options)
    expert = play(env, task, "expert", "", lambda _: env.expert_action()).actions
    departures = domain.mutations(options, task)
    chosen = [departures[name] for name in names if name in departures]
    return [episode(env, task, actions) for actions in (expert, expert, *chosen)]


def credit_by_family(domain, options, verdict, names=DEPARTURES, number=SOUND_TASK):
    """Family -> sum of what its edges contribute to corrections, and the largest correction."""
    group = group_of(domain, options, tasks(options, "train")[number], names)
    inputs = batching.credit_inputs(
        [group],
        domain=domain,
        max_steps=domain.max_steps(options),
        group_size=len(group),
        conforming=conforming_groups(domain, verdict, [group]),
        masked_families=verdict.masked_families,
    )
    output, violations = assign_credit(
        inputs, method="vict", aggregate=domain.aggregate, options=VictOptions(center="mean")
    )
    assert violations == 0
    contributions = np.abs(output.proofs.contribution).sum(axis=(0, 1, 2, 4))
    families = [atom.family for atom in group[0].record.atoms]
    by_family = {
        family: sum(float(contributions[j]) for j, name in enumerate(families) if name == family)
        for family in families
    }
    return by_family, float(np.abs(output.correction).max())


def check(domain, options):
    return conformance.check(domain, options, tasks(options, "train")[:8], rollouts=1)


@pytest.mark.parametrize(
    ("fault", "options", "masked", "reason", "stays"),
    [
        (
            "wrong_atom",
            LOOK,
            "at_lamp",
            "F(z_T) = 0 but V = 1 (eta = 0), and at_lamp explains it alone",
            "holding",
        ),
        ("wrong_dependency", HEAT, "heated", "heated holds without placed, which it requires", "placed"),
        ("lagging_evidence", HEAT, "heated", "heated changes at step 4 without a change of", "placed"),
        ("frozen_evidence", HEAT, "heated", "heated changes at step 4 without a change of", "placed"),
    ],
)
def test_a_faulty_family_is_masked_and_the_others_keep_their_credit(fault, options, masked, reason, stays):
    options = dataclasses.replace(options, fault=fault)
    verdict = check(DOMAIN, options).verdict()
    assert (verdict.masked_families, verdict.failing_types) == ((masked,), ())
    (finding,) = verdict.findings
    assert finding.reason.startswith(reason)
    before, _ = credit_by_family(DOMAIN, options, NOTHING_FOUND)
    assert before[masked] > 0
    assert before[stays] > 0
    after, correction = credit_by_family(DOMAIN, options, verdict)
    assert after[masked] == 0
    assert after[stays] > 0
    assert correction > 0


def none_is_as_good_as_all(satisfied, params):
    """A wrong aggregator."""
    required = params["required"]
    return (satisfied | ~required).all() | ~(satisfied & required).any()


def test_a_wrong_aggregator_takes_all_credit_from_its_task_type():
    wrong = dataclasses.replace(DOMAIN, aggregate=none_is_as_good_as_all)
    verdict = check(wrong, LOOK).verdict()
    assert (verdict.masked_families, verdict.failing_types) == ((), LOOK.task_types)
    assert "at_lamp, holding, lit explain it alike" in verdict.findings[0].reason
    # In these rollouts the wrong aggregator happens to be right, so only the verdict can tell.
    _, before = credit_by_family(wrong, LOOK, NOTHING_FOUND)
    by_family, after = credit_by_family(wrong, LOOK, verdict)
    assert before > 0
    assert after == 0
    assert set(by_family.values()) == {0.0}


def test_an_atom_that_several_families_excuse_takes_all_credit_from_its_task_type():
    options = dataclasses.replace(HEAT, fault="premature_atom")
    verdict = check(DOMAIN, options).verdict()
    # The scores accuse `heated` and `placed` alike; that `placed` moves without evidence masks it besides.
    assert (verdict.masked_families, verdict.failing_types) == (("placed",), HEAT.task_types)
    assert credit_by_family(DOMAIN, options, NOTHING_FOUND)[1] > 0
    assert credit_by_family(DOMAIN, options, verdict)[1] == 0


def test_a_group_whose_own_scores_are_not_rebuilt_gets_no_credit_before_any_verdict():
    options = dataclasses.replace(HEAT, fault="premature_atom")
    names, faulty = ("never placed", "then cool"), 0
    assert credit_by_family(DOMAIN, options, NOTHING_FOUND, names, faulty)[1] == 0
    assert credit_by_family(DOMAIN, HEAT, NOTHING_FOUND, names, faulty)[1] > 0
    chosen = [tasks(options, "train")[n] for n in (faulty, SOUND_TASK)]
    groups = [group_of(DOMAIN, options, task, names) for task in chosen]
    assert conforming_groups(DOMAIN, NOTHING_FOUND, groups) == [False, True]
    first = groups[0][0]
    judged = conformance.judge(DOMAIN, first.record, first.task, "policy")
    blamed = Verdict((Finding(Kind.SCORE, "placed", "", judged),))
    assert conforming_groups(DOMAIN, blamed, groups) == [True, True]


def checked(actions, *, wrong=False, blamed=(), faults=(), type_="t"):
    """A rollout with F = 0, and V = 1 if it is wrong or somebody is blamed."""
    score = float(wrong or bool(blamed))
    return Rollout("task", type_, "edited", "", ("act",) * actions, score, 0.0, 0.0, blamed, faults)


def test_the_smallest_rollout_is_kept():
    rollouts = [checked(3, blamed=("a",)), checked(2, blamed=("a",)), checked(2, blamed=("a",), type_="u")]
    (finding,) = NOTHING_FOUND.extended(rollouts).findings
    assert finding.example is rollouts[1]


def test_a_mismatch_is_put_down_to_a_family_that_another_one_accuses():
    alike, alone = checked(1, blamed=("a", "b")), checked(2, blamed=("a",))
    assert NOTHING_FOUND.extended([alike]).failing_types == ("t",)
    together = NOTHING_FOUND.extended([alike, alone])
    assert (together.masked_families, together.failing_types) == (("a",), ())
    assert NOTHING_FOUND.extended([checked(1, blamed=("b", "c")), alone]).failing_types == ("t",)
    assert NOTHING_FOUND.extended([checked(1, wrong=True), alone]).failing_types == ("t",)
    # A fault of the record is no explanation of a score.
    faulty = checked(1, faults=(Fault("a", "a is stale"),))
    verdict = NOTHING_FOUND.extended([alike, faulty])
    assert (verdict.masked_families, verdict.failing_types) == (("a",), ("t",))


def test_a_verdict_only_grows_and_survives_json():
    first = NOTHING_FOUND.extended(
        [checked(5, blamed=("a",)), checked(4, faults=(Fault("b", "b is stale"),))]
    )
    grown = first.extended([checked(1, blamed=("a",)), checked(2, wrong=True, type_="u")])
    assert grown.findings[: len(first.findings)] == first.findings
    assert (grown.masked_families, grown.failing_types) == (("a", "b"), ("u",))
    assert grown.extended([checked(1)]) == grown
    read = tuple(Finding.from_json(json.loads(json.dumps(f.to_json()))) for f in grown.findings)
    assert Verdict(read) == grown


def test_findings_in_words():
    stale = dataclasses.replace(checked(2, faults=(Fault("a", "a is stale"),)), actions=("look", "\n\x1b"))
    found = NOTHING_FOUND.extended([checked(1, blamed=("a",)), stale, checked(0, wrong=True, type_="u")])
    about_type, about_family = texts(found.findings)
    assert about_type == (
        "the aggregator fails on task type 'u', its tasks get no credit\n"
        "  why: F(z_T) = 0 but V = 1 (eta = 0), and no family of atoms explains it\n"
        "  smallest rollout that shows it: task 'task', edited, F = 0, V = 1, 0 actions"
    )
    assert about_family == (
        "family 'a' is masked, its atoms get no credit\n"
        "  why: a is stale\n"
        "  smallest rollout that shows it: task 'task', edited, F = 0, V = 0, 2 actions\n"
        "    0: look\n    1: '\\n\\x1b'\n"
        "  why: F(z_T) = 0 but V = 1 (eta = 0), and a explains it alone\n"
        "  smallest rollout that shows it: task 'task', edited, F = 0, V = 1, 1 actions\n"
        "    0: act"
    )


def sleepy_mutations(options, task):
    """One that hangs and one that does not."""
    return {"falls asleep": ["next door", "sleep"], "opens nothing": ["next door"]}


def test_field_report_31_a_hanging_environment_loses_its_episode_and_nothing_else():
    sleepy = dataclasses.replace(toy_env.DOMAIN, mutations=sleepy_mutations)
    options, chosen = toy_env.ToyOptions(), toy_env.tasks(toy_env.ToyOptions(), "train")[:2]
    with EnvPool(sleepy, options, workers=1, timeout_s=0.4) as pool:
        report = conformance.check(sleepy, options, chosen, rollouts=1, env=PoolEnv(pool, 3))
    alone = conformance.check(toy_env.DOMAIN, options, chosen, rollouts=1)
    assert report.share(kind="mutated").rollouts == 2
    assert [r for r in report.rollouts if r.kind != "mutated"] == list(alone.rollouts)
    assert [(p.name, p.actions) for p in report.lost] == [("falls asleep", ("next door", "sleep"))] * 2
    assert report.lost[0].lost.startswith("env_timeout: no answer within 0.4 s")
    assert not report.conforming
    assert report.verdict() == NOTHING_FOUND
    assert conformance.failures_by_name(report) == {"lost: mutated falls asleep": 2}
    assert json.loads(json.dumps(report.to_json()))["lost"][0]["task"] == chosen[0].id
