"""The kernels against the loops of `oracle`, on random batches with everything in them."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import jax
import numpy as np
import pytest

from tests.credit import builders, control_oracle, oracle
from vict_jax.credit.diagnostics import Cause, check_invariant
from vict_jax.credit.options import VictOptions
from vict_jax.types import CreditInputs, CreditOutput

PROOF_FIELDS = (
    "witness",
    "weight",
    "marginal",
    "marginal_norm",
    "contribution",
    "core",
    "cause",
    "atom_cause",
)


jitted_check = jax.jit(check_invariant)


def assert_same(output: CreditOutput, expected: dict[str, Any], *, proved: bool = True) -> None:
    assert (output.proofs is not None) == proved
    for name in PROOF_FIELDS if proved else ():
        actual = np.asarray(getattr(output.proofs, name))
        np.testing.assert_allclose(actual, expected[name], rtol=1e-4, atol=1e-5, err_msg=name)
    for name in ("lambda_", "clip", "base", "correction", "advantages"):
        actual = np.asarray(getattr(output, name))
        np.testing.assert_allclose(actual, expected[name], rtol=1e-4, atol=1e-5, err_msg=name)
    for name, value in expected["figures"].items():
        np.testing.assert_allclose(output.diagnostics[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


@functools.cache
def batch_and_loops(seed: int, aggregate: str, options: VictOptions) -> tuple[CreditInputs, dict[str, Any]]:
    inputs = builders.random_inputs(seed, groups=8, aggregate=aggregate, exact_params=True)
    return inputs, oracle.credit(inputs, builders.AGGREGATES[aggregate], options)


# Thresholds that no effect or advantage of the small batches meets exactly, where rounding would decide.
paper = functools.partial(VictOptions, core="greedy", marginals="literal", gamma_rho=0.93, eps_q=0.047)
ours = functools.partial(VictOptions, gamma_rho=0.93, eps_q=0.047)
VARIANTS = [
    *((aggregate, ours()) for aggregate in builders.AGGREGATES),
    *((aggregate, paper(scale="mad")) for aggregate in builders.AGGREGATES),
    ("multiplicative", paper(marginals="contextual", scale="iqr", base="rloo")),
    ("weighted_sum", paper(gamma_rho=0.41, budget=1, scale="iqr", center="mean")),
    ("weighted_sum", ours(marginals="literal", scale="mean_ad", base="dr_grpo", center="mean")),
    ("weighted_sum", ours(gamma_rho=0.41, budget=2, center="mean", smoothing=1.0, base="rloo")),
    ("conjunctive", ours(scale="mad", base="rloo", clip_quantile=0.5, gamma_lambda=2.0)),
]
SEEDS = range(6)


def name(variant: tuple[str, VictOptions]) -> str:
    aggregate, o = variant
    return f"{aggregate}-{o.core}-{o.marginals}-{o.scale}-{o.center}-{o.base}"


@pytest.mark.parametrize("variant", VARIANTS, ids=name)
def test_vict_equals_the_loops(variant: tuple[str, VictOptions]) -> None:
    for seed in SEEDS:
        inputs, expected = batch_and_loops(seed, *variant)
        output = builders.jitted("vict", *variant)(inputs)
        assert_same(output, expected)
        assert int(jitted_check(inputs, output)) == 0


def test_random_batches_reach_every_cause_and_credit_something() -> None:
    seen: set[int] = set()
    credited = 0
    for variant, seed in itertools.product(VARIANTS, SEEDS):
        _, expected = batch_and_loops(seed, *variant)
        seen |= set(expected["cause"].ravel()) | set(expected["atom_cause"].ravel())
        credited += int((expected["correction"] != 0).sum())
    assert seen == set(Cause)
    assert credited > 500


CONTROL_VARIANTS = [
    ("weighted_sum", ours()),
    ("multiplicative", ours(center="mean", proximity_decay=0.5, seed=7)),
    ("conjunctive", paper(scale="mean_ad", base="rloo", proximity_decay=1.0)),
]


@functools.cache
def controls_and_loops(
    seed: int, aggregate: str, options: VictOptions
) -> tuple[dict[str, CreditOutput], dict[str, dict[str, Any]]]:
    """Outputs on a batch padded with NaN and garbage, cut to size, and what the loops make of the batch."""
    inputs, _ = batch_and_loops(seed, aggregate, options)
    padded = builders.pad(inputs, groups=1, rollouts=2, steps=3, atoms=2, variables=1, seed=seed)
    outputs = builders.run_many(padded, builders.CONTROLS, aggregate, options)
    loops = {
        method: control_oracle.credit(method, inputs, builders.AGGREGATES[aggregate], options)
        for method in builders.CONTROLS
    }
    return {method: builders.crop(output, inputs) for method, output in outputs.items()}, loops


@pytest.mark.parametrize("method", builders.CONTROLS)
@pytest.mark.parametrize("variant", CONTROL_VARIANTS, ids=name)
def test_controls_equal_the_loops(variant: tuple[str, VictOptions], method: str) -> None:
    for seed in SEEDS:
        outputs, loops = controls_and_loops(seed, *variant)
        assert_same(outputs[method], loops[method], proved=method == "commit_only")


@pytest.mark.parametrize("method", builders.CONTROLS)
def test_every_control_corrects_something_else_than_vict(method: str) -> None:
    differ = corrected = 0
    for variant, seed in itertools.product(CONTROL_VARIANTS, SEEDS):
        _, loops = controls_and_loops(seed, *variant)
        _, vict = batch_and_loops(seed, *variant)
        differ += int((loops[method]["correction"] != vict["correction"]).sum())
        corrected += int((loops[method]["correction"] != 0).sum())
    assert differ > 20
    assert corrected > 20
