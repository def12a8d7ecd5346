"""Attention of token rows: our own, which suits a CPU and a cache, and the kernels that ship with JAX.

Axis letters as in `vict_jax.models.decoder`. Rows are packed: a query reads the tokens of its own segment
up to itself, and the tokens of a segment lie in order, so the mask is "same segment, not later".
"""

from __future__ import annotations

import functools
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas.ops.tpu.splash_attention import (
    splash_attention_kernel as splash_kernel,
)
from jax.experimental.pallas.ops.tpu.splash_attention import (
    splash_attention_mask as splash_mask,
)

from vict_jax import sharding

MASKED = -1e30  # finite: a row without any key gives a uniform softmax, not NaN
QUERY_BLOCKS, MIN_QUERY_BLOCK = 4, 32  # see `causal_attention`
_SPLASH_BLOCKS = (512, 256, 128)  # the first that divides the length of a row
_CUDNN_HEAD = 128  # widest head of cuDNN's kernel, forward and backward


def attention(q: jax.Array, k: jax.Array, v: jax.Array, bias: jax.Array) -> jax.Array:
    """Grouped-query attention with a float32 softmax.

    Args:
      q: [b, s, n, h]. k: [b, k, h, t]. v: [b, k, t, h] (the layouts of the cache).
      bias: f32[b, s, t], 0 where a query may read a key, else `MASKED`. Added, not selected: XLA
        fuses an addition into the softmax on CPU, which halves the time of the forward.

    Returns:
      [b, s, n * h]; of queries that may read nothing, a finite value without meaning.
    """
    b, s, n, h = q.shape
    kv_heads, t = k.shape[1], k.shape[-1]
    # One matmul [g*s, h] x [h, t] per row and key/value head. The two axes stay apart: a mesh splits both.
    q = (q * h**-0.5).reshape(b, s, kv_heads, -1, h).transpose(0, 2, 3, 1, 4).reshape(b, kv_heads, -1, h)
    score = jnp.matmul(q, k, preferred_element_type=jnp.float32)
    score = score.reshape(b, kv_heads, -1, s, t) + bias[:, None, None]
    weight = jnp.exp(score - lax.stop_gradient(score.max(axis=-1, keepdims=True)))
    total = weight.sum(axis=-1, keepdims=True)
    out = weight.astype(v.dtype).reshape(b, kv_heads, -1, t) @ v
    # Normalised after the matmul: h values per query instead of t.
    out = (out.reshape(b, kv_heads, -1, s, h) / total).astype(v.dtype)
    return out.transpose(0, 3, 1, 2, 4).reshape(b, s, n * h)


def causal_attention(q: jax.Array, k: jax.Array, v: jax.Array, bias: jax.Array) -> jax.Array:
    """`attention` of queries [b, s, n, h] on keys and values [b, s, k, h] of the same tokens.

    Token order is causal order (`bias` masks every key that comes later), so queries are taken in
    `QUERY_BLOCKS` blocks that skip the keys after them: three eighths of the work, and buffers that
    stay in cache.
    """
    s = q.shape[1]
    k, v = k.transpose(0, 2, 3, 1), v.transpose(0, 2, 1, 3)
    width = max(MIN_QUERY_BLOCK, -(-s // QUERY_BLOCKS))
    spans = [(start, min(start + width, s)) for start in range(0, s, width)]
    out = [attention(q[:, a:e], k[..., :e], v[:, :, :e], bias[:, a:e, :e]) for a, e in spans]
    return jnp.concatenate(out, axis=1)


def mask_bias(mask: jax.Array) -> jax.Array:
    """f32, 0 where `mask` is True, else `MASKED`: what `attention` adds to its scores."""
    return jnp.where(mask, 0.0, MASKED).astype(jnp.float32)


def choose(wanted: str, platform: str, shape: tuple[int, ...], dtype: jnp.dtype) -> str:
    """The implementation for queries of `shape` [b, s, n, h]: one of `config.ATTENTION` but "auto".

    "auto" is JAX's kernel for the platform, where that takes these sizes: "splash" on TPU, "cudnn" on CUDA,
    else "xla" on a GPU and "blocks" elsewhere.

    Args:
      wanted: `ModelConfig.attention`. platform: "cpu", "gpu" or "tpu", where the program will run.

    Raises:
      ValueError: `wanted` cannot be had for this platform or these sizes.
    """
    obstacles = {"splash": _no_splash(platform, shape), "cudnn": _no_cudnn(platform, shape, dtype)}
    if wanted != "auto":
        if obstacles.get(wanted):
            raise ValueError(f"attention={wanted!r} is not possible here: {obstacles[wanted]}")
        return wanted
    own = "xla" if platform == "gpu" else "blocks"
    return next((name for name, obstacle in obstacles.items() if not obstacle), own)


def _platform(x: jax.Array) -> str:
    """Where the program will run, which need not be where it is traced."""
    device = jax.typeof(x).sharding.mesh.abstract_device
    name = jax.default_backend() if device is None else device.platform
    return "gpu" if name in ("cuda", "rocm") else name


def _no_splash(platform: str, shape: tuple[int, ...]) -> str:
    """What keeps "splash" from these queries; empty if nothing does."""
    if platform != "tpu":
        return f"it is a kernel for TPU, the platform is {platform!r}"
    if shape[1] % _SPLASH_BLOCKS[-1]:
        return f"rows of {shape[1]} tokens are no multiple of {_SPLASH_BLOCKS[-1]}"
    return ""


def _no_cudnn(platform: str, shape: tuple[int, ...], dtype: jnp.dtype) -> str:
    if platform != "gpu":
        return f"it is a kernel for CUDA, the platform is {platform!r}"
    if dtype != jnp.bfloat16:
        return f"it computes in bfloat16, the model's dtype is {dtype}"
    if shape[-1] > _CUDNN_HEAD or shape[-1] % 8:
        return f"head_dim={shape[-1]} is not a multiple of 8 up to {_CUDNN_HEAD}"
    if shape[1] % 2:
        return f"it has no gradient with a mask for rows of an odd number of tokens, {shape[1]}"
    return ""


def self_attention(
    wanted: str, q: jax.Array, k: jax.Array, v: jax.Array, segment: jax.Array, bias: jax.Array
) -> jax.Array:
    """What queries [b, s, n, h] read from keys and values [b, s, k, h] of the same packed rows.

    Args:
      wanted: `ModelConfig.attention`, see `choose`.
      segment: i32[b, s]; 0 is padding. bias: f32[b, s, s], 0 on what a query may read.

    Returns:
      [b, s, n * h]; on padding, a finite value without meaning.
    """
    kind = choose(wanted, _platform(q), q.shape, q.dtype)
    if kind == "blocks":
        return causal_attention(q, k, v, bias)
    b, s, n, h = q.shape
    if kind == "splash":
        return splash_attention(q, k, v, segment).reshape(b, s, n * h)
    kernel: Literal["cudnn", "xla"] = "cudnn" if kind == "cudnn" else "xla"
    out = jax.nn.dot_product_attention(q, k, v, mask=(bias == 0)[:, None], implementation=kernel)
    return out.reshape(b, s, n * h)


def splash_attention(
    q: jax.Array, k: jax.Array, v: jax.Array, segment: jax.Array, *, interpret: bool = False
) -> jax.Array:
    """JAX's splash kernel, on every device for its own rows and heads: [b, s, n, h].

    Args:
      interpret: run it on any platform, slowly, for tests.
    """
    mesh = sharding.spread(q)
    kernel = functools.partial(_splash_rows, interpret=interpret)
    if mesh is None:
        return kernel(q, k, v, segment)
    heads = sharding.activation(mesh, q.shape, "rows", None, "heads", None).spec
    rows = sharding.activation(mesh, segment.shape, "rows", None).spec
    # The kernel is opaque to the partitioner. check_vma: it does not say over which axes its output varies.
    return jax.shard_map(
        kernel, mesh=mesh, in_specs=(heads, heads, heads, rows), out_specs=heads, check_vma=False
    )(q, k, v, segment)


def _splash_rows(
    q: jax.Array, k: jax.Array, v: jax.Array, segment: jax.Array, *, interpret: bool
) -> jax.Array:
    _, s, n, h = q.shape
    kernel = _splash(s, n, interpret)

    def row(q: jax.Array, k: jax.Array, v: jax.Array, segment: jax.Array) -> Any:
        return kernel(q, k, v, segment_ids=splash_kernel.SegmentIds(segment, segment))

    q, k, v = (y.swapaxes(1, 2) for y in (q * h**-0.5, k, v))
    return jax.vmap(row)(q, k, v, segment).swapaxes(1, 2)


@functools.lru_cache
def _splash(length: int, heads: int, interpret: bool) -> splash_kernel.SplashAttentionKernel:
    """The causal kernel for rows of `length` tokens; its tables of blocks to skip are made on the host."""
    block = next(size for size in _SPLASH_BLOCKS if length % size == 0)
    sizes = splash_kernel.BlockSizes(
        block_q=block,
        block_kv=block,
        block_kv_compute=block,
        block_q_dkv=block,
        block_kv_dkv=block,
        block_kv_dkv_compute=block,
        block_q_dq=block,
        block_kv_dq=block,
    )
    mask = splash_mask.MultiHeadMask([splash_mask.CausalMask((length, length))] * heads)
    with jax.ensure_compile_time_eval():
        return splash_kernel.make_splash_mha(
            mask, block_sizes=sizes, head_shards=1, q_seq_shards=1, interpret=interpret
        )
