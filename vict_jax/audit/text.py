"""Tables of text for people: aligned columns, safe and short cells."""

from __future__ import annotations

from collections.abc import Sequence

ELLIPSIS = "…"


def printable(text: str, width: int) -> str:
    """`text` with control characters escaped, cut to `width` characters with an ellipsis at its end."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return shown if len(shown) <= width else shown[: width - 1] + ELLIPSIS


def table(title: Sequence[str], rows: Sequence[Sequence[str]], *, align: str) -> str:
    """Columns of text under their titles, two blanks between them.

    Args:
      align: one letter a column, `l` or `r`.

    Raises:
      ValueError: a row or `align` has another length than the title.
    """
    cells = [list(title), *(list(row) for row in rows)]
    if odd := [row for row in [*cells, list(align)] if len(row) != len(title)]:
        raise ValueError(f"every row and align must have the {len(title)} columns of {list(title)}: {odd[0]}")
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if side == "l" else cell.rjust(width)
            for cell, width, side in zip(row, widths, align, strict=True)
        ).rstrip()
        for row in cells
    )


def share(value: float | None) -> str:
    """A share as a percentage; "-" for none."""
    return "-" if value is None else f"{100 * value:.1f} %"


def number(value: float | None) -> str:
    """A number with three significant digits; "-" for none."""
    return "-" if value is None else f"{value:.3g}"


def signed(value: float) -> str:
    """A number with its sign and three decimals; empty for exactly 0."""
    return f"{value:+.3f}" if value else ""
