"""Tables of the page, and numbers as they stand in them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

NONE = "–"


@dataclasses.dataclass(frozen=True)
class Tag:
    """A word in a box: `kind` is `good`, `warning`, `problem` or empty."""

    text: str
    kind: str = ""


Cell = str | Tag


@dataclasses.dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
      align: one letter a column, `l` or `r`.
      total: the last row sums the others up.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    align: str
    total: bool = False

    def __post_init__(self) -> None:
        for row in [self.align, *self.rows]:
            if len(row) != len(self.head):
                raise ValueError(f"align and every row must have the {len(self.head)} columns of {self.head}")


def percent(value: float | None) -> str:
    """A share as a percentage with one decimal."""
    return NONE if value is None else f"{100 * value:.1f} %"


def points(value: float | None) -> str:
    """A difference of shares in points, with its sign."""
    return NONE if value is None else f"{100 * value:+.1f}"


def number(value: float | None) -> str:
    """A number with three significant digits, or all digits of a whole one."""
    if value is None:
        return NONE
    return f"{value:.0f}" if value == int(value) and abs(value) < 1e6 else f"{value:.3g}"


def seconds(value: float) -> str:
    """A time in the unit that suits it."""
    if value < 1:
        return f"{1000 * value:.0f} ms" if value >= 0.001 else "< 1 ms"
    if value < 120:
        return f"{value:.1f} s"
    return f"{value / 60:.1f} min" if value < 7200 else f"{value / 3600:.1f} h"


def chance(share: float, tasks: int) -> float:
    """Half the width of a 95 % interval of a share, after Agresti and Coull (1998).

    Args:
      share: of `tasks` that were solved; `tasks` at least 1.
    """
    likely = (share * tasks + 2) / (tasks + 4)
    return 2 * math.sqrt(likely * (1 - likely) / (tasks + 4))
