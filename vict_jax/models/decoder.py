"""Decoder of the Qwen2 family in functional Flax NNX: one forward for sampling, reference and update.

Axis letters: b rows, s tokens of a call, t keys, d model, n query heads, k key/value heads,
g = n / k query heads per key/value head, h head width, f feed-forward, v vocabulary, l layers.

Architecture: Qwen2 (arXiv 2407.10671); RMSNorm (arXiv 1910.07467), rotary positions in half-split
form (arXiv 2104.09864), grouped-query attention (arXiv 2305.13245), SwiGLU (arXiv 2002.05202).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.nn import initializers

from vict_jax.models import cache as kv
from vict_jax.models.config import ModelConfig

MASKED = -1e30  # finite: a row without any key gives a uniform softmax, not NaN
LOGP_CHUNK = 1024  # tokens whose float32 logits exist at once in `token_logp`

Layer = Mapping[str, jax.Array]
Rope = tuple[jax.Array, jax.Array]  # cos, sin
Attend = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


@dataclasses.dataclass(frozen=True)
class Weight:
    """Declaration of one parameter: shape, logical axis of each dimension, initialiser."""

    shape: tuple[int, ...]
    axes: tuple[str | None, ...]
    init: Callable[[jax.Array, tuple[int, ...], Any], jax.Array]


def _dense(scale: float = 1.0) -> Callable:
    """Truncated normal of variance `scale / fan_in`, layer axis first."""
    return initializers.variance_scaling(
        scale, "fan_in", "truncated_normal", in_axis=-2, out_axis=-1, batch_axis=0
    )


def weights(config: ModelConfig) -> dict[str, Any]:
    """Every parameter, declared once, in the tree that `init` returns; layers stacked on axis 0."""
    c, ones, zeros = config, initializers.ones, initializers.zeros
    n, k = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    # The two matrices that write to the residual stream are scaled down with the depth (GPT-2).
    residual = _dense(1 / (2 * c.num_layers))
    vocabulary = Weight((c.vocab_size, c.d_model), ("vocab", "embed"), initializers.normal(c.d_model**-0.5))
    layers = {
        "attn_norm": Weight((c.d_model,), (None,), ones),
        "q": Weight((c.d_model, n), ("embed", "heads"), _dense()),
        "k": Weight((c.d_model, k), ("embed", "kv_heads"), _dense()),
        "v": Weight((c.d_model, k), ("embed", "kv_heads"), _dense()),
        "o": Weight((n, c.d_model), ("heads", "embed"), residual),
        "mlp_norm": Weight((c.d_model,), (None,), ones),
        "gate": Weight((c.d_model, c.d_ff), ("embed", "mlp"), _dense()),
        "up": Weight((c.d_model, c.d_ff), ("embed", "mlp"), _dense()),
        "down": Weight((c.d_ff, c.d_model), ("mlp", "embed"), residual),
    }
    if c.qkv_bias:
        layers["q_bias"] = Weight((n,), ("heads",), zeros)
        layers["k_bias"] = Weight((k,), ("kv_heads",), zeros)
        layers["v_bias"] = Weight((k,), ("kv_heads",), zeros)
    stacked = {
        name: Weight((c.num_layers, *w.shape), ("layers", *w.axes), w.init) for name, w in layers.items()
    }
    tree = {"embed": vocabulary, "layers": stacked, "final_norm": Weight((c.d_model,), (None,), ones)}
    return tree if c.tie_embeddings else {**tree, "head": vocabulary}


class Decoder(nnx.Module):
    """The parameters of a decoder. Built by `init`; used through `apply`, `logits`, `token_logp`."""

    def __init__(self, config: ModelConfig, key: jax.Array):
        declared = weights(config)
        keys = iter(jax.random.split(key, len(jax.tree.leaves(declared))))
        params = jax.tree.map(
            lambda w: nnx.Param(w.init(next(keys), w.shape, jnp.dtype(config.param_dtype))), declared
        )
        self.config = config
        self.embed = params["embed"]
        self.layers = nnx.Dict(params["layers"])
        self.final_norm = params["final_norm"]
        self.head = None if config.tie_embeddings else params["head"]

    def stacked_layers(self) -> dict[str, jax.Array]:
        """Layer parameters by name, stacked, in the compute dtype."""
        return {name: p[...].astype(self.config.compute_dtype) for name, p in self.layers.items()}

    def head_matrix(self) -> jax.Array:
        """The output head, dtype[v, d]."""
        head = self.embed if self.head is None else self.head
        return head[...].astype(self.config.compute_dtype)


def init(config: ModelConfig, key: jax.Array) -> tuple[nnx.GraphDef, nnx.State]:
    """New parameters: (graphdef, params); `params` has the tree of `weights(config)`."""
    return nnx.split(Decoder(config, key))


def logical_axes(config: ModelConfig) -> dict[str, Any]:
    """Logical axis names of every parameter, as tuples in the tree of `weights(config)`."""
    return jax.tree.map(lambda w: w.axes, weights(config))


def rms_norm(x: jax.Array, scale: jax.Array, eps: float) -> jax.Array:
    """x / rms(x) * scale over the last axis, the statistics in float32."""
    x32 = x.astype(jnp.float32)
    inverse = lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + eps)
    return (x32 * inverse).astype(x.dtype) * scale.astype(x.dtype)


def rotary_table(position: jax.Array, head_dim: int, theta: float) -> tuple[jax.Array, jax.Array]:
    """(cos, sin), f32[b, s, 1, h/2], of the angles position * theta^(-2i/h)."""
    frequency = theta ** (-jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim)
    angle = position.astype(jnp.float32)[..., None, None] * frequency
    return jnp.cos(angle), jnp.sin(angle)


def rotate(x: jax.Array, rope: Rope) -> jax.Array:
    """Rotate the pairs (x_i, x_{i + h/2}) of `x` [b, s, heads, h]."""
    cos, sin = rope
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


def attention(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array) -> jax.Array:
    """Grouped-query attention with a float32 softmax.

    Args:
      q: [b, s, n, h]. k: [b, k, h, t]. v: [b, k, t, h] (the layouts of the cache).
      mask: bool[b, s, t], True where a query may read a key.

    Returns:
      [b, s, n * h]; of queries that may read nothing, a finite value without meaning.
    """
    b, s, n, h = q.shape
    groups = n // k.shape[1]
    # One matmul [g*s, h] x [h, t] per key/value head.
    q = q.reshape(b, s, k.shape[1], groups, h).transpose(0, 2, 3, 1, 4).reshape(b, -1, groups * s, h)
    score = jnp.einsum("bkqh,bkht->bkqt", q * h**-0.5, k, preferred_element_type=jnp.float32)
    score = score.reshape(b, -1, groups, s, k.shape[-1])
    weight = jax.nn.softmax(jnp.where(mask[:, None, None], score, MASKED), axis=-1).astype(v.dtype)
    out = jnp.einsum("bkqt,bkth->bkqh", weight.reshape(b, -1, groups * s, k.shape[-1]), v)
    return out.reshape(b, -1, groups, s, h).transpose(0, 3, 1, 2, 4).reshape(b, s, n * h)


def _project(
    config: ModelConfig, layer: Layer, x: jax.Array, rope: Rope
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Rotated queries [b, s, n, h], rotated keys and values [b, s, k, h] of the normed stream."""
    q, k, v = (x @ layer[name] for name in ("q", "k", "v"))
    if config.qkv_bias:
        q, k, v = q + layer["q_bias"], k + layer["k_bias"], v + layer["v_bias"]
    q, k, v = (y.reshape(*y.shape[:2], -1, config.head_dim) for y in (q, k, v))
    return rotate(q, rope), rotate(k, rope), v


def _block(config: ModelConfig, layer: Layer, x: jax.Array, rope: Rope, attend: Attend) -> jax.Array:
    """One layer; `attend(q, k, v) -> [b, s, n*h]` decides what the queries read."""
    q, k, v = _project(config, layer, rms_norm(x, layer["attn_norm"], config.rms_eps), rope)
    x = x + attend(q, k, v) @ layer["o"]
    y = rms_norm(x, layer["mlp_norm"], config.rms_eps)
    return x + (jax.nn.silu(y @ layer["gate"]) * (y @ layer["up"])) @ layer["down"]


def apply(
    graphdef: nnx.GraphDef,
    params: nnx.State,
    ids: jax.Array,
    segment: jax.Array,
    position: jax.Array,
    cache: kv.KVCache | None = None,
) -> tuple[jax.Array, kv.KVCache | None]:
    """Final hidden states of a batch of token rows.

    Args:
      ids: i32[b, s]; any value on padding.
      segment: i32[b, s], 1, 2, ... per sequence of a row, 0 on padding. A token reads the tokens of
        its own segment at its own position and before.
      position: i32[b, s], position within the segment.
      cache: None, or the tokens that came before. Then each row is one sequence: its real tokens
        (`segment > 0`) come first, their positions go on from `cache.length`, and they are appended
        to the cache. That they fit is the caller's to check (`rollout.sampler.check_room`).

    Returns:
      hidden: dtype[b, s, d], after the final norm; without meaning on padding.
      cache: None, or the cache with the new tokens.
    """
    model = nnx.merge(graphdef, params)
    config, real = model.config, segment > 0
    # Ids of padding may be anything; an embedding out of range would be NaN and leak through 0 * NaN.
    x = model.embed[...].astype(config.compute_dtype)[jnp.where(real, ids, 0)]
    rope = rotary_table(jnp.where(real, position, 0), config.head_dim, config.rope_theta)
    if cache is None:
        x = _layers_uncached(model, x, rope, segment, position)
    else:
        x, cache = _layers_cached(model, x, rope, real, position, cache)
    return rms_norm(x, model.final_norm[...], config.rms_eps), cache


def _layers_uncached(
    model: Decoder, x: jax.Array, rope: Rope, segment: jax.Array, position: jax.Array
) -> jax.Array:
    config, layers = model.config, model.stacked_layers()
    mask = (segment[:, :, None] == segment[:, None, :]) & (segment[:, None, :] > 0)
    mask &= position[:, :, None] >= position[:, None, :]

    def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return attention(q, k.transpose(0, 2, 3, 1), v.transpose(0, 2, 1, 3), mask)

    def body(x: jax.Array, layer: Layer) -> tuple[jax.Array, None]:
        return _block(config, layer, x, rope, attend), None

    body = jax.checkpoint(body) if config.remat else body
    x, _ = lax.scan(body, x, layers, unroll=1 if config.scan_layers else config.num_layers)
    return x


def _layers_cached(
    model: Decoder, x: jax.Array, rope: Rope, real: jax.Array, position: jax.Array, cache: kv.KVCache
) -> tuple[jax.Array, kv.KVCache]:
    config, layers = model.config, model.stacked_layers()
    slot = jnp.where(real, position, cache.size)
    mask = real[:, :, None] & (jnp.arange(cache.size) <= position[:, :, None])
    keys, values = list(cache.k), list(cache.v)
    # Not scanned: the buffers of the layers are separate, see `vict_jax.models.cache`.
    for l in range(config.num_layers):

        def attend(q: jax.Array, k: jax.Array, v: jax.Array, l: int = l) -> jax.Array:
            keys[l], values[l] = kv.append(keys[l], values[l], k, v, slot)
            return attention(q, keys[l], values[l], mask)

        x = _block(config, {name: w[l] for name, w in layers.items()}, x, rope, attend)
    length = cache.length + real.sum(axis=1, dtype=jnp.int32)
    return x, kv.KVCache(k=tuple(keys), v=tuple(values), length=length)


def logits(graphdef: nnx.GraphDef, params: nnx.State, hidden: jax.Array) -> jax.Array:
    """f32[..., v] of hidden states [..., d]: all of them at once, so for a few tokens only."""
    head = nnx.merge(graphdef, params).head_matrix()
    return jnp.einsum("...d,vd->...v", hidden, head, preferred_element_type=jnp.float32)


def token_logp(
    graphdef: nnx.GraphDef,
    params: nnx.State,
    hidden: jax.Array,
    targets: jax.Array,
    temperature: float | jax.Array = 1.0,
    *,
    chunk: int = LOGP_CHUNK,
) -> jax.Array:
    """Log-probability of one target per hidden state under softmax(logits / temperature).

    See `token_logp_entropy`; use that one where the entropy is wanted as well.

    Returns:
      f32[b, s].
    """
    return token_logp_entropy(graphdef, params, hidden, targets, temperature, chunk=chunk)[0]


def token_logp_entropy(
    graphdef: nnx.GraphDef,
    params: nnx.State,
    hidden: jax.Array,
    targets: jax.Array,
    temperature: float | jax.Array = 1.0,
    *,
    chunk: int = LOGP_CHUNK,
) -> tuple[jax.Array, jax.Array]:
    """Log-probability of the targets and entropy of the distribution they come from.

    Only about `chunk` tokens have logits at a time, forward and backward: [tokens, v] in float32
    never exists as a whole. Chunks run along s, so a batch axis that is sharded stays so.

    Args:
      hidden: dtype[b, s, d] from `apply`; hidden state l predicts target l, so the caller shifts.
      targets: i32[b, s]; any value where the result is not used.
      temperature: > 0, of the distribution that the tokens were sampled from.
      chunk: tokens per chunk.

    Returns:
      logp: f32[b, s] (of a target outside the vocabulary: minus log Z). entropy: f32[b, s], nats.
    """
    head = nnx.merge(graphdef, params).head_matrix()
    b, s, d = hidden.shape
    width = max(1, min(s, chunk // b))
    count = -(-s // width)
    pad = count * width - s
    hidden = jnp.pad(hidden, ((0, 0), (0, pad), (0, 0))).reshape(b, count, width, d).swapaxes(0, 1)
    targets = jnp.pad(targets, ((0, 0), (0, pad))).reshape(b, count, width).swapaxes(0, 1)
    inverse_temperature = 1 / jnp.asarray(temperature, jnp.float32)

    @jax.checkpoint
    def of_chunk(args: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        return _logp_entropy(head, args[0], args[1], inverse_temperature)

    out = lax.map(of_chunk, (hidden, targets))
    logp, entropy = (y.swapaxes(0, 1).reshape(b, count * width)[:, :s] for y in out)
    return logp, entropy


def _logp_entropy(
    head: jax.Array, hidden: jax.Array, targets: jax.Array, inverse_temperature: jax.Array
) -> tuple[jax.Array, jax.Array]:
    z = jnp.einsum("bcd,vd->bcv", hidden, head, preferred_element_type=jnp.float32) * inverse_temperature
    z = z - lax.stop_gradient(z.max(axis=-1, keepdims=True))
    unnormalised = jnp.exp(z)
    total = unnormalised.sum(axis=-1)
    log_total = jnp.log(total)
    # A comparison instead of a gather: its gradient is dense (no scatter), and it works on a sharded v.
    chosen = jnp.where(jnp.arange(z.shape[-1]) == targets[..., None], z, 0.0).sum(axis=-1)
    return chosen - log_total, log_total - (unnormalised * z).sum(axis=-1) / total
