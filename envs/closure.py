"""What an atom rests on: Horn rules, their least fixed point, and choices that a trace settles.

Atom j stands for the rules `j <- requires and way`, one for each of its `alternatives` (or the one rule
`j <- requires`); an atom without premises is a fact. Credit needs one answer to "what does j require", so a
choice between ways is settled by the rollout's own trace, or the atom is left out of it. Source: VICT
(arXiv 2608.28128), sections 3.2 and 3.3; the readings are on the method page (docs/method.md).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from envs.base import Atom, Status

_Premises = tuple[frozenset[int], ...]


@dataclasses.dataclass(frozen=True)
class Closure:
    """The requirement closure D_x of one rollout's atoms.

    Attributes:
      requires: bool[M, M], [j, k] = atom j requires atom k; transitively closed and reflexive. The row of an
        unsettled atom holds only what it requires in every way.
      unsettled: M texts: "" or why the closure of the atom is ambiguous, naming the rule.
    """

    requires: np.ndarray
    unsettled: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class _Rules:
    """The rules of a task's atoms, by index.

    Attributes:
      needed: premises that every rule of an atom has.
      ways: the further premises left to choose from, none of them circular or implied by another; empty
        where nothing is to be chosen.
      circular: atom -> why no trace can derive it.
      fixed: the closure, where no atom has a choice.
    """

    needed: _Premises
    ways: tuple[_Premises, ...]
    circular: Mapping[int, str]
    fixed: Closure | None


def requirement_closure(atoms: Sequence[Atom], status: np.ndarray) -> Closure:
    """The closure of the requirements, choices settled by the trace.

    A satisfied atom rests on the way whose premises all held in the state in which the atom last became
    satisfied. Any other atom rests on the one way that is left without those that have a violated
    irreversible premise, else on the one way that holds at the end. Where that is not exactly one way, where
    support is circular, or where an atom requires such an atom, the closure is unsettled.

    Args:
      atoms: M atoms.
      status: int8[T+1, M], values of `Status`; read only if an atom has a choice.

    Raises:
      ValueError: ids are not unique, or an atom requires one that is not there.
    """
    rules = _rules(tuple(atoms))
    if rules.fixed is not None:
        return rules.fixed
    needed, unsettled = list(rules.needed), dict(rules.circular)
    for j, ways in enumerate(rules.ways):
        if ways:
            holding, where = _holding(j, ways, np.asarray(status), atoms)
            if len(holding) == 1:
                needed[j] |= holding[0]
            else:
                unsettled[j] = f"{_rule(atoms, j, ways)}: {len(holding)} of {len(ways)} ways {where}"
    return _close(atoms, tuple(needed), unsettled)


def circular(atoms: Sequence[Atom]) -> tuple[str, ...]:
    """M texts: "" or why an atom has only circular support, whatever happens. Raises as above."""
    reasons = _rules(tuple(atoms)).circular
    return tuple(reasons.get(j, "") for j in range(len(atoms)))


def may_require(atoms: Sequence[Atom]) -> np.ndarray:
    """bool[M, M], [j, k]: k is atom j, a premise of it in some way, or a premise of one of those."""
    index = _index(atoms)
    return _transitive(
        [
            {index[name] for name in (*atom.requires, *(x for way in atom.alternatives for x in way))}
            for atom in atoms
        ]
    )


def broken_rules(atoms: Sequence[Atom], status: np.ndarray) -> Iterator[tuple[int, str]]:
    """Index of an atom and a text for each of its premises that some state of int8[T+1, M] contradicts."""
    index, holds = _index(atoms), np.asarray(status) == Status.SATISFIED
    for j, atom in enumerate(atoms):
        for name in atom.requires:
            if (holds[:, j] & ~holds[:, index[name]]).any():
                yield j, f"{atom.id} holds without {name}, which it requires"
        ways = [holds[:, [index[name] for name in way]].all(axis=1) for way in atom.alternatives]
        if ways and (holds[:, j] & ~np.any(ways, axis=0)).any():
            yield j, f"{atom.id} holds in none of its ways"


def _index(atoms: Sequence[Atom]) -> dict[str, int]:
    index = {atom.id: j for j, atom in enumerate(atoms)}
    if len(index) != len(atoms):
        raise ValueError(f"atom ids must be unique, got {[atom.id for atom in atoms]}")
    for atom in atoms:
        for name in (*atom.requires, *(x for way in atom.alternatives for x in way)):
            if name not in index:
                raise ValueError(f"atom {atom.id!r} requires unknown atom {name!r}; known: {sorted(index)}")
    return index


@functools.lru_cache(maxsize=4096)
def _rules(atoms: tuple[Atom, ...]) -> _Rules:
    """Everything about the rules that no trace changes."""
    index = _index(atoms)
    needed = [frozenset(index[name] for name in atom.requires) for atom in atoms]
    ways = [tuple(frozenset(index[name] for name in way) for way in atom.alternatives) for atom in atoms]
    derivable = _derivable(needed, ways, granted=())
    underivable = set(range(len(atoms))) - derivable
    reasons = {j: _support(atoms, j, needed, ways, underivable) for j in underivable}
    left: list[_Premises] = [()] * len(atoms)
    for j in sorted(derivable):
        without = _derivable(needed, ways, granted=(), refused=j)
        straight = [way for way in dict.fromkeys(ways[j]) if way <= without]
        left[j] = tuple(way for way in straight if not any(other < way for other in straight))
    only = [choices[0] if len(choices) == 1 else frozenset() for choices in left]
    needed = [some | more for some, more in zip(needed, only, strict=True)]
    left = [choices if len(choices) > 1 else () for choices in left]
    fixed = None if any(left) else _close(atoms, tuple(needed), reasons)
    return _Rules(tuple(needed), tuple(left), reasons, fixed)


def _derivable(
    needed: Sequence[frozenset[int]],
    ways: Sequence[_Premises],
    *,
    granted: Sequence[int],
    refused: int | None = None,
) -> set[int]:
    """The least fixed point of the rules: all facts, `granted`, and what follows without `refused`."""
    known, grew = set(granted), True
    while grew:
        new = {
            j
            for j in range(len(needed))
            if j not in known
            and j != refused
            and needed[j] <= known
            and (not ways[j] or any(way <= known for way in ways[j]))
        }
        known, grew = known | new, bool(new)
    return known


def _support(
    atoms: Sequence[Atom],
    j: int,
    needed: Sequence[frozenset[int]],
    ways: Sequence[_Premises],
    underivable: set[int],
) -> str:
    """Why j is not derivable: follow premises that are not derivable until they come round."""
    path = [j]
    while True:
        open_ = [needed[path[-1]] & underivable, *(way & underivable for way in ways[path[-1]])]
        following = min(next(premises for premises in open_ if premises))
        if following in path:
            break
        path.append(following)
    loop = [*path[path.index(following) :], following]
    text = "cycle: " + " <- ".join(atoms[k].id for k in loop)
    return text if following == j else f"requires {atoms[path[1]].id}: {text}"


def _holding(
    j: int, ways: _Premises, status: np.ndarray, atoms: Sequence[Atom]
) -> tuple[list[frozenset[int]], str]:
    """The ways that support atom j in this trace, and in words where they were looked for."""
    holds, final = status == Status.SATISFIED, len(status) - 1
    if holds[final, j]:
        state = int(np.flatnonzero(~np.append([False], holds[:, j]))[-1])  # last state that follows a gap
        candidates = list(ways)
    else:
        broken = {k for k, a in enumerate(atoms) if a.irreversible and status[final, k] == Status.VIOLATED}
        candidates = [way for way in ways if not way & broken]
        if len(candidates) == 1:
            return candidates, ""
        state = final
    return [way for way in candidates if holds[state, sorted(way)].all()], f"hold in state {state}"


def _rule(atoms: Sequence[Atom], j: int, ways: _Premises) -> str:
    texts = (" and ".join(atoms[k].id for k in sorted(way)) for way in ways)
    return f"disjunction: {atoms[j].id} <- {' or '.join(texts)}"


def _close(atoms: Sequence[Atom], needed: _Premises, unsettled: Mapping[int, str]) -> Closure:
    """The closure of one rule for each atom; unsettled atoms pass their reason on."""
    single: list[_Premises] = [()] * len(atoms)
    underivable = set(range(len(atoms))) - _derivable(needed, single, granted=tuple(unsettled))
    chosen = {j: _support(atoms, j, needed, single, underivable) for j in underivable}
    reasons = {**unsettled, **chosen}
    requires = _transitive(needed)
    requires.flags.writeable = False
    texts = []
    for j in range(len(atoms)):
        open_ = [k for k in np.flatnonzero(requires[j]).tolist() if k in reasons]
        inherited = f"requires {atoms[open_[0]].id}: {reasons[open_[0]]}" if open_ else ""
        texts.append(reasons.get(j, inherited))
    return Closure(requires, tuple(texts))


def _transitive(premises: Sequence[frozenset[int] | set[int]]) -> np.ndarray:
    """Reflexive, transitive closure, bool[M, M]."""
    closure = np.eye(len(premises), dtype=bool)
    for j, some in enumerate(premises):
        closure[j, list(some)] = True
    for k in range(len(premises)):
        closure |= closure[:, k : k + 1] & closure[k : k + 1, :]
    return closure
