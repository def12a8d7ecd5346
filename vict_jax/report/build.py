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
from vict_jax.report import diagnostics, findings, headline, phases, plots, success, task_types
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
        seeds=any(len(group.records) > 1 for group in groups),
        warnings=findings.shared(records),
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
    drawer = _Drawer()
    stacks = [one for group in groups if (one := phases.stack(group)) is not None]
    return {
        "success": drawer.figures(success.figures(groups), legend=len(groups) > 1),
        "overview": success.overview(groups),
        "evaluations": success.evaluations(groups),
        "per_type": task_types.per_type(groups),
        "separate": success.separate(groups),
        "credit": drawer.figures(diagnostics.credit_figures(groups)),
        "credit_table": diagnostics.credit_table(groups),
        "causes": diagnostics.cause_table(groups),
        "phase_figures": drawer.figures(stacks, legend=True),
        "phase_tables": [(group, phases.table(group)) for group in groups if phases.curves(group)],
        "learning": drawer.figures(diagnostics.learning_figures(groups)),
        "rollouts": drawer.figures(diagnostics.rollout_figures(groups)),
        "legends": drawer.legends(groups, 3),
        "rollout_table": diagnostics.rollout_table(groups),
    }


class _Drawer:
    """Draws figures under names that are unique in the page; without matplotlib it draws none."""

    def __init__(self) -> None:
        self._number = 0

    def figures(self, some: Sequence[plots.Figure | plots.Stack], *, legend: bool = False) -> list[Drawn]:
        return [Drawn(one.title, self._draw(one, legend), one.words) for one in some]

    def legends(self, groups: Sequence[Group], count: int) -> list[markupsafe.Markup | None]:
        """The same legend for `count` sections; None where there is one group only."""
        labels = [group.label for group in groups]
        if len(groups) == 1 or not plots.available():
            return [None] * count
        return [plots.legend(labels, name=self._name()) for _ in range(count)]

    def _draw(self, one: plots.Figure | plots.Stack, legend: bool) -> markupsafe.Markup | None:
        return plots.draw(one, name=self._name(), legend=legend) if plots.available() else None

    def _name(self) -> str:
        self._number += 1
        return f"figure{self._number}"
