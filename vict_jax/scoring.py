"""What the models have to say about an update's rollouts before credit is assigned.

Token rows for the update, the reference's log-probabilities on them, what is taken off the reward at each
step, and a critic's values: all under the policy before the update, which sampled the rollouts unless they
are one update old (`train.staleness`).
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from vict_jax import hindsight, processes
from vict_jax.batching import EndReason, fetch
from vict_jax.job import Job, Policy, needs_values, policy
from vict_jax.learner import losses, value
from vict_jax.learner.importance import importance_weights
from vict_jax.learner.losses import PpoOptions
from vict_jax.learner.update import PpoLearner, judge_batch, score_batch
from vict_jax.packing import RowReport
from vict_jax.rollout.collector import Collected
from vict_jax.shaping import penalties
from vict_jax.shares import Share, global_rows, part, whole
from vict_jax.types import TokenBatch

Shape = tuple[int, int, int]


@dataclasses.dataclass(frozen=True)
class Scored:
    """The rollouts of an update as the learner sees them.

    Attributes:
      batch: token rows [S, L], on the device. report: what packing did.
      ref_logp: f32[S, L] on the device; None without a KL term.
      importance: f32[S, L] on the device, see `learner.importance`; None where updates are on-policy. The
        batch's `behaviour_logp` is that of the policy before this update in any case.
      inputs: fields of `CreditInputs`, on the host: `penalty`, `value` and, if needed, `hindsight_logp`.
      figures: mean over rollouts of what was taken off their returns: `kl_penalty` where the KL is in the
        reward, `shaping_penalty` where there is an overlong or a format penalty; and, with `importance`, how
        far the policy is from the one that sampled.
    """

    batch: TokenBatch
    report: RowReport
    ref_logp: jax.Array | None
    importance: jax.Array | None
    inputs: dict[str, Any]
    figures: dict[str, float]


_importance = jax.jit(importance_weights, static_argnames="options")


@functools.partial(jax.jit, static_argnames=("options", "shape"))
def _kl_by_step(batch: TokenBatch, ref_logp: jax.Array, *, options: PpoOptions, shape: Shape) -> jax.Array:
    return value.per_step(losses.kl_penalty(batch, ref_logp, options=options), batch, shape)


@functools.partial(jax.jit, static_argnames=("shape",))
def _value_by_step(batch: TokenBatch, values: jax.Array, *, shape: Shape) -> tuple[jax.Array, jax.Array]:
    """Value of each step, and bool[G, N, T] where there is one."""
    first = value.first_tokens(batch)
    by_step = value.per_step(jnp.where(first, values, 0.0), batch, shape)
    return by_step, value.per_step(first.astype(jnp.float32), batch, shape) > 0


def score_rollouts(
    job: Job,
    learner: PpoLearner,
    params: nnx.State,
    reference: Policy | None,
    played: Collected,
    share: Share,
) -> Scored:
    """Pack the rollouts and run the models over them that the config needs; called by all processes.

    Args:
      params: trained parameters, with a value head if the credit method needs values.
      reference: of the KL term; None: there is no KL term.
      played: the groups of this process, `share`; the result is of those of all.

    Raises:
      ValueError: a step has no sampled token for the critic to read its value at.
    """
    config, groups = job.config, played.groups
    batch, report = global_rows(
        groups,
        share,
        job.mesh,
        group_size=config.train.rollouts,
        row_length=config.rollout.max_context,
        isolate_rollouts=config.ppo.minibatches > 1,
    )
    shape = (share.total, config.train.rollouts, job.max_steps)
    count = shape[0] * shape[1]
    own = penalties(groups, played.marks, config.reward, config.rollout, max_steps=job.max_steps)
    penalty = whole(own, share)
    figures: dict[str, float] = {}
    importance, ref_logp = None, None
    if config.train.staleness:
        logp = score_batch(learner, *policy(job, params), batch, num_rollouts=count)
        importance, about = _importance(logp, batch, options=config.ppo)
        figures |= {name: float(value) for name, value in fetch(about, job.mesh).items()}
        batch = dataclasses.replace(batch, behaviour_logp=logp)
    present = sum(rollout.end is not EndReason.ABSENT for group in groups for rollout in group)
    real = sum(processes.gather(present))
    if config.reward.overlong_buffer or config.rollout.format_penalty:
        figures["shaping_penalty"] = float(penalty.sum() / real)
    if reference is not None:
        ref_logp = score_batch(learner, *reference, batch, num_rollouts=count)
        if config.ppo.kl_in == "reward":
            by_step = _kl_by_step(batch, ref_logp, options=config.ppo, shape=shape)
            kl = fetch(by_step, job.mesh)
            penalty, figures["kl_penalty"] = penalty + kl, float(kl.sum() / real)
    values = np.zeros(shape, np.float32)
    if needs_values(config):
        judged = judge_batch(learner, params, batch, num_rollouts=count)
        by_step = _value_by_step(batch, judged, shape=shape)
        values, found = fetch(by_step, job.mesh)
        _check_found(part(found, share), played)
    inputs = {"penalty": penalty, "value": values}
    if hindsight.needed(config):
        inputs[hindsight.FIELD] = hindsight.hindsight_logp(job, learner, params, groups, share)
    return Scored(batch, report, ref_logp, importance, inputs, figures)


def _check_found(found: np.ndarray, played: Collected) -> None:
    for g, group in enumerate(played.groups):
        for n, rollout in enumerate(group):
            steps = 0 if rollout.lost else len(rollout.actions)
            if not found[g, n, :steps].all():
                raise ValueError(
                    f"step {int(np.argmin(found[g, n, :steps]))} of rollout {n} of task {rollout.task.id!r} "
                    "has no sampled token, so that the critic cannot read its value"
                )
