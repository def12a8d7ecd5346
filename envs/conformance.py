"""Does a verifier interface reconstruct its environment's own score? On rollouts, and on mutations of them.

Four kinds of rollout are played (`envs.play`): the expert's, random ones, the expert's with one action
dropped, swapped, replaced or cut off, and the domain's own mutations; training adds the policy's. In each
one F(z_T) is compared with V (VICT section 3.2, Eq. 3 and 11), and the record is checked for what credit
relies on:

* requirements: an atom never holds while one that it requires does not;
* writes: a status never changes without a change of a variable that the atom reads (or, where it becomes
  known, that an atom reads which it requires);
* eligibility: no atom has only circular support, scored atoms read variables, a violated irreversible atom
  stays so, only commits finalise.

A family of atoms is to blame for a mismatch that goes away when its atoms alone are set otherwise. What
follows from all this for credit is the `Verdict`, see docs/conformance.md.
"""

from __future__ import annotations

import collections
import dataclasses
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from envs.base import Domain, Env, ScoreRole, Status, Task, VerifierRecord
from envs.closure import broken_rules, circular, may_require
from envs.play import Played, play_task
from envs.verdict import NOTHING_FOUND, Fault, Rollout, Verdict


@dataclasses.dataclass(frozen=True)
class Share:
    """Rollouts, those with a full score, those whose score is rebuilt, those whose record is sound."""

    rollouts: int
    won: int
    agree: int
    sound: int


@dataclasses.dataclass(frozen=True)
class Report:
    """Conformance of a domain over the rollouts played.

    Attributes:
      domain: its name.
      rollouts: those that were checked.
      lost: those whose environment failed; nothing is known about them.
    """

    domain: str
    rollouts: tuple[Rollout, ...]
    lost: tuple[Played, ...] = ()

    def share(self, **fields: str) -> Share:
        """Counts over the rollouts whose attributes are as given (`type="..."`, `kind="mutated"`)."""
        chosen = [r for r in self.rollouts if all(vars(r)[name] == value for name, value in fields.items())]
        return Share(
            rollouts=len(chosen),
            won=sum(r.score >= 1 for r in chosen),
            agree=sum(r.agrees for r in chosen),
            sound=sum(not r.faults for r in chosen),
        )

    @property
    def conforming(self) -> bool:
        """Every score was rebuilt, every record is sound, and no rollout was lost."""
        return bool(self.rollouts) and not self.lost and all(r.agrees and not r.faults for r in self.rollouts)

    def verdict(self, known: Verdict = NOTHING_FOUND) -> Verdict:
        """What gets no credit: `known` and what these rollouts add to it."""
        return known.extended(self.rollouts)

    def masked_families(self) -> tuple[str, ...]:
        """Families that alone explain some mismatch, or whose atoms break a promise."""
        return self.verdict().masked_families

    @property
    def aggregator_fails(self) -> bool:
        """Some mismatch is explained by no family or by several alike: nothing may be corrected."""
        return bool(self.verdict().failing_types)

    def to_json(self) -> dict[str, Any]:
        """The figures, every rollout that fails and what follows, as plain JSON types."""
        kinds, types = _values(self.rollouts, "kind"), _values(self.rollouts, "type")
        verdict = self.verdict()
        return {
            "domain": self.domain,
            "conforming": self.conforming,
            "total": dataclasses.asdict(self.share()),
            "kinds": {kind: dataclasses.asdict(self.share(kind=kind)) for kind in kinds},
            "types": {
                type_: {kind: dataclasses.asdict(self.share(type=type_, kind=kind)) for kind in kinds}
                for type_ in types
            },
            "masked_families": list(verdict.masked_families),
            "aggregator_fails": bool(verdict.failing_types),
            "failing_types": list(verdict.failing_types),
            "findings": [finding.to_json() for finding in verdict.findings],
            "failures": [r.to_json() for r in self.rollouts if not r.agrees or r.faults],
            "lost": [{**dataclasses.asdict(p), "task": p.task.id} for p in self.lost],
        }

    def table(self) -> str:
        """The figures for people, one line per task type and kind of rollout."""
        lines = [f"{'task type':32} {'kind':8} {'rollouts':>8} {'won':>6} {'F = V':>8} {'sound':>8}"]
        kinds = _values(self.rollouts, "kind")
        rows = [({"type": t, "kind": k}, t, k) for t in _values(self.rollouts, "type") for k in kinds]
        rows += [({"kind": k}, "all", k) for k in kinds] + [({}, "all", "all")]
        for fields, type_, kind in rows:
            share = self.share(**fields)
            if share.rollouts:
                agree, sound = (f"{n / share.rollouts:8.2%}" for n in (share.agree, share.sound))
                lines.append(f"{type_:32} {kind:8} {share.rollouts:8} {share.won:6} {agree} {sound}")
        return "\n".join(lines)


def _values(rollouts: Sequence[Rollout], name: str) -> list[str]:
    return list(dict.fromkeys(vars(r)[name] for r in rollouts))


def check(
    domain: Domain,
    options: Any,
    tasks: Sequence[Task],
    *,
    rollouts: int = 4,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
    env: Env | None = None,
) -> Report:
    """Play and check rollouts of `tasks`.

    Args:
      domain: the domain; its `mutations` are played, too.
      options: for `domain.make`.
      tasks: the tasks to play.
      rollouts: random ones, and edited ones, of each task; 0 leaves both out.
      seed: of the random choices; the result is a function of the arguments.
      progress: called with the number of tasks done so far.
      env: where to play, such as an `envs.play.PoolEnv`; one made and closed here if left out.

    Raises:
      ValueError: there are no tasks.
    """
    if not tasks:
        raise ValueError("tasks is empty: nothing to check")
    where = domain.make(options) if env is None else env
    played: list[Played] = []
    try:
        for done, task in enumerate(tasks, start=1):
            rng = random.Random(f"{seed}/{task.id}")
            played += play_task(domain, options, where, task, rollouts=rollouts, rng=rng)
            if progress is not None:
                progress(done)
    finally:
        if env is None:
            where.close()
    return judge_all(domain, played)


def judge_all(domain: Domain, played: Iterable[Played]) -> Report:
    """Check the records of episodes that were played."""
    played = tuple(played)
    rollouts = [judge(domain, p.record, p.task, p.kind, p.name, p.actions) for p in played if p.record]
    return Report(domain.name, tuple(rollouts), tuple(p for p in played if p.record is None))


def judge(
    domain: Domain, record: VerifierRecord, task: Task, kind: str, name: str = "", actions: Sequence[str] = ()
) -> Rollout:
    """Check one record."""
    rebuilt = rebuild(domain, record)
    agrees = abs(rebuilt - record.score) <= record.eta
    return Rollout(
        task=task.id,
        type=task.type,
        kind=kind,
        name=name,
        actions=tuple(actions),
        score=record.score,
        rebuilt=rebuilt,
        eta=record.eta,
        blamed=() if agrees else tuple(blamed(domain, record)),
        faults=tuple(faults(record)),
    )


def rebuild(domain: Domain, record: VerifierRecord) -> float:
    """F(z_T)."""
    return float(domain.aggregate(record.status[-1] == Status.SATISFIED, record.params))


def blamed(domain: Domain, record: VerifierRecord) -> Iterator[str]:
    """Families that alone can make F agree with V: all of a family's atoms hold, or none."""
    satisfied = record.status[-1] == Status.SATISFIED
    for family in sorted({atom.family for atom in record.atoms}):
        members = np.array([atom.family == family for atom in record.atoms])
        for value in (True, False):
            changed = float(domain.aggregate(np.where(members, value, satisfied), record.params))
            if abs(changed - record.score) <= record.eta:
                yield family
                break


def rebuilds(domain: Domain, record: VerifierRecord, families: Collection[str]) -> bool:
    """Whether F(z_T) agrees with V, or would if the atoms of one of `families` held otherwise."""
    if abs(rebuild(domain, record) - record.score) <= record.eta:
        return True
    return any(family in families for family in blamed(domain, record))


def faults(record: VerifierRecord) -> Iterator[Fault]:
    """What is wrong with a record; see the module."""
    yield from _eligibility(record)
    for j, text in broken_rules(record.atoms, record.status):
        yield Fault(record.atoms[j].family, text)
    evidence = np.array(record.evidence, object).reshape(len(record.evidence), -1)
    changed = evidence[1:] != evidence[:-1]
    index = {variable.id: v for v, variable in enumerate(record.variables)}
    binds = np.zeros((len(record.atoms), len(index)), bool)
    for j, atom in enumerate(record.atoms):
        binds[j, [index[v] for v in atom.variables]] = True
    # What becomes known may become so through an atom that it requires (the object comes into view).
    through_requirements = (may_require(record.atoms).astype(int) @ binds.astype(int)) > 0
    for t, j in np.argwhere(record.status[1:] != record.status[:-1]):
        became_known = record.status[t, j] == Status.UNKNOWN
        read = through_requirements[j] if became_known else binds[j]
        if not (changed[t] & read).any():
            atom = record.atoms[j]
            yield Fault(atom.family, f"{atom.id} changes at step {t} without a change of what it reads")


def _eligibility(record: VerifierRecord) -> Iterator[Fault]:
    reasons = circular(record.atoms)
    outside = record.scope & ~record.commits[:, None]
    for j, atom in enumerate(record.atoms):
        if reasons[j]:
            yield Fault(atom.family, f"{atom.id} has a cycle among its requirements ({reasons[j]})")
        if atom.role is ScoreRole.SCORED and not atom.variables:
            yield Fault(atom.family, f"{atom.id} is scored but reads no variable")
        violated = record.status[:, j] == Status.VIOLATED
        if atom.irreversible and (violated[:-1] & ~violated[1:]).any():
            yield Fault(atom.family, f"{atom.id} is irreversible but recovers from a violation")
        for t in np.flatnonzero(outside[:, j]):
            yield Fault(atom.family, f"{atom.id} is finalised at step {t}, which is no commit")


def failures_by_name(report: Report) -> Mapping[str, int]:
    """How many rollouts of each kind and name fail or are lost, the most frequent first."""
    failing = [f"{r.kind} {r.name}".strip() for r in report.rollouts if not r.agrees or r.faults]
    failing += [f"lost: {p.kind} {p.name}".strip() for p in report.lost]
    return dict(collections.Counter(failing).most_common())
