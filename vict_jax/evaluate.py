"""Evaluation: every task of a list exactly once, whatever the batch size."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
from flax import nnx

from envs.base import Task
from envs.pool import EnvPool
from vict_jax.batching import EndReason
from vict_jax.config import EvalOptions
from vict_jax.rollout.collector import Progress, collect, open_session
from vict_jax.rollout.options import RolloutOptions
from vict_jax.rollout.tokenizer import Codec


def evaluate(
    graphdef: nnx.GraphDef,
    params: nnx.State,
    codec: Codec,
    pool: EnvPool,
    tasks: Sequence[Task],
    *,
    rollout: RolloutOptions,
    options: EvalOptions,
    max_steps: int,
    key: jax.Array,
    mesh: jax.sharding.Mesh,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Play every task once.

    Args:
      rollout: options of training; temperature and number of rows are those of `options`.
      key: PRNG key; not used by greedy decoding.

    Returns:
      `success` and `score` (means over tasks; a task lost to an environment error counts as 0),
      `per_type`: task type -> [solved, tasks], `steps_mean`, `tasks`, `lost`.
    """
    rollout = dataclasses.replace(rollout, temperature=options.temperature, rows=options.batch)
    session = open_session(graphdef, params, codec, rollout, mesh)
    played = collect(
        pool,
        session,
        codec,
        tasks,
        rollouts=1,
        key=key,
        options=rollout,
        max_steps=max_steps,
        progress=progress,
    )
    finished = [group[0] for group in played.groups]
    per_type: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0])
    for one in finished:
        per_type[one.task.type][0] += one.end is EndReason.SUCCESS
        per_type[one.task.type][1] += 1
    return {
        "success": sum(one.end is EndReason.SUCCESS for one in finished) / len(finished),
        "score": sum(one.score for one in finished) / len(finished),
        "per_type": dict(sorted(per_type.items())),
        "steps_mean": sum(len(one.actions) for one in finished) / len(finished),
        "tasks": len(finished),
        "lost": played.counts.env_errors + played.counts.env_timeouts,
    }
