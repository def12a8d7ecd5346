"""The form of a step-level method, and what several of them are made of.

A method has an outcome part, one advantage a rollout, and a step part that compares single steps of the
rollouts of a task. K = N T steps of a group are looked at in a row: rollout by rollout, then in time.
Identifiers were made on the host (`CreditInputs.state_id`, ...); everything here is jitted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp

from vict_jax.credit.base import BASES, Base, Outcome, has_spread, per_group, returns_of
from vict_jax.credit.diagnostics import outcome_diagnostics
from vict_jax.credit.inputs import real_steps
from vict_jax.credit.masked import ordered_sum, weighted_mean_std
from vict_jax.credit.options import VictOptions
from vict_jax.types import CreditInputs, pytree

# The score of a success, as `rollout.episode` has it.
FULL_SCORE = 1.0


@pytree
class StepCredit:
    """What a step-level method returns.

    Attributes:
      advantages: f32[G, N, T], A_M; anything on padding.
      outcome: f32[G, N], its outcome part, in the unit of the base it is made with; of Eq. 10, q and rho.
      scale: f32[G], what `outcome` was divided by to be free of score units.
      steps: f32[G, N, T], its step part, weight included; anything on padding.
    """

    advantages: jax.Array
    outcome: jax.Array
    scale: jax.Array
    steps: jax.Array


def always(options: VictOptions) -> str:
    """The method has an outcome part, whatever its options."""
    del options
    return ""


@dataclasses.dataclass(frozen=True)
class StepMethod:
    """A step-level method.

    Attributes:
      credit: of a batch; a pure function.
      needs: fields of `CreditInputs` beyond those that every batch has.
      no_outcome: why its advantage has no outcome part under these options, so that VICT cannot go on top of
        it (Eq. 10); empty if it has one.
      section: name of its own options in `VictOptions`; empty for one that takes those of its base.
    """

    credit: Callable[[CreditInputs, VictOptions], StepCredit]
    needs: frozenset[str] = frozenset()
    no_outcome: Callable[[VictOptions], str] = always
    section: str = ""


def step_diagnostics(inputs: CreditInputs, credit: StepCredit) -> dict[str, jax.Array]:
    """Figures of a step-level method, f32[] each: those of its outcome part, and of its step part.

    `step_share` is the share of real steps with a step part other than 0, `step_size` the mean size of the
    step part over them.
    """
    real = real_steps(inputs)
    moved = real & (credit.steps != 0)
    count = jnp.sum(moved)
    size = ordered_sum(jnp.where(moved, jnp.abs(credit.steps), 0.0).ravel())
    return {
        **outcome_diagnostics(inputs, credit.outcome),
        "step_share": count / jnp.maximum(jnp.sum(real), 1),
        "step_size": size / jnp.maximum(count, 1),
    }


# --- outcome part ---------------------------------------------------------------------------------


def _dr_grpo_rows(
    score: jax.Array, mask: jax.Array, length: jax.Array, *, eps: float
) -> tuple[jax.Array, jax.Array]:
    """Dr.GRPO with the mean of an implementation that has one row a step."""
    mean, _ = weighted_mean_std(score, jnp.where(mask, length, 0.0))
    del eps
    return jnp.where(mask & has_spread(score, mask), score - mean, 0.0), jnp.float32(1.0)


_EPISODE: Mapping[tuple[str, bool], Base] = {
    ("mean_std", False): BASES["grpo"],
    ("mean_std", True): BASES["grpo_rows"],
    ("mean", False): BASES["dr_grpo"],
    ("mean", True): per_group(_dr_grpo_rows, rows=True),
}


def paid(inputs: CreditInputs, options: VictOptions) -> CreditInputs:
    """The batch with the scores that step-level methods see: 0 or 1 if only a success is paid."""
    if not options.steps.success_only:
        return inputs
    return dataclasses.replace(inputs, score=succeeded(inputs).astype(jnp.float32))


def succeeded(inputs: CreditInputs) -> jax.Array:
    """Real rollouts with a full score, bool[G, N]."""
    return inputs.rollout_mask & (inputs.score >= FULL_SCORE)


def outcome_part(inputs: CreditInputs, options: VictOptions, *, mode: str) -> tuple[Outcome, jax.Array]:
    """The outcome part in score units divided by its scale, and A^E f32[G, N], the same times `steps.pay`.

    In mode `mean_std` both are the same: what is divided by the standard deviation has no unit.
    """
    returns = returns_of(inputs, discount=1.0)
    outcome = _EPISODE[mode, options.steps.rows](returns, eps=options.eps)
    unit = options.steps.pay if mode == "mean" else 1.0
    return outcome, unit * outcome.advantage


def step_returns(inputs: CreditInputs, options: VictOptions, *, gamma: float) -> jax.Array:
    """R_t = r_t + gamma R_{t+1}, f32[G, N, T], `steps.pay` times score units; 0 on padding."""
    return options.steps.pay * returns_of(inputs, discount=gamma).to_go


def combine(
    inputs: CreditInputs, outcome: Outcome, episode: jax.Array, steps: jax.Array, *, omega: float
) -> StepCredit:
    """A = A^E + omega A^S, from `episode` f32[G, N] and `steps` f32[G, N, T]."""
    real = real_steps(inputs)
    weighted = jnp.where(real, omega * steps, 0.0)
    return StepCredit(
        advantages=jnp.where(real, episode[..., None] + weighted, 0.0),
        outcome=outcome.advantage,
        scale=outcome.scale,
        steps=weighted,
    )


# --- groups of equal steps ------------------------------------------------------------------------


@pytree
class Anchors:
    """Statistics of the group that each step is in, [K] each.

    Attributes:
      count: i32, members. mean: f32. spread: bool, the members differ; exact, True where one is NaN, and
        where there is none.
    """

    count: jax.Array
    mean: jax.Array
    spread: jax.Array


_Row = tuple[jax.Array, jax.Array, jax.Array]
_Sums = tuple[jax.Array, jax.Array, jax.Array, jax.Array]


def anchors(value: jax.Array, key: jax.Array, member: jax.Array) -> Anchors:
    """Groups of the steps with equal keys.

    The members are gone through in order, one against all, so that there is no [K, K] array and more
    padding changes no bit.

    Args:
      value: f32[K]. key: i32[C, K], equal in all C rows. member: bool[K], steps that count.
    """

    def add(seen: _Sums, row: _Row) -> tuple[_Sums, None]:
        count, total, low, high = seen
        its_value, its_key, counts = row
        same = counts & jnp.all(key == its_key[:, None], axis=0)
        return (
            count + same,
            total + jnp.where(same, its_value, 0.0),
            jnp.where(same, jnp.minimum(low, its_value), low),
            jnp.where(same, jnp.maximum(high, its_value), high),
        ), None

    nothing = jnp.zeros_like(value)
    start = (jnp.zeros(value.shape, jnp.int32), nothing, nothing + jnp.inf, nothing - jnp.inf)
    (count, total, low, high), _ = jax.lax.scan(add, start, (value, key.T, member))
    return Anchors(count, total / jnp.maximum(count, 1), ~(low == high))


def deviation(value: jax.Array, key: jax.Array, member: jax.Array, found: Anchors, *, ddof: int) -> jax.Array:
    """Standard deviation f32[K] of the group of each step, with n - ddof in the denominator."""

    def add(squares: jax.Array, row: _Row) -> tuple[jax.Array, None]:
        its_value, its_key, counts = row
        same = counts & jnp.all(key == its_key[:, None], axis=0)
        return squares + jnp.where(same, jnp.square(its_value - found.mean), 0.0), None

    squares, _ = jax.lax.scan(add, jnp.zeros_like(value), (value, key.T, member))
    return jnp.sqrt(squares / jnp.maximum(found.count - ddof, 1))


def compare_within(
    value: jax.Array, key: jax.Array, member: jax.Array, *, mode: str, eps: float, ddof: int = 1
) -> tuple[jax.Array, jax.Array]:
    """Each value less the mean of its group, and divided by its std + eps in mode `mean_std`.

    Args:
      value: f32[K]. key: i32[C, K]. member: bool[K].

    Returns:
      f32[K]; exactly 0 on steps that are no members, in a group of one and in a group of equal values.
      bool[K], all other steps.
    """
    value = jnp.where(member, value, 0.0)
    found = anchors(value, key, member)
    centred = value - found.mean
    if mode == "mean_std":
        centred /= deviation(value, key, member, found, ddof=ddof) + eps
    compared = member & (found.count > 1) & found.spread
    return jnp.where(compared, centred, 0.0), compared


def compare_states(
    inputs: CreditInputs, value: jax.Array, state: jax.Array, *, mode: str, eps: float
) -> jax.Array:
    """`compare_within` the steps of a task that act on the same observation.

    Args:
      value: f32[G, N, T]. state: i32[G, N, T], identifier of the observation before each step.
    """

    def of_group(value: jax.Array, state: jax.Array, real: jax.Array) -> jax.Array:
        row, _ = compare_within(value.ravel(), state.reshape(1, -1), real.ravel(), mode=mode, eps=eps)
        return row.reshape(real.shape)

    return jax.vmap(of_group)(value, state, real_steps(inputs))
