"""Evaluation: every task of a split exactly once, whatever the batch size."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

from flax import nnx

from vict_jax.batching import EndReason
from vict_jax.job import Job, policy
from vict_jax.rollout.collector import Progress, collect, open_session
from vict_jax.sharding import batch_parts


def evaluate(job: Job, params: nnx.State, *, progress: Progress | None = None) -> dict[str, Any]:
    """Play every task of `job.eval_tasks` once, with the temperature and batch of `config.eval`.

    Returns:
      `success` and `score` (means over tasks; a task lost to an environment error counts as 0),
      `per_type`: task type -> [solved, tasks], `score_per_type`: task type -> mean score, `steps_mean`,
      `tasks`, `lost`, `about`: what `Domain.about` says.
    """
    options, parts = job.config.eval, batch_parts(job.mesh)
    enough = -(-len(job.eval_tasks) // parts) * parts  # rows for all tasks that the mesh divides
    rollout = dataclasses.replace(
        job.config.rollout, temperature=options.temperature, rows=min(options.batch, enough)
    )
    played = collect(
        job.pool,
        open_session(*policy(job, params), job.codec, rollout, job.mesh, job.examples),
        job.codec,
        job.eval_tasks,
        rollouts=1,
        key=job.keys.evaluate,
        options=rollout,
        max_steps=job.max_steps,
        examples=job.examples,
        progress=progress,
    )
    finished = [group[0] for group in played.groups]
    per_type: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0])
    scores: dict[str, list[float]] = collections.defaultdict(list)
    for one in finished:
        per_type[one.task.type][0] += one.end is EndReason.SUCCESS
        per_type[one.task.type][1] += 1
        scores[one.task.type].append(one.score)
    return {
        "success": sum(one.end is EndReason.SUCCESS for one in finished) / len(finished),
        "score": sum(one.score for one in finished) / len(finished),
        "per_type": dict(sorted(per_type.items())),
        "score_per_type": {kind: sum(some) / len(some) for kind, some in sorted(scores.items())},
        "steps_mean": sum(len(one.actions) for one in finished) / len(finished),
        "tasks": len(finished),
        "about": job.domain.about(job.config.env.options),
        "lost": played.counts.env_errors + played.counts.env_timeouts,
    }
