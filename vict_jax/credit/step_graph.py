"""Methods that read distances off the graph of a task group's states: GraphGPO, RewardFlow.

Nodes are observations, edges the steps of all rollouts of the task. The last step of a success leads to a
goal node instead of to its last observation.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from vict_jax.credit.inputs import real_steps
from vict_jax.credit.options import VictOptions
from vict_jax.credit.step_method import (
    StepCredit,
    StepMethod,
    combine,
    compare_states,
    outcome_part,
    paid,
    succeeded,
)
from vict_jax.types import CreditInputs, pytree


@pytree
class Distances:
    """Steps to the goal along the edges of a group's graph, f32[N, T] each; inf where there is no way.

    Attributes: before: from the state before each step. after: from the state that it leads to.
    """

    before: jax.Array
    after: jax.Array


def _first_with(wanted: jax.Array, state: jax.Array, real: jax.Array) -> jax.Array:
    """Index of the first real step whose state is the wanted one, i32[K]; K where there is none."""
    none = jnp.int32(len(state))

    def look(found: jax.Array, row: tuple[jax.Array, ...]) -> tuple[jax.Array, None]:
        index, its_state, counts = row
        return jnp.where((found == none) & counts & (wanted == its_state), index, found), None

    start = jnp.full(wanted.shape, none)
    found, _ = jax.lax.scan(look, start, (jnp.arange(len(state), dtype=jnp.int32), state, real))
    return found


def distances(state: jax.Array, success: jax.Array, real: jax.Array) -> Distances:
    """Shortest ways to the goal in one group.

    Args:
      state: i32[N, T+1], identifiers of observations. success: bool[N]. real: bool[N, T].
    """
    rollouts, steps = real.shape
    last = real & (jnp.arange(steps) == jnp.sum(real, axis=-1, keepdims=True) - 1)
    wins = (last & success[:, None]).ravel()
    source, real_row = state[:, :-1].ravel(), real.ravel()
    # A node is the first step that starts in it; node K is a state that no step starts in.
    node = _first_with(source, source, real_row)
    target = _first_with(state[:, 1:].ravel(), source, real_row)

    def after(distance: jax.Array) -> jax.Array:
        return jnp.where(wins, 0.0, distance[target])

    def relax(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        distance, _ = carry
        through = jnp.where(real_row, 1.0 + after(distance), jnp.inf)
        shorter = distance.at[node].min(through).at[rollouts * steps].set(jnp.inf)
        return shorter, jnp.any(shorter < distance)

    start = jnp.full(rollouts * steps + 1, jnp.inf, jnp.float32)
    distance, _ = jax.lax.while_loop(lambda carry: carry[1], relax, (start, jnp.bool_(True)))
    return Distances(distance[node].reshape(real.shape), after(distance).reshape(real.shape))


def batch_distances(inputs: CreditInputs) -> Distances:
    """`distances` of every group, f32[G, N, T] each; anything on padding."""
    return jax.vmap(distances)(inputs.state_id, succeeded(inputs), real_steps(inputs))


def decay(distance: jax.Array, gamma: float, longest: int) -> jax.Array:
    """gamma ** distance from a table, so that equal distances give equal bits; inf gives 0."""
    powers = np.power(np.float64(gamma), np.arange(longest + 1)).astype(np.float32)
    known = jnp.isfinite(distance)
    return jnp.where(known, jnp.asarray(powers)[jnp.where(known, distance, 0).astype(jnp.int32)], 0.0)


def graphgpo(inputs: CreditInputs, options: VictOptions) -> StepCredit:
    """A^E + omega A^S, A^S of step returns pay gamma^d(s') among those of one observation (arXiv 2605.26684).

    d is the distance to the goal; a state with no way to it has the largest finite distance of the group
    plus 1. Without a success in the group A^S is 0.
    """
    o, inputs = options.graphgpo, paid(inputs, options)
    outcome, episode = outcome_part(inputs, options, mode=o.mode)
    found, real = batch_distances(inputs), real_steps(inputs)
    finite = real & jnp.isfinite(found.before)
    largest = jnp.max(jnp.where(finite, found.before, 0.0), axis=(1, 2), keepdims=True)
    distance = jnp.where(jnp.isfinite(found.after), found.after, largest + 1.0)
    value = options.steps.pay * decay(distance, o.gamma, real.shape[1] * real.shape[2] + 1)
    steps = compare_states(inputs, value, inputs.state_id[..., :-1], mode=o.mode, eps=options.eps)
    return combine(inputs, outcome, episode, steps, omega=o.omega)


def rewardflow(inputs: CreditInputs, options: VictOptions) -> StepCredit:
    """A^E + omega A^S, A^S of step rewards V(s') - V(s) among those of one observation (arXiv 2603.18859).

    The goal is worth `pay`; a state gamma times the best that a step from it leads to, 0 without a way to
    the goal. So V(s) = pay gamma^d(s). Without a success in the group A^S is 0.
    """
    o, inputs = options.rewardflow, paid(inputs, options)
    outcome, episode = outcome_part(inputs, options, mode=o.mode)
    found, longest = batch_distances(inputs), inputs.commits.shape[1] * inputs.commits.shape[2]
    gain = decay(found.after, o.gamma, longest) - decay(found.before, o.gamma, longest)
    value = options.steps.pay * gain
    steps = compare_states(inputs, value, inputs.state_id[..., :-1], mode=o.mode, eps=options.eps)
    return combine(inputs, outcome, episode, steps, omega=o.omega)


GRAPHGPO = StepMethod(graphgpo, section="graphgpo")
REWARDFLOW = StepMethod(rewardflow, section="rewardflow")
