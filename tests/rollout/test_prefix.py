"""Rollouts behind a prefix: the same state, the same context, nothing of the prefix trained."""

from __future__ import annotations

import dataclasses
import zlib
from typing import Any

import jax
import numpy as np
import pytest

from tests.envs.toy_env import ToyOptions
from tests.rollout.test_collector import (
    APPEND,
    CODEC,
    DOMAIN,
    KEY,
    OPTIONS,
    TASKS,
    flat,
    listed,
    run,
    same,
)
from vict_jax import shaping
from vict_jax.batching import EndReason, Rollout, credit_inputs
from vict_jax.packing import token_rows
from vict_jax.rollout.collector import Collected
from vict_jax.rollout.prefix import Prefix, prefix_of
from vict_jax.shaping import RewardOptions

TOLD = "That was wrong."


def steady(text: str, key: Any) -> str:
    """A policy that depends on the text alone; every third reply is rubbish of one kind or another."""
    replies = [*listed(text)] * 4 + ["fly to moon", "", "next\ndoor"] * 2
    return replies[zlib.crc32(text.encode()) % len(replies)]


def trained_steps(rollout: Rollout) -> set[int]:
    return {int(t) for sequence in rollout.sequences for t in sequence.step[sequence.trained]}


def cut(result: Collected, steps: int, remark: str = "") -> tuple[list[Rollout], list[Prefix]]:
    """The rollouts that went on behind `steps` steps, and their prefixes."""
    pairs = zip(flat(result.groups), flat(result.marks), strict=True)
    longer = [(rollout, marks) for rollout, marks in pairs if len(rollout.actions) > steps]
    return [rollout for rollout, _ in longer], [prefix_of(r, m, steps, remark) for r, m in longer]


VARIANTS = {
    "window": OPTIONS,
    "append": APPEND,
    "passed on": dataclasses.replace(APPEND, invalid="pass"),
    "chat": dataclasses.replace(APPEND, template="chat", max_context=700),
}


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("steps", [1, 4])
def test_a_policy_that_is_told_nothing_goes_on_as_before(name: str, steps: int) -> None:
    """The environment is at the same state and the context holds the same ids: the rest of the rollout is
    the same, sampled from the same prompts, and only that rest is trained."""
    options = VARIANTS[name]
    whole, sampler = run(steady, options, rollouts=1)
    rollouts, prefixes = cut(whole, steps)
    assert len(rollouts) == len(TASKS)
    again, second = run(steady, options, rollouts=2, prefixes=prefixes)
    for before, group in zip(rollouts, again.groups, strict=True):
        for after in group:
            assert (after.actions, after.observations) == (before.actions, before.observations)
            assert after.taken.tolist() == before.taken.tolist()
            assert after.valid.tolist() == before.valid.tolist()
            assert (after.end, after.score) == (before.end, before.score)
            assert after.record is not None
            np.testing.assert_array_equal(after.record.status, before.record.status)  # type: ignore[union-attr]
            assert trained_steps(after) == set(range(steps, len(after.actions)))
    wanted = {tuple(context) for context in sampler.contexts}
    assert {tuple(context) for context in second.contexts} <= wanted
    assert len(second.replies) == 2 * sum(len(r.actions) - steps for r in rollouts)
    assert again.counts.sampled_tokens == sum(map(len, second.replies))
    if options.context == "append":
        for before, (after, _) in zip(rollouts, again.groups, strict=True):
            np.testing.assert_array_equal(after.sequences[0].ids, before.sequences[0].ids)


def test_replies_that_the_environment_did_not_see_are_in_the_prefix_as_they_were() -> None:
    whole, _ = run(steady, APPEND, rollouts=1)
    _, prefixes = cut(whole, 5)
    past = [one for prefix in prefixes for one in prefix.past]
    assert {(one.taken, bool(one.reason)) for one in past} == {(True, False), (False, True)}
    assert {"", "next\ndoor"} & {one.action for one in past if one.reason}
    again, _ = run(steady, APPEND, rollouts=1, prefixes=prefixes)
    assert [m.reasons for m in flat(again.marks)] == [m.reasons for m in flat(whole.marks)]
    assert [m.replies for m in flat(again.marks)] == [m.replies for m in flat(whole.marks)]


@pytest.mark.parametrize("context", ["window", "append"])
def test_what_the_policy_is_told_is_in_its_context_and_nowhere_else(context: str) -> None:
    options = dataclasses.replace(OPTIONS, context=context)
    whole, _ = run(steady, options, rollouts=1)
    rollouts, prefixes = cut(whole, 2, TOLD)
    again, sampler = run(lambda text, key: "next door", options, rollouts=1, prefixes=prefixes)
    first = [CODEC.decode(ids) for ids in sampler.contexts[: len(TASKS)]]
    for text, before, prefix in zip(first, rollouts, prefixes, strict=True):
        assert text.count(TOLD) == 1
        assert f"{before.observations[2]}\n{TOLD}\n" in text
        assert prefix.past[-1].answer == before.observations[2]
    for after in flat(again.groups):
        assert not any(TOLD in text for text in after.observations)
        assert after.actions[2:] == ("next door",) * 4


def test_branches_have_keys_of_their_own_by_rollout_and_step() -> None:
    whole, _ = run(steady, APPEND, rollouts=1)
    _, prefixes = cut(whole, 3, TOLD)
    _, sampler = run(lambda text, key: "fly", APPEND, rollouts=2, prefixes=prefixes, first=100)
    expected = {
        tuple(jax.random.key_data(jax.random.fold_in(jax.random.fold_in(KEY, 100 + n), step)).tolist())
        for n in range(2 * len(TASKS))
        for step in range(3, 6)
    }
    assert set(sampler.keys) == expected


def test_results_depend_neither_on_workers_nor_on_rows_in_play() -> None:
    whole, _ = run(steady, APPEND, rollouts=1)
    prefixes = [cut(whole, steps, TOLD)[1][0] for steps in (1, 4, 2)]
    tasks = [TASKS[0]] * 3

    def script(text: str, key: Any) -> str:
        replies = [*listed(text), "fly to moon", ""]
        return replies[int(key[0]) % len(replies)]

    expected, _ = run(script, APPEND, tasks=tasks, rollouts=4, prefixes=prefixes)
    few, _ = run(
        script, dataclasses.replace(APPEND, rows=5), tasks=tasks, rollouts=4, prefixes=prefixes, workers=2
    )
    assert all(map(same, flat(few.groups), flat(expected.groups)))
    assert len({rollout.actions for rollout in expected.groups[0]}) > 1


def test_an_environment_that_goes_another_way_loses_the_rollout() -> None:
    whole, _ = run(steady, APPEND, rollouts=1)
    rollouts, prefixes = cut(whole, 3)
    other = dataclasses.replace(prefixes[1].past[1], answer="You are somewhere else.")
    prefixes[1] = dataclasses.replace(prefixes[1], past=(prefixes[1].past[0], other, prefixes[1].past[2]))
    result, sampler = run(steady, APPEND, rollouts=2, prefixes=prefixes)
    assert [rollout.end is EndReason.ENV_ERROR for rollout in flat(result.groups)] == [
        *[False] * 2,
        *[True] * 2,
        *[False] * 2,
    ]
    assert "went differently" in result.marks[1][0].fault
    lost = result.groups[1][0]
    assert (lost.sequences, len(lost.actions), len(lost.observations)) == ((), 2, 2)
    assert len(sampler.replies) == 2 * sum(len(rollouts[i].actions) - 3 for i in (0, 2))
    # From the very first text on, and where the prefix goes on behind the end of the episode.
    fickle, _ = run(steady, APPEND, ToyOptions(3, 6, fickle=True), tasks=TASKS[:1], prefixes=prefixes[:1])
    assert all(rollout.actions == () and rollout.lost for rollout in flat(fickle.groups))
    short, _ = run(steady, APPEND, ToyOptions(3, 2), tasks=TASKS[:1], prefixes=prefixes[:1])
    assert all(rollout.lost for rollout in flat(short.groups))


def test_a_prefix_without_room_for_a_reply_ends_at_once_and_is_kept() -> None:
    whole, sampler = run(steady, APPEND, tasks=TASKS[:1], rollouts=1)
    (rollout,), prefixes = cut(whole, 5)
    limit = len(sampler.contexts[5]) + APPEND.max_new_tokens - 1
    options = dataclasses.replace(APPEND, max_context=limit)
    result, second = run(steady, options, tasks=TASKS[:1], rollouts=2, prefixes=prefixes)
    (full, other), marks = result.groups[0], result.marks[0]
    assert (full.end, full.sequences, second.replies) == (EndReason.CONTEXT, (), [])
    assert full.record is not None
    assert full.actions == rollout.actions[:5]
    reward = RewardOptions(overlong_buffer=100)
    assert shaping.step_penalties(full, marks[0], reward, options).tolist() == [0, 0, 0, 0, 1]
    # Beside rollouts that have something to train it has no row.
    batch, report = token_rows(
        [[rollout, full, other]], group_size=3, row_length=APPEND.max_context, row_multiple=1
    )
    assert (report.rows, set(batch.rollout[batch.loss_mask].tolist())) == (1, {0})
    shorter = dataclasses.replace(options, overflow="shorten")
    again, _ = run(steady, shorter, tasks=TASKS[:1], rollouts=1, prefixes=prefixes)
    assert trained_steps(again.groups[0][0]) == {5}
    assert again.counts.shortened == 1


def test_credit_sees_the_whole_rollout() -> None:
    """The replayed steps are in the record, so what they achieved is theirs."""
    whole, _ = run(steady, APPEND, rollouts=1)
    _, prefixes = cut(whole, 2, TOLD)
    result, _ = run(lambda text, key: listed(text)[-1], APPEND, rollouts=2, prefixes=prefixes)
    inputs = credit_inputs(result.groups, domain=DOMAIN, max_steps=6, group_size=2, conforming=[True] * 3)
    lengths = [[len(rollout.actions) for rollout in group] for group in result.groups]
    assert inputs.step_mask.sum(-1).tolist() == lengths
    for group, states in zip(result.groups, inputs.status, strict=True):
        np.testing.assert_array_equal(states[0, :3], states[1, :3])
        assert group[0].actions[:2] == group[1].actions[:2]


def test_a_rollout_ends_behind_its_last_step() -> None:
    whole, _ = run(steady, APPEND, tasks=TASKS[:1], rollouts=1)
    rollout, marks = whole.groups[0][0], whole.marks[0][0]
    for steps in (0, len(rollout.actions)):
        with pytest.raises(ValueError, match=f"steps={steps} must be 1 or more and below the 6"):
            prefix_of(rollout, marks, steps, "")
