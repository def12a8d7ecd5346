"""ALFWorld problems in PDDL: what a `Game` is read from, and how one is written."""

from __future__ import annotations

import collections
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from envs.alfworld.dialect import Dialect
from envs.alfworld.game import ABILITIES, FLAGS, Formula, Game, Receptacle, Thing

# Predicates a problem's initial state may use, with their number of arguments.
_ARITY = dict.fromkeys((*ABILITIES, *FLAGS, "openable", "opened"), 1) | dict.fromkeys(
    (
        "receptacletype",
        "objecttype",
        "cancontain",
        "atlocation",
        "receptacleatlocation",
        "objectatlocation",
        "inreceptacle",
        "inreceptacleobject",
    ),
    2,
)


def parse_problem(
    problem: str, name: str, sentence: str, dialect: Dialect, walkthrough: Sequence[str]
) -> Game:
    """Build a `Game` from the text of a PDDL problem.

    Raises:
      ValueError: it is not a complete ALFWorld problem.
    """
    objects, init, goal_text = _sections(problem)
    kinds = _typed_names(objects)
    facts = _facts(init)
    (agent_location,) = (location for _, location in facts["atlocation"])
    goal = parse_formula(goal_text)
    return Game(
        id=name,
        task_type=goal_task_type(goal),
        sentence=sentence,
        text_version=dialect.text_version,
        has_help=dialect.has_help,
        receptacles=_receptacles(facts, kinds),
        things=_things(facts, kinds),
        locations=tuple(entity for entity, kind in kinds.items() if kind == "location"),
        can_contain=frozenset(
            (r.removesuffix("type"), o.removesuffix("type")) for r, o in facts["cancontain"]
        ),
        agent_location=agent_location,
        goal=goal,
        walkthrough=tuple(walkthrough),
    )


def parse_formula(text: str) -> Formula:
    """Parse one parenthesised PDDL expression into nested tuples of lower-case words."""
    stack: list[list[Any]] = [[]]
    for token in re.findall(r"[()]|[^\s()]+", text.lower()):
        if token == "(":
            stack.append([])
        elif token != ")":
            stack[-1].append(token)
        elif len(stack) == 1:
            raise ValueError(f"unbalanced ')' in PDDL: {text[:80]!r}")
        else:
            closed = tuple(stack.pop())
            stack[-1].append(closed)
    if len(stack) != 1 or len(stack[0]) != 1 or not isinstance(stack[0][0], tuple):
        raise ValueError(f"expected one balanced PDDL expression, got {text[:80]!r}")
    return stack[0][0]


def goal_task_type(goal: Formula) -> str:
    """The task type whose goal this is, from the predicates in it."""
    heads = collections.Counter(_heads(goal))
    for predicate, task_type in (
        ("istoggled", "look_at_obj_in_light"),
        ("isclean", "pick_clean_then_place_in_recep"),
        ("ishot", "pick_heat_then_place_in_recep"),
        ("iscool", "pick_cool_then_place_in_recep"),
    ):
        if heads[predicate]:
            return task_type
    return "pick_two_obj_and_place" if heads["inreceptacle"] > 1 else "pick_and_place_simple"


def _sections(problem: str) -> tuple[str, str, str]:
    """The texts of the objects, the initial state and the goal formula, lower case, comments removed."""
    text = re.sub(r";[^\n]*", "", problem).lower() if ";" in problem else problem.lower()
    starts = [text.find(marker) for marker in ("(:objects", "(:init", "(:goal")]
    if -1 in starts or starts != sorted(starts):
        raise ValueError("pddl_problem must have (:objects, (:init and (:goal, in this order")
    if text.count("(") != text.count(")"):
        raise ValueError("pddl_problem has unbalanced parentheses: it is truncated or damaged")
    objects, init, goal = starts
    tail = text[goal + len("(:goal") :].rstrip()
    # Two closing parentheses follow the formula: of the goal and of the problem.
    formula = re.sub(r"\)\s*\)$", "", tail)
    return text[objects + len("(:objects") : init], text[init + len("(:init") : goal], formula


def _typed_names(section: str) -> dict[str, str]:
    """A PDDL typed list (`a b - kind c - kind`) as name -> kind."""
    kinds: dict[str, str] = {}
    names: list[str] = []
    words = iter(section.replace(")", " ").split())
    for word in words:
        if word == "-":
            kind = next(words, "")
            kinds.update(dict.fromkeys(names, kind))
            names = []
        else:
            names.append(word)
    return kinds


def _facts(section: str) -> dict[str, dict[tuple[str, ...], None]]:
    """Predicate -> argument tuples, each once, in the order of the source."""
    facts: dict[str, dict[tuple[str, ...], None]] = {predicate: {} for predicate in _ARITY}
    for text in re.findall(r"\(\s*([^()\s][^()]*)\)", section):
        predicate, *arguments = text.split()
        if predicate not in _ARITY:
            raise ValueError(f"unknown fact ({text.strip()}); known predicates: {sorted(_ARITY)}")
        if len(arguments) != _ARITY[predicate]:
            raise ValueError(f"fact ({text.strip()}) must have {_ARITY[predicate]} arguments")
        facts[predicate][tuple(arguments)] = None
    if len(facts["atlocation"]) != 1:
        raise ValueError(f"the agent must start at one location, got {list(facts['atlocation'])}")
    return facts


def _pairs(facts: Iterable[tuple[str, ...]]) -> dict[str, list[str]]:
    """First argument -> second arguments."""
    pairs: dict[str, list[str]] = {}
    for first, second in facts:
        pairs.setdefault(first, []).append(second)
    return pairs


def _receptacles(facts: Mapping[str, Any], kinds: Mapping[str, str]) -> tuple[Receptacle, ...]:
    types, places = _pairs(facts["receptacletype"]), _pairs(facts["receptacleatlocation"])
    inside = {receptacle for _, receptacle in facts["inreceptacle"]}
    odd = [r for r in {*types, *places, *inside} if len(types.get(r, ())) != 1 or len(places.get(r, ())) != 1]
    if odd:
        raise ValueError(f"receptacles must have one type and one location each; not so: {sorted(odd)}")
    return tuple(
        Receptacle(
            id=entity,
            type=types[entity][0].removesuffix("type"),
            location=places[entity][0],
            openable=(entity,) in facts["openable"],
            opened=(entity,) in facts["opened"],
        )
        for entity in kinds
        if entity in types
    )


def _things(facts: Mapping[str, Any], kinds: Mapping[str, str]) -> tuple[Thing, ...]:
    """The objects that occur in a fact; those only declared cannot be met and have no name."""
    types, inside = _pairs(facts["objecttype"]), _pairs(facts["inreceptacle"])
    places, nested = _pairs(facts["objectatlocation"]), _pairs(facts["inreceptacleobject"])
    abilities = _words(facts, ABILITIES)
    flags = _words(facts, FLAGS)
    known = {*types, *inside, *places, *nested, *abilities, *flags}
    known.update(outer for outers in nested.values() for outer in outers)
    undeclared = sorted(entity for entity in known if kinds.get(entity) != "object")
    if undeclared:
        raise ValueError(f"facts about objects that are not declared as object: {undeclared}")
    several = sorted(entity for entity, names in types.items() if len(names) > 1)
    if several:
        raise ValueError(f"objects with more than one type: {several}")
    return tuple(
        Thing(
            id=entity,
            type=types.get(entity, [""])[0].removesuffix("type"),
            receptacles=tuple(inside.get(entity, ())),
            locations=tuple(places.get(entity, ())),
            abilities=frozenset(abilities.get(entity, ())),
            flags=frozenset(flags.get(entity, ())),
            inside=tuple(nested.get(entity, ())),
        )
        for entity in kinds
        if entity in known
    )


def _words(facts: Mapping[str, Any], table: Mapping[str, str]) -> dict[str, list[str]]:
    """Object -> the words of `table` whose predicate holds for it."""
    words: dict[str, list[str]] = {}
    for predicate, word in table.items():
        for (entity,) in facts[predicate]:
            words.setdefault(entity, []).append(word)
    return words


def _heads(formula: Formula) -> Iterator[str]:
    if isinstance(formula[0], str):
        yield formula[0]
    for part in formula:
        if isinstance(part, tuple):
            yield from _heads(part)


# Writing


def render_problem(game: Game) -> str:
    """The PDDL problem of `game`: `parse_problem` reads the same game from it."""
    facts = [f"atlocation agent1 {game.agent_location}"]
    facts += [f"cancontain {r}type {o}type" for r, o in sorted(game.can_contain)]
    for receptacle in game.receptacles:
        facts += _receptacle_facts(receptacle)
    for thing in game.things:
        facts += _thing_facts(thing)
    rtypes = {f"{r}type" for r, _ in game.can_contain} | {f"{r.type}type" for r in game.receptacles}
    otypes = {f"{o}type" for _, o in game.can_contain} | {f"{t.type}type" for t in game.things if t.type}
    objects = [
        "agent1 - agent",
        *(f"{name} - rtype" for name in sorted(rtypes)),
        *(f"{name} - otype" for name in sorted(otypes)),
        *(f"{location} - location" for location in game.locations),
        *(f"{receptacle.id} - receptacle" for receptacle in game.receptacles),
        *(f"{thing.id} - object" for thing in game.things),
    ]
    init = "\n".join(f"({fact})" for fact in facts)
    declared = "\n".join(objects)
    goal = render_formula(game.goal)
    parts = f"(:objects\n{declared}\n)\n(:init\n{init}\n)\n(:goal\n{goal}\n)"
    return f"(define (problem alfworld)\n(:domain alfred)\n{parts}\n)"


def render_formula(formula: Formula | str) -> str:
    """A formula as PDDL text."""
    return formula if isinstance(formula, str) else f"({' '.join(map(render_formula, formula))})"


def _receptacle_facts(receptacle: Receptacle) -> list[str]:
    facts = [
        f"receptacletype {receptacle.id} {receptacle.type}type",
        f"receptacleatlocation {receptacle.id} {receptacle.location}",
    ]
    for predicate, holds in (("openable", receptacle.openable), ("opened", receptacle.opened)):
        facts += [f"{predicate} {receptacle.id}"] * holds
    return facts


def _thing_facts(thing: Thing) -> list[str]:
    facts = [f"objecttype {thing.id} {thing.type}type"] if thing.type else []
    facts += [f"inreceptacle {thing.id} {receptacle}" for receptacle in thing.receptacles]
    facts += [f"objectatlocation {thing.id} {location}" for location in thing.locations]
    facts += [f"inreceptacleobject {thing.id} {outer}" for outer in thing.inside]
    facts += [f"{predicate} {thing.id}" for predicate, word in ABILITIES.items() if word in thing.abilities]
    facts += [f"{predicate} {thing.id}" for predicate, word in FLAGS.items() if word in thing.flags]
    return facts
