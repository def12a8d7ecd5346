"""The figures of appendix E over several updates: counted once each, whatever the update's size."""

from __future__ import annotations

import numpy as np
import pytest

from vict_jax.audit import figures
from vict_jax.credit.diagnostics import Cause


def whole(run):
    total = figures.EMPTY
    for update in run[1].values():
        total += figures.tally(update.inputs, update.output)
    return total, figures.figures(total)


def flat(run, get):
    return np.concatenate([np.asarray(get(update)).ravel() for update in run[1].values()])


def test_shares_over_updates_are_those_of_all_rollouts_together(run):
    total, values = whole(run)
    real = flat(run, lambda u: u.inputs.rollout_mask)
    assert total.wholes["rollouts"] == real.sum() == 22  # one rollout of each update is lost
    causes = flat(run, lambda u: u.output.proofs.cause)[real]
    assert values["abstention"] == pytest.approx((causes != 0).mean())
    for cause in Cause:
        if cause is not Cause.NONE:
            name = f"abstention/{cause.name.lower()}"
            assert values[name] == pytest.approx((causes == cause).mean(), abs=1e-6)
    corrected = flat(run, lambda u: (u.output.correction != 0).any(-1))[real]
    assert values["trigger"] == pytest.approx(corrected.mean())
    steps = flat(run, lambda u: u.inputs.step_mask & u.inputs.rollout_mask[..., None])
    assert values["sparsity"] == pytest.approx(flat(run, lambda u: u.output.correction != 0)[steps].mean())
    sizes = flat(run, lambda u: u.output.proofs.core.sum(-1))
    assert values["core_size_mean"] == pytest.approx(sizes[sizes > 0].mean())
    assert values["core_size_std"] == pytest.approx(sizes[sizes > 0].std(ddof=1))
    marginals = flat(run, lambda u: u.output.proofs.marginal != 0)
    edges = flat(run, lambda u: u.output.proofs.witness.any(axis=(2, 4)))
    assert values["proof_coverage"] == pytest.approx(edges[marginals].mean())
    assert values["reconstruction"] == values["eligibility"] == 1.0


def test_updates_of_different_size_are_weighted(run):
    """A batch counted three times weighs three times as much."""
    first, second = (figures.tally(u.inputs, u.output) for u in run[1].values())
    alone = [figures.figures(t)["trigger"] * t.wholes["rollouts"] for t in (first, second)]
    mixed = figures.figures(first + first + first + second)["trigger"]
    expected = (3 * alone[0] + alone[1]) / (3 * first.wholes["rollouts"] + second.wholes["rollouts"])
    assert alone[0] != alone[1]
    assert mixed == pytest.approx(expected)


def test_nothing_counted_is_none():
    values = figures.figures(figures.EMPTY)
    assert set(values.values()) == {None}
    assert "| -" not in figures.text(values, {})
    assert "not logged" in figures.text(values | {"credit_share": None}, {"credit_share": "not logged"})


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("trigger", 0.5, "inside"),
        ("trigger", 0.495, "inside"),
        ("trigger", 0.49, "below"),
        ("sparsity", 0.19, "above"),
        ("trigger", None, ""),
        ("dead_groups", 0.5, ""),
    ],
)
def test_marks(name, value, expected):
    assert figures.mark(name, value) == expected


def test_json_holds_value_range_and_mark():
    plain = figures.to_json({"trigger": 0.4, "clip": 2.0})
    assert plain["trigger"] == {"value": 0.4, "paper": [0.495, 0.618], "mark": "below"}
    assert plain["clip"] == {"value": 2.0, "paper": None, "mark": None}
