"""What can be read of a run directory, and what cannot.

A report is wanted most when something went wrong, so nothing here fails on a damaged file: what is whole is
kept, and each loss becomes a sentence in `Record.problems`.
"""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from vict_jax import proof_files
from vict_jax.metrics import RunError

Row = Mapping[str, Any]

# What a row must have to be shown at all; other values that are not as expected are left out one by one.
_NEEDED = {"eval": ("success", "score", "tasks"), "train": ("success", "score")}
_STEP = re.compile(r"step_(\d+)")
_LOGGED = re.compile(r"update_(\d+)")
_MOST_LISTED = 5


@dataclasses.dataclass(frozen=True)
class Record:
    """A run directory as far as it can be read.

    Attributes:
      config: nested, as in `config.json`; empty if unreadable. about: `run.json`, likewise.
      rows: kind -> rows of `metrics.jsonl`, by update. Numbers are finite floats or ints; None where the run
        wrote null for one that was not finite.
      evaluations: file name -> what `launch.evaluate` wrote.
      checkpoints: updates that have one. logged: updates whose proof log is whole.
      problems: what is damaged or missing, one sentence each. notes: what a run that is writing just now, or
        was killed, leaves unfinished.
    """

    path: pathlib.Path
    config: Mapping[str, Any]
    about: Mapping[str, Any]
    rows: Mapping[str, Sequence[Row]]
    evaluations: Mapping[str, Row]
    checkpoints: Sequence[int]
    logged: Sequence[int]
    problems: Sequence[str]
    notes: Sequence[str]

    def of_kind(self, kind: str) -> Sequence[Row]:
        """The rows of a kind; none if there are none."""
        return self.rows.get(kind, ())

    @property
    def updates(self) -> int:
        """The last update that has a row; 0 for none."""
        return max((row["update"] for row in self.of_kind("train")), default=0)

    def setting(self, section: str, key: str) -> Any:
        """A value of the config; None if the config cannot be read or lacks it."""
        values = self.config.get(section)
        return values.get(key) if isinstance(values, Mapping) else None


def read(path: pathlib.Path) -> Record:
    """Read a run directory.

    Raises:
      RunError: it is no directory, or holds neither a config nor metrics.
    """
    if not path.is_dir():
        raise RunError(f"--workdir={path} is no directory")
    if not any((path / name).exists() for name in ("config.json", "metrics.jsonl")):
        raise RunError(f"--workdir={path} holds no run (neither config.json nor metrics.jsonl in it)")
    problems: list[str] = []
    notes: list[str] = []
    return Record(
        path=path,
        config=_read_object(path / "config.json", problems, "what ran is not known"),
        about=_read_object(path / "run.json", problems, "versions, devices and data are not known"),
        rows=_read_rows(path / "metrics.jsonl", problems, notes),
        evaluations=_read_evaluations(path / "evaluations", problems),
        checkpoints=_checkpoints(path / "checkpoints" / "state"),
        logged=_logged(path, problems, notes),
        problems=problems,
        notes=notes,
    )


def _load(path: pathlib.Path) -> Any:
    """JSON of a file. Raises ValueError in every case of damage."""
    try:
        return json.loads(path.read_bytes().decode("utf-8"))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _read_object(path: pathlib.Path, problems: list[str], loss: str) -> Mapping[str, Any]:
    """A JSON object, or an empty one and a problem that says what is lost."""
    try:
        value = _load(path)
    except FileNotFoundError:
        problems.append(f"{path.name} is missing: {loss}.")
        return {}
    except (OSError, ValueError) as error:
        problems.append(f"{path.name} cannot be read ({error}): {loss}.")
        return {}
    if not isinstance(value, dict):
        problems.append(f"{path.name} holds a {type(value).__name__}, not an object: {loss}.")
        return {}
    return value


def _read_rows(path: pathlib.Path, problems: list[str], notes: list[str]) -> Mapping[str, Sequence[Row]]:
    """Rows by kind and update; of several of a kind and update all are kept (warm start: one an epoch)."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        problems.append(f"{path.name} cannot be read ({error.strerror}): there are no figures.")
        return {}
    rows: dict[str, list[Row]] = {}
    damaged: list[int] = []
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            row = _row(line)
        except (ValueError, RecursionError):
            damaged.append(number)
            continue
        needed = _NEEDED.get(row["kind"], ())
        wrong = {name for name in row if not _is_known(name, row[name])}
        if lost := (wrong & {"update"}) | {name for name in needed if not is_number(row[name])}:
            problems.append(f"{path.name}:{number} is left out: {_named(row, lost)}.")
            continue
        if wrong:
            problems.append(f"{path.name}:{number}, {_named(row, wrong)}: left out.")
        rows.setdefault(row["kind"], []).append({k: v for k, v in row.items() if k not in wrong})
    if damaged == [len(lines)]:  # without a line break behind it: cut off while it was written
        notes.append(f"The last line of {path.name} is cut off.")
    elif damaged:
        problems.append(f"{path.name}: {_lines(damaged)} damaged and left out.")
    for some in rows.values():
        some.sort(key=lambda row: row["update"])
    return rows


def _row(line: bytes) -> dict[str, Any]:
    """One row with its kind and update. Raises ValueError where it is none."""
    row = json.loads(line.decode("utf-8"))
    if not isinstance(row, dict) or not isinstance(row.get("kind"), str) or "update" not in row:
        raise ValueError("not a row")
    for name in _NEEDED.get(row["kind"], ()):
        row.setdefault(name, "missing")
    return row


def _is_known(name: str, value: Any) -> bool:
    """Whether a value is of the form that its name calls for."""
    if name == "update":
        return type(value) is int and 0 <= value < 2**31
    if name in ("kind", "about"):
        return isinstance(value, str)
    if name == "per_type":
        return isinstance(value, dict) and all(map(_is_pair, value.values()))
    if name == "score_per_type":
        return isinstance(value, dict) and all(map(is_number, value.values()))
    if name == "findings":
        return isinstance(value, list) and all(isinstance(one, dict) for one in value)
    return value is None or is_number(value)


def is_number(value: Any) -> bool:
    """A finite int or float that a float can hold."""
    if type(value) is int:
        return abs(value) < 2**53
    return type(value) is float and math.isfinite(value)


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(type(one) is int and one >= 0 for one in value)


def _named(row: Mapping[str, Any], names: Iterable[str]) -> str:
    shown = (f"{name} is {str(row[name])[:60]!r}" for name in sorted(names))
    return f"{row['kind']} row, " + ", ".join(shown)


def _lines(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:_MOST_LISTED]))
    more = f" and {len(numbers) - _MOST_LISTED} more" if len(numbers) > _MOST_LISTED else ""
    return f"line {shown} is" if len(numbers) == 1 else f"lines {shown}{more} are"


def _read_evaluations(folder: pathlib.Path, problems: list[str]) -> Mapping[str, Row]:
    """The files of `launch.evaluate`, by name. Those of agents are in folders of their own and not read."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        value = _read_object(path, problems, "this evaluation is left out")
        if not value:
            continue
        wrong = {name for name in ("update", "success", "score", "per_type", "tasks") if name not in value}
        wrong |= {name for name in value if name in _EVALUATION and not _is_known(name, value[name])}
        wrong |= {name for name in ("success", "score", "tasks") if not is_number(value.get(name))}
        if wrong:
            problems.append(
                f"evaluations/{path.name} is left out: {', '.join(sorted(wrong))} not as expected."
            )
        else:
            found[path.name] = value
    return found


_EVALUATION = ("update", "success", "score", "per_type", "score_per_type", "tasks", "about", "temperature")


def _checkpoints(folder: pathlib.Path) -> Sequence[int]:
    matches = (_STEP.fullmatch(path.name) for path in folder.glob("step_*"))
    return sorted(int(match[1]) for match in matches if match)


def _logged(workdir: pathlib.Path, problems: list[str], notes: list[str]) -> Sequence[int]:
    """Updates with a whole proof log: all four files, each with its proper end."""
    whole: list[set[int]] = []
    damaged: list[str] = []
    for folder, suffix in proof_files.KINDS:
        good = set()
        for path in sorted((workdir / folder).glob(f"update_*{suffix}")):
            match = _LOGGED.fullmatch(path.stem)
            if match and _ends_well(path):
                good.add(int(match[1]))
            elif match:
                damaged.append(f"{folder}/{path.name}")
        whole.append(good)
    complete = set.intersection(*whole)
    if damaged:
        more = f" and {len(damaged) - _MOST_LISTED} more" if len(damaged) > _MOST_LISTED else ""
        problems.append(f"Damaged files of the proof log: {', '.join(damaged[:_MOST_LISTED])}{more}.")
    if partial := sorted(set.union(*whole) - complete):
        newest = not damaged and partial == [max(complete, default=0) + 1]
        (notes if newest else problems).append(f"The proof log of {_updates(partial)} is not complete.")
    return sorted(complete)


def _updates(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:_MOST_LISTED]))
    more = f" and {len(numbers) - _MOST_LISTED} more" if len(numbers) > _MOST_LISTED else ""
    return f"update{'s' if len(numbers) > 1 else ''} {shown}{more}"


def _ends_well(path: pathlib.Path) -> bool:
    """Whether a file has the end of its format, which is written last."""
    if path.suffix == ".npz":
        return zipfile.is_zipfile(path)
    with open(path, "rb") as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - 4))
        return file.read() == b"PAR1"


def flat(config: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Dotted key -> value."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{where}{key}.")
        else:
            found[f"{where}{key}"] = value
    return found
