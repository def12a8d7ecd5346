"""Reader of ALFWorld's game files (`game.tw-pddl`) and of the archive that holds all of them.

A game file is one JSON object with a PDDL domain, a text grammar, a PDDL problem and a walkthrough. The
engine has the domain's and the grammar's rules in its own code, so both are compared with the two
published versions, part by part, and anything else is refused.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import lzma
import pathlib
import re
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

from envs.alfworld.dialect import detect_dialect
from envs.alfworld.game import Game
from envs.alfworld.problem import parse_problem

SPLITS = ("train", "valid_seen", "valid_unseen", "valid_train")
GAME_FILE = "game.tw-pddl"
ARCHIVE_NAME = "alfworld_tw_games.jsonl.xz"

_TASK = re.compile(r'"Your task is to: ([^"]*)"')
_RESERVED = frozenset(';|<>[]#{}"\\')
_SEARCHED_TAIL = 8192


@dataclasses.dataclass(frozen=True)
class GameSource:
    """Where a game is.

    Attributes:
      id: `<split>/<task folder>/<trial>`, unique over the data set.
      task_type: one of `TASK_TYPES`.
      split: one of `SPLITS`.
      source: what `load_game` takes: a file, or `<archive>#<path in the archive>`.
    """

    id: str
    task_type: str
    split: str
    source: str


def load_game(source: str | pathlib.Path) -> Game:
    """Read one game from a file, from the folder that holds `game.tw-pddl`, or from `ARCHIVE#PATH`.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: it is not a complete ALFWorld game; the message names the file and the fault.
    """
    archive, _, member = str(source).rpartition("#")
    if archive.endswith(".xz"):
        return parse_game(_archive_member(archive, member), game_id(pathlib.PurePosixPath(member)))
    path = pathlib.Path(source)
    path = path / GAME_FILE if path.is_dir() else path
    if not path.is_file():
        raise FileNotFoundError(f"no ALFWorld game at {path}: expected a {GAME_FILE} file or its folder")
    return parse_game(read_game_file(path), game_id(path.parent))


def read_game_file(path: pathlib.Path) -> dict[str, Any]:
    """The JSON object of a game file; ValueError names the file if it is not one."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(
            f"{path} is not valid JSON ({error}): it is truncated or damaged, copy or unpack it again"
        ) from error
    if not isinstance(data, dict):
        raise ValueError(f"{path} must hold a JSON object, got {type(data).__name__}")
    return data


def game_id(folder: pathlib.PurePath) -> str:
    """`<split>/<task folder>/<trial>` of a game's folder."""
    return "/".join(folder.parts[-3:])


def parse_game(data: Mapping[str, Any], name: str) -> Game:
    """Build a `Game` from the object in a game file.

    Args:
      data: keys `pddl_domain`, `grammar`, `pddl_problem` and, in newer data, `walkthrough`.
      name: the game's id, used in every error message.

    Raises:
      ValueError: a key is missing, the domain or grammar is none of the known ones, or the problem
        is not an ALFWorld problem.
    """
    for key in ("pddl_domain", "grammar", "pddl_problem"):
        if not isinstance(data.get(key), str):
            raise ValueError(f"game {name!r}: key {key!r} must be a text, got {type(data.get(key)).__name__}")
    try:
        sentence, grammar = _task_sentence(data["grammar"])
        dialect = detect_dialect(data["pddl_domain"], grammar)
        walkthrough = tuple(data.get("walkthrough") or ())
        return parse_problem(data["pddl_problem"], name, sentence, dialect, walkthrough)
    except ValueError as error:
        raise ValueError(f"game {name!r}: {error}") from error


def read_archive(path: str | pathlib.Path, split: str | None = None) -> Iterator[tuple[str, Game]]:
    """Every game of the archive (or of one split of it) with its path, in the archive's order."""
    for member, data in read_archive_raw(path, split):
        yield member, parse_game(data, game_id(pathlib.PurePosixPath(member)))


def read_archive_raw(
    path: str | pathlib.Path, split: str | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """As `read_archive`, but each game as the object its `game.tw-pddl` holds."""
    _check_split(split)
    with _open_archive(path) as lines:
        shared = _shared_part(path, next(lines, ""))
        for line in lines:
            member = _member_name(path, line)
            if split is None or _split_of(member) == split:
                yield member, _member_data(shared, _archive_json(path, line))


def list_games(data_dir: str | pathlib.Path, split: str) -> tuple[GameSource, ...]:
    """The solvable games of a split, ordered by id.

    Args:
      data_dir: a folder with the official layout (`json_2.1.1/<split>/<task>/<trial>/game.tw-pddl`), a
        folder with the archive, or the archive file itself.
      split: one of `SPLITS`.

    Raises:
      FileNotFoundError: the folder, or ALFWorld data in it, does not exist.
      ValueError: the split is unknown or has no games there.
    """
    _check_split(split)
    root = pathlib.Path(data_dir)
    if not root.exists():
        raise FileNotFoundError(f"data_dir {str(root)!r} does not exist")
    if root.is_file():
        games = _archive_games(root, split)
    elif (root / "json_2.1.1").is_dir():
        games = _folder_games(root / "json_2.1.1" / split, split)
    elif (root / ARCHIVE_NAME).is_file():
        games = _archive_games(root / ARCHIVE_NAME, split)
    else:
        raise FileNotFoundError(f"data_dir {str(root)!r} holds neither json_2.1.1/ nor {ARCHIVE_NAME}")
    if not games:
        raise ValueError(f"data_dir {str(root)!r} has no games of split {split!r}")
    return tuple(sorted(games, key=lambda game: game.id))


def _task_sentence(grammar: str) -> tuple[str, str]:
    """The task sentence and the grammar with the sentence taken out."""
    found = _TASK.search(grammar)
    if found is None:
        raise ValueError('the grammar has no "Your task is to: ..." sentence')
    odd = _RESERVED & set(found[1])
    if odd:
        raise ValueError(f"the task sentence {found[1]!r} has reserved characters {sorted(odd)}")
    return found[1], grammar[: found.start(1)] + grammar[found.end(1) :]


# Lists of games


def _check_split(split: str | None) -> None:
    if split is not None and split not in SPLITS:
        raise ValueError(f"split {split!r} is unknown; known: {', '.join(SPLITS)}")


def _split_of(member: str) -> str:
    return member.split("/")[1]


def _folder_games(folder: pathlib.Path, split: str) -> list[GameSource]:
    """Games under a split's folder; as in ALFWorld, without movable, sliced and unsolvable ones."""
    games = []
    for path in folder.glob(f"*/*/{GAME_FILE}"):
        task = path.parent.parent.name
        if "movable" not in task and "Sliced" not in task and _solvable(path):
            games.append(GameSource(game_id(path.parent), task.split("-")[0], split, str(path)))
    return games


def _solvable(path: pathlib.Path) -> bool:
    """Whether the game is marked solvable. The mark is looked for at the end, where it usually is."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _SEARCHED_TAIL))
        mark = re.search(rb'"solvable":\s*(true|false)', file.read())
    if mark is not None:
        return mark[1] == b"true"
    return read_game_file(path).get("solvable") is True


def _archive_games(path: pathlib.Path, split: str) -> list[GameSource]:
    return [
        GameSource(
            id=game_id(pathlib.PurePosixPath(member)),
            task_type=member.split("/")[2].split("-")[0],
            split=split,
            source=f"{path}#{member}",
        )
        for member in _archive_index(str(path))[1]
        if _split_of(member) == split
    ]


def _archive_member(archive: str, member: str) -> dict[str, Any]:
    shared, index = _archive_index(archive)
    if member not in index:
        raise ValueError(f"archive {archive} has no game {member!r}; it has {len(index)} games")
    return _member_data(shared, json.loads(zlib.decompress(index[member])))


@functools.lru_cache(maxsize=1)
def _archive_index(archive: str) -> tuple[dict[str, str], dict[str, bytes]]:
    """The shared part and every line of an archive, compressed; about 40 MB and seconds, once a process."""
    with _open_archive(archive) as lines:
        shared = _shared_part(archive, next(lines, ""))
        return shared, {_member_name(archive, line): zlib.compress(line.encode(), 1) for line in lines}


@contextlib.contextmanager
def _open_archive(path: str | pathlib.Path) -> Iterator[Iterator[str]]:
    """The lines of an archive; a damaged or truncated file raises a ValueError that names it."""
    if not pathlib.Path(path).is_file():
        raise FileNotFoundError(f"no archive of ALFWorld games at {path}")
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        try:
            yield iter(lines)
        except (lzma.LZMAError, EOFError, UnicodeDecodeError) as error:
            raise ValueError(f"archive {path} is truncated or damaged ({error}); copy it again") from error


def _archive_json(path: str | pathlib.Path, line: str) -> dict[str, Any]:
    try:
        return json.loads(line)
    except ValueError as error:
        raise ValueError(f"archive {path} has a line that is not JSON ({error}): {line[:80]!r}") from error


def _shared_part(path: str | pathlib.Path, line: str) -> dict[str, str]:
    shared = _archive_json(path, line)
    missing = [key for key in ("pddl_domain", "grammar") if key not in shared]
    if missing:
        raise ValueError(
            f"archive {path}: the first line must hold pddl_domain and grammar, missing {missing}"
        )
    return shared


def _member_name(path: str | pathlib.Path, line: str) -> str:
    found = re.match(r'\{"path": "([^"/]+/[^"/]+/[^"/]+/[^"/]+)"', line)
    if found is None:
        raise ValueError(
            f"archive {path}: a game's line must begin with its path (a/split/task/trial): {line[:80]!r}"
        )
    return found[1]


def _member_data(shared: Mapping[str, str], member: Mapping[str, Any]) -> dict[str, Any]:
    """The object of a game's `game.tw-pddl`: its own problem with the shared domain and grammar."""
    sentence = f"Your task is to: {member['task']}"
    return {
        "pddl_domain": shared["pddl_domain"],
        "grammar": shared["grammar"].replace("Your task is to: UNKNOWN GOAL", sentence, 1),
        "pddl_problem": member["pddl_problem"],
        "solvable": member["solvable"],
        "walkthrough": member["walkthrough"],
    }
