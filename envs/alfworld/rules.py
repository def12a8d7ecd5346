"""What never changes in a game, prepared once for the engine: names, tables and the compiled goal."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Mapping

from envs.alfworld.game import Game, Receptacle, Thing, World
from envs.alfworld.goal import compile_goal

# (verb, object id, receptacle id or second object id); "" where the verb takes none.
Action = tuple[str, str, str]


@dataclasses.dataclass(frozen=True)
class Names:
    """Readable names of everything in a game.

    Attributes:
      of: PDDL id -> readable name (`peppershaker 2`, `loc 13`).
      id_of: readable name -> PDDL id.
    """

    of: Mapping[str, str]
    id_of: Mapping[str, str]


def readable_names(game: Game) -> Names:
    """Number the instances of each kind as ALFWorld does: in alphabetical order of the ids, counting down.

    An id without coordinates keeps its own text and a blank. A sink or bathtub basin is a kind of its
    own. Only what occurs in a fact of the initial state has a name.
    """
    ids = {receptacle.id for receptacle in game.receptacles} | {thing.id for thing in game.things}
    ids |= {receptacle.location for receptacle in game.receptacles}
    ids |= {location for thing in game.things for location in thing.locations}
    ids.add(game.agent_location)
    kinds = {}
    for entity in sorted(ids):
        kind, coordinates, _ = entity.partition("_bar_")
        kinds[entity] = (kind + "basin" * ("basin" in entity)) if coordinates else ""
    left = collections.Counter(kinds.values())
    of = {}
    for entity, kind in kinds.items():
        of[entity] = f"{kind} {left[kind]}" if kind else f"{entity} "
        left[kind] -= 1
    return Names(of, {name: entity for entity, name in of.items()})


@dataclasses.dataclass(frozen=True)
class Rules:
    """What never changes in a game, prepared once.

    Attributes:
      receptacles, things: by id.
      at: location -> ids of the receptacles there, in alphabetical order.
      travel: location -> the commands that lead away from it.
      accepts: receptacle id -> object types that may be put there.
      nested: receptacle object id -> ids of what lies in it, in alphabetical order.
      plain: the commands that are always admissible.
      goal: the compiled goal.
    """

    game: Game
    names: Names
    receptacles: Mapping[str, Receptacle]
    things: Mapping[str, Thing]
    at: Mapping[str, tuple[str, ...]]
    travel: Mapping[str, Mapping[str, Action]]
    accepts: Mapping[str, frozenset[str]]
    nested: Mapping[str, tuple[str, ...]]
    plain: Mapping[str, Action]
    goal: Callable[[World], bool]


def prepare(game: Game) -> Rules:
    """Names, look-up tables and the compiled goal of a game; a matter of 1 or 2 ms."""
    names = readable_names(game)
    at: dict[str, list[str]] = {game.agent_location: []}
    for receptacle in sorted(game.receptacles, key=lambda receptacle: receptacle.id):
        at.setdefault(receptacle.location, []).append(receptacle.id)
    nested: dict[str, list[str]] = {}
    for thing in sorted(game.things, key=lambda thing: thing.id):
        for outer in thing.inside:
            nested.setdefault(outer, []).append(thing.id)
    accepted: dict[str, set[str]] = {}
    for receptacle_type, thing_type in game.can_contain:
        accepted.setdefault(receptacle_type, set()).add(thing_type)
    plain = ("inventory", "look", "help") if game.has_help else ("inventory", "look")
    return Rules(
        game=game,
        names=names,
        receptacles={receptacle.id: receptacle for receptacle in game.receptacles},
        things={thing.id: thing for thing in game.things},
        at={location: tuple(ids) for location, ids in at.items()},
        travel=_travel(at, names),
        accepts={r.id: frozenset(accepted.get(r.type, ())) for r in game.receptacles},
        nested={outer: tuple(inner) for outer, inner in nested.items()},
        plain={command: (command, "", "") for command in plain},
        goal=compile_goal(game),
    )


def _travel(at: Mapping[str, list[str]], names: Names) -> dict[str, dict[str, Action]]:
    """From each location, the commands to every receptacle that stands elsewhere, sorted."""
    ways = sorted(
        (f"go to {names.of[receptacle]}", receptacle, location)
        for location, receptacles in at.items()
        for receptacle in receptacles
    )
    return {
        here: {command: ("go", "", receptacle) for command, receptacle, there in ways if there != here}
        for here in at
    }


def initial_world(game: Game) -> World:
    """The state in which a game starts."""
    contents: dict[str, set[str]] = {receptacle.id: set() for receptacle in game.receptacles}
    for thing in game.things:
        for receptacle in thing.receptacles:
            contents[receptacle].add(thing.id)
    return World(
        location=game.agent_location,
        holding=set(),
        contents=contents,
        opened={receptacle.id for receptacle in game.receptacles if receptacle.opened},
        flags={thing.id: set(thing.flags) for thing in game.things},
        at={thing.id: set(thing.locations) for thing in game.things},
        seen=set(),
    )
