"""Key/value cache of a decoder: one pair of buffers per layer, updated in place.

A buffer per layer, not one stack: slicing a layer out of a stack copies it at every token on CPU, and
so does returning caches as scan outputs; separate buffers that only pass through a donated `jit` and
a `while_loop` carry are updated where they are. Keys are stored with the slot axis last, which is
the layout that the score matmul of grouped heads reads fastest (twice as fast as [l, h] on CPU).
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax

from vict_jax import sharding
from vict_jax.models.config import ModelConfig
from vict_jax.types import pytree

_AXES = ("rows", "kv_heads", None, None)  # logical axes of a buffer; those of `length` are the first


@pytree
class KVCache:
    """Keys and values of the tokens that each row has seen; slot index = position in the sequence.

    Slots at or beyond `length` hold leftovers that attention never reads. Axes: b rows, k key/value
    heads, h head width, l slots.

    Attributes:
      k: per layer, dtype[b, k, h, l], rotated keys.
      v: per layer, dtype[b, k, l, h].
      length: i32[b], tokens held by each row.
    """

    k: tuple[jax.Array, ...]
    v: tuple[jax.Array, ...]
    length: jax.Array

    @property
    def size(self) -> int:
        """Slots per row."""
        return self.k[0].shape[-1]


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def init_cache(config: ModelConfig, rows: int, size: int, mesh: jax.sharding.Mesh | None = None) -> KVCache:
    """An empty cache of `rows` rows with `size` slots each, in the model's compute dtype.

    With a `mesh` rows are split as batches and heads over `tensor`, where these divide them.
    """
    head, dtype = (rows, config.num_kv_heads), config.compute_dtype
    layers = range(config.num_layers)
    cache = KVCache(
        k=tuple(jnp.zeros((*head, config.head_dim, size), dtype) for _ in layers),
        v=tuple(jnp.zeros((*head, size, config.head_dim), dtype) for _ in layers),
        length=jnp.zeros((rows,), jnp.int32),
    )
    if mesh is None:
        return cache
    where = jax.tree.map(lambda x: sharding.activation(mesh, x.shape, *_AXES[: x.ndim]), cache)
    return lax.with_sharding_constraint(cache, where)


def placed(cache: KVCache) -> KVCache:
    """Under `jit`: a cache that lies where `init_cache` puts it on the mesh of its buffers."""
    return jax.tree.map(lambda x: sharding.constrain(x, *_AXES[: x.ndim]), cache)


def fill(k_cache: jax.Array, v_cache: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Write the first tokens of one layer: `append` at slot 0 of every row, padding included.

    Args and returns as `append`; s must not exceed the slots.
    """
    k_cache = lax.dynamic_update_slice(k_cache, k.transpose(0, 2, 3, 1), (0, 0, 0, 0))
    return k_cache, lax.dynamic_update_slice(v_cache, v.transpose(0, 2, 1, 3), (0, 0, 0, 0))


def append(
    k_cache: jax.Array, v_cache: jax.Array, k: jax.Array, v: jax.Array, slot: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Write new keys and values of one layer.

    Args:
      k_cache: [b, k, h, l]. v_cache: [b, k, l, h].
      k, v: [b, s, k, h], the new tokens.
      slot: i32[b, s], the slot of each token, consecutive in a row; tokens whose slot is `l` or more
        are dropped (padding is sent there).

    Returns:
      The two buffers with the tokens in place.
    """
    size = k_cache.shape[-1]
    if k.shape[1] == 1:
        rows, slot = jnp.arange(k.shape[0]), slot[:, 0]
        k_cache = k_cache.at[rows, :, :, slot].set(k[:, 0], mode="drop")
        return k_cache, v_cache.at[rows, :, slot].set(v[:, 0], mode="drop")
    # For a chunk, one pass over the buffer is cheaper than b * s scattered writes. Each slot looks
    # up the token meant for it; slots before the chunk and those of padding keep what they had.
    index = jnp.arange(size) - slot[:, :1]
    taken = jnp.clip(index, 0, k.shape[1] - 1)
    fresh = (index >= 0) & (jnp.take_along_axis(slot, taken, axis=1) == jnp.arange(size))
    k = jnp.take_along_axis(k, taken[:, :, None, None], axis=1)  # [b, l, k, h]
    v = jnp.take_along_axis(v, taken[:, :, None, None], axis=1)
    k_cache = jnp.where(fresh[:, None, None, :], k.transpose(0, 2, 3, 1), k_cache)
    return k_cache, jnp.where(fresh[:, None, :, None], v.transpose(0, 2, 1, 3), v_cache)


@jax.jit
def take_rows(cache: KVCache, indices: jax.Array) -> KVCache:
    """Rows `indices` (i32[c]) of a cache, in that order; gathers active rows into a smaller batch."""
    return placed(jax.tree.map(lambda x: jnp.take(x, indices, axis=0), cache))


@functools.partial(jax.jit, static_argnums=(1, 2))
def repeat_row(cache: KVCache, rows: int, size: int) -> KVCache:
    """The one row of `cache`, `rows` times, with `size` slots each (at least as many as it has)."""
    cache = grow(cache, size)
    return placed(jax.tree.map(lambda x: jnp.repeat(x, rows, axis=0), cache))


@functools.partial(jax.jit, donate_argnums=(0,))
def place_rows(cache: KVCache, part: KVCache, source: jax.Array) -> KVCache:
    """Copy rows of a smaller cache to the first slots of rows of `cache`.

    Args:
      cache: b rows, donated. part: at most as many slots per row.
      source: i32[b], the row of `part` that a row takes; -1 leaves the row as it is.
    """
    taken = source >= 0
    row = jnp.maximum(source, 0)

    def place(whole: jax.Array, piece: jax.Array) -> jax.Array:
        old = lax.slice(whole, (0,) * whole.ndim, (whole.shape[0], *piece.shape[1:]))
        new = jnp.where(taken.reshape(-1, *[1] * (whole.ndim - 1)), jnp.take(piece, row, axis=0), old)
        return lax.dynamic_update_slice(whole, new, (0,) * whole.ndim)

    return placed(jax.tree.map(place, cache, part))


@functools.partial(jax.jit, static_argnums=(1,))
def grow(cache: KVCache, size: int) -> KVCache:
    """The same cache with `size` slots per row.

    Raises:
      ValueError: `size` is less than the present number of slots.
    """
    extra = size - cache.size
    if extra < 0:
        raise ValueError(f"size must be at least the present {cache.size} slots, got {size}")

    def pad(x: jax.Array, axis: int) -> jax.Array:
        return jnp.pad(x, [(0, extra if a == axis else 0) for a in range(x.ndim)])

    return KVCache(
        k=tuple(pad(x, 3) for x in cache.k), v=tuple(pad(x, 2) for x in cache.v), length=cache.length
    )
