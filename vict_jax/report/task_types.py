"""Success on validation per task type."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from vict_jax.report.groups import Group
from vict_jax.report.read import Row
from vict_jax.report.success import best, is_graded
from vict_jax.report.tables import NONE, Cell, Table, percent, points


@dataclasses.dataclass(frozen=True)
class Count:
    """Tasks of a type: how many were solved, how many there were, and the sum of their scores."""

    solved: int = 0
    tasks: int = 0
    scores: float = 0.0

    def __add__(self, other: Count) -> Count:
        return Count(self.solved + other.solved, self.tasks + other.tasks, self.scores + other.scores)

    @property
    def share(self) -> float | None:
        """Solved tasks as a share; None for no task."""
        return self.solved / self.tasks if self.tasks else None


_Column = Mapping[str, Count]


def per_type(groups: Sequence[Group]) -> Table | None:
    """Success per task type at the first, best and last evaluation, and the change from first to last.

    Of several groups the last evaluation and the change alone. Tasks of several seeds are counted together.
    None without any evaluation.
    """
    graded, several = is_graded(groups), len(groups) > 1
    shown: list[tuple[str, _Column]] = []
    changes: list[tuple[str, _Column, _Column]] = []
    for group in groups:
        columns = _columns(group)
        if columns:
            titles = list(columns)
            if several:
                shown.append((f"{group.letter}, {titles[-1].split(', ')[-1]}", columns[titles[-1]]))
            else:
                shown += columns.items()
            changes.append((f"{group.letter} change".strip(), columns[titles[0]], columns[titles[-1]]))
    kinds = sorted({kind for _, column in shown for kind in column})
    if not kinds:
        return None
    rows: list[list[Cell]] = [
        [
            title,
            *(_cell(column, some, graded) for _, column in shown),
            *(_change(one, some) for one in changes),
        ]
        for title, some in [*((kind, [kind]) for kind in kinds), ("all", kinds)]
    ]
    head = ["task type", *(title for title, _ in shown), *(f"{title}, points" for title, *_ in changes)]
    return Table(head, rows, "l" + "r" * (len(head) - 1), total=True)


def last_per_type(group: Group) -> dict[str, float]:
    """Task type -> share solved at the last evaluation that all runs of a group have."""
    columns = list(_columns(group).values())
    return {kind: count.solved / count.tasks for kind, count in columns[-1].items()} if columns else {}


def _columns(group: Group) -> dict[str, _Column]:
    """Title -> counts of the first, best and last evaluation, in this order; equal ones are one column."""
    found = best(group)
    if found is None:
        return {}
    names: dict[int, list[str]] = {}
    for name, (update, _) in (("first", found.first), ("best", found.best), ("last", found.last)):
        names.setdefault(update, []).append(name)
    return {
        f"{' and '.join(some)}, update {update}": _counts(group, update)
        for update, some in sorted(names.items())
    }


def _counts(group: Group, update: int) -> _Column:
    """Task type -> its tasks at an evaluation, over the runs of a group."""
    sums: dict[str, Count] = {}
    for record in group.records:
        for row in record.of_kind("eval"):
            if row["update"] == update:
                for kind, count in _row_counts(row).items():
                    sums[kind] = sums.get(kind, Count()) + count
    return sums


def _row_counts(row: Row) -> _Column:
    scores = row.get("score_per_type", {})
    return {
        kind: Count(solved, tasks, scores.get(kind, solved / tasks) * tasks)
        for kind, (solved, tasks) in row.get("per_type", {}).items()
        if tasks
    }


def _sum(column: _Column, kinds: Sequence[str]) -> Count:
    return sum((column[kind] for kind in kinds if kind in column), Count())


def _cell(column: _Column, kinds: Sequence[str], graded: bool) -> str:
    count = _sum(column, kinds)
    if not count.tasks:
        return NONE
    score = f", score {count.scores / count.tasks:.3f}" if graded else ""
    return f"{percent(count.share)} ({count.solved}/{count.tasks}){score}"


def _change(change: tuple[str, _Column, _Column], kinds: Sequence[str]) -> str:
    before, after = (_sum(column, kinds).share for column in change[1:])
    return NONE if before is None or after is None else points(after - before)
