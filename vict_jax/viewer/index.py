"""The list of all rollouts of a run: one short row each, enough to search, filter and choose.

An update is summarised once and again only when one of its files has changed, so that the viewer can follow
a run that is still writing.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from vict_jax.proof_files import KINDS, file_stem
from vict_jax.viewer import log

T = TypeVar("T")

_STEP_COLUMNS = (
    *("group", "rollout", "task_id", "task_type", "end", "score"),
    *("base", "correction", "taken", "valid"),
)
_ATOM_COLUMNS = ("group", "rollout", "task_id", "unusable", "cause", "rollout_cause")
# Of an atom that was switched off before credit looked at it.
SWITCHED_OFF = "switched_off"
# What every row has; texts are replaced by their place in a list when the index is sent.
_NUMBERS = ("group", "rollout", "steps", "score", "base", "best", "worst", "raised", "lowered")


@dataclasses.dataclass(frozen=True)
class UpdateSummary:
    """The rollouts of one update, and what of it is not readable.

    Attributes:
      signature: sizes and times of its files.
      columns: lists of one length, a value a rollout: its place, `steps`, `score` and `base` (None if not
        logged), largest and smallest correction (`best`, `worst`, 0 for none), numbers of steps with a
        positive and a negative one (`raised`, `lowered`), `task`, `type`, `end`, `cause`, and `atom_causes`,
        a tuple of texts.
    """

    update: int
    signature: tuple[tuple[int, int] | None, ...]
    columns: Mapping[str, list[Any]]
    problems: tuple[log.Problem, ...]


def signature(workdir: pathlib.Path, update: int) -> tuple[tuple[int, int] | None, ...]:
    """Size and time of change of each file of an update; None for one that is missing."""
    found: list[tuple[int, int] | None] = []
    for folder, suffix in KINDS:
        try:
            stat = (workdir / folder / f"{file_stem(update)}{suffix}").stat()
        except OSError:
            found.append(None)
        else:
            found.append((stat.st_size, stat.st_mtime_ns))
    return tuple(found)


def refresh(workdir: pathlib.Path, known: Mapping[int, UpdateSummary]) -> dict[int, UpdateSummary]:
    """Summaries of all updates, in order; of `known` those are kept whose files have not changed."""
    summaries = {}
    for update in log.found_updates(workdir):
        now = signature(workdir, update)
        old = known.get(update)
        same = old is not None and old.signature == now
        summaries[update] = old if same and old else summarise(workdir, update, now)
    return summaries


def attempt(
    read: Callable[[], T], problems: list[log.Problem], update: int, path: pathlib.PurePosixPath
) -> T | None:
    """What `read` returns; None, and an entry in `problems`, if the file is not readable."""
    try:
        return read()
    except log.UnreadableError as error:
        problems.append(log.Problem(update, str(path), str(error)))
        return None


def summarise(workdir: pathlib.Path, update: int, now: tuple[tuple[int, int] | None, ...]) -> UpdateSummary:
    """Read one update. `now` is its signature, taken before."""
    problems: list[log.Problem] = []

    def table(folder: str, columns: Iterable[str]) -> pa.Table | None:
        path = log.table_path(folder, update)
        return attempt(lambda: log.read_table(workdir, folder, update, list(columns)), problems, update, path)

    steps, atoms = table("rollouts", _STEP_COLUMNS), table("atoms", _ATOM_COLUMNS)
    table("proofs", ["group"])
    arrays = attempt(
        lambda: log.read_arrays(workdir, update, ["score", "rollout_mask"]),
        problems,
        update,
        log.arrays_path(update),
    )
    columns = _columns(steps, atoms, None if arrays is None else arrays["score"])
    return UpdateSummary(update, now, columns, tuple(problems))


def _grid(tables: Iterable[pa.Table | None], score: np.ndarray | None) -> tuple[int, int]:
    """Groups and their size."""
    groups, size = (0, 0) if score is None or score.ndim != 2 else score.shape
    for table in tables:
        if table is not None and table.num_rows:
            groups = max(groups, int(table["group"].to_numpy().max()) + 1)
            size = max(size, int(table["rollout"].to_numpy().max()) + 1)
    return groups, size


def _columns(
    steps: pa.Table | None, atoms: pa.Table | None, score: np.ndarray | None
) -> dict[str, list[Any]]:
    groups, size = _grid((steps, atoms), score)
    g, n = np.divmod(np.arange(groups * size), max(size, 1))
    columns: dict[str, list[Any]] = {"group": g.tolist(), "rollout": n.tolist()}
    columns |= _of_steps(steps, groups, size) | _of_atoms(atoms, groups, size)
    tasks = zip(columns["task"], columns.pop("atom_task"), strict=True)
    columns["task"] = _one_task_a_group([a or b for a, b in tasks], size)
    columns["type"] = _one_task_a_group(columns["type"], size)
    if score is not None and score.shape == (groups, size):
        for i, value in enumerate(score.ravel().tolist()):
            if columns["score"][i] is None and columns["cause"][i] is not None:
                columns["score"][i] = value
    return columns


def _one_task_a_group(texts: list[str], size: int) -> list[str]:
    """A rollout without rows of its own has the text of the others of its group."""
    known: dict[int, str] = {}
    for i, text in enumerate(texts):
        if text:
            known.setdefault(i // size, text)
    return [text or known.get(i // size, "") for i, text in enumerate(texts)]


def _of_steps(table: pa.Table | None, groups: int, size: int) -> dict[str, list[Any]]:
    count = groups * size
    numbers = {name: np.zeros(count, int) for name in ("steps", "raised", "lowered")}
    extremes = {name: np.zeros(count) for name in ("best", "worst")}
    floats: dict[str, list[Any]] = {"score": [None] * count, "base": [None] * count}
    texts = {name: [""] * count for name in ("task", "type", "end")}
    if table is not None and table.num_rows:
        at = table["group"].to_numpy() * size + table["rollout"].to_numpy()
        correction = np.nan_to_num(table["correction"].to_numpy(zero_copy_only=False).astype(float))
        np.add.at(numbers["steps"], at, 1)
        np.add.at(numbers["raised"], at, correction > 0)
        np.add.at(numbers["lowered"], at, correction < 0)
        np.maximum.at(extremes["best"], at, correction)
        np.minimum.at(extremes["worst"], at, correction)
        places, first = np.unique(at, return_index=True)
        for to, name in (("task", "task_id"), ("type", "task_type"), ("end", "end")):
            for place, value in zip(places.tolist(), table[name].take(first).to_pylist(), strict=True):
                texts[to][place] = value or ""
        for name, values in floats.items():
            for place, value in zip(places.tolist(), table[name].take(first).to_pylist(), strict=True):
                values[place] = value
    arrays = {name: values.tolist() for name, values in (numbers | extremes).items()}
    return {**arrays, **floats, **texts}


def _of_atoms(table: pa.Table | None, groups: int, size: int) -> dict[str, list[Any]]:
    """`cause` is None where no atom is logged: of a lost rollout."""
    cause: list[str | None] = [None] * (groups * size)
    tasks = [""] * len(cause)
    causes: list[dict[str, None]] = [{} for _ in cause]
    if table is not None:
        for row in table.to_pylist():
            i = row["group"] * size + row["rollout"]
            cause[i], tasks[i] = row["rollout_cause"] or "", row["task_id"] or ""
            if text := SWITCHED_OFF if row["unusable"] else row["cause"]:
                causes[i][text] = None
    return {"cause": cause, "atom_task": tasks, "atom_causes": [tuple(some) for some in causes]}


# --- what is sent ---------------------------------------------------------------------------------


class _Codes:
    """Texts in the order in which they came, and their places."""

    def __init__(self) -> None:
        self.places: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        return self.places.setdefault(text, len(self.places))


def finite(value: Any) -> Any:
    """A number that JSON has a form for; None in place of one that is not finite."""
    return None if isinstance(value, float) and not np.isfinite(value) else value


def to_json(summaries: Mapping[int, UpdateSummary]) -> dict[str, Any]:
    """All rows as columns, texts by their place in `texts`."""
    code = _Codes()
    rows: dict[str, list[Any]] = {name: [] for name in ("update", *_NUMBERS)}
    coded: dict[str, list[Any]] = {name: [] for name in ("task", "type", "end", "cause")}
    atom_causes: list[list[int]] = []
    for summary in summaries.values():
        rows["update"] += [summary.update] * len(summary.columns["group"])
        for name in _NUMBERS:
            rows[name] += map(finite, summary.columns[name])
        for name, values in coded.items():
            values += [None if text is None else code(text) for text in summary.columns[name]]
        atom_causes += [[code(text) for text in some] for some in summary.columns["atom_causes"]]
    return {
        "updates": list(summaries),
        "texts": list(code.places),
        "rows": {**rows, **coded, "atom_causes": atom_causes},
        "problems": [dataclasses.asdict(p) for summary in summaries.values() for p in summary.problems],
    }


def search(
    workdir: pathlib.Path, updates: Iterable[int], text: str
) -> tuple[list[tuple[int, int, int]], list[log.Problem]]:
    """(update, group, rollout) of the rollouts with `text` in a task, an action or an observation.

    Upper and lower case are the same. Returned, too, are the files that could not be searched.
    """
    found: list[tuple[int, int, int]] = []
    problems: list[log.Problem] = []
    columns = ["group", "rollout", "task_id", "task_type", "action", "observation"]
    for update in updates:
        path = log.table_path("rollouts", update)
        table = attempt(
            lambda update=update: log.read_table(workdir, "rollouts", update, columns),  # type: ignore[misc]
            problems,
            update,
            path,
        )
        if table is None or not table.num_rows:
            continue
        hits = np.zeros(table.num_rows, bool)
        for name in columns[2:]:
            matches = pc.match_substring(table[name], text, ignore_case=True)
            hits |= pc.fill_null(matches, False).to_numpy(zero_copy_only=False)
        places = {*zip(*(table[key].to_numpy()[hits].tolist() for key in ("group", "rollout")), strict=True)}
        found += [(update, g, n) for g, n in sorted(places)]
    return found, problems
