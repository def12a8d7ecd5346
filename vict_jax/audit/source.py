"""What an audit looks at: batches of rollouts as arrays, and the setting in which credit sees them."""

from __future__ import annotations

import dataclasses
from typing import Any

from envs.base import Domain
from vict_jax.batching import to_device, to_host
from vict_jax.credit.assign import assign_credit
from vict_jax.credit.options import VictOptions
from vict_jax.sharding import make_mesh, replicated
from vict_jax.types import CreditInputs, CreditOutput


@dataclasses.dataclass(frozen=True)
class Setting:
    """An environment and a credit method.

    Attributes:
      env_options: of the environment. method: a key of the table of credit methods.
    """

    domain: Domain
    env_options: Any
    method: str
    options: VictOptions


@dataclasses.dataclass(frozen=True)
class Batch:
    """The rollouts of one update, NumPy arrays."""

    update: int
    inputs: CreditInputs


def on_device(inputs: CreditInputs) -> CreditInputs:
    """The arrays on the device, whole on each."""
    return to_device(inputs, replicated(make_mesh()))


def credit(
    setting: Setting, inputs: CreditInputs, options: VictOptions | None = None
) -> tuple[CreditOutput, int]:
    """Credit of one batch in NumPy arrays, and how many of its corrections Eq. 8 does not allow.

    Args:
      options: in place of the setting's own.
    """
    result = assign_credit(
        on_device(inputs),
        method=setting.method,
        aggregate=setting.domain.aggregate,
        options=setting.options if options is None else options,
    )
    output, violations = to_host(result)
    return output, int(violations)
