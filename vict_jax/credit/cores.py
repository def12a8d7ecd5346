"""Counterfactual edits, cores and marginals of one rollout (Eq. 5, 6, 13).

`satisfied` bool[M] is the terminal assignment, `requires` bool[M, M] the requirement closure ([j, k]:
atom j requires atom k; reflexive on existing atoms, False on padding), and `score` the aggregator F_x
of the task, bool[M] -> f32[]. Edits change the assignment only; nothing is ever rolled out again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp

from vict_jax.credit.diagnostics import Cause
from vict_jax.types import Status, pytree

Score = Callable[[jax.Array], jax.Array]


@pytree
class Core:
    """A core before it is accepted or refused.

    Attributes:
      atoms: bool[M], closed under requirements.
      delta: f32[], its effect on the score, to be compared with rho.
      budget_hit: bool[], candidates remained that the budget did not let in.
    """

    atoms: jax.Array
    delta: jax.Array
    budget_hit: jax.Array


def direction(
    advantage: jax.Array, scale: jax.Array, *, eps_q: float, gamma_rho: float
) -> tuple[jax.Array, jax.Array]:
    """Side q in {-1, 0, 1} and threshold rho in score units (Eq. 5); q = 0 inside the tie margin."""
    q = jnp.where(jnp.abs(advantage) > eps_q, jnp.sign(advantage), 0.0)
    return q, gamma_rho * scale * jnp.abs(advantage)


def consistent(satisfied: jax.Array, requires: jax.Array, usable: jax.Array) -> jax.Array:
    """True, bool[], if the record obeys D_x: what a satisfied atom requires is satisfied (usable atoms)."""
    broken = (satisfied & usable)[:, None] & requires & (usable & ~satisfied)
    return ~jnp.any(broken)


def remove(satisfied: jax.Array, atoms: jax.Array, requires: jax.Array) -> jax.Array:
    """The assignment without `atoms` bool[M] and without every atom that requires one of them (Eq. 6)."""
    return satisfied & ~atoms & ~jnp.any(requires & atoms, axis=1)


def repair(satisfied: jax.Array, atoms: jax.Array, requires: jax.Array) -> jax.Array:
    """The assignment with `atoms` bool[M] and everything that they require satisfied (Eq. 6)."""
    return satisfied | atoms | jnp.any(requires & atoms[:, None], axis=0)


def effect(
    score: Score, satisfied: jax.Array, q: jax.Array, atoms: jax.Array, requires: jax.Array
) -> jax.Array:
    """Delta(C) f32[] of Eq. 6: what removing `atoms` costs (q = 1), or repairing them gains (q = -1)."""
    edited = jnp.where(q > 0, remove(satisfied, atoms, requires), repair(satisfied, atoms, requires))
    return jnp.where(q > 0, 1.0, -1.0) * (score(satisfied) - score(edited))


def single_effects(
    score: Score, satisfied: jax.Array, q: jax.Array, requires: jax.Array, usable: jax.Array
) -> jax.Array:
    """e_j f32[M]: what the loss of atom j alone costs in the satisfied world.

    That world is the assignment itself for q = 1, and the one with all usable atoms repaired otherwise.
    """
    world = jnp.where(q > 0, satisfied, repair(satisfied, usable, requires))
    without = world & ~requires.T & ~jnp.eye(len(usable), dtype=bool)
    return score(world) - jax.vmap(score)(without)


def complete_core(
    score: Score,
    satisfied: jax.Array,
    q: jax.Array,
    rho: jax.Array,
    *,
    requires: jax.Array,
    usable: jax.Array,
    eta: jax.Array,
    budget: int,
) -> Core:
    """Every load-bearing atom (method page, section 4): e_j > 2 eta, at most `budget`, then their closure.

    Of more candidates the largest effects stay, the lowest index first among equals. For q = -1 the
    effect of the core is that of repairing everything, F(w) - F(z). `rho` is not used here.
    """
    del rho
    effects = single_effects(score, satisfied, q, requires, usable)
    candidates = usable & (effects > 2 * eta)
    index = jnp.arange(len(usable))
    ahead = effects[None, :] > effects[:, None]
    ahead |= (effects[None, :] == effects[:, None]) & (index[None, :] < index[:, None])
    rank = jnp.sum(ahead & candidates, axis=1)
    atoms = jnp.any(requires & (candidates & (rank < budget))[:, None], axis=0)
    delta = effect(score, satisfied, q, jnp.where(q > 0, atoms, usable), requires)
    return Core(atoms=atoms, delta=delta, budget_hit=jnp.sum(candidates) > budget)


def greedy_core(
    score: Score,
    satisfied: jax.Array,
    q: jax.Array,
    rho: jax.Array,
    *,
    requires: jax.Array,
    usable: jax.Array,
    eta: jax.Array,
    budget: int,
) -> Core:
    """The paper's core (Eq. 13): greedy additions until Delta >= rho, then a backward pass.

    Each addition is the closure of the usable atom that gives the largest Delta together with what is
    there already (lowest index among equals). The backward pass goes once through the atoms from the
    highest index to the lowest and drops those without which the set is still closed and Delta >= rho.
    `eta` is not used here.
    """
    del eta

    def value(atoms: jax.Array) -> jax.Array:
        return effect(score, satisfied, q, atoms, requires)

    def add(_: int, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        atoms, delta = carry
        candidates = usable & ~atoms
        sets = atoms | requires
        deltas = jax.vmap(value)(sets)
        best = jnp.argmax(jnp.where(candidates, deltas, -jnp.inf))
        grow = (delta < rho) & jnp.any(candidates)
        return jnp.where(grow, sets[best], atoms), jnp.where(grow, deltas[best], delta)

    def drop(i: int, atoms: jax.Array) -> jax.Array:
        j = len(usable) - 1 - i
        without = atoms & (jnp.arange(len(usable)) != j)
        closed = ~jnp.any(without & requires[:, j])
        return jnp.where(reached & closed & (value(without) >= rho), without, atoms)

    atoms, delta = jax.lax.fori_loop(0, budget, add, (jnp.zeros_like(usable), jnp.zeros_like(rho)))
    reached = delta >= rho
    budget_hit = ~reached & jnp.any(usable & ~atoms)
    atoms = jax.lax.fori_loop(0, len(usable), drop, atoms)
    return Core(atoms=atoms, delta=value(atoms), budget_hit=budget_hit)


def refusal(core: Core, rho: jax.Array, eta: jax.Array) -> jax.Array:
    """Why the core is not accepted, i8[], a `Cause`; NONE if it is (Eq. 13).

    With an inexact interface (eta > 0) an effect within 2 eta of rho decides nothing.
    """
    unsure = (eta > 0) & (jnp.abs(core.delta - rho) <= 2 * eta)
    short = jnp.where(core.budget_hit, Cause.BUDGET, Cause.NO_CORE)
    cause = jnp.where(core.delta >= rho, Cause.NONE, short)
    cause = jnp.where(unsure, Cause.UNCERTAINTY_BAND, cause)
    return jnp.where(jnp.any(core.atoms), cause, short).astype(jnp.int8)


def contextual_marginals(
    score: Score,
    status: jax.Array,
    q: jax.Array,
    atoms: jax.Array,
    *,
    requires: jax.Array,
    usable: jax.Array,
) -> jax.Array:
    """e_j f32[M] with the sign of the atom's own state: + where SATISFIED, - where it is not.

    `status` i8[M] is terminal. The atoms of the core do not matter: an effect belongs to the world.
    """
    del atoms
    satisfied = status == Status.SATISFIED
    effects = single_effects(score, satisfied, q, requires, usable)
    return jnp.where(satisfied, effects, -effects)


def literal_marginals(
    score: Score,
    status: jax.Array,
    q: jax.Array,
    atoms: jax.Array,
    *,
    requires: jax.Array,
    usable: jax.Array,
) -> jax.Array:
    """Delta(C) - Delta(C without j), f32[M], for the core C = `atoms` bool[M]; 0 outside it (Eq. 13)."""
    del usable
    satisfied = status == Status.SATISFIED
    without = atoms & ~jnp.eye(len(atoms), dtype=bool)
    value = jax.vmap(lambda some: effect(score, satisfied, q, some, requires))
    return jnp.where(atoms, effect(score, satisfied, q, atoms, requires) - value(without), 0.0)


CORES: Mapping[str, Callable[..., Core]] = {"complete": complete_core, "greedy": greedy_core}
MARGINALS: Mapping[str, Callable[..., jax.Array]] = {
    "contextual": contextual_marginals,
    "literal": literal_marginals,
}
