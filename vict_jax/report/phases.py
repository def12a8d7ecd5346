"""Where the time of an update goes."""

from __future__ import annotations

import numpy as np

from vict_jax.report.groups import Curve, Group, common, points
from vict_jax.report.plots import Stack
from vict_jax.report.tables import NONE, Cell, Table, percent, seconds

_PREFIX = "seconds/"
# What runs in each phase, see `vict_jax.train.run_update`.
MEANING = {
    "sample": "the policy writes replies",
    "env": "waiting for the environments",
    "host": "prompts and parsing between the two",
    "gate": "conformance, checked again",
    "score": "reference, critic and what else the models say before credit",
    "credit": "padding, transfers and the credit kernels",
    "log": "writing the proof log",
    "update": "gradients and the optimizer",
}
# A phase that takes less of the time is not drawn by itself.
_DRAWN = 0.01
_REST = "all others"


def curves(group: Group) -> dict[str, Curve]:
    """Phase -> seconds of each update, the longest phase first."""
    names = {
        name for r in group.records for row in r.of_kind("train") for name in row if name.startswith(_PREFIX)
    }
    found = {
        name.removeprefix(_PREFIX): common([points(r.of_kind("train"), name) for r in group.records])
        for name in names
    }
    known = {name: one for name, one in found.items() if one}
    return dict(sorted(known.items(), key=lambda pair: (-pair[1].values.sum(), pair[0])))


def shares(group: Group) -> dict[str, float]:
    """Phase -> share of the time of all updates, the largest first; empty where no time is known."""
    sums = {name: float(one.values.sum()) for name, one in curves(group).items()}
    total = sum(sums.values())
    return {name: value / total for name, value in sums.items()} if total > 0 else {}


def stack(group: Group) -> Stack | None:
    """Shares of the phases at each update, means over the runs; None where no time is known."""
    some, parts = curves(group), shares(group)
    if not parts:
        return None
    updates = sorted(set.intersection(*(set(one.updates.tolist()) for one in some.values())))
    if not updates:
        return None
    times = {name: one.mean[np.isin(one.updates, updates)] for name, one in some.items()}
    drawn = {name: times[name] for name in parts if parts[name] >= _DRAWN}
    rest = [times[name] for name in parts if name not in drawn]
    if rest:
        drawn[_REST] = np.sum(rest, axis=0)
    values = np.stack(list(drawn.values()))
    values = values / np.maximum(values.sum(axis=0), 1e-9)
    words = ", ".join(f"{name} {percent(share)}" for name, share in parts.items())
    return Stack(f"{group.label}: time of an update", words, np.array(updates), list(drawn), values)


def table(group: Group) -> Table:
    """Seconds of each phase: the first update (which compiles), the median update, all, and their share."""
    some, parts = curves(group), shares(group)
    rows: list[list[Cell]] = [
        [
            *(name, MEANING.get(name, "")),
            *(seconds(float(one.mean[0])), seconds(float(np.median(one.mean)))),
            *(seconds(float(one.values.sum() / len(group.records))), percent(parts.get(name))),
        ]
        for name, one in some.items()
    ]
    sums = [float(one.values.sum() / len(group.records)) for one in some.values()]
    medians = [float(np.median(one.mean)) for one in some.values()]
    first = [float(one.mean[0]) for one in some.values()]
    rows.append(["all", "", *(seconds(sum(x)) if x else NONE for x in (first, medians, sums)), percent(1.0)])
    head = ["phase", "what", "first update", "median update", "a run, all updates", "share"]
    return Table(head, rows, "llrrrr", total=True)
