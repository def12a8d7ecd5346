"""Decoder of Qwen2, Qwen3 and Llama in functional Flax NNX: one forward for sampling, reference and update.

Axis letters: b rows, s tokens of a call, t keys, d model, n query heads, k key/value heads,
g = n / k query heads per key/value head, h head width, f feed-forward, v vocabulary, l layers.

Architecture: Llama (arXiv 2302.13971): RMSNorm (arXiv 1910.07467), rotary positions in half-split form
(arXiv 2104.09864), grouped-query attention (arXiv 2305.13245), SwiGLU (arXiv 2002.05202). Qwen2
(arXiv 2407.10671) adds biases to the query, key and value projections; Qwen3 (arXiv 2505.09388) has an
RMSNorm on every query and key head instead.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, overload

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.nn import initializers

from vict_jax import sharding
from vict_jax.models import cache as kv
from vict_jax.models.attention import attention, mask_bias, self_attention
from vict_jax.models.config import LoraOptions, ModelConfig

_WEIGHTS = "weights"  # name of the gathered weights, for the choice of what the backward pass computes again

Layer = Mapping[str, jax.Array]
Rope = tuple[jax.Array, jax.Array]  # cos, sin
Attend = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


@dataclasses.dataclass(frozen=True)
class Weight:
    """Declaration of one parameter: shape, logical axis of each dimension, initialiser.

    `adapter`: it belongs to a LoRA adapter: float32 whatever the precision of the rest, and a variable of
    type `nnx.LoRAParam`, which tells it from what it sits on.
    """

    shape: tuple[int, ...]
    axes: tuple[str | None, ...]
    init: Callable[[jax.Array, tuple[int, ...], Any], jax.Array]
    adapter: bool = False


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
    if c.o_bias:
        layers["o_bias"] = Weight((c.d_model,), (None,), zeros)
    if c.qk_norm:
        layers["q_norm"] = Weight((c.head_dim,), (None,), ones)
        layers["k_norm"] = Weight((c.head_dim,), (None,), ones)
    if c.lora is not None:
        layers |= _adapters(layers, c.lora)
    stacked = {
        name: dataclasses.replace(w, shape=(c.num_layers, *w.shape), axes=("layers", *w.axes))
        for name, w in layers.items()
    }
    tree = {"embed": vocabulary, "layers": stacked, "final_norm": Weight((c.d_model,), (None,), ones)}
    return tree if c.tie_embeddings else {**tree, "head": vocabulary}


def _adapters(layers: Mapping[str, Weight], lora: LoraOptions) -> dict[str, Weight]:
    """A [in, r] and B [r, out] of every adapted projection; B begins at 0, so that nothing changes at first.

    A is uniform within +-in^-1/2, as PEFT has it (Kaiming's with a = 5^1/2).
    """
    uniform = initializers.variance_scaling(1 / 3, "fan_in", "uniform", in_axis=-2, out_axis=-1, batch_axis=0)
    adapters = {}
    for name in sorted(lora.names):
        (d_in, d_out), (axis_in, axis_out) = layers[name].shape, layers[name].axes
        adapters[f"{name}_lora_a"] = Weight((d_in, lora.rank), (axis_in, None), uniform, adapter=True)
        adapters[f"{name}_lora_b"] = Weight(
            (lora.rank, d_out), (None, axis_out), initializers.zeros, adapter=True
        )
    return adapters


class Decoder(nnx.Module):
    """The parameters of a decoder. Built by `init`; used through `apply`, `logits` and `likelihood`."""

    def __init__(self, config: ModelConfig, key: jax.Array):
        declared = weights(config)
        keys = iter(jax.random.split(key, len(jax.tree.leaves(declared))))

        def new(weight: Weight) -> nnx.Param:
            kind, dtype = (nnx.LoRAParam, "float32") if weight.adapter else (nnx.Param, config.param_dtype)
            return kind(weight.init(next(keys), weight.shape, jnp.dtype(dtype)))

        params = jax.tree.map(new, declared)
        self.config = config
        self.embed = params["embed"]
        self.layers = nnx.Dict(params["layers"])
        self.final_norm = params["final_norm"]
        self.head = None if config.tie_embeddings else params["head"]

    def separate_layers(self) -> list[Layer]:
        """Parameters of each layer by name, ready for use."""
        if isinstance(self.layers, nnx.List):
            return [{name: p[...] for name, p in layer.items()} for layer in self.layers]
        layers = range(self.config.num_layers)
        return [ready(self.config, {name: p[l] for name, p in self.layers.items()}) for l in layers]

    def head_matrix(self) -> jax.Array:
        """The output head as it is stored, [v, d]; see `ready_head`."""
        return (self.embed if self.head is None else self.head)[...]


def ready(config: ModelConfig, layer: Layer) -> Layer:
    """The weights of one layer in the compute dtype, and gathered where the mesh splits them by `fsdp`.

    In this order, so that half the bytes travel; per layer, so that one layer at a time is whole.
    """
    axes = {name: weight.axes[1:] for name, weight in weights(config)["layers"].items()}
    return {
        name: checkpoint_name(sharding.gathered(w.astype(config.compute_dtype), axes[name]), _WEIGHTS)
        for name, w in layer.items()
    }


def ready_head(config: ModelConfig, head: jax.Array) -> jax.Array:
    """The output head dtype[v, d], as `ready`."""
    return sharding.gathered(head.astype(config.compute_dtype), ("vocab", "embed"))


def structure(config: ModelConfig) -> nnx.GraphDef:
    """The graphdef that `init` returns, without any array."""
    return nnx.graphdef(nnx.eval_shape(lambda: Decoder(config, jax.random.key(0))))


def init(config: ModelConfig, key: jax.Array) -> tuple[nnx.GraphDef, nnx.State]:
    """New parameters: (graphdef, params); `params` has the tree of `weights(config)`."""
    return nnx.split(Decoder(config, key))


def unstack(graphdef: nnx.GraphDef, params: nnx.State) -> tuple[nnx.GraphDef, nnx.State]:
    """The same decoder with separate layers in the compute dtype, for `apply` with a cache and `logits`.

    Taken once before a decoding loop: slicing (and casting) stacked weights inside it would copy them
    at every token.
    """
    model = nnx.merge(graphdef, params)
    model.layers = nnx.List(
        [nnx.Dict({name: nnx.Param(w) for name, w in layer.items()}) for layer in model.separate_layers()]
    )
    for param in (model.embed, model.head):
        if param is not None:
            param[...] = ready_head(model.config, param[...])
    return nnx.split(model)


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


def _linear(config: ModelConfig, layer: Layer, name: str, x: jax.Array) -> jax.Array:
    """`x` [b*s, in] through one projection, and beside it through its adapter if it has one."""
    y = x @ layer[name]
    if config.lora is None or name not in config.lora.names:
        return y
    return y + config.lora.scale * (x @ layer[f"{name}_lora_a"] @ layer[f"{name}_lora_b"])


def _project(
    config: ModelConfig, layer: Layer, x: jax.Array, rows: tuple[int, int]
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Queries [b, s, n, h], keys and values [b, s, k, h] of the normed stream [b*s, d]; rows = (b, s)."""
    q, k, v = (_linear(config, layer, name, x) for name in ("q", "k", "v"))
    if config.qkv_bias:
        q, k, v = q + layer["q_bias"], k + layer["k_bias"], v + layer["v_bias"]
    q, k, v = (
        sharding.constrain(y.reshape(*rows, -1, config.head_dim), "rows", None, "heads", None)
        for y in (q, k, v)
    )
    if config.qk_norm:
        q = rms_norm(q, layer["q_norm"], config.rms_eps)
        k = rms_norm(k, layer["k_norm"], config.rms_eps)
    return q, k, v


def _block(config: ModelConfig, layer: Layer, x: jax.Array, rope: Rope, attend: Attend) -> jax.Array:
    """One layer; `attend(q, k, v) -> [b, s, n*h]` decides what the queries read.

    Weights are applied to [b*s, d]: with two leading axes XLA transposes whole activations on CPU to
    form the gradient of a weight, at twice the cost of the backward pass.
    """
    b, s, d = x.shape
    x = x.reshape(b * s, d)
    q, k, v = _project(config, layer, rms_norm(x, layer["attn_norm"], config.rms_eps), (b, s))
    read = attend(rotate(q, rope), rotate(k, rope), v).reshape(b * s, -1)
    read = _linear(config, layer, "o", sharding.constrain(read, "rows", "heads"))
    x = x + (read + layer["o_bias"] if config.o_bias else read)
    y = rms_norm(x, layer["mlp_norm"], config.rms_eps)
    y = jax.nn.silu(_linear(config, layer, "gate", y)) * _linear(config, layer, "up", y)
    x = x + _linear(config, layer, "down", sharding.constrain(y, "rows", "mlp"))
    return sharding.constrain(x.reshape(b, s, d), "rows", None, None)


@overload
def apply(
    graphdef: nnx.GraphDef,
    params: nnx.State,
    ids: jax.Array,
    segment: jax.Array,
    position: jax.Array,
    cache: None = None,
) -> tuple[jax.Array, None]: ...


@overload
def apply(
    graphdef: nnx.GraphDef,
    params: nnx.State,
    ids: jax.Array,
    segment: jax.Array,
    position: jax.Array,
    cache: kv.KVCache,
    *,
    fresh: bool = False,
) -> tuple[jax.Array, kv.KVCache]: ...


def apply(
    graphdef: nnx.GraphDef,
    params: nnx.State,
    ids: jax.Array,
    segment: jax.Array,
    position: jax.Array,
    cache: kv.KVCache | None = None,
    *,
    fresh: bool = False,
) -> tuple[jax.Array, kv.KVCache | None]:
    """Final hidden states of a batch of token rows.

    Args:
      ids: i32[b, s]; any value on padding.
      segment: i32[b, s], 1, 2, ... per sequence of a row, 0 on padding. A token reads the tokens of
        its own segment up to itself.
      position: i32[b, s], position within the segment, rising from left to right; any value on padding.
      cache: None, or the tokens that came before. Then each row is one sequence: its real tokens
        (`segment > 0`) come first, their positions go on from `cache.length`, and they are appended
        to the cache. That they fit is the caller's to check (`rollout.sampler.check_room`).
      fresh: static; the cache is taken as empty whatever it holds, and positions start at 0. Faster
        than appending to an empty cache, which cannot know that it is.

    Returns:
      hidden: dtype[b, s, d], after the final norm; finite, but without meaning on padding.
      cache: None, or the cache with the new tokens.
    """
    model = nnx.merge(graphdef, params)
    config, real = model.config, segment > 0
    # Ids of padding may be anything; an embedding out of range would be NaN and leak through 0 * NaN.
    x = _embedded(config, model.embed[...], sharding.constrain(jnp.where(real, ids, 0), "rows", None))
    position = sharding.constrain(jnp.where(real, position, 0), "rows", None)
    rope = rotary_table(position, config.head_dim, config.rope_theta)
    if cache is None:
        x = _layers_uncached(model, x, rope, segment, position)
    else:
        x, cache = _layers_cached(model, x, rope, real, position, cache, fresh=fresh)
    return rms_norm(x, model.final_norm[...], config.rms_eps), cache


def _embedded(config: ModelConfig, embed: jax.Array, ids: jax.Array) -> jax.Array:
    """dtype[b, s, d]: rows of the embedding; its gradient is added up in the precision of the parameters.

    The table stays split: where `fsdp` splits its width, each device looks up its part of the width for the
    rows of all, and the parts change places afterwards.
    """
    x = sharding.constrain(embed[sharding.constrain(ids, "data_rows", None)], "data_rows", None, "embed")
    return sharding.constrain(x.astype(config.compute_dtype), "rows", None, None)


def _self_bias(segment: jax.Array, position: jax.Array) -> jax.Array:
    """f32[b, s, s] of tokens on tokens of the same call."""
    mask = (segment[:, :, None] == segment[:, None, :]) & (segment[:, None, :] > 0)
    return mask_bias(mask & (position[:, :, None] >= position[:, None, :]))


def _layers_uncached(
    model: Decoder, x: jax.Array, rope: Rope, segment: jax.Array, position: jax.Array
) -> jax.Array:
    config, layers = model.config, {name: p[...] for name, p in model.layers.items()}
    bias = _self_bias(segment, position)

    def body(x: jax.Array, layer: Layer) -> tuple[jax.Array, None]:
        def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
            return self_attention(config.attention, q, k, v, segment, bias)

        return _block(config, ready(config, layer), x, rope, attend), None

    # Gathered weights are never kept for the backward pass: all layers together are what fsdp cannot hold.
    if config.remat or sharding.spread(x) is not None:
        everything_else = jax.checkpoint_policies.save_anything_except_these_names(_WEIGHTS)
        # Inside a loop nothing can be merged with the first computation; unrolled, that must be forbidden.
        body = jax.checkpoint(
            body, policy=None if config.remat else everything_else, prevent_cse=not config.scan_layers
        )
    x, _ = lax.scan(body, x, layers, unroll=1 if config.scan_layers else config.num_layers)
    return x


def _layers_cached(
    model: Decoder,
    x: jax.Array,
    rope: Rope,
    real: jax.Array,
    position: jax.Array,
    cache: kv.KVCache,
    *,
    fresh: bool,
) -> tuple[jax.Array, kv.KVCache]:
    config = model.config
    slot = jnp.where(real, position, cache.size)
    segment = real.astype(jnp.int32)
    if fresh:
        bias = _self_bias(segment, position)
    else:
        bias = mask_bias(real[:, :, None] & (jnp.arange(cache.size) <= position[:, :, None]))
    keys, values = list(cache.k), list(cache.v)
    # Not scanned: the buffers of the layers are separate, see `vict_jax.models.cache`.
    for l, layer in enumerate(model.separate_layers()):

        def attend(q: jax.Array, k: jax.Array, v: jax.Array, l: int = l) -> jax.Array:
            if fresh:
                keys[l], values[l] = kv.fill(keys[l], values[l], k, v)
                return self_attention(config.attention, q, k, v, segment, bias)
            keys[l], values[l] = kv.append(keys[l], values[l], k, v, slot)
            return attention(q, keys[l], values[l], bias)

        x = _block(config, layer, x, rope, attend)
    before = jnp.zeros_like(cache.length) if fresh else cache.length
    after = before + real.sum(axis=1, dtype=jnp.int32)
    return x, kv.placed(kv.KVCache(tuple(keys), tuple(values), after))


def logits(graphdef: nnx.GraphDef, params: nnx.State, hidden: jax.Array) -> jax.Array:
    """f32[..., v] of hidden states [..., d]: all of them at once, so for a few tokens only."""
    model = nnx.merge(graphdef, params)
    head = ready_head(model.config, model.head_matrix())
    return jnp.einsum("...d,vd->...v", hidden, head, preferred_element_type=jnp.float32)
