"""Generalised advantage estimation over the steps of a rollout (GAE, arXiv 1506.02438).

The critic's value of a step is read before its action (`learner.value`), so that advantages are [G, N, T] as
those of every other method. There are no groups in it: a group of equal returns has an advantage wherever
the critic was wrong.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from vict_jax.credit.base import step_rewards, whiten
from vict_jax.credit.diagnostics import outcome_diagnostics
from vict_jax.credit.inputs import check_inputs, real_steps
from vict_jax.credit.masked import weighted_mean_std
from vict_jax.credit.options import VictOptions
from vict_jax.credit.vict import uncorrected
from vict_jax.types import CreditInputs, CreditOutput


def advantages(
    reward: jax.Array, value: jax.Array, steps: jax.Array, *, discount: float, gae_lambda: float
) -> jax.Array:
    """A_t = delta_t + gamma lambda A_{t+1} with delta_t = r_t + gamma V_{t+1} - V_t (Eq. 16).

    A step that is not real is stepped over: the next real one is its neighbour's successor. After the last
    real step V and A are 0: every rollout ends there, also one that the step cap ends.

    Args:
      reward, value: f32[..., T]; anything on padding.
      steps: bool[..., T], real steps.

    Returns:
      f32[..., T], 0 on padding.
    """

    def back(
        later: tuple[jax.Array, jax.Array], step: tuple[jax.Array, jax.Array, jax.Array]
    ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        (next_value, next_advantage), (reward, value, is_real) = later, step
        delta = reward + discount * next_value - value
        advantage = delta + discount * gae_lambda * next_advantage
        kept = (
            jnp.where(is_real, value, next_value),
            jnp.where(is_real, advantage, next_advantage),
        )
        return kept, jnp.where(is_real, advantage, 0.0)

    end = jnp.zeros(steps.shape[:-1], jnp.float32)
    by_step = (jnp.moveaxis(reward, -1, 0), jnp.moveaxis(value, -1, 0), jnp.moveaxis(steps, -1, 0))
    _, found = jax.lax.scan(back, (end, end), by_step, reverse=True)
    return jnp.moveaxis(found, 0, -1)


def explained_variance(target: jax.Array, value: jax.Array, steps: jax.Array) -> jax.Array:
    """1 - Var(target - value) / Var(target) over real steps, f32[]; 0 where the targets do not vary.

    1: the critic is right up to a constant; 0: no better than a constant; below 0: worse.
    """
    weight = steps.astype(jnp.float32)
    _, of_error = weighted_mean_std(target - value, weight)
    _, of_target = weighted_mean_std(target, weight)
    varies = of_target > 0
    return jnp.where(varies, 1.0 - jnp.square(of_error / jnp.where(varies, of_target, 1.0)), 0.0)


def gae(inputs: CreditInputs, options: VictOptions) -> CreditOutput:
    """Advantages of `inputs.value`, whitened over the batch with each rollout counted once if so asked.

    The target of the critic is the lambda-return, advantage (before whitening) plus value. Whitening gives 0
    everywhere if all advantages of the batch are the same.

    Raises:
      ValueError: a field of `inputs` has a wrong shape or type.
    """
    check_inputs(inputs)
    real = real_steps(inputs)
    value = jnp.where(real, inputs.value, 0.0)
    raw = advantages(
        step_rewards(inputs), value, real, discount=options.discount, gae_lambda=options.gae_lambda
    )
    target = raw + value
    mean, std = weighted_mean_std(raw, real.astype(jnp.float32))
    figures = {
        "explained_variance": explained_variance(target, value, real),
        "value_mean": weighted_mean_std(value, real.astype(jnp.float32))[0],
        "gae_mean": mean,
        "gae_std": std,
    }
    steps = whiten(raw, real, eps=options.eps)[0] if options.whiten else raw
    moved = jnp.max(jnp.abs(steps), axis=-1)
    return uncorrected(inputs, steps, {**outcome_diagnostics(inputs, moved), **figures}, value_target=target)
