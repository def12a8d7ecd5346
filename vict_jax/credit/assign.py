"""One compiled call for an update's credit: methods named by the config, each held to what it claims."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from vict_jax.credit.diagnostics import check_controlled, check_invariant, check_placed
from vict_jax.credit.methods import Claim, credit_method, run_methods
from vict_jax.credit.options import VictOptions
from vict_jax.types import Aggregate, CreditInputs, CreditOutput


class InvariantError(ArithmeticError):
    """A correction that its method's claim does not allow: a bug, never a property of the data."""


@functools.partial(jax.jit, static_argnames=("methods", "aggregate", "options"))
def assign_many(
    inputs: CreditInputs, *, methods: tuple[str, ...], aggregate: Aggregate, options: VictOptions
) -> tuple[dict[str, CreditOutput], jax.Array]:
    """Credit of one update batch by several methods.

    Args:
      methods: names as `methods.credit_method` takes them.
      aggregate: F_x of the domain.

    Returns:
      The output of each method, and the number of actions, i32[], summed over the methods, whose
      correction the method's claim does not allow. Must be 0.

    Raises:
      ValueError: a method is unknown or refused, or a field of `inputs` is missing or has a wrong shape or
        type.
    """
    chosen = {name: credit_method(name, options) for name in methods}
    outputs = run_methods(chosen, inputs, aggregate, options)
    violations = jnp.int32(0)
    for name, output in outputs.items():
        check = check_controlled if chosen[name].claim is Claim.CONTROL else check_invariant
        violations += check(inputs, output)
        if chosen[name].steps is not None:
            violations += check_placed(inputs, output)
    return outputs, violations


@functools.partial(jax.jit, static_argnames=("method", "aggregate", "options"))
def assign_credit(
    inputs: CreditInputs, *, method: str, aggregate: Aggregate, options: VictOptions
) -> tuple[CreditOutput, jax.Array]:
    """`assign_many` for one method: its output, and the number of violations, i32[]."""
    outputs, violations = assign_many(inputs, methods=(method,), aggregate=aggregate, options=options)
    return outputs[method], violations
