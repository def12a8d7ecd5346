"""The PPO update: score rows, weigh tokens, accumulate gradients, step.

Order of one update: advantages are gathered to tokens; weights and denominators are fixed over the
whole minibatch; gradients of micro-batches add up to that of the minibatch; one optimizer step per
minibatch. A minibatch is a random share of the rollouts.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from flax import nnx
from jax.sharding import Mesh

from vict_jax.batching import fetch, to_device, to_host
from vict_jax.learner import losses, value
from vict_jax.learner.importance import weigh
from vict_jax.learner.losses import LossMetrics, LossWeights, PpoOptions
from vict_jax.learner.microbatch import (
    Applied,
    GradientSteps,
    LearnerState,
    NonFiniteError,
    RowPlan,
    check_finite,
    check_micro_size,
    compile_steps,
    logp_entropy,
    micro_rows,
    plan_rows,
    row_logp,
    step_over_rows,
    take_rows,
    trained_tokens,
)
from vict_jax.learner.optimizer import Optimizer, leaf_names
from vict_jax.learner.value import CriticRows, Values
from vict_jax.models import lora
from vict_jax.sharding import replicated
from vict_jax.types import TokenBatch, pytree
from vict_jax.work import Work

# Above this share of tokens left out by `max_sequence_ratio` the update is hardly one.
MASKED_SHARE_WARNING = 0.2


@pytree
class PpoRows:
    """Token rows with everything the loss needs; [S, L] as a whole, [m, L] as a micro-batch.

    Attributes:
      batch: the rows.
      ref_logp: f32[S, L], under the reference policy; None without a KL term.
      advantage: f32[S, L], of each trained token.
      weights: token weights, and the denominators of the minibatch.
      critic: what the value head is to learn; None without one.
    """

    batch: TokenBatch
    ref_logp: jax.Array | None
    advantage: jax.Array
    weights: LossWeights
    critic: CriticRows | None = None


@dataclasses.dataclass(frozen=True)
class PpoLearner:
    """Compiled functions and constants of one run's updates; made by `compile_ppo`.

    Attributes:
      score: (graphdef, all parameters, TokenBatch [m, L], width) -> logp f32[m, L].
      judge: (trained parameters, frozen ones, TokenBatch [m, L], width) -> values f32[m, L].
      steps: gradients and optimizer steps of the PPO loss.
      options: the options it was compiled for.
      mesh: where everything lives.
    """

    score: Callable[[nnx.GraphDef, Any, TokenBatch, int], jax.Array]
    judge: Callable[[Any, Any, TokenBatch, int], jax.Array]
    steps: GradientSteps
    options: PpoOptions
    mesh: Mesh


def compile_ppo(
    graphdef: nnx.GraphDef,
    params: Any,
    optimizer: Optimizer,
    *,
    options: PpoOptions,
    temperature: float,
    mesh: Mesh,
    frozen: Any = None,
) -> PpoLearner:
    """Compile the update for trained parameters sharded like `params`.

    Args:
      temperature: of the distribution that the tokens are sampled from, above 0.
      mesh: `options.micro_rows` must divide over its batch axes.
      frozen: the other parameters of `graphdef`, see `models.lora`; None: all are trained.
    """
    check_micro_size(options.micro_rows, mesh)
    if temperature <= 0:
        raise ValueError(f"temperature={temperature} is not allowed: it must be above 0")

    @functools.partial(jax.jit, static_argnums=(0, 3))
    def score(graphdef: nnx.GraphDef, params: Any, batch: TokenBatch, width: int) -> jax.Array:
        return row_logp(graphdef, params, batch, width=width, temperature=temperature)[0]

    @functools.partial(jax.jit, static_argnums=3)
    def judge(params: Any, frozen: Any, batch: TokenBatch, width: int) -> jax.Array:
        policy, head = value.split(lora.combine(frozen, params))
        tokens = trained_tokens(graphdef, policy, batch, width=width)
        return tokens.put_back(value.read(head, tokens.hidden), batch.ids.shape)

    def loss_fn(params: Any, rows: PpoRows, width: int) -> tuple[jax.Array, LossMetrics]:
        policy, head = value.split(params)
        tokens = trained_tokens(graphdef, policy, rows.batch, width=width)
        logp, entropy = logp_entropy(graphdef, policy, rows.batch, tokens, temperature=temperature)
        ref_logp = jax.lax.stop_gradient(logp) if rows.ref_logp is None else rows.ref_logp
        loss, metrics = losses.ppo_loss(
            logp, entropy, ref_logp, rows.advantage, rows.batch, rows.weights, options=options
        )
        if rows.critic is None:
            return loss, metrics
        values = tokens.put_back(value.read(head, tokens.hidden), rows.batch.ids.shape)
        return value.add_value_loss(loss, metrics, values, rows.critic, options=options)

    steps = compile_steps(loss_fn, losses.merge_metrics, params, optimizer, frozen=frozen)
    return PpoLearner(score=score, judge=judge, steps=steps, options=options, mesh=mesh)


def score_batch(
    learner: PpoLearner, graphdef: nnx.GraphDef, params: Any, batch: TokenBatch, *, num_rollouts: int
) -> jax.Array:
    """Log-probabilities of all trained tokens of a batch: f32[S, L], 0 elsewhere.

    The forward function is that of the loss. The policy, all of its parameters, may be another one than the
    trained: the reference, or the base of a policy with adapters.
    """

    def score(micro: TokenBatch, width: int) -> jax.Array:
        return learner.score(graphdef, params, micro, width)

    return _by_micro_batches(learner, score, batch, num_rollouts)


def judge_batch(learner: PpoLearner, params: Any, batch: TokenBatch, *, num_rollouts: int) -> jax.Array:
    """Values of a critic: f32[S, L], at each trained token that of the tokens before; 0 elsewhere.

    `value.first_tokens` says which of them are values of steps.

    Args:
      params: the trained parameters, with the value head.

    Raises:
      ValueError: there is no value head.
    """
    if not value.has_head(params):
        raise ValueError(f"params has no {value.HEAD!r}: only credit methods that need values train one")

    def score(micro: TokenBatch, width: int) -> jax.Array:
        return learner.judge(params, learner.steps.frozen, micro, width)

    return _by_micro_batches(learner, score, batch, num_rollouts)


def _by_micro_batches(
    learner: PpoLearner,
    score: Callable[[TokenBatch, int], jax.Array],
    batch: TokenBatch,
    num_rollouts: int,
) -> jax.Array:
    """f32[S, L] from f32[m, L] of micro-batches; rows with nothing to train stay 0."""
    plan = plan_rows(batch, num_rollouts=num_rollouts, mesh=learner.mesh)
    whole = _empty_rows(batch, mesh=learner.mesh)
    rows = plan.rows_of(np.arange(num_rollouts))
    for index in micro_rows(
        rows, size=learner.options.micro_rows, total=len(plan.members), mesh=learner.mesh
    ):
        micro = take_rows(batch, index, mesh=learner.mesh)
        whole = _put_rows(whole, index, score(micro, plan.width))
    return whole


@functools.partial(jax.jit, static_argnames=("mesh",))
def _empty_rows(batch: TokenBatch, *, mesh: Mesh) -> jax.Array:
    return jax.lax.with_sharding_constraint(jnp.zeros(batch.ids.shape, jnp.float32), replicated(mesh))


@functools.partial(jax.jit, donate_argnums=0)
def _put_rows(whole: jax.Array, rows: jax.Array, part: jax.Array) -> jax.Array:
    return whole.at[rows].set(part, mode="drop")


@functools.partial(jax.jit, static_argnames=("options",))
def _prepare(
    batch: TokenBatch,
    ref_logp: jax.Array | None,
    advantages: jax.Array,
    selected: jax.Array,
    values: Values | None,
    importance: jax.Array | None,
    *,
    options: PpoOptions,
) -> PpoRows:
    """Gather advantages and values; fix the weights of the minibatch of `selected` (bool[R]) rollouts."""
    live = losses.live_rollouts(advantages).reshape(-1)
    weights = losses.loss_weights(batch, live, selected, options=options)
    if importance is not None:
        weights = weigh(weights, importance, options=options)
    return PpoRows(
        batch=batch,
        ref_logp=ref_logp,
        advantage=losses.gather_advantages(advantages, batch),
        weights=weights,
        critic=None if values is None else value.critic_rows(values, batch, selected),
    )


@jax.jit
def _inspect(
    batch: TokenBatch, ref_logp: jax.Array | None, advantages: jax.Array
) -> tuple[dict[str, jax.Array], jax.Array]:
    """Finiteness of what comes in, on trained tokens, and the live rollouts bool[R]."""
    inputs = {
        "advantages": losses.gather_advantages(advantages, batch),
        "behaviour_logp": batch.behaviour_logp,
        "ref_logp": batch.behaviour_logp if ref_logp is None else ref_logp,
    }
    finite = {name: jnp.isfinite(jnp.where(batch.loss_mask, x, 0.0)).all() for name, x in inputs.items()}
    return finite, losses.live_rollouts(advantages).reshape(-1)


@functools.partial(jax.jit, static_argnums=(1, 2))
def _permutations(key: jax.Array, count: int, size: int) -> jax.Array:
    return jax.vmap(lambda k: jax.random.permutation(k, size))(jax.random.split(key, count))


@functools.partial(jax.jit, static_argnames=("mesh",))
def _zero_metrics(*, mesh: Mesh) -> LossMetrics:
    return jax.lax.with_sharding_constraint(losses.zero_metrics(), replicated(mesh))


def ppo_update(
    learner: PpoLearner,
    state: LearnerState,
    ref_logp: jax.Array | None,
    batch: TokenBatch,
    advantages: jax.Array,
    key: jax.Array,
    *,
    update: int,
    values: Values | None = None,
    importance: jax.Array | None = None,
) -> Work[tuple[LearnerState, dict[str, float]]]:
    """One update: `epochs` passes of `minibatches` optimizer steps each, in pieces of a micro-batch.

    Does not depend on `micro_rows`, on the number of devices or on padding, up to float32 rounding.
    `state` is donated. Everything is fetched from the device at two points, the start and the end.

    Args:
      ref_logp: f32[S, L] from `score_batch` with the reference; None if there is no KL term.
      batch: [S, L], on the device.
      advantages: f32[G, N, T], on the device; 0 on padding.
      key: typed PRNG key for the order of rollouts.
      update: number of the update, for messages.
      values: of a credit method with a critic, on the device; `state` has a value head then.
      importance: f32[S, L] from `learner.importance` for samples of an older policy; `batch` has the
        log-probabilities of `state` as `behaviour_logp` then.

    Returns:
      The new state, and metrics by name, see `summarise`.

    Raises:
      NonFiniteError: a NaN or an infinity came up; the state is lost then.
      ValueError: `ref_logp` or `values` is missing, or nothing is trained.
    """
    options, mesh = learner.options, learner.mesh
    if ref_logp is None and options.kl_coefficient > 0:
        raise ValueError(f"ref_logp is None, but kl_coefficient={options.kl_coefficient}")
    if (values is not None) != value.has_head(state.params):
        raise ValueError(f"values is {values!r:.40}, but a critic is trained if and only if it has a head")
    num_rollouts = advantages.shape[0] * advantages.shape[1]
    plan = plan_rows(batch, num_rollouts=num_rollouts, mesh=mesh)
    inspected = _inspect(batch, ref_logp, advantages)
    finite, live = fetch(inspected, mesh)
    for name, ok in finite.items():
        if not ok:
            raise NonFiniteError(f"update {update}: {name} is not finite on a trained token")
    reports: list[tuple[LossMetrics, Applied]] = []
    for selected in _minibatches(plan, key, options, num_rollouts):
        chosen = to_device(selected, replicated(mesh))
        rows = _prepare(batch, ref_logp, advantages, chosen, values, importance, options=options)
        state, report = yield from step_over_rows(
            learner.steps,
            state,
            rows,
            plan.rows_of(np.flatnonzero(selected)),
            _zero_metrics(mesh=mesh),
            plan=plan,
            size=options.micro_rows,
            mesh=mesh,
        )
        reports.append(report)
    metrics, applied = zip(*to_host(reports), strict=True)
    loss = [_loss(m, options)["loss"] for m in metrics]
    check_finite(loss, applied, leaf_names(state.params), where=f"update {update}")
    summary = summarise(metrics, applied, options=options)
    summary["dead_group_share"] = _dead_group_share(plan, live, advantages.shape[:2])
    if ref_logp is None:
        del summary["kl_reference"]
    if ref_logp is None or options.kl_in != "loss":
        del summary["kl_loss"]
    if values is None:
        del summary["value_loss"], summary["value_clip_fraction"]
    for note in notes(summary):
        logging.warning("update %d: %s", update, note)
    return state, summary


def _minibatches(plan: RowPlan, key: jax.Array, options: PpoOptions, num_rollouts: int) -> list[np.ndarray]:
    """Rollouts of each optimizer step of the update: bool[R] each."""
    trained = np.logical_or.reduce(plan.members, axis=0)
    selections = []
    for order in to_host(_permutations(key, options.epochs, num_rollouts)):
        for part in np.array_split(order[trained[order]], options.minibatches):
            if part.size:
                selections.append(np.isin(np.arange(num_rollouts), part))
    return selections


def _dead_group_share(plan: RowPlan, live: np.ndarray, shape: tuple[int, ...]) -> float:
    """Share of the groups with trained tokens whose advantages are all 0."""
    trained = np.logical_or.reduce(plan.members, axis=0).reshape(shape).any(axis=1)
    living = live.reshape(shape).any(axis=1)
    return float((trained & ~living).sum() / trained.sum())


def _loss(metrics: LossMetrics, options: PpoOptions, *, steps: int = 1) -> dict[str, float]:
    """The mean loss of so many optimizer steps and its parts, in float64 on the host."""
    policy, kl = float(metrics.policy_loss) / steps, float(metrics.kl_loss) / steps
    of_value = float(metrics.value_loss) / steps
    total = policy + options.kl_loss_coefficient * kl + options.value_coefficient * of_value
    return {"loss": total, "policy_loss": policy, "kl_loss": kl, "value_loss": of_value}


def summarise(
    metrics: Sequence[LossMetrics], applied: Sequence[Applied], *, options: PpoOptions
) -> dict[str, float]:
    """Metrics of an update from those of its optimizer steps (all on the host).

    Losses are means over optimizer steps, the others over trained tokens. `first_log_ratio_max` is the
    largest |log ratio| at the first optimizer step: the difference between sampler and learner.
    """
    total = functools.reduce(functools.partial(losses.merge_metrics, maximum=np.maximum), metrics)
    tokens, count = max(float(total.tokens), 1.0), len(metrics)
    return {
        **_loss(total, options, steps=count),
        "value_clip_fraction": float(total.value_clipped) / max(float(total.values), 1.0),
        "kl_reference": float(total.kl) / tokens,
        "kl_behaviour": float(total.behaviour_kl) / tokens,
        "entropy": float(total.entropy) / tokens,
        "ratio_mean": float(total.ratio) / tokens,
        "ratio_max": float(total.max_ratio),
        "first_log_ratio_max": float(metrics[0].max_abs_log_ratio),
        "clip_fraction": float(total.clipped) / tokens,
        "masked_share": float(total.masked) / tokens,
        "gradient_norm": float(np.mean([step.gradient_norm for step in applied])),
        "learning_rate": float(applied[-1].learning_rate),
        "trained_tokens": float(total.tokens),
        "optimizer_steps": float(count),
    }


def notes(metrics: dict[str, float]) -> list[str]:
    """Warnings that the metrics of an update call for; empty if all is well."""
    found = []
    if metrics["masked_share"] > MASKED_SHARE_WARNING:
        found.append(
            f"{metrics['masked_share']:.0%} of the trained tokens are left out by max_sequence_ratio: "
            "sampler and learner have drifted apart"
        )
    if metrics["dead_group_share"] == 1.0:
        found.append("all advantages are 0: at most the KL term moves the policy")
    return found
