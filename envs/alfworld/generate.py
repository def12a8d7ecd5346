"""Household games from a seed: rooms of adjustable size, all six task types, nothing to download.

A game is drawn in three choices: a *layout* (the furniture of one room), a *goal pair* (object type,
receptacle or lamp type) that the layout allows, and the things with their places. Splits differ in
what they draw from:

    train         layouts 0 .. layouts-1, goal pairs that are not held out
    valid_seen    the same layouts and pairs, other seeds (so other things in other places)
    valid_unseen  layouts from `layouts` on, and only held-out goal pairs

Pairs are held out by a fixed hash of the two type names, about one in five, for every task type alike.
Every game can be solved and is not solved at the start: each wanted object starts in a place that
cannot satisfy the goal (of two, one may be in the right place already), every receptacle can be
reached, and every target takes its object.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

from envs.alfworld import household
from envs.alfworld.game import TASK_TYPES, Game, Receptacle, TextVersion, Thing
from envs.alfworld.problem import parse_formula
from envs.base import stable_hash

SPLITS = ("train", "valid_seen", "valid_unseen")
LAMP = "desklamp"
_START = "loc_bar__minus_1_bar__minus_1_bar_0_bar_30"

ROOM_KINDS = {
    "pick_and_place_simple": ("kitchen", "bathroom", "bedroom", "livingroom"),
    "look_at_obj_in_light": ("bedroom", "livingroom"),
    "pick_clean_then_place_in_recep": ("kitchen", "bathroom"),
    "pick_heat_then_place_in_recep": ("kitchen",),
    "pick_cool_then_place_in_recep": ("kitchen",),
    "pick_two_obj_and_place": ("kitchen", "bathroom", "bedroom", "livingroom"),
}
# Task type -> (object types that can be transformed, appliance type).
_TRANSFORM = {
    "pick_clean_then_place_in_recep": (household.CLEANABLE, "sinkbasin"),
    "pick_heat_then_place_in_recep": (household.HEATABLE, "microwave"),
    "pick_cool_then_place_in_recep": (household.COOLABLE, "fridge"),
}
_SENTENCES = {
    "pick_and_place_simple": ("put a {o} in {r}.", "put some {o} on {r}."),
    "look_at_obj_in_light": ("look at {o} under the {r}.", "examine the {o} with the {r}."),
    "pick_clean_then_place_in_recep": ("put a clean {o} in {r}.", "clean some {o} and put it in {r}."),
    "pick_heat_then_place_in_recep": ("put a hot {o} in {r}.", "heat some {o} and put it in {r}."),
    "pick_cool_then_place_in_recep": ("put a cool {o} in {r}.", "cool some {o} and put it in {r}."),
    "pick_two_obj_and_place": ("put two {o} in {r}.", "find two {o} and put them in {r}."),
}
_PLACE = (
    "(and (exists (?r - receptacle) (exists (?o - object) (and {extra}(objecttype ?o {o}type) "
    "(receptacletype ?r {r}type) (inreceptacle ?o ?r)))))"
)
_GOALS = {
    "pick_and_place_simple": _PLACE.replace("{extra}", ""),
    "pick_clean_then_place_in_recep": _PLACE.replace("{extra}", "(cleanable ?o) (isclean ?o) "),
    "pick_heat_then_place_in_recep": _PLACE.replace("{extra}", "(heatable ?o) (ishot ?o) "),
    "pick_cool_then_place_in_recep": _PLACE.replace("{extra}", "(coolable ?o) (iscool ?o) "),
    "pick_two_obj_and_place": "(and (exists (?r - receptacle) (exists (?o1 - object) (and "
    "(objecttype ?o1 {o}type) (receptacletype ?r {r}type) (inreceptacle ?o1 ?r) (exists (?o2 - object) (and "
    "(not (= ?o1 ?o2)) (objecttype ?o2 {o}type) (receptacletype ?r {r}type) (inreceptacle ?o2 ?r)))))))",
    "look_at_obj_in_light": "(and (exists (?ot - object ?r - receptacle ?a - agent ?l - location) (and "
    "(objecttype ?ot {r}type) (toggleable ?ot) (istoggled ?ot) (receptacleatlocation ?r ?l) "
    "(atlocation ?a ?l) (inreceptacle ?ot ?r))) (exists (?o - object ?a - agent) (and "
    "(objecttype ?o {o}type) (holds ?a ?o))))",
}


@dataclasses.dataclass(frozen=True)
class RoomOptions:
    """Sizes of generated rooms.

    Attributes:
      min_receptacles, max_receptacles: of a room; at least 5, so that every room has its core and more.
      min_things, max_things: objects in it, the wanted ones and the lamp included; at least 3.
      layouts: layouts of each kind of room for train and valid_seen.
      unseen_layouts: further ones, for valid_unseen.
      text_version: command texts.
    """

    min_receptacles: int = 5
    max_receptacles: int = 7
    min_things: int = 4
    max_things: int = 8
    layouts: int = 24
    unseen_layouts: int = 8
    text_version: TextVersion = TextVersion.MOVE

    def __post_init__(self) -> None:
        sizes = {
            "receptacles": (5, self.min_receptacles, self.max_receptacles),
            "things": (3, self.min_things, self.max_things),
        }
        for name, (least, low, high) in sizes.items():
            if not least <= low <= high:
                raise ValueError(f"min_{name}={low}, max_{name}={high}: need {least} <= min <= max")
        for name, count in {"layouts": self.layouts, "unseen_layouts": self.unseen_layouts}.items():
            if count < 4:
                raise ValueError(f"{name}={count}: need at least 4 layouts of each kind of room")


@dataclasses.dataclass(frozen=True)
class GoalPair:
    """A goal pair in a layout; `starts`: receptacle types where the object is usual and does not count."""

    object: str
    place: str
    starts: tuple[str, ...]


def held_out(object_type: str, place_type: str) -> bool:
    """Whether a goal pair is kept for valid_unseen.

    Never where few objects fit (a mug in the coffee machine): training would not know the place at all.
    """
    common = place_type == LAMP or len(household.HOLDS[place_type]) >= 5
    return common and stable_hash(f"{place_type}/{object_type}") % 5 == 0


def generate_game(
    seed: int, *, task_type: str, split: str = "train", room: RoomOptions | None = None
) -> Game:
    """The game of a seed; the same in every process and run.

    Args:
      seed: any integer.
      task_type: one of `TASK_TYPES`.
      split: one of `SPLITS`; decides what is drawn from, see the module.
      room: sizes; the defaults if None.

    Raises:
      ValueError: an argument is not one of the allowed, or no layout allows such a task.
    """
    for name, value, allowed in (("task_type", task_type, TASK_TYPES), ("split", split, SPLITS)):
        if value not in allowed:
            raise ValueError(f"{name}={value!r} is not one of {allowed}")
    room = room or RoomOptions()
    rng = random.Random(f"{split}/{task_type}/{seed}")
    kind, receptacles, pair = _draw_goal(rng, task_type, split, room)
    spots = _draw_things(
        rng, task_type, kind, receptacles, pair, rng.randint(room.min_things, room.max_things)
    )
    numbers = rng.sample(range(100), len(spots))
    things = [_thing(type_, spot, number, rng) for (type_, spot), number in zip(spots, numbers, strict=True)]
    rng.shuffle(things)
    kinds_here = {r.type for r in receptacles}
    return Game(
        id=f"{split}/{task_type}/{seed}",
        task_type=task_type,
        sentence=rng.choice(_SENTENCES[task_type]).format(o=pair.object, r=pair.place),
        text_version=room.text_version,
        has_help=room.text_version is TextVersion.MOVE,
        receptacles=receptacles,
        things=tuple(things),
        locations=(*(r.location for r in receptacles), _START),
        can_contain=frozenset(
            (r, t.type) for r in kinds_here for t in things if t.type in household.HOLDS[r]
        ),
        agent_location=_START,
        goal=parse_formula(_GOALS[task_type].format(o=pair.object, r=pair.place)),
    )


def layout(kind: str, index: int, room: RoomOptions) -> tuple[Receptacle, ...]:
    """The furniture of layout `index` of a kind of room, each piece at a place of its own."""
    rng = random.Random(f"layout/{kind}/{index}/{room.min_receptacles}-{room.max_receptacles}")
    furniture = household.ROOMS[kind]
    more = rng.randint(room.min_receptacles, room.max_receptacles) - len(furniture.core)
    pool = list(furniture.extra) * (1 + more // len(furniture.extra))
    types = [*furniture.core, *rng.sample(pool, more)]
    rng.shuffle(types)
    return tuple(
        Receptacle(
            id=_instance_id(type_, number, rng),
            type=type_,
            location=f"loc_bar_{number}_bar_{rng.randint(0, 9)}_bar_{rng.randint(0, 3)}_bar_60",
            openable=type_ in household.OPENABLE,
            opened=False,
        )
        for number, type_ in enumerate(types)
    )


def _instance_id(type_: str, number: int, rng: random.Random) -> str:
    """An id as ALFWorld has them; `number` makes it unique. A basin's id starts with what it belongs to."""
    whole = type_.removesuffix("basin")
    place = f"_bar__plus_{number:02d}_dot_{rng.randint(0, 99):02d}_bar__plus_00_dot_{rng.randint(0, 99):02d}"
    return f"{type_}{place}" if whole == type_ else f"{whole}{place}_bar_{type_}"


def _draw_goal(
    rng: random.Random, task_type: str, split: str, room: RoomOptions
) -> tuple[str, tuple[Receptacle, ...], GoalPair]:
    unseen = split == "valid_unseen"
    indices = range(room.layouts, room.layouts + room.unseen_layouts) if unseen else range(room.layouts)
    sites = [(kind, index) for kind in ROOM_KINDS[task_type] for index in indices]
    rng.shuffle(sites)
    for kind, index in sites:
        receptacles = layout(kind, index, room)
        pairs = [p for p in goal_pairs(task_type, kind, receptacles) if held_out(p.object, p.place) == unseen]
        if pairs:
            return kind, receptacles, rng.choice(pairs)
    raise ValueError(f"no layout of {room} allows {task_type} in split {split}")


def goal_pairs(task_type: str, kind: str, receptacles: Sequence[Receptacle]) -> list[GoalPair]:
    """The goal pairs that the layout of a kind of room allows, held out or not."""
    types = sorted({r.type for r in receptacles})
    able, appliance = _TRANSFORM.get(task_type, (frozenset(household.ROOMS[kind].things), ""))
    pairs = []
    for object_type in household.ROOMS[kind].things:
        if object_type not in able:
            continue
        usual = _usual(object_type, types)
        places = [t for t in types if object_type in household.HOLDS[t] and t != appliance]
        for place in [LAMP] if task_type == "look_at_obj_in_light" else places:
            starts = tuple(t for t in usual if t != place)
            if starts:
                pairs.append(GoalPair(object_type, place, starts))
    return pairs


def _usual(object_type: str, types: Sequence[str]) -> list[str]:
    """Receptacle types of the room where an object may be found at the start."""
    usual = household.PLACES[object_type]
    return [t for t in types if t in usual and (object_type == LAMP or object_type in household.HOLDS[t])]


def _draw_things(
    rng: random.Random,
    task_type: str,
    kind: str,
    receptacles: Sequence[Receptacle],
    pair: GoalPair,
    count: int,
) -> list[tuple[str, Receptacle]]:
    """(object type, receptacle) of every thing: those the goal needs, decoys of their type, others."""

    def spot(types: Sequence[str]) -> Receptacle:
        return rng.choice([r for r in receptacles if r.type in types])

    look, two = task_type == "look_at_obj_in_light", task_type == "pick_two_obj_and_place"
    things = [(pair.object, spot(pair.starts))]
    if two:
        things.append((pair.object, spot([pair.place] if rng.random() < 0.25 else pair.starts)))
    types = [r.type for r in receptacles]
    if look or (household.ROOMS[kind].lamp and rng.random() < 0.5):
        things.append((LAMP, spot(_usual(LAMP, types))))
    if len(things) < count and rng.random() < 0.4:
        # The same kind in the right place, but cold or dirty: the classic wrong object.
        in_place = task_type in _TRANSFORM and rng.random() < 0.5
        things.append((pair.object, spot([pair.place] if in_place else pair.starts)))
    others = [o for o in household.ROOMS[kind].things if o != pair.object and _usual(o, types)]
    while len(things) < count:
        other = rng.choice(others)
        things.append((other, spot(_usual(other, types))))
    return things


def _thing(type_: str, spot: Receptacle, number: int, rng: random.Random) -> Thing:
    abilities = {
        "pickupable": type_ != LAMP,
        "toggleable": type_ == LAMP,
        "cleanable": type_ in household.CLEANABLE,
        "heatable": type_ in household.HEATABLE,
        "coolable": type_ in household.COOLABLE,
        "sliceable": type_ in household.SLICEABLE,
    }
    return Thing(
        id=_instance_id(type_, number, rng),
        type=type_,
        receptacles=(spot.id,),
        locations=(spot.location,),
        abilities=frozenset(ability for ability, has in abilities.items() if has),
        flags=frozenset(),
    )
