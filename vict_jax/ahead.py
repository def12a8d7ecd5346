"""Rollouts of the next update, played while this one is computed: `train.staleness` = 1.

The environments act while the device computes gradients, a micro-batch or more a turn, and the policy that
plays is the one before this update. There is no thread: programs reach the device in an order that does not
depend on time, so that several processes and meshes do not come into conflict.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from flax import nnx

from vict_jax.bars import bar
from vict_jax.job import Job, fold
from vict_jax.resampling import Sampled, roll_out
from vict_jax.watch import Stopped, Watch
from vict_jax.work import Pieces


@dataclasses.dataclass(frozen=True)
class Ahead:
    """Rollouts that were played ahead.

    Attributes:
      sampled: the rollouts, with seconds of 0: they belong to the update before.
      seconds: of playing them, by phase, without those of the work in between.
    """

    sampled: Sampled
    seconds: Mapping[str, float]


def play_ahead(job: Job, behind: nnx.State, update: int, work: Pieces[Any], watch: Watch) -> Ahead | None:
    """Play the rollouts of `update` with the trained parameters `behind`, while `work` gets done.

    Returns:
      None if SIGTERM came to a run of one process, which ends after this update; `work` may have pieces left.
    """
    shown, move = bar(f"rollouts of update {update}")
    key = fold(job.keys.rollout, update)
    try:
        with shown:
            sampled = roll_out(job, behind, update, key, watch.moving(move), work)
    except Stopped:
        return None
    spent = dict(sampled.played.seconds)
    booked = dataclasses.replace(sampled.played, seconds=dict.fromkeys(spent, 0.0))
    spent["host"] -= work.seconds
    return Ahead(dataclasses.replace(sampled, played=booked), spent)


def pieces_a_turn(job: Job, rows: int) -> int:
    """Micro-batches of an update of so many token rows for each turn of the longest rollout."""
    options = job.config.ppo
    micro_batches = options.epochs * math.ceil(rows / options.micro_rows)
    return math.ceil(micro_batches / job.max_steps)


def with_ahead(seconds: Mapping[str, float], ahead: Ahead | None) -> dict[str, float]:
    """Seconds of an update by phase (`seconds/...`), with those of playing ahead in it put in their place."""
    spent = {} if ahead is None else {f"seconds/{phase}": value for phase, value in ahead.seconds.items()}
    moved = {**seconds, "seconds/update": seconds["seconds/update"] - sum(spent.values())}
    return moved | {phase: moved[phase] + value for phase, value in spent.items()}
