"""From marginals to corrections: group normalisation, redistribution, scale (Eq. 7, 9, 16, 17)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp

from vict_jax.credit.masked import masked_mean, masked_median, masked_quantile, masked_std, ordered_sum

# Each takes (x f32[N], mask bool[N]) and returns f32[].
CENTERS: Mapping[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
    "median": masked_median,
    "mean": masked_mean,
}


def _mad(x: jax.Array, mask: jax.Array) -> jax.Array:
    """Median absolute deviation from the median, without a consistency factor."""
    return masked_median(jnp.abs(x - masked_median(x, mask)), mask)


def _iqr(x: jax.Array, mask: jax.Array) -> jax.Array:
    return masked_quantile(x, mask, 0.75) - masked_quantile(x, mask, 0.25)


def _mean_ad(x: jax.Array, mask: jax.Array) -> jax.Array:
    """Mean absolute deviation from the mean."""
    return masked_mean(jnp.abs(x - masked_mean(x, mask)), mask)


# Each takes (x f32[N], mask bool[N]) and returns f32[].
SCALES: Mapping[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
    "std": masked_std,
    "mad": _mad,
    "iqr": _iqr,
    "mean_ad": _mean_ad,
}


def normalise(
    marginal: jax.Array, supported: jax.Array, *, scale: str, center: str, eps: float
) -> tuple[jax.Array, jax.Array]:
    """dhat of one atom over the rollouts of its group (Eq. 16).

    Args:
      marginal: f32[N]. supported: bool[N], rollouts with the atom in their core and an edge to it.
      scale: key of `SCALES`. center: key of `CENTERS`.
      eps: added to the scale; a scale no larger than it is rounding and counts as 0.

    Returns:
      dhat: f32[N]; 0 where unsupported or the marginal is 0, and everywhere if the scale is 0 or fewer than
        two rollouts are supported.
      spread: f32[], the scale.
    """
    spread = SCALES[scale](marginal, supported)
    dhat = (marginal - CENTERS[center](marginal, supported)) / (spread + eps)
    kept = supported & (marginal != 0) & (spread > eps) & (jnp.sum(supported) >= 2)
    return jnp.where(kept, dhat, 0.0), spread


def redistribute(
    dhat: jax.Array, weight: jax.Array, total: jax.Array, *, smoothing: float, eps: float
) -> tuple[jax.Array, jax.Array]:
    """Share each atom's dhat among the actions of one rollout along its edges (Eq. 7, 17).

    Args:
      dhat: f32[M]. weight: f32[T, M, R], beta. total: f32[M], sum of beta over t and r.
      smoothing: added to `total`. eps: a sum no larger than this is what opposite contributions leave
        over in rounding, and counts as 0.

    Returns:
      a_vict: f32[T].
      contribution: f32[T, M, R], what came along each edge; its sum is `a_vict`.
    """
    share = jnp.where(total > 0, dhat / jnp.where(total > 0, total + smoothing, 1.0), 0.0)
    contribution = share[:, None] * weight
    a_vict = ordered_sum(jnp.sum(contribution, axis=-1).T)
    return jnp.where(jnp.abs(a_vict) > eps, a_vict, 0.0), contribution


def scale_and_clip(
    advantage: jax.Array,
    a_vict: jax.Array,
    step_mask: jax.Array,
    *,
    gamma_lambda: float,
    clip_quantile: float,
    eps: float,
) -> tuple[jax.Array, jax.Array]:
    """lambda and c of the update batch, f32[] each (Eq. 9).

    Statistics run over the non-zero entries on real steps; without one lambda is 0. Zero is what is no
    larger than `eps`, so that a score equal to its group's mean but for rounding does not count.

    Args:
      advantage: f32[G, N, T], what the correction is added to.
      a_vict, step_mask: f32 and bool [G, N, T].
    """
    size, credit = jnp.abs(advantage).ravel(), jnp.abs(a_vict).ravel()
    steps = step_mask.ravel()
    some, credited = steps & (size > eps), steps & (credit > eps)
    ratio = masked_median(size, some) / (masked_median(credit, credited) + eps)
    lambda_ = jnp.where(jnp.any(credited), gamma_lambda * ratio, 0.0)
    return lambda_, masked_quantile(size, some, clip_quantile)
