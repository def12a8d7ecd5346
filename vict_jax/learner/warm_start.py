"""Supervised warm start: maximum likelihood of the demonstrated replies, token by token."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from vict_jax.batching import to_device, to_host
from vict_jax.learner import losses
from vict_jax.learner.microbatch import (
    Applied,
    GradientSteps,
    LearnerState,
    check_finite,
    check_micro_size,
    compile_steps,
    plan_rows,
    row_logp,
    step_over_rows,
)
from vict_jax.learner.optimizer import Optimizer, leaf_names
from vict_jax.sharding import replicated
from vict_jax.types import TokenBatch, pytree
from vict_jax.work import finish


@pytree
class SupervisedRows:
    """Demonstration rows and the number of trained tokens (f32[]) of the optimizer step they belong to."""

    batch: TokenBatch
    denominator: jax.Array


@pytree
class SupervisedMetrics:
    """f32[] each, summed over micro-batches: share of the mean loss in nats, and trained tokens."""

    loss: jax.Array
    tokens: jax.Array


@dataclasses.dataclass(frozen=True)
class SupervisedLearner:
    """Compiled functions of the warm start; made by `compile_supervised`."""

    steps: GradientSteps
    micro_rows: int
    mesh: Mesh


def compile_supervised(
    graphdef: nnx.GraphDef,
    params: Any,
    optimizer: Optimizer,
    *,
    micro_rows: int,
    mesh: Mesh,
    frozen: Any = None,
) -> SupervisedLearner:
    """Compile the supervised step for trained parameters sharded like `params`.

    Args:
      micro_rows: token rows of one gradient computation; results do not depend on it.
      mesh: `micro_rows` must divide over its batch axes.
      frozen: the other parameters of `graphdef`, see `models.lora`; None: all are trained.
    """
    check_micro_size(micro_rows, mesh)

    def loss_fn(params: Any, rows: SupervisedRows, width: int) -> tuple[jax.Array, SupervisedMetrics]:
        logp, _ = row_logp(graphdef, params, rows.batch, width=width, temperature=1.0)
        loss, tokens = losses.supervised_loss(logp, rows.batch, rows.denominator)
        return loss, SupervisedMetrics(loss=jax.lax.stop_gradient(loss), tokens=tokens)

    def merge(a: SupervisedMetrics, b: SupervisedMetrics) -> SupervisedMetrics:
        return jax.tree.map(jnp.add, a, b)

    steps = compile_steps(loss_fn, merge, params, optimizer, frozen=frozen)
    return SupervisedLearner(steps=steps, micro_rows=micro_rows, mesh=mesh)


def epoch_rows(num_rows: int, *, rows_per_batch: int, seed: int, epoch: int) -> Iterator[np.ndarray]:
    """Row indices of each optimizer step of an epoch, every row exactly once; the last may be shorter.

    Depends on `seed` and `epoch` only, so that a resumed run sees the same order.
    """
    order = np.random.default_rng([seed, epoch]).permutation(num_rows)
    for start in range(0, num_rows, rows_per_batch):
        yield order[start : start + rows_per_batch]


def train_epoch(
    learner: SupervisedLearner,
    state: LearnerState,
    batch: TokenBatch,
    *,
    rows_per_batch: int,
    seed: int,
    epoch: int,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[LearnerState, dict[str, float]]:
    """One pass over the demonstrations; `state` is donated.

    Args:
      batch: [S, L], on the device; `behaviour_logp`, `rollout` and `step` are not read.
      rows_per_batch: rows of one optimizer step.
      epoch: number of the pass, for the order of rows and for messages.
      progress: told after each optimizer step how many are done, and of how many.

    Returns:
      The new state, and over the epoch: `loss` (nats a token, each token weighing the same), `tokens`,
      mean `gradient_norm`, last `learning_rate`, `optimizer_steps`.

    Raises:
      NonFiniteError: a NaN or an infinity came up; the state is lost then.
      ValueError: nothing in the batch is trained.
    """
    whole = dataclasses.replace(batch, rollout=_zeros_like(batch.rollout))
    plan = plan_rows(whole, num_rollouts=1, mesh=learner.mesh)
    rows = plan.rows_of(np.zeros(1, np.int64))
    reports: list[tuple[SupervisedMetrics, Applied]] = []
    batches = list(epoch_rows(len(rows), rows_per_batch=rows_per_batch, seed=seed, epoch=epoch))
    for index in batches:
        picked = np.full(rows_per_batch, len(plan.members), np.int32)
        picked[: len(index)] = rows[index]
        count = _trained_tokens(batch, to_device(picked, replicated(learner.mesh)))
        step_rows = SupervisedRows(batch=batch, denominator=count)
        step = step_over_rows(
            learner.steps,
            state,
            step_rows,
            rows[index],
            _zero_metrics(mesh=learner.mesh),
            plan=plan,
            size=learner.micro_rows,
            mesh=learner.mesh,
        )
        state, report = finish(step)
        reports.append(report)
        if progress is not None:
            # One behind what was handed out, so that the device never waits for the host.
            jax.block_until_ready(reports[-2:][0])
            progress(len(reports), len(batches))
    metrics, applied = zip(*to_host(reports), strict=True)
    check_finite(
        [m.loss for m in metrics], applied, leaf_names(state.params), where=f"warm-start epoch {epoch}"
    )
    return state, _summarise(metrics, applied)


@jax.jit
def _zeros_like(x: jax.Array) -> jax.Array:
    return jnp.zeros_like(x)


@jax.jit
def _trained_tokens(batch: TokenBatch, rows: jax.Array) -> jax.Array:
    mask = jnp.take(batch.loss_mask, rows, axis=0, mode="fill", fill_value=False)
    return mask.sum().astype(jnp.float32)


@functools.partial(jax.jit, static_argnames=("mesh",))
def _zero_metrics(*, mesh: Mesh) -> SupervisedMetrics:
    zero = jax.lax.with_sharding_constraint(jnp.float32(0), replicated(mesh))
    return SupervisedMetrics(loss=zero, tokens=zero)


def _summarise(metrics: tuple[SupervisedMetrics, ...], applied: tuple[Applied, ...]) -> dict[str, float]:
    tokens = np.array([m.tokens for m in metrics], np.float64)
    return {
        "loss": float(np.dot([m.loss for m in metrics], tokens) / tokens.sum()),
        "tokens": float(tokens.sum()),
        "gradient_norm": float(np.mean([step.gradient_norm for step in applied])),
        "learning_rate": float(applied[-1].learning_rate),
        "optimizer_steps": float(len(applied)),
    }
