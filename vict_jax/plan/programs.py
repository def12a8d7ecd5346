"""The programs of an update on abstract values: shapes and shardings, no weights.

What is lowered here is what a run compiles: `microbatch.compile_steps` around the PPO loss.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh

from vict_jax import sharding
from vict_jax.learner import losses
from vict_jax.learner.losses import LossWeights, PpoOptions
from vict_jax.learner.microbatch import LearnerState
from vict_jax.learner.optimizer import OptimizerOptions, make_optimizer, opt_state_shardings
from vict_jax.learner.update import PpoRows, compile_ppo
from vict_jax.models import decoder
from vict_jax.models.config import ModelConfig
from vict_jax.types import TokenBatch


def abstract_params(model: ModelConfig, mesh: sharding.AnyMesh) -> nnx.State:
    """The parameters as `ShapeDtypeStruct`s with the shardings of a run."""
    params = jax.eval_shape(lambda: decoder.init(model, jax.random.key(0))[1])
    return _placed(params, sharding.param_shardings(mesh, params, decoder.logical_axes(model)))


def split_params(model: ModelConfig, params: nnx.State) -> tuple[nnx.State, nnx.State]:
    """(trained, frozen): all and nothing, or the adapters and what they are on."""
    if model.lora is None:
        return params, nnx.State({})
    trained, frozen = nnx.split_state(params, nnx.LoRAParam, ...)
    return trained, frozen


def abstract_state(params: nnx.State, mesh: sharding.AnyMesh) -> LearnerState:
    """The learner's state around abstract `params`."""
    transformation = make_optimizer(OptimizerOptions(), total_steps=1).transformation
    opt_state = jax.eval_shape(transformation.init, params)
    return LearnerState(
        params=params,
        opt_state=_placed(opt_state, opt_state_shardings(transformation, params)),
        step=_struct((), jnp.int32, sharding.replicated(mesh)),
    )


def abstract_rows(rows: int, length: int, mesh: sharding.AnyMesh, *, reference: bool) -> PpoRows:
    """Rows of tokens with everything that the PPO loss reads, split over the batch axes."""
    split, whole = sharding.batch_sharding(mesh), sharding.replicated(mesh)
    ints, floats = (_struct((rows, length), dtype, split) for dtype in (jnp.int32, jnp.float32))
    flags, scalar = _struct((rows, length), jnp.bool_, split), _struct((), jnp.float32, whole)
    batch = TokenBatch(
        ids=ints,
        segment=ints,
        position=ints,
        loss_mask=flags,
        behaviour_logp=floats,
        rollout=ints,
        step=ints,
    )
    weights = LossWeights(policy=floats, kl=floats, policy_denominator=scalar, kl_denominator=scalar)
    return PpoRows(batch=batch, ref_logp=floats if reference else None, advantage=floats, weights=weights)


def lower_update(
    model: ModelConfig, mesh: Mesh, *, micro_rows: int, length: int, width: int, reference: bool
) -> dict[str, jax.stages.Lowered]:
    """The two programs of an optimizer step: `accumulate` (loss and backward) and `apply` (optimizer).

    Args:
      micro_rows, length: of a micro-batch. width: trained tokens of a row, see `microbatch.row_logp`.
    """
    params, base = split_params(model, abstract_params(model, mesh))
    frozen = None if model.lora is None else base
    options = PpoOptions(micro_rows=micro_rows, kl_coefficient=0.01 if reference else 0.0)
    optimizer = make_optimizer(OptimizerOptions(), total_steps=1)
    learner = compile_ppo(
        decoder.structure(model),
        params,
        optimizer,
        options=options,
        temperature=1.0,
        mesh=mesh,
        frozen=frozen,
    )
    gradients = jax.tree.map(lambda p: _struct(p.shape, jnp.float32, p.sharding), params)
    metrics = jax.tree.map(
        lambda x: _struct(x.shape, x.dtype, sharding.replicated(mesh)), jax.eval_shape(losses.zero_metrics)
    )
    rows = abstract_rows(micro_rows, length, mesh, reference=reference)
    steps: Any = learner.steps  # compiled functions, which can be lowered
    return {
        "accumulate": steps.accumulate.lower(params, gradients, metrics, rows, width, frozen),
        "apply": steps.apply.lower(abstract_state(params, mesh), gradients),
    }


def _struct(shape: tuple[int, ...], dtype: Any, where: Any) -> Any:
    """An array without values; `Any`, since it goes where arrays go."""
    return jax.ShapeDtypeStruct(shape, dtype, sharding=where)


def _placed(tree: Any, shardings: Any) -> Any:
    return jax.tree.map(lambda x, where: _struct(x.shape, x.dtype, where), tree, shardings)
