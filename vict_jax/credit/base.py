"""Outcome advantages of one task group: GRPO, RLOO and Dr.GRPO.

Each is a function of `score` f32[N] (terminal scores; anything where the mask is False) and `mask`
bool[N] (real rollouts), and returns

  advantage f32[N]: 0 on rollouts that are not real, in a group of one and in a group of equal scores;
  scale f32[]: what the advantage was divided by, s_R of Eq. 5, in score units.

Every rollout counts once, whatever its length. `vmap` over groups.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp

from vict_jax.credit.masked import masked_mean, masked_std, ordered_sum

GroupAdvantage = Callable[..., tuple[jax.Array, jax.Array]]


def has_spread(score: jax.Array, mask: jax.Array) -> jax.Array:
    """True, bool[], unless all real scores are the same; exact, and True where one is NaN."""
    highest = jnp.max(jnp.where(mask, score, -jnp.inf))
    lowest = jnp.min(jnp.where(mask, score, jnp.inf))
    return jnp.any(mask) & ~(highest == lowest)


def _alive(advantage: jax.Array, score: jax.Array, mask: jax.Array) -> jax.Array:
    return jnp.where(mask & has_spread(score, mask), advantage, 0.0)


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


BASES: Mapping[str, GroupAdvantage] = {"grpo": grpo, "rloo": rloo, "dr_grpo": dr_grpo}
