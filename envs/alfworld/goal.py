"""Goal formulas: any PDDL condition over ALFWorld's predicates, compiled once into a quick test.

Quantifiers are expanded over the game's entities. What cannot change (types, abilities, where the
receptacles stand) is decided while expanding, so only changing facts remain to be looked up.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping

from envs.alfworld.game import ABILITIES, FLAGS, Formula, Game, World

Test = Callable[[World], bool]
Binding = Mapping[str, str]
AGENT = "agent1"

# Changing predicate -> (arguments) -> test.
_FLUENTS: dict[str, Callable[..., Test]] = {
    "inreceptacle": lambda thing, receptacle: lambda world: thing in world.contents.get(receptacle, ()),
    "objectatlocation": lambda thing, location: lambda world: location in world.at.get(thing, ()),
    "atlocation": lambda agent, location: lambda world: world.location == location,
    "holds": lambda agent, thing: lambda world: thing in world.holding,
    "holdsany": lambda agent: lambda world: bool(world.holding),
    "opened": lambda receptacle: lambda world: receptacle in world.opened,
}


def _flag_test(flag: str) -> Callable[[str], Test]:
    return lambda thing: lambda world: flag in world.flags.get(thing, ())


_FLUENTS |= {predicate: _flag_test(flag) for predicate, flag in FLAGS.items()}


def compile_goal(game: Game) -> Test:
    """The goal of `game` as a function of the world.

    Raises:
      ValueError: the formula uses a connective, predicate, type or variable that is not known.
    """
    grounded = _Grounding(game).ground(game.goal, {})
    return grounded if callable(grounded) else (lambda world: grounded)


class _Grounding:
    """The unchanging facts and typed entities of one game, and the expansion of formulas over them."""

    def __init__(self, game: Game) -> None:
        things, receptacles = game.things, game.receptacles
        self._domain = {
            "object": [thing.id for thing in things],
            "receptacle": [receptacle.id for receptacle in receptacles],
            "location": list(game.locations),
            "agent": [AGENT],
            "otype": sorted({f"{o}type" for _, o in game.can_contain} | {f"{t.type}type" for t in things}),
            "rtype": sorted(
                {f"{r}type" for r, _ in game.can_contain} | {f"{r.type}type" for r in receptacles}
            ),
        }
        facts: dict[str, dict[tuple[str, ...], None]] = {
            "objecttype": {(thing.id, f"{thing.type}type"): None for thing in things},
            "receptacletype": {(r.id, f"{r.type}type"): None for r in receptacles},
            "receptacleatlocation": {(r.id, r.location): None for r in receptacles},
            "openable": {(r.id,): None for r in receptacles if r.openable},
            "cancontain": {(f"{r}type", f"{o}type"): None for r, o in game.can_contain},
            "inreceptacleobject": {(t.id, outer): None for t in things for outer in t.inside},
        }
        for predicate, ability in ABILITIES.items():
            facts[predicate] = {(thing.id,): None for thing in things if ability in thing.abilities}
        self._facts = facts

    def ground(self, formula: Formula | str, binding: Binding) -> bool | Test:
        """True, False, or a test of what remains."""
        if isinstance(formula, str) or not formula or not isinstance(formula[0], str):
            raise ValueError(f"goal: expected (connective or predicate ...), got {formula!r}")
        head, parts = formula[0], list(formula[1:])
        if head == "and":
            return _all(self.ground(part, binding) for part in parts)
        if head == "or":
            return _negate(_all(_negate(self.ground(part, binding)) for part in parts))
        if head == "not":
            return _negate(self.ground(_single(formula, parts), binding))
        if head == "imply":
            return self.ground(("or", ("not", parts[0]), *parts[1:]), binding)
        if head == "forall":
            return _negate(self.ground(("exists", parts[0], ("not", parts[1])), binding))
        if head == "exists":
            return self._exists(parts[0], parts[1], binding)
        return self._atom(head, parts, binding)

    def _atom(self, head: str, parts: list[Formula | str], binding: Binding) -> bool | Test:
        arguments = tuple(_value(part, binding) for part in parts)
        if head == "=":
            return arguments[0] == arguments[1]
        if head in self._facts:
            return arguments in self._facts[head]
        if head in _FLUENTS:
            return _FLUENTS[head](*arguments)
        raise ValueError(f"goal: unknown predicate {head!r}; known: {sorted([*self._facts, *_FLUENTS])}")

    def _exists(self, variables: Formula | str, body: Formula | str, binding: Binding) -> bool | Test:
        types = _typed(variables)
        unknown = set(types.values()) - set(self._domain)
        if unknown:
            raise ValueError(f"goal: unknown types {sorted(unknown)}; known: {sorted(self._domain)}")
        outer = {name: value for name, value in binding.items() if name not in types}
        tests = []
        for candidate in self._candidates(types, body, outer):
            grounded = self.ground(body, candidate)
            if grounded is True:
                return True
            if callable(grounded):
                tests.append(grounded)
        return (lambda world: any(test(world) for test in tests)) if tests else False

    def _candidates(self, types: Mapping[str, str], body: Formula | str, outer: Binding) -> Iterator[Binding]:
        """Values of the variables that satisfy the unchanging conjuncts of `body` (and, maybe, others)."""
        conjuncts = [part for part in _conjuncts(body) if part[0] in self._facts]
        tables = [(part[1:], self._matches(part, outer)) for part in conjuncts]
        bindings: list[Binding] = [outer]
        for arguments, rows in sorted(tables, key=lambda table: len(table[1])):
            bindings = [
                joined
                for old in bindings
                for row in rows
                if (joined := _join(old, arguments, row)) is not None
            ]
        for old in bindings:
            free = [name for name in types if name not in old]
            for values in itertools.product(*(self._domain[types[name]] for name in free)):
                yield {**old, **dict(zip(free, values, strict=True))}

    def _matches(self, conjunct: Formula, outer: Binding) -> list[tuple[str, ...]]:
        rows = self._facts[str(conjunct[0])]
        return [row for row in rows if _join(outer, conjunct[1:], row) is not None]


def _join(binding: Binding, arguments: Formula, row: tuple[str, ...]) -> Binding | None:
    """`binding` extended so that `arguments` read `row`; None if it contradicts."""
    joined = dict(binding)
    for argument, value in zip(arguments, row, strict=True):
        known = joined.setdefault(str(argument), value) if str(argument).startswith("?") else argument
        if known != value:
            return None
    return joined


def _conjuncts(formula: Formula | str) -> Iterator[Formula]:
    if isinstance(formula, tuple) and formula and formula[0] == "and":
        for part in formula[1:]:
            yield from _conjuncts(part)
    elif isinstance(formula, tuple):
        yield formula


def _typed(variables: Formula | str) -> dict[str, str]:
    """(`?a`, `?b`, `-`, `object`) as variable -> type."""
    types: dict[str, str] = {}
    names: list[str] = []
    words = iter(variables)
    for word in words:
        if word == "-":
            types |= dict.fromkeys(names, str(next(words, "")))
            names = []
        else:
            names.append(str(word))
    if names:
        raise ValueError(f"goal: variables without a type: {names}")
    return types


def _value(term: Formula | str, binding: Binding) -> str:
    if not isinstance(term, str) or (term.startswith("?") and term not in binding):
        raise ValueError(f"goal: unbound term {term!r}")
    return binding[term] if term.startswith("?") else term


def _single(formula: Formula, parts: list[Formula | str]) -> Formula | str:
    if len(parts) != 1:
        raise ValueError(f"goal: {formula[0]!r} takes one part, got {formula!r}")
    return parts[0]


def _all(grounded: Iterator[bool | Test]) -> bool | Test:
    tests = []
    for part in grounded:
        if part is False:
            return False
        if callable(part):
            tests.append(part)
    if len(tests) == 1:
        return tests[0]
    return (lambda world: all(test(world) for test in tests)) if tests else True


def _negate(grounded: bool | Test) -> bool | Test:
    return (lambda world: not grounded(world)) if callable(grounded) else not grounded
