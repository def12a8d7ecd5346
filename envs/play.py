"""Playing rollouts for a conformance check: the expert's, random ones, edits of solutions, mutations.

An environment is played in this process, or in a slot of a pool (`PoolEnv`), where one that raises, hangs
or dies loses the episode and nothing else.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from envs.base import Domain, Env, Observation, StepResult, Task, VerifierRecord
from envs.pool import EnvPool
from envs.worker import Fault

EXPERT, RANDOM, EDITED, MUTATED, POLICY = "expert", "random", "edited", "mutated", "policy"
EDITS = ("dropped", "swapped", "replaced", "cut")


@dataclasses.dataclass(frozen=True)
class Played:
    """One episode.

    Attributes:
      kind: `expert`, `random`, `edited`, `mutated` or `policy`; name: what was done, may be empty.
      actions: those that were played.
      record: None if the environment failed. lost: the message of its failure, else empty.
    """

    task: Task
    kind: str
    name: str
    actions: tuple[str, ...]
    record: VerifierRecord | None
    lost: str = ""


class EnvFailedError(Exception):
    """The environment failed and lost its episode; a slot of a pool is empty until its next reset."""


class PoolEnv:
    """One slot of a pool as an `envs.base.Env`; every call may raise `EnvFailedError`.

    Args:
      pool: it stays open when this is closed.
      slot: what ran there ends at the first reset.
    """

    def __init__(self, pool: EnvPool, slot: int) -> None:
        self._pool, self._slot = pool, slot

    def reset(self, task: Task) -> Observation:
        """See `Env.reset`."""
        return _answer(self._pool.reset({self._slot: task})[self._slot])

    def step(self, action: str) -> StepResult:
        """See `Env.step`."""
        return _answer(self._pool.step({self._slot: action})[self._slot])

    def record(self) -> VerifierRecord:
        """See `Env.record`."""
        return _answer(self._pool.record([self._slot])[self._slot])

    def expert_action(self) -> str:
        """See `Env.expert_action`."""
        return _answer(self._pool.expert([self._slot])[self._slot])

    def close(self) -> None:
        """See `Env.close`; nothing is held."""


def _answer(answer: Any) -> Any:
    if isinstance(answer, Fault):
        raise EnvFailedError(f"{answer.kind.value}: {answer.message}")
    return answer


def play_task(
    domain: Domain, options: Any, env: Env, task: Task, *, rollouts: int, rng: random.Random
) -> Iterator[Played]:
    """The expert's episode of a task, `rollouts` random ones, as many edits of the expert's, mutations."""
    expert = play(env, task, EXPERT, "", lambda _: env.expert_action())
    yield expert
    for _ in range(rollouts):
        share = rng.random()  # from nearly expert to nearly random
        yield play(env, task, RANDOM, "", lambda seen, share=share: _sometimes(rng, share, env, seen))  # type: ignore[misc]
    for _ in range(rollouts):
        name, actions = edit(expert.actions, rng.choice(EDITS), rng)
        yield play_actions(env, task, EDITED, name, actions)
    yield from play_mutations(domain, options, env, task)


def play_mutations(domain: Domain, options: Any, env: Env, task: Task) -> Iterator[Played]:
    """The domain's own mutations of a task; one lost episode if making them raises `EnvFailedError`."""
    try:
        mutations = domain.mutations(options, task)
    except EnvFailedError as error:
        yield Played(task, MUTATED, "", (), None, str(error))
        return
    for name, actions in mutations.items():
        yield play_actions(env, task, MUTATED, name, actions)


def play_actions(env: Env, task: Task, kind: str, name: str, actions: Sequence[str]) -> Played:
    """Given actions, until the episode is done."""
    pending = iter(actions)
    return play(env, task, kind, name, lambda _: next(pending, None))


def play(env: Env, task: Task, kind: str, name: str, act: Callable[[Observation], str | None]) -> Played:
    """Play until the episode is done or `act` has no more actions."""
    actions: list[str] = []
    try:
        observation, done = env.reset(task), False
        while not done and (action := act(observation)) is not None:
            actions.append(action)
            result = env.step(action)
            observation, done = result.observation, result.done
        return Played(task, kind, name, tuple(actions), env.record())
    except EnvFailedError as error:
        return Played(task, kind, name, tuple(actions), None, str(error))


def _sometimes(rng: random.Random, share: float, env: Env, observation: Observation) -> str:
    if observation.admissible and rng.random() < share:
        return rng.choice(observation.admissible)
    return env.expert_action()


def edit(actions: Sequence[str], how: str, rng: random.Random) -> tuple[str, list[str]]:
    """One change, at a random place, of a sequence of actions: what was done, and the result.

    Args:
      how: one of `EDITS`. `cut` leaves out everything from the place on.
    """
    edited = list(actions)
    place = rng.randrange(len(actions)) if actions else 0
    if how == "dropped":
        del edited[place : place + 1]
    elif how == "cut":
        del edited[place:]
    elif how == "replaced" and edited:
        edited[place] = rng.choice(edited)
    elif edited:
        other = rng.randrange(len(edited))
        edited[place], edited[other] = edited[other], edited[place]
    return f"{how} at {place}", edited
