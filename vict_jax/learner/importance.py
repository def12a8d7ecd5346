"""Weights of tokens that an older policy mu sampled, when an update starts from the policy pi.

PPO's ratio is to pi then, and its clip a region around pi, while these weights, constants of the update,
correct for the age of the samples: the decoupled objective of arXiv 2110.00641 (Eq. 10; pi is its proximal
policy).
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from vict_jax.learner.losses import LossWeights, PpoOptions, bounded_ratio, mean_log_ratio
from vict_jax.types import TokenBatch


def importance_weights(
    logp: jax.Array, batch: TokenBatch, *, options: PpoOptions
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """min(pi / mu, importance_cap) of each token, f32[S, L]; 1 where nothing is trained.

    With `ratio_level` "sequence" pi / mu is that of the sequence, its geometric mean.

    Args:
      logp: f32[S, L], of the trained tokens under pi.
      batch: `behaviour_logp` is that under mu.

    Returns:
      The weights, and for the metrics over trained tokens: mean and maximum of pi / mu, share above the cap.
    """
    mask = batch.loss_mask
    log_ratio = jnp.where(mask, logp.astype(jnp.float32) - batch.behaviour_logp, 0.0)
    if options.ratio_level == "sequence":
        log_ratio = jnp.where(mask, mean_log_ratio(log_ratio, mask, batch.segment), 0.0)
    ratio = bounded_ratio(log_ratio)
    tokens = jnp.maximum(mask.sum(), 1)
    figures = {
        "importance_mean": jnp.where(mask, ratio, 0.0).sum() / tokens,
        "importance_max": jnp.where(mask, ratio, 0.0).max(),
        "importance_capped": (mask & (ratio > options.importance_cap)).sum() / tokens,
    }
    return jnp.minimum(ratio, options.importance_cap), figures


def weigh(weights: LossWeights, factor: jax.Array, *, options: PpoOptions) -> LossWeights:
    """Token weights times `importance_weights`; of the KL only where it is weighted by the ratio."""
    kl = weights.kl * factor if options.kl_importance_weight else weights.kl
    return dataclasses.replace(weights, policy=weights.policy * factor, kl=kl)
