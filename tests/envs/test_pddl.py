"""Reading and writing ALFWorld games: files, folders, the archive, and everything that is refused."""

from __future__ import annotations

import json
import lzma
import os

import pytest

from envs.alfworld.dialect import Dialect
from envs.alfworld.game import TextVersion
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
from tests.envs.kitchen import make_kitchen


@pytest.fixture
def kitchen():
    return make_kitchen()


@pytest.fixture(scope="session")
def game_files(shared_dir):
    return sorted((shared_dir / "data" / "alfworld" / "json_2.1.1").rglob("game.tw-pddl"))


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
