"""The generator: determinism, splits, sizes, and that every game is a fair task."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys

import pytest

from envs.alfworld import expert, generate
from envs.alfworld.engine import NativeEngine
from envs.alfworld.game import TASK_TYPES, TextVersion
from envs.alfworld.generate import SPLITS, RoomOptions, generate_game, held_out
from envs.alfworld.verifier import specify


def _goal_pair(game):
    wish = expert.read_wish(game.sentence.removesuffix("."))
    return wish.object, wish.place


def _sample(count, **kwargs):
    for task_type in TASK_TYPES:
        for seed in range(count):
            yield generate_game(seed, task_type=task_type, **kwargs)


_FINGERPRINT = (
    "from envs.alfworld.generate import *; "
    "games = [generate_game(s, task_type=t, split=p) for s in range(3) for t in TASK_TYPES for p in SPLITS]; "
    "print([(g.sentence, g.receptacles, [(t.id, t.receptacles) for t in g.things]) for g in games])"
)


def test_same_in_every_process():
    outputs = {
        subprocess.run(
            [sys.executable, "-c", _FINGERPRINT],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "77")
    }
    assert len(outputs) == 1
    assert generate_game(5, task_type=TASK_TYPES[0]) == generate_game(5, task_type=TASK_TYPES[0])


def test_seeds_give_different_games():
    games = list(_sample(40))
    assert len({(game.sentence, game.receptacles, game.things) for game in games}) == len(games)
    assert len({game.id for game in games}) == len(games)


@pytest.mark.parametrize("split", SPLITS)
def test_every_game_is_open_and_has_a_plan(split):
    engine = NativeEngine()
    for game in _sample(40, split=split):
        engine.start(game)
        assert not engine.won()
        actions = expert.plan(engine, game, limit=20)
        engine.start(game)
        assert all(engine.step(action)[1] for action in actions), "every action of a plan is accepted"
        assert engine.won()


def test_sizes_are_kept_and_ids_are_unique():
    room = RoomOptions(min_receptacles=9, max_receptacles=20, min_things=3, max_things=40)
    sizes = set()
    for game in _sample(20, room=room):
        assert 9 <= len(game.receptacles) <= 20
        assert 3 <= len(game.things) <= 40
        ids = [thing.id for thing in game.things] + [r.id for r in game.receptacles]
        assert len(set(ids)) == len(ids)
        assert len({r.location for r in game.receptacles}) == len(game.receptacles)
        sizes.add(len(game.receptacles))
        expert.plan(NativeEngine(), game)
    assert len(sizes) > 5


def test_things_start_where_they_may_be_put():
    for game in _sample(30):
        kind_of = {r.id: r.type for r in game.receptacles}
        for thing in game.things:
            if thing.type != generate.LAMP:
                assert (kind_of[thing.receptacles[0]], thing.type) in game.can_contain


def _possible_pairs(indices):
    return {
        (pair.object, pair.place)
        for task_type, kinds in generate.ROOM_KINDS.items()
        for kind in kinds
        for index in indices
        for pair in generate.goal_pairs(task_type, kind, generate.layout(kind, index, RoomOptions()))
    }


def test_validation_splits_hold_out_pairs_and_layouts():
    room = RoomOptions()
    known_layouts = {
        generate.layout(kind, index, room)
        for kind in generate.household.ROOMS
        for index in range(room.layouts)
    }
    for split in SPLITS:
        unseen = split == "valid_unseen"
        games = list(_sample(25, split=split))
        assert {held_out(*_goal_pair(game)) for game in games} == {unseen}
        assert {game.receptacles in known_layouts for game in games} == {not unseen}


def test_held_out_pairs_are_of_known_words():
    """Each object and each place of a held-out pair occurs in training, only not together."""
    train = {pair for pair in _possible_pairs(range(24)) if not held_out(*pair)}
    unseen = {pair for pair in _possible_pairs(range(24, 32)) if held_out(*pair)}
    objects, places = (set(part) for part in zip(*train, strict=True))
    assert all(object_type in objects and place in places for object_type, place in unseen)
    assert 0.1 < len(unseen) / len(train) < 0.4
    assert len({object_type for object_type, place in unseen if place == generate.LAMP}) >= 4


def test_hard_cases_occur():
    """The right kind cold in the right place, a third instance, one of two in place from the start."""
    cold_in_place = second_instance = one_of_two_in_place = 0
    for game in _sample(60):
        engine = NativeEngine()
        engine.start(game)
        spec = specify(game, engine.names.of)
        things = [thing for thing in game.things if thing.id in spec.objects]
        in_place = sum(thing.receptacles[0] in spec.targets for thing in things)
        cold_in_place += spec.transform is not None and in_place == 1
        one_of_two_in_place += spec.count == 2 and in_place == 1
        second_instance += len(things) > spec.count
    assert min(cold_in_place, second_instance, one_of_two_in_place) >= 8


def test_old_text_version():
    game = generate_game(
        1, task_type="pick_and_place_simple", room=RoomOptions(text_version=TextVersion.PUT_IN_ON)
    )
    actions = expert.plan(NativeEngine(), game)
    assert " in/on " in actions[-1]


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"task_type": "pick_three"}, "task_type='pick_three' is not one of"),
        ({"task_type": TASK_TYPES[0], "split": "test"}, "split='test' is not one of"),
    ],
)
def test_wrong_arguments(kwargs, message):
    with pytest.raises(ValueError, match=message):
        generate_game(0, **kwargs)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"min_receptacles": 4}, "min_receptacles=4, max_receptacles=7: need 5"),
        ({"min_things": 9}, "min_things=9, max_things=8"),
        ({"unseen_layouts": 1}, "unseen_layouts=1: need at least 4"),
    ],
)
def test_wrong_sizes(sizes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(RoomOptions(), **sizes)
