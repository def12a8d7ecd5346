"""The household environment that fails in one place, chosen by an option."""

from __future__ import annotations

import dataclasses

from envs.alfworld.domain import DOMAIN as HOUSEHOLD
from envs.alfworld.domain import AlfworldEnv, AlfworldOptions

FIRST, SECOND = (task.id for task in HOUSEHOLD.tasks(AlfworldOptions(), "train")[:2])


@dataclasses.dataclass(frozen=True)
class Options(AlfworldOptions):
    """`fails`: `step` or `reset`, `record`, `mutations`, or `score`; in the first task, or in every task."""

    fails: str = ""
    everywhere: bool = False


class FailingEnv(AlfworldEnv):
    """Its third step raises, or one of the others; a score that is not a number."""

    def _now(self, where: str) -> bool:
        return self._where == where and (self._everywhere or self._task == FIRST)

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._where, self._everywhere = options.fails, options.everywhere

    def reset(self, task):
        self._task, self._steps = task.id, 0
        if self._now("reset"):
            raise KeyError("reset was planted")
        return super().reset(task)

    def step(self, action):
        self._steps += 1
        if self._now("step") and self._steps == 3:
            raise KeyError("step was planted")
        return super().step(action)

    def record(self):
        record = super().record()
        return dataclasses.replace(record, score=float("nan")) if self._now("score") else record


def mutations(options, task):
    if options.fails == "mutations":
        raise KeyError("mutations were planted")
    return HOUSEHOLD.mutations(options, task)


DOMAIN = dataclasses.replace(HOUSEHOLD, name="failing", make=FailingEnv, mutations=mutations)
