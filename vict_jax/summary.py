"""What a run shows at its end: the table of success per task type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def evaluation_table(split: str, evaluations: Mapping[str, Mapping[str, Any]]) -> str:
    """Table of evaluations of one split, with its heading; mean scores beside success where they differ.

    Args:
      evaluations: column title -> what `vict_jax.evaluate.evaluate` returned.
    """
    columns = {
        title: {kind: (solved, tasks) for kind, (solved, tasks) in one["per_type"].items()}
        for title, one in evaluations.items()
    }
    graded = any(is_graded(one) for one in evaluations.values())
    scores = {title: one["score_per_type"] for title, one in evaluations.items()} if graded else None
    about = next((f" ({one['about']})" for one in evaluations.values() if one["about"]), "")
    what = "success, mean score" if graded else "success"
    return f"{what} on {split}{about}\n{success_table(columns, scores)}"


def is_graded(evaluation: Mapping[str, Any]) -> bool:
    """Whether some score is neither 0 nor 1."""
    return bool(evaluation["score"] != evaluation["success"])


def success_table(
    columns: Mapping[str, Mapping[str, tuple[int, int]]],
    scores: Mapping[str, Mapping[str, float]] | None = None,
) -> str:
    """Text table of success per task type.

    Args:
      columns: column title -> task type -> (solved, tasks).
      scores: column title -> task type -> mean score over the same tasks, shown behind success; None: not.

    Returns:
      One line per task type and a last line for all, percentages with counts.
    """
    kinds = sorted({kind for column in columns.values() for kind in column})
    shown = dict.fromkeys(columns) if scores is None else scores
    rows = [["task type", *columns]]
    for kind in kinds:
        rows.append([kind, *(_cell(columns[title], shown[title], [kind]) for title in columns)])
    rows.append(["all", *(_cell(columns[title], shown[title], kinds) for title in columns)])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    rule = "-" * len(lines[0])
    return "\n".join([lines[0], rule, *lines[1:-1], rule, lines[-1]])


def _cell(
    column: Mapping[str, tuple[int, int]], scores: Mapping[str, float] | None, kinds: Sequence[str]
) -> str:
    """Success over the task types `kinds`, and their mean score."""
    present = {kind: column[kind] for kind in kinds if kind in column}
    solved, tasks = _total(present)
    if scores is None or not tasks:
        return _share(solved, tasks)
    mean = sum(scores[kind] * count for kind, (_, count) in present.items()) / tasks
    return f"{_share(solved, tasks)} {mean:.3f}"


def _total(column: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
    return sum(solved for solved, _ in column.values()), sum(tasks for _, tasks in column.values())


def _share(solved: int, tasks: int) -> str:
    return f"{100 * solved / tasks:5.1f} % ({solved}/{tasks})" if tasks else "-"


def success_rate(column: Mapping[str, tuple[int, int]]) -> float:
    """Share of solved tasks over all task types; 0 for no task."""
    solved, tasks = _total(column)
    return solved / tasks if tasks else 0.0


def result(before: Mapping[str, Any], after: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """The content of `summary.json`: both evaluations, their difference in points, and `more`."""
    gain = 100 * (after["success"] - before["success"])
    return {"before": dict(before), "after": dict(after), "gain_points": round(gain, 2), **more}
