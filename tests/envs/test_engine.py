"""The native household engine: texts, commands, rules, hostile input, independence, speed."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
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
from envs.alfworld.engine import NativeEngine
from envs.alfworld.game import TASK_TYPES, Game, Receptacle, TextVersion
from envs.alfworld.pddl import load_game
from envs.alfworld.problem import parse_formula
from envs.alfworld.rules import initial_world, readable_names
from tests.envs.kitchen import make_kitchen, play, thing, walk


@pytest.fixture
def kitchen():
    return make_kitchen()


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


# Real games


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
