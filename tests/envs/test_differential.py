"""The native engine against the original ALFWorld engine, step by step."""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import random

import pytest

from envs.alfworld import differential
from envs.alfworld.engine import NativeEngine
from envs.alfworld.game import TASK_TYPES, TextVersion
from envs.alfworld.generate import generate_game
from envs.alfworld.pddl import load_game, parse_game, read_game_file

PARTS = 6


@pytest.fixture(scope="session")
def original():
    """The module of the original engine; skipped where its packages are not installed."""
    try:
        from envs.alfworld import textworld
    except ImportError as error:
        if os.environ.get("VICT_REQUIRE_TEXTWORLD") == "1":
            pytest.fail(f"VICT_REQUIRE_TEXTWORLD=1, but the original engine cannot be imported: {error}")
        pytest.skip(f"the original engine is not installed ({error}); see requirements-textworld.txt")
    return textworld


@pytest.fixture(scope="session")
def memoised(original):
    """One original engine for all tests: each new one keeps memory."""
    return original.TextWorldEngine(memoise=True)


@pytest.fixture(scope="session")
def games(shared_dir):
    """The games in the official layout: (id, content)."""
    games = list(differential.folder_games(shared_dir / "data" / "alfworld" / "json_2.1.1"))
    assert len(games) == 60
    return games


def one_of_each_type(games):
    chosen = {}
    for name, data in games:
        chosen.setdefault(parse_game(data, name).task_type, (name, data))
    assert set(chosen) == set(TASK_TYPES)
    return list(chosen.values())


@pytest.mark.parametrize("part", range(PARTS))
def test_every_game_is_the_same(games, memoised, part):
    for name, data in games[part::PARTS]:
        result = differential.compare_game(data, name, memoised, walk=18, seed=part)
        assert result.difference is None
        assert result.wins >= 1, name
        assert result.steps >= 18


def test_old_text_version_is_the_same(games, memoised, shared_dir):
    folder = shared_dir / "data" / "alfworld"
    domain = (folder / "domain_2.1.1.pddl").read_text()
    grammar = (folder / "grammar_2.1.1_put_in_on.twl2").read_text()
    for name, data in one_of_each_type(games):
        sentence = parse_game(data, name).sentence
        old = {**data, "pddl_domain": domain, "grammar": grammar.replace("UNKNOWN GOAL.", sentence)}
        old["walkthrough"] = [put_in_on(command) for command in data["walkthrough"]]
        assert parse_game(old, name).text_version is TextVersion.PUT_IN_ON
        result = differential.compare_game(old, name, memoised, walk=15, seed=1)
        assert result.difference is None
        assert result.wins >= 1, name
        assert result.verbs["move"] == 0


def put_in_on(command):
    """`move O to R` in the old version's words."""
    if not command.startswith("move "):
        return command
    thing, _, place = command.removeprefix("move ").partition(" to ")
    return f"put {thing} in/on {place}"


def test_written_games_are_the_same(games, memoised):
    """The PDDL that is written from a `Game` gives the original the same game."""
    for name, data in one_of_each_type(games):
        game = parse_game(data, name)
        native = NativeEngine()
        texts = native.start(game), memoised.start(game)
        played, difference = differential.compare_play(native, memoised, texts, game.walkthrough)
        assert difference is None
        assert len(played) == len(game.walkthrough)
        assert memoised.won()


@pytest.mark.parametrize("task_type", TASK_TYPES)
def test_generated_games_are_the_same(memoised, task_type):
    for seed, split in enumerate(("train", "valid_unseen")):
        game = generate_game(seed, task_type=task_type, split=split)
        native = NativeEngine()
        texts = native.start(game), memoised.start(game)
        walk = differential.random_walk(native, random.Random(seed), 25)
        played, difference = differential.compare_play(native, memoised, texts, walk)
        assert difference is None
        assert len(played) == 25


def test_remembering_changes_nothing(games, original, memoised):
    plain = original.TextWorldEngine()
    smallest = sorted(games, key=lambda game: len(game[1]["pddl_problem"]))[:3]
    for name, data in smallest:
        game = parse_game(data, name)
        commands = [*game.walkthrough[:-1], "help", "nonsense", "look", "inventory", game.walkthrough[-1]]
        texts = plain.start_data(data, game), memoised.start_data(data, game)
        _, difference = differential.compare_play(plain, memoised, texts, commands)
        assert difference is None
        assert plain.won()


def search(engine, wanted, rng, steps):
    """Random commands until one that `wanted` accepts is admissible; that command, or None."""
    for _ in range(steps):
        found = [command for command in engine.admissible() if wanted(command)]
        if found:
            return rng.choice(found)
        engine.step(rng.choice(engine.admissible()))
    return None


@pytest.mark.parametrize("verb", ["slice", "use", "clean", "heat", "cool", "examine held"])
def test_rare_commands_are_the_same(games, memoised, verb):
    """The native engine finds a way to a rare command; both play it and what follows."""
    rng = random.Random(verb)
    found = 0
    for name, data in rng.sample(games, len(games)):
        game, native = parse_game(data, name), NativeEngine()
        native.start(game)
        recorder = Recorder(native)
        command = search(recorder, lambda text, e=recorder: is_wanted(text, verb, e), rng, 400)
        if command is None or len(recorder.commands) > 60:
            continue
        after = [command, command, "look", "inventory"]
        texts = native.start(game), memoised.start_data(data, game)
        played, difference = differential.compare_play(native, memoised, texts, [*recorder.commands, *after])
        assert difference is None
        assert (command, True) in played
        found += 1
        if found == 2:
            return
    pytest.fail(f"no way to a {verb!r} command was found")


class Recorder:
    """An engine that notes what is played on it."""

    def __init__(self, engine):
        self.engine, self.commands = engine, []

    def step(self, command):
        self.commands.append(command)
        return self.engine.step(command)

    def admissible(self):
        return self.engine.admissible()


def is_wanted(command, verb, recorder):
    if verb != "examine held":
        return command.startswith(f"{verb} ")
    held = {recorder.engine.names.of[thing] for thing in recorder.engine.world.holding}
    changed = any(recorder.engine.world.flags[thing] for thing in recorder.engine.world.holding)
    return changed and command.removeprefix("examine ") in held


def test_two_receptacles_at_one_place_are_the_same(games, memoised):
    """Take from one, put into the other, look, take again: the texts of `look` have a memory."""
    tried = 0
    for name, data in games:
        game = parse_game(data, name)
        commands = shuffle_between_neighbours(game)
        if not commands:
            continue
        native = NativeEngine()
        texts = native.start(game), memoised.start_data(data, game)
        played, difference = differential.compare_play(native, memoised, texts, commands)
        assert difference is None
        assert sum(accepted for _, accepted in played) >= 6
        tried += 1
        if tried == 4:
            return
    pytest.fail("too few games with two receptacles at one place")


def shuffle_between_neighbours(game):
    """Commands that move an object between two receptacles at one place, or [] if there is no such object."""
    engine = NativeEngine()
    engine.start(game)
    of = engine.names.of
    at = collections.defaultdict(list)
    for receptacle in game.receptacles:
        at[receptacle.location].append(receptacle)
    for thing in game.things:
        for first in (
            r for r in game.receptacles if r.id in thing.receptacles and "pickupable" in thing.abilities
        ):
            for second in at[first.location]:
                if second is not first and (second.type, thing.type) in game.can_contain:
                    opening = [f"open {of[r.id]}" for r in (first, second) if r.openable]
                    take = f"take {of[thing.id]} from {of[first.id]}"
                    return [
                        *(f"go to {of[first.id]}", "look", *opening, take, "look"),
                        *(f"move {of[thing.id]} to {of[second.id]}", "look", f"go to {of[second.id]}"),
                        *(f"examine {of[second.id]}", f"take {of[thing.id]} from {of[second.id]}"),
                        *(f"move {of[thing.id]} to {of[first.id]}", "look", take, "inventory"),
                    ]
    return []


def test_a_difference_is_found(games, memoised, monkeypatch):
    """The comparison itself: a changed native text, command, or win shows up."""
    name, data = games[0]
    changes = {
        "text": ("step", lambda engine, command: ("Done.", True)),
        "admissible": ("admissible", lambda engine: ("look",)),
        "won": ("won", lambda engine: True),
    }
    for what, (method, replacement) in changes.items():
        with monkeypatch.context() as patch:
            patch.setattr(NativeEngine, method, replacement)
            result = differential.compare_game(data, name, memoised, walk=3, seed=0)
        assert result.difference is not None
        assert result.difference.what == what
        assert result.difference.game == name
    report = differential.summary([result])
    assert (report["games"], report["agreeing"], len(report["differences"])) == (1, 0, 1)


def test_command_line(games, original, shared_dir, tmp_path, capsys):
    folder = shared_dir / "data" / "alfworld" / "json_2.1.1" / "valid_unseen"
    arguments = ["--folder", str(folder), "--processes", "1", "--limit", "2", "--walk", "3", "--shuffle"]
    assert differential.main([*arguments, "--json", str(tmp_path / "out.json")]) == 0
    assert "2 of 2 games agree" in capsys.readouterr().out
    report = json.loads((tmp_path / "out.json").read_text())
    assert (report["games"], report["agreeing"], report["won"]) == (2, 2, 2)


def test_original_engine_errors(games, original, memoised):
    with pytest.raises(ValueError, match="no game was started"):
        _ = original.TextWorldEngine().game
    game = parse_game(games[0][1], games[0][0])
    with pytest.raises(ValueError, match="the installed alfworld has rules only for"):
        memoised.start(dataclasses.replace(game, text_version=TextVersion.PUT_IN_ON, has_help=False))


def test_reader_agrees_with_file(shared_dir, games):
    folder = shared_dir / "data" / "alfworld" / "json_2.1.1"
    path = sorted(folder.rglob("game.tw-pddl"))[0]
    assert load_game(path) == parse_game(read_game_file(path), games[0][0])
