"""Normalisation, redistribution, lambda and c (Eq. 7, 9, 16, 17), and the statistics below them."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vict_jax.credit.correction import CENTERS, SCALES, normalise, redistribute, scale_and_clip
from vict_jax.credit.masked import masked_mean, masked_quantile, masked_std, ordered_sum

EPS = 1e-6


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.25, 0.5, 0.9, 0.95, 1.0]))
def test_masked_statistics_equal_numpy_on_the_selection(seed: int, q: float) -> None:
    rng = np.random.default_rng(seed)
    x = rng.choice([-1.0, 0.0, 0.5, 2.0, 7.25], 12).astype(np.float32)
    mask = rng.random(12) < 0.6
    x[~mask] = np.nan
    chosen = x[mask]
    quantile = masked_quantile(jnp.array(x), jnp.array(mask), q)
    np.testing.assert_allclose(quantile, np.quantile(chosen, q) if chosen.size else 0.0, atol=1e-5)
    mean, std = masked_mean(jnp.array(x), jnp.array(mask)), masked_std(jnp.array(x), jnp.array(mask))
    np.testing.assert_allclose(mean, chosen.mean() if chosen.size else 0.0, atol=1e-5)
    np.testing.assert_allclose(std, chosen.std(ddof=1) if chosen.size > 1 else 0.0, atol=1e-5)


def test_sums_keep_their_bits_when_zeros_follow() -> None:
    x = np.random.default_rng(0).normal(size=37).astype(np.float32)
    assert float(ordered_sum(jnp.array(x))) == float(ordered_sum(jnp.pad(jnp.array(x), (0, 91))))


def dhat(marginal: list[float], supported: list[bool], **options: str) -> list[float]:
    options = {"scale": "std", "center": "median", **options}
    values, _ = normalise(jnp.array(marginal), jnp.array(supported), eps=EPS, **options)
    return [round(float(v), 4) for v in values]


ALL4 = [True] * 4


@pytest.mark.parametrize(
    ("scale", "expected"),
    [
        ("std", [0.866, 0.866, -0.866, -0.866]),  # sqrt(4 / 3)
        ("mad", [1.0, 1.0, -1.0, -1.0]),
        ("iqr", [0.5, 0.5, -0.5, -0.5]),
        ("mean_ad", [1.0, 1.0, -1.0, -1.0]),
    ],
)
def test_even_split_in_every_scale(scale: str, expected: list[float]) -> None:
    assert dhat([1, 1, -1, -1], ALL4, scale=scale) == expected


def test_uneven_split_silences_mad_but_not_std() -> None:
    marginal = [1.0, -1.0, -1.0, -1.0]
    assert dhat(marginal, ALL4, scale="mad") == [0, 0, 0, 0]
    assert dhat(marginal, ALL4, scale="std") == [2.0, 0, 0, 0]  # std 1, median -1
    assert dhat(marginal, ALL4, scale="std", center="mean") == [1.5, -0.5, -0.5, -0.5]


def test_one_supported_rollout_or_no_spread_gives_nothing() -> None:
    assert dhat([1.0, -1.0, 0, 0], [True, False, False, False]) == [0, 0, 0, 0]
    assert dhat([0.1, 0.1, 0.1, 0.5], [True, True, True, False], center="mean") == [0, 0, 0, 0]
    assert dhat([0.1, 0.1 + 1e-7, 0.1, 0.5], [True, True, True, False], center="mean") == [0, 0, 0, 0]


def test_unsupported_values_do_not_matter_and_get_nothing() -> None:
    assert dhat([1.0, np.nan, -1.0, 5.0], [True, False, True, False]) == [0.7071, 0, -0.7071, 0]


def test_a_zero_marginal_is_counted_but_never_credited() -> None:
    """Eq. 8 forbids a correction for delta = 0, though 0 is off the centre here."""
    assert dhat([0.0, 1.0, 1.0, 1.0], ALL4, center="mean") == [0, 0.5, 0.5, 0.5]


def test_tables_are_complete() -> None:
    assert set(SCALES) == {"std", "mad", "iqr", "mean_ad"}
    assert set(CENTERS) == {"median", "mean"}


def test_redistribution_shares_by_weight_and_counts_every_edge() -> None:
    weight = np.zeros((3, 2, 4), np.float32)
    weight[0, 0, 0] = weight[2, 0, 2] = 1.0  # atom 0: write at 0, commit at 2
    weight[1, 1, 1] = weight[2, 1, 1] = 0.5  # atom 1: two reveals
    a_vict, contribution = redistribute(
        jnp.array([1.0, -2.0]), jnp.array(weight), jnp.array([2.0, 1.0]), smoothing=0.0, eps=EPS
    )
    np.testing.assert_allclose(a_vict, [0.5, -1.0, -0.5])
    np.testing.assert_allclose(np.asarray(contribution).sum((1, 2)), a_vict)
    smooth, _ = redistribute(
        jnp.array([1.0, -2.0]), jnp.array(weight), jnp.array([2.0, 1.0]), smoothing=2.0, eps=EPS
    )
    np.testing.assert_allclose(smooth, [0.25, -1 / 3, 0.25 - 1 / 3], rtol=1e-6)


def test_an_atom_without_edges_gives_nothing_even_without_smoothing() -> None:
    a_vict, _ = redistribute(jnp.array([3.0]), jnp.zeros((2, 1, 4)), jnp.zeros(1), smoothing=0.0, eps=EPS)
    np.testing.assert_array_equal(a_vict, [0.0, 0.0])


def batch(values: list[float]) -> jnp.ndarray:
    return jnp.array(values, jnp.float32)[None, None]


def test_lambda_and_c_use_the_non_zero_entries_on_real_steps() -> None:
    advantage = batch([1.0, -2.0, 3.0, 0.0, 0.0, np.nan])
    a_vict = batch([0.0, 0.0, 0.0, -0.5, 0.25, 100.0])
    steps = jnp.array([[[True] * 5 + [False]]])
    lambda_, clip = scale_and_clip(advantage, a_vict, steps, gamma_lambda=0.5, clip_quantile=0.95, eps=EPS)
    np.testing.assert_allclose(lambda_, 0.5 * 2.0 / 0.375, rtol=1e-5)
    np.testing.assert_allclose(clip, 2.9, rtol=1e-6)  # position 1.9 of 1, 2, 3


@pytest.mark.parametrize(("advantage", "a_vict"), [([0.0, 0.0], [1.0, 1.0]), ([1.0, -1.0], [0.0, 0.0])])
def test_nothing_to_scale_gives_lambda_zero(advantage: list[float], a_vict: list[float]) -> None:
    steps = jnp.ones((1, 1, 2), bool)
    lambda_, _ = scale_and_clip(
        batch(advantage), batch(a_vict), steps, gamma_lambda=0.5, clip_quantile=0.95, eps=EPS
    )
    assert float(lambda_) == 0.0


def test_rounding_residue_of_a_mean_does_not_count_as_an_advantage() -> None:
    steps = jnp.ones((1, 1, 3), bool)
    _, clip = scale_and_clip(
        batch([1e-8, 1.0, 1.0]), batch([1.0, 1.0, 1.0]), steps, gamma_lambda=0.5, clip_quantile=0.0, eps=EPS
    )
    assert float(clip) == 1.0
