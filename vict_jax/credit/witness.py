"""Proof edges of one rollout: which action touched which atom, and how (Eq. 4, 12).

Axes: T steps, M atoms, V evidence variables, R witness relations in the order of `Relation`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from vict_jax.types import Relation, Status


def _some_bound(event: jax.Array, binds: jax.Array) -> jax.Array:
    """bool[T, M]: an atom binds (bool[M, V]) some variable with an event (bool[T, V])."""
    return jnp.dot(event.astype(jnp.float32), binds.astype(jnp.float32).T) > 0


def _only_last(edges: jax.Array) -> jax.Array:
    """Keep the last True of each column of bool[T, M]."""
    step = jnp.arange(len(edges))[:, None]
    return edges & (step == jnp.max(jnp.where(edges, step, -1), axis=0))


def witness_edges(
    evidence: jax.Array,
    status: jax.Array,
    commits: jax.Array,
    scope: jax.Array,
    *,
    binds: jax.Array,
    observation_var: jax.Array,
    irreversible: jax.Array,
    terminal_only: jax.Array,
    usable: jax.Array,
    step_mask: jax.Array,
) -> jax.Array:
    """Observed edges W of one rollout, bool[T, M, R] (Eq. 4, 12).

    A variable is revealed once: the first time it becomes available. A terminal-only atom keeps its
    last write; without one, its last commit; without either it has no edge.

    Args:
      evidence: i32[T+1, V], hashed values, 0 = not available.
      status: i8[T+1, M], `Status` codes.
      commits: bool[T]. scope: bool[T, M], atoms that the commit finalises.
      binds: bool[M, V]. observation_var: bool[V].
      irreversible, terminal_only, usable: bool[M]. step_mask: bool[T], real steps.
    """
    live = step_mask[:, None] & usable
    before, after = evidence[:-1], evidence[1:]
    step = jnp.arange(len(evidence))[:, None]
    first = jnp.min(jnp.where(evidence != 0, step, len(evidence)), axis=0)
    write = live & _some_bound((after != before) & ~observation_var, binds)
    reveal = live & _some_bound((step[1:] == first) & observation_var, binds)
    commit = live & commits[:, None] & scope
    turned = (status[1:] == Status.VIOLATED) & (status[:-1] != Status.VIOLATED)
    violate = live & irreversible & turned

    kept_write = _only_last(write)
    kept_commit = _only_last(commit) & ~jnp.any(write, axis=0)
    edges = {
        Relation.WRITE: jnp.where(terminal_only, kept_write, write),
        Relation.REVEAL: reveal & ~terminal_only,
        Relation.COMMIT: jnp.where(terminal_only, kept_commit, commit),
        Relation.VIOLATE: violate & ~terminal_only,
    }
    return jnp.stack([edges[relation] for relation in Relation], axis=-1)


def edge_weights(witness: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Weight beta of each edge and the total of each atom (Eq. 12).

    A write, a commit and a violation weigh 1; the reveals of an atom share 1 evenly.

    Args:
      witness: bool[T, M, R].

    Returns:
      weight: f32[T, M, R], 0 where there is no edge.
      total: f32[M], sum over t and r, counted rather than added up so that it is exact.
    """
    count = jnp.sum(witness, axis=0).astype(jnp.float32)
    shared = jnp.arange(len(Relation)) == Relation.REVEAL
    weight = jnp.where(witness, 1.0 / jnp.where(shared, jnp.maximum(count, 1.0), 1.0), 0.0)
    total = jnp.sum(jnp.where(shared, jnp.minimum(count, 1.0), count), axis=-1)
    return weight, total
