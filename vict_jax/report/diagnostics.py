"""Credit over time beside the paper's ranges, why it was withheld, the policy's losses, and the rollouts."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from vict_jax.audit.figures import PAPER, mark, show
from vict_jax.credit.diagnostics import Cause
from vict_jax.report.groups import Curve, Group, common, curve, points
from vict_jax.report.plots import Figure, Line
from vict_jax.report.read import Record
from vict_jax.report.tables import NONE, Cell, Table, Tag, number, percent
from vict_jax.viewer.words import ROLLOUT_CAUSES

# Figure of a training row, what it is, and whether it is a share.
CREDIT = (
    ("trigger", "rollouts with a correction", True),
    ("sparsity", "actions with a correction", True),
    ("abstention", "rollouts without credit", True),
    ("proof_coverage", "non-zero marginals with an edge", True),
    ("dead_groups", "groups of equal scores", True),
    ("usable_atoms", "usable atoms of a rollout", False),
    ("core_size_mean", "atoms of an accepted core", False),
    ("lambda", "scale of corrections", False),
    ("clip", "bound of corrections", False),
    ("credit_share", "credit's share of an update's time", True),
)
# Of these a table is enough: they hardly move.
_STEADY = (
    ("reconstruction", "F = V on the rollouts", True),
    ("eligibility", "corrections that Eq. 8 allows", True),
    ("budget_hit", "rollouts whose core met the budget", True),
    ("unproved", "corrections without a proof of VICT's", True),
)
LEARNING = (
    ("entropy", "entropy of a token, nats", False),
    ("kl_reference", "KL to the first policy, nats a token", False),
    ("kl_behaviour", "KL to the sampling policy, nats a token", False),
    ("clip_fraction", "tokens at the clip bound", True),
    ("gradient_norm", "norm of the gradient", False),
    ("policy_loss", "loss of the policy", False),
    ("explained_variance", "variance that the critic explains", True),
)
# Title, parts of training rows that are added up, and what they are a share of.
ROLLOUTS = (
    ("steps refused by the environment", ("count/inadmissible",), "count/steps"),
    ("replies without an action", ("count/unparsed",), "count/steps"),
    ("replies cut off at max_new_tokens", ("count/truncated",), "count/steps"),
    ("rollouts ended by a full context", ("count/context_ends",), "count/rollouts"),
    ("rollouts lost to the environment", ("count/env_errors", "count/env_timeouts"), "count/rollouts"),
)
CAUSES = tuple(cause.name.lower() for cause in Cause if cause is not Cause.NONE)


def ratio(record: Record, parts: Sequence[str], whole: str) -> dict[int, float]:
    """Update -> sum of `parts` as a share of `whole`, where all of them are known."""
    rows = record.of_kind("train")
    wholes, some = points(rows, whole), [points(rows, part) for part in parts]
    updates = (u for u, count in wholes.items() if count > 0 and all(u in part for part in some))
    return {u: sum(part[u] for part in some) / wholes[u] for u in updates}


def credit_figures(groups: Sequence[Group]) -> list[Figure]:
    """One figure each of `CREDIT` that some run has, with the paper's range where there is one."""
    return [
        _figure(groups, [curve(g, "train", name) for g in groups], f"{name}: {what}", share, PAPER.get(name))
        for name, what, share in CREDIT
        if any(curve(g, "train", name) for g in groups)
    ]


def learning_figures(groups: Sequence[Group]) -> list[Figure]:
    """Losses and distances of the policy."""
    return [
        _figure(groups, [curve(g, "train", name) for g in groups], f"{name}: {what}", share)
        for name, what, share in LEARNING
        if any(curve(g, "train", name) for g in groups)
    ]


def rollout_figures(groups: Sequence[Group]) -> list[Figure]:
    """Length of the rollouts, and what went wrong in them as shares; what never happened is left out."""
    lengths = [curve(g, "train", "steps_mean") for g in groups]
    found = [_figure(groups, lengths, "steps of a rollout", False)] if any(lengths) else []
    for title, parts, whole in ROLLOUTS:
        curves = [common([ratio(r, parts, whole) for r in g.records]) for g in groups]
        if any(one and one.values.any() for one in curves):
            found.append(_figure(groups, curves, title, True))
    return found


def _figure(
    groups: Sequence[Group],
    curves: Sequence[Curve],
    title: str,
    share: bool,
    span: tuple[float, float] | None = None,
) -> Figure:
    lines = [
        Line(group.label, one, n) for n, (group, one) in enumerate(zip(groups, curves, strict=True)) if one
    ]
    shown = percent if share else number
    ends = [(line.label, *(shown(float(line.curve.mean[at])) for at in (0, -1))) for line in lines]
    words = "; ".join(f"{label}: {first} at first, {last} at last" for label, first, last in ends)
    if span is not None:
        words += f"; the paper's range: {shown(span[0])} to {shown(span[1])}"
    return Figure(title, words, lines, percent=share, span=span)


def credit_table(groups: Sequence[Group]) -> Table:
    """Every credit figure: means over updates and runs, and whether that lies in the paper's range.

    Of a single group over the first and last quarter, too.
    """
    listed = [(name, what, "train", name) for name, what, _ in (*_STEADY[:2], *CREDIT, *_STEADY[2:])]
    listed.insert(2, ("mutation_conformance", "F = V on edits and mutations", "conformance", "mutation"))
    alone = len(groups) == 1
    quarters = ["first quarter", "last quarter"] if alone else []
    titles = ["all updates", "vs. paper"] if alone else [t for g in groups for t in (g.letter, "vs. paper")]
    rows: list[list[Cell]] = []
    for name, what, kind, key in listed:
        means = [_means(group, kind, key) for group in groups]
        if not any(means):
            continue
        span = PAPER.get(name)
        row: list[Cell] = [name, what, NONE if span is None else " to ".join(show(name, x) for x in span)]
        if alone and means[0] is not None:
            row += [show(name, value) for value in means[0][:2]]
        for found in means:
            row += [NONE, ""] if found is None else [show(name, found[2]), _mark(name, found[2])]
        rows.append(row)
    head = ["figure", "meaning", "paper", *quarters, *titles]
    return Table(head, rows, "llr" + "r" * len(quarters) + "rl" * len(groups))


def _means(group: Group, kind: str, key: str) -> tuple[float, float, float] | None:
    """Means of a figure over the first quarter, the last quarter and all updates, and over the runs."""
    runs = [one for record in group.records if (one := points(record.of_kind(kind), key))]
    if not runs:
        return None
    first, last, every = (
        float(np.mean([part(run) for run in runs])) for part in (_first_quarter, last_quarter, _all)
    )
    return first, last, every


def _mark(name: str, value: float) -> Cell:
    found = mark(name, value)
    return Tag(found, "good" if found == "inside" else "") if found else ""


def _first_quarter(run: dict[int, float]) -> float:
    return float(np.mean(list(run.values())[: math.ceil(len(run) / 4)]))


def last_quarter(run: dict[int, float]) -> float:
    """Mean over the last quarter of the updates, rounded up: how it is now."""
    return float(np.mean(list(run.values())[-math.ceil(len(run) / 4) :]))


def _all(run: dict[int, float]) -> float:
    return float(np.mean(list(run.values())))


def cause_shares(group: Group, kind: str = "abstention") -> dict[str, float]:
    """Cause -> share of all rollouts (`abstention`) or atoms (`atom_abstention`), mean over updates and runs.

    Causes that never occur are left out; the commonest comes first.
    """
    shares = {}
    for cause in CAUSES:
        runs = [points(record.of_kind("train"), f"{kind}/{cause}") for record in group.records]
        values = [_all(run) for run in runs if run]
        if values and any(values):
            shares[cause] = float(np.mean(values))
    return dict(sorted(shares.items(), key=lambda pair: -pair[1]))


def cause_table(groups: Sequence[Group]) -> Table | None:
    """Why credit was withheld, in words, and where to look next; None where it never was."""
    found = [(cause_shares(group), cause_shares(group, "atom_abstention")) for group in groups]
    causes = dict.fromkeys(cause for pair in found for shares in pair for cause in shares)
    if not causes:
        return None
    prefix = [f"{group.letter} " if group.letter else "" for group in groups]
    head = ["withheld because of", *(f"{p}{what}" for p in prefix for what in ("rollouts", "atoms"))]
    rows: list[list[Cell]] = [
        [
            *(cause, *(percent(shares.get(cause, 0.0)) for pair in found for shares in pair)),
            *(ROLLOUT_CAUSES[cause].why, ROLLOUT_CAUSES[cause].next),
        ]
        for cause in causes
    ]
    return Table([*head, "of a rollout it means", "next"], rows, "l" + "rr" * len(groups) + "ll")


def rollout_table(groups: Sequence[Group]) -> Table:
    """What happened to the rollouts: counts over all updates and runs, and shares."""
    title = [group.letter or "count" for group in groups]
    shares = [f"{group.letter} share".strip() for group in groups]
    head = ["", *(name for pair in zip(title, shares, strict=True) for name in pair)]
    rows: list[list[Cell]] = []
    for name, parts, whole in (
        ("rollouts", ("count/rollouts",), ""),
        ("steps", ("count/steps",), ""),
        *ROLLOUTS,
    ):
        row: list[Cell] = [name]
        for group in groups:
            count, of = _total(group, parts), _total(group, [whole])
            row += [f"{count:,.0f}", percent(count / of) if of else ""]
        rows.append(row)
    return Table(head, rows, "l" + "rr" * len(groups))


def _total(group: Group, names: Sequence[str]) -> float:
    return sum(sum(points(r.of_kind("train"), name).values()) for r in group.records for name in names)
