"""The data of one ALFWorld game: what the engine, the generator, the expert and the verifier share."""

from __future__ import annotations

import dataclasses
import enum

# A goal or any other formula: nested tuples of lower-case words, as parsed from PDDL.
Formula = tuple["str | Formula", ...]


class TextVersion(enum.Enum):
    """Which command texts a game speaks; its grammar decides, not the installed version."""

    MOVE = "move O to R"  # data 2.1.2 and later
    PUT_IN_ON = "put O in/on R"  # data 2.1.1 and earlier


TASK_TYPES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)

# PDDL predicate -> the word used in `Thing.abilities`, and in `Thing.flags` and `World.flags`.
ABILITIES = {
    "pickupable": "pickupable",
    "cleanable": "cleanable",
    "heatable": "heatable",
    "coolable": "coolable",
    "toggleable": "toggleable",
    "sliceable": "sliceable",
    "isreceptacleobject": "receptacle",
}
FLAGS = {
    "isclean": "clean",
    "ishot": "hot",
    "iscool": "cool",
    "istoggled": "toggled",
    "ison": "on",
    "issliced": "sliced",
}


@dataclasses.dataclass(frozen=True)
class Receptacle:
    """A receptacle. `id` is the PDDL id (lower case), `type` without the `type` suffix (`fridge`)."""

    id: str
    type: str
    location: str
    openable: bool
    opened: bool


@dataclasses.dataclass(frozen=True)
class Thing:
    """An object instance with its initial state.

    Attributes:
      id: PDDL id, lower case.
      type: object type without the `type` suffix (`peppershaker`).
      receptacles: receptacles it is in at the start; ALFWorld data may list two.
      locations: locations from `objectAtLocation`.
      abilities: subset of {pickupable, cleanable, heatable, coolable, toggleable, sliceable, receptacle}.
      flags: subset of {clean, hot, cool, toggled, on, sliced} that holds at the start.
      inside: receptacle objects (a bowl, a pan) it lies in, by `inReceptacleObject`; never changes.
    """

    id: str
    type: str
    receptacles: tuple[str, ...]
    locations: tuple[str, ...]
    abilities: frozenset[str]
    flags: frozenset[str]
    inside: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Game:
    """One game.

    Attributes:
      id: a name for messages.
      task_type: one of `TASK_TYPES`.
      sentence: the task sentence as shown, final period included ("put a hot egg in fridge.").
      text_version: which command texts it speaks.
      has_help: whether the `help` command exists (newer data).
      receptacles, things: everything in the room, in the order of the source.
      locations: every location id.
      can_contain: (receptacle type, object type) pairs.
      agent_location: where the agent starts.
      goal: the goal formula, evaluated by the engine.
      walkthrough: a stored solution; empty if there is none.
    """

    id: str
    task_type: str
    sentence: str
    text_version: TextVersion
    has_help: bool
    receptacles: tuple[Receptacle, ...]
    things: tuple[Thing, ...]
    locations: tuple[str, ...]
    can_contain: frozenset[tuple[str, str]]
    agent_location: str
    goal: Formula
    walkthrough: tuple[str, ...] = ()


@dataclasses.dataclass
class World:
    """The changing state of a game. The engine owns and mutates it; everybody else reads.

    Attributes:
      location: the agent's location.
      holding: ids of held objects (at most one by the rules).
      contents: receptacle id -> ids of the objects in it (an object may be in two, as in the data).
      opened: ids of open receptacles.
      flags: object id -> the set of {clean, hot, cool, toggled, on, sliced} that holds.
      at: object id -> location ids from `objectAtLocation`.
      seen: ids of objects that have been listed in an observation or held so far.
    """

    location: str
    holding: set[str]
    contents: dict[str, set[str]]
    opened: set[str]
    flags: dict[str, set[str]]
    at: dict[str, set[str]]
    seen: set[str]
