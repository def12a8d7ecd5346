"""Ablations and negative controls: VICT with one stage replaced (method page, section 9).

All see the same rollouts, atoms and gates as VICT and are scaled and clipped by the same Eq. 9. Only
`COMMIT_ONLY` keeps VICT's claim that every correction is proved; the others correct without it. Source of
the list: VICT (arXiv 2608.28128); what the paper leaves open is on the method page (docs/method.md).
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from vict_jax.credit.diagnostics import Cause
from vict_jax.credit.masked import ordered_sum
from vict_jax.credit.options import VictOptions
from vict_jax.credit.rules import (
    Chosen,
    Edges,
    GroupCredit,
    RolloutView,
    Rule,
    Score,
    TaskView,
    along_edges,
    core_atoms,
    proof_edges,
)
from vict_jax.types import Relation, Status

# --- edges ----------------------------------------------------------------------------------------


def last_change(rollout: RolloutView) -> jax.Array:
    """The action that changed each atom's status last, i32[M]; the last action where none did."""
    changed = (rollout.status[1:] != rollout.status[:-1]) & rollout.steps[:, None]
    step = jnp.arange(len(rollout.steps))[:, None]
    last = jnp.max(jnp.where(changed, step, -1), axis=0)
    return jnp.where(last < 0, jnp.sum(rollout.steps) - 1, last)


def _one_kind(weight: jax.Array) -> Edges:
    """Edges of a single kind, K = 1, from weights f32[T, M]."""
    return Edges(weight[..., None] > 0, weight[..., None], ordered_sum(weight))


def proximity_edges(task: TaskView, rollout: RolloutView, options: VictOptions) -> Edges:
    """All actions up to the atom's last change, `proximity_decay` ** distance each; no proof is asked for."""
    del task
    distance = last_change(rollout) - jnp.arange(len(rollout.steps))[:, None]
    near = (distance >= 0) & rollout.steps[:, None] & rollout.usable
    # Powers from a table: the same bits whatever the padded length.
    powers = np.float32(options.proximity_decay) ** np.arange(len(rollout.steps), dtype=np.float32)
    return _one_kind(jnp.where(near, jnp.asarray(powers)[jnp.maximum(distance, 0)], 0.0))


def nearest_edges(task: TaskView, rollout: RolloutView, options: VictOptions) -> Edges:
    """The last action up to the atom's last change that overlaps it: in words, or in evidence it reads."""
    del options
    changed = rollout.evidence[1:] != rollout.evidence[:-1]
    touched = jnp.dot(changed.astype(jnp.float32), task.binds.astype(jnp.float32).T) > 0
    step = jnp.arange(len(rollout.steps))[:, None]
    overlaps = (touched | rollout.mentions) & rollout.steps[:, None] & rollout.usable
    overlaps &= step <= last_change(rollout)
    nearest = overlaps & (step == jnp.max(jnp.where(overlaps, step, -1), axis=0))
    return _one_kind(nearest.astype(jnp.float32))


def commit_edges(task: TaskView, rollout: RolloutView, options: VictOptions) -> Edges:
    """VICT's commit edges; a terminal-only atom has one only where it was never written."""
    edges = proof_edges(task, rollout, options)
    kept = jnp.arange(len(Relation)) == Relation.COMMIT
    weight = jnp.where(kept, edges.weight, 0.0)
    count = jnp.sum(edges.linked & kept, axis=(0, 2)).astype(jnp.float32)
    return Edges(edges.linked & kept, weight, count)


# --- atoms ----------------------------------------------------------------------------------------


def every_atom(task: TaskView, rollout: RolloutView, score: Score, options: VictOptions) -> Chosen:
    """Every usable atom: +1 where SATISFIED, -1 where it is not, 0 where UNKNOWN. There is no core."""
    del task, options
    satisfied, unknown = rollout.terminal == Status.SATISFIED, rollout.terminal == Status.UNKNOWN
    value = jnp.where(satisfied, 1.0, jnp.where(unknown, 0.0, -1.0))
    return Chosen(
        atoms=rollout.usable,
        potential=jnp.where(rollout.usable, value, 0.0),
        refusal=jnp.int8(Cause.NONE),
        budget_hit=jnp.bool_(False),
        aggregate_score=score(satisfied),
    )


# --- placement ------------------------------------------------------------------------------------


def progress(task: TaskView, rollouts: RolloutView, credit: GroupCredit, options: VictOptions) -> GroupCredit:
    """The change of the share of usable atoms that are satisfied, at the action that made it.

    No edge, no core and no normalisation: only the gates that all rules share are kept.
    """
    del task, options
    held = jnp.sum((rollouts.status == Status.SATISFIED) & rollouts.usable[:, None], axis=-1)
    gained = (held[:, 1:] - held[:, :-1]).astype(jnp.float32)
    usable = jnp.maximum(jnp.sum(rollouts.usable, axis=-1), 1)[:, None]
    kept = rollouts.steps & (credit.gate == Cause.NONE)[:, None]
    return dataclasses.replace(credit, a_vict=jnp.where(kept, gained / usable, 0.0), cause=credit.gate)


def shuffled(task: TaskView, rollouts: RolloutView, credit: GroupCredit, options: VictOptions) -> GroupCredit:
    """The same values on other actions: a permutation over the real steps of the group.

    It is drawn from `options.seed` and the group's own action ids, so that it differs from update to
    update and a replay finds it again. Padding does not move it: only real steps are numbered.
    """
    del task
    real = rollouts.steps.ravel()
    rank = jnp.cumsum(real) - 1
    words = rollouts.action_id.ravel().astype(jnp.uint32) * (2 * rank + 1).astype(jnp.uint32)
    checksum = jnp.sum(jnp.where(real, words, jnp.uint32(0)), dtype=jnp.uint32)
    key = jax.random.fold_in(jax.random.key(options.seed), checksum)
    ticket = jax.vmap(lambda r: jax.random.bits(jax.random.fold_in(key, r)))(rank.astype(jnp.uint32))
    # Real steps in the order of their tickets, the earlier one first among equals, then the padding.
    (_, _, drawn) = jax.lax.sort((~real, ticket, jnp.arange(len(real))), num_keys=3)
    values = jnp.where(real, credit.a_vict.ravel()[drawn[rank]], 0.0)
    return dataclasses.replace(credit, a_vict=values.reshape(rollouts.steps.shape))


# --- the rules ------------------------------------------------------------------------------------

DENSE = Rule(edges=proof_edges, atoms=every_atom, place=progress, proved=False)
NO_CORE = Rule(edges=proof_edges, atoms=every_atom, place=along_edges, proved=False)
NO_PROOF = Rule(edges=proximity_edges, atoms=core_atoms, place=along_edges, proved=False)
COMMIT_ONLY = Rule(edges=commit_edges, atoms=core_atoms, place=along_edges, proved=True)
TEMPORAL_NEAREST = Rule(edges=nearest_edges, atoms=core_atoms, place=along_edges, proved=False)
RANDOM_EDGES = Rule(edges=proof_edges, atoms=core_atoms, place=shuffled, proved=False)
