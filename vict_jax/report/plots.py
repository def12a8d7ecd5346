"""Small figures as SVG inside the page: text stays text, colours follow the page, shapes tell lines apart.

Drawn by matplotlib without pyplot, so that nothing global is left behind. Every group of runs has a colour, a
line style and a marker, and the same in every figure.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import io
import re
import warnings
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from typing import Any

import markupsafe
import numpy as np

from vict_jax.pages.render import visible
from vict_jax.report.groups import Curve

_SVG = "http://www.w3.org/2000/svg"
_XLINK = "http://www.w3.org/1999/xlink"
_SIZE, _WIDE = (4.3, 2.7), (7.4, 2.7)  # inches; the page scales them
# Colours that matplotlib draws with, each standing for one of the page's.
_INK, _GRID, _SPAN = "#010101", "#020202", "#030303"
_COLOURS = tuple(f"#0{number}0000" for number in range(1, 9))
_PAGE = {_INK: "currentColor", _GRID: "var(--line)", _SPAN: "var(--muted)"}
_PAGE |= {colour: f"var(--series-{number})" for number, colour in enumerate(_COLOURS, 1)}
_STYLES = ("-", "--", "-.", ":")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_HATCHES = ("", "///", "\\\\\\", "...", "xx", "--", "||", "++")
# From this many updates on, curves that jump from update to update are also shown as running means.
SMOOTHED_FROM = 20
_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "report",
    "text.parse_math": False,
    "font.size": 9,
    "font.family": ["DejaVu Sans"],
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "hatch.linewidth": 0.6,
    "axes.linewidth": 0.7,
}


@dataclasses.dataclass(frozen=True)
class Line:
    """One line of a figure: the runs thin, their mean thick, of several with a band of one deviation.

    Attributes:
      label: in the legend. style: number of its colour, line style and marker.
      marked: of few updates, each with a marker; else the mean and band of many are smoothed.
      error: f64[U] or None, half the height of a bar at each update.
    """

    label: str
    curve: Curve
    style: int
    marked: bool = False
    error: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class Figure:
    """One figure: its title and what it says in words, for those who do not see it.

    Attributes:
      percent: the values are shares. span: (low, high), drawn as a hatched band: the paper's range.
      whole: show the axis from 0 to 1.
    """

    title: str
    words: str
    lines: Sequence[Line]
    percent: bool = False
    span: tuple[float, float] | None = None
    whole: bool = False


@dataclasses.dataclass(frozen=True)
class Stack:
    """Shares that add up to 1 at each update: `values` f64[K, U] of `names`."""

    title: str
    words: str
    updates: np.ndarray
    names: Sequence[str]
    values: np.ndarray


def smoothed(curve: Curve) -> Curve:
    """Running means of every run over a tenth of the updates, shorter at both ends.

    Returns:
      The curve of the means; below `SMOOTHED_FROM` updates the curve as it is.
    """
    count = len(curve.updates)
    if count < SMOOTHED_FROM:
        return curve
    half, index = max(1, count // 20), np.arange(count)
    reach = np.minimum(half, np.minimum(index, count - 1 - index))  # the same to both sides
    sums = np.concatenate([np.zeros((len(curve.values), 1)), np.cumsum(curve.values, axis=1)], axis=1)
    means = (sums[:, index + reach + 1] - sums[:, index - reach]) / (2 * reach + 1)
    return Curve(curve.updates, means)


def available() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def draw(figure: Figure | Stack, *, name: str, legend: bool) -> markupsafe.Markup:
    """The figure as an `<svg>` element.

    Args:
      name: unique in the page; the ids inside the element begin with it.
      legend: put the labels of its lines into it.
    """
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure as Canvas
    from matplotlib.ticker import MaxNLocator

    with matplotlib.rc_context(_SETTINGS):
        wide = isinstance(figure, Stack)
        canvas = Canvas(figsize=_WIDE if wide else _SIZE)
        FigureCanvasSVG(canvas)
        axis = canvas.add_axes((0.07, 0.17, 0.66, 0.79) if wide else (0.14, 0.17, 0.83, 0.79))
        axis.patch.set_visible(False)
        if isinstance(figure, Stack):
            _stack(axis, figure)
        else:
            _lines(axis, figure)
        axis.set_xlabel("update", labelpad=2)
        axis.yaxis.set_major_locator(MaxNLocator(nbins=6))
        axis.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, steps=[1, 2, 5, 10]))
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(color=_GRID, linewidth=0.7)
        axis.set_axisbelow(True)
        if legend:
            _legend(axis, beside=wide)
        return _saved(canvas, f"{figure.title}. {figure.words}", name)


def _saved(canvas: Any, words: str, name: str) -> markupsafe.Markup:
    sink = io.StringIO()
    with warnings.catch_warnings():
        # It measures texts with a font that lacks some scripts; the browser that shows them has others.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        canvas.savefig(sink, format="svg", transparent=True)
    return _inline(sink.getvalue(), words, name)


def _look(style: int) -> dict[str, Any]:
    """How the line of a group is drawn."""
    return {
        "color": _COLOURS[style % len(_COLOURS)],
        "linestyle": _STYLES[style % len(_STYLES)],
        "marker": _MARKERS[style % len(_MARKERS)],
        "markersize": 4,
        "linewidth": 1.6,
    }


def legend(labels: Sequence[str], *, name: str) -> markupsafe.Markup:
    """A strip with the colour, line style and marker of each group, for figures without a legend."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure as Canvas
    from matplotlib.lines import Line2D

    with matplotlib.rc_context(_SETTINGS):
        columns = 2
        canvas = Canvas(figsize=(_WIDE[0], 0.1 + 0.22 * -(-len(labels) // columns)))
        FigureCanvasSVG(canvas)
        handles = [Line2D([], [], **_look(style)) for style in range(len(labels))]
        shown = [visible(label) for label in labels]
        canvas.legend(handles, shown, loc="center left", ncols=columns, frameon=False, handlelength=3.6)
        return _saved(canvas, f"Legend: {', '.join(labels)}", name)


def _legend(axis: Any, *, beside: bool) -> None:
    """Samples of line style, marker and hatching with their labels, inside the axes or beside them."""
    handles, labels = axis.get_legend_handles_labels()
    if not handles:
        return
    if beside:  # a stack: in the order in which the areas lie
        place = {"loc": "center left", "bbox_to_anchor": (1.01, 0.5), "reverse": True}
        axis.legend(handles, labels, frameon=False, fontsize=9, handlelength=3, handleheight=1.8, **place)
    else:
        axis.legend(handles, labels, frameon=False, fontsize=8, loc="best", handlelength=3.2)


def _lines(axis: Any, figure: Figure) -> None:
    from matplotlib.ticker import PercentFormatter

    if figure.span is not None:
        low, high = _thick(figure.span)
        axis.axhspan(low, high, facecolor="none", edgecolor=_SPAN, hatch="////", linewidth=0.6, alpha=0.7)
        axis.text(0.99, high, "paper", transform=axis.get_yaxis_transform(), fontsize=7, ha="right", va="top")
    for line in figure.lines:
        _line(axis, line)
    if figure.percent:
        axis.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
    if figure.whole:
        axis.set_ylim(0, 1)


def _thick(span: tuple[float, float]) -> tuple[float, float]:
    """A range of one value as one of a height that can be seen."""
    low, high = span
    return (low, high) if high > low else (low - 0.002, high + 0.002)


def _line(axis: Any, line: Line) -> None:
    curve = line.curve if line.marked else smoothed(line.curve)
    updates, mean, spread = curve.updates, curve.mean, curve.std
    colour = _COLOURS[line.style % len(_COLOURS)]
    if spread is not None or curve is not line.curve:
        for values in line.curve.values:
            axis.plot(updates, values, color=colour, linewidth=0.6, alpha=0.45)
    if spread is not None:
        axis.fill_between(updates, mean - spread, mean + spread, color=colour, alpha=0.16, linewidth=0)
    every = 1 if line.marked else max(1, len(updates) // 6)
    axis.plot(updates, mean, markevery=every, label=visible(line.label), **_look(line.style))
    if line.error is not None:
        axis.errorbar(updates, mean, yerr=line.error, fmt="none", ecolor=colour, elinewidth=0.8)


def _stack(axis: Any, figure: Stack) -> None:
    from matplotlib.ticker import PercentFormatter

    areas = axis.stackplot(
        figure.updates,
        figure.values,
        labels=[visible(name) for name in figure.names],
    )
    for number, area in enumerate(areas):
        area.set(
            facecolor=(_COLOURS[number % len(_COLOURS)], 0.5),
            edgecolor=_INK,
            linewidth=0.5,
            hatch=_HATCHES[number % len(_HATCHES)],
        )
    axis.set_ylim(0, 1)
    axis.margins(x=0)
    axis.yaxis.set_major_formatter(PercentFormatter(1.0))


def _inline(source: str, words: str, name: str) -> markupsafe.Markup:
    """matplotlib's SVG file as an element of the page: colours the page's, ids unique, no styles for all."""
    root = ElementTree.fromstring(source)
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{{{_SVG}}}metadata", f"{{{_SVG}}}style"):
                parent.remove(child)
    for element in root.iter():
        pairs = [(_bare(key), value) for key, value in element.attrib.items()]
        element.attrib = {key: _paged(key, value, f"{name}-") for key, value in pairs}
        element.tag = element.tag.removeprefix(f"{{{_SVG}}}")
    for attribute in ("width", "height", "version"):
        root.attrib.pop(attribute)
    root.attrib |= {"role": "img", "aria-label": visible(words), "style": "stroke-linejoin: round"}
    return markupsafe.Markup(ElementTree.tostring(root, encoding="unicode"))


def _bare(key: str) -> str:
    """An attribute's name as HTML has it; links without their namespace."""
    return key.removeprefix(f"{{{_XLINK}}}")


def _paged(key: str, value: str, own: str) -> str:
    if key == "id":
        return own + value
    if key == "href":
        return f"#{own}{value.removeprefix('#')}"
    for drawn, shown in _PAGE.items():
        value = value.replace(drawn, shown)
    return re.sub(r"url\(#", f"url(#{own}", value)
