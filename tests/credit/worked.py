"""What the worked cases share: one verifier of all kinds and one padded shape, so little is compiled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from tests.credit import builders
from vict_jax.credit.assign import assign_credit
from vict_jax.credit.options import VictOptions
from vict_jax.types import CreditInputs, CreditOutput

COMPLETE = VictOptions()
LITERAL = VictOptions(core="greedy", marginals="literal")
CONJUNCTION, SUM, PRODUCT, EITHER = range(4)
ROLLOUTS, STEPS, ATOMS = 6, 4, 4


def verifier(satisfied: Any, params: Mapping[str, Any]) -> Any:
    """F by `kind`: all of the weighted atoms; their sum; gates times their sum; (0 or 1) and 2."""
    values = [
        builders.conjunctive(satisfied, params),
        builders.weighted_sum(satisfied, params),
        builders.multiplicative(satisfied, params),
        (satisfied[0] | satisfied[1]) & satisfied[2],
    ]
    return jnp.stack([jnp.asarray(value, jnp.float32) for value in values])[params["kind"].max()]


def run(inputs: CreditInputs, options: VictOptions) -> CreditOutput:
    output, violations = assign_credit(inputs, method="vict", aggregate=verifier, options=options)
    assert int(violations) == 0
    return output


def close(actual: Any, expected: Any) -> None:
    np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=2e-6)
