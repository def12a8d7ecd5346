"""Evaluation: every task of a split exactly once, whatever the batch size."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence
from typing import Any

from flax import nnx

from vict_jax import processes
from vict_jax.batching import EndReason
from vict_jax.job import Job, Policy, player, sampling_policy
from vict_jax.rollout.collector import Progress
from vict_jax.sharding import batch_parts


def evaluate(job: Job, params: nnx.State, *, progress: Progress | None = None) -> dict[str, Any]:
    """Play every task of `job.eval_tasks` once, with the temperature and batch of `config.eval`.

    Called by all processes; each plays its share, and all get the whole result.

    Returns:
      `success` and `score` (means over tasks; a task lost to an environment error counts as 0),
      `per_type`: task type -> [solved, tasks], `score_per_type`: task type -> mean score, `steps_mean`,
      `tasks`, `lost`, `about`: what `Domain.about` says.
    """
    own = processes.share(len(job.eval_tasks))
    # All processes call it, also those that have no task.
    model = sampling_policy(job, params)
    outcomes = _play(job, model, own, progress) if own else []
    everyone = [one for some in processes.gather(outcomes) for one in some]
    return tally(everyone, about=job.domain.about(job.config.env.options))


def _play(job: Job, model: Policy, own: range, progress: Progress | None) -> list[Outcome]:
    """Play the tasks number `own`."""
    options = job.config.eval
    parts = job.config.rollout.lanes * batch_parts(job.sampling_mesh)
    enough = -(-len(own) // parts) * parts  # rows for all tasks that lanes and mesh divide
    rollout = dataclasses.replace(
        job.config.rollout, temperature=options.temperature, rows=min(options.batch, enough)
    )
    played = player(job, model, rollout)(
        job.eval_tasks[own.start : own.stop],
        rollouts=1,
        key=job.keys.evaluate,
        first=own.start,
        progress=progress,
    )
    return [
        Outcome(one.task.type, one.end is EndReason.SUCCESS, one.score, len(one.actions), one.lost)
        for one in (group[0] for group in played.groups)
    ]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How one task went. `lost`: its environment failed, which counts as not solved, score 0."""

    type: str
    solved: bool
    score: float
    steps: int
    lost: bool


def tally(outcomes: Sequence[Outcome], *, about: str) -> dict[str, Any]:
    """What `evaluate` returns of at least one task."""
    per_type: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0])
    scores: dict[str, list[float]] = collections.defaultdict(list)
    for one in outcomes:
        per_type[one.type][0] += one.solved
        per_type[one.type][1] += 1
        scores[one.type].append(one.score)
    return {
        "success": sum(one.solved for one in outcomes) / len(outcomes),
        "score": sum(one.score for one in outcomes) / len(outcomes),
        "per_type": dict(sorted(per_type.items())),
        "score_per_type": {kind: sum(some) / len(some) for kind, some in sorted(scores.items())},
        "steps_mean": sum(one.steps for one in outcomes) / len(outcomes),
        "tasks": len(outcomes),
        "about": about,
        "lost": sum(one.lost for one in outcomes),
    }
