"""One compiled call for an update's credit: the method named by the config, checked against Eq. 8."""

from __future__ import annotations

import functools

import jax

from vict_jax.credit.diagnostics import check_invariant
from vict_jax.credit.vict import METHODS, VictOptions
from vict_jax.types import Aggregate, CreditInputs, CreditOutput


class InvariantError(ArithmeticError):
    """A correction without its proof: a bug, never a property of the data."""


@functools.partial(jax.jit, static_argnames=("method", "aggregate", "options"))
def assign_credit(
    inputs: CreditInputs, *, method: str, aggregate: Aggregate, options: VictOptions
) -> tuple[CreditOutput, jax.Array]:
    """Credit of one update batch, and the number of actions (i32[]) that break the invariant.

    Args:
      method: a key of `METHODS`.
      aggregate: F_x of the domain.
    """
    output = METHODS[method](inputs, aggregate, options)
    return output, check_invariant(inputs, output)
