"""How well it goes: curves of success on train and validation, and the evaluations behind them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from vict_jax.report.groups import Curve, Group, curve
from vict_jax.report.plots import Figure, Line
from vict_jax.report.read import Record
from vict_jax.report.tables import NONE, Cell, Table, chance, number, percent, points

_CURVES = (
    ("eval", "success", "Success on validation"),
    ("train", "success", "Success on train, as sampled"),
    ("eval", "score", "Mean score on validation"),
    ("train", "score", "Mean score on train, as sampled"),
)


def is_graded(groups: Sequence[Group]) -> bool:
    """Whether some score is neither 0 nor 1, so that the mean score says more than success."""
    rows = (
        row
        for group in groups
        for r in group.records
        for kind in ("eval", "train")
        for row in r.of_kind(kind)
    )
    return any(row["score"] != row["success"] for row in rows)


def figures(groups: Sequence[Group]) -> list[Figure]:
    """The curves: success, and the mean score where it differs."""
    shown = [one for one in _CURVES if one[1] == "success" or is_graded(groups)]
    return [_figure(groups, kind, name, title) for kind, name, title in shown]


def _figure(groups: Sequence[Group], kind: str, name: str, title: str) -> Figure:
    lines = []
    for number_, group in enumerate(groups):
        values, error = curve(group, kind, name), None
        if kind == "eval" and name == "success" and len(group.records) == 1 and values:
            error = _bars(group.records[0], values)
        lines.append(Line(group.label, values, number_, marked=kind == "eval", error=error))
    words = "; ".join(_in_words(line) for line in lines)
    return Figure(title, words, lines, percent=name == "success", whole=True)


def _bars(record: Record, values: Curve) -> np.ndarray:
    """Half a 95 % interval at each evaluation of a single run."""
    tasks = {row["update"]: row["tasks"] for row in record.of_kind("eval")}
    return np.array(
        [chance(share, tasks[u]) for u, share in zip(values.updates.tolist(), values.mean, strict=True)]
    )


def _in_words(line: Line) -> str:
    if not line.curve:
        return f"{line.label}: no values yet"
    updates, mean = line.curve.updates, line.curve.mean
    return f"{line.label}: {mean[0]:.3f} at update {updates[0]}, {mean[-1]:.3f} at update {updates[-1]}"


@dataclasses.dataclass(frozen=True)
class Best:
    """First, best (the earliest of equals) and last evaluation of a group: update and mean over its runs."""

    first: tuple[int, float]
    best: tuple[int, float]
    last: tuple[int, float]
    area: float


def best(group: Group, name: str = "success") -> Best | None:
    """Of the evaluations that all runs of the group have; None without any.

    `area` is the normalised area under the curve, by the trapezoidal rule: its mean over the updates.
    """
    values = curve(group, "eval", name)
    if not values:
        return None
    updates, mean = values.updates, values.mean
    at = int(np.argmax(mean))
    length = updates[-1] - updates[0]
    area = float(np.trapezoid(mean, updates) / length) if length else float(mean[0])
    first, top, last = ((int(updates[i]), float(mean[i])) for i in (0, at, -1))
    return Best(first, top, last, area)


def overview(groups: Sequence[Group]) -> Table:
    """First, best and last evaluation of every group."""
    graded = is_graded(groups)
    head = ["runs", "seeds", "first", "best", "at update", "last", "gain, points", "area under the curve"]
    rows: list[list[Cell]] = []
    for group in groups:
        found = best(group)
        if found is None:
            rows.append([group.label, str(len(group.records)), *[NONE] * (len(head) - 2)])
            continue
        shown = [_value(group, update) for update, _ in (found.first, found.best, found.last)]
        gain = points(found.last[1] - found.first[1])
        rows.append(
            [
                *(group.label, str(len(group.records)), shown[0], shown[1], str(found.best[0]), shown[2]),
                *(gain, percent(found.area)),
            ]
        )
        if graded and (score := best(group, "score")) is not None:
            rows.append(
                [
                    *("mean score", "", number(score.first[1]), number(score.best[1]), str(score.best[0])),
                    *(
                        number(score.last[1]),
                        f"{100 * (score.last[1] - score.first[1]):+.1f}",
                        number(score.area),
                    ),
                ]
            )
    return Table(head, rows, "lrrrrrrr")


def _value(group: Group, update: int) -> str:
    """Success at an evaluation, with the spread over seeds or the interval of chance."""
    values = curve(group, "eval", "success")
    at = int(np.flatnonzero(values.updates == update)[0])
    if values.std is not None:
        return f"{100 * values.mean[at]:.1f} ± {100 * values.std[at]:.1f} %"
    row = next(row for row in group.records[0].of_kind("eval") if row["update"] == update)
    return f"{100 * row['success']:.1f} ± {100 * chance(row['success'], row['tasks']):.1f} %"


def evaluations(groups: Sequence[Group]) -> Table:
    """Every evaluation of every run."""
    head = ["run", "seed", "update", "success", "mean score", "tasks", "steps", "lost"]
    rows: list[list[Cell]] = []
    for group in groups:
        for record in group.records:
            for row in record.of_kind("eval"):
                rows.append(
                    [
                        *(str(record.path), str(record.config.get("seed", NONE)), str(row["update"])),
                        *(percent(row["success"]), f"{row['score']:.3f}", number(row["tasks"])),
                        *(number(row.get("steps_mean")), number(row.get("lost"))),
                    ]
                )
    return Table(head, rows, "lrrrrrrr")


def separate(groups: Sequence[Group]) -> Table | None:
    """Evaluations made afterwards by `launch.evaluate`; None without any."""
    rows: list[list[Cell]] = [
        [
            *(str(record.path), str(one.get("split", NONE)), str(one["update"])),
            *(
                number(one.get("temperature")),
                percent(one["success"]),
                f"{one['score']:.3f}",
                number(one["tasks"]),
            ),
        ]
        for group in groups
        for record in group.records
        for one in record.evaluations.values()
    ]
    if not rows:
        return None
    return Table(["run", "split", "update", "temperature", "success", "mean score", "tasks"], rows, "llrrrrr")
