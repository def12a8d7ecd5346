"""Outcome estimators: from the returns of a batch of rollouts to one advantage a rollout, and a step.

Those of the GRPO family compare the rollouts of one task group with each other; each is a function of one
group, `score` f32[N] (returns; anything where the mask is False) and `mask` bool[N] (real rollouts), and
returns

  advantage f32[N]: 0 on rollouts that are not real, in a group of one and in a group of equal returns;
  scale f32[]: what the advantage was divided by, s_R of Eq. 5, in score units.

`BASES` holds every estimator in one form: `Returns` of the whole batch in, `Outcome` out. `per_group` gives a
function of one group that form. Every rollout counts once, whatever its length, except in estimators whose
name ends in `_rows`, in which each of its steps counts as one more rollout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp

from vict_jax.credit.inputs import real_steps
from vict_jax.credit.masked import masked_mean, masked_std, ordered_sum, weighted_mean_std
from vict_jax.types import CreditInputs, pytree

GroupAdvantage = Callable[..., tuple[jax.Array, jax.Array]]


@pytree
class Returns:
    """What an outcome estimator sees of a batch.

    Attributes:
      total: f32[G, N], return of each rollout: its score less its penalties, not discounted.
      to_go: f32[G, N, T], discounted return from each step on; 0 on padding.
      steps: bool[G, N, T], real steps. rollouts: bool[G, N], real rollouts.
    """

    total: jax.Array
    to_go: jax.Array
    steps: jax.Array
    rollouts: jax.Array


@pytree
class Outcome:
    """What an outcome estimator returns.

    Attributes:
      advantage: f32[G, N], of the rollout as a whole: the outcome part of Eq. 10.
      steps: f32[G, N, T], of each step; 0 on padding. Most estimators repeat `advantage`.
      scale: f32[G], what `advantage` was divided by.
    """

    advantage: jax.Array
    steps: jax.Array
    scale: jax.Array


Base = Callable[..., Outcome]  # (Returns, *, eps) -> Outcome


def step_rewards(inputs: CreditInputs) -> jax.Array:
    """Reward of each step, f32[G, N, T]: minus its penalty, and the score at the last step; 0 on padding."""
    real = real_steps(inputs)
    following = jnp.pad(real[..., 1:], [(0, 0), (0, 0), (0, 1)])
    reward = jnp.where(real & ~following, inputs.score[..., None], 0.0) - inputs.penalty
    return jnp.where(real, reward, 0.0)


def returns_of(inputs: CreditInputs, *, discount: float) -> Returns:
    """Returns of every rollout; `discount` (gamma) is that of `Returns.to_go`."""
    real = real_steps(inputs)
    penalty = ordered_sum(jnp.moveaxis(jnp.where(real, inputs.penalty, 0.0), -1, 0))

    def back(later: jax.Array, step: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        reward, is_real = step
        now = jnp.where(is_real, reward + discount * later, later)
        return now, now

    by_step = (jnp.moveaxis(step_rewards(inputs), -1, 0), jnp.moveaxis(real, -1, 0))
    _, to_go = jax.lax.scan(back, jnp.zeros_like(penalty), by_step, reverse=True)
    return Returns(
        total=inputs.score - penalty,
        to_go=jnp.where(real, jnp.moveaxis(to_go, 0, -1), 0.0),
        steps=real,
        rollouts=inputs.rollout_mask,
    )


def has_spread(score: jax.Array, mask: jax.Array) -> jax.Array:
    """True, bool[], unless all real scores are the same; exact, and True where one is NaN."""
    highest = jnp.max(jnp.where(mask, score, -jnp.inf))
    lowest = jnp.min(jnp.where(mask, score, jnp.inf))
    return jnp.any(mask) & ~(highest == lowest)


def _alive(advantage: jax.Array, score: jax.Array, mask: jax.Array) -> jax.Array:
    return jnp.where(mask & has_spread(score, mask), advantage, 0.0)


# --- one group ------------------------------------------------------------------------------------


def dr_grpo(score: jax.Array, mask: jax.Array, *, eps: float) -> tuple[jax.Array, jax.Array]:
    """R_i - mean (Dr.GRPO, arXiv 2503.20783). Its scale is 1; `eps` is not used."""
    del eps
    return _alive(score - masked_mean(score, mask), score, mask), jnp.float32(1.0)


def grpo(score: jax.Array, mask: jax.Array, *, eps: float) -> tuple[jax.Array, jax.Array]:
    """(R_i - mean) / (std + eps), std with n - 1 (GRPO, arXiv 2402.03300). Its scale is std + eps."""
    scale = masked_std(score, mask) + eps
    return _alive((score - masked_mean(score, mask)) / scale, score, mask), scale


def rloo(score: jax.Array, mask: jax.Array, *, eps: float) -> tuple[jax.Array, jax.Array]:
    """R_i - mean of the other rollouts (RLOO, arXiv 2402.14740). Its scale is 1; `eps` is not used."""
    del eps
    total = ordered_sum(jnp.where(mask, score, 0.0))
    others = (total - score) / jnp.maximum(jnp.sum(mask) - 1, 1)
    return _alive(score - others, score, mask), jnp.float32(1.0)


def grpo_rows(
    score: jax.Array, mask: jax.Array, length: jax.Array, *, eps: float
) -> tuple[jax.Array, jax.Array]:
    """GRPO as in code that has one row a step: a rollout of `length` (f32[N]) steps counts that often."""
    mean, std = weighted_mean_std(score, jnp.where(mask, length, 0.0))
    scale = std + eps
    return _alive((score - mean) / scale, score, mask), scale


def per_group(function: GroupAdvantage, *, rows: bool = False) -> Base:
    """An estimator of the form of `BASES` from a function of one group; with `rows` it gets lengths too."""

    def base(returns: Returns, *, eps: float) -> Outcome:
        values = [returns.total, returns.rollouts]
        if rows:
            values.append(jnp.sum(returns.steps, axis=-1).astype(jnp.float32))
        advantage, scale = jax.vmap(lambda *group: function(*group, eps=eps))(*values)
        return Outcome(advantage, jnp.where(returns.steps, advantage[..., None], 0.0), scale)

    return base


# --- the whole batch ------------------------------------------------------------------------------


def step_weights(steps: jax.Array, *, rows: bool = False) -> jax.Array:
    """Weight f32[G, N, T] of each step in a statistic: 1 / T_i, with `rows` 1; 0 on padding."""
    length = jnp.maximum(jnp.sum(steps, axis=-1, keepdims=True), 1).astype(jnp.float32)
    return jnp.where(steps, 1.0 if rows else 1.0 / length, 0.0)


def whiten(x: jax.Array, steps: jax.Array, *, eps: float, rows: bool = False) -> tuple[jax.Array, jax.Array]:
    """(x - mean) / (std + eps) over all real steps of a batch.

    Args:
      x: f32[G, N, T]; anything on padding. steps: bool[G, N, T].
      rows: every step counts once; otherwise every rollout does, through the mean of its steps.

    Returns:
      f32[G, N, T], 0 on padding, and everywhere if all steps have the same value; and std + eps, f32[].
    """
    mean, std = weighted_mean_std(x, step_weights(steps, rows=rows))
    return _alive((x - mean) / (std + eps), x, steps), std + eps


def reinforce_pp(returns: Returns, *, eps: float, rows: bool = False) -> Outcome:
    """Return-to-go, whitened over the batch (REINFORCE++, arXiv 2501.03262).

    The baseline is the batch, not the task: a group of equal returns has an advantage, unless all returns of
    the batch are the same. The outcome part is the advantage of the first step. `rows`: see `whiten`.
    """
    steps, scale = whiten(returns.to_go, returns.steps, eps=eps, rows=rows)
    return Outcome(steps[..., 0], steps, jnp.broadcast_to(scale, returns.total.shape[:1]))


def reinforce_pp_rows(returns: Returns, *, eps: float) -> Outcome:
    """`reinforce_pp` with every step counted once, as in the implementations that whiten over tokens."""
    return reinforce_pp(returns, eps=eps, rows=True)


def reinforce_pp_baseline(returns: Returns, *, eps: float) -> Outcome:
    """R_i - mean of the group, divided by the std of that over the batch (REINFORCE++ with baseline, ibid.).

    The mean over the batch is 0 by then, so only the scale is shared; a group of equal returns has exactly 0.
    """
    centred = jax.vmap(lambda score, mask: dr_grpo(score, mask, eps=eps)[0])(returns.total, returns.rollouts)
    _, std = weighted_mean_std(centred[..., None], returns.rollouts[..., None].astype(jnp.float32))
    scale = jnp.broadcast_to(std + eps, centred.shape[:1])
    advantage = centred / scale[:, None]
    return Outcome(advantage, jnp.where(returns.steps, advantage[..., None], 0.0), scale)


# How each estimator normalises, for the header of a run.
STATISTICS: Mapping[str, str] = {
    "grpo": "mean and std (ddof=1) of the group, each rollout counted once",
    "rloo": "mean of the group's other rollouts, each counted once",
    "dr_grpo": "mean of the group, each rollout counted once",
    "grpo_rows": "mean and std (ddof=1) of the group, each STEP counted once",
    "reinforce_pp": "return-to-go, mean and std (ddof=1) of the batch, each rollout counted once",
    "reinforce_pp_rows": "return-to-go, mean and std (ddof=1) of the batch, each STEP counted once",
    "reinforce_pp_baseline": "mean of the group, then std (ddof=1) of the batch, each rollout counted once",
}
BASES: Mapping[str, Base] = {
    "grpo": per_group(grpo),
    "rloo": per_group(rloo),
    "dr_grpo": per_group(dr_grpo),
    "grpo_rows": per_group(grpo_rows, rows=True),
    "reinforce_pp": reinforce_pp,
    "reinforce_pp_rows": reinforce_pp_rows,
    "reinforce_pp_baseline": reinforce_pp_baseline,
}
