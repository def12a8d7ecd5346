"""Policy and KL losses over token rows: pure functions, float32, explicit masks.

Every loss is a weighted sum of token losses and a denominator. Weights and denominators come from
`loss_weights`, over the *whole* batch and before any gradient, so splitting it into micro-batches,
spreading it over devices or padding it does not change the objective.

Axes: S token rows, L tokens of a row, G groups, N rollouts of a group, T steps, R = G*N rollouts. A
*sequence* is one model sequence, a segment of a row: one step of a windowed rollout, or a whole
appended rollout. A *rollout* is all steps of an episode, in however many sequences.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from vict_jax.types import TokenBatch, pytree

AGGREGATIONS = (
    "rollout_mean",
    "token_mean",
    "sequence_mean_of_sums",
    "sequence_mean_of_means",
    "constant",
)
KL_ESTIMATORS = ("k1", "k2", "k3")
KL_PLACES = ("loss", "reward")
RATIO_LEVELS = ("token", "sequence")

# Bounds of log-ratios before exp and of k3, so that one outlier token cannot overflow a batch.
_MAX_LOG_RATIO = 20.0
_MAX_K3 = 10.0


@dataclasses.dataclass(frozen=True)
class PpoOptions:
    """Options of the PPO update. Zero turns an optional bound off.

    Attributes:
      clip_low, clip_high: the ratio is clipped to [1 - clip_low, 1 + clip_high].
      dual_clip: c > 1, bound -A c of the loss of a token with A < 0 (arXiv 1912.09729, Eq. 5). 0 = off.
      ratio_level: "token" (PPO) or "sequence" (GSPO, arXiv 2507.18071, Eq. 7: exp of the mean log-ratio).
      max_sequence_ratio: sequences whose exp(mean log-ratio) is above it leave the policy loss; their
        share is the metric `masked_share`. 0 = off.
      kl_coefficient: weight of the KL to the reference policy.
      kl_estimator: "k1", "k2" or "k3", see `kl_loss`.
      kl_in: where the KL goes: into the "loss", or, with the log-probabilities that the tokens were sampled
        with (with `train.staleness`: of the policy before the update), off the "reward" of their steps
        (`kl_penalty`), from where it reaches the advantages. The next and `kl_on_dead_groups` are about the
        loss.
      kl_importance_weight: multiply the estimate by the importance ratio, which makes its gradient that
        of KL(pi || ref) whatever the age of the samples. "k1" needs it: without, its gradient is noise.
      aggregation: how token losses are weighted, see `token_weights`. "rollout_mean", the default, gives
        every rollout the same total weight, however many steps or tokens it has.
      constant_divisor: the denominator of aggregation "constant" (Dr.GRPO), never a padded width.
      kl_on_dead_groups: apply the KL to groups whose advantages are all 0. Their policy part is 0 always.
      count_dead_groups: let them count in the denominator of the policy loss.
      value_coefficient: weight of the critic's loss, see `learner.value`; for credit methods with a critic.
      value_clip: bound of its change in an update, see `learner.value.value_loss`. 0 = off.
      importance_cap: bound of the importance weight of tokens that an older policy sampled, see
        `learner.importance`; for `train.staleness`.
      epochs: passes over the batch. minibatches: optimizer steps of a pass, each on a share of the
        rollouts. micro_rows: token rows of one gradient computation; results do not depend on it.
    """

    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float = 0.0
    ratio_level: str = "token"
    max_sequence_ratio: float = 0.0
    kl_coefficient: float = 0.01
    kl_estimator: str = "k3"
    kl_in: str = "loss"
    kl_importance_weight: bool = True
    aggregation: str = "rollout_mean"
    constant_divisor: float = 0.0
    kl_on_dead_groups: bool = True
    count_dead_groups: bool = True
    value_coefficient: float = 0.5
    value_clip: float = 0.0
    importance_cap: float = 2.0
    epochs: int = 1
    minibatches: int = 1
    micro_rows: int = 8

    def __post_init__(self) -> None:
        _require(0 < self.clip_low < 1, "clip_low", self.clip_low, "above 0 and below 1")
        _require(self.clip_high > 0, "clip_high", self.clip_high, "above 0")
        _require(self.dual_clip == 0 or self.dual_clip > 1, "dual_clip", self.dual_clip, "0 (off) or above 1")
        _require(self.ratio_level in RATIO_LEVELS, "ratio_level", self.ratio_level, f"one of {RATIO_LEVELS}")
        _require(
            self.max_sequence_ratio == 0 or self.max_sequence_ratio > 1,
            "max_sequence_ratio",
            self.max_sequence_ratio,
            "0 (off) or above 1",
        )
        _require(self.kl_coefficient >= 0, "kl_coefficient", self.kl_coefficient, "0 or more")
        _require(
            self.kl_estimator in KL_ESTIMATORS, "kl_estimator", self.kl_estimator, f"one of {KL_ESTIMATORS}"
        )
        _require(self.kl_in in KL_PLACES, "kl_in", self.kl_in, f"one of {KL_PLACES}")
        _require(
            self.kl_estimator != "k1" or self.kl_importance_weight or self.kl_loss_coefficient == 0,
            "kl_importance_weight",
            self.kl_importance_weight,
            "True with kl_estimator='k1' in the loss, where its plain gradient has expectation 0",
        )
        _require(self.value_coefficient > 0, "value_coefficient", self.value_coefficient, "above 0")
        _require(self.value_clip >= 0, "value_clip", self.value_clip, "0 (off) or more")
        _require(self.importance_cap >= 1, "importance_cap", self.importance_cap, "1 or more")
        _require(self.aggregation in AGGREGATIONS, "aggregation", self.aggregation, f"one of {AGGREGATIONS}")
        constant = self.aggregation == "constant"
        _require(
            self.constant_divisor > 0 if constant else self.constant_divisor == 0,
            "constant_divisor",
            self.constant_divisor,
            "above 0 with aggregation='constant', 0 with any other",
        )
        for name in ("epochs", "minibatches", "micro_rows"):
            value = dataclasses.asdict(self)[name]
            _require(value >= 1, name, value, "1 or more")

    @property
    def kl_loss_coefficient(self) -> float:
        """Weight of the KL in the loss: 0 where it is in the reward."""
        return self.kl_coefficient if self.kl_in == "loss" else 0.0


def _require(ok: bool, name: str, value: object, allowed: str) -> None:
    if not ok:
        raise ValueError(f"{name}={value!r} is not allowed: it must be {allowed}")


@pytree
class LossWeights:
    """What each token weighs in the two losses, and what the weighted sums are divided by.

    Attributes:
      policy, kl: f32[S, L], 0 on tokens that do not take part.
      policy_denominator, kl_denominator: f32[], over the whole batch.
    """

    policy: jax.Array
    kl: jax.Array
    policy_denominator: jax.Array
    kl_denominator: jax.Array


@pytree
class LossMetrics:
    """Sums over tokens (f32[] each) that add up across micro-batches; `summarize` turns them into means.

    Attributes:
      policy_loss, kl_loss: shares of the loss, already divided by their denominators.
      tokens: trained tokens. ratio, clipped, masked, kl, behaviour_kl, entropy: sums over them of the
        ratio, of "the clip is active", of "left out by max_sequence_ratio", of k3 against the reference
        and against the behaviour policy, and of the entropy of the token's distribution.
      max_ratio, max_abs_log_ratio: largest of any token; these two are merged by maximum.
      value_loss: the critic's share, already divided. value_clipped, values: over steps, sums of "the value
        clip is active" and of 1; 0 without a critic.
    """

    policy_loss: jax.Array
    kl_loss: jax.Array
    tokens: jax.Array
    ratio: jax.Array
    clipped: jax.Array
    masked: jax.Array
    kl: jax.Array
    behaviour_kl: jax.Array
    entropy: jax.Array
    max_ratio: jax.Array
    max_abs_log_ratio: jax.Array
    value_loss: jax.Array
    value_clipped: jax.Array
    values: jax.Array


def _sum_per_sequence(x: jax.Array, segment: jax.Array) -> jax.Array:
    """Sum of `x` [S, L] over each segment of each row, written to every token of it. f32[S, L]."""

    def row(x_l: jax.Array, segment_l: jax.Array) -> jax.Array:
        return jax.ops.segment_sum(x_l, segment_l, num_segments=x_l.shape[0] + 1)[segment_l]

    return jax.vmap(row)(x.astype(jnp.float32), segment)


def token_weights(
    mask: jax.Array,
    segment: jax.Array,
    rollout: jax.Array,
    *,
    num_rollouts: int,
    aggregation: str,
    constant_divisor: float,
) -> tuple[jax.Array, jax.Array]:
    """Weight of each token's loss and the denominator of the weighted sum.

    `rollout_mean`: mean over a rollout's tokens, then over rollouts. `token_mean`: mean over all tokens.
    `sequence_mean_of_sums` / `sequence_mean_of_means`: sum or mean over a sequence's tokens, then mean
    over sequences. `constant`: sum over all tokens divided by `constant_divisor`.

    Args:
      mask: bool[S, L], tokens that take part; rollouts and sequences without any do not count.
      segment, rollout: i32[S, L], as in `TokenBatch`; rollout < num_rollouts.

    Returns:
      weight f32[S, L] and denominator f32[]; 0 and 0 if nothing takes part.
    """
    mask = mask.astype(jnp.float32)
    if aggregation in ("token_mean", "constant"):
        weight = mask
    elif aggregation == "rollout_mean":
        count = jax.ops.segment_sum(mask.ravel(), rollout.ravel(), num_segments=num_rollouts)
        weight = mask / jnp.maximum(count, 1.0)[rollout]
    else:
        weight = mask / jnp.maximum(_sum_per_sequence(mask, segment), 1.0)
    if aggregation == "constant":
        return weight, jnp.float32(constant_divisor)
    if aggregation == "rollout_mean":
        return weight, (count > 0).sum().astype(jnp.float32)
    denominator = weight.sum()
    return (mask if aggregation == "sequence_mean_of_sums" else weight), denominator


def live_rollouts(advantages: jax.Array) -> jax.Array:
    """bool[G, N], False in dead groups: those whose advantages (f32[G, N, T]) are all 0."""
    return jnp.broadcast_to((advantages != 0).any((1, 2))[:, None], advantages.shape[:2])


def gather_advantages(advantages: jax.Array, batch: TokenBatch) -> jax.Array:
    """Advantage of each token, `advantages[rollout, step]`: f32[S, L], 0 where nothing is trained.

    Args:
      advantages: f32[G, N, T].
      batch: rows whose `rollout` indexes the flattened [G*N] rollouts.
    """
    flat = advantages.astype(jnp.float32).reshape(-1, advantages.shape[-1])
    return jnp.where(batch.loss_mask, flat[batch.rollout, batch.step], 0.0)


def loss_weights(
    batch: TokenBatch, live: jax.Array, selected: jax.Array, *, options: PpoOptions
) -> LossWeights:
    """Token weights of both losses over the whole batch.

    Args:
      batch: all rows of the update.
      live: bool[R], see `live_rollouts`.
      selected: bool[R], rollouts of this minibatch.
    """

    def weigh(mask: jax.Array) -> tuple[jax.Array, jax.Array]:
        return token_weights(
            mask,
            batch.segment,
            batch.rollout,
            num_rollouts=selected.shape[0],
            aggregation=options.aggregation,
            constant_divisor=options.constant_divisor,
        )

    mask = batch.loss_mask & selected[batch.rollout]
    living = mask & live[batch.rollout]
    policy = weigh(mask if options.count_dead_groups else living)
    kl = weigh(mask if options.kl_on_dead_groups else living)
    return LossWeights(policy=policy[0], kl=kl[0], policy_denominator=policy[1], kl_denominator=kl[1])


def bounded_ratio(log_ratio: jax.Array) -> jax.Array:
    """exp of a log-ratio within +-20."""
    return jnp.exp(jnp.clip(log_ratio, -_MAX_LOG_RATIO, _MAX_LOG_RATIO))


def mean_log_ratio(log_ratio: jax.Array, mask: jax.Array, segment: jax.Array) -> jax.Array:
    """Mean log-ratio over a sequence's trained tokens, written to every token of it. f32[S, L]."""
    total = _sum_per_sequence(jnp.where(mask, log_ratio, 0.0), segment)
    return total / jnp.maximum(_sum_per_sequence(mask, segment), 1.0)


def clipped_policy_loss(
    ratio: jax.Array, advantage: jax.Array, *, clip_low: float, clip_high: float, dual_clip: float
) -> tuple[jax.Array, jax.Array]:
    """PPO's clipped loss (arXiv 1707.06347, Eq. 7, negated) with separate bounds and optional dual clip.

    Returns:
      loss: the shape of `ratio`, max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high)), for A < 0 at most
        -A dual_clip.
      clipped: bool, the gradient of the token is 0 because a bound is active.
    """
    plain = -advantage * ratio
    bounded = -advantage * jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high)
    loss, clipped = jnp.maximum(plain, bounded), bounded > plain
    if dual_clip:
        cap = -advantage * dual_clip
        capped = (advantage < 0) & (loss > cap)
        loss, clipped = jnp.where(capped, cap, loss), clipped | capped
    return loss, clipped


def kl_estimate(logp: jax.Array, ref_logp: jax.Array, *, estimator: str) -> jax.Array:
    """One-sample estimate of KL(pi || ref), d = logp - ref_logp (Schulman, "Approximating KL divergence").

    k1 = d; k2 = d^2 / 2; k3 = exp(-d) - 1 + d, clamped to +-10.
    """
    d = logp - ref_logp
    if estimator == "k1":
        return d
    if estimator == "k2":
        return 0.5 * d * d
    d = jnp.clip(d, -_MAX_LOG_RATIO, _MAX_LOG_RATIO)
    return jnp.clip(jnp.exp(-d) - 1.0 + d, -_MAX_K3, _MAX_K3)


def kl_loss(
    logp: jax.Array, ref_logp: jax.Array, ratio: jax.Array, *, estimator: str, importance_weight: bool
) -> jax.Array:
    """KL estimate as a token loss, of the shape of `logp`.

    With the importance ratio pi/behaviour the expected gradient is exactly that of KL(pi || ref) of the next
    token, after prefixes as they were sampled: what a token does to the KL of later ones is not in it. k1 and
    k3 need the gradient through the ratio, since they estimate the value; k2 has the right gradient by
    itself and takes the ratio as a constant. Without it, on fresh samples, k2 is still right, k3 follows
    KL(ref || pi), and k1 has expected gradient 0.
    """
    value = kl_estimate(logp, ref_logp, estimator=estimator)
    if not importance_weight:
        return value
    return value * (jax.lax.stop_gradient(ratio) if estimator == "k2" else ratio)


def kl_penalty(batch: TokenBatch, ref_logp: jax.Array, *, options: PpoOptions) -> jax.Array:
    """What the KL to the reference takes off the reward of each trained token, f32[S, L]; 0 elsewhere.

    The estimate is that of the policy of `behaviour_logp`, so that it is a constant of the update.
    """
    estimate = kl_estimate(batch.behaviour_logp, ref_logp, estimator=options.kl_estimator)
    return jnp.where(batch.loss_mask, options.kl_coefficient * estimate, 0.0)


def ppo_loss(
    logp: jax.Array,
    entropy: jax.Array,
    ref_logp: jax.Array,
    advantage: jax.Array,
    batch: TokenBatch,
    weights: LossWeights,
    *,
    options: PpoOptions,
) -> tuple[jax.Array, LossMetrics]:
    """Share of these rows in the loss of the whole batch; shares of all micro-batches add up to it.

    Args:
      logp, entropy: f32[S, L], under the trained policy. Anything where not trained, here and below.
      ref_logp: f32[S, L], under the reference policy.
      advantage: f32[S, L], see `gather_advantages`.
      batch: the rows, with the behaviour policy's log-probabilities.
      weights: of these rows; the denominators are those of the whole batch.

    Returns:
      policy_sum / policy_denominator + kl_loss_coefficient * kl_sum / kl_denominator, and the metrics.
    """
    mask = (weights.policy > 0) | (weights.kl > 0)

    def trained(x: jax.Array) -> jax.Array:
        return jnp.where(mask, x.astype(jnp.float32), 0.0)

    logp, ref_logp, advantage = trained(logp), trained(ref_logp), trained(advantage)
    log_ratio = logp - trained(batch.behaviour_logp)
    token_ratio = bounded_ratio(log_ratio)
    sequence = mean_log_ratio(log_ratio, mask, batch.segment)
    sequence_ratio = bounded_ratio(sequence)
    ratio = sequence_ratio if options.ratio_level == "sequence" else token_ratio
    policy, clipped = clipped_policy_loss(
        ratio,
        advantage,
        clip_low=options.clip_low,
        clip_high=options.clip_high,
        dual_clip=options.dual_clip,
    )
    kept = jnp.ones_like(mask)
    if options.max_sequence_ratio:
        kept = sequence_ratio <= options.max_sequence_ratio
    kl = kl_loss(
        logp,
        ref_logp,
        token_ratio,
        estimator=options.kl_estimator,
        importance_weight=options.kl_importance_weight,
    )
    policy_loss = divide(jnp.sum(jnp.where(kept, policy, 0.0) * weights.policy), weights.policy_denominator)
    kl_loss_ = divide(jnp.sum(trained(kl) * weights.kl), weights.kl_denominator)
    metrics = LossMetrics(
        policy_loss=policy_loss,
        kl_loss=kl_loss_,
        tokens=mask.sum().astype(jnp.float32),
        ratio=trained(ratio).sum(),
        clipped=trained(clipped & kept).sum(),
        masked=trained(~kept).sum(),
        kl=trained(kl_estimate(logp, ref_logp, estimator="k3")).sum(),
        behaviour_kl=trained(kl_estimate(trained(batch.behaviour_logp), logp, estimator="k3")).sum(),
        entropy=trained(entropy).sum(),
        max_ratio=trained(ratio).max(),
        max_abs_log_ratio=jnp.abs(log_ratio).max(),
        value_loss=jnp.float32(0.0),
        value_clipped=jnp.float32(0.0),
        values=jnp.float32(0.0),
    )
    return policy_loss + options.kl_loss_coefficient * kl_loss_, jax.lax.stop_gradient(metrics)


def divide(total: jax.Array, denominator: jax.Array) -> jax.Array:
    """`total / denominator`, 0 where nothing was summed."""
    return jnp.where(denominator > 0, total / jnp.where(denominator > 0, denominator, 1.0), 0.0)


def supervised_loss(
    logp: jax.Array, batch: TokenBatch, denominator: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Share of these rows in the mean negative log-likelihood of the trained tokens, in nats.

    Args:
      logp: f32[S, L].
      batch: the rows; only tokens under `loss_mask` count.
      denominator: f32[], trained tokens of the whole batch.

    Returns:
      loss f32[], and the number of trained tokens of these rows f32[].
    """
    total = -jnp.where(batch.loss_mask, logp.astype(jnp.float32), 0.0).sum()
    return divide(total, denominator), batch.loss_mask.sum().astype(jnp.float32)


def zero_metrics() -> LossMetrics:
    """The neutral element of `merge_metrics`."""
    return LossMetrics(**{field.name: jnp.float32(0) for field in dataclasses.fields(LossMetrics)})


def merge_metrics(
    a: LossMetrics, b: LossMetrics, *, maximum: Callable[[Any, Any], Any] = jnp.maximum
) -> LossMetrics:
    """Metrics of two disjoint sets of tokens together; pass `maximum=np.maximum` for NumPy leaves."""
    merged = jax.tree.map(operator.add, a, b)
    return dataclasses.replace(
        merged,
        max_ratio=maximum(a.max_ratio, b.max_ratio),
        max_abs_log_ratio=maximum(a.max_abs_log_ratio, b.max_abs_log_ratio),
    )
