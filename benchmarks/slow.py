"""A household in which every step takes longer: what a slow engine or a customer behind an endpoint does."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from envs.alfworld.domain import DOMAIN
from envs.base import Env, Observation, StepResult, Task, VerifierRecord


@dataclasses.dataclass(frozen=True)
class SlowOptions:
    """Options of the environment, and seconds that a step takes longer."""

    options: Any
    latency_s: float


class SlowEnv:
    """A household in which everything takes its time."""

    def __init__(self, env: Env, latency_s: float) -> None:
        self._env, self._latency_s = env, latency_s

    def reset(self, task: Task) -> Observation:
        """See `Env.reset`."""
        return self._env.reset(task)

    def step(self, action: str) -> StepResult:
        """See `Env.step`."""
        time.sleep(self._latency_s)
        return self._env.step(action)

    def record(self) -> VerifierRecord:
        """See `Env.record`."""
        return self._env.record()

    def expert_action(self) -> str:
        """See `Env.expert_action`."""
        return self._env.expert_action()

    def close(self) -> None:
        """See `Env.close`."""
        self._env.close()


def make(options: SlowOptions) -> SlowEnv:
    """What `Domain.make` is."""
    return SlowEnv(DOMAIN.make(options.options), options.latency_s)
