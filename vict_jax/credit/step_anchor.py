"""Methods that compare steps which share an observation, a history or a transition: GiGPO, HGPO, SALT."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from vict_jax.credit.inputs import real_steps
from vict_jax.credit.options import VictOptions
from vict_jax.credit.step_method import (
    StepCredit,
    StepMethod,
    anchors,
    combine,
    compare_states,
    compare_within,
    outcome_part,
    paid,
    step_returns,
)
from vict_jax.credit.vict import estimate_outcome
from vict_jax.types import CreditInputs


def _gigpo(inputs: CreditInputs, options: VictOptions, state: jax.Array) -> StepCredit:
    o, inputs = options.gigpo, paid(inputs, options)
    outcome, episode = outcome_part(inputs, options, mode=o.mode)
    returns = step_returns(inputs, options, gamma=o.gamma)
    steps = compare_states(inputs, returns, state, mode=o.mode, eps=options.eps)
    return combine(inputs, outcome, episode, steps, omega=o.omega)


def gigpo(inputs: CreditInputs, options: VictOptions) -> StepCredit:
    """A^E + omega A^S, A^S the step return among those of the same raw observation (arXiv 2505.10978)."""
    return _gigpo(inputs, options, inputs.state_id[..., :-1])


def gigpo_similar(inputs: CreditInputs, options: VictOptions) -> StepCredit:
    """`gigpo` among observations of one cluster (`CreditInputs.cluster_id`)."""
    assert inputs.cluster_id is not None  # `methods` has looked
    return _gigpo(inputs, options, inputs.cluster_id)


# --- HGPO -----------------------------------------------------------------------------------------


def _history(state: jax.Array, shared: int) -> tuple[jax.Array, jax.Array]:
    """The last `shared` observations of each step, i32[shared, N, T], and bool[N, T], it has that many."""
    steps = state.shape[-1]
    rows = [jnp.pad(state, [(0, 0), (back, 0)])[:, :steps] for back in range(shared)]
    enough = jnp.broadcast_to(jnp.arange(steps) >= shared - 1, state.shape)
    return jnp.stack(rows), enough


def _level(
    returns: jax.Array, inputs: CreditInputs, options: VictOptions, shared: int
) -> tuple[jax.Array, jax.Array]:
    """Advantages f32[G, N, T] among steps with `shared` observations in common, and whether there are any."""

    def of_group(value: jax.Array, state: jax.Array, real: jax.Array) -> tuple[jax.Array, jax.Array]:
        key, enough = _history(state, shared)
        level, compared = compare_within(
            value.ravel(),
            key.reshape(shared, -1),
            (real & enough).ravel(),
            mode=options.hgpo.mode,
            eps=options.eps,
            ddof=0,
        )
        return level.reshape(real.shape), compared.reshape(real.shape)

    return jax.vmap(of_group)(returns, inputs.state_id[..., :-1], real_steps(inputs))


def hgpo(inputs: CreditInputs, options: VictOptions) -> StepCredit:
    """Weighted mean of the step's advantages in groups that share ever longer histories (arXiv 2602.22817).

    Level k holds the steps of a task with the same last k observations; each level in which the step's group
    has two or more different returns takes part with weight (k + 1) ** alpha.
    """
    o, inputs = options.hgpo, paid(inputs, options)
    outcome, episode = outcome_part(inputs, options, mode=o.mode)
    returns = step_returns(inputs, options, gamma=o.gamma)
    levels = {k + 1: _level(returns, inputs, options, k) for k in range(1, o.history + 2)}
    if o.base_group:
        alive = jnp.any(episode != 0, axis=-1)[:, None, None] & real_steps(inputs)
        levels[1] = jnp.where(alive, episode[..., None], 0.0), alive
    weights = {size: jnp.where(compared, size**o.alpha, 0.0) for size, (_, compared) in levels.items()}
    total = sum(weights[size] * level for size, (level, _) in levels.items())
    mass = sum(weights.values())
    steps = jnp.where(mass > 0, total / jnp.where(mass > 0, mass, 1.0), 0.0)
    return combine(inputs, outcome, jnp.zeros_like(episode), steps, omega=1.0)


def _hgpo_alone(options: VictOptions) -> str:
    if options.hgpo.base_group:
        return ""
    return (
        "its advantage compares the returns of single steps only, so none of it is the outcome of a rollout; "
        "with credit.hgpo.base_group=True it has an outcome part"
    )


# --- SALT -----------------------------------------------------------------------------------------


def salt(inputs: CreditInputs, options: VictOptions) -> StepCredit:
    """Rollouts of a task that made the same transition (s, a, s') share their mean there (arXiv 2510.20022).

    The mean is that of their outcome advantages (`options.base`), each rollout counted once however often it
    made the transition; one that only one rollout made keeps that rollout's own.
    """
    estimate = estimate_outcome(inputs, options)

    def of_group(own: jax.Array, key: jax.Array, real: jax.Array) -> jax.Array:
        # A rollout's first step through each transition stands for it.
        same = jnp.all(key[:, :, :, None] == key[:, :, None, :], axis=0)
        before = jnp.arange(real.shape[-1])[:, None] > jnp.arange(real.shape[-1])
        first = real & ~jnp.any(same & before & real[:, None, :], axis=-1)
        found = anchors(own.ravel(), key.reshape(3, -1), first.ravel())
        # A mean of equal values may be off by a bit, which would pass for a step part.
        shared = jnp.where((found.count > 1) & found.spread, found.mean, own.ravel())
        return shared.reshape(real.shape)

    key = jnp.stack([inputs.state_id[..., :-1], inputs.action_id, inputs.state_id[..., 1:]], axis=1)
    real = real_steps(inputs)
    own = jnp.where(real, estimate.steps, 0.0)
    advantages = jnp.where(real, jax.vmap(of_group)(own, key, real), 0.0)
    return StepCredit(advantages, estimate.advantage, estimate.scale, advantages - own)


GIGPO = StepMethod(gigpo, section="gigpo")
GIGPO_SIMILAR = StepMethod(gigpo_similar, needs=frozenset({"cluster_id"}), section="gigpo")
HGPO = StepMethod(hgpo, no_outcome=_hgpo_alone, section="hgpo")
SALT = StepMethod(salt)
