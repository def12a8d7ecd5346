"""Pytrees that cross between host code, credit kernels and the learner, with shapes and dtypes.

Axes: G task groups, N rollouts of a group, T steps, M atoms, V evidence variables, R = 4 witness
relations, S token rows, L tokens of a row. All are padded; the masks say what is real. Kernels in
`vict_jax.credit` are written for one rollout or one group and vmapped, so they see these fields
without the leading axes.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping
from typing import TypeVar, dataclass_transform

import jax

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def pytree(cls: type[T]) -> type[T]:
    """Frozen dataclass registered as a pytree: the one way to declare one in this project."""
    cls = dataclasses.dataclass(frozen=True)(cls)
    return jax.tree_util.register_dataclass(cls)


class Status(enum.IntEnum):
    """Atom status codes, equal to `envs.base.Status`."""

    UNKNOWN = 0
    SATISFIED = 1
    UNSATISFIED = 2
    VIOLATED = 3


class Relation(enum.IntEnum):
    """Witness relations, the last axis of a witness matrix (Eq. 4)."""

    WRITE = 0
    REVEAL = 1
    COMMIT = 2
    VIOLATE = 3


NUM_RELATIONS = len(Relation)


class Kind(enum.IntEnum):
    """Categories of rubric items (TRCA, arXiv 2608.16156); NONE is padding."""

    NONE = 0
    EVIDENCE = 1
    EXECUTION = 2
    INVALIDITY = 3


# F_x (Eq. 3): (satisfied bool[M], params) -> score f32[].
Aggregate = Callable[[jax.Array, Mapping[str, jax.Array]], jax.Array]


@pytree
class CreditInputs:
    """One update batch as every credit method receives it.

    Attributes:
      score: f32[G, N], terminal score V of each rollout.
      status: i8[G, N, T+1, M], `Status` codes; [t] is before action t. Terminal state of a rollout
        of length T_i is at index T_i and repeated after it.
      evidence: i32[G, N, T+1, V], hashed evidence values, 0 = not available yet.
      commits: bool[G, N, T].
      scope: bool[G, N, T, M], atoms that a commit finalises.
      binds: bool[G, M, V], variables that an atom reads.
      observation_var: bool[G, V], True for observation variables, False for state variables.
      requires: bool[G, N, M, M], [j, k] = j requires k in this rollout; transitively closed; reflexive on the
        atoms that exist and only on them, so that its diagonal tells them from padding.
      usable: bool[G, N, M], conforming atoms with an unambiguous closure in this rollout; False on padded
        atoms.
      mentions: bool[G, N, T, M], the action text shares a word with what the atom speaks of.
      irreversible: bool[G, M].
      terminal_only: bool[G, M].
      conforming: bool[G], the task's aggregator passed conformance; else its corrections are zero.
      eta: f32[G], tolerance of |F - V|.
      params: aggregator parameters, each with leading axis G.
      step_mask: bool[G, N, T], real steps.
      rollout_mask: bool[G, N], real rollouts (False: padding, or lost to an environment error).
      state_id: i32[G, N, T+1], hash of the raw observation.
      action_id: i32[G, N, T], hash of the action text.
      penalty: f32[G, N, T], what is taken off the reward at each step: for the form of the reply, its length,
        its divergence from the reference policy. 0 where nothing is. Never part of `score`.
      value: f32[G, N, T], a critic's value before each action; 0 for methods that do not need it.
      cluster_id: i32[G, N, T], identifier of the cluster of similar observations that the one before each
        action is in; None unless a method needs it (`vict_jax.observations`).
      state_terms: f32[G, N, T, D], words of the observation before each action, a vector of length 1, or 0
        without words; None unless a method needs it (`vict_jax.observations`).
      rubric: bool[G, N, T, J], item j of the task's rubric fired on the transition of action t; None unless a
        method needs it (`vict_jax.rubric`), as the next two.
      rubric_kind: i8[G, J], `Kind` code of each item.
      context_id: i32[G, N, T], identifier of the structured context that the action was taken in.
      hindsight_logp: f32[G, N, T], mean log-probability of the trained tokens of each step where the prompt
        begins with the outcome of a success; None unless a method needs it (`vict_jax.hindsight`).
    """

    score: jax.Array
    status: jax.Array
    evidence: jax.Array
    commits: jax.Array
    scope: jax.Array
    binds: jax.Array
    observation_var: jax.Array
    requires: jax.Array
    usable: jax.Array
    mentions: jax.Array
    irreversible: jax.Array
    terminal_only: jax.Array
    conforming: jax.Array
    eta: jax.Array
    params: Mapping[str, jax.Array]
    step_mask: jax.Array
    rollout_mask: jax.Array
    state_id: jax.Array
    action_id: jax.Array
    penalty: jax.Array
    value: jax.Array
    cluster_id: jax.Array | None = None
    state_terms: jax.Array | None = None
    rubric: jax.Array | None = None
    rubric_kind: jax.Array | None = None
    context_id: jax.Array | None = None
    hindsight_logp: jax.Array | None = None


@pytree
class Proofs:
    """The evidence behind a correction, dense; the proof log keeps its non-zero entries.

    Attributes:
      witness: bool[G, N, T, M, R], observed edges.
      weight: f32[G, N, T, M, R], beta of each edge (0 where there is none).
      marginal: f32[G, N, M], signed marginal delta_j before normalisation.
      marginal_norm: f32[G, N, M], dhat_j after group normalisation.
      contribution: f32[G, N, T, M, R], share of A_vict[t] that came along the edge, before clipping.
      core: bool[G, N, M], accepted core.
      cause: i8[G, N], `vict_jax.credit.diagnostics.Cause` of the rollout's abstention, 0 = none.
      atom_cause: i8[G, N, M], the same per atom with a non-zero potential marginal.
    """

    witness: jax.Array
    weight: jax.Array
    marginal: jax.Array
    marginal_norm: jax.Array
    contribution: jax.Array
    core: jax.Array
    cause: jax.Array
    atom_cause: jax.Array


@pytree
class CreditOutput:
    """What a credit method returns.

    Attributes:
      advantages: f32[G, N, T], final advantage of each step; 0 on padding.
      base: f32[G, N, T], the advantage before correction.
      correction: f32[G, N, T], `advantages - base`, already scaled and clipped; 0 for methods without one.
      lambda_: f32[], scale of the correction. clip: f32[], its bound c.
      diagnostics: f32[] each, by name.
      proofs: None for methods that have none.
      value_target: f32[G, N, T], what the critic is to learn at each step; None for methods without one.
    """

    advantages: jax.Array
    base: jax.Array
    correction: jax.Array
    lambda_: jax.Array
    clip: jax.Array
    diagnostics: Mapping[str, jax.Array]
    proofs: Proofs | None
    value_target: jax.Array | None = None


@pytree
class TokenBatch:
    """Token rows for scoring and training; one form for windowed, appended and packed sequences.

    All per-token fields of position l describe the token `ids[:, l]` itself (predicted from what
    precedes it in its segment), so position 0 of a segment is never trained.

    Attributes:
      ids: i32[S, L].
      segment: i32[S, L], 1, 2, ... per sequence of a row; 0 on padding. Attention stays inside.
      position: i32[S, L], position within the segment.
      loss_mask: bool[S, L], True on sampled tokens, the stop token included.
      behaviour_logp: f32[S, L], log-probability under the policy that sampled it, 0 elsewhere.
      rollout: i32[S, L], index into the flattened [G*N] rollouts (0 where unused).
      step: i32[S, L], step t of the rollout (0 where unused).
    """

    ids: jax.Array
    segment: jax.Array
    position: jax.Array
    loss_mask: jax.Array
    behaviour_logp: jax.Array
    rollout: jax.Array
    step: jax.Array
