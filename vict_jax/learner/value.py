"""The critic of PPO (arXiv 1707.06347): a linear head on the policy's last hidden states.

The value of a step is read where its action is about to begin: at the last token before the first sampled
one. The head is a small tree of its own type of variable beside the policy's parameters, `value_head`; the
two are trained together, and `without_head` is what samples, scores and is exported. The head begins at 0,
so that the advantages of the first update are lambda-returns.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh

from vict_jax.learner.losses import LossMetrics, PpoOptions, divide
from vict_jax.sharding import replicated
from vict_jax.types import TokenBatch, pytree

HEAD = "value_head"


class ValueParam(nnx.Variable):
    """A parameter of the value head."""


@pytree
class Values:
    """What the critic said before the update, and what it is to learn, of each step: f32[G, N, T] each."""

    old: jax.Array
    target: jax.Array


@pytree
class CriticRows:
    """`Values` on token rows; at the first trained token of each step, anything elsewhere.

    Attributes:
      old, target: f32[S, L].
      counts: bool[S, L], first tokens of the steps that take part.
      denominator: f32[], how many there are in the minibatch.
    """

    old: jax.Array
    target: jax.Array
    counts: jax.Array
    denominator: jax.Array


def abstract_head(d_model: int, mesh: Mesh) -> nnx.State:
    """Shapes and shardings of `new_head`."""
    weight, bias = (
        jax.ShapeDtypeStruct(shape, jnp.float32, sharding=replicated(mesh)) for shape in ((d_model,), ())
    )
    return nnx.State({HEAD: {"bias": ValueParam(bias), "weight": ValueParam(weight)}})


def new_head(d_model: int, mesh: Mesh) -> nnx.State:
    """A head that says 0, on every device of the mesh, float32."""

    def zeros() -> nnx.State:
        return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), abstract_head(d_model, mesh))

    return jax.jit(zeros, out_shardings=replicated(mesh))()


def attach(policy: nnx.State, head: nnx.State) -> nnx.State:
    """Trained parameters of the policy and the head as one tree; nothing is copied."""
    return nnx.merge_state(policy, head)


def split(params: nnx.State) -> tuple[nnx.State, nnx.State]:
    """The policy's parameters, and the head, empty where there is none; arrays or abstract values."""
    head, policy = nnx.split_state(params, ValueParam, ...)
    return policy, head


def has_head(params: nnx.State) -> bool:
    """Whether there is a value head among the parameters."""
    return HEAD in params


def without_head(params: nnx.State) -> nnx.State:
    """The policy's parameters."""
    return split(params)[0]


def read(head: nnx.State, hidden: jax.Array) -> jax.Array:
    """Values f32[...] of hidden states [..., d]."""
    part: Any = head[HEAD]
    weight, bias = part["weight"][...], part["bias"][...]
    return jnp.einsum("...d,d->...", hidden.astype(jnp.float32), weight) + bias


def first_tokens(batch: TokenBatch) -> jax.Array:
    """The first trained token of each step, bool[S, L]."""
    place = jnp.arange(batch.ids.shape[1])
    last = jax.lax.cummax(jnp.where(batch.loss_mask, place, -1), axis=1)
    before = jnp.pad(last[:, :-1], ((0, 0), (1, 0)), constant_values=-1)

    def as_before(x: jax.Array) -> jax.Array:
        return jnp.take_along_axis(x, jnp.maximum(before, 0), axis=1) == x

    goes_on = as_before(batch.segment) & as_before(batch.rollout) & as_before(batch.step)
    return batch.loss_mask & ~((before >= 0) & goes_on)


def per_step(x: jax.Array, batch: TokenBatch, shape: tuple[int, int, int]) -> jax.Array:
    """Sum of x f32[S, L] over the trained tokens of each step, f32[G, N, T]; 0 where a step has none."""
    groups, rollouts, steps = shape
    index = batch.rollout * steps + batch.step
    values = jnp.where(batch.loss_mask, x, 0.0)
    total = jnp.zeros(groups * rollouts * steps, jnp.float32).at[index.ravel()].add(values.ravel())
    return total.reshape(shape)


def critic_rows(values: Values, batch: TokenBatch, selected: jax.Array) -> CriticRows:
    """Values of the `selected` rollouts (bool[G*N]) on all rows of an update."""
    counts = first_tokens(batch) & selected[batch.rollout]

    def on_tokens(x: jax.Array) -> jax.Array:
        return x.reshape(-1, x.shape[-1])[batch.rollout, batch.step]

    return CriticRows(
        old=on_tokens(values.old),
        target=on_tokens(values.target),
        counts=counts,
        denominator=counts.sum().astype(jnp.float32),
    )


def value_loss(
    value: jax.Array, rows: CriticRows, *, options: PpoOptions
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Share of these rows in the mean of (V - target)^2 / 2 over the steps of the minibatch.

    With `value_clip` = c it is the larger of that and the same with V kept within c of its old value, as in
    the implementations of PPO (arXiv 2005.12729, section 3).

    Args:
      value: f32[S, L], under the trained critic; anything where nothing counts.

    Returns:
      The loss, f32[]; the number of steps where the clip stops the gradient, and of all steps, f32[].
    """

    def counted(x: jax.Array) -> jax.Array:
        return jnp.where(rows.counts, x, 0.0)

    value, old, target = counted(value), counted(rows.old), counted(rows.target)
    plain = jnp.square(value - target)
    loss, clipped = plain, jnp.zeros_like(rows.counts)
    if options.value_clip:
        kept = old + jnp.clip(value - old, -options.value_clip, options.value_clip)
        bounded = jnp.square(kept - target)
        loss, clipped = jnp.maximum(plain, bounded), bounded > plain
    share = divide(0.5 * loss.sum(), rows.denominator)
    return share, clipped.sum().astype(jnp.float32), rows.counts.sum().astype(jnp.float32)


def add_value_loss(
    loss: jax.Array, metrics: LossMetrics, value: jax.Array, rows: CriticRows, *, options: PpoOptions
) -> tuple[jax.Array, LossMetrics]:
    """The policy's loss and metrics with those of the critic."""
    share, clipped, count = value_loss(value, rows, options=options)
    metrics = dataclasses.replace(
        metrics, value_loss=jax.lax.stop_gradient(share), value_clipped=clipped, values=count
    )
    return loss + options.value_coefficient * share, metrics
