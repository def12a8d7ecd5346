"""The household environment with one planted fault in its verifier interface, chosen by an option."""

from __future__ import annotations

import dataclasses

import numpy as np

from envs.alfworld.domain import DOMAIN as HOUSEHOLD
from envs.alfworld.domain import AlfworldEnv, AlfworldOptions
from envs.base import Status, VerifierRecord


def wrong_atom(record: VerifierRecord) -> VerifierRecord:
    """The last atom, `at_lamp` or `placed`, is never seen to hold."""
    last = np.array([atom.family == record.atoms[-1].family for atom in record.atoms])
    wrong = last & (record.status == Status.SATISFIED)
    return dataclasses.replace(record, status=np.where(wrong, np.int8(Status.UNSATISFIED), record.status))


def premature_atom(record: VerifierRecord) -> VerifierRecord:
    """At the end `placed` holds, whatever happened."""
    status = record.status.copy()
    status[-1, [atom.family == "placed" for atom in record.atoms]] = Status.SATISFIED
    return dataclasses.replace(record, status=status)


def wrong_dependency(record: VerifierRecord) -> VerifierRecord:
    """The requirement between `heated` and `placed` points the wrong way."""
    needed = {"heated": ("acquired", "placed"), "placed": ("acquired",)}
    atoms = [dataclasses.replace(a, requires=needed.get(a.id, a.requires)) for a in record.atoms]
    return dataclasses.replace(record, atoms=tuple(atoms))


def lagging_evidence(record: VerifierRecord) -> VerifierRecord:
    """The state of the object arrives one step late."""
    return _with_states(record, lambda states: [states[0], *states[:-1]])


def frozen_evidence(record: VerifierRecord) -> VerifierRecord:
    """The state of the object is read once, at the start."""
    return _with_states(record, lambda states: [states[0]] * len(states))


def _with_states(record, change):
    column = [variable.id for variable in record.variables].index("object_state")
    states = change([row[column] for row in record.evidence])
    rows = zip(record.evidence, states, strict=True)
    evidence = tuple((*row[:column], state, *row[column + 1 :]) for row, state in rows)
    return dataclasses.replace(record, evidence=evidence)


FAULTS = {
    fault.__name__: fault
    for fault in (wrong_atom, premature_atom, wrong_dependency, lagging_evidence, frozen_evidence)
}


@dataclasses.dataclass(frozen=True)
class Options(AlfworldOptions):
    """Attributes:
    fault: a key of `FAULTS`, or empty.
    remainder, of: the fault shows in tasks whose seed leaves this remainder.
    silent: the fault shows only in episodes without an accepted command, which only a policy plays.
    """

    fault: str = ""
    remainder: int = 0
    of: int = 1
    silent: bool = False


class PlantedEnv(AlfworldEnv):
    """Wins and texts are those of the original; only the record differs."""

    def reset(self, task):
        self._faulty = task.seed % self._options.of == self._options.remainder
        self._accepted = 0
        return super().reset(task)

    def step(self, action):
        result = super().step(action)
        self._accepted += result.info["valid"]
        return result

    def record(self):
        record = super().record()
        if not self._options.fault or not self._faulty or (self._options.silent and self._accepted):
            return record
        return FAULTS[self._options.fault](record)


DOMAIN = dataclasses.replace(HOUSEHOLD, name="planted", make=PlantedEnv)
