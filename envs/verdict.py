"""What the checked rollouts of a verifier interface mean for credit: masked families, failing task types.

The rules (VICT section 3.2 and Eq. 11; the page is docs/conformance.md):

* a mismatch of F(z_T) and V that exactly one family of atoms explains masks that family;
* so does a fault of a record, whatever the scores say;
* a mismatch that no masked family explains is the aggregator's: nothing of that task may be corrected, and
  as tasks are sampled, it stands for all tasks of its type.

A verdict only grows. Each entry keeps the smallest rollout that shows it.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class Fault:
    """What is wrong with a record: an atom of `family` breaks a promise that credit relies on."""

    family: str
    text: str


@dataclasses.dataclass(frozen=True)
class Rollout:
    """One checked rollout.

    Attributes:
      task: id of the task; type: its type.
      kind: one of `expert`, `random`, `edited`, `mutated`, `policy`; name: what was done, may be empty.
      actions: the actions played.
      score, rebuilt: V and F(z_T).
      eta: tolerance of their difference.
      blamed: families that explain a mismatch, each alone.
      faults: what is wrong with the record itself.
    """

    task: str
    type: str
    kind: str
    name: str
    actions: tuple[str, ...]
    score: float
    rebuilt: float
    eta: float
    blamed: tuple[str, ...]
    faults: tuple[Fault, ...]

    @property
    def agrees(self) -> bool:
        """|F - V| <= eta."""
        return abs(self.rebuilt - self.score) <= self.eta

    def explained_by(self, families: Collection[str]) -> bool:
        """F agrees with V, or would if one of `families` held otherwise."""
        return self.agrees or any(family in families for family in self.blamed)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Rollout:
        """The rollout whose `dataclasses.asdict` went through JSON."""
        faults = tuple(Fault(**fault) for fault in values["faults"])
        tuples = {name: tuple(values[name]) for name in ("actions", "blamed")}
        return cls(**{**values, **tuples, "faults": faults})


class Scope(enum.Enum):
    """What loses its credit: the atoms of one family, or everything in the tasks of one type."""

    FAMILY = "family"
    TYPE = "type"


@dataclasses.dataclass(frozen=True)
class Finding:
    """One family to mask, or one task type whose aggregator fails.

    Attributes:
      name: of the family or task type.
      reason: what is wrong in `example`.
      example: the rollout with the fewest actions that shows it; of several, the first played.
    """

    scope: Scope
    name: str
    reason: str
    example: Rollout

    def __str__(self) -> str:
        """What follows, why, and the rollout that shows it."""
        one = self.example
        follows = {
            Scope.FAMILY: f"family {self.name!r} is masked, its atoms get no credit",
            Scope.TYPE: f"the aggregator fails on task type {self.name!r}, its tasks get no credit",
        }[self.scope]
        played = f"{one.kind} {one.name}".strip()
        lines = [
            follows,
            f"  why: {self.reason}",
            f"  smallest rollout that shows it: task {one.task!r}, {played}, F = {one.rebuilt:g}, "
            f"V = {one.score:g}, {len(one.actions)} actions",
            *(f"    {t}: {action}" for t, action in enumerate(one.actions)),
        ]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON types."""
        return {**dataclasses.asdict(self), "scope": self.scope.value}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Finding:
        """The finding that `to_json` wrote."""
        example = Rollout.from_json(values["example"])
        return cls(Scope(values["scope"]), values["name"], values["reason"], example)


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What gets no credit, and why.

    Attributes:
      findings: in the order in which they were found; one at most for each family and task type.
    """

    findings: tuple[Finding, ...] = ()

    @property
    def masked_families(self) -> tuple[str, ...]:
        """Families whose atoms are not usable, sorted."""
        return self._names(Scope.FAMILY)

    @property
    def failing_types(self) -> tuple[str, ...]:
        """Task types whose tasks get no correction, sorted."""
        return self._names(Scope.TYPE)

    @property
    def examples(self) -> Mapping[str, Rollout]:
        """The smallest failing rollout, by `family NAME` or `type NAME`."""
        return {f"{f.scope.value} {f.name}": f.example for f in self.findings}

    def _names(self, scope: Scope) -> tuple[str, ...]:
        return tuple(sorted(finding.name for finding in self.findings if finding.scope is scope))

    def extended(self, rollouts: Sequence[Rollout]) -> Verdict:
        """This verdict with what `rollouts` add to it."""
        masked = set(self.masked_families)
        families = [finding for rollout in rollouts for finding in _families(rollout)]
        masked |= {finding.name for finding in families}
        types = [Finding(Scope.TYPE, r.type, _mismatch(r), r) for r in rollouts if not r.explained_by(masked)]
        known = {(finding.scope, finding.name) for finding in self.findings}
        smallest: dict[tuple[Scope, str], Finding] = {}
        for finding in sorted([*families, *types], key=lambda f: len(f.example.actions)):  # stable
            smallest.setdefault((finding.scope, finding.name), finding)
        new = sorted(smallest.items(), key=lambda item: (item[0][0].value, item[0][1]))
        return Verdict(self.findings + tuple(finding for key, finding in new if key not in known))


NOTHING_FOUND = Verdict()


def _families(rollout: Rollout) -> Iterator[Finding]:
    if len(rollout.blamed) == 1:
        yield Finding(Scope.FAMILY, rollout.blamed[0], _mismatch(rollout), rollout)
    for fault in rollout.faults:
        yield Finding(Scope.FAMILY, fault.family, fault.text, rollout)


def _mismatch(rollout: Rollout) -> str:
    """A mismatch in words, with the families that explain it."""
    families = rollout.blamed
    who = "no family of atoms explains it"
    if families:
        who = f"{', '.join(families)} {'explains it alone' if len(families) == 1 else 'explain it alike'}"
    return f"F(z_T) = {rollout.rebuilt:g} but V = {rollout.score:g} (eta = {rollout.eta:g}), and {who}"
