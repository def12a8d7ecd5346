"""Episodes of an environment, kept with everything that it said."""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from envs.base import Domain, Env, Observation, StepResult, Task, VerifierRecord
from envs.play import EnvFailedError, Played, play_task
from vict_jax.audit.findings import UserCodeError, call


@dataclasses.dataclass(frozen=True)
class Episode:
    """An episode of T actions.

    Attributes:
      observations: T+1 of them. valid: T answers, whether the environment took the action.
    """

    played: Played
    observations: tuple[Observation, ...]
    valid: tuple[bool, ...]

    @property
    def record(self) -> VerifierRecord:
        """The verifier's record."""
        assert self.played.record is not None, "only a pool loses episodes"
        return self.played.record


class WatchedEnv:
    """An `envs.base.Env` that remembers the episode; what the environment raises is a UserCodeError."""

    def __init__(self, env: Env) -> None:
        self._env = env
        self.observations: list[Observation] = []
        self.valid: list[bool] = []

    def reset(self, task: Task) -> Observation:
        """See `Env.reset`."""
        self.observations, self.valid = [], []
        self.observations.append(call(f"reset({task.id!r})", self._env.reset, task))
        return self.observations[0]

    def step(self, action: str) -> StepResult:
        """See `Env.step`."""
        shown = repr(action) if len(action) <= 40 else f"{action[:20]!r}... of {len(action)} characters"
        result = call(f"step({shown})", self._env.step, action)
        self.observations.append(result.observation)
        self.valid.append(bool(call(f'info["valid"] after step({shown})', result.info.__getitem__, "valid")))
        return result

    def record(self) -> VerifierRecord:
        """See `Env.record`."""
        return call("record()", self._env.record)

    def expert_action(self) -> str:
        """See `Env.expert_action`."""
        return call("expert_action()", self._env.expert_action)

    def close(self) -> None:
        """See `Env.close`."""
        call("close()", self._env.close)


class LosableEnv:
    """An `envs.base.Env` whose failures lose an episode (`EnvFailedError`) and say at which step of it.

    It is made anew behind a failure, as nobody knows what state that left.
    """

    def __init__(self, domain: Domain, options: Any) -> None:
        self._domain, self._options = domain, options
        self._env: WatchedEnv | None = None

    def reset(self, task: Task) -> Observation:
        """See `Env.reset`."""
        with self._losing():
            return self._made().reset(task)

    def step(self, action: str) -> StepResult:
        """See `Env.step`."""
        with self._losing():
            return self._made().step(action)

    def record(self) -> VerifierRecord:
        """See `Env.record`."""
        with self._losing():
            return self._made().record()

    def expert_action(self) -> str:
        """See `Env.expert_action`."""
        with self._losing():
            return self._made().expert_action()

    def close(self) -> None:
        """See `Env.close`; what it raises is a UserCodeError."""
        if self._env is not None:
            self._env.close()

    def _made(self) -> WatchedEnv:
        if self._env is None:
            self._env = WatchedEnv(call("make(options)", self._domain.make, self._options))
        return self._env

    @contextlib.contextmanager
    def _losing(self) -> Iterator[None]:
        try:
            yield
        except UserCodeError as error:
            taken = 0 if self._env is None else len(self._env.valid)
            self._env = None
            raise EnvFailedError(f"after {taken} steps {error}") from error


def losing_mutations(domain: Domain) -> Domain:
    """The domain with mutations whose failures lose an episode, as those of `LosableEnv` do."""

    def mutations(options: Any, task: Task) -> Mapping[str, Sequence[str]]:
        try:
            return call("mutations(options, task)", domain.mutations, options, task)
        except UserCodeError as error:
            raise EnvFailedError(str(error)) from error

    return dataclasses.replace(domain, mutations=mutations)


def watch(domain: Domain, options: Any, tasks: Sequence[Task], *, rollouts: int, seed: int) -> list[Episode]:
    """The expert's, random, edited and mutated episodes of each task; see `envs.play.play_task`.

    Raises:
      UserCodeError: the environment raised.
    """
    env = WatchedEnv(call("make(options)", domain.make, options))
    mutations = dataclasses.replace(
        domain, mutations=lambda *args: call("mutations(options, task)", domain.mutations, *args)
    )
    episodes = []
    for task in tasks:
        rng = random.Random(f"{seed}/{task.id}")
        for played in play_task(mutations, options, env, task, rollouts=rollouts, rng=rng):
            episodes.append(Episode(played, tuple(env.observations), tuple(env.valid)))
    env.close()
    return episodes
