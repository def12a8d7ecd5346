"""What is taken off the reward: DAPO's overlong penalty, and replies without an action."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

from envs.base import Task, VerifierRecord
from vict_jax.batching import EndReason, Rollout, TokenSequence
from vict_jax.credit.base import has_spread
from vict_jax.rollout.episode import Marks
from vict_jax.rollout.options import RolloutOptions
from vict_jax.shaping import RewardOptions, overlong, penalties, same_return, step_penalties

ROLLOUT = RolloutOptions(max_context=100, max_new_tokens=20)
TASK = Task(id="t", type="t", split="train", seed=0, source="")


def play(
    replies: list[int], *, prompt: int = 3, score: float = 0.0, end: EndReason = EndReason.FAILURE
) -> Rollout:
    """A rollout in one sequence: for each step a prompt and a reply of so many tokens."""
    trained = np.concatenate([np.repeat([False, True], [prompt, reply]) for reply in replies])
    steps, count = len(replies), len(trained)
    step = np.repeat(np.arange(steps), [prompt + reply for reply in replies]).astype(np.int32)
    sequence = TokenSequence(np.zeros(count, np.int32), trained, np.zeros(count, np.float32), step)
    record = VerifierRecord(
        atoms=(),
        variables=(),
        status=np.zeros((steps + 1, 0), np.int8),
        evidence=((),) * (steps + 1),
        commits=np.zeros(steps, bool),
        scope=np.zeros((steps, 0), bool),
        params={},
        score=score,
        eta=0.0,
    )
    flags = np.ones(steps, bool)
    return Rollout(
        task=TASK,
        sequences=(sequence,),
        actions=("a",) * steps,
        observations=("o",) * (steps + 1),
        taken=flags,
        valid=flags,
        record=record,
        score=score,
        end=end,
    )


def marks(rollout: Rollout, *unparsed: int) -> Marks:
    flags = np.isin(np.arange(len(rollout.actions)), unparsed)
    return Marks(
        truncated=np.zeros_like(flags),
        unparsed=flags,
        reasons=("",) * len(flags),
        replies=((1,),) * len(flags),
        shortened=0,
        prompt_tokens=0,
        sampled_tokens=0,
        fault="",
    )


def lost(rollout: Rollout) -> Rollout:
    return dataclasses.replace(
        rollout, record=None, observations=rollout.observations[:-1], score=0.0, end=EndReason.ENV_ERROR
    )


def test_overlong_penalty_of_the_paper() -> None:
    """L_max 20480 and L_cache 4096: nothing up to 16384, then linear, and 1 beyond."""
    length = np.array([1, 16384, 16384 + 1024, 16384 + 2048, 20480, 30000])
    cost = overlong(length, limit=20480, buffer=4096)
    np.testing.assert_array_equal(cost, np.float32([0, 0, 0.25, 0.5, 1, 1]))


def test_context_is_measured_at_the_end_of_the_rollout() -> None:
    options = RewardOptions(overlong_buffer=40, overlong_weight=0.5)
    fits, long = play([10, 10]), play([20, 20, 20], prompt=6)  # 26 and 78 of 100 tokens, 60 cost nothing
    assert step_penalties(fits, marks(fits), options, ROLLOUT).tolist() == [0, 0]
    np.testing.assert_allclose(
        step_penalties(long, marks(long), options, ROLLOUT), [0, 0, 0.5 * 18 / 40], rtol=1e-6
    )
    cut = play([10, 10], end=EndReason.CONTEXT)  # the next reply would not fit: it is over the limit
    assert step_penalties(cut, marks(cut), options, ROLLOUT).tolist() == [0, 0.5]


def test_replies_are_measured_each_and_forms_are_added() -> None:
    rollout = play([10, 15, 20])
    options = dataclasses.replace(ROLLOUT, format_penalty=0.125)
    reply = RewardOptions(overlong_of="reply", overlong_buffer=10)
    got = step_penalties(rollout, marks(rollout, 0, 2), reply, options)
    np.testing.assert_allclose(got, [0.125, 0.5, 1.125])
    assert step_penalties(lost(rollout), marks(rollout, 0), reply, options).tolist() == [0, 0, 0]


def test_padded_as_credit_inputs_are() -> None:
    short, long = play([20]), play([20, 20])
    options = RewardOptions(overlong_of="reply", overlong_buffer=10)
    groups = [[short, long], [lost(long), short]]
    got = penalties(groups, [[marks(r) for r in group] for group in groups], options, ROLLOUT, max_steps=3)
    assert got.dtype == np.float32
    assert got.tolist() == [[[1, 0, 0], [1, 1, 0]], [[0, 0, 0], [1, 0, 0]]]


@pytest.mark.parametrize("seed", range(4))
def test_groups_without_signal_are_those_that_the_estimators_see(seed: int) -> None:
    """Host and device add in the same order and precision."""
    rng = np.random.default_rng(seed)
    options = RewardOptions(overlong_of="reply", overlong_buffer=20, overlong_weight=0.1)
    spread = jax.jit(has_spread)
    for _ in range(10):
        group = [
            play(
                rng.permutation([3, 7, 11, 20])[: rng.integers(3, 5)].tolist(),
                score=float(rng.choice([0, 1])),
            )
            for _ in range(3)
        ]
        if rng.random() < 0.5:
            group = [group[0]] * 3
        if rng.random() < 0.3:
            group[1] = lost(group[1])
        some = [marks(rollout) for rollout in group]
        found = penalties([group], [some], options, ROLLOUT, max_steps=4)[0]
        total = np.array([np.float32(rollout.score) for rollout in group])
        taken = np.zeros(3, np.float32)
        for t in range(4):
            taken = taken + found[:, t]
        real = np.array([not rollout.lost for rollout in group])
        assert same_return(group, some, options, ROLLOUT) == (not bool(spread(total - taken, real)))


def test_a_group_of_lost_rollouts_or_of_one_has_no_signal() -> None:
    one = play([3], score=1.0)
    for group in ([lost(one)] * 2, [one, lost(one)], [one]):
        assert same_return(group, [marks(r) for r in group], RewardOptions(), ROLLOUT)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"overlong_of": "rollout"}, "reward.overlong_of='rollout' is not allowed: it must be one of"),
        ({"overlong_buffer": -1}, "reward.overlong_buffer=-1"),
        ({"overlong_weight": float("nan")}, "reward.overlong_weight=nan"),
    ],
)
def test_options_say_what_is_allowed(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RewardOptions(**change)


def test_a_buffer_longer_than_what_it_guards_is_refused() -> None:
    assert RewardOptions(overlong_buffer=100).limit(ROLLOUT) == 100
    with pytest.raises(ValueError, match="at most the 20 tokens that a reply can have"):
        RewardOptions(overlong_of="reply", overlong_buffer=21).limit(ROLLOUT)
