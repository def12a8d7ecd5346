"""Rollouts that begin in the middle of an earlier one: its first steps are replayed, then the policy goes on.

The environment gets the same actions again, which brings it to the same state because environments are
deterministic given their task; every answer is compared with the earlier one. The context gets the replies
as they were sampled, but none of their tokens is trained: the present policy did not choose them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from envs.base import StepResult
from envs.pool import EnvPool
from envs.worker import Fault, FaultKind
from vict_jax.batching import Rollout
from vict_jax.rollout.context import Reply
from vict_jax.rollout.episode import Episode, Marks
from vict_jax.rollout.parser import ParsedReply

_DIFFERENT = "replayed, the episode went differently: the environment is not deterministic given its task"


@dataclasses.dataclass(frozen=True)
class Past:
    """A step of an earlier rollout.

    Attributes:
      ids: the reply, as it was sampled. action: what it said to do, or its text where it said nothing valid.
      reason: why the reply was not an action; "" if it was one.
      truncated: the reply was cut off. taken: the environment saw it.
      answer: the observation that followed.
    """

    ids: tuple[int, ...]
    action: str
    reason: str
    truncated: bool
    taken: bool
    answer: str


@dataclasses.dataclass(frozen=True)
class Prefix:
    """The first steps of a rollout, and what is added to them.

    Attributes:
      first: the first observation. past: one step at least.
      remark: what the context is told behind the last answer; "" for nothing.
    """

    first: str
    past: tuple[Past, ...]
    remark: str


def prefix_of(rollout: Rollout, marks: Marks, steps: int, remark: str) -> Prefix:
    """The first `steps` steps of a rollout.

    Raises:
      ValueError: the rollout did not go on behind them, so that there is nothing to go on from.
    """
    if not 1 <= steps < len(rollout.actions):
        raise ValueError(
            f"steps={steps} must be 1 or more and below the {len(rollout.actions)} of the rollout"
        )
    past = (
        Past(
            ids=marks.replies[t],
            action=rollout.actions[t],
            reason=marks.reasons[t],
            truncated=bool(marks.truncated[t]),
            taken=bool(rollout.taken[t]),
            answer=rollout.observations[t + 1],
        )
        for t in range(steps)
    )
    return Prefix(rollout.observations[0], tuple(past), remark)


def replay(
    pool: EnvPool, episodes: Sequence[Episode], prefixes: Mapping[int, Prefix], max_steps: int
) -> None:
    """Take episodes that have just begun to the end of their prefix; those without one stay as they are.

    An episode that goes another way than the prefix says is lost to its environment.

    Args:
      prefixes: by `Episode.index`.
    """
    behind = [(one, prefixes[one.index]) for one in episodes if one.index in prefixes and not one.over]
    for episode, prefix in behind:
        if episode.observations[0].text != prefix.first:
            episode.lose(Fault(FaultKind.ERROR, _DIFFERENT))
    step = 0
    while behind := [(one, p) for one, p in behind if not one.over and step < len(p.past)]:
        results = pool.step({one.slot: p.past[step].action for one, p in behind if p.past[step].taken})
        for episode, prefix in behind:
            _repeat(episode, prefix, step, results.get(episode.slot), max_steps)
        step += 1


def _repeat(
    episode: Episode, prefix: Prefix, step: int, result: StepResult | Fault | None, max_steps: int
) -> None:
    """One step; `result` is the pool's answer, None where the environment did not see the reply."""
    past, last = prefix.past[step], step + 1 == len(prefix.past)
    ids = np.array(past.ids, np.int32)
    episode.context.recall(Reply(ids, np.zeros(len(ids), np.float32), past.action))
    parsed = ParsedReply("" if past.reason else past.action, not past.reason, past.reason)
    episode.reply(past.action, parsed, truncated=past.truncated, ids=past.ids)
    answer = episode.unseen(done=False) if result is None else result
    episode.observe(answer, taken=past.taken, max_steps=max_steps, remark=prefix.remark if last else "")
    if not episode.lost and (episode.over or episode.observations[-1].text != past.answer):
        episode.lose(Fault(FaultKind.ERROR, _DIFFERENT))
