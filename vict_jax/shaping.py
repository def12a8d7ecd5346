"""What is taken off the reward on the host: for replies without an action, and for length.

The score of a rollout is what its environment says and is never touched; `CreditInputs.penalty` holds these
penalties by step, and `credit.base.returns_of` subtracts them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from vict_jax.batching import EndReason, Rollout
from vict_jax.rollout.episode import Marks
from vict_jax.rollout.options import RolloutOptions, Trained

OVERLONG_OF = ("context", "reply")


@dataclasses.dataclass(frozen=True)
class RewardOptions:
    """The soft overlong penalty of DAPO (arXiv 2503.14476, Eq. 13).

    A length up to `L_max - buffer` costs nothing, from there to L_max linearly more up to `overlong_weight`.

    Attributes:
      overlong_of: what is measured. "context": the longest model sequence of a rollout, prompts included,
        against `rollout.max_context`; taken off at its last step; a rollout that ended because the next
        reply would not fit is over L_max. "reply": the tokens of each reply against
        `rollout.max_new_tokens`; taken off at its own step.
      overlong_buffer: L_cache, in tokens; 0 = off.
      overlong_weight: the most it takes off (paper: 1, the reward of a right answer).
    """

    overlong_of: str = "context"
    overlong_buffer: int = 0
    overlong_weight: float = 1.0

    def __post_init__(self) -> None:
        for name, ok, allowed in (
            ("overlong_of", self.overlong_of in OVERLONG_OF, f"one of {OVERLONG_OF}"),
            ("overlong_buffer", self.overlong_buffer >= 0, "0 (off) or more"),
            ("overlong_weight", 0 <= self.overlong_weight < float("inf"), "a finite number, 0 or more"),
        ):
            if not ok:
                value = dataclasses.asdict(self)[name]
                raise ValueError(f"reward.{name}={value!r} is not allowed: it must be {allowed}")

    def limit(self, rollout: RolloutOptions) -> int:
        """L_max, in tokens.

        Raises:
          ValueError: the buffer is not below it, or replies are measured but not trained whole.
        """
        of_reply = self.overlong_of == "reply"
        if of_reply and self.overlong_buffer and Trained(rollout.trained) is not Trained.REPLY:
            raise ValueError(
                f"reward.overlong_of={self.overlong_of!r} is not allowed with rollout.trained="
                f"{rollout.trained!r}: replies are measured by their trained tokens"
            )
        longest = rollout.max_new_tokens if of_reply else rollout.max_context
        if self.overlong_buffer > longest:
            raise ValueError(
                f"reward.overlong_buffer={self.overlong_buffer} is not allowed: it must be at most the "
                f"{longest} tokens that a {self.overlong_of} can have"
            )
        return longest


def overlong(length: np.ndarray, *, limit: int, buffer: int) -> np.ndarray:
    """Eq. 13 of DAPO, as a cost: 0 up to `limit - buffer`, 1 from `limit` on, linear between; float32."""
    return np.clip((length - (limit - buffer)) / np.float32(buffer), 0, 1).astype(np.float32)


def reply_lengths(rollout: Rollout) -> np.ndarray:
    """Sampled tokens of each step, int64[T]."""
    counts = np.zeros(len(rollout.actions), np.int64)
    for sequence in rollout.sequences:
        np.add.at(counts, sequence.step[sequence.trained], 1)
    return counts


def step_penalties(
    rollout: Rollout, marks: Marks, options: RewardOptions, rollouts: RolloutOptions
) -> np.ndarray:
    """What is taken off the reward of each step of one rollout, float32[T]; 0 for a lost one."""
    steps = len(rollout.actions)
    penalty = np.zeros(steps, np.float32)
    if rollout.lost or not steps:
        return penalty
    penalty += np.float32(rollouts.format_penalty) * marks.unparsed
    if options.overlong_buffer:
        limit, weight = options.limit(rollouts), np.float32(options.overlong_weight)
        if options.overlong_of == "reply":
            cost = overlong(reply_lengths(rollout), limit=limit, buffer=options.overlong_buffer)
            return penalty + weight * cost
        # A rollout that goes on from a longer one may end before its first reply.
        longest = max((len(sequence.ids) for sequence in rollout.sequences), default=0)
        length = np.array(limit if rollout.end is EndReason.CONTEXT else longest)
        penalty[-1] += weight * overlong(length, limit=limit, buffer=options.overlong_buffer)
    return penalty


def penalties(
    groups: Sequence[Sequence[Rollout]],
    marks: Sequence[Sequence[Marks]],
    options: RewardOptions,
    rollouts: RolloutOptions,
    *,
    max_steps: int,
) -> np.ndarray:
    """`step_penalties` of equally large groups, float32[G, N, T] with T = `max_steps`; 0 on padding."""
    padded = np.zeros((len(groups), len(groups[0]), max_steps), np.float32)
    for g, (group, some) in enumerate(zip(groups, marks, strict=True)):
        for n, (rollout, mark) in enumerate(zip(group, some, strict=True)):
            padded[g, n, : len(rollout.actions)] = step_penalties(rollout, mark, options, rollouts)
    return padded


def same_return(
    group: Sequence[Rollout], marks: Sequence[Marks], options: RewardOptions, rollouts: RolloutOptions
) -> bool:
    """Whether the real rollouts of a group all have the same return, score less penalties, or there is none.

    Added up in the order and precision of `credit.base.returns_of`, so that both see the same groups.
    """
    returns = set()
    for rollout, mark in zip(group, marks, strict=True):
        if not rollout.lost:
            total = np.cumsum(step_penalties(rollout, mark, options, rollouts), dtype=np.float32)
            returns.add(float(np.float32(rollout.score) - (total[-1] if total.size else np.float32(0))))
    return len(returns) < 2
