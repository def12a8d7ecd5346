"""TRCA and HCAPO: worked cases, the properties of rubric rewards, masks and padding, options."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tests.credit.step_builders import KINDS, fill, played, run
from vict_jax.credit.methods import needs
from vict_jax.credit.options import VictOptions
from vict_jax.credit.step_hindsight import hindsight_values
from vict_jax.credit.step_options import HcapoOptions, StepOptions, TrcaOptions
from vict_jax.credit.step_rubric import RubricRewards, rubric_rewards
from vict_jax.types import CreditInputs, Kind

N, T = 2, 5
EVIDENCE, OTHER_EVIDENCE, EXECUTION, INVALIDITY, PADDING = range(len(KINDS))
MEANS = VictOptions(
    steps=StepOptions(pay=1.0), trca=TrcaOptions(mode="mean", gamma=0.5), hcapo=HcapoOptions(gamma=0.5)
)


JITTED = jax.jit(functools.partial(rubric_rewards, options=TrcaOptions()))


def rewards(fired: np.ndarray, kind: np.ndarray = KINDS, real: np.ndarray | None = None) -> RubricRewards:
    everything = np.ones(fired.shape[:2], bool)
    return jax.device_get(JITTED(fired, kind, everything if real is None else real))


# --- worked cases ---------------------------------------------------------------------------------


def test_trca_rewards_of_the_worked_case() -> None:
    """2 Evidence, 1 Execution, 1 Invalidity: #1 twice, then an invalid action, then the Execution."""
    fired = np.zeros((N, T, len(KINDS)), bool)
    for t, item in enumerate([EVIDENCE, EVIDENCE, INVALIDITY, EXECUTION]):
        fired[0, t, item] = True
    found = rewards(fired)
    np.testing.assert_allclose(found.foundational[0], [0.5, 0.5, -1.0, 1.0, 0.0])
    np.testing.assert_allclose(found.breakthrough[0], [0.5, 0.0, 0.0, 1.0, 0.0])
    np.testing.assert_allclose(found.mixed(0.8)[0], [0.5, 0.1, -0.2, 1.0, 0.0], rtol=1e-6)
    np.testing.assert_array_equal(found.mixed(0.8)[1], 0.0)


def test_trca_compares_returns_within_contexts() -> None:
    """Both fail. From s1, a reveals and b is refused: returns (.5, 0) and (-.2, 0) with gamma .5."""
    inputs = played(
        [(0.0, [1, 2, 3]), (0.0, [1, 2, 3])], fired=[(0, 0, EVIDENCE), (1, 0, INVALIDITY), (1, 1, PADDING)]
    )
    found = run(inputs, MEANS, ["trca"])["trca"].advantages[0]
    np.testing.assert_allclose(found, [[0.35, 0.0], [-0.35, 0.0]], atol=1e-6)
    # What a later step earns comes back discounted, and the score is paid at the end.
    later = played([(1.0, [1, 2, 3]), (0.0, [1, 2, 3])], fired=[(1, 1, EXECUTION)])
    found = run(later, MEANS, ["trca"])["trca"].advantages[0]
    np.testing.assert_allclose(found, [[0.5, 0.5], [-0.5, -0.5]], atol=1e-6)


def test_hcapo_values_of_the_worked_case() -> None:
    """R = 10, T = 2, pi_h = (.6, .9): Q = (7.6, 12); smoothed (9.8, 12)."""
    logp = 5 * np.log(np.array([[[0.6, 0.9, np.nan]]], np.float32))
    real = np.array([[[True, True, False]]])
    total = np.array([[10.0]], np.float32)
    found = hindsight_values(logp, total, real, options=HcapoOptions())
    np.testing.assert_allclose(found, [[[7.6, 12.0, 0.0]]], rtol=1e-5)
    smooth = hindsight_values(logp, total, real, options=HcapoOptions(smoothing=0.5))
    np.testing.assert_allclose(smooth, [[[9.8, 12.0, 0.0]]], rtol=1e-5)


def test_hcapo_keeps_what_speaks_for_a_success_and_spares_its_other_steps() -> None:
    """Q = (.4, 1.2) in the success with gamma .5, 0 in the failure: mean .4, so its first step is neutral."""
    logp = 5 * np.log([0.6, 0.9])
    inputs = played([(1.0, [1, 2, 3]), (0.0, [1, 2, 3])], hindsight=[logp, [-1.0, -7.0]])
    found = np.asarray(run(inputs, MEANS, ["hcapo"])["hcapo"].advantages[0])
    std = np.std([0.4, 1.2, 0.0, 0.0], ddof=1)
    expected = 0.5**0.5 * np.array([[1, 1], [-1, -1]]) + np.array([[0.0, 0.8], [-0.4, -0.4]]) / std
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    slow = played([(1.0, [1, 2, 2, 2, 3]), (0.5, [1, 3])], hindsight=[[0.0] * 4, [0.0]])
    both = np.asarray(run(slow, MEANS, ["hcapo"])["hcapo"].advantages[0])
    # Q = (1/8, 1/4, 1/2, 1) in the success: below the mean, .475, nothing is taken off; the failure's is 1/2.
    np.testing.assert_allclose(both[0, :2], 0.5**0.5, rtol=1e-4)
    assert 0.5**0.5 < both[0, 2] < both[0, 3]
    assert both[1, 0] > -(0.5**0.5)


def test_hcapo_with_scores_that_vanish_weighs_all_steps_alike() -> None:
    logp = np.full((1, 1, 2), -1e6, np.float32)
    values = hindsight_values(
        logp, np.ones((1, 1), np.float32), np.ones((1, 1, 2), bool), options=HcapoOptions(gamma=1.0)
    )
    np.testing.assert_array_equal(values, 1.0)


# --- four properties of rubric rewards -------------------------------------------------------------

FIRED = arrays.arrays(bool, (N, T, len(KINDS)))
KIND = arrays.arrays(np.int8, (len(KINDS),), elements=st.sampled_from([int(kind) for kind in Kind]))
REAL = st.lists(st.integers(0, T), min_size=N, max_size=N).map(lambda n: np.arange(T) < np.array(n)[:, None])


@settings(max_examples=60, deadline=None)
@given(FIRED, KIND, REAL)
def test_rewards_are_bounded_by_the_budgets(fired: np.ndarray, kind: np.ndarray, real: np.ndarray) -> None:
    found = rewards(fired, kind, real)
    assert (found.foundational >= -1 - 1e-6).all()
    assert (found.foundational <= 2 + 1e-6).all()
    assert (found.breakthrough >= 0).all()
    assert (found.breakthrough.sum(-1) <= 2 + 1e-5).all()
    assert (found.foundational[~real] == 0).all()
    assert (found.breakthrough[~real] == 0).all()


@settings(max_examples=60, deadline=None)
@given(FIRED, KIND, st.integers(0, T - 2))
def test_repeats_add_nothing_to_the_breakthrough(fired: np.ndarray, kind: np.ndarray, t: int) -> None:
    """What fired up to t fires again at t + 1."""
    again = fired.copy()
    again[:, t + 1] |= fired[:, : t + 1].any(1)
    before, after = rewards(fired, kind), rewards(again, kind)
    np.testing.assert_array_equal(after.breakthrough, before.breakthrough)
    good = (kind == Kind.EVIDENCE) | (kind == Kind.EXECUTION)
    new = (again & ~fired)[:, t + 1] & good
    more = (after.foundational - before.foundational)[:, t + 1] + 0.0
    if not ((again & ~fired)[:, t + 1] & (kind == Kind.INVALIDITY)).any():
        assert ((more > 0) == new.any(-1)).all()


@settings(max_examples=60, deadline=None)
@given(FIRED, KIND, FIRED)
def test_the_potential_is_monotone_in_coverage(fired: np.ndarray, kind: np.ndarray, more: np.ndarray) -> None:
    """More coverage never lowers the potential at any time, and a newly covered item raises it at the end."""
    wider = fired | more
    before, after = (np.cumsum(rewards(x, kind).breakthrough, -1) for x in (fired, wider))
    assert (after >= before - 1e-6).all()
    good = (kind == Kind.EVIDENCE) | (kind == Kind.EXECUTION)
    gained = (wider.any(1) & ~fired.any(1) & good).any(-1)
    np.testing.assert_array_equal(after[:, -1] - before[:, -1] > 1e-3, gained)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1), st.sampled_from([EVIDENCE, EXECUTION, INVALIDITY]), st.integers(0, 2))
def test_a_group_without_a_success_has_step_advantages(rollout: int, item: int, step: int) -> None:
    """As soon as one of two rollouts that act in the same contexts does better than the other."""
    inputs = played([(0.0, [1, 2, 3, 4])] * 2, fired=[(rollout, step, item)])
    output = failing(inputs)
    assert float(output.diagnostics["dead_groups"]) > 0
    advantages = np.asarray(output.advantages[0])
    better = advantages[rollout, : step + 1] * (-1 if item == INVALIDITY else 1)
    assert (better > 0).all()
    np.testing.assert_allclose(advantages[1 - rollout], -advantages[rollout], rtol=1e-5)
    assert (advantages[:, step + 1 :] == 0).all()


def failing(inputs: CreditInputs) -> Any:
    return run(inputs, VictOptions(), ["trca"])["trca"]


# --- masks and padding ----------------------------------------------------------------------------


def test_items_of_no_kind_and_steps_that_are_not_real_do_nothing() -> None:
    inputs = played([(0.0, [1, 2, 3]), (0.0, [1, 2])], fired=[(0, 0, EVIDENCE)])
    plain = np.asarray(failing(inputs).advantages)
    assert np.abs(plain).max() > 0.1
    rubric = np.array(inputs.rubric)
    rubric[..., PADDING] = True
    rubric[0, 1, 1:] = True  # beyond the end
    changed = dataclasses.replace(inputs, rubric=rubric)
    np.testing.assert_array_equal(failing(changed).advantages, plain)
    more = np.concatenate([rubric, np.ones_like(rubric)], axis=-1)
    kinds = np.concatenate([inputs.rubric_kind, np.zeros_like(inputs.rubric_kind)], axis=-1)
    wide = dataclasses.replace(changed, rubric=more, rubric_kind=kinds)
    np.testing.assert_array_equal(failing(wide).advantages, plain)


def test_a_context_or_a_rollout_alone_gives_no_step_part() -> None:
    inputs = played([(0.0, [1, 2, 3]), (0.0, [4, 5, 6])], fired=[(0, 0, EVIDENCE), (1, 1, EXECUTION)])
    np.testing.assert_array_equal(failing(inputs).advantages, 0.0)


def test_padding_is_full_of_garbage() -> None:
    """So that the equality with the loops and the bits in `test_step_methods` mean something."""
    inputs = played([(0.0, [1, 2, 3])] * 2)
    padded = fill(inputs)
    assert padded.rubric is not None
    assert padded.rubric[0, 0, 2:].any()
    assert np.isnan(np.asarray(padded.hindsight_logp)[0, 0, 2:]).all()


def test_needs() -> None:
    assert needs(["trca+vict"], VictOptions()) == {"rubric", "rubric_kind", "context_id"}
    assert needs(["hcapo"], VictOptions()) == {"hindsight_logp"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: TrcaOptions(invalidity=1.0),
            "trca.invalidity=1.0 is not allowed: a finite",
        ),
        (lambda: TrcaOptions(evidence=-1.0), "trca.evidence=-1.0"),
        (lambda: TrcaOptions(breakthrough=1.5), r"trca.breakthrough=1.5 is not allowed: within \[0, 1\]"),
        (lambda: TrcaOptions(mode="none"), "trca.mode='none'"),
        (lambda: HcapoOptions(temperature=0.0), "hcapo.temperature=0.0"),
        (lambda: HcapoOptions(rho_low=1.5), r"hcapo.rho_low=1.5 is not allowed: within \[0, 1\]"),
        (lambda: HcapoOptions(rho_high=0.5), "hcapo.rho_high=0.5"),
        (lambda: HcapoOptions(smoothing=float("nan")), "hcapo.smoothing=nan"),
        (lambda: HcapoOptions(outcome_tokens=0), "hcapo.outcome_tokens=0"),
    ],
)
def test_options(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
