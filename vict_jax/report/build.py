"""From run directories to `report.html`."""

from __future__ import annotations

import dataclasses
import datetime
import pathlib
from collections.abc import Sequence
from typing import Any

import markupsafe

from vict_jax.metrics import write_atomically
from vict_jax.pages.render import asset, environment, render
from vict_jax.report import diagnostics, findings, headline, phases, plots, success
from vict_jax.report.groups import Group, grouped
from vict_jax.report.read import Record, read
from vict_jax.report.what_ran import differing, members, what_ran

NAME = "report.html"


@dataclasses.dataclass(frozen=True)
class Drawn:
    """A figure of the page: its title, the picture (None without matplotlib) and what it says in words."""

    title: str
    picture: markupsafe.Markup | None
    words: str


def write_report(workdirs: Sequence[pathlib.Path], out: pathlib.Path | None = None) -> pathlib.Path:
    """Write the report on one or several runs, and return where it is.

    Args:
      workdirs: run directories, finished or not; each is read as far as it can be.
      out: the file; None is `report.html` in the first directory.

    Raises:
      RunError: one holds no run at all, or the disk is full.
      ValueError: no directory is given, or one twice.
    """
    if not workdirs:
        raise ValueError("--workdir=DIR is needed, the directory of a run (several times for a comparison)")
    resolved = [path.resolve() for path in workdirs]
    if twice := next((path for path in resolved if resolved.count(path) > 1), None):
        raise ValueError(f"--workdir={twice} is given twice; name each run once")
    page = report([read(path) for path in workdirs])
    path = workdirs[0] / NAME if out is None else out
    write_atomically(path, page.encode())
    return path


def report(records: Sequence[Record]) -> str:
    """The page on these runs."""
    groups = grouped(records)
    template = environment("vict_jax.report").get_template("report.html")
    return render(
        template,
        title=_title(groups),
        scripts=[asset("vict_jax.report", "report.js")],
        made=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        groups=groups,
        several=len(records) > 1,
        pictures=plots.available(),
        sentences=headline.sentences(groups),
        warnings=[(record, findings.warnings(record)) for record in records],
        problem=findings.PROBLEM,
        graded=success.is_graded(groups),
        **_sections(groups),
        ran=[what_ran(record) for record in records],
        members=members(groups) if len(records) > 1 else None,
        differing=differing(groups),
    )


def _title(groups: Sequence[Group]) -> str:
    if len(groups) > 1:
        return "Comparison: " + ", ".join(group.label for group in groups)
    return f"Run report: {groups[0].label}"


def _sections(groups: Sequence[Group]) -> dict[str, Any]:
    """Figures and tables of every section."""
    drawer = _Drawer(groups)
    stacks = [one for group in groups if (one := phases.stack(group)) is not None]
    return {
        "success": drawer.lines(success.figures(groups)),
        "overview": success.overview(groups),
        "evaluations": success.evaluations(groups),
        "per_type": success.per_type(groups),
        "separate": success.separate(groups),
        "credit": drawer.lines(diagnostics.credit_figures(groups)),
        "credit_table": diagnostics.credit_table(groups),
        "causes": diagnostics.cause_table(groups),
        "phase_figures": drawer.stacks(stacks),
        "phase_tables": [(group, phases.table(group)) for group in groups if phases.curves(group)],
        "learning": drawer.lines(diagnostics.learning_figures(groups)),
        "rollouts": drawer.lines(diagnostics.rollout_figures(groups)),
        "rollout_table": diagnostics.rollout_table(groups),
    }


class _Drawer:
    """Draws figures under names that are unique in the page."""

    def __init__(self, groups: Sequence[Group]):
        self._number = 0
        self._legend = len(groups) > 1

    def lines(self, figures: Sequence[plots.Figure]) -> list[Drawn]:
        return [self._draw(figure, legend=self._legend) for figure in figures]

    def stacks(self, figures: Sequence[plots.Stack]) -> list[Drawn]:
        return [self._draw(figure, legend=True) for figure in figures]

    def _draw(self, figure: plots.Figure | plots.Stack, *, legend: bool) -> Drawn:
        self._number += 1
        picture = (
            plots.draw(figure, name=f"figure{self._number}", legend=legend) if plots.available() else None
        )
        return Drawn(figure.title, picture, figure.words)
