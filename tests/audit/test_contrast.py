"""Sweeps and controls on the rollouts of a logged update."""

from __future__ import annotations

import numpy as np
import pytest

from tests.audit.logged import make_setting
from vict_jax.audit import contrast
from vict_jax.audit.source import Batch
from vict_jax.credit.methods import METHODS, Claim
from vict_jax.credit.options import VictOptions


def test_sign_agreement_and_correlation():
    a, b = np.array([1.0, -1.0, 2.0, 0.0]), np.array([2.0, 1.0, 0.0, 0.0])
    assert contrast.sign_agreement(a, b) == 0.5  # of the two that are non-zero in both
    assert contrast.sign_agreement(a, -a) == 0.0
    assert contrast.sign_agreement(a, np.zeros(4)) is None
    assert contrast.correlation(a, 3 * a + 1) == pytest.approx(1)
    assert contrast.correlation(a, -a) == pytest.approx(-1)
    assert contrast.correlation(a, np.ones(4)) is None
    assert contrast.correlation(np.zeros(0), np.zeros(0)) is None


def test_variants_change_one_thing_and_are_never_the_setting_itself():
    base = VictOptions(center="mean", budget=4)
    variants = dict(contrast.variants(base))
    assert len(variants) == 15
    assert base not in variants.values()
    swept = {"budget", "gamma_lambda", "gamma_rho", "scale", "center", "core", "marginals"}
    for options in variants.values():
        changed = {k for k, v in vars(options).items() if v != vars(base)[k]}
        assert changed <= swept
        assert len(changed - {"marginals"}) == 1


@pytest.mark.parametrize(
    ("updates", "expected"), [(1, [1]), (3, [1, 2, 3]), (4, [1, 2, 3, 4]), (10, [1, 4, 7, 10])]
)
def test_spread_is_even_and_has_the_last(updates, expected):
    batches = [Batch(u, None) for u in range(1, updates + 1)]
    assert [batch.update for batch in contrast.spread(batches, 4)] == expected


def test_a_sweep_stands_beside_the_setting_itself(run, config, monkeypatch):
    monkeypatch.setattr(contrast, "_SWEPT", (("", [{"gamma_lambda": 1.0}, {"eps_q": 100.0}]),))
    ticks = []
    batches = [Batch(u, update.inputs) for u, update in run[1].items()]
    rows = contrast.sweep(make_setting(config), batches, progress=lambda: ticks.append(1))
    itself, doubled, silent = rows
    assert len(ticks) == 2
    real = [u.inputs.step_mask & u.inputs.rollout_mask[..., None] for u in run[1].values()]
    corrected = [(u.output.correction != 0)[m] for u, m in zip(run[1].values(), real, strict=True)]
    assert itself.sparsity == pytest.approx(np.concatenate(corrected).mean())
    assert (itself.sign_agreement, itself.correlation) == (1.0, pytest.approx(1))
    # Twice lambda: the same actions, the same signs, the same up to a factor.
    assert (doubled.trigger, doubled.sparsity) == (itself.trigger, itself.sparsity)
    assert doubled.correlation == pytest.approx(1)
    assert (silent.trigger, silent.sparsity, silent.abstention) == (0, 0, 1)
    assert silent.sign_agreement is None
    assert silent.correlation is None
    text = contrast.text(rows, unproved=False)
    assert text.splitlines()[2].startswith("gamma_lambda 1.0")


def test_every_method_stands_beside_vict(run, config):
    rows = {row.name: row for row in contrast.controls(make_setting(config), Batch(1, run[1][1].inputs))}
    assert list(rows) == list(METHODS)
    vict = rows["vict"]
    assert (vict.sign_agreement, vict.correlation) == (1.0, pytest.approx(1))
    assert vict.unproved == 0
    assert vict.sparsity > 0
    for name, row in rows.items():
        if METHODS[name].claim is Claim.OUTCOME:
            assert (row.trigger, row.sparsity, row.unproved, row.correlation) == (0, 0, None, None)
    # The control that ignores the edges corrects actions that no proof allows.
    assert rows["no_proof"].unproved > 0.3
    assert rows["no_proof"].sparsity > vict.sparsity
    # Permuted edges keep the number of credited actions.
    assert rows["random_edges"].sparsity == pytest.approx(vict.sparsity)
    assert "unproved" in contrast.text(list(rows.values()), unproved=True).splitlines()[0]
