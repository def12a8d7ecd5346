"""A small deterministic environment that fails in every way the pool must survive.

The agent walks along a corridor of numbered doors and must `take key` behind the door named in the
task, then `open chest` behind the last door. Which door has the key depends on the task's seed.
Besides, the actions `raise`, `sleep`, `hang`, `die`, `exit`, `bloat` and `bad answer` fail, each in its
own way.
"""

from __future__ import annotations

import dataclasses
import os
import random
import resource
import signal
import sys
import threading
import time
from collections.abc import Sequence

import numpy as np

from envs.base import Atom, Domain, Observation, Status, StepResult, Task, Variable, VerifierRecord

ATOMS = (
    Atom("has_key", "key", ("holding",)),
    Atom("opened", "chest", ("chest",), requires=("has_key",), irreversible=True),
)
VARIABLES = (Variable("holding"), Variable("chest"))


@dataclasses.dataclass(frozen=True)
class ToyOptions:
    """Doors of the corridor and the step cap. Faults: resets of the seed 13 raise (unlucky), the first
    text is never the same (fickle), close raises (clumsy)."""

    doors: int = 4
    max_steps: int = 8
    unlucky: bool = False
    fickle: bool = False
    clumsy: bool = False


class ToyEnv:
    """See the module's docstring."""

    def __init__(self, options: ToyOptions) -> None:
        self._options = options

    def reset(self, task: Task) -> Observation:
        if self._options.unlucky and task.seed == 13:
            raise RuntimeError("seed 13 is unlucky")
        self._key = random.Random(task.seed).randrange(self._options.doors)
        self._door, self._steps, self._holding, self._open = 0, 0, False, False
        self._status, self._evidence = [self._atoms()], [self._values()]
        luck = f" Luck: {time.time_ns()}." if self._options.fickle else ""
        return self._observe(f"You are in a corridor.{luck} Your task is to: open the chest.")

    def step(self, action: str) -> StepResult:
        _misbehave(action)
        valid = action in self._admissible()
        text = self._apply(action) if valid else "Nothing happens."
        self._steps += 1
        self._status.append(self._atoms())
        self._evidence.append(self._values())
        done = self._open or self._steps >= self._options.max_steps
        info = {"valid": valid, "pid": os.getpid(), "jax": "jax" in sys.modules}
        if action == "bad answer":
            info["lock"] = threading.Lock()
        return StepResult(self._observe(text), done, info)

    def record(self) -> VerifierRecord:
        steps = len(self._status) - 1
        commits = np.zeros(steps, bool)
        scope = np.zeros((steps, 2), bool)
        if self._open:
            commits[-1], scope[-1] = True, (False, True)
        score = float(self._holding and self._open)
        status = np.array(self._status, np.int8)
        return VerifierRecord(
            ATOMS,
            VARIABLES,
            status,
            tuple(self._evidence),
            commits,
            scope,
            {"bonus": np.float32(0)},
            0.0,
            score,
        )

    def expert_action(self) -> str:
        if not self._holding:
            return "take key" if self._door == self._key else "next door"
        return "open chest" if self._door == self._options.doors - 1 else "next door"

    def close(self) -> None:
        if self._options.clumsy:
            raise RuntimeError("cannot close")

    def _admissible(self) -> tuple[str, ...]:
        last = self._door == self._options.doors - 1
        actions = ["next door"]
        actions += ["open chest"] if last and self._holding else []
        actions += ["take key"] if self._door == self._key and not self._holding else []
        return tuple(actions)

    def _apply(self, action: str) -> str:
        if action == "next door":
            self._door = (self._door + 1) % self._options.doors
            return f"You are at door {self._door}."
        if action == "take key":
            self._holding = True
            return "You take the key."
        self._open = True
        return "The chest is open."

    def _observe(self, text: str) -> Observation:
        return Observation(text, self._admissible())

    def _atoms(self) -> tuple[int, int]:
        yes, no = Status.SATISFIED, Status.UNSATISFIED
        return (yes if self._holding else no, yes if self._open else no)

    def _values(self) -> tuple[str, str]:
        return ("key" if self._holding else "nothing", "open" if self._open else "closed")


def _misbehave(action: str) -> None:
    """The failures: an exception, a hang with and without signals, a killed and a vanished process, and one
    without memory."""
    if action == "raise":
        raise RuntimeError("the toy environment was told to raise")
    if action == "sleep":
        while True:
            time.sleep(1)
    if action == "hang":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
        time.sleep(3600)
    if action == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if action == "exit":
        os._exit(3)
    if action == "bloat":
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (2**33, most))
        bytearray(2**34)


def make(options: ToyOptions) -> ToyEnv:
    """Domain.make of the toy environment."""
    return ToyEnv(options)


def make_deadly(options: ToyOptions) -> ToyEnv:
    """A maker that takes its worker with it."""
    os._exit(5)


def tasks(options: ToyOptions, split: str) -> Sequence[Task]:
    """Twenty tasks a split."""
    first = {"train": 0, "valid": 100}[split]
    return [Task(f"{split}_{i}", "corridor", split, first + i, "") for i in range(20)]


def aggregate(satisfied, params):
    """F_x: both atoms."""
    return satisfied.all()


def max_steps(options: ToyOptions) -> int:
    """Domain.max_steps."""
    return options.max_steps


def corpus(options: ToyOptions) -> Sequence[str]:
    """Texts of expert episodes."""
    texts = []
    for task in tasks(options, "train"):
        env = ToyEnv(options)
        texts.append(env.reset(task).text)
        done = False
        while not done:
            action = env.expert_action()
            result = env.step(action)
            texts += [action, result.observation.text]
            done = result.done
    return texts


DOMAIN = Domain(
    name="toy",
    make=make,
    tasks=tasks,
    splits=("train", "valid"),
    aggregate=aggregate,
    atom_params={"bonus": False},
    max_atoms=2,
    max_variables=2,
    max_steps=max_steps,
    corpus=corpus,
)
