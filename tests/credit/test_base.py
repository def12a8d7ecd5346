"""Outcome advantages: hand values, masks, and what users of such libraries ran into."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.credit import builders, oracle
from vict_jax.credit.base import BASES, Returns, dr_grpo, grpo, rloo
from vict_jax.credit.methods import METHODS
from vict_jax.credit.options import VictOptions
from vict_jax.types import CreditInputs, CreditOutput

EPS = 1e-6
REAL4 = jnp.ones(4, bool)
# Their baseline is not the task's group: dead groups are alive, tasks meet in the statistics.
WITHOUT_GROUPS = ("reinforce_pp", "reinforce_pp_rows", "gae")
estimate = {name: jax.jit(functools.partial(base, eps=EPS)) for name, base in BASES.items()}
GROUPED = [method for method in METHODS if method not in WITHOUT_GROUPS]


def run(base: str, score: list[float], mask: list[bool] | None = None) -> tuple[np.ndarray, float]:
    """One group whose rollouts have one step each, for which all of GRPO's kin are GRPO."""
    real = jnp.ones(len(score), bool) if mask is None else jnp.array(mask)
    total = jnp.array(score, jnp.float32)[None]
    outcome = estimate[base](Returns(total, total[..., None], real[None, :, None], real[None]))
    np.testing.assert_array_equal(outcome.steps[..., 0], outcome.advantage)
    return np.asarray(outcome.advantage[0]), float(outcome.scale[0])


def test_grpo_divides_by_the_sample_standard_deviation() -> None:
    advantage, scale = grpo(jnp.array([1.0, 0.0, 0.0, 0.0]), REAL4, eps=EPS)
    np.testing.assert_allclose(advantage, [1.5, -0.5, -0.5, -0.5], rtol=1e-5)
    np.testing.assert_allclose(scale, 0.5, rtol=1e-5)


def test_rloo_compares_with_the_others() -> None:
    advantage, scale = rloo(jnp.array([1.0, 0.0, 0.5, 0.5]), REAL4, eps=EPS)
    np.testing.assert_allclose(advantage, [2 / 3, -2 / 3, 0.0, 0.0], atol=1e-6)
    assert float(scale) == 1.0


def test_dr_grpo_only_centres() -> None:
    advantage, scale = dr_grpo(jnp.array([1.0, 0.0, 0.0, 0.0]), REAL4, eps=EPS)
    np.testing.assert_allclose(advantage, [0.75, -0.25, -0.25, -0.25])
    assert float(scale) == 1.0


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("score", [[0.1] * 3, [0.7], [1e6 + 0.1] * 7, [0.0] * 8])
def test_group_of_one_or_of_equal_scores_has_no_advantage(base: str, score: list[float]) -> None:
    np.testing.assert_array_equal(run(base, score)[0], np.zeros(len(score)))


@pytest.mark.parametrize("base", BASES)
def test_no_real_rollout_gives_zeros(base: str) -> None:
    np.testing.assert_array_equal(run(base, [np.nan, 3.0], [False, False])[0], [0.0, 0.0])


@pytest.mark.parametrize("base", BASES)
def test_lost_rollouts_do_not_count_wherever_they_stand(base: str) -> None:
    advantage, scale = run(base, [1.0, np.nan, 0.0, np.inf, 0.25], [True, False, True, False, True])
    alone, alone_scale = run(base, [1.0, 0.0, 0.25])
    np.testing.assert_array_equal(advantage[[0, 2, 4]], alone)
    np.testing.assert_array_equal(advantage[[1, 3]], [0.0, 0.0])
    assert scale == alone_scale


@pytest.mark.parametrize("base", BASES)
def test_nan_score_of_a_real_rollout_is_not_hidden(base: str) -> None:
    assert np.isnan(run(base, [1.0, np.nan, 0.0])[0]).all()


@pytest.mark.parametrize("base", BASES)
def test_bases_equal_the_loops(base: str) -> None:
    rng = np.random.default_rng(0)
    for _ in range(30):
        score = rng.choice([0.0, 0.3, 1.0, 7.5], 6).astype(np.float32)
        mask = rng.random(6) < 0.7
        advantage, scale = run(base, list(score), list(mask))
        expected, expected_scale = oracle.base_advantages([float(s) for s in score[mask]], base, EPS)
        np.testing.assert_allclose(advantage[mask], expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(advantage[~mask], 0.0)
        np.testing.assert_allclose(scale, expected_scale, rtol=1e-5)


def output_of(method: str, inputs: CreditInputs, options: VictOptions = builders.DEFAULT) -> CreditOutput:
    """All methods are compiled together, once for each shape."""
    return builders.run_many(inputs, tuple(METHODS), options=options)[method]


def one_token_group(scores: tuple[float, float]) -> CreditInputs:
    final = [[builders.S if score > 0 else builders.U] for score in scores]
    rollouts = [
        builders.rollout(score, end, steps=1, writes=[(0, 0)])
        for score, end in zip(scores, final, strict=True)
    ]
    return builders.group(rollouts, weight=[1.0])


@pytest.mark.parametrize("method", GROUPED)
def test_field_report_01_share_of_dead_groups_is_reported(method: str) -> None:
    inputs = builders.batch([one_token_group((1.0, 0.0)), one_token_group((0.0, 0.0))])
    output = output_of(method, inputs)
    assert float(output.diagnostics["dead_groups"]) == 0.5
    assert float(output.diagnostics["groups"]) == 2.0
    padded = builders.pad(inputs, groups=2, rollouts=1)
    output = output_of(method, padded)
    assert float(output.diagnostics["dead_groups"]) == 0.5


@pytest.mark.parametrize("method", GROUPED)
def test_field_report_02_dead_group_has_no_policy_part(method: str) -> None:
    inputs = builders.batch([one_token_group((1.0, 0.0)), one_token_group((1.0, 1.0))])
    output = output_of(method, inputs)
    assert (np.asarray(output.advantages[0]) != 0).all()
    np.testing.assert_array_equal(output.advantages[1], np.zeros((2, 1)))
    np.testing.assert_array_equal(output.correction[1], np.zeros((2, 1)))


@pytest.mark.parametrize("method", GROUPED)
def test_field_report_03_statistics_stay_inside_the_group(method: str) -> None:
    inputs = builders.batch([one_token_group((1.0, 0.0)), one_token_group((101.0, 100.0))])
    output = output_of(method, inputs)
    np.testing.assert_allclose(output.base[1], output.base[0], rtol=1e-6)
    assert float(output.base[0, 0, 0]) > 0


@pytest.mark.parametrize("method", METHODS)
def test_long_rollouts_do_not_weigh_more_in_the_statistics(method: str) -> None:
    """Lengths 1 and 3, returns 10 and 0: +-0.7071, not 1.5 and -0.5 as when every step counts.

    The methods that count every step say so in their names. `gae` takes the return itself, as there is no
    value yet, and whitens it.
    """
    rollouts = [builders.rollout(10.0, [builders.S], steps=1), builders.rollout(0.0, [builders.U], steps=3)]
    inputs = builders.group(rollouts, weight=[1.0])
    output = output_of(method, inputs)
    expected = {"rloo": 10.0, "dr_grpo": 5.0}.get(method, 0.70710678)
    good, bad = (1.5, -0.5) if method.endswith("_rows") else (expected, -expected)
    np.testing.assert_allclose(output.base[0], [[good, 0, 0], [bad, bad, bad]], rtol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_field_report_11_five_rows_padded_to_eight_keep_their_bits(method: str) -> None:
    inputs = builders.random_inputs(3, groups=2, rollouts=5, exact_params=True)
    padded = builders.pad(inputs, rollouts=3)
    options = VictOptions(center="mean")
    plain, output = output_of(method, inputs, options), output_of(method, padded, options)
    np.testing.assert_array_equal(output.advantages[:, :5], plain.advantages)
    np.testing.assert_array_equal(output.advantages[:, 5:], 0.0)
    assert plain.diagnostics.keys() == output.diagnostics.keys()
    for name, value in plain.diagnostics.items():
        np.testing.assert_array_equal(output.diagnostics[name], value, err_msg=name)


def test_method_table_names_the_bases() -> None:
    inputs = builders.random_inputs(1, groups=2)
    for base in BASES:
        output = builders.jitted(base, options=VictOptions(base="grpo"))(inputs)
        expected = builders.jitted("outcome_only", options=VictOptions(base=base))(inputs).base
        np.testing.assert_array_equal(output.advantages, expected)
        assert output.proofs is None
