"""Bytes of each device, from shapes and shardings alone.

What lies in memory throughout (weights, moments, reference, batch) and what a program is given or keeps over
a whole pass (gradients, cache, checkpoints of the layers) is counted exactly. What a program needs in between
is reckoned from the largest things that must exist at once: a gathered layer with its gradient and its
activations, or the output head with a chunk of logits. How a compiler adds to that depends on the platform,
see `Compiler`; `vict_jax.plan.verify` compares with its own analysis.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType

from vict_jax import sharding
from vict_jax.models import attention, decoder, likelihood
from vict_jax.models.cache import init_cache
from vict_jax.models.config import ModelConfig
from vict_jax.plan import programs

F32 = 4


@dataclasses.dataclass(frozen=True)
class Compiler:
    """What XLA's backend for a platform makes of a program: numbers fitted to its own analysis.

    Attributes:
      widens: bfloat16 is computed in float32, activations included.
      logits: arrays of the size of a chunk of float32 logits at once, while they are made.
      sums, beside: whole float32 gradients of the output head at once, before each device is left its part,
        and arrays of logits beside them.
      layer: a gathered layer and what exists of its gradient, as a multiple of its weights.
      width, inner: activations of a layer in its backward pass, per token, as multiples of the width and of
        the feed-forward width. scores: the same for the scores of `attention.causal_attention`.
      kept: what stays of a layer for the backward pass, as a multiple of what autodiff asks for.
      updates: arrays of the size of the parameters that the optimizer makes besides the new ones.
    """

    widens: bool
    logits: float
    sums: float
    beside: float
    layer: float
    width: float
    inner: float
    scores: float
    kept: float
    updates: float


# "cpu" is fitted to XLA's analysis of small models on eight fake devices, the other to what XLA's TPU
# compiler says of Qwen2.5-7B on 64 chips; for a GPU nothing has been measured. See docs/scaling.md.
_ACCELERATOR = Compiler(
    widens=False,
    logits=2,
    sums=1,
    beside=1,
    layer=2,
    width=10,
    inner=7,
    scores=2,
    kept=2,  # v5p has no bfloat16 arithmetic beside its matrix unit, and keeps float32
    updates=0,
)
COMPILERS: Mapping[str, Compiler] = {
    "cpu": Compiler(
        widens=True,
        logits=4,
        sums=2,
        beside=0,
        layer=1.6,
        width=10,
        inner=7,
        scores=2,
        kept=1.05,
        updates=1,
    ),
    "tpu": _ACCELERATOR,
    "gpu": _ACCELERATOR,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """What a run does, as far as memory depends on it.

    Attributes:
      mesh: sizes of (data, fsdp, tensor).
      rows, length: token rows of an update, and tokens of a row.
      micro_rows: rows of one gradient computation. width: trained tokens of a row, see `microbatch.row_logp`.
      sample_rows, slots: rows that are sampled at once, and cache slots of each.
      reference: there is a KL term, hence reference log-probabilities.
      stale: rollouts are played while an update is computed, by the policy before it.
    """

    model: ModelConfig
    mesh: tuple[int, int, int]
    rows: int
    length: int
    micro_rows: int
    width: int
    sample_rows: int
    slots: int
    reference: bool
    stale: bool = False

    @property
    def abstract_mesh(self) -> AbstractMesh:
        """The mesh without devices."""
        return AbstractMesh(self.mesh, sharding.AXES, axis_types=(AxisType.Auto,) * 3)

    @property
    def count(self) -> int:
        """Devices of the mesh."""
        return math.prod(self.mesh)

    @property
    def parts(self) -> int:
        """Parts that the rows of a batch are split into."""
        return self.mesh[0] * self.mesh[1]


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Bytes of one device.

    Attributes:
      resident: what is there all the time, by name.
      phases: phase -> what is there during it besides, by name.
    """

    resident: Mapping[str, int]
    phases: Mapping[str, Mapping[str, int]]

    def total(self, phase: str) -> int:
        """Bytes during a phase."""
        return sum(self.resident.values()) + sum(self.phases[phase].values())

    @property
    def peak(self) -> int:
        """Bytes during the largest phase."""
        return max(map(self.total, self.phases))


def estimate(setting: Setting, platform: str) -> Estimate:
    """Bytes of one device of `platform`, a key of `COMPILERS`.

    Raises:
      ValueError: sizes that the mesh does not divide.
    """
    model, mesh = setting.model, setting.abstract_mesh
    sharding.check_tensor_axis(mesh, num_heads=model.num_heads, num_kv_heads=model.num_kv_heads)
    sharding.batch_sharding(mesh, (setting.micro_rows, setting.sample_rows))
    trained, frozen = programs.split_params(model, programs.abstract_params(model, mesh))
    state = programs.abstract_state(trained, mesh)
    compiler = COMPILERS[platform]
    gradients = F32 * _elements(trained)
    resident = {
        "weights": shard_bytes(trained),
        "frozen weights": shard_bytes(frozen),
        "moments": shard_bytes(state) - shard_bytes(state.params),
        "reference": shard_bytes(trained) if setting.reference and model.lora is None else 0,
        "batch": _batch_bytes(setting),
        "policy before": shard_bytes(trained) if setting.stale else 0,
    }
    sampling = _sampling_bytes(setting, compiler)
    in_play = {"key/value cache": sampling["key/value cache"]} if setting.stale else {}
    return Estimate(
        resident=resident,
        phases={
            "gradient": {
                "gradients": gradients,
                **_gradient_bytes(setting, compiler, platform, gradients),
                **in_play,
            },
            "optimizer": {"gradients": gradients, "updates": int(compiler.updates * gradients), **in_play},
            "sampling": sampling,
        },
    )


def shard_bytes(tree: Any) -> int:
    """Bytes of one device for abstract values that carry shardings."""
    return sum(_shard_size(x) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def _elements(tree: Any) -> int:
    return sum(map(_shard_size, jax.tree.leaves(tree)))


def _shard_size(x: jax.ShapeDtypeStruct) -> int:
    return math.prod(x.sharding.shard_shape(x.shape))


def _batch_bytes(setting: Setting) -> int:
    """All rows of an update with what the loss reads; reference log-probabilities are not split."""
    rows = -(-setting.rows // setting.parts) * setting.parts
    struct = programs.abstract_rows(rows, setting.length, setting.abstract_mesh, reference=False)
    return shard_bytes(struct) + (F32 * rows * setting.length if setting.reference else 0)


def _gradient_bytes(setting: Setting, compiler: Compiler, platform: str, gradients: int) -> dict[str, int]:
    """What the program `accumulate` needs besides the weights and the sum of gradients that it is given."""
    model = local_model(setting)
    rows = setting.micro_rows // setting.parts
    item = F32 if compiler.widens else model.compute_dtype.itemsize
    hidden = rows * setting.length * model.d_model
    if model.remat:
        kept, widened = hidden * model.compute_dtype.itemsize, hidden * (item - model.compute_dtype.itemsize)
    else:
        kept, widened = int(compiler.kept * rows * kept_per_layer(model, setting.length, platform, item)), 0
    return {
        "gradients of a micro-batch": gradients,
        "kept for the backward pass": model.num_layers * kept,
        "one layer, or the output head": max(
            model.num_layers * widened + _one_layer(setting, compiler, platform, item),
            _output_head(setting, compiler, item),
        ),
    }


def _one_layer(setting: Setting, compiler: Compiler, platform: str, item: int) -> int:
    """A layer in its backward pass: gathered weights, their gradient, activations and scores."""
    model = local_model(setting)
    rows = setting.micro_rows // setting.parts
    # The input of a frozen projection is not kept, and there is no gradient of its weights.
    frozen = model.lora is not None
    width, inner = compiler.width - 2 * frozen, compiler.inner - frozen
    per_token = width * model.d_model + inner * model.d_ff
    activations = rows * setting.length * per_token * item
    stored = F32 * _score_elements(model, setting.length)
    scores = 0 if _has_kernel(model, setting.length, platform) else rows * compiler.scores * stored
    weights = (1 if frozen else compiler.layer) * _layer_elements(model) * model.compute_dtype.itemsize
    return int(activations + scores + (weights if _copied(setting, item) else 0))


def _output_head(setting: Setting, compiler: Compiler, item: int) -> int:
    """The head ready for use, beside a chunk of logits or the sums of its gradient."""
    model = local_model(setting)
    rows = setting.micro_rows // setting.parts
    head = model.vocab_size * model.d_model
    chunk = rows * max(1, min(setting.width, likelihood.CHUNK // rows))
    logits = F32 * chunk * model.vocab_size
    sums = compiler.sums * F32 * head if setting.parts > 1 and model.lora is None else 0
    ready = item * head if _copied(setting, item) else 0
    return int(ready + max(compiler.logits * logits, sums + compiler.beside * logits))


def _copied(setting: Setting, item: int) -> bool:
    """Whether weights are not used as they lie: gathered, or of another precision."""
    return setting.mesh[1] > 1 or item != jnp.dtype(setting.model.param_dtype).itemsize


def _sampling_bytes(setting: Setting, compiler: Compiler) -> dict[str, int]:
    """What prefill and decode need; the weights are gathered once for a whole reply."""
    model = local_model(setting)
    item, rows = model.compute_dtype.itemsize, setting.sample_rows // setting.parts
    cache = jax.eval_shape(functools.partial(init_cache, model, rows, setting.slots))
    elements = sum(math.prod(w.shape) for w in jax.tree.leaves(decoder.weights(model)))
    widened = F32 * _layer_elements(model) if compiler.widens and item < F32 else 0
    tokens = rows * setting.slots
    scores = F32 * rows * model.num_heads * setting.slots * -(-setting.slots // attention.QUERY_BLOCKS)
    prefill = tokens * item * (3 * model.d_model + 3 * model.d_ff) + 2 * scores
    return {
        "weights for sampling": elements * item + widened,
        "key/value cache": sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(cache)),
        "logits or prefill": max(int(compiler.logits * F32 * rows * model.vocab_size), int(prefill)),
    }


def local_model(setting: Setting) -> ModelConfig:
    """The model as one device sees it under tensor parallelism."""
    tensor, model = setting.mesh[2], setting.model
    return dataclasses.replace(
        model,
        num_heads=model.num_heads // tensor,
        num_kv_heads=model.num_kv_heads // tensor,
        d_ff=model.d_ff // tensor,
        vocab_size=model.vocab_size // tensor,
    )


def _layer_elements(model: ModelConfig) -> int:
    return sum(math.prod(w.shape[1:]) for w in decoder.weights(model)["layers"].values())


@functools.lru_cache
def kept_per_layer(model: ModelConfig, length: int, platform: str, item: int) -> int:
    """Bytes that autodiff keeps of one layer for the backward pass of a row of `length` tokens.

    Without rematerialisation, counted on the abstract value of the backward pass: what two layers keep less
    what one keeps, less the weights. A kernel keeps no scores; they are taken off where one is used.

    Args:
      item: bytes of an activation.
    """
    dtype = "float32" if item == F32 else "bfloat16"

    def kept(layers: int) -> int:
        config = dataclasses.replace(
            model,
            num_layers=layers,
            remat=False,
            scan_layers=True,
            attention="blocks",
            vocab_size=8,
            dtype=dtype,
        )
        params = jax.eval_shape(lambda: decoder.init(config, jax.random.key(0))[1])
        graphdef, ints = decoder.structure(config), jax.ShapeDtypeStruct((1, length), jnp.int32)

        def backward(params: Any, ids: jax.Array) -> Any:
            return jax.vjp(lambda p: decoder.apply(graphdef, p, ids, ids, ids)[0], params)[1]

        leaves = jax.tree.leaves(jax.eval_shape(backward, params, ints))
        return sum(math.prod(x.shape) * x.dtype.itemsize for x in leaves)

    whole = kept(2) - kept(1) - item * _layer_elements(model)
    if not _has_kernel(model, length, platform):
        return whole
    # Numerators of the softmax, in float32 and, for the product with the values, in the compute dtype.
    return whole - _score_elements(model, length) * (F32 + (item if item < F32 else 0))


def _score_elements(model: ModelConfig, length: int) -> int:
    """Scores of a row that `attention.causal_attention` computes."""
    width = max(attention.MIN_QUERY_BLOCK, -(-length // attention.QUERY_BLOCKS))
    ends = [min(start + width, length) for start in range(0, length, width)]
    return model.num_heads * sum(end * (end - start) for start, end in itertools.pairwise([0, *ends]))


def _has_kernel(model: ModelConfig, length: int, platform: str) -> bool:
    shape = (1, length, model.num_heads, model.head_dim)
    return attention.choose(model.attention, platform, shape, model.compute_dtype) in ("splash", "cudnn")
