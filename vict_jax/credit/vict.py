"""Verifier-instrumented credit tracing: the credit kernels put together, and the table of methods.

A method is a pure function `(CreditInputs, aggregate, options) -> CreditOutput`. Jit it with
`aggregate` and `options` static; `aggregate` is F_x of the domain. Source: VICT (arXiv 2608.28128);
equation numbers are the paper's, readings and defaults are on the method page (docs/method.md).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from vict_jax.credit.base import BASES
from vict_jax.credit.cores import CORES, MARGINALS, consistent, direction, refusal
from vict_jax.credit.correction import CENTERS, SCALES, normalise, redistribute, scale_and_clip
from vict_jax.credit.diagnostics import (
    Cause,
    atom_causes,
    outcome_diagnostics,
    proof_diagnostics,
    rollout_causes,
)
from vict_jax.credit.inputs import check_inputs, real_steps, requirements, terminal_status
from vict_jax.credit.witness import edge_weights, witness_edges
from vict_jax.types import Aggregate, CreditInputs, CreditOutput, Proofs, Status, pytree


def _require(ok: bool, name: str, value: Any, allowed: str) -> None:
    if not ok:
        raise ValueError(f"{name}={value!r} is not allowed: {allowed}")


@dataclasses.dataclass(frozen=True)
class VictOptions:
    """Options of the credit methods; (paper) marks values the paper gives.

    Attributes:
      base: outcome advantage, a key of `base.BASES`.
      core: `complete` or `greedy` (paper), see `cores`.
      marginals: `contextual` (signed) or `literal` (paper), see `cores`.
      scale, center: statistics of the group normalisation, keys of `correction.SCALES` and `CENTERS`.
      gamma_rho: factor of the core threshold rho.
      eps_q: |A_base| up to this is a tie.
      budget: B, the most atoms (complete) or additions (greedy) of a core (paper: 8).
      gamma_lambda: size of the median correction relative to the median |A_base| (paper: 0.5).
      smoothing: added to an atom's total edge weight.
      clip_quantile: quantile of |A_base| that bounds A_vict (paper: 0.95).
      eps: added to standard deviations, scales and medians that are divided by.
    """

    base: str = "grpo"
    core: str = "complete"
    marginals: str = "contextual"
    scale: str = "std"
    center: str = "median"
    gamma_rho: float = 1.0
    eps_q: float = 0.05
    budget: int = 8
    gamma_lambda: float = 0.5
    smoothing: float = 1e-6
    clip_quantile: float = 0.95
    eps: float = 1e-6

    def __post_init__(self) -> None:
        tables: dict[str, Collection[str]] = {
            "base": BASES,
            "core": CORES,
            "marginals": MARGINALS,
            "scale": SCALES,
            "center": CENTERS,
        }
        for name, table in tables.items():
            value = getattr(self, name)
            _require(value in table, name, value, f"one of {sorted(table)}")
        for name in ("gamma_rho", "eps_q", "gamma_lambda", "smoothing"):
            value = getattr(self, name)
            _require(0 <= value < float("inf"), name, value, "a finite number, 0 or more")
        _require(0 < self.eps < float("inf"), "eps", self.eps, "a finite number above 0")
        _require(0 <= self.clip_quantile <= 1, "clip_quantile", self.clip_quantile, "within [0, 1]")
        _require(self.budget >= 1, "budget", self.budget, "1 or more")


@pytree
class _Trace:
    """Rollouts of a group before normalisation.

    Attributes: witness bool[N, T, M, R], weight f32[N, T, M, R], total f32[N, M] (edges); core
    bool[N, M] accepted atoms; potential f32[N, M], marginals of all atoms; marginal f32[N, M], those of
    known usable core atoms; cause i8[N] so far; budget_hit bool[N]; aggregate_score f32[N], F(z_T).
    """

    witness: jax.Array
    weight: jax.Array
    total: jax.Array
    core: jax.Array
    potential: jax.Array
    marginal: jax.Array
    cause: jax.Array
    budget_hit: jax.Array
    aggregate_score: jax.Array


def _trace_rollout(
    group: CreditInputs,
    rollout: Mapping[str, jax.Array],
    aggregate: Aggregate,
    options: VictOptions,
) -> _Trace:
    """Edges, core and marginals of one rollout (Eq. 4-6, 11-13). `group` is without its axis G."""
    usable, requires = rollout["usable"], rollout["requires"]
    satisfied = rollout["terminal"] == Status.SATISFIED

    def score(assignment: jax.Array) -> jax.Array:
        return jnp.asarray(aggregate(assignment, group.params), jnp.float32)

    witness = witness_edges(  # Eq. 4
        rollout["evidence"],
        rollout["status"],
        rollout["commits"],
        rollout["scope"],
        binds=group.binds,
        observation_var=group.observation_var,
        irreversible=group.irreversible,
        terminal_only=group.terminal_only,
        usable=usable,
        step_mask=rollout["steps"],
    )
    weight, total = edge_weights(witness)  # Eq. 12
    q, rho = direction(  # Eq. 5
        rollout["outcome"], rollout["scale"], eps_q=options.eps_q, gamma_rho=options.gamma_rho
    )
    core = CORES[options.core](  # Eq. 6, 13
        score, satisfied, q, rho, requires=requires, usable=usable, eta=group.eta, budget=options.budget
    )
    potential = MARGINALS[options.marginals](
        score, rollout["terminal"], q, core.atoms, requires=requires, usable=usable
    )
    cause = refusal(core, rho, group.eta)
    cause = jnp.where(q == 0, Cause.NEAR_TIE, cause)
    cause = jnp.where(consistent(satisfied, requires, usable), cause, Cause.INCONSISTENT_RECORD)
    conforms = group.conforming & jnp.any(usable)  # Eq. 3, 11
    cause = jnp.where(conforms, cause, Cause.CONFORMANCE)
    accepted = rollout["real"] & (cause == Cause.NONE)
    atoms = core.atoms & accepted
    known = rollout["terminal"] != Status.UNKNOWN
    return _Trace(
        witness=witness,
        weight=weight,
        total=total,
        core=atoms,
        potential=potential,
        marginal=jnp.where(atoms & usable & known, potential, 0.0),
        cause=jnp.where(rollout["real"], cause, Cause.NONE).astype(jnp.int8),
        budget_hit=core.budget_hit & rollout["real"] & ((cause == Cause.NONE) | (cause >= Cause.NO_CORE)),
        aggregate_score=score(satisfied),
    )


def _trace_group(
    group: CreditInputs,
    rollouts: Mapping[str, jax.Array],
    aggregate: Aggregate,
    options: VictOptions,
) -> tuple[Proofs, jax.Array, _Trace]:
    """Proofs and A_vict f32[N, T] of one group (Eq. 4-7, 16, 17)."""
    trace = jax.vmap(lambda rollout: _trace_rollout(group, rollout, aggregate, options))(rollouts)
    has_edge = trace.total > 0
    supported = trace.core & rollouts["usable"] & has_edge
    dhat, spread = jax.vmap(  # Eq. 16, atom by atom
        lambda marginal, mask: normalise(
            marginal, mask, scale=options.scale, center=options.center, eps=options.eps
        ),
        in_axes=(1, 1),
        out_axes=(1, 0),
    )(trace.marginal, supported)
    a_vict, contribution = jax.vmap(  # Eq. 7, 17
        lambda *rollout: redistribute(*rollout, smoothing=options.smoothing, eps=options.eps)
    )(dhat, trace.weight, trace.total)
    atom_cause = atom_causes(
        trace.cause,
        trace.budget_hit,
        trace.potential,
        trace.core,
        rollouts["terminal"],
        has_edge,
        supported,
        spread,
        usable=rollouts["usable"],
        eps=options.eps,
    )
    atom_cause = jnp.where(rollouts["real"][:, None], atom_cause, Cause.NONE).astype(jnp.int8)
    proofs = Proofs(
        witness=trace.witness,
        weight=trace.weight,
        marginal=trace.marginal,
        marginal_norm=dhat,
        contribution=contribution,
        core=trace.core,
        cause=rollout_causes(trace.cause, atom_cause, trace.core),
        atom_cause=atom_cause,
    )
    return proofs, a_vict, trace


def outcome_advantages(inputs: CreditInputs, options: VictOptions) -> tuple[jax.Array, jax.Array]:
    """A_base f32[G, N] of `options.base`, and the scale s_R f32[G] it divided by."""
    base = BASES[options.base]
    return jax.vmap(lambda score, mask: base(score, mask, eps=options.eps))(inputs.score, inputs.rollout_mask)


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
    real = real_steps(inputs)
    base = jnp.where(real, step_advantages, 0.0)
    rollouts = {
        "status": inputs.status,
        "evidence": inputs.evidence,
        "commits": inputs.commits,
        "scope": inputs.scope,
        "usable": inputs.usable,
        "requires": requirements(inputs),
        "terminal": terminal_status(inputs),
        "steps": real,
        "real": inputs.rollout_mask,
        "outcome": outcome,
        "scale": jnp.broadcast_to(scale[:, None], outcome.shape),
    }
    proofs, a_vict, trace = jax.vmap(lambda group, rows: _trace_group(group, rows, aggregate, options))(
        inputs, rollouts
    )
    lambda_, clip = scale_and_clip(
        base,
        a_vict,
        real,
        gamma_lambda=options.gamma_lambda,
        clip_quantile=options.clip_quantile,
        eps=options.eps,
    )
    correction = jnp.where(real, lambda_ * jnp.clip(a_vict, -clip, clip), 0.0)
    output = CreditOutput(
        advantages=base + correction,
        base=base,
        correction=correction,
        lambda_=lambda_,
        clip=clip,
        diagnostics=outcome_diagnostics(inputs, outcome),
        proofs=proofs,
    )
    figures = proof_diagnostics(
        inputs, output, aggregate_score=trace.aggregate_score, budget_hit=trace.budget_hit
    )
    return dataclasses.replace(output, diagnostics={**output.diagnostics, **figures})


def vict(inputs: CreditInputs, aggregate: Aggregate, options: VictOptions) -> CreditOutput:
    """The outcome advantage of `options.base`, corrected where the verifier's record proves it.

    Raises:
      ValueError: a field of `inputs` has a wrong shape or type.
    """
    check_inputs(inputs)
    outcome, scale = outcome_advantages(inputs, options)
    return add_corrections(
        inputs,
        aggregate,
        options,
        step_advantages=jnp.broadcast_to(outcome[..., None], inputs.step_mask.shape),
        outcome=outcome,
        scale=scale,
    )


def outcome_only(inputs: CreditInputs, aggregate: Aggregate, options: VictOptions) -> CreditOutput:
    """The outcome advantage of `options.base` on every step, without correction or proofs.

    Raises:
      ValueError: a field of `inputs` has a wrong shape or type.
    """
    del aggregate
    check_inputs(inputs)
    outcome, _ = outcome_advantages(inputs, options)
    base = jnp.where(real_steps(inputs), outcome[..., None], 0.0)
    return CreditOutput(
        advantages=base,
        base=base,
        correction=jnp.zeros_like(base),
        lambda_=jnp.float32(0.0),
        clip=jnp.float32(0.0),
        diagnostics=outcome_diagnostics(inputs, outcome),
        proofs=None,
    )


CreditMethod = Callable[[CreditInputs, Aggregate, VictOptions], CreditOutput]


def _with_base(base: str) -> CreditMethod:
    def method(inputs: CreditInputs, aggregate: Aggregate, options: VictOptions) -> CreditOutput:
        return outcome_only(inputs, aggregate, dataclasses.replace(options, base=base))

    method.__name__ = base
    method.__doc__ = f"`outcome_only` with base={base!r}, whatever `options.base` says."
    return method


METHODS: Mapping[str, CreditMethod] = {
    "vict": vict,
    "grpo": _with_base("grpo"),
    "rloo": _with_base("rloo"),
    "dr_grpo": _with_base("dr_grpo"),
}
