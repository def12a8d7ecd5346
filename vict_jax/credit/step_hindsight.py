"""HCAPO: returns weighted by how likely each action becomes once the outcome of a success is known.

The log-probabilities come from one more pass of the policy (`vict_jax.hindsight`).
Source: arXiv 2603.08754.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from vict_jax.credit.base import returns_of
from vict_jax.credit.inputs import real_steps
from vict_jax.credit.masked import ordered_sum
from vict_jax.credit.options import VictOptions
from vict_jax.credit.step_graph import decay
from vict_jax.credit.step_method import (
    StepCredit,
    StepMethod,
    combine,
    compare_within,
    outcome_part,
    paid,
    succeeded,
)
from vict_jax.credit.step_options import HcapoOptions
from vict_jax.types import CreditInputs


def hindsight_values(
    logp: jax.Array, total: jax.Array, real: jax.Array, *, options: HcapoOptions
) -> jax.Array:
    """Q_t = rho_t gamma^(T - t) R, f32[G, N, T]; 0 on padding.

    rho is the hindsight score pi_h = exp(logp / temperature) over its mean in the rollout, clipped. With
    `smoothing` s each step has (1 - s) Q_t + s Q_{t+1}; the last keeps its own.

    Args:
      logp: f32[G, N, T], anything on padding. total: f32[G, N], R. real: bool[G, N, T].
    """
    score = jnp.where(real, jnp.exp(jnp.where(real, logp, 0.0) / options.temperature), 0.0)
    length = jnp.sum(real, axis=-1, keepdims=True)
    mean = ordered_sum(jnp.moveaxis(score, -1, 0))[..., None] / jnp.maximum(length, 1)
    # A rollout all of whose scores vanish says nothing about which step mattered.
    vanishes = mean == 0
    ratio = jnp.where(vanishes, 1.0, score / jnp.where(vanishes, 1.0, mean))
    ratio = jnp.clip(ratio, options.rho_low, options.rho_high)
    left = jnp.maximum(length - 1 - jnp.arange(real.shape[-1]), 0)
    values = jnp.where(real, ratio * decay(left, options.gamma, real.shape[-1]) * total[..., None], 0.0)
    later = jnp.pad(values[..., 1:], [(0, 0), (0, 0), (0, 1)])
    mixed = (1.0 - options.smoothing) * values + options.smoothing * later
    return jnp.where(left > 0, mixed, values)


def hcapo(inputs: CreditInputs, options: VictOptions) -> StepCredit:
    """A_grpo + omega micro: Q within all steps of the task; a success has no negative micro terms."""
    o, inputs = options.hcapo, paid(inputs, options)
    assert inputs.hindsight_logp is not None  # `methods` has looked
    outcome, episode = outcome_part(inputs, options, mode="mean_std")
    real = real_steps(inputs)
    total = options.steps.pay * returns_of(inputs, discount=1.0).total
    values = hindsight_values(inputs.hindsight_logp, total, real, options=o)

    def of_group(value: jax.Array, real: jax.Array) -> jax.Array:
        key = jnp.zeros((1, real.size), jnp.int32)  # one group of all
        row, _ = compare_within(value.ravel(), key, real.ravel(), mode="mean_std", eps=options.eps)
        return row.reshape(real.shape)

    micro = jax.vmap(of_group)(values, real)
    micro = jnp.where(succeeded(inputs)[..., None], jnp.maximum(micro, 0.0), micro)
    return combine(inputs, outcome, episode, micro, omega=o.omega)


HCAPO = StepMethod(hcapo, needs=frozenset({"hindsight_logp"}), section="hcapo")
