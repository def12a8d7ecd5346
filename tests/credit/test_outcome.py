"""Outcome estimators over whole batches, and GAE: loops, worked cases, masks, and the edges."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
import pytest

from tests.credit import builders, outcome_oracle
from vict_jax.credit.base import BASES, STATISTICS, Outcome, Returns, returns_of, step_rewards
from vict_jax.credit.gae import advantages, gae
from vict_jax.credit.options import VictOptions
from vict_jax.credit.vict import estimate_outcome
from vict_jax.types import CreditInputs, CreditOutput

OPTIONS = VictOptions(discount=0.9, gae_lambda=0.8)
GROUPED = [base for base in BASES if base not in ("reinforce_pp", "reinforce_pp_rows")]


@functools.partial(jax.jit, static_argnames="options")
def everything(
    inputs: CreditInputs, options: VictOptions
) -> tuple[Returns, dict[str, Outcome], dict[bool, CreditOutput]]:
    """Returns, every estimator, and GAE with and without whitening, compiled together."""
    outcomes = {base: estimate_outcome(inputs, dataclasses.replace(options, base=base)) for base in BASES}
    of_critic = {flag: gae(inputs, dataclasses.replace(options, whiten=flag)) for flag in (False, True)}
    return returns_of(inputs, discount=options.discount), outcomes, of_critic


def batch(scores: list[list[float]], lengths: list[list[int]], *, penalty: Any = 0.0) -> CreditInputs:
    """Groups of rollouts with these scores and lengths, padded to [3, 3, 4]; only returns matter here."""
    groups, rollouts, steps = 3, 3, 4
    real = builders.rollout(0.0, [builders.S], steps=steps)
    inputs = builders.batch([builders.group([real] * rollouts, weight=[1.0])] * groups)
    more = ((0, groups - len(scores)), (0, rollouts - len(scores[0])))
    length = np.pad(np.array(lengths), more)
    return dataclasses.replace(
        inputs,
        score=np.pad(np.array(scores, np.float32), more, constant_values=np.nan),
        rollout_mask=length > 0,
        step_mask=np.arange(steps) < length[..., None],
        penalty=np.broadcast_to(np.array(penalty, np.float32), inputs.penalty.shape),
    )


def random_batch(seed: int) -> CreditInputs:
    """With penalties, values, lost rollouts, dead groups, and NaN wherever nothing is real."""
    inputs = builders.random_inputs(seed, groups=4, rollouts=5, steps=6)
    rng = np.random.default_rng(seed)
    real = inputs.step_mask & inputs.rollout_mask[..., None]
    few = rng.choice([0.0, 0.0, 0.25], real.shape)
    few[rng.random(len(few)) < 0.5] = 0.0
    return dataclasses.replace(
        inputs,
        penalty=np.where(real, few, np.nan).astype(np.float32),
        value=np.where(real, rng.normal(size=real.shape), np.nan).astype(np.float32),
    )


@pytest.mark.parametrize("seed", range(6))
def test_every_estimator_equals_the_loops(seed: int) -> None:
    inputs = random_batch(seed)
    _, outcomes, critics = everything(inputs, OPTIONS)
    for base, outcome in outcomes.items():
        expected = outcome_oracle.advantages(inputs, base, discount=0.9, eps=OPTIONS.eps)
        np.testing.assert_allclose(outcome.steps, expected, rtol=2e-5, atol=2e-6, err_msg=base)
        np.testing.assert_allclose(outcome.advantage, expected[..., 0], rtol=2e-5, atol=2e-6, err_msg=base)
    raw, target = outcome_oracle.gae(inputs, discount=0.9, gae_lambda=0.8)
    np.testing.assert_allclose(critics[False].advantages, raw, rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(critics[True].value_target, target, rtol=2e-5, atol=2e-6)
    real = inputs.step_mask & inputs.rollout_mask[..., None]
    steps = {(g, n): raw[g, n, real[g, n]].tolist() for g, n in np.argwhere(inputs.rollout_mask).tolist()}
    for (g, n), some in outcome_oracle.whiten(steps, rows=False, eps=OPTIONS.eps).items():
        np.testing.assert_allclose(critics[True].advantages[g, n, : len(some)], some, rtol=1e-4, atol=1e-5)
    error, values = (target - inputs.value)[real], target[real]
    expected_ev = 1 - error.var() / values.var()
    assert critics[True].diagnostics["explained_variance"] == pytest.approx(expected_ev, abs=1e-4)


@pytest.mark.parametrize("seed", range(2))
def test_padding_changes_no_bit(seed: int) -> None:
    inputs = random_batch(seed)
    padded = builders.pad(inputs, rollouts=3, steps=2, seed=seed)  # 8 and 8, as rows are padded in training
    _, plain, plain_critics = everything(inputs, OPTIONS)
    _, more, more_critics = everything(padded, OPTIONS)
    for base in BASES:
        np.testing.assert_array_equal(more[base].steps[:, :5, :6], plain[base].steps, err_msg=base)
        np.testing.assert_array_equal(more[base].steps[:, 5:], 0.0)
        np.testing.assert_array_equal(more[base].scale, plain[base].scale)
    for flag in (False, True):
        np.testing.assert_array_equal(
            more_critics[flag].advantages[:, :5, :6], plain_critics[flag].advantages
        )


def test_groups_meet_in_the_estimators_that_say_so_and_in_no_other() -> None:
    lengths = [[1, 2, 4], [2, 2, 2]]
    _, before, critic = everything(batch([[1.0, 0.0, 0.5], [1.0, 0.0, 0.0]], lengths), VictOptions())
    _, after, other = everything(batch([[1.0, 0.0, 0.5], [4.0, 0.0, 1.0]], lengths), VictOptions())
    for base in BASES:
        same = np.array_equal(before[base].steps[0], after[base].steps[0])
        assert same == (not base.startswith("reinforce_pp")), base
    np.testing.assert_array_equal(critic[False].advantages[0], other[False].advantages[0])
    assert not np.array_equal(critic[True].advantages[0], other[True].advantages[0])


def test_worked_case_row_counting() -> None:
    """Lengths 1 and 3, returns 10 and 0: z-scores 1.5 and -0.5 by rows, +-0.7071 by rollouts."""
    _, outcomes, _ = everything(batch([[10.0, 0.0]], [[1, 3]]), VictOptions())
    for base, (good, bad) in {
        "grpo": [0.7071068, -0.7071068],
        "grpo_rows": [1.5, -0.5],
        "reinforce_pp": [0.7071068, -0.7071068],
        "reinforce_pp_rows": [1.5, -0.5],
        "reinforce_pp_baseline": [0.7071068, -0.7071068],
    }.items():
        np.testing.assert_allclose(outcomes[base].advantage[0], [good, bad, 0], rtol=1e-5, err_msg=base)
        np.testing.assert_allclose(outcomes[base].steps[0, 1], [bad, bad, bad, 0], rtol=1e-5)


def test_returns_to_go_are_discounted_and_carry_penalties() -> None:
    """Field report 6: the reward is on the last real step, index 2 of a rollout of length 3."""
    penalty = [[0.5, 0, 0, np.nan], [0, 0.25, 0, 0], [np.nan] * 4]
    inputs = batch([[1.0, 0.0]], [[3, 4]], penalty=penalty)
    np.testing.assert_allclose(step_rewards(inputs)[0], [[-0.5, 0, 1, 0], [0, -0.25, 0, 0], [0] * 4])
    returns = jax.jit(functools.partial(returns_of, discount=0.5))(inputs)
    np.testing.assert_allclose(returns.total[0, :2], [0.5, -0.25])
    np.testing.assert_allclose(returns.to_go[0, :2], [[-0.25, 0.5, 1, 0], [-0.125, -0.25, 0, 0]])


def test_gae_by_hand() -> None:
    """r = (0, 0, 1), V = (.5, .4, .6): delta = (-.14, .14, .4) at gamma .9; lambda .5."""
    nan = np.nan
    found = advantages(
        np.array([0.0, nan, 0.0, 1.0, nan], np.float32),  # the second and the last step are not real
        np.array([0.5, nan, 0.4, 0.6, nan], np.float32),
        np.array([True, False, True, True, False]),
        discount=0.9,
        gae_lambda=0.5,
    )
    third, second = 0.4, 0.14 + 0.45 * 0.4
    np.testing.assert_allclose(found, [-0.14 + 0.45 * second, 0, second, third, 0], rtol=1e-5)


def test_gae_with_lambda_1_is_the_return_less_the_value() -> None:
    reward, value = np.array([0.0, -0.5, 1.0], np.float32), np.array([0.3, 0.9, 0.2], np.float32)
    found = advantages(reward, value, np.ones(3, bool), discount=0.9, gae_lambda=1.0)
    np.testing.assert_allclose(found, [0.36 - 0.3, 0.4 - 0.9, 1.0 - 0.2], atol=1e-6)


@pytest.mark.parametrize(
    ("scores", "lengths"),
    [([[0.0] * 3] * 2, [[1, 2, 4]] * 2), ([[1.0]], [[3]]), ([[1.0]], [[1]])],
    ids=["all fail", "one rollout", "one step"],
)
def test_without_any_spread_every_estimator_gives_zero(
    scores: list[list[float]], lengths: list[list[int]]
) -> None:
    """All-fail batches and single rollouts.

    A critic that says 0 is right about failures; a single success of several steps has an advantage with
    lambda below 1, smaller the farther its step is from the end, and one of one step whitens to 0.
    """
    _, outcomes, critics = everything(batch(scores, lengths), VictOptions())
    for outcome in outcomes.values():
        np.testing.assert_array_equal(outcome.steps, 0.0)
        assert np.isfinite(np.asarray(outcome.scale)).all()
    moves = scores == [[1.0]] and lengths == [[3]]
    assert np.asarray(critics[True].advantages != 0).any() == moves
    assert np.isfinite(np.asarray(critics[True].advantages)).all()
    assert float(critics[True].diagnostics["explained_variance"]) == 0.0


def test_a_dead_group_beside_a_live_one() -> None:
    """Exactly 0 with a group's baseline; with that of the batch it is better or worse than the rest."""
    inputs = batch([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]], [[2, 2]] * 3)
    _, outcomes, critics = everything(inputs, VictOptions())
    for base in GROUPED:
        np.testing.assert_array_equal(outcomes[base].steps[1:], 0.0, err_msg=base)
        assert (np.asarray(outcomes[base].advantage[0, :2]) != 0).all()
    for base in set(BASES) - set(GROUPED):
        assert (np.asarray(outcomes[base].advantage[1, :2]) > 0).all()
        assert (np.asarray(outcomes[base].advantage[2, :2]) < 0).all()
    assert float(critics[False].diagnostics["dead_groups"]) == pytest.approx(1 / 3)  # the failing one


def test_an_equal_penalty_changes_no_groups_advantage() -> None:
    scores, lengths = [[1.0, 0.0, 0.5]], [[2, 2, 2]]
    _, plain, _ = everything(batch(scores, lengths), VictOptions())
    taxed = batch(scores, lengths, penalty=0.25)
    _, less, _ = everything(taxed, VictOptions())
    for base in GROUPED:
        np.testing.assert_allclose(less[base].advantage, plain[base].advantage, rtol=1e-6, err_msg=base)


def test_every_estimator_says_how_it_normalises() -> None:
    assert STATISTICS.keys() == BASES.keys()


@pytest.mark.parametrize("change", [{"discount": 1.1}, {"gae_lambda": -0.1}])
def test_options_of_returns(change: dict[str, float]) -> None:
    (name,) = change
    with pytest.raises(ValueError, match=rf"{name}=.* is not allowed: within \[0, 1\]"):
        VictOptions(**change)
