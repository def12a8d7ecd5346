"""What the checked rollouts of a verifier interface mean for credit: masked families, failing task types.

The rules (VICT section 3.2 and Eq. 11; the page is docs/conformance.md):

* a mismatch of F(z_T) and V that exactly one family of atoms explains masks that family, and other
  mismatches that it explains as well are put down to it;
* a mismatch that remains is the aggregator's: nothing of that task may be corrected, and as tasks are
  sampled, it stands for all tasks of its type;
* a fault of a record masks the family of the atom, but explains no mismatch.

A verdict only grows. Each entry keeps the smallest rollout that shows it.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Collection, Mapping, Sequence
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
      score, rebuilt: V and F(z_T); an aggregator that is wrong may give no number (NaN), which agrees with
        nothing.
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
        """F agrees with V, or would if the atoms of one of `families` held otherwise."""
        return self.agrees or any(family in families for family in self.blamed)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON types, in which there is no NaN: a `rebuilt` that is no finite number is null."""
        rebuilt = self.rebuilt if math.isfinite(self.rebuilt) else None
        return {**dataclasses.asdict(self), "rebuilt": rebuilt}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Rollout:
        """The rollout that `to_json` wrote."""
        faults = tuple(Fault(**fault) for fault in values["faults"])
        tuples = {name: tuple(values[name]) for name in ("actions", "blamed")}
        rebuilt = math.nan if values["rebuilt"] is None else values["rebuilt"]
        return cls(**{**values, **tuples, "rebuilt": rebuilt, "faults": faults})


class Kind(enum.Enum):
    """What was found.

    SCORE: a mismatch that one family alone explains; the family is masked.
    RECORD: an atom of the family breaks a promise; the family is masked.
    AGGREGATOR: a mismatch on a task type that is nobody else's; the type gets no correction.
    """

    SCORE = "score"
    RECORD = "record"
    AGGREGATOR = "aggregator"


@dataclasses.dataclass(frozen=True)
class Finding:
    """One reason to mask a family, or to give a task type no credit.

    Attributes:
      name: of the family, or of the task type.
      reason: what is wrong in `example`.
      example: the rollout with the fewest actions that shows it; of several, the first played.
    """

    kind: Kind
    name: str
    reason: str
    example: Rollout

    @property
    def consequence(self) -> str:
        """What follows, in words."""
        if self.kind is Kind.AGGREGATOR:
            return f"the aggregator fails on task type {self.name!r}, its tasks get no credit"
        return f"family {self.name!r} is masked, its atoms get no credit"

    def evidence(self) -> str:
        """Why, and the rollout that shows it, in lines."""
        one = self.example
        lines = [
            f"  why: {self.reason}",
            f"  smallest rollout that shows it: task {one.task!r}, {f'{one.kind} {one.name}'.strip()}, "
            f"F = {one.rebuilt:g}, V = {one.score:g}, {len(one.actions)} actions",
            # What a policy says may hold anything, line breaks and control characters too.
            *(f"    {t}: {text if text.isprintable() else repr(text)}" for t, text in enumerate(one.actions)),
        ]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON types."""
        return {**dataclasses.asdict(self), "kind": self.kind.value, "example": self.example.to_json()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Finding:
        """The finding that `to_json` wrote."""
        example = Rollout.from_json(values["example"])
        return cls(Kind(values["kind"]), values["name"], values["reason"], example)


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What gets no credit, and why.

    Attributes:
      findings: in the order in which they were found; one at most of each kind for each name.
    """

    findings: tuple[Finding, ...] = ()

    @property
    def masked_families(self) -> tuple[str, ...]:
        """Families whose atoms are not usable, sorted."""
        return self._names(Kind.SCORE, Kind.RECORD)

    @property
    def blamed_families(self) -> tuple[str, ...]:
        """Masked families to which a mismatch that they explain is put down, sorted."""
        return self._names(Kind.SCORE)

    @property
    def failing_types(self) -> tuple[str, ...]:
        """Task types whose tasks get no correction, sorted."""
        return self._names(Kind.AGGREGATOR)

    @property
    def examples(self) -> Mapping[tuple[Kind, str], Rollout]:
        """The smallest failing rollout, by kind and name."""
        return {(f.kind, f.name): f.example for f in self.findings}

    def _names(self, *kinds: Kind) -> tuple[str, ...]:
        return tuple(sorted({finding.name for finding in self.findings if finding.kind in kinds}))

    def extended(self, rollouts: Sequence[Rollout]) -> Verdict:
        """This verdict with what `rollouts` add to it."""
        found = [Finding(Kind.SCORE, r.blamed[0], _mismatch(r), r) for r in rollouts if len(r.blamed) == 1]
        blamed = {*self.blamed_families, *(finding.name for finding in found)}
        found += [
            Finding(Kind.AGGREGATOR, r.type, _mismatch(r), r) for r in rollouts if not r.explained_by(blamed)
        ]
        found += [Finding(Kind.RECORD, fault.family, fault.text, r) for r in rollouts for fault in r.faults]
        known = {(finding.kind, finding.name) for finding in self.findings}
        smallest: dict[tuple[Kind, str], Finding] = {}
        for finding in sorted(found, key=lambda f: len(f.example.actions)):  # stable: of equals, the first
            smallest.setdefault((finding.kind, finding.name), finding)
        new = sorted((key for key in smallest if key not in known), key=lambda key: (key[0].value, key[1]))
        return Verdict(self.findings + tuple(smallest[key] for key in new))


NOTHING_FOUND = Verdict()


def texts(findings: Sequence[Finding]) -> list[str]:
    """One text for each family and task type of `findings`, with all that was found about it."""
    evidence: dict[str, list[str]] = {}
    for finding in findings:
        evidence.setdefault(finding.consequence, []).append(finding.evidence())
    return ["\n".join([consequence, *lines]) for consequence, lines in evidence.items()]


def _mismatch(rollout: Rollout) -> str:
    """A mismatch in words, with the families that explain it."""
    families = rollout.blamed
    who = "no family of atoms explains it"
    if families:
        who = f"{', '.join(families)} {'explains it alone' if len(families) == 1 else 'explain it alike'}"
    return f"F(z_T) = {rollout.rebuilt:g} but V = {rollout.score:g} (eta = {rollout.eta:g}), and {who}"
