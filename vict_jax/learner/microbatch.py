"""What the supervised and the PPO step share: the forward over token rows, and gradients in pieces.

A batch of S rows lives on the device as a whole. A gradient is accumulated over micro-batches of m rows,
picked by index, so that rows with nothing to train cost nothing and programs are compiled for [m, L]
only. Nothing is fetched from the device between micro-batches.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh

from vict_jax.batching import fetch, to_device
from vict_jax.learner.optimizer import Optimizer, init_opt_state, opt_state_shardings
from vict_jax.models import decoder, likelihood, lora
from vict_jax.sharding import batch_sharding, replicated
from vict_jax.types import TokenBatch, pytree
from vict_jax.work import Work

# (parameters of the model, frozen ones included; micro-batch; width) -> (loss, metrics)
LossFn = Callable[[Any, Any, int], tuple[jax.Array, Any]]


class NonFiniteError(ArithmeticError):
    """A NaN or an infinity came up; the message names the update and the tensor."""


@pytree
class LearnerState:
    """What training changes.

    Attributes:
      params: the policy's parameters that are trained: all of them, or its adapters (`models.lora`).
      opt_state: the optimizer's state.
      step: i32[], optimizer steps taken.
    """

    params: Any
    opt_state: Any
    step: jax.Array


@pytree
class Applied:
    """What one optimizer step reports.

    Attributes:
      gradient_norm: f32[], global, before clipping. learning_rate: f32[].
      finite: bool[2 * leaves], "all values finite" of each gradient, then of each new parameter.
    """

    gradient_norm: jax.Array
    learning_rate: jax.Array
    finite: jax.Array


@dataclasses.dataclass(frozen=True)
class TrainedTokens:
    """The trained tokens of a batch of rows [m, L], gathered to the front.

    Attributes:
      at: i32[m, width], where they are. real: bool[m, width], False where a row has fewer.
      hidden: dtype[m, width, d], hidden states that predict them: of the tokens before.
    """

    at: jax.Array
    real: jax.Array
    hidden: jax.Array

    def put_back(self, values: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        """f32[m, L] of values f32[m, width]; 0 where nothing is trained."""
        rows = jnp.arange(self.at.shape[0])[:, None]
        return jnp.zeros(shape, jnp.float32).at[rows, self.at].set(jnp.where(self.real, values, 0.0))


def trained_tokens(graphdef: nnx.GraphDef, params: Any, batch: TokenBatch, *, width: int) -> TrainedTokens:
    """Run the decoder over rows [m, L] and keep what its heads need.

    Heads run on the trained tokens only, which in windowed rows are a small share.

    Args:
      batch: the token at `l` is predicted from the hidden state at `l - 1`.
      width: at least the largest number of trained tokens of a row.
    """
    hidden, _ = decoder.apply(graphdef, params, batch.ids, batch.segment, batch.position)
    # Trained tokens first, in order; a fixed number of them.
    at = jnp.argsort(~batch.loss_mask, axis=1, stable=True)[:, :width]
    trained = jnp.take_along_axis(batch.loss_mask, at, axis=1)
    before = jnp.maximum(at - 1, 0)
    return TrainedTokens(at, trained, jnp.take_along_axis(hidden, before[..., None], axis=1))


def logp_entropy(
    graphdef: nnx.GraphDef, params: Any, batch: TokenBatch, tokens: TrainedTokens, *, temperature: float
) -> tuple[jax.Array, jax.Array]:
    """Log-probability and entropy of the trained tokens, f32[m, L] each, 0 elsewhere.

    Args:
      temperature: of the distribution that the tokens were sampled from.
    """
    targets = jnp.take_along_axis(batch.ids, tokens.at, axis=1)
    values = likelihood.token_logp_entropy(graphdef, params, tokens.hidden, targets, temperature)
    logp, entropy = (tokens.put_back(value, batch.ids.shape) for value in values)
    return logp, entropy


def row_logp(
    graphdef: nnx.GraphDef, params: Any, batch: TokenBatch, *, width: int, temperature: float
) -> tuple[jax.Array, jax.Array]:
    """`logp_entropy` of rows, for callers that need nothing else of the forward."""
    tokens = trained_tokens(graphdef, params, batch, width=width)
    return logp_entropy(graphdef, params, batch, tokens, temperature=temperature)


@functools.partial(jax.jit, static_argnames=("mesh",))
def take_rows(tree: Any, rows: jax.Array, *, mesh: Mesh) -> Any:
    """Rows `rows` (i32[m]) of every array of the tree; an index beyond the end gives a row of zeros.

    Scalars stay as they are. The result is sharded along rows.
    """

    def take(x: jax.Array) -> jax.Array:
        if x.ndim == 0:
            return x
        picked = jnp.take(x, rows, axis=0, mode="fill", fill_value=0)
        return jax.lax.with_sharding_constraint(picked, batch_sharding(mesh))

    return jax.tree.map(take, tree)


@dataclasses.dataclass(frozen=True)
class RowPlan:
    """What the host has to know about a batch to cut it up.

    Attributes:
      members: bool[S, R], the row has a trained token of the rollout.
      width: the compiled number of trained tokens a row, see `row_logp`.
    """

    members: np.ndarray
    width: int

    def rows_of(self, rollouts: np.ndarray) -> np.ndarray:
        """Rows with something to train for any of these rollout indices."""
        return np.flatnonzero(np.logical_or.reduce(self.members[:, rollouts], axis=1))


@functools.partial(jax.jit, static_argnames=("num_rollouts",))
def _summarise_rows(batch: TokenBatch, *, num_rollouts: int) -> tuple[jax.Array, jax.Array]:
    rows = jnp.arange(batch.ids.shape[0])[:, None]
    members = jnp.zeros((batch.ids.shape[0], num_rollouts), bool).at[rows, batch.rollout].max(batch.loss_mask)
    return members, batch.loss_mask.sum(axis=1).max()


def plan_rows(batch: TokenBatch, *, num_rollouts: int, mesh: Mesh) -> RowPlan:
    """Summarise a batch [S, L] for the host (one fetch).

    Raises:
      ValueError: nothing in the batch is trained.
    """
    summary = _summarise_rows(batch, num_rollouts=num_rollouts)
    members, most = fetch(summary, mesh)
    if most == 0:
        raise ValueError("the token batch has no trained token")
    # A power of two, so that few widths are ever compiled.
    width = min(batch.ids.shape[1], max(32, 1 << int(most - 1).bit_length()))
    return RowPlan(members=members, width=width)


def micro_rows(rows: np.ndarray, *, size: int, total: int, mesh: Mesh) -> Iterator[jax.Array]:
    """Cut row indices into device arrays i32[size]; the last is filled up with `total`, which is no row."""
    for start in range(0, len(rows), size):
        chunk = np.full(size, total, np.int32)
        part = rows[start : start + size]
        chunk[: len(part)] = part
        yield to_device(chunk, replicated(mesh))


def check_micro_size(size: int, mesh: Mesh) -> None:
    """Raise ValueError unless micro-batches of `size` rows divide over the batch axes of the mesh."""
    parts = mesh.size // batch_sharding(mesh).shard_shape((mesh.size,))[0]
    if size % parts:
        raise ValueError(f"micro_rows={size} must be a multiple of the {parts} parts of the batch axes")


@dataclasses.dataclass(frozen=True)
class GradientSteps:
    """Compiled functions around one loss.

    Attributes:
      zeros: () -> gradients of 0.
      accumulate: (params, gradients, metrics, micro, width, frozen) -> (gradients, metrics); donates both.
      apply: (state, gradients) -> (state, Applied); donates the state.
      frozen: parameters that no gradient is taken of; None: there are none.
    """

    zeros: Callable[[], Any]
    accumulate: Callable[[Any, Any, Any, Any, int, Any], tuple[Any, Any]]
    apply: Callable[[LearnerState, Any], tuple[LearnerState, Applied]]
    frozen: Any


def compile_steps(
    loss_fn: LossFn,
    merge: Callable[[Any, Any], Any],
    params: Any,
    optimizer: Optimizer,
    *,
    frozen: Any = None,
) -> GradientSteps:
    """Compile gradient accumulation and the optimizer step for parameters sharded like `params`.

    Args:
      loss_fn: its loss is the micro-batch's share in the loss of the whole batch.
      merge: adds the metrics of two micro-batches.
      params: what is trained, arrays that carry `NamedSharding`s. frozen: the rest of the model, or None.
    """
    shardings = jax.tree.map(lambda p: p.sharding, params)
    shapes = jax.tree.map(lambda p: jax.ShapeDtypeStruct(p.shape, jnp.float32), params)
    scalar = replicated(jax.tree.leaves(shardings)[0].mesh)
    state_shardings: Any = LearnerState(
        params=shardings,
        opt_state=opt_state_shardings(optimizer.transformation, params),
        step=scalar,  # type: ignore[arg-type]
    )

    @functools.partial(jax.jit, out_shardings=shardings)
    def zeros() -> Any:
        return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)

    @functools.partial(jax.jit, static_argnums=4, donate_argnums=(1, 2), out_shardings=(shardings, scalar))
    def accumulate(
        params: Any, gradients: Any, metrics: Any, micro: Any, width: int, frozen: Any = None
    ) -> tuple[Any, Any]:
        def loss(params: Any) -> tuple[jax.Array, Any]:
            return loss_fn(lora.combine(frozen, params), micro, width)

        (_, more), gradient = jax.value_and_grad(loss, has_aux=True)(params)
        return jax.tree.map(jnp.add, gradients, gradient), merge(metrics, more)

    @functools.partial(jax.jit, donate_argnums=0, out_shardings=(state_shardings, scalar))
    def apply(state: LearnerState, gradients: Any) -> tuple[LearnerState, Applied]:
        updates, opt_state = optimizer.transformation.update(gradients, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        leaves = jax.tree.leaves(gradients) + jax.tree.leaves(params)
        applied = Applied(
            gradient_norm=optax.tree.norm(gradients),
            learning_rate=jnp.asarray(optimizer.schedule(state.step), jnp.float32),
            finite=jnp.stack([jnp.isfinite(x).all() for x in leaves]),
        )
        return LearnerState(params=params, opt_state=opt_state, step=state.step + 1), applied

    return GradientSteps(zeros=zeros, accumulate=accumulate, apply=apply, frozen=frozen)


def step_over_rows(
    steps: GradientSteps,
    state: LearnerState,
    rows: Any,
    index: np.ndarray,
    metrics: Any,
    *,
    plan: RowPlan,
    size: int,
    mesh: Mesh,
) -> Work[tuple[LearnerState, tuple[Any, Applied]]]:
    """One optimizer step on rows `index` of the tree `rows`, in micro-batches of `size` rows, each a piece.

    `state` and `metrics` (the zero to start from) are donated. Waits for nothing on the device.
    """
    gradients = steps.zeros()
    for part in micro_rows(index, size=size, total=len(plan.members), mesh=mesh):
        micro = take_rows(rows, part, mesh=mesh)
        gradients, metrics = steps.accumulate(
            state.params, gradients, metrics, micro, plan.width, steps.frozen
        )
        yield metrics
    state, applied = steps.apply(state, gradients)
    return state, (metrics, applied)


def init_state(params: Any, optimizer: Optimizer) -> LearnerState:
    """State before the first step. `params` is taken over, not copied, and must not be used afterwards."""
    scalar = replicated(jax.tree.leaves(params)[0].sharding.mesh)
    return LearnerState(
        params=params,
        opt_state=init_opt_state(optimizer.transformation, params),
        step=to_device(np.int32(0), scalar),
    )


def abstract_state(params: Any, optimizer: Optimizer) -> LearnerState:
    """Shapes, dtypes and shardings of `init_state(params, optimizer)`, for `checkpoint.restore`.

    Args:
      params: `jax.ShapeDtypeStruct`s that carry `NamedSharding`s.
    """
    scalar = replicated(jax.tree.leaves(params)[0].sharding.mesh)
    opt_state = jax.tree.map(
        lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
        jax.eval_shape(optimizer.transformation.init, params),
        opt_state_shardings(optimizer.transformation, params),
    )
    step: Any = jax.ShapeDtypeStruct((), jnp.int32, sharding=scalar)
    return LearnerState(params=params, opt_state=opt_state, step=step)


def check_finite(
    loss: Sequence[float], applied: Sequence[Applied], names: Sequence[str], *, where: str
) -> None:
    """Raise NonFiniteError at the first optimizer step with a value that is not finite.

    Args:
      loss, applied: of each optimizer step, on the host.
      names: of the parameters, see `leaf_names`.
      where: start of the message ("update 12").
    """
    tensors = ["loss", *(f"gradient of {name}" for name in names), *(f"parameter {name}" for name in names)]
    for index, (value, step) in enumerate(zip(loss, applied, strict=True)):
        flags = [bool(np.isfinite(value)), *step.finite.tolist()]
        bad = [name for name, finite in zip(tensors, flags, strict=True) if not finite]
        if bad:
            more = f" (and {len(bad) - 1} more tensors)" if len(bad) > 1 else ""
            at = f"{where}, optimizer step {index + 1} of {len(applied)}"
            # A NaN loss makes every gradient NaN; a gradient says more than the loss does, so both are named.
            raise NonFiniteError(f"{at}: {' and '.join(bad[:2])} not finite{more}")
