"""The native household engine: texts, commands, rules, goals, the reader, and hostile input."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
import lzma
import os
import pathlib
import random
import subprocess
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import envs as benchmark
from envs.alfworld.dialect import Dialect
from envs.alfworld.engine import NativeEngine
from envs.alfworld.game import TASK_TYPES, Game, Receptacle, TextVersion, Thing
from envs.alfworld.goal import compile_goal
from envs.alfworld.pddl import (
    ARCHIVE_NAME,
    SPLITS,
    list_games,
    load_game,
    parse_game,
    read_archive,
    read_game_file,
)
from envs.alfworld.problem import parse_formula, parse_problem, render_formula, render_problem
from envs.alfworld.rules import initial_world, readable_names

GOAL = """(and (exists (?r - receptacle) (exists (?o - object) (and (heatable ?o) (objectType ?o AppleType)
    (receptacleType ?r FridgeType) (isHot ?o) (inReceptacle ?o ?r)))))"""


def thing(name, receptacles, locations, abilities="pickupable", flags="", inside=()):
    kind = name.split("_bar_")[0]
    words = frozenset(abilities.split()), frozenset(flags.split())
    return Thing(name, kind, tuple(receptacles), tuple(locations), *words, tuple(inside))


@pytest.fixture
def kitchen() -> Game:
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


@pytest.fixture
def engine(kitchen) -> NativeEngine:
    engine = NativeEngine()
    engine.start(kitchen)
    return engine


# Texts and commands


def test_first_observation(kitchen):
    assert NativeEngine().start(kitchen) == (
        "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. Looking quickly around you, "
        "you see a countertop 1, a desk 1, a fridge 1, a microwave 1, and a sinkbasin 1.\n\n"
        "Your task is to: put a hot apple in fridge."
    )


def test_commands_at_the_start_and_at_a_shared_location(engine):
    everywhere = [f"go to {name} 1" for name in ("countertop", "desk", "fridge", "microwave", "sinkbasin")]
    assert engine.admissible() == (*everywhere, "help", "inventory", "look")
    play(engine, "go to sinkbasin 1")
    assert engine.admissible() == (
        "examine countertop 1",
        "examine sinkbasin 1",
        "go to desk 1",
        "go to fridge 1",
        "go to microwave 1",
        "help",
        "inventory",
        "look",
        "take apple 1 from countertop 1",
        "take knife 1 from countertop 1",
        "take mug 1 from countertop 1",
    )
    assert engine.step("go to countertop 1") == ("Nothing happens.", False)


def test_texts_of_receptacles(engine):
    assert play(engine, "go to fridge 1") == "You arrive at fridge 1. The fridge 1 is closed."
    assert play(engine, "examine fridge 1") == "The fridge 1 is closed."
    opened = "The fridge 1 is open. In it, you see a apple 2."
    assert play(engine, "open fridge 1") == f"You open the fridge 1. {opened}"
    assert play(engine, "examine fridge 1") == opened
    assert play(engine, "take apple 2 from fridge 1") == "You pick up the apple 2 from the fridge 1."
    assert play(engine, "examine fridge 1") == "The fridge 1 is open. In it, you see nothing."
    assert play(engine, "close fridge 1") == "You close the fridge 1."
    assert (
        play(engine, "go to sinkbasin 1") == "You arrive at sinkbasin 1. On the sinkbasin 1, you see nothing."
    )
    assert play(engine, "go to desk 1") == (
        "You arrive at desk 1. On the desk 1, you see a bowl 1, a desklamp 1, and a egg 1."
    )


def test_texts_of_held_objects(engine):
    assert play(engine, "inventory") == "You are not carrying anything."
    play(engine, "go to countertop 1", "take apple 1 from countertop 1")
    assert play(engine, "inventory") == "You are carrying: a apple 1."
    assert play(engine, "examine apple 1") == "There's nothing special about apple 1."
    assert play(engine, "clean apple 1 with sinkbasin 1") == "You clean the apple 1 using the sinkbasin 1."
    assert play(engine, "examine apple 1") == "This is a clean apple 1."
    play(engine, "go to microwave 1")
    assert play(engine, "heat apple 1 with microwave 1") == "You heat the apple 1 using the microwave 1."
    assert play(engine, "examine apple 1") == "This is a hot and clean apple 1."
    play(engine, "go to fridge 1")
    # The fridge is still closed.
    assert play(engine, "cool apple 1 with fridge 1") == "You cool the apple 1 using the fridge 1."
    assert play(engine, "examine apple 1") == "This is a cool and clean apple 1."
    assert engine.world.flags["apple_bar_2"] == {"cool", "clean"}


def test_examined_states(engine, kitchen):
    play(engine, "go to fridge 1", "open fridge 1", "take apple 2 from fridge 1")
    assert play(engine, "examine apple 2") == "This is a cold apple 2."
    play(engine, "go to microwave 1", "heat apple 2 with microwave 1")
    assert play(engine, "examine apple 2") == "This is a hot apple 2."
    play(engine, "move apple 2 to microwave 1", "go to countertop 1", "take knife 1 from countertop 1")
    assert play(engine, "slice apple 1 with knife 1") == "You sliced the apple 1 with the knife 1."
    play(engine, "move knife 1 to countertop 1", "take apple 1 from countertop 1")
    assert play(engine, "examine apple 1") == "This is a sliced apple 1."
    play(engine, "go to fridge 1", "cool apple 1 with fridge 1")
    assert play(engine, "examine apple 1") == "This is a cool sliced apple 1."
    play(engine, "go to sinkbasin 1", "clean apple 1 with sinkbasin 1")
    assert play(engine, "examine apple 1") == "This is a cool and clean sliced apple 1."
    engine.start(kitchen)
    play(engine, "go to desk 1", "take bowl 1 from desk 1")
    assert play(engine, "examine bowl 1") == "This is a normal bowl 1. In it, you see a egg 1."


def test_slice_asks_for_object_at_the_place_not_in_reach(engine):
    play(engine, "go to countertop 1", "take knife 1 from countertop 1", "go to fridge 1")
    assert "slice apple 2 with knife 1" in engine.admissible()  # inside the closed fridge
    assert "move knife 1 to fridge 1" not in engine.admissible()
    play(engine, "open fridge 1")
    assert play(engine, "move knife 1 to fridge 1") == "You move the knife 1 to the fridge 1."


def test_lamp_is_always_turned_on(engine):
    play(engine, "go to desk 1")
    for on in (True, False):
        assert play(engine, "use desklamp 1") == "You turn on the desklamp 1."
        assert ("on" in engine.world.flags["desklamp_bar_1"]) == on
        assert "toggled" in engine.world.flags["desklamp_bar_1"]


def test_look(engine):
    nothing = "You are in the middle of a room. Looking quickly around you, you see nothing."
    assert play(engine, "look") == nothing
    facing = "You are facing the countertop 1, and sinkbasin 1. Next to it, you see"
    assert play(engine, "go to countertop 1", "look") == f"{facing} nothing."
    assert play(engine, "take mug 1 from countertop 1", "look") == f"{facing} nothing."
    # Taken from one receptacle and put into another at the same place: it lies "next to" the first.
    assert play(engine, "move mug 1 to sinkbasin 1", "look") == f"{facing} a mug 1."
    play(engine, "take mug 1 from sinkbasin 1", "move mug 1 to countertop 1")
    assert play(engine, "look") == f"{facing} a mug 1."


def test_help_names_every_command(engine):
    text = play(engine, "help")
    assert text.startswith("Available commands:\n  look: ")
    verbs = [line.split()[0].strip(":") for line in text.splitlines()[1:]]
    used = ["go", "open", "close", "take", "move", "examine", "use", "heat", "clean", "cool", "slice"]
    assert verbs == ["look", "inventory", *used]


def test_object_in_two_receptacles(engine):
    play(engine, "go to countertop 1", "take mug 1 from countertop 1")
    assert engine.world.contents["microwave_bar_1"] == {"mug_bar_1"}
    assert play(engine, "go to microwave 1").endswith("In it, you see a mug 1.")
    assert "mug_bar_1" in engine.world.holding


def test_one_object_in_hand(engine):
    play(engine, "go to countertop 1", "take mug 1 from countertop 1")
    assert not [command for command in engine.admissible() if command.startswith("take ")]
    assert "move mug 1 to sinkbasin 1" in engine.admissible()
    play(engine, "move mug 1 to sinkbasin 1", "take knife 1 from countertop 1")
    assert "move knife 1 to countertop 1" in engine.admissible()
    assert "move knife 1 to sinkbasin 1" not in engine.admissible()  # sinks take no knives in this room


def test_old_texts(kitchen):
    engine = NativeEngine()
    engine.start(dataclasses.replace(kitchen, text_version=TextVersion.PUT_IN_ON, has_help=False))
    assert engine.step("help") == ("Nothing happens.", False)
    # Locations count down as everything does: of five, loc_bar_1 is the second.
    assert play(engine, "go to fridge 1") == "You arrive at loc 4. The fridge 1 is closed."
    play(engine, "open fridge 1", "take apple 2 from fridge 1")
    assert play(engine, "put apple 2 in/on fridge 1") == "You put the apple 2 in/on the fridge 1."
    assert engine.step("move apple 2 to fridge 1") == ("Nothing happens.", False)


def test_start_beside_a_receptacle(kitchen):
    engine = NativeEngine()
    text = engine.start(dataclasses.replace(kitchen, agent_location="loc_bar_4"))
    assert "\n\nYou are facing the desk 1. Next to it, you see nothing.\n\n" in text
    assert "use desklamp 1" in engine.admissible()


def test_win_stays_reachable_after_losing_it(engine):
    play(engine, "go to countertop 1", "take apple 1 from countertop 1", "go to microwave 1")
    play(engine, "heat apple 1 with microwave 1", "go to fridge 1", "open fridge 1")
    assert not engine.won()
    play(engine, "move apple 1 to fridge 1")
    assert engine.won()
    play(engine, "take apple 1 from fridge 1")
    assert not engine.won()


def test_seen(engine):
    assert engine.world.seen == set()
    play(engine, "go to fridge 1")
    assert engine.world.seen == set()
    play(engine, "open fridge 1")
    assert engine.world.seen == {"apple_bar_1"}
    play(engine, "go to desk 1")
    assert engine.world.seen == {"apple_bar_1", "bowl_bar_1", "egg_bar_1", "desklamp_bar_1"}


def test_names_count_down_per_kind(kitchen):
    names = readable_names(kitchen)
    assert names.of["apple_bar_1"] == "apple 2"
    assert names.of["apple_bar_2"] == "apple 1"
    assert names.of["sink_bar_1_bar_sinkbasin"] == "sinkbasin 1"
    assert names.id_of["apple 2"] == "apple_bar_1"
    assert {names.of[f"loc_bar_{i}"] for i in range(5)} == {f"loc {i}" for i in range(1, 6)}


# Hostile input, determinism, independence


@settings(max_examples=200, deadline=None)
@given(
    command=st.one_of(
        st.text(), st.sampled_from(["Look", "go to", "take  from ", "look\x00", "{r}", "#look#"])
    )
)
def test_other_texts_change_nothing(kitchen_world, command):
    engine, untouched = kitchen_world
    if command.strip() in engine.admissible():
        return
    assert engine.step(command) == ("Nothing happens.", False)
    assert engine.world == untouched


@pytest.fixture(scope="module")
def kitchen_world():
    game = Game(
        id="closet",
        task_type="pick_and_place_simple",
        sentence="put a mug in desk.",
        text_version=TextVersion.MOVE,
        has_help=True,
        receptacles=(Receptacle("desk_bar_1", "desk", "loc_bar_1", False, False),),
        things=(thing("mug_bar_1", ["desk_bar_1"], ["loc_bar_1"]),),
        locations=("loc_bar_0", "loc_bar_1"),
        can_contain=frozenset({("desk", "mug")}),
        agent_location="loc_bar_1",
        goal=parse_formula("(exists (?o - object) (holds agent1 ?o))"),
    )
    engine = NativeEngine()
    engine.start(game)
    return engine, copy.deepcopy(engine.world)


def test_very_long_and_blank_padded_commands(engine):
    for command in ("x" * 1_000_000, "look " * 100_000, "\ud800", "\n" * 1000):
        assert engine.step(command) == ("Nothing happens.", False)
    assert engine.step("  go to desk 1\n")[1]


def walk(engine, rng, steps):
    """A random walk as a list of everything that was seen."""
    seen = []
    for _ in range(steps):
        command = rng.choice(engine.admissible())
        seen.append((command, engine.step(command), engine.admissible(), engine.won()))
    return seen


def test_same_walk_twice_and_interleaved(kitchen):
    one, two = NativeEngine(), NativeEngine()
    one.start(kitchen)
    expected = walk(one, random.Random(5), 300)
    one.start(kitchen)
    two.start(dataclasses.replace(kitchen, agent_location="loc_bar_1"))
    ours, others = random.Random(5), random.Random(6)
    interleaved = []
    for _ in range(300):
        interleaved += walk(one, ours, 1)
        walk(two, others, 1)
    assert interleaved == expected


def test_walk_does_not_change_the_game(kitchen):
    before = copy.deepcopy(kitchen)
    engine = NativeEngine()
    engine.start(kitchen)
    walk(engine, random.Random(0), 300)
    assert kitchen == before
    engine.start(kitchen)
    assert engine.world == initial_world(kitchen)


def test_texts_do_not_depend_on_the_hash_seed(shared_dir):
    program = (
        "import random, sys, zlib\n"
        "from envs.alfworld.engine import NativeEngine\n"
        "from envs.alfworld.pddl import list_games, load_game\n"
        "engine, rng, log = NativeEngine(), random.Random(0), []\n"
        "for source in list_games(sys.argv[1], 'valid_seen'):\n"
        "    log.append(engine.start(load_game(source.source)))\n"
        "    log += [engine.step(rng.choice(engine.admissible())) for _ in range(50)]\n"
        "print(zlib.crc32(repr(log).encode()))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program, str(shared_dir / "data" / "alfworld")],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(pathlib.Path(__file__).parents[2])},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


def test_engine_that_was_not_started():
    with pytest.raises(ValueError, match=r"call start\(game\) first"):
        NativeEngine().admissible()
    with pytest.raises(ValueError, match=r"call start\(game\) first"):
        _ = NativeEngine().world


# Goals


def holds(formula, world, game, binding):
    """Plain reading of a formula, one case after the other: the oracle for `compile_goal`."""
    head, *parts = formula
    if head in ("and", "or"):
        return (all if head == "and" else any)([holds(part, world, game, binding) for part in parts])
    if head == "not":
        return not holds(parts[0], world, game, binding)
    if head == "imply":
        return not holds(parts[0], world, game, binding) or holds(parts[1], world, game, binding)
    if head in ("exists", "forall"):
        (name, _, kind), body = parts
        domain = [t.id for t in game.things] if kind == "object" else [r.id for r in game.receptacles]
        results = [holds(body, world, game, {**binding, name: value}) for value in domain]
        return any(results) if head == "exists" else all(results)
    values = [binding.get(part, part) for part in parts]
    things = {t.id: t for t in game.things}
    return {
        "=": lambda a, b: a == b,
        "objecttype": lambda o, kind: things[o].type + "type" == kind,
        "heatable": lambda o: "heatable" in things[o].abilities,
        "ishot": lambda o: "hot" in world.flags[o],
        "istoggled": lambda o: "toggled" in world.flags[o],
        "holds": lambda a, o: o in world.holding,
        "inreceptacle": lambda o, r: o in world.contents[r],
        "opened": lambda r: r in world.opened,
    }[head](*values)


def formulas(objects=(), receptacles=(), depth=3):
    """Random closed formulas over the variables in scope."""
    atoms = []
    if objects:
        o = st.sampled_from(objects)
        atoms += [
            st.tuples(st.just("objecttype"), o, st.sampled_from(["appletype", "mugtype", "cuptype"])),
            st.tuples(st.sampled_from(["ishot", "heatable", "istoggled"]), o),
            st.tuples(st.just("holds"), st.just("agent1"), o),
            st.tuples(st.just("="), o, o),
        ]
    if receptacles:
        atoms.append(st.tuples(st.just("opened"), st.sampled_from(receptacles)))
    if objects and receptacles:
        atoms.append(
            st.tuples(st.just("inreceptacle"), st.sampled_from(objects), st.sampled_from(receptacles))
        )
    if depth == 0 and atoms:
        return st.one_of(atoms)
    below = depth - 1 if depth else 0
    o, r = f"?o{len(objects)}", f"?r{len(receptacles)}"
    quantifier = st.sampled_from(["exists", "forall"])
    same = st.deferred(lambda: formulas(objects, receptacles, below))
    compound = [
        st.tuples(
            quantifier,
            st.just((o, "-", "object")),
            st.deferred(lambda: formulas((*objects, o), receptacles, below)),
        ),
        st.tuples(
            quantifier,
            st.just((r, "-", "receptacle")),
            st.deferred(lambda: formulas(objects, (*receptacles, r), below)),
        ),
    ]
    if depth:
        compound += [
            st.tuples(st.sampled_from(["and", "or"]), same, same),
            st.tuples(st.just("not"), same),
            st.tuples(st.just("imply"), same, same),
        ]
    return st.one_of(atoms + compound)


@settings(max_examples=300, deadline=None)
@given(formula=formulas(), seed=st.integers(0, 20))
def test_compiled_goal_equals_plain_reading(formula, seed, kitchen_game):
    test = compile_goal(dataclasses.replace(kitchen_game, goal=formula))
    engine = NativeEngine()
    engine.start(kitchen_game)
    walk(engine, random.Random(seed), seed)
    assert test(engine.world) == holds(formula, engine.world, kitchen_game, {})


@pytest.fixture(scope="module")
def kitchen_game(request):
    """The kitchen, for tests that run many examples."""
    return kitchen.__wrapped__()


@pytest.mark.parametrize(
    ("goal", "message"),
    [
        ("(flies ?o)", "unbound term"),
        ("(exists (?o - object) (flies ?o))", "unknown predicate 'flies'"),
        ("(exists (?o - spaceship) (holds agent1 ?o))", "unknown types"),
        ("(exists (?o) (holds agent1 ?o))", "variables without a type"),
        ("(not (holds agent1 a) (holds agent1 b))", "takes one part"),
    ],
)
def test_goal_errors(kitchen, goal, message):
    with pytest.raises(ValueError, match=message):
        compile_goal(dataclasses.replace(kitchen, goal=parse_formula(goal)))


# Reading and writing


def test_problem_round_trip(kitchen):
    problem = render_problem(kitchen)
    dialect = Dialect(TextVersion.MOVE, has_help=True)
    assert parse_problem(problem, "kitchen", kitchen.sentence, dialect, ()) == kitchen
    assert parse_formula(render_formula(kitchen.goal)) == kitchen.goal


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("(:init", "(:start", "must have"),
        ("(atlocation agent1 loc_bar_0)", "", "one location"),
        ("(atlocation agent1 loc_bar_0)", "(flies agent1)", "unknown fact"),
        ("(opened microwave_bar_1)", "(opened microwave_bar_1 desk_bar_1)", "must have 1 arguments"),
        ("(receptacleatlocation desk_bar_1 loc_bar_4)", "", "one type and one location"),
        ("mug_bar_1 - object", "", "not declared as object"),
        (
            "(objecttype mug_bar_1 mugtype)",
            "(objecttype mug_bar_1 a) (objecttype mug_bar_1 b)",
            "more than one type",
        ),
        ("(:goal", "(:goal (", "unbalanced parentheses"),
    ],
)
def test_broken_problems(kitchen, before, after, message):
    problem = render_problem(kitchen)
    assert before in problem
    with pytest.raises(ValueError, match=message):
        parse_problem(problem.replace(before, after), "x", "y", Dialect(TextVersion.MOVE, has_help=True), ())


@pytest.fixture(scope="session")
def game_files(shared_dir):
    return sorted((shared_dir / "data" / "alfworld" / "json_2.1.1").rglob("game.tw-pddl"))


def test_stored_walkthroughs_win(game_files):
    engine, types = NativeEngine(), set()
    for path in game_files:
        game = load_game(path)
        types.add(game.task_type)
        engine.start(game)
        assert not engine.won()
        play(engine, *game.walkthrough)
        assert engine.won(), path
        assert json.loads((path.parent / "traj_data.json").read_text())["task_type"] == game.task_type
    assert types == set(TASK_TYPES)


def test_file_folder_and_archive_give_the_same_game(shared_dir, tmp_path):
    data = shared_dir / "data" / "alfworld"
    source = list_games(data, "valid_unseen")[3]
    game = load_game(source.source)
    assert load_game(os.path.dirname(source.source)) == game
    assert source.id == game.id
    assert source.task_type == game.task_type
    archived = list_games(data / ARCHIVE_NAME, "valid_unseen")
    assert len(archived) == 134
    (same,) = [entry for entry in archived if entry.id == game.id]
    assert load_game(same.source) == game
    first = next(iter(read_archive(data / ARCHIVE_NAME, "valid_seen")))
    assert first[1] == load_game(f"{data / ARCHIVE_NAME}#{first[0]}")


def test_archive_holds_the_official_numbers(shared_dir):
    archive = shared_dir / "data" / "alfworld" / ARCHIVE_NAME
    counts = {split: len(list_games(archive, split)) for split in SPLITS}
    assert counts == {"train": 3553, "valid_seen": 140, "valid_unseen": 134, "valid_train": 200}


def test_movable_sliced_and_unsolvable_games_are_left_out(game_files, tmp_path):
    data = read_game_file(game_files[0])
    for task, solvable in (
        ("pick_and_place_simple-A-None-B-1", True),
        ("pick_and_place_simple-A-None-B-2", False),
        ("pick_and_place_simple-ASliced-None-B-1", True),
        ("pick_and_place_with_movable_recep-A-C-B-1", True),
    ):
        for name, content in (("a", {**data, "solvable": solvable}), ("b", {"solvable": solvable, **data})):
            folder = tmp_path / "json_2.1.1" / "train" / task / f"trial_{name}"
            folder.mkdir(parents=True)
            (folder / "game.tw-pddl").write_text(json.dumps(content | {"solvable": solvable}))
    ids = [source.id for source in list_games(tmp_path, "train")]
    assert ids == [f"train/pick_and_place_simple-A-None-B-1/trial_{name}" for name in "ab"]


def test_errors_of_lists(tmp_path):
    with pytest.raises(ValueError, match=r"split 'test' is unknown; known: train, valid_seen"):
        list_games(tmp_path, "test")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        list_games(tmp_path / "missing", "train")
    with pytest.raises(FileNotFoundError, match=r"holds neither json_2\.1\.1"):
        list_games(tmp_path, "train")
    (tmp_path / "json_2.1.1").mkdir()
    with pytest.raises(ValueError, match="no games of split 'train'"):
        list_games(tmp_path, "train")
    with pytest.raises(FileNotFoundError, match="no ALFWorld game at"):
        load_game(tmp_path / "missing")


def test_damaged_files_are_named(game_files, tmp_path):
    whole = game_files[0].read_text()
    broken = tmp_path / "game.tw-pddl"
    broken.write_text(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"game\.tw-pddl is not valid JSON.*truncated or damaged"):
        load_game(broken)
    broken.write_text("[]")
    with pytest.raises(ValueError, match="must hold a JSON object, got list"):
        load_game(broken)
    broken.write_text("{}")
    with pytest.raises(ValueError, match="key 'pddl_domain' must be a text"):
        load_game(broken)
    data = json.loads(whole)
    broken.write_text(json.dumps({**data, "pddl_problem": data["pddl_problem"][:-200]}))
    with pytest.raises(ValueError, match=r"game .*unbalanced parentheses"):
        load_game(broken)


def test_damaged_archives_are_named(shared_dir, tmp_path):
    archive = shared_dir / "data" / "alfworld" / ARCHIVE_NAME
    broken = tmp_path / ARCHIVE_NAME
    broken.write_bytes(archive.read_bytes()[:20_000])
    with pytest.raises(ValueError, match="is truncated or damaged"):
        list(read_archive(broken))
    broken.write_bytes(lzma.compress(b'{"a": 1}\n'))
    with pytest.raises(ValueError, match=r"missing .*pddl_domain"):
        list(read_archive(broken))
    with pytest.raises(FileNotFoundError, match="no archive"):
        list(read_archive(tmp_path / "missing.xz"))
    with pytest.raises(ValueError, match="has no game 'nothing'"):
        load_game(f"{archive}#nothing")


@pytest.mark.parametrize(
    ("key", "before", "after", "message"),
    [
        ("grammar", "You move the {o.name}", "You shove the {o.name}", "neither of the known text versions"),
        ("grammar", "move {o} to {r}", "put {o} in/on {r}", "neither of the known text versions"),
        ("grammar", "You heat the", "You warm the", "rule heatObject.feedback"),
        ("grammar", "slice {co} with {ko}", "cut {co} with {ko}", "text sliceobject"),
        ("grammar", "check your current inventory", "see what you hold", "text help"),
        (
            "pddl_domain",
            "(receptacleType ?r MicrowaveType)",
            "(receptacleType ?r StoveType)",
            "action heatobject",
        ),
        ("pddl_domain", "?l - location, ?r", "?l - location ?r", "action examineobject"),
        ("pddl_domain", "(:action help", "(:action sing", "action sing"),
        ("grammar", "Your task is to: ", "Task: ", 'no "Your task is to: ..." sentence'),
        ("grammar", "Your task is to: ", "Your task is to: [do] ", "reserved characters"),
    ],
)
def test_unknown_rules_are_refused(game_files, key, before, after, message):
    data = read_game_file(game_files[0])
    assert before in data[key]
    with pytest.raises(ValueError, match=message):
        parse_game({**data, key: data[key].replace(before, after)}, "odd")


def test_layout_and_comments_of_the_rules_do_not_matter(game_files):
    data = read_game_file(game_files[0])
    domain = data["pddl_domain"].replace(" (:action Heat", "; heating\n\n\t(:action  Heat").upper()
    assert domain.count("; HEATING") == 1
    assert parse_game({**data, "pddl_domain": domain}, "x") == parse_game(data, "x")


def test_old_text_version_is_recognised(game_files, shared_dir):
    game = parse_game(old_data(game_files[0], shared_dir), "old")
    assert game.text_version is TextVersion.PUT_IN_ON
    assert not game.has_help
    assert game.sentence == load_game(game_files[0]).sentence


def old_data(path, shared_dir):
    """A game with the domain and grammar of the old text version."""
    folder = shared_dir / "data" / "alfworld"
    sentence = load_game(path).sentence
    grammar = (folder / "grammar_2.1.1_put_in_on.twl2").read_text()
    return {
        **read_game_file(path),
        "pddl_domain": (folder / "domain_2.1.1.pddl").read_text(),
        "grammar": grammar.replace("UNKNOWN GOAL.", sentence),
    }


def test_benchmark_measures_the_native_engine(shared_dir):
    chosen = benchmark.choose_games(str(shared_dir / "data" / "alfworld"), 2, seed=0)
    speed = benchmark.measure("native", chosen, steps=12, seed=0)
    assert (speed.games, speed.steps % 24) == (2, 0)
    assert speed.steps_per_second > 0
    assert f"{speed.steps_per_second:.0f}" in benchmark.table([speed])
    commands = benchmark.choose_commands(load_game(chosen[0]), 12, seed=0)
    assert len(commands) == 12


def test_engine_is_never_the_bottleneck(game_files):
    engine = NativeEngine()
    games = [load_game(path) for path in itertools.islice(game_files, 20)]
    rng, steps, begin = random.Random(0), 0, time.process_time()
    for game in games:
        engine.start(game)
        steps += len(walk(engine, rng, 100))
    # Measured at 50,000 and more; a tenth of it leaves room for slow machines.
    assert steps / (time.process_time() - begin) > 5000
