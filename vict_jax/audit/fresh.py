"""Rollouts without a model: groups played by the expert with random actions in between."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from envs.base import Domain, Observation, Task
from envs.play import RANDOM, play
from vict_jax.audit.findings import UserCodeError, call
from vict_jax.audit.watch import WatchedEnv
from vict_jax.batching import EndReason, Rollout


def noisy_groups(
    domain: Domain,
    options: Any,
    tasks: Sequence[Task],
    *,
    group_size: int,
    seed: int,
    progress: Callable[[], object] = lambda: None,
) -> list[list[Rollout]]:
    """Play every task `group_size` times with the expert, each time with another share of random actions.

    The share is drawn anew for each rollout, from none to all, so that the scores of a group differ. A
    random action is an admissible one, or a no-op where the environment names none.

    Args:
      seed: the result is a function of it and the tasks. progress: called after each task.

    Raises:
      UserCodeError: the environment raised.
    """
    env = WatchedEnv(call("make(options)", domain.make, options))
    groups = []
    try:
        for task in tasks:
            rngs = [random.Random(f"{seed}/{task.id}/{n}") for n in range(group_size)]
            groups.append([_rollout(domain, options, env, task, rng) for rng in rngs])
            progress()
    finally:
        env.close()
    return groups


def _rollout(domain: Domain, options: Any, env: WatchedEnv, task: Task, rng: random.Random) -> Rollout:
    share, most = rng.random(), domain.max_steps(options)

    def act(seen: Observation) -> str | None:
        if len(env.valid) >= most:
            return None
        return _noise(domain, seen, rng) if rng.random() < share else env.expert_action()

    try:
        played = play(env, task, RANDOM, f"{share:.2f}", act)
    except UserCodeError as error:
        raise UserCodeError(f"task {task.id!r}, after {len(env.valid)} steps: {error}") from error
    record, steps = played.record, len(played.actions)
    assert record is not None  # only a pool loses episodes
    ended = EndReason.STEP_CAP if steps >= most else EndReason.FAILURE
    return Rollout(
        task=task,
        sequences=(),
        actions=played.actions,
        observations=tuple(observation.text for observation in env.observations),
        taken=np.ones(steps, bool),
        valid=np.array(env.valid, bool),
        record=record,
        score=record.score,
        end=EndReason.SUCCESS if record.score >= 1 else ended,
    )


def _noise(domain: Domain, seen: Observation, rng: random.Random) -> str:
    return rng.choice(seen.admissible) if seen.admissible else domain.no_op
