"""The figures of VICT's appendix E over any number of updates, beside those the paper reports.

Shares are summed as counts, so that every rollout, action and atom of the audited updates counts once.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from vict_jax.audit.text import number, share, table
from vict_jax.credit.diagnostics import Cause
from vict_jax.types import CreditInputs, CreditOutput

# What the paper reports, by benchmark (table 5 and appendix E): for orientation, not a standard.
_FIVE = ("reconstruction", "mutation_conformance", "proof_coverage", "abstention", "usable_atoms")
PAPER_OF: Mapping[str, Mapping[str, float]] = {
    name: dict(zip(_FIVE, values, strict=True))
    for name, values in {
        "ALFWorld": (1.0, 0.996, 0.924, 0.081, 5.8),
        "WebShop": (0.998, 0.989, 0.887, 0.116, 6.3),
        "tau-bench retail": (1.0, 0.992, 0.865, 0.143, 9.7),
        "tau-bench airline": (0.997, 0.986, 0.849, 0.158, 11.2),
    }.items()
}


def _range(name: str) -> tuple[float, float]:
    values = [figures[name] for figures in PAPER_OF.values()]
    return min(values), max(values)


# Lowest and highest on the four benchmarks.
PAPER: Mapping[str, tuple[float, float]] = {
    **{name: _range(name) for name in _FIVE},
    "eligibility": (1.0, 1.0),
    "trigger": (0.495, 0.618),
    "sparsity": (0.117, 0.186),
    "credit_share": (0.119, 0.234),
    "greedy_minimal": (0.918, 0.976),
    "greedy_same_actions": (0.962, 0.988),
}

# Of which whole each diagnostic of an update is the share or mean.
_WHOLE = {
    "reconstruction": "rollouts",
    "eligibility": "corrected",
    "proof_coverage": "marginals",
    "abstention": "rollouts",
    "trigger": "rollouts",
    "sparsity": "steps",
    "budget_hit": "rollouts",
    "usable_atoms": "rollouts",
    "dead_groups": "groups",
    "lambda": "updates",
    "clip": "updates",
}
_NAMES = [cause.name.lower() for cause in Cause if cause is not Cause.NONE]
_WHOLE |= {f"abstention/{name}": "rollouts" for name in _NAMES}
_WHOLE |= {f"atom_abstention/{name}": "atoms" for name in _NAMES}
_NUMBERS = ("usable_atoms", "core_size_mean", "core_size_std", "lambda", "clip")


@dataclasses.dataclass(frozen=True)
class Tally:
    """Sums over updates, to be added up.

    Attributes:
      wholes: what there was of each kind: updates, groups, rollouts, steps, atoms, ...
      parts: for each diagnostic, the sum that belongs to it.
      core_sizes: how many accepted cores have each size.
    """

    wholes: collections.Counter[str]
    parts: Mapping[str, float]
    core_sizes: collections.Counter[int]

    def __add__(self, other: Tally) -> Tally:
        names = dict.fromkeys([*self.parts, *other.parts])
        return Tally(
            self.wholes + other.wholes,
            {name: self.parts.get(name, 0.0) + other.parts.get(name, 0.0) for name in names},
            self.core_sizes + other.core_sizes,
        )


EMPTY = Tally(collections.Counter(), {}, collections.Counter())


def tally(inputs: CreditInputs, output: CreditOutput) -> Tally:
    """The sums of one update. All arrays are NumPy."""
    real = inputs.rollout_mask
    wholes = collections.Counter(
        updates=1,
        groups=int(real.any(axis=-1).sum()),
        rollouts=int(real.sum()),
        steps=int((inputs.step_mask & real[..., None]).sum()),
        atoms=int((inputs.usable & real[..., None]).sum()),
        corrected=int((output.correction != 0).sum()),
    )
    sizes: collections.Counter[int] = collections.Counter()
    if output.proofs is not None:
        wholes["marginals"] = int((output.proofs.marginal != 0).sum())
        sizes = collections.Counter(output.proofs.core.sum(axis=-1)[real].tolist())
        del sizes[0]
    parts = {
        name: float(output.diagnostics[name]) * wholes[whole]
        for name, whole in _WHOLE.items()
        if name in output.diagnostics
    }
    return Tally(wholes, parts, sizes)


def figures(total: Tally) -> dict[str, float | None]:
    """Appendix E by name; None where there was nothing to count."""
    values: dict[str, float | None] = {}
    for name, whole in _WHOLE.items():
        known = name in total.parts and total.wholes[whole] > 0
        values[name] = total.parts[name] / total.wholes[whole] if known else None
    sizes = np.array(sorted(total.core_sizes.elements()), np.float64)
    values["core_size_mean"] = float(sizes.mean()) if len(sizes) else None
    values["core_size_std"] = float(sizes.std(ddof=1)) if len(sizes) > 1 else None
    return values


def mark(name: str, value: float | None) -> str:
    """Where a figure lies in the paper's range: inside, below, above, or empty where there is none."""
    if name not in PAPER or value is None:
        return ""
    low, high = PAPER[name]
    return "below" if value < low else "above" if value > high else "inside"


def to_json(values: Mapping[str, float | None]) -> dict[str, Any]:
    """Figures with the paper's range and their place in it."""
    return {
        name: {
            "value": value,
            "paper": list(PAPER[name]) if name in PAPER else None,
            "mark": mark(name, value) or None,
        }
        for name, value in values.items()
    }


# What the printed table shows, in this order; causes follow in a table of their own.
_SHOWN = (
    ("reconstruction", "F = V on the rollouts"),
    ("mutation_conformance", "F = V on edits and mutations"),
    ("eligibility", "corrections that Eq. 8 allows"),
    ("proof_coverage", "non-zero marginals with an edge"),
    ("abstention", "rollouts without credit"),
    ("trigger", "rollouts with a correction"),
    ("sparsity", "actions with a correction"),
    ("dead_groups", "groups of equal scores"),
    ("usable_atoms", "usable atoms of a rollout"),
    ("core_size_mean", "atoms of an accepted core"),
    ("core_size_std", "the same, standard deviation"),
    ("budget_hit", "rollouts whose core met the budget"),
    ("lambda", "scale of corrections, mean"),
    ("clip", "bound of corrections, mean"),
    ("credit_share", "credit, without extraction, in an update's time"),
    ("greedy_minimal", "greedy cores of minimum size"),
    ("greedy_same_actions", "greedy: same actions as minimum core"),
)


def show(name: str, value: float | None) -> str:
    """A figure as text: a percentage, or a number where it is none."""
    return number(value) if name in _NUMBERS else share(value)


def main_table(values: Mapping[str, float | None], missing: Mapping[str, str]) -> str:
    """Figures beside the paper's. `missing`: what to say of a figure that is None."""
    rows = []
    for name, meaning in _SHOWN:
        if name not in values:
            continue
        value = values[name]
        paper = "" if name not in PAPER else " to ".join(show(name, bound) for bound in PAPER[name])
        shown = missing.get(name, "-") if value is None else show(name, value)
        rows.append([name, shown, paper, mark(name, value), meaning])
    return table(["figure", "here", "paper", "", "meaning"], rows, align="lrrll")


def cause_table(values: Mapping[str, float | None]) -> str:
    """Why rollouts and atoms got no credit, as shares of all; causes that never occur are left out."""
    rows = []
    for name in _NAMES:
        pair = [values[f"{kind}/{name}"] for kind in ("abstention", "atom_abstention")]
        if any(pair):
            rows.append([name, *map(share, pair)])
    return table(["withheld because of", "rollouts", "atoms"], rows or [["nothing", "-", "-"]], align="lrr")


def text(values: Mapping[str, float | None], missing: Mapping[str, str]) -> str:
    """Both tables."""
    return f"{main_table(values, missing)}\n\n{cause_table(values)}"
