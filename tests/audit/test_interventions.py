"""Interventions on a corridor whose score is known action by action."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.audit.logged import ODD_ACTION
from tests.envs import toy_env
from vict_jax.audit.interventions import Play, intervene
from vict_jax.audit.source import Setting
from vict_jax.credit.options import VictOptions

TASK = toy_env.tasks(toy_env.ToyOptions(), "train")[3]


def setting(**options):
    return Setting(toy_env.DOMAIN, toy_env.ToyOptions(**options), "vict", VictOptions())


def expert_actions():
    env, actions, done = toy_env.ToyEnv(toy_env.ToyOptions()), [], False
    env.reset(TASK)
    while not done:
        actions.append(env.expert_action())
        done = env.step(actions[-1]).done
    return actions


def play(actions, correction, *, score=1.0, taken=None, name="p"):
    return Play(
        name=name,
        task=TASK,
        actions=tuple(actions),
        taken=np.ones(len(actions), bool) if taken is None else np.array(taken),
        score=score,
        correction=np.array(correction, np.float32),
    )


def credit_of(actions, **credited):
    """Corrections by action name; `useless` is an action that leads nowhere."""
    return [credited.get(action.replace(" ", "_"), 0.0) for action in actions]


def test_credited_actions_are_needed_and_a_detour_is_not():
    """Taking the key or opening the chest away loses the task, looking at a wall first does not."""
    actions = ["stare", *expert_actions()]
    report = intervene(setting(), [play(actions, credit_of(actions, take_key=0.5, open_chest=0.5))], seed=1)
    positive, uncredited = report.outcomes["positive"], report.outcomes["uncredited"]
    assert (report.rollouts, report.skipped) == (1, 0)
    assert (positive.actions, positive.dropped, positive.raised) == (2, 2, 0)
    assert uncredited.actions == 2  # as many as there are positive ones
    assert uncredited.raised == 0
    assert report.outcomes["negative"].actions == 0


def test_uncredited_actions_are_drawn_from_those_that_the_environment_saw():
    actions = ["stare", ODD_ACTION, *expert_actions()]
    taken = [action != ODD_ACTION for action in actions]
    corrections = [0.0 if action in ("stare", ODD_ACTION) else 0.5 for action in actions]
    report = intervene(setting(), [play(actions, corrections, taken=taken)])
    assert report.outcomes["uncredited"].actions == 1
    assert report.outcomes["uncredited"].dropped == 0
    assert report.outcomes["positive"].dropped == report.outcomes["positive"].actions == len(actions) - 2


def test_a_step_that_the_environment_never_saw_is_not_played():
    """With the step cap of the corridor one action more would be one too many."""
    actions = expert_actions()
    cap = len(actions)
    with_odd = [actions[0], ODD_ACTION, *actions[1:]]
    taken = [action != ODD_ACTION for action in with_odd]
    corrections = credit_of(with_odd, take_key=1.0)
    assert intervene(setting(max_steps=cap), [play(with_odd, corrections, taken=taken)]).skipped == 0
    assert intervene(setting(max_steps=cap), [play(with_odd, corrections)]).skipped == 1


def test_an_action_with_negative_credit_may_have_cost_the_score():
    """One detour too many meets the step cap; without it the chest opens."""
    actions = expert_actions()
    detour = ["next door"] * 4 + actions[:-1]  # once round the corridor, then no step left for the chest
    options = setting(max_steps=len(detour))
    failed = play(detour, [-0.5] * 4 + [0.0] * (len(detour) - 4), score=0.0)
    report = intervene(options, [failed])
    assert report.skipped == 0
    assert report.outcomes["negative"].actions == 4
    assert report.outcomes["negative"].raised == 0  # a no-op takes a step as well
    hasty = play(["die" if a == "stare" else a for a in actions], [0.0] * len(actions), score=0.0)
    assert intervene(setting(), [hasty]).skipped == 1  # it does not score as logged


def test_raised_scores_are_counted():
    """Dropping the key again: without that action the chest opens."""

    domain = dataclasses.replace(toy_env.DOMAIN, make=ClumsyEnv)
    actions = expert_actions()
    with_drop = [*actions[:-1], "drop key", actions[-1]]
    options = dataclasses.replace(setting(), domain=domain)
    report = intervene(options, [play(with_drop, credit_of(with_drop, drop_key=-1.0), score=0.0)])
    assert report.skipped == 0
    assert report.outcomes["negative"] == dataclasses.replace(
        report.outcomes["negative"], actions=1, dropped=0, raised=1
    )


class ClumsyEnv(toy_env.ToyEnv):
    """The key can be dropped for good."""

    def _apply(self, action):
        if action == "drop key":
            self._holding, self._key = False, -1
            return "You drop the key."
        return super()._apply(action)

    def _admissible(self):
        return (*super()._admissible(), "drop key")


class FickleEnv(toy_env.ToyEnv):
    """Every other episode finds the chest locked."""

    episodes = 0

    def reset(self, task):
        FickleEnv.episodes += 1
        return super().reset(task)

    def record(self):
        record = super().record()
        return dataclasses.replace(record, score=record.score * (FickleEnv.episodes % 2))


def test_a_fickle_or_failing_environment_is_skipped_and_counted():
    actions = expert_actions()
    domain = dataclasses.replace(toy_env.DOMAIN, make=FickleEnv)
    options = dataclasses.replace(setting(), domain=domain)
    plays = [play(actions, [0.0] * len(actions), name=str(i)) for i in range(4)]
    report = intervene(options, plays)
    assert (report.rollouts, report.skipped) == (4, 2)
    dies = play(["die", *actions], [0.0] * (len(actions) + 1))
    assert intervene(setting(), [dies, plays[0]]).skipped == 1
    assert "4 rollouts replayed, 2 skipped" in report.text()


@pytest.mark.parametrize("seed", [0, 1])
def test_the_choice_of_uncredited_actions_is_a_function_of_the_seed(seed):
    actions = ["stare", *expert_actions()]
    case = [play(actions, credit_of(actions, take_key=0.5))]
    assert intervene(setting(), case, seed=seed) == intervene(setting(), case, seed=seed)


class ThirdsEnv(toy_env.ToyEnv):
    """A lost task is worth a third, a solved one two thirds."""

    def record(self):
        record = super().record()
        return dataclasses.replace(record, score=(1 + record.score) / 3)


def test_a_score_that_the_log_rounds_is_the_same_score():
    actions = expert_actions()
    options = dataclasses.replace(setting(), domain=dataclasses.replace(toy_env.DOMAIN, make=ThirdsEnv))
    logged = float(np.float32(2 / 3))
    report = intervene(options, [play(actions, credit_of(actions, take_key=0.5), score=logged)])
    assert report.skipped == 0
    assert (report.outcomes["positive"].actions, report.outcomes["positive"].dropped) == (1, 1)
