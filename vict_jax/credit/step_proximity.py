"""ProxMO: a baseline for each step from all steps of its task, weighted by the similarity of observations."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from vict_jax.credit.base import has_spread
from vict_jax.credit.inputs import real_steps
from vict_jax.credit.options import VictOptions
from vict_jax.credit.step_method import (
    StepCredit,
    StepMethod,
    combine,
    outcome_part,
    paid,
    step_returns,
    succeeded,
)
from vict_jax.types import CreditInputs

Sums = tuple[jax.Array, jax.Array]


def modulation(success: jax.Array, rate: jax.Array, *, beta: float, steepness: float) -> jax.Array:
    """1 + beta f(R, p), f32: more than 1 for a success in a hard group, less for a failure in an easy one.

    f is (sigmoid(x ** steepness) - 1/2) / (2 sigmoid(1) - 1) with x = 1 - p for a success, and minus the same
    with x = p for a failure; so |f| goes from 0 to 1/2.

    Args:
      success: bool[G, N]. rate: f32[G, 1], p, share of successes.
    """
    x = jnp.where(success, 1.0 - rate, rate)
    f = (jax.nn.sigmoid(x**steepness) - 0.5) / (2.0 * jax.nn.sigmoid(jnp.float32(1.0)) - 1.0)
    return 1.0 + beta * jnp.where(success, f, -f)


def soft_baseline(value: jax.Array, terms: jax.Array, real: jax.Array, *, temperature: float) -> jax.Array:
    """Mean of the values of a group, weighted by softmax(cosine / temperature) for each step.

    Args:
      value: f32[K]. terms: f32[K, D], rows of length 1 (0 for an observation without words). real: bool[K].

    Returns:
      f32[K].
    """
    terms = jnp.where(real[:, None], terms, 0.0)
    cosine = jnp.dot(terms, terms.T, precision=jax.lax.Precision.HIGHEST)
    highest = jnp.max(jnp.where(real[:, None], cosine, -1.0), axis=0)
    weight = jnp.exp((cosine - highest) / temperature)

    def add(seen: Sums, row: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[Sums, None]:
        total, mass = seen
        its_weight, its_value, counts = row
        its_weight = jnp.where(counts, its_weight, 0.0)
        return (total + its_weight * its_value, mass + its_weight), None

    nothing = jnp.zeros_like(value)
    (total, mass), _ = jax.lax.scan(add, (nothing, nothing), (weight, value, real))
    return total / jnp.where(mass > 0, mass, 1.0)


def proxmo(inputs: CreditInputs, options: VictOptions) -> StepCredit:
    """The outcome part modulated by the group's success rate, plus omega (R_t - baseline) (arXiv 2602.19225).

    Neither part is divided by a standard deviation. In a group of equal step returns the step part is 0. For
    VICT (Eq. 10) the outcome part is the one before modulation.
    """
    o, inputs = options.proxmo, paid(inputs, options)
    outcome, episode = outcome_part(inputs, options, mode="mean")
    success, rollouts = succeeded(inputs), inputs.rollout_mask
    rate = jnp.sum(success, axis=-1) / jnp.maximum(jnp.sum(rollouts, axis=-1), 1)
    episode *= modulation(success, rate[:, None], beta=o.modulation, steepness=o.steepness)

    def of_group(value: jax.Array, terms: jax.Array, real: jax.Array) -> jax.Array:
        row, counts = value.ravel(), real.ravel()
        baseline = soft_baseline(row, terms.reshape(len(row), -1), counts, temperature=o.temperature)
        return jnp.where(counts & has_spread(row, counts), row - baseline, 0.0).reshape(real.shape)

    assert inputs.state_terms is not None  # `methods` has looked
    returns = step_returns(inputs, options, gamma=o.gamma)
    # One group after the other: similarities are K x K.
    of_groups = (returns, inputs.state_terms, real_steps(inputs))
    steps = jax.lax.map(lambda group: of_group(*group), of_groups)
    return combine(inputs, outcome, episode, steps, omega=o.omega)


PROXMO = StepMethod(proxmo, needs=frozenset({"state_terms"}), section="proxmo")
