"""Verifier-instrumented credit tracing (VICT): credit rules applied to a batch, and the final advantages.

A method is a pure function `(CreditInputs, aggregate, options) -> CreditOutput`. Jit it with
`aggregate` and `options` static; `aggregate` is F_x of the domain. Source: VICT (arXiv 2608.28128);
equation numbers are the paper's, readings and defaults are on the method page (docs/method.md).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp

from vict_jax.credit.base import BASES, Outcome, returns_of
from vict_jax.credit.correction import scale_and_clip
from vict_jax.credit.diagnostics import control_diagnostics, outcome_diagnostics, proof_diagnostics
from vict_jax.credit.inputs import check_inputs, real_steps
from vict_jax.credit.options import VictOptions
from vict_jax.credit.rules import VICT, GroupCredit, Rule, credit_group, views
from vict_jax.types import Aggregate, CreditInputs, CreditOutput, Proofs


def estimate_outcome(inputs: CreditInputs, options: VictOptions) -> Outcome:
    """Advantages of `options.base`, of rollouts and of steps."""
    return BASES[options.base](returns_of(inputs, discount=options.discount), eps=options.eps)


def outcome_advantages(inputs: CreditInputs, options: VictOptions) -> tuple[jax.Array, jax.Array]:
    """A_base f32[G, N] of `options.base`, and the scale s_R f32[G] it divided by."""
    outcome = estimate_outcome(inputs, options)
    return outcome.advantage, outcome.scale


def uncorrected(
    inputs: CreditInputs,
    steps: jax.Array,
    diagnostics: Mapping[str, jax.Array],
    *,
    value_target: jax.Array | None = None,
) -> CreditOutput:
    """The output of a method without corrections or proofs.

    Args:
      steps: f32[G, N, T], its advantages; anything on padding.
      value_target: f32[G, N, T], what a critic is to learn; None for methods without one.
    """
    base = jnp.where(real_steps(inputs), steps, 0.0)
    return CreditOutput(
        advantages=base,
        base=base,
        correction=jnp.zeros_like(base),
        lambda_=jnp.float32(0.0),
        clip=jnp.float32(0.0),
        diagnostics=diagnostics,
        proofs=None,
        value_target=value_target,
    )


def _proofs(credit: GroupCredit) -> Proofs:
    return Proofs(
        witness=credit.edges.linked,
        weight=credit.edges.weight,
        marginal=credit.marginal,
        marginal_norm=credit.marginal_norm,
        contribution=credit.contribution,
        core=credit.core,
        cause=credit.cause,
        atom_cause=credit.atom_cause,
    )


def _finish(
    inputs: CreditInputs, base: jax.Array, outcome: jax.Array, credit: GroupCredit, options: VictOptions
) -> CreditOutput:
    """Scale, clip and add (Eq. 9); without proofs. `base` f32[G, N, T], 0 on padding."""
    real = real_steps(inputs)
    lambda_, clip = scale_and_clip(
        base,
        credit.a_vict,
        real,
        gamma_lambda=options.gamma_lambda,
        clip_quantile=options.clip_quantile,
        eps=options.eps,
    )
    correction = jnp.where(real, lambda_ * jnp.clip(credit.a_vict, -clip, clip), 0.0)
    return CreditOutput(
        advantages=base + correction,
        base=base,
        correction=correction,
        lambda_=lambda_,
        clip=clip,
        diagnostics=outcome_diagnostics(inputs, outcome),
        proofs=None,
    )


def _with_proofs(inputs: CreditInputs, output: CreditOutput, credit: GroupCredit) -> CreditOutput:
    output = dataclasses.replace(output, proofs=_proofs(credit))
    figures = proof_diagnostics(
        inputs, output, aggregate_score=credit.aggregate_score, budget_hit=credit.budget_hit
    )
    return dataclasses.replace(output, diagnostics={**output.diagnostics, **figures})


def _without_claim(
    inputs: CreditInputs, output: CreditOutput, credit: GroupCredit, vict_credit: GroupCredit
) -> CreditOutput:
    figures = control_diagnostics(inputs, output, cause=credit.cause, proofs=_proofs(vict_credit))
    return dataclasses.replace(output, diagnostics={**output.diagnostics, **figures})


def apply_rules(
    rules: Sequence[Rule],
    inputs: CreditInputs,
    aggregate: Aggregate,
    options: VictOptions,
    *,
    step_advantages: jax.Array,
    outcome: jax.Array,
    scale: jax.Array,
) -> list[CreditOutput]:
    """Correct the same step advantages by several rules; see `add_corrections` for the arguments.

    Args:
      rules: where one does not claim proofs, its output has none, and its figures say how much of it VICT's
        own proofs would not allow.
    """
    base = jnp.where(real_steps(inputs), step_advantages, 0.0)
    task, rollouts = views(inputs, outcome, scale)
    reference, *credits = jax.vmap(
        lambda task, rollouts: credit_group(
            task, rollouts, rules=[VICT, *rules], aggregate=aggregate, options=options
        )
    )(task, rollouts)
    # Figures and checks read these often; without the barrier XLA works them out again for each reader.
    reference, credits = jax.lax.optimization_barrier((reference, credits))
    outputs = []
    for rule, credit in zip(rules, credits, strict=True):
        output = _finish(inputs, base, outcome, credit, options)
        if rule.proved:
            outputs.append(_with_proofs(inputs, output, credit))
        else:
            outputs.append(_without_claim(inputs, output, credit, reference))
    return outputs


def add_corrections(
    inputs: CreditInputs,
    aggregate: Aggregate,
    options: VictOptions,
    *,
    step_advantages: jax.Array,
    outcome: jax.Array,
    scale: jax.Array,
) -> CreditOutput:
    """Add verifier-instrumented corrections to any method's action-aligned advantages (Eq. 9, 10).

    The side q and the threshold come from the outcome part, lambda and c from the method's advantages as
    they are before the correction.

    Args:
      step_advantages: f32[G, N, T], A_M.
      outcome: f32[G, N], A_out. scale: f32[G], what A_out was divided by.
    """
    (output,) = apply_rules(
        [VICT],
        inputs,
        aggregate,
        options,
        step_advantages=step_advantages,
        outcome=outcome,
        scale=scale,
    )
    return output


def correct_outcome(
    rules: Sequence[Rule], inputs: CreditInputs, aggregate: Aggregate, options: VictOptions
) -> list[CreditOutput]:
    """The outcome advantage of `options.base`, corrected by each of several rules; see `apply_rules`.

    Raises:
      ValueError: a field of `inputs` has a wrong shape or type.
    """
    check_inputs(inputs)
    outcome = estimate_outcome(inputs, options)
    return apply_rules(
        rules,
        inputs,
        aggregate,
        options,
        step_advantages=outcome.steps,
        outcome=outcome.advantage,
        scale=outcome.scale,
    )


def vict(inputs: CreditInputs, aggregate: Aggregate, options: VictOptions) -> CreditOutput:
    """The outcome advantage of `options.base`, corrected where the verifier's record proves it.

    Raises:
      ValueError: a field of `inputs` has a wrong shape or type.
    """
    return correct_outcome([VICT], inputs, aggregate, options)[0]


def outcome_only(inputs: CreditInputs, options: VictOptions) -> CreditOutput:
    """The outcome advantage of `options.base` on every step, without correction or proofs.

    Raises:
      ValueError: a field of `inputs` has a wrong shape or type.
    """
    check_inputs(inputs)
    outcome = estimate_outcome(inputs, options)
    return uncorrected(inputs, outcome.steps, outcome_diagnostics(inputs, outcome.advantage))
