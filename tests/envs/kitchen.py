"""A small hand-made room for the tests of the household engine."""

from __future__ import annotations

from envs.alfworld.game import Game, Receptacle, TextVersion, Thing
from envs.alfworld.problem import parse_formula

GOAL = """(and (exists (?r - receptacle) (exists (?o - object) (and (heatable ?o) (objectType ?o AppleType)
    (receptacleType ?r FridgeType) (isHot ?o) (inReceptacle ?o ?r)))))"""


def thing(name, receptacles, locations, abilities="pickupable", flags="", inside=()):
    kind = name.split("_bar_")[0]
    words = frozenset(abilities.split()), frozenset(flags.split())
    return Thing(name, kind, tuple(receptacles), tuple(locations), *words, tuple(inside))


def make_kitchen() -> Game:
    """Five receptacles at four places (countertop and sink share one) and seven objects."""
    receptacles = (
        Receptacle("sink_bar_1_bar_sinkbasin", "sinkbasin", "loc_bar_2", False, False),
        Receptacle("countertop_bar_1", "countertop", "loc_bar_2", False, False),
        Receptacle("fridge_bar_1", "fridge", "loc_bar_1", True, False),
        Receptacle("microwave_bar_1", "microwave", "loc_bar_3", True, True),
        Receptacle("desk_bar_1", "desk", "loc_bar_4", False, False),
    )
    food = "pickupable heatable coolable cleanable sliceable"
    things = (
        thing("apple_bar_2", ["countertop_bar_1"], ["loc_bar_2"], food),
        thing("apple_bar_1", ["fridge_bar_1"], ["loc_bar_1"], food, "cool"),
        thing("knife_bar_1", ["countertop_bar_1"], ["loc_bar_2"], "pickupable cleanable"),
        thing("mug_bar_1", ["countertop_bar_1", "microwave_bar_1"], ["loc_bar_2"], "pickupable heatable"),
        thing("bowl_bar_1", ["desk_bar_1"], ["loc_bar_4"], "pickupable cleanable receptacle"),
        thing("egg_bar_1", ["desk_bar_1"], ["loc_bar_4"], food, inside=["bowl_bar_1"]),
        thing("desklamp_bar_1", ["desk_bar_1"], ["loc_bar_4"], "toggleable"),
    )
    fits = {
        (r.type, t.type) for r in receptacles for t in things if (r.type, t.type) != ("sinkbasin", "knife")
    }
    return Game(
        id="kitchen",
        task_type="pick_heat_then_place_in_recep",
        sentence="put a hot apple in fridge.",
        text_version=TextVersion.MOVE,
        has_help=True,
        receptacles=receptacles,
        things=things,
        locations=("loc_bar_0", "loc_bar_1", "loc_bar_2", "loc_bar_3", "loc_bar_4"),
        can_contain=frozenset(fits),
        agent_location="loc_bar_0",
        goal=parse_formula(GOAL),
    )


def play(engine, *commands):
    """Play admissible commands; the last text."""
    text = ""
    for command in commands:
        assert command in engine.admissible()
        text, accepted = engine.step(command)
        assert accepted
    return text


def walk(engine, rng, steps):
    """A random walk as a list of everything that was seen."""
    seen = []
    for _ in range(steps):
        command = rng.choice(engine.admissible())
        seen.append((command, engine.step(command), engine.admissible(), engine.won()))
    return seen
