"""Horn rules: least fixed point, circular support, choices settled by a trace; random rules too."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import numpy as np
import pytest

from envs.base import Atom, Status
from envs.closure import broken_rules, circular, may_require, requirement_closure

S, U, V, X = Status.SATISFIED, Status.UNSATISFIED, Status.VIOLATED, Status.UNKNOWN


def atom(name: str, *requires: str, ways: Sequence[str] = (), irreversible: bool = False) -> Atom:
    """`ways` are premises joined by "+", one text a way."""
    alternatives = tuple(tuple(filter(None, way.split("+"))) for way in ways)
    return Atom(name, name, (), requires=requires, alternatives=alternatives, irreversible=irreversible)


def close(atoms: Sequence[Atom], *states: Sequence[int]) -> tuple[dict[str, set[str]], dict[str, str]]:
    """What each atom requires beside itself, and the reasons of unsettled ones."""
    closure = requirement_closure(tuple(atoms), np.array(states or [[U] * len(atoms)], np.int8))
    names = [a.id for a in atoms]
    assert closure.requires.diagonal().all()
    requires = {
        name: {names[k] for k in np.flatnonzero(row)} - {name}
        for name, row in zip(names, closure.requires, strict=True)
    }
    return requires, {name: text for name, text in zip(names, closure.unsettled, strict=True) if text}


# --- without choices ------------------------------------------------------------------------------


def test_several_premises_are_closed_transitively() -> None:
    atoms = [
        atom("cake", "dough", "oven"),
        atom("dough", "flour", "egg"),
        *map(atom, ("oven", "flour", "egg")),
    ]
    requires, unsettled = close(atoms)
    assert requires["cake"] == {"dough", "oven", "flour", "egg"}
    assert requires["dough"] == {"flour", "egg"}
    assert requires["egg"] == set()
    assert unsettled == {}


def test_a_cycle_is_named_and_switches_off_what_depends_on_it() -> None:
    atoms = [
        atom("a", "b"),
        atom("b", "c"),
        atom("c", "a"),
        atom("d", "e", "b"),
        atom("e"),
        atom("self", "self"),
    ]
    _, unsettled = close(atoms)
    assert unsettled == {
        "a": "cycle: a <- b <- c <- a",
        "b": "cycle: b <- c <- a <- b",
        "c": "cycle: c <- a <- b <- c",
        "d": "requires b: cycle: b <- c <- a <- b",
        "self": "cycle: self <- self",
    }
    assert circular(atoms) == tuple(unsettled.get(a.id, "") for a in atoms)


def test_closures_without_choices_are_computed_once() -> None:
    atoms = (atom("a", "b"), atom("b"))
    first = requirement_closure(atoms, np.array([[U, U]], np.int8))
    assert requirement_closure((atom("a", "b"), atom("b")), np.array([[S, S]], np.int8)) is first
    with pytest.raises(ValueError, match="read-only"):
        first.requires[0, 0] = False


@pytest.mark.parametrize("function", [circular, may_require, lambda atoms: close(atoms)])
def test_wrong_atoms_are_refused(function) -> None:
    with pytest.raises(ValueError, match=r"atom ids must be unique, got \['a', 'a'\]"):
        function((atom("a"), atom("a")))
    with pytest.raises(ValueError, match=r"atom 'a' requires unknown atom 'z'; known: \['a'\]"):
        function((atom("a", "z"),))
    with pytest.raises(ValueError, match="atom 'a' requires unknown atom 'z'"):
        function((atom("a", ways=["z"]),))


# --- choices --------------------------------------------------------------------------------------

DOOR = [atom("opened", "reached", ways=["key", "code+pad"]), *map(atom, ("reached", "key", "code", "pad"))]


def test_a_satisfied_atom_rests_on_the_way_that_held_when_it_became_so() -> None:
    # opened, reached, key, code, pad
    requires, unsettled = close(DOOR, [U, S, U, S, U], [S, S, U, S, S], [S, S, S, S, S])
    assert (requires["opened"], unsettled) == ({"reached", "code", "pad"}, {})
    requires, unsettled = close(DOOR, [U, S, U, S, U], [S, S, S, S, U], [S, S, S, S, S])
    assert (requires["opened"], unsettled) == ({"reached", "key"}, {})


def test_the_last_time_it_became_satisfied_counts() -> None:
    by_code = [S, S, U, S, S]
    requires, _ = close(DOOR, [U, S, U, U, U], by_code, [U, S, S, U, S], [S, S, S, U, S])
    assert requires["opened"] == {"reached", "key"}
    requires, _ = close(DOOR, by_code, [S, S, S, S, S])
    assert requires["opened"] == {"reached", "code", "pad"}, "satisfied from the start: the first state"


@pytest.mark.parametrize(
    ("state", "count"), [([S, S, S, S, S], 2), ([S, S, U, S, U], 0)], ids=["both ways", "no way"]
)
def test_a_choice_that_the_trace_does_not_settle(state: list[int], count: int) -> None:
    requires, unsettled = close(DOOR, [U, S, U, S, U], state)
    rule = "disjunction: opened <- key or code and pad"
    assert unsettled == {"opened": f"{rule}: {count} of 2 ways hold in state 1"}
    assert requires["opened"] == {"reached"}, "what every way needs"


def test_what_requires_an_unsettled_atom_is_unsettled() -> None:
    atoms = [atom("inside", "opened"), *DOOR, atom("home", "inside")]
    _, unsettled = close(atoms, [U] * 7, [S] * 7)
    reason = "disjunction: opened <- key or code and pad: 2 of 2 ways hold in state 1"
    assert unsettled == {
        "opened": reason,
        "inside": f"requires opened: {reason}",
        "home": f"requires opened: {reason}",
    }


SEALED = [
    atom("opened", ways=["key", "code"]),
    atom("key", irreversible=True),
    atom("code", irreversible=True),
]


@pytest.mark.parametrize(
    ("final", "requires"),
    [
        ([U, V, U], {"code"}),  # the key is broken: the code is the one way left
        ([X, U, V], {"key"}),
        ([U, S, U], {"key"}),  # one way holds
        ([V, U, S], {"code"}),
        ([U, V, V], None),
        ([U, S, S], None),
        ([U, U, U], None),
        ([U, X, U], None),
    ],
)
def test_an_atom_that_is_not_satisfied(final: list[int], requires: set[str] | None) -> None:
    found, unsettled = close(SEALED, [U, U, U], final)
    if requires is None:
        assert set(unsettled) == {"opened"}
    else:
        assert (found["opened"], unsettled) == (requires, {})


def test_only_irreversible_violations_exclude_a_way() -> None:
    atoms = [SEALED[0], atom("key"), atom("code")]
    assert set(close(atoms, [U, U, U], [U, V, U])[1]) == {"opened"}


def test_a_way_that_needs_the_atom_itself_is_dropped() -> None:
    atoms = [atom("warm", ways=["hot", "sun"]), atom("hot", "warm"), atom("sun")]
    requires, unsettled = close(atoms, [S, S, S])
    assert (requires["warm"], requires["hot"], unsettled) == ({"sun"}, {"warm", "sun"}, {})


def test_a_way_that_includes_another_is_no_choice() -> None:
    requires, unsettled = close([atom("a", ways=["b", "b+c", "c+b"]), atom("b"), atom("c")], [S, S, S])
    assert (requires["a"], unsettled) == ({"b"}, {})
    requires, unsettled = close([atom("a", ways=["", "b"]), atom("b")], [S, S])
    assert (requires["a"], unsettled) == (set(), {})


def test_ways_that_are_all_circular_leave_a_cycle() -> None:
    atoms = [atom("a", ways=["b", "c"]), atom("b", "a"), atom("c", "a")]
    _, unsettled = close(atoms, [S, S, S])
    assert unsettled["a"] == "cycle: a <- b <- a"
    assert set(unsettled) == {"a", "b", "c"}


def test_choices_that_lean_on_each_other_are_a_cycle() -> None:
    """Each could be derived alone, but the trace says that each came through the other."""
    atoms = [atom("a", ways=["b", "f"]), atom("b", ways=["a", "g"]), atom("f"), atom("g")]
    _, unsettled = close(atoms, [U, U, U, U], [S, S, U, U])
    assert unsettled == {"a": "cycle: a <- b <- a", "b": "cycle: b <- a <- b"}
    requires, unsettled = close(atoms, [U, U, S, U], [S, U, S, U], [S, S, S, U])
    assert (requires["b"], unsettled) == ({"a", "f"}, {})


def test_may_require_counts_every_way() -> None:
    found = may_require(DOOR)
    assert found[0].all()
    assert found[1:].sum() == 4


def test_broken_rules_look_at_every_state() -> None:
    states = np.array([[S, S, U, S, S], [S, S, S, U, U], [S, U, U, S, U], [U, U, U, U, U]], np.int8)
    assert list(broken_rules(DOOR, states)) == [
        (0, "opened holds without reached, which it requires"),
        (0, "opened holds in none of its ways"),
    ]
    assert list(broken_rules(DOOR, states[:2])) == []


# --- against exhaustive search --------------------------------------------------------------------


def supports(atoms: Sequence[Atom]) -> set[str]:
    """Atoms with a well-founded derivation: the smallest set closed under the rules, by growing it."""
    held: set[str] = set()
    for _ in atoms:
        for a in atoms:
            if held.issuperset(a.requires) and any(held.issuperset(w) for w in a.alternatives or ((),)):
                held.add(a.id)
    return held


def random_atoms(rng: random.Random) -> list[Atom]:
    names = [f"x{j}" for j in range(rng.randint(2, 6))]

    def some(most: int) -> tuple[str, ...]:
        return tuple(rng.sample(names, min(len(names), rng.randint(0, most))))

    return [
        Atom(
            name,
            name,
            (),
            requires=some(1),
            alternatives=tuple(some(2) for _ in range(rng.choice((0, 0, 2, 3)))),
        )
        for name in names
    ]


@pytest.mark.parametrize("seed", range(60))
def test_random_rules(seed: int) -> None:
    rng = random.Random(seed)
    atoms = random_atoms(rng)
    names = [a.id for a in atoms]
    status = np.array([[rng.choice([S, S, U, V, X]) for _ in names] for _ in range(4)], np.int8)
    closure = requirement_closure(atoms, status)
    derivable = supports(atoms)
    assert [bool(text) for text in circular(atoms)] == [name not in derivable for name in names]
    rows = [{names[k] for k in np.flatnonzero(row)} for row in closure.requires]
    for j, k in itertools.product(range(len(names)), repeat=2):
        if names[k] in rows[j]:
            assert rows[k] <= rows[j], "transitively closed"
    for a, row, reason in zip(atoms, rows, closure.unsettled, strict=True):
        assert row <= {names[k] for k in np.flatnonzero(may_require(atoms)[names.index(a.id)])}
        if not reason:
            # What it rests on suffices: the rules among those atoms alone derive it, and all are settled.
            assert a.id in supports([b for b in atoms if b.id in row])
            assert not any(closure.unsettled[names.index(name)] for name in row)
