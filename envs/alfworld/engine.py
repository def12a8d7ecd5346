"""What every ALFWorld engine offers: the interface, and the readable names of a game."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping
from typing import Protocol

from envs.alfworld.game import Game, World


@dataclasses.dataclass(frozen=True)
class Names:
    """Readable names of everything in a game.

    Attributes:
      of: PDDL id -> readable name (`peppershaker 2`, `loc 13`).
      id_of: readable name -> PDDL id.
    """

    of: Mapping[str, str]
    id_of: Mapping[str, str]


class Engine(Protocol):
    """A running game. Step caps and `done` are not its business."""

    @property
    def game(self) -> Game:
        """The game that was started."""
        ...

    @property
    def world(self) -> World:
        """The present state; read only for everybody but the engine."""
        ...

    @property
    def names(self) -> Names:
        """Readable names of the game's receptacles, things and locations."""
        ...

    def start(self, game: Game) -> str:
        """Start `game` from its beginning and return the first observation (with the task)."""
        ...

    def step(self, command: str) -> tuple[str, bool]:
        """Apply `command`: the feedback text, and whether it was accepted.

        An inadmissible text of any kind changes nothing and is answered ("Nothing happens.", False).
        """
        ...

    def admissible(self) -> tuple[str, ...]:
        """The commands that are accepted in the present state, sorted."""
        ...

    def won(self) -> bool:
        """Whether the goal formula holds in the present state."""
        ...


def readable_names(game: Game) -> Names:
    """Number the instances of each kind as ALFWorld does: the first id in alphabetical order gets the highest number.

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
