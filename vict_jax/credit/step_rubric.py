"""TRCA: rewards of single transitions from a rubric bound to the task, compared within structured contexts.

Which items fired was found on the host from the verifier's record (`vict_jax.rubric`).
Source: arXiv 2608.16156.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp

from vict_jax.credit.inputs import real_steps
from vict_jax.credit.options import VictOptions
from vict_jax.credit.step_method import (
    StepCredit,
    StepMethod,
    combine,
    compare_states,
    outcome_part,
    paid,
    step_returns,
)
from vict_jax.credit.step_options import TrcaOptions
from vict_jax.types import CreditInputs, Kind, pytree


@pytree
class RubricRewards:
    """Rewards of the transitions of a group, f32[N, T] each; 0 on padding.

    Attributes:
      foundational: r^F, what fired, however often; within [invalidity, evidence + execution].
      breakthrough: r^B, what Evidence and Execution fired for the first time in the rollout: its sum over a
        rollout is within [0, evidence + execution].
    """

    foundational: jax.Array
    breakthrough: jax.Array

    def mixed(self, breakthrough: float) -> jax.Array:
        """r = (1 - lambda) r^F + lambda r^B, f32[N, T]."""
        return (1.0 - breakthrough) * self.foundational + breakthrough * self.breakthrough


def rubric_rewards(
    fired: jax.Array, kind: jax.Array, real: jax.Array, *, options: TrcaOptions
) -> RubricRewards:
    """Rewards of one group; a category pays its budget over its number of items M_c for each of them.

    r^B_t = Phi_t - Phi_{t-1}, the potential Phi paying for all items that have fired so far, is the pay of
    those that fire at t for the first time. Items are counted before they are paid, so that equal counts pay
    equal bits.

    Args:
      fired: bool[N, T, J], O_tj. kind: i8[J], `Kind` codes. real: bool[N, T].
    """
    fired = fired & real[..., None]
    step = jnp.arange(real.shape[-1], dtype=jnp.int32)[:, None]
    never = jnp.int32(real.shape[-1])
    earliest = jnp.min(jnp.where(fired, step, never), axis=-2, keepdims=True)
    first = fired & (step == earliest)

    def pay(events: jax.Array, category: Kind, budget: float) -> jax.Array:
        member = kind == category
        count = jnp.sum(events & member, axis=-1).astype(jnp.float32)
        return budget * (count / jnp.maximum(jnp.sum(member), 1))

    budgets = {Kind.EVIDENCE: options.evidence, Kind.EXECUTION: options.execution}
    gained = sum(pay(first, category, budget) for category, budget in budgets.items())
    all_good = sum(pay(fired, category, budget) for category, budget in budgets.items())
    bad = pay(fired, Kind.INVALIDITY, options.invalidity)
    return RubricRewards(foundational=all_good + bad, breakthrough=jnp.asarray(gained))


def trca(inputs: CreditInputs, options: VictOptions) -> StepCredit:
    """A^E + omega A^S, A^S of returns with rubric rewards among the steps of one structured context.

    R_t = sum_k gamma^(k-t) (r_env + r), r_env being the score times `steps.pay` at the last step.
    """
    o, inputs = options.trca, paid(inputs, options)
    assert inputs.rubric is not None  # `methods` has looked
    assert inputs.rubric_kind is not None
    assert inputs.context_id is not None
    outcome, episode = outcome_part(inputs, options, mode=o.mode)
    of_group = functools.partial(rubric_rewards, options=o)
    rewards = jax.vmap(of_group)(inputs.rubric, inputs.rubric_kind, real_steps(inputs))
    # A reward is a penalty taken back; what `step_returns` pays in is undone.
    gained = rewards.mixed(o.breakthrough) / options.steps.pay
    shaped = dataclasses.replace(inputs, penalty=inputs.penalty - gained)
    returns = step_returns(shaped, options, gamma=o.gamma)
    steps = compare_states(inputs, returns, inputs.context_id, mode=o.mode, eps=options.eps)
    return combine(inputs, outcome, episode, steps, omega=o.omega)


TRCA = StepMethod(trca, needs=frozenset({"rubric", "rubric_kind", "context_id"}), section="trca")
