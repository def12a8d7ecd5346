"""Other settings and other rules on the same rollouts: sensitivity sweeps and controls (method page, 9)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from vict_jax.audit import figures
from vict_jax.audit.source import Batch, Setting, credit, on_device
from vict_jax.audit.text import number, share, table
from vict_jax.batching import to_host
from vict_jax.credit.assign import InvariantError, assign_many
from vict_jax.credit.diagnostics import eligible_actions
from vict_jax.credit.methods import METHODS
from vict_jax.credit.options import VictOptions
from vict_jax.types import CreditOutput

# The most updates that a sweep looks at, spread over those under audit.
SWEEP_UPDATES = 4

# Values tried for each option while the others stay as they are. A core goes with its own marginals.
_SWEPT: Sequence[tuple[str, Sequence[dict[str, Any]]]] = (
    ("budget", [{"budget": value} for value in (1, 2, 4, 8, 16)]),
    ("gamma_lambda", [{"gamma_lambda": value} for value in (0.25, 0.5, 1.0)]),
    ("gamma_rho", [{"gamma_rho": value} for value in (0.25, 0.5, 1.0, 1.5)]),
    ("scale", [{"scale": value} for value in ("std", "mean_ad", "iqr", "mad")]),
    ("center", [{"center": value} for value in ("median", "mean")]),
    (
        "core",
        [
            {"core": "complete", "marginals": "contextual"},
            {"core": "greedy", "marginals": "contextual"},
            {"core": "greedy", "marginals": "literal"},
        ],
    ),
)


@dataclasses.dataclass(frozen=True)
class Contrast:
    """One rule or setting beside a reference on the same rollouts.

    Attributes:
      name: of the rule or setting.
      trigger, sparsity: shares of rollouts and of actions corrected.
      abstention, coverage: as in `figures`; None without proofs.
      sign_agreement: share of the actions corrected by both whose corrections have the same sign.
      correlation: Pearson's, of the corrections over all actions; None where one of them is constant.
      unproved: share of corrections that no proof of the reference allows (Eq. 8); None where not asked.
    """

    name: str
    trigger: float | None
    sparsity: float | None
    abstention: float | None
    coverage: float | None
    sign_agreement: float | None
    correlation: float | None
    unproved: float | None = None

    def to_json(self) -> dict[str, Any]:
        """As plain JSON types."""
        return dataclasses.asdict(self)


def sign_agreement(a: np.ndarray, b: np.ndarray) -> float | None:
    """Share of equal signs among the entries that are non-zero in both; None if there is none."""
    both = (a != 0) & (b != 0)
    return float((np.sign(a) == np.sign(b))[both].mean()) if both.any() else None


def correlation(a: np.ndarray, b: np.ndarray) -> float | None:
    """Pearson's correlation; None if one of the two is constant."""
    if not len(a) or not (np.ptp(a) > 0 and np.ptp(b) > 0):
        return None
    return float(np.corrcoef(a.astype(np.float64), b.astype(np.float64))[0, 1])


def corrections(batch: Batch, output: CreditOutput) -> np.ndarray:
    """Corrections of all real actions of a batch, f32[K]."""
    real = batch.inputs.step_mask & batch.inputs.rollout_mask[..., None]
    return np.asarray(output.correction[real])


def contrast(
    name: str,
    batches: Sequence[Batch],
    outputs: Sequence[CreditOutput],
    references: Sequence[CreditOutput],
) -> Contrast:
    """Compare outputs with references, batch by batch, and sum up."""
    total = figures.EMPTY
    for batch, output in zip(batches, outputs, strict=True):
        total += figures.tally(batch.inputs, output)
    values = figures.figures(total)
    pairs = [
        np.concatenate([corrections(batch, output) for batch, output in zip(batches, some, strict=True)])
        for some in (outputs, references)
    ]
    corrected = [(output.correction != 0).any(axis=-1) for output in outputs]
    return Contrast(
        name=name,
        trigger=sum(int(c.sum()) for c in corrected) / max(total.wholes["rollouts"], 1),
        sparsity=total.wholes["corrected"] / max(total.wholes["steps"], 1),
        abstention=values["abstention"],
        coverage=values["proof_coverage"],
        sign_agreement=sign_agreement(*pairs),
        correlation=correlation(*pairs),
    )


def variants(options: VictOptions) -> Iterator[tuple[str, VictOptions]]:
    """One option changed at a time: names and options, without the setting itself."""
    for _, choices in _SWEPT:
        for changes in choices:
            changed = dataclasses.replace(options, **changes)
            if changed != options:
                yield ", ".join(f"{key} {value}" for key, value in changes.items()), changed


def spread(batches: Sequence[Batch], most: int) -> list[Batch]:
    """At most `most` batches, evenly spread, the last always among them."""
    places = np.linspace(len(batches) - 1, 0, min(most, len(batches))).round().astype(int)
    return [batches[i] for i in sorted(set(places.tolist()))]


def sweep(
    setting: Setting, batches: Sequence[Batch], *, progress: Callable[[], object] = lambda: None
) -> list[Contrast]:
    """Credit of `batches` under the setting and every variant of it, each beside the setting's own.

    A variant is compiled (seconds) and forgotten. `progress` is called after each.
    """
    references = [credit(setting, batch.inputs)[0] for batch in batches]
    rows = [contrast(f"{setting.method} as it ran", batches, references, references)]
    for name, options in variants(setting.options):
        outputs = [credit(setting, batch.inputs, options)[0] for batch in batches]
        rows.append(contrast(name, batches, outputs, references))
        progress()
    return rows


def controls(setting: Setting, batch: Batch) -> list[Contrast]:
    """Every credit method on one batch, each beside VICT with the same options.

    Raises:
      InvariantError: a method breaks its own claim.
    """
    outputs, violations = to_host(
        assign_many(
            on_device(batch.inputs),
            methods=tuple(METHODS),
            aggregate=setting.domain.aggregate,
            options=setting.options,
        )
    )
    if violations:
        raise InvariantError(f"{int(violations)} corrections break the claims of their methods")
    vict = outputs["vict"]
    allowed = np.asarray(jax.jit(eligible_actions)(on_device(batch.inputs), vict.proofs))
    rows = []
    for name in METHODS:
        output = outputs[name]
        row = contrast(name, [batch], [output], [vict])
        corrected = output.correction != 0
        unproved = float((~allowed)[corrected].mean()) if corrected.any() else None
        rows.append(dataclasses.replace(row, unproved=unproved))
    return rows


def text(rows: Sequence[Contrast], *, unproved: bool) -> str:
    """As a table; `unproved` adds that column."""
    title = ["", "trigger", "sparsity", "abstention", "coverage", "same sign", "correlation"]
    body = [
        [
            row.name,
            *map(share, (row.trigger, row.sparsity, row.abstention, row.coverage, row.sign_agreement)),
            number(row.correlation),
            *([share(row.unproved)] if unproved else []),
        ]
        for row in rows
    ]
    columns = [*title, *(["unproved"] if unproved else [])]
    return table(columns, body, align="l" + "r" * (len(columns) - 1))
