"""Reader of ALFWorld's game files (`game.tw-pddl`) and of the archive that holds all of them.

A game file is one JSON object with a PDDL domain, a text grammar, a PDDL problem and a walkthrough. The
engine has the domain's and the grammar's rules in its own code, so both are compared with the two
published versions, part by part, and anything else is refused.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
import lzma
import pathlib
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from envs.alfworld.dialect import Dialect, detect_dialect
from envs.alfworld.game import ABILITIES, FLAGS, Formula, Game, Receptacle, Thing

SPLITS = ("train", "valid_seen", "valid_unseen", "valid_train")
GAME_FILE = "game.tw-pddl"
ARCHIVE_NAME = "alfworld_tw_games.jsonl.xz"

# Predicates a problem's initial state may use, with their number of arguments.
_ARITY = dict.fromkeys((*ABILITIES, *FLAGS, "openable", "opened"), 1) | dict.fromkeys(
    (
        "receptacletype",
        "objecttype",
        "cancontain",
        "atlocation",
        "receptacleatlocation",
        "objectatlocation",
        "inreceptacle",
        "inreceptacleobject",
    ),
    2,
)
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
    archive, separator, member = str(source).rpartition("#")
    if separator:
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
        return _parse_problem(data, name, sentence, dialect)
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


def parse_formula(text: str) -> Formula:
    """Parse one parenthesised PDDL expression into nested tuples of lower-case words."""
    stack: list[list[Any]] = [[]]
    for token in re.findall(r"[()]|[^\s()]+", text.lower()):
        if token == "(":
            stack.append([])
        elif token != ")":
            stack[-1].append(token)
        elif len(stack) == 1:
            raise ValueError(f"unbalanced ')' in PDDL: {text[:80]!r}")
        else:
            closed = tuple(stack.pop())
            stack[-1].append(closed)
    if len(stack) != 1 or len(stack[0]) != 1 or not isinstance(stack[0][0], tuple):
        raise ValueError(f"expected one balanced PDDL expression, got {text[:80]!r}")
    return stack[0][0]


def goal_task_type(goal: Formula) -> str:
    """The task type whose goal this is, from the predicates in it."""
    heads = collections.Counter(_heads(goal))
    for predicate, task_type in (
        ("istoggled", "look_at_obj_in_light"),
        ("isclean", "pick_clean_then_place_in_recep"),
        ("ishot", "pick_heat_then_place_in_recep"),
        ("iscool", "pick_cool_then_place_in_recep"),
    ):
        if heads[predicate]:
            return task_type
    return "pick_two_obj_and_place" if heads["inreceptacle"] > 1 else "pick_and_place_simple"


# Problem


def _task_sentence(grammar: str) -> tuple[str, str]:
    """The task sentence and the grammar with the sentence taken out."""
    found = _TASK.search(grammar)
    if found is None:
        raise ValueError('the grammar has no "Your task is to: ..." sentence')
    odd = _RESERVED & set(found[1])
    if odd:
        raise ValueError(f"the task sentence {found[1]!r} has reserved characters {sorted(odd)}")
    return found[1], grammar[: found.start(1)] + grammar[found.end(1) :]


def _parse_problem(data: Mapping[str, Any], name: str, sentence: str, dialect: Dialect) -> Game:
    objects, init, goal_text = _sections(data["pddl_problem"])
    kinds = _typed_names(objects)
    facts = _facts(init)
    (agent_location,) = (location for _, location in facts["atlocation"])
    goal = parse_formula(goal_text)
    return Game(
        id=name,
        task_type=goal_task_type(goal),
        sentence=sentence,
        text_version=dialect.text_version,
        has_help=dialect.has_help,
        receptacles=_receptacles(facts, kinds),
        things=_things(facts, kinds),
        locations=tuple(entity for entity, kind in kinds.items() if kind == "location"),
        can_contain=frozenset(
            (r.removesuffix("type"), o.removesuffix("type")) for r, o in facts["cancontain"]
        ),
        agent_location=agent_location,
        goal=goal,
        walkthrough=tuple(data.get("walkthrough") or ()),
    )


def _sections(problem: str) -> tuple[str, str, str]:
    """The texts of the objects, the initial state and the goal formula, lower case, comments removed."""
    text = re.sub(r";[^\n]*", "", problem).lower() if ";" in problem else problem.lower()
    starts = [text.find(marker) for marker in ("(:objects", "(:init", "(:goal")]
    if -1 in starts or starts != sorted(starts):
        raise ValueError("pddl_problem must have (:objects, (:init and (:goal, in this order")
    if text.count("(") != text.count(")"):
        raise ValueError("pddl_problem has unbalanced parentheses: it is truncated or damaged")
    objects, init, goal = starts
    tail = text[goal + len("(:goal") :].rstrip()
    # Two closing parentheses follow the formula: of the goal and of the problem.
    formula = re.sub(r"\)\s*\)$", "", tail)
    return text[objects + len("(:objects") : init], text[init + len("(:init") : goal], formula


def _typed_names(section: str) -> dict[str, str]:
    """A PDDL typed list (`a b - kind c - kind`) as name -> kind."""
    kinds, names = {}, []
    words = iter(section.replace(")", " ").split())
    for word in words:
        if word == "-":
            kind = next(words, "")
            kinds.update(dict.fromkeys(names, kind))
            names = []
        else:
            names.append(word)
    return kinds


def _facts(section: str) -> dict[str, dict[tuple[str, ...], None]]:
    """Predicate -> argument tuples, each once, in the order of the source."""
    facts: dict[str, dict[tuple[str, ...], None]] = {predicate: {} for predicate in _ARITY}
    for text in re.findall(r"\(([^()]*)\)", section):
        predicate, *arguments = text.split()
        if predicate not in _ARITY:
            raise ValueError(f"unknown fact ({text.strip()}); known predicates: {sorted(_ARITY)}")
        if len(arguments) != _ARITY[predicate]:
            raise ValueError(f"fact ({text.strip()}) must have {_ARITY[predicate]} arguments")
        facts[predicate][tuple(arguments)] = None
    if len(facts["atlocation"]) != 1:
        raise ValueError(f"the agent must start at one location, got {list(facts['atlocation'])}")
    return facts


def _pairs(facts: Iterable[tuple[str, ...]]) -> dict[str, list[str]]:
    """First argument -> second arguments."""
    pairs: dict[str, list[str]] = {}
    for first, second in facts:
        pairs.setdefault(first, []).append(second)
    return pairs


def _receptacles(facts: Mapping[str, Any], kinds: Mapping[str, str]) -> tuple[Receptacle, ...]:
    types, places = _pairs(facts["receptacletype"]), _pairs(facts["receptacleatlocation"])
    inside = {receptacle for _, receptacle in facts["inreceptacle"]}
    odd = [r for r in {*types, *places, *inside} if len(types.get(r, ())) != 1 or len(places.get(r, ())) != 1]
    if odd:
        raise ValueError(f"receptacles must have one type and one location each; not so: {sorted(odd)}")
    return tuple(
        Receptacle(
            id=entity,
            type=types[entity][0].removesuffix("type"),
            location=places[entity][0],
            openable=(entity,) in facts["openable"],
            opened=(entity,) in facts["opened"],
        )
        for entity in kinds
        if entity in types
    )


def _things(facts: Mapping[str, Any], kinds: Mapping[str, str]) -> tuple[Thing, ...]:
    """The objects that occur in a fact; those only declared cannot be met and have no name."""
    types, inside = _pairs(facts["objecttype"]), _pairs(facts["inreceptacle"])
    places, nested = _pairs(facts["objectatlocation"]), _pairs(facts["inreceptacleobject"])
    abilities = _words(facts, ABILITIES)
    flags = _words(facts, FLAGS)
    known = {*types, *inside, *places, *nested, *abilities, *flags}
    known.update(outer for outers in nested.values() for outer in outers)
    undeclared = sorted(entity for entity in known if kinds.get(entity) != "object")
    if undeclared:
        raise ValueError(f"facts about objects that are not declared as object: {undeclared}")
    several = sorted(entity for entity, names in types.items() if len(names) > 1)
    if several:
        raise ValueError(f"objects with more than one type: {several}")
    return tuple(
        Thing(
            id=entity,
            type=types.get(entity, [""])[0].removesuffix("type"),
            receptacles=tuple(inside.get(entity, ())),
            locations=tuple(places.get(entity, ())),
            abilities=frozenset(abilities.get(entity, ())),
            flags=frozenset(flags.get(entity, ())),
            inside=tuple(nested.get(entity, ())),
        )
        for entity in kinds
        if entity in known
    )


def _words(facts: Mapping[str, Any], table: Mapping[str, str]) -> dict[str, list[str]]:
    """Object -> the words of `table` whose predicate holds for it."""
    words: dict[str, list[str]] = {}
    for predicate, word in table.items():
        for (entity,) in facts[predicate]:
            words.setdefault(entity, []).append(word)
    return words


def _heads(formula: Formula) -> Iterator[str]:
    if isinstance(formula[0], str):
        yield formula[0]
    for part in formula:
        if isinstance(part, tuple):
            yield from _heads(part)


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


class _open_archive:
    """Lines of an archive; a damaged or truncated file raises a ValueError that names it."""

    def __init__(self, path: str | pathlib.Path) -> None:
        if not pathlib.Path(path).is_file():
            raise FileNotFoundError(f"no archive of ALFWorld games at {path}")
        self._path = path
        self._file = lzma.open(path, "rt", encoding="utf-8")

    def __enter__(self) -> Iterator[str]:
        return self._lines()

    def __exit__(self, *exception: object) -> None:
        self._file.close()

    def _lines(self) -> Iterator[str]:
        try:
            yield from self._file
        except (lzma.LZMAError, EOFError, UnicodeDecodeError) as error:
            raise ValueError(
                f"archive {self._path} is truncated or damaged ({error}); copy it again"
            ) from error


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
