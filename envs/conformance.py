"""Does a verifier interface reconstruct its environment's own score? On rollouts, and on mutations of them.

Four kinds of rollout are played: the expert's, random ones, the expert's with one action dropped,
swapped, replaced or cut off, and the domain's own mutations. In each one F(z_T) is compared with V
(VICT section 3.2, Eq. 3 and 11), and the record is checked for what credit relies on:

* requirements: an atom never holds while one that it requires does not;
* writes: a status never changes without a change of a variable that the atom reads (or, where it becomes
  known, that an atom reads which it requires);
* eligibility: closures are unambiguous, scored atoms read variables, a violated irreversible atom stays so.

A family of atoms is to blame for a mismatch that goes away when its atoms alone are set otherwise.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from envs.base import Domain, Env, Observation, ScoreRole, Status, Task, VerifierRecord, requirement_closure

EXPERT, RANDOM, EDITED, MUTATED = "expert", "random", "edited", "mutated"


@dataclasses.dataclass(frozen=True)
class Rollout:
    """One checked rollout.

    Attributes:
      task: id of the task; type: its type.
      kind: one of `expert`, `random`, `edited`, `mutated`; name: what was done, empty for the first two.
      score, rebuilt: V and F(z_T).
      eta: tolerance of their difference.
      blamed: families that explain a mismatch.
      faults: what is wrong with the record itself.
    """

    task: str
    type: str
    kind: str
    name: str
    score: float
    rebuilt: float
    eta: float
    blamed: tuple[str, ...]
    faults: tuple[str, ...]

    @property
    def agrees(self) -> bool:
        """|F - V| <= eta."""
        return abs(self.rebuilt - self.score) <= self.eta


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
      rollouts: all of them.
    """

    domain: str
    rollouts: tuple[Rollout, ...]

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
        """Every score was rebuilt and every record is sound."""
        return bool(self.rollouts) and all(r.agrees and not r.faults for r in self.rollouts)

    def masked_families(self) -> tuple[str, ...]:
        """Families that alone explain some mismatch; without them the rest reconstructs."""
        return tuple(sorted({r.blamed[0] for r in self.rollouts if len(r.blamed) == 1}))

    @property
    def aggregator_fails(self) -> bool:
        """Some mismatch is explained by no family or by several alike: nothing may be corrected."""
        return any(not r.agrees and len(r.blamed) != 1 for r in self.rollouts)

    def to_json(self) -> dict[str, Any]:
        """The figures and every rollout that fails, as plain JSON types."""
        kinds, types = _values(self.rollouts, "kind"), _values(self.rollouts, "type")
        return {
            "domain": self.domain,
            "conforming": self.conforming,
            "total": dataclasses.asdict(self.share()),
            "kinds": {kind: dataclasses.asdict(self.share(kind=kind)) for kind in kinds},
            "types": {
                type_: {kind: dataclasses.asdict(self.share(type=type_, kind=kind)) for kind in kinds}
                for type_ in types
            },
            "masked_families": list(self.masked_families()),
            "aggregator_fails": self.aggregator_fails,
            "failures": [dataclasses.asdict(r) for r in self.rollouts if not r.agrees or r.faults],
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
) -> Report:
    """Play and check rollouts of `tasks`.

    Args:
      domain: the domain; its `mutations` are played, too.
      options: for `domain.make`.
      tasks: the tasks to play.
      rollouts: random ones, and edited ones, of each task; 0 leaves both out.
      seed: of the random choices; the result is a function of the arguments.
      progress: called with the number of tasks done so far.

    Raises:
      ValueError: there are no tasks.
    """
    if not tasks:
        raise ValueError("tasks is empty: nothing to check")
    env = domain.make(options)
    results: list[Rollout] = []
    try:
        for done, task in enumerate(tasks, start=1):
            results += _check_task(domain, options, env, task, rollouts, random.Random(f"{seed}/{task.id}"))
            if progress is not None:
                progress(done)
    finally:
        env.close()
    return Report(domain.name, tuple(results))


def _check_task(
    domain: Domain, options: Any, env: Env, task: Task, rollouts: int, rng: random.Random
) -> Iterator[Rollout]:
    expert = list(_play(env, task, lambda _: env.expert_action()))
    yield judge(domain, env.record(), task, EXPERT)
    for _ in range(rollouts):
        share = rng.random()  # from nearly expert to nearly random
        list(_play(env, task, lambda seen, share=share: _sometimes(rng, share, env, seen)))  # type: ignore[misc]
        yield judge(domain, env.record(), task, RANDOM)
    scripts: list[tuple[str, str, Sequence[str]]] = [(EDITED, *_edit(expert, rng)) for _ in range(rollouts)]
    scripts += [(MUTATED, name, actions) for name, actions in domain.mutations(options, task).items()]
    for kind, name, actions in scripts:
        pending = iter(actions)
        list(_play(env, task, lambda _, pending=pending: next(pending, None)))  # type: ignore[misc]
        yield judge(domain, env.record(), task, kind, name)


def _play(env: Env, task: Task, act: Callable[[Observation], str | None]) -> Iterator[str]:
    """Play until the episode is done or `act` has no more actions; yields the actions."""
    observation, done = env.reset(task), False
    while not done and (action := act(observation)) is not None:
        yield action
        result = env.step(action)
        observation, done = result.observation, result.done


def _sometimes(rng: random.Random, share: float, env: Env, observation: Observation) -> str:
    if observation.admissible and rng.random() < share:
        return rng.choice(observation.admissible)
    return env.expert_action()


def _edit(actions: Sequence[str], rng: random.Random) -> tuple[str, list[str]]:
    """One random change of a sequence of actions."""
    edited, name = list(actions), rng.choice(("dropped", "swapped", "replaced", "cut"))
    place = rng.randrange(len(actions)) if actions else 0
    if name == "dropped":
        del edited[place : place + 1]
    elif name == "cut":
        del edited[place:]
    elif name == "replaced" and edited:
        edited[place] = rng.choice(edited)
    elif edited:
        other = rng.randrange(len(edited))
        edited[place], edited[other] = edited[other], edited[place]
    return f"{name} at {place}", edited


def judge(domain: Domain, record: VerifierRecord, task: Task, kind: str, name: str = "") -> Rollout:
    """Check one record."""
    rebuilt = rebuild(domain, record)
    agrees = abs(rebuilt - record.score) <= record.eta
    return Rollout(
        task=task.id,
        type=task.type,
        kind=kind,
        name=name,
        score=record.score,
        rebuilt=rebuilt,
        eta=record.eta,
        blamed=() if agrees else tuple(_blamed(domain, record)),
        faults=tuple(faults(record)),
    )


def rebuild(domain: Domain, record: VerifierRecord) -> float:
    """F(z_T)."""
    return float(domain.aggregate(record.status[-1] == Status.SATISFIED, record.params))


def _blamed(domain: Domain, record: VerifierRecord) -> Iterator[str]:
    satisfied = record.status[-1] == Status.SATISFIED
    for family in sorted({atom.family for atom in record.atoms}):
        members = np.array([atom.family == family for atom in record.atoms])
        for value in (True, False):
            changed = float(domain.aggregate(np.where(members, value, satisfied), record.params))
            if abs(changed - record.score) <= record.eta:
                yield family
                break


def faults(record: VerifierRecord) -> Iterator[str]:
    """What is wrong with a record, one text a fault; see the module."""
    requires, unambiguous = requirement_closure(record.atoms)
    yield from _eligibility(record, unambiguous)
    holds = record.status == Status.SATISFIED
    unmet = holds[:, :, None] & requires[None] & ~holds[:, None, :]
    for j, k in sorted({(int(j), int(k)) for _, j, k in np.argwhere(unmet)}):
        yield f"{record.atoms[j].id} holds without {record.atoms[k].id}, which it requires"
    steps = itertools.pairwise(record.evidence)
    changed = np.array([[a != b for a, b in zip(*step, strict=True)] for step in steps], bool)
    index = {variable.id: v for v, variable in enumerate(record.variables)}
    binds = np.zeros((len(record.atoms), len(index)), bool)
    for j, atom in enumerate(record.atoms):
        binds[j, [index[v] for v in atom.variables]] = True
    # What becomes known may become so through an atom that it requires (the object comes into view).
    through_requirements = (requires.astype(int) @ binds.astype(int)) > 0
    for t, j in np.argwhere(record.status[1:] != record.status[:-1]):
        became_known = record.status[t, j] == Status.UNKNOWN
        read = through_requirements[j] if became_known else binds[j]
        if not (changed[t] & read).any():
            yield f"{record.atoms[j].id} changes at step {t} without a change of what it reads"


def _eligibility(record: VerifierRecord, unambiguous: np.ndarray) -> Iterator[str]:
    for j, atom in enumerate(record.atoms):
        if not unambiguous[j]:
            yield f"{atom.id} has a cycle among its requirements"
        if atom.role is ScoreRole.SCORED and not atom.variables:
            yield f"{atom.id} is scored but reads no variable"
        violated = record.status[:, j] == Status.VIOLATED
        if atom.irreversible and (violated[:-1] & ~violated[1:]).any():
            yield f"{atom.id} is irreversible but recovers from a violation"
    if (record.scope.any(axis=1) & ~record.commits).any():
        yield "a step finalises atoms without being a commit"


def failures_by_name(report: Report) -> Mapping[str, int]:
    """How many rollouts of each kind and name fail, the most frequent first."""
    failing = (f"{r.kind} {r.name}".strip() for r in report.rollouts if not r.agrees or r.faults)
    return dict(collections.Counter(failing).most_common())
