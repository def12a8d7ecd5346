"""Low-rank adapters (LoRA, arXiv 2106.09685): the trained parameters of a model whose weights are frozen.

The structure (`graphdef`) of a decoder with `config.lora` has both; its parameters come in two trees:

- the *base*, the parameters of `without_adapters(config)`: as `hf.load` or `decoder.init` return them;
- the *adapters*, `q_lora_a` [l, in, r], `q_lora_b` [l, r, out] and so on, float32: what is trained.

`combine` puts them side by side, without a copy, wherever the decoder wants one tree. With the adapters off
the model is the base with its own structure, so the reference policy needs no second copy of the weights.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh

from vict_jax.models import decoder
from vict_jax.models.config import LoraOptions, ModelConfig
from vict_jax.sharding import param_shardings


def without_adapters(config: ModelConfig) -> ModelConfig:
    """The configuration of the base."""
    return dataclasses.replace(config, lora=None)


def options_of(config: ModelConfig) -> LoraOptions:
    """`config.lora`.

    Raises:
      ValueError: the model has no adapters.
    """
    if config.lora is None:
        raise ValueError("the model has no adapters: lora=None in its configuration")
    return config.lora


def init(config: ModelConfig, key: jax.Array, mesh: Mesh) -> nnx.State:
    """New adapters, with which the model computes what the base does (every B is 0), sharded over `mesh`.

    Raises:
      ValueError: `config.lora` is None.
    """
    options_of(config)

    def adapters(
        key: jax.Array,
    ) -> nnx.State:  # the base that is made beside them is dead code, which XLA removes
        return adapters_of(decoder.init(config, key)[1])

    shardings = param_shardings(mesh, jax.eval_shape(adapters, key), decoder.logical_axes(config))
    return jax.jit(adapters, out_shardings=shardings)(key)


def adapters_of(params: nnx.State) -> nnx.State:
    """The adapters among all parameters of a model that has them; arrays or abstract values."""
    return nnx.split_state(params, nnx.LoRAParam, ...)[0]


def combine(frozen: nnx.State | None, trained: nnx.State) -> nnx.State:
    """Parameters for the decoder of what is frozen and what is trained; None: nothing is frozen. No copy."""
    return trained if frozen is None else nnx.merge_state(frozen, trained)


def merge(config: ModelConfig, base: nnx.State, adapters: nnx.State) -> nnx.State:
    """Parameters of `without_adapters(config)` that compute what base and adapters do together.

    W + (alpha / r) A B is summed in float32 and rounded once, to the precision of the base. What has no
    adapter is shared with `base`.

    Raises:
      ValueError: `config.lora` is None.
    """
    lora = options_of(config)
    weights = {name: base["layers"][name] for name in sorted(lora.names)}

    def add(weights: dict[str, Any], adapters: nnx.State) -> dict[str, Any]:
        merged = {}
        for name, weight in weights.items():
            a, b = (adapters["layers"][f"{name}_lora_{side}"][...] for side in "ab")
            product = jnp.einsum("lir,lro->lio", a, b, precision=jax.lax.Precision.HIGHEST)
            whole = weight[...].astype(jnp.float32) + lora.scale * product
            merged[name] = nnx.Param(whole.astype(weight[...].dtype))
        return merged

    where = jax.tree.map(lambda w: w.sharding, weights)
    return nnx.merge_state(base, nnx.State({"layers": jax.jit(add, out_shardings=where)(weights, adapters)}))
