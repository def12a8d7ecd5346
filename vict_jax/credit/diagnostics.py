"""Why credit was withheld, whether every correction has its proof, and the figures of each update.

Source: VICT (arXiv 2608.28128), Eq. 8, Proposition 1 and appendix E.
"""

from __future__ import annotations

import enum

import jax
import jax.numpy as jnp

from vict_jax.credit.inputs import real_steps, requirements, terminal_status
from vict_jax.credit.masked import masked_mean, masked_std
from vict_jax.types import CreditInputs, CreditOutput, Proofs, Relation, Status


class Cause(enum.IntEnum):
    """Why a rollout or an atom got no credit, in the order in which the reasons are looked for.

    The first group settles a whole rollout before its core is accepted, the second single atoms of an
    accepted core; a rollout all of whose core atoms fail has the cause of the one that came furthest.
    """

    NONE = 0
    CONFORMANCE = 1  # the task's aggregator, or every atom, failed conformance
    INCONSISTENT_RECORD = 2  # a satisfied atom requires one that is not satisfied
    NEAR_TIE = 3  # |A_base| within the tie margin, dead groups included
    NO_CORE = 4  # no core reaches the threshold; of an atom: it is not load-bearing
    BUDGET = 5  # the same with candidates left that the budget did not let in
    UNCERTAINTY_BAND = 6  # the core's effect lies within 2 eta of the threshold

    ZERO_MARGINAL = 7  # in the core, but its marginal is 0
    UNKNOWN_EVIDENCE = 8  # its evidence never became available
    NO_PROOF_SUPPORT = 9  # no action has an edge to it
    TOO_FEW_SUPPORTED = 10  # fewer than two rollouts of the group have it in the core with an edge
    ZERO_SCALE = 11  # all supported marginals are the same


def atom_causes(
    rollout_cause: jax.Array,
    budget_hit: jax.Array,
    potential: jax.Array,
    core: jax.Array,
    terminal: jax.Array,
    has_edge: jax.Array,
    supported: jax.Array,
    spread: jax.Array,
    *,
    usable: jax.Array,
    eps: float,
) -> jax.Array:
    """The first reason why each atom of a group's rollouts got no credit, i8[N, M], `Cause` codes.

    An atom that is neither in an accepted core nor has a marginal to withhold has none.

    Args:
      rollout_cause: i8[N], reasons found before a core was accepted. budget_hit: bool[N].
      potential: f32[N, M], marginals before any was withheld. core: bool[N, M], accepted.
      terminal: i8[N, M], terminal status. has_edge, supported: bool[N, M].
      spread: f32[M], the scale of each atom in the group. usable: bool[N, M].
      eps: a scale no larger than this counts as 0.
    """
    few = jnp.sum(supported, axis=0) < 2
    cause = jnp.where(spread > eps, Cause.NONE, Cause.ZERO_SCALE)
    cause = jnp.where(few, Cause.TOO_FEW_SUPPORTED, cause)
    cause = jnp.where(has_edge, cause, Cause.NO_PROOF_SUPPORT)
    cause = jnp.where(terminal == Status.UNKNOWN, Cause.UNKNOWN_EVIDENCE, cause)
    cause = jnp.where(potential == 0, Cause.ZERO_MARGINAL, cause)
    outside = jnp.where(budget_hit, Cause.BUDGET, Cause.NO_CORE)[:, None]
    cause = jnp.where(core, cause, outside)
    stopped = rollout_cause[:, None]
    cause = jnp.where(stopped != Cause.NONE, stopped, cause)
    return jnp.where(usable & (core | (potential != 0)), cause, Cause.NONE).astype(jnp.int8)


def rollout_causes(
    rollout_cause: jax.Array, atom_cause: jax.Array, core: jax.Array, usable: jax.Array
) -> jax.Array:
    """Cause of each rollout of a group, i8[N], once its atoms' causes i8[N, M] are known.

    Only usable atoms of the core can carry credit; an accepted core without any is none.
    """
    carrying = core & usable
    furthest = jnp.max(jnp.where(carrying, atom_cause, Cause.NONE), axis=-1)
    credited = jnp.any(carrying & (atom_cause == Cause.NONE), axis=-1)
    hollow = jnp.any(core, axis=-1) & ~jnp.any(carrying, axis=-1)
    accepted = jnp.where(credited, Cause.NONE, jnp.where(hollow, Cause.NO_CORE, furthest))
    return jnp.where(rollout_cause == Cause.NONE, accepted, rollout_cause).astype(jnp.int8)


def _observed_edges(inputs: CreditInputs) -> jax.Array:
    """bool[G, N, T, M, R] from the raw record, by other means than `vict_jax.credit.witness`.

    First and last events are told by counting those before and after with a product with a triangular
    matrix, which on a CPU is many times faster than a cumulative sum.
    """
    available = inputs.evidence != 0
    step = jnp.arange(inputs.commits.shape[-1])
    changed = inputs.evidence[:, :, 1:] != inputs.evidence[:, :, :-1]
    state = inputs.binds & ~inputs.observation_var[:, None]
    observation = inputs.binds & inputs.observation_var[:, None]
    real = real_steps(inputs)[..., None]

    def bound(event: jax.Array, binds: jax.Array) -> jax.Array:
        return real & (jnp.einsum("gntv,gmv->gntm", event.astype(jnp.float32), binds.astype(jnp.float32)) > 0)

    def count(event: jax.Array, when: jax.Array) -> jax.Array:
        return jnp.einsum("ts,gnsk->gntk", when.astype(jnp.float32), event.astype(jnp.float32))

    seen_before = count(available[:, :, :-1], step <= step[:, None]) > 0
    write = bound(changed, state)
    reveal = bound(available[:, :, 1:] & ~seen_before, observation)
    commit = real & inputs.commits[..., None] & inputs.scope
    violated = inputs.status == Status.VIOLATED
    violate = real & violated[:, :, 1:] & ~violated[:, :, :-1] & inputs.irreversible[:, None, None]

    def final(edges: jax.Array) -> jax.Array:
        return edges & (count(edges, step > step[:, None]) == 0)

    late = inputs.terminal_only[:, None, None]
    no_write = jnp.sum(write, axis=-2, keepdims=True) == 0
    edges = {
        Relation.WRITE: jnp.where(late, final(write), write),
        Relation.REVEAL: reveal & ~late,
        Relation.COMMIT: jnp.where(late, final(commit) & no_write, commit),
        Relation.VIOLATE: violate & ~late,
    }
    return jnp.stack([edges[relation] for relation in Relation], axis=-1)


def eligible_actions(inputs: CreditInputs, proofs: Proofs) -> jax.Array:
    """Actions that Eq. 8 allows to be corrected, bool[G, N, T].

    There is an atom that is usable, in an accepted core, with a marginal other than 0, in a task that
    conforms and a record that satisfies D_x, and the action has an edge to it that both the proof and the
    raw record show. The edges are read from the record anew, and nothing here uses the correction.
    """
    satisfied = terminal_status(inputs) == Status.SATISFIED
    holds = satisfied | ~inputs.usable
    needs = requirements(inputs) & inputs.usable[..., None]
    missing = jnp.einsum("gnjk,gnk->gnj", needs.astype(jnp.float32), (~holds).astype(jnp.float32)) > 0
    consistent = ~jnp.any(satisfied & missing, axis=-1)
    admitted = inputs.conforming[:, None] & inputs.rollout_mask & consistent
    carries = admitted[..., None] & inputs.usable & proofs.core & (proofs.marginal != 0)
    shown = jnp.any(proofs.witness & _observed_edges(inputs), axis=-1)
    return jnp.any(shown & carries[:, :, None], axis=-1)


def _violations(eligible: jax.Array | bool, output: CreditOutput) -> jax.Array:
    changed = (output.correction != 0) | (output.advantages != output.base)
    return jnp.sum(changed & ~(eligible & jnp.isfinite(output.correction)))


def check_invariant(inputs: CreditInputs, output: CreditOutput) -> jax.Array:
    """Number of actions, i32[], whose correction Eq. 8 and Proposition 1 do not allow. Must be 0.

    A method without proofs may not correct anything. A correction that is not finite is a violation.
    """
    if output.proofs is None:
        return _violations(jnp.zeros_like(output.correction, bool), output)
    return _violations(eligible_actions(inputs, output.proofs), output)


def check_controlled(inputs: CreditInputs, output: CreditOutput) -> jax.Array:
    """Number of actions, i32[], that a method without a claim may not change. Must be 0.

    Its corrections are finite, stated in `correction`, and on real steps.
    """
    stated = output.advantages == output.base + output.correction
    return _violations(real_steps(inputs) & stated, output)


def check_placed(inputs: CreditInputs, output: CreditOutput) -> jax.Array:
    """Number of actions, i32[], whose advantage is not finite, or is not 0 although the step is padding."""
    placed = real_steps(inputs) | (output.advantages == 0)
    return jnp.sum(~(placed & jnp.isfinite(output.advantages)))


def _share(part: jax.Array, whole: jax.Array) -> jax.Array:
    """Share of True in `part` among the True of `whole`, f32[]; 0 when there is none."""
    count = jnp.sum(whole)
    return jnp.sum(part & whole).astype(jnp.float32) / jnp.maximum(count, 1)


def _cause_shares(cause: jax.Array, whole: jax.Array) -> jax.Array:
    """Share of each cause among the True of `whole`, f32[len(Cause)]."""
    is_cause = (cause.ravel() == jnp.arange(len(Cause))[:, None]) & whole.ravel()
    return jnp.sum(is_cause, axis=-1).astype(jnp.float32) / jnp.maximum(jnp.sum(whole), 1)


def outcome_diagnostics(inputs: CreditInputs, outcome: jax.Array) -> dict[str, jax.Array]:
    """Figures of the base advantage f32[G, N]: share of groups without any advantage (dead groups)."""
    real = jnp.any(inputs.rollout_mask, axis=-1)
    dead = ~jnp.any(inputs.rollout_mask & (outcome != 0), axis=-1)
    return {"dead_groups": _share(dead, real), "groups": jnp.sum(real).astype(jnp.float32)}


def proof_diagnostics(
    inputs: CreditInputs,
    output: CreditOutput,
    *,
    aggregate_score: jax.Array,
    budget_hit: jax.Array,
) -> dict[str, jax.Array]:
    """Figures of appendix E that one update's arrays hold, f32[] each, shares in [0, 1].

    Args:
      output: with proofs.
      aggregate_score: f32[G, N], F(z_T). budget_hit: bool[G, N].
    """
    proofs = output.proofs
    assert proofs is not None
    real, steps = inputs.rollout_mask, real_steps(inputs)
    atoms = real[..., None] & inputs.usable
    accepted = real & jnp.any(proofs.core, axis=-1)
    core_size = jnp.sum(proofs.core, axis=-1).astype(jnp.float32)
    corrected = output.correction != 0
    has_edge = jnp.any(proofs.witness, axis=(2, 4))
    eligible = eligible_actions(inputs, proofs)
    number_corrected = jnp.sum(corrected)
    figures = {
        "reconstruction": _share(jnp.abs(aggregate_score - inputs.score) <= inputs.eta[:, None], real),
        "eligibility": 1.0 - _violations(eligible, output) / jnp.maximum(number_corrected, 1),
        "proof_coverage": _share(has_edge, proofs.marginal != 0),
        "abstention": _share(proofs.cause != Cause.NONE, real),
        "trigger": _share(jnp.any(corrected, axis=-1), real),
        "sparsity": _share(corrected, steps),
        "core_size_mean": masked_mean(core_size.ravel(), accepted.ravel()),
        "core_size_std": masked_std(core_size.ravel(), accepted.ravel()),
        "budget_hit": _share(budget_hit, real),
        "usable_atoms": jnp.sum(atoms).astype(jnp.float32) / jnp.maximum(jnp.sum(real), 1),
        "lambda": output.lambda_,
        "clip": output.clip,
    }
    by_rollout = _cause_shares(proofs.cause, real)
    by_atom = _cause_shares(proofs.atom_cause, atoms)
    for cause in Cause:
        if cause != Cause.NONE:
            figures[f"abstention/{cause.name.lower()}"] = by_rollout[cause]
            figures[f"atom_abstention/{cause.name.lower()}"] = by_atom[cause]
    return figures


def control_diagnostics(
    inputs: CreditInputs, output: CreditOutput, *, cause: jax.Array, proofs: Proofs
) -> dict[str, jax.Array]:
    """Figures of a method that does not claim proofs, f32[] each, shares in [0, 1].

    Args:
      cause: i8[G, N], why it withheld credit from a rollout.
      proofs: VICT's own on the same rollouts; `unproved` is the share of corrected actions that they would
        not allow to be corrected.
    """
    corrected = output.correction != 0
    return {
        "abstention": _share(cause != Cause.NONE, inputs.rollout_mask),
        "trigger": _share(jnp.any(corrected, axis=-1), inputs.rollout_mask),
        "sparsity": _share(corrected, real_steps(inputs)),
        "unproved": _share(~eligible_actions(inputs, proofs), corrected),
        "lambda": output.lambda_,
        "clip": output.clip,
    }
