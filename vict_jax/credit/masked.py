"""Statistics over the selected entries of a padded vector.

They return the same bits however much padding there is: unselected entries are replaced, never
multiplied by 0 (NaN would survive that), and sums run in index order, so that adding zeros at the
end does not regroup them.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp


def ordered_sum(x: jax.Array) -> jax.Array:
    """Sum of x [K, ...] over its first axis, strictly in index order."""
    total, _ = jax.lax.scan(lambda acc, row: (acc + row, None), jnp.zeros_like(x[0]), x)
    return total


def masked_mean(x: jax.Array, mask: jax.Array) -> jax.Array:
    """Mean f32[] of the selected entries of x f32[K]; 0 when none is selected."""
    return ordered_sum(jnp.where(mask, x, 0.0)) / jnp.maximum(jnp.sum(mask), 1)


def masked_std(x: jax.Array, mask: jax.Array) -> jax.Array:
    """Standard deviation f32[] (n - 1 in the denominator) of the selected entries of x f32[K]."""
    deviation = jnp.where(mask, x - masked_mean(x, mask), 0.0)
    return jnp.sqrt(ordered_sum(jnp.square(deviation)) / jnp.maximum(jnp.sum(mask) - 1, 1))


def weighted_mean_std(x: jax.Array, weight: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mean and standard deviation, f32[] each, of x f32[...] whose entries count `weight` f32[...] times.

    With W the sum of the weights, the denominator of the variance is W - 1 (at least 1): the n - 1 of
    `masked_std` where the weights are 1. Entries of weight 0 may be anything. 0 and 0 when W is 0.
    """

    def total(x: jax.Array) -> jax.Array:
        for _ in range(
            x.ndim
        ):  # axis by axis from the last, so that padding along any of them changes no bit
            x = ordered_sum(jnp.moveaxis(x, -1, 0))
        return x

    counted = weight > 0
    count = total(weight)
    mean = total(jnp.where(counted, x, 0.0) * weight) / jnp.where(count > 0, count, 1.0)
    squares = total(jnp.square(jnp.where(counted, x - mean, 0.0)) * weight)
    return mean, jnp.sqrt(squares / jnp.maximum(count - 1, 1.0))


def _order_statistic(x: jax.Array, mask: jax.Array, rank: jax.Array) -> jax.Array:
    """Entry number `rank` (i32[], from 0) of the selected entries of x f32[K] in increasing order, f32[].

    Found bit by bit from the highest: floats ordered as unsigned integers, 32 counts over x. On a CPU that
    is several times faster than sorting, which has no fast form there.
    """
    bits = jax.lax.bitcast_convert_type(x.astype(jnp.float32), jnp.uint32)
    sign = jnp.uint32(1 << 31)
    ordered = jnp.where(bits >= sign, ~bits, bits | sign)

    def settle(i: int, prefix: jax.Array) -> jax.Array:
        candidate = prefix | (sign >> jnp.uint32(i))
        below = jnp.sum(mask & (ordered < candidate))
        return jnp.where(below <= rank, candidate, prefix)

    found = jax.lax.fori_loop(0, 32, settle, jnp.uint32(0))
    bits = jnp.where(found >= sign, found ^ sign, ~found)
    return jax.lax.bitcast_convert_type(bits, jnp.float32)


def masked_quantile(x: jax.Array, mask: jax.Array, q: float) -> jax.Array:
    """Quantile f32[] of the selected entries of x f32[K], interpolated linearly as `numpy.quantile`.

    With n selected entries in increasing order it is the entry at position q (n - 1), between two
    entries in proportion. 0 when none is selected. `q` is in [0, 1].
    """
    count = jnp.sum(mask)
    position = q * jnp.maximum(count - 1, 0).astype(jnp.float32)
    below = jnp.floor(position).astype(jnp.int32)
    above = jnp.minimum(below + 1, jnp.maximum(count - 1, 0))
    low, high = _order_statistic(x, mask, below), _order_statistic(x, mask, above)
    return jnp.where(count > 0, low + (high - low) * (position - below), 0.0)


def masked_median(x: jax.Array, mask: jax.Array) -> jax.Array:
    """Median f32[] of the selected entries of x f32[K]; 0 when none is selected."""
    return masked_quantile(x, mask, 0.5)
