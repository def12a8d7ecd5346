"""The stages of a credit rule, and the pipeline that they share.

A rule says which actions an atom is tied to (`edges`), which atoms count and for how much (`atoms`), and
what becomes of the result (`place`). Everything else - the side q and its tie margin, conformance, the
consistency of the record, the normalisation inside the group, the redistribution along the edges - is
the same for all, so that a control differs from VICT in one stage only. VICT is arXiv 2608.28128.

Axes: N rollouts of a group, T steps, M atoms, V evidence variables, K kinds of edges (R = 4 for VICT).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping

import jax
import jax.numpy as jnp

from vict_jax.credit.cores import CORES, MARGINALS, consistent, direction, refusal
from vict_jax.credit.correction import normalise, redistribute
from vict_jax.credit.diagnostics import Cause, atom_causes, rollout_causes
from vict_jax.credit.inputs import real_steps, requirements, terminal_status
from vict_jax.credit.options import VictOptions
from vict_jax.credit.witness import edge_weights, witness_edges
from vict_jax.types import Aggregate, CreditInputs, Status, pytree


@pytree
class TaskView:
    """What the rollouts of a group share, without the axis G.

    Attributes: binds bool[M, V]; observation_var bool[V]; irreversible, terminal_only bool[M]; conforming
    bool[]; eta f32[]; params, each as the aggregator takes it.
    """

    binds: jax.Array
    observation_var: jax.Array
    irreversible: jax.Array
    terminal_only: jax.Array
    conforming: jax.Array
    eta: jax.Array
    params: Mapping[str, jax.Array]


@pytree
class RolloutView:
    """One rollout, or the rollouts of a group with N in front.

    Attributes: status i8[T+1, M]; evidence i32[T+1, V]; commits bool[T]; scope, mentions bool[T, M]; requires
    bool[M, M] between existing atoms; usable bool[M]; terminal i8[M], the status at the end; action_id
    i32[T]; steps bool[T], real ones; real bool[]; outcome f32[], its outcome advantage; scale f32[], what
    that was divided by.
    """

    status: jax.Array
    evidence: jax.Array
    commits: jax.Array
    scope: jax.Array
    mentions: jax.Array
    requires: jax.Array
    usable: jax.Array
    terminal: jax.Array
    action_id: jax.Array
    steps: jax.Array
    real: jax.Array
    outcome: jax.Array
    scale: jax.Array


def views(inputs: CreditInputs, outcome: jax.Array, scale: jax.Array) -> tuple[TaskView, RolloutView]:
    """The views of a batch: axis G, and G, N, in front.

    Args:
      outcome: f32[G, N], outcome advantages. scale: f32[G], what they were divided by.
    """
    task = TaskView(**{field.name: getattr(inputs, field.name) for field in dataclasses.fields(TaskView)})
    same = ("status", "evidence", "commits", "scope", "mentions", "usable", "action_id")
    rollouts = RolloutView(
        **{name: getattr(inputs, name) for name in same},
        requires=requirements(inputs),
        terminal=terminal_status(inputs),
        steps=real_steps(inputs),
        real=inputs.rollout_mask,
        outcome=outcome,
        scale=jnp.broadcast_to(scale[:, None], outcome.shape),
    )
    return task, rollouts


@pytree
class Edges:
    """Which actions an atom is tied to.

    Attributes: linked bool[T, M, K], False on padding and on unusable atoms; weight f32[T, M, K], beta, 0
    where not linked; total f32[M], its sum over t and k.
    """

    linked: jax.Array
    weight: jax.Array
    total: jax.Array


@pytree
class Chosen:
    """The atoms that count in a rollout, before the rollout is admitted.

    Attributes: atoms bool[M]; potential f32[M], marginals of all atoms; refusal i8[], the `Cause` why they
    are not accepted, or NONE; budget_hit bool[]; aggregate_score f32[], F(z_T).
    """

    atoms: jax.Array
    potential: jax.Array
    refusal: jax.Array
    budget_hit: jax.Array
    aggregate_score: jax.Array


@pytree
class GroupCredit:
    """The credit of a group under one rule.

    Attributes: edges, with N in front; core bool[N, M], accepted; marginal f32[N, M], of known usable core
    atoms; marginal_norm f32[N, M]; contribution f32[N, T, M, K], what came along each edge; a_vict
    f32[N, T]; gate i8[N], the `Cause` that stopped the rollout whatever the rule; cause i8[N] and
    atom_cause i8[N, M], under this rule; budget_hit bool[N]; aggregate_score f32[N].
    """

    edges: Edges
    core: jax.Array
    marginal: jax.Array
    marginal_norm: jax.Array
    contribution: jax.Array
    a_vict: jax.Array
    gate: jax.Array
    cause: jax.Array
    atom_cause: jax.Array
    budget_hit: jax.Array
    aggregate_score: jax.Array


Score = Callable[[jax.Array], jax.Array]
EdgeStage = Callable[[TaskView, RolloutView, VictOptions], Edges]
AtomStage = Callable[[TaskView, RolloutView, Score, VictOptions], Chosen]
PlaceStage = Callable[[TaskView, RolloutView, GroupCredit, VictOptions], GroupCredit]


@dataclasses.dataclass(frozen=True)
class Rule:
    """A credit rule by its stages.

    Attributes:
      edges: of one rollout. atoms: of one rollout.
      place: of a group, from the credit along the edges to the credit given.
      proved: it claims that every correction has its proof (Eq. 8), and is held to it.
    """

    edges: EdgeStage
    atoms: AtomStage
    place: PlaceStage
    proved: bool


# --- the stages of VICT ---------------------------------------------------------------------------


def proof_edges(task: TaskView, rollout: RolloutView, options: VictOptions) -> Edges:
    """The witnesses of Eq. 4 with the weights of Eq. 12; K = R."""
    del options
    witness = witness_edges(
        rollout.evidence,
        rollout.status,
        rollout.commits,
        rollout.scope,
        binds=task.binds,
        observation_var=task.observation_var,
        irreversible=task.irreversible,
        terminal_only=task.terminal_only,
        usable=rollout.usable,
        step_mask=rollout.steps,
    )
    return Edges(witness, *edge_weights(witness))


def core_atoms(task: TaskView, rollout: RolloutView, score: Score, options: VictOptions) -> Chosen:
    """The core of Eq. 6 and 13, its marginals, and whether it is accepted."""
    satisfied = rollout.terminal == Status.SATISFIED
    q, rho = direction(
        rollout.outcome, rollout.scale, eps_q=options.eps_q, gamma_rho=options.gamma_rho
    )  # Eq. 5
    core = CORES[options.core](
        score,
        satisfied,
        q,
        rho,
        requires=rollout.requires,
        usable=rollout.usable,
        eta=task.eta,
        budget=options.budget,
    )
    potential = MARGINALS[options.marginals](
        score, rollout.terminal, q, core.atoms, requires=rollout.requires, usable=rollout.usable
    )
    return Chosen(core.atoms, potential, refusal(core, rho, task.eta), core.budget_hit, score(satisfied))


def along_edges(
    task: TaskView, rollouts: RolloutView, credit: GroupCredit, options: VictOptions
) -> GroupCredit:
    """The credit stays where the edges put it (Eq. 7, 17)."""
    del task, rollouts, options
    return credit


VICT = Rule(edges=proof_edges, atoms=core_atoms, place=along_edges, proved=True)


# --- the shared pipeline --------------------------------------------------------------------------


def gate(task: TaskView, rollout: RolloutView, options: VictOptions) -> jax.Array:
    """Why a rollout may not be corrected whatever the rule, i8[], a `Cause` (Eq. 3, 5, 8).

    NONE if it may, and for a lost rollout.
    """
    q, _ = direction(rollout.outcome, rollout.scale, eps_q=options.eps_q, gamma_rho=options.gamma_rho)
    cause = jnp.where(q == 0, Cause.NEAR_TIE, Cause.NONE)
    holds = rollout.terminal == Status.SATISFIED
    sound = consistent(holds, rollout.requires, rollout.usable)
    cause = jnp.where(sound, cause, Cause.INCONSISTENT_RECORD)
    conforms = task.conforming & jnp.any(rollout.usable)
    cause = jnp.where(conforms, cause, Cause.CONFORMANCE)
    return jnp.where(rollout.real, cause, Cause.NONE).astype(jnp.int8)


def _measure(
    rollouts: RolloutView, gates: jax.Array, edges: Edges, chosen: Chosen, options: VictOptions
) -> GroupCredit:
    """Admit, normalise and redistribute (Eq. 7, 16, 17). `gates` i8[N], NONE on lost rollouts."""
    stopped = jnp.where(gates == Cause.NONE, chosen.refusal, gates)
    stopped = jnp.where(rollouts.real, stopped, Cause.NONE).astype(jnp.int8)
    core = chosen.atoms & (rollouts.real & (stopped == Cause.NONE))[:, None]
    known = rollouts.terminal != Status.UNKNOWN
    marginal = jnp.where(core & rollouts.usable & known, chosen.potential, 0.0)
    has_edge = edges.total > 0
    supported = core & rollouts.usable & has_edge
    dhat, spread = jax.vmap(  # Eq. 16, atom by atom
        lambda marginal, mask: normalise(
            marginal, mask, scale=options.scale, center=options.center, eps=options.eps
        ),
        in_axes=(1, 1),
        out_axes=(1, 0),
    )(marginal, supported)
    a_vict, contribution = jax.vmap(  # Eq. 7, 17
        lambda *rollout: redistribute(*rollout, smoothing=options.smoothing, eps=options.eps)
    )(dhat, edges.weight, edges.total)
    budget_hit = chosen.budget_hit & rollouts.real & (gates == Cause.NONE)
    atom_cause = atom_causes(
        stopped,
        budget_hit,
        chosen.potential,
        core,
        rollouts.terminal,
        has_edge,
        supported,
        spread,
        usable=rollouts.usable,
        eps=options.eps,
    )
    atom_cause = jnp.where(rollouts.real[:, None], atom_cause, Cause.NONE).astype(jnp.int8)
    return GroupCredit(
        edges=edges,
        core=core,
        marginal=marginal,
        marginal_norm=dhat,
        contribution=contribution,
        a_vict=a_vict,
        gate=gates,
        cause=rollout_causes(stopped, atom_cause, core, rollouts.usable),
        atom_cause=atom_cause,
        budget_hit=budget_hit,
        aggregate_score=chosen.aggregate_score,
    )


def credit_group(
    task: TaskView,
    rollouts: RolloutView,
    *,
    rules: Iterable[Rule],
    aggregate: Aggregate,
    options: VictOptions,
) -> list[GroupCredit]:
    """The credit of one group under each rule; a stage that rules have in common is computed once."""
    rules = list(rules)

    def score(assignment: jax.Array) -> jax.Array:
        return jnp.asarray(aggregate(assignment, task.params), jnp.float32)

    # Keys of the tables are the stages themselves, in the order in which the rules name them.
    gates = jax.vmap(lambda rollout: gate(task, rollout, options))(rollouts)
    edges = {
        stage: jax.vmap(lambda rollout, stage=stage: stage(task, rollout, options))(rollouts)
        for stage in dict.fromkeys(rule.edges for rule in rules)
    }
    chosen = {
        stage: jax.vmap(lambda rollout, stage=stage: stage(task, rollout, score, options))(rollouts)
        for stage in dict.fromkeys(rule.atoms for rule in rules)
    }
    measured = {
        pair: _measure(rollouts, gates, edges[pair[0]], chosen[pair[1]], options)
        for pair in dict.fromkeys((rule.edges, rule.atoms) for rule in rules)
    }
    return [rule.place(task, rollouts, measured[rule.edges, rule.atoms], options) for rule in rules]
