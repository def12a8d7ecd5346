"""The table of methods, several at once, and what each is held to."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.credit import builders
from tests.credit.builders import DEFAULT, conjunctive, random_inputs, run_many
from vict_jax.batching import to_device, to_host
from vict_jax.credit.assign import assign_credit, assign_many
from vict_jax.credit.base import BASES
from vict_jax.credit.diagnostics import check_controlled
from vict_jax.credit.methods import METHODS, Claim
from vict_jax.credit.options import VictOptions
from vict_jax.sharding import make_mesh, replicated
from vict_jax.types import CreditInputs

ALL = tuple(METHODS)
check = jax.jit(check_controlled)


def batch() -> CreditInputs:
    return random_inputs(3, groups=2, rollouts=5, exact_params=True)


def test_claims() -> None:
    claims = {claim: {name for name in METHODS if METHODS[name].claim is claim} for claim in Claim}
    assert claims[Claim.OUTCOME] == {"outcome_only", "gae", *BASES}
    assert claims[Claim.PROOF] == {"vict", "commit_only"}
    assert claims[Claim.CONTROL] == set(builders.CONTROLS) - {"commit_only"}


@pytest.mark.parametrize("method", ["vict", "no_core", "outcome_only"])
def test_one_call_gives_what_each_method_gives_alone(method: str) -> None:
    inputs = batch()
    together = run_many(inputs, ALL)[method]
    alone, violations = assign_credit(inputs, method=method, aggregate=conjunctive, options=DEFAULT)
    assert int(violations) == 0
    assert jax.tree.structure(alone) == jax.tree.structure(together)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), alone, together)


def test_every_method_starts_from_the_same_base_and_says_how_much_it_did() -> None:
    outputs = run_many(batch(), ALL)
    for name, output in outputs.items():
        figures = output.diagnostics
        assert {"dead_groups", "groups"} <= set(figures)
        if METHODS[name].base is None and METHODS[name].estimator is None:
            np.testing.assert_array_equal(output.base, outputs["vict"].base)
        if METHODS[name].claim is not Claim.OUTCOME:
            assert {"trigger", "sparsity", "abstention", "lambda", "clip"} <= set(figures)
        assert ("unproved" in figures) == (METHODS[name].claim is Claim.CONTROL)
        assert ("eligibility" in figures) == (METHODS[name].claim is Claim.PROOF)


def test_unknown_methods_are_refused() -> None:
    with pytest.raises(ValueError, match=r"credit method 'ppo' is unknown: allowed are \['commit_only', "):
        assign_many(batch(), methods=("vict", "ppo", "giga"), aggregate=conjunctive, options=DEFAULT)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"proximity_decay": 0.0}, "proximity_decay=0.0 is not allowed: above 0, at most 1"),
        ({"proximity_decay": 1.5}, "proximity_decay=1.5"),
        ({"seed": -1}, r"seed=-1 is not allowed: within \[0, 2\*\*31\)"),
    ],
)
def test_options_of_controls(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        VictOptions(**change)


@pytest.mark.parametrize(
    ("tamper", "violations"),
    [
        (lambda o: {}, 0),
        (lambda o: {"correction": o.correction.at[0, 0, -1].set(0.5)}, 1),  # on padding
        (lambda o: {"correction": o.correction.at[0, 0, 0].set(jnp.nan)}, 1),
        (lambda o: {"advantages": o.advantages.at[0, 0, 0].add(9.0)}, 1),  # changed without saying so
    ],
    ids=["untouched", "on padding", "not finite", "not stated"],
)
def test_a_control_is_held_to_real_steps_and_finite_stated_corrections(tamper: Any, violations: int) -> None:
    inputs = batch()
    length = np.minimum(inputs.step_mask.sum(-1, keepdims=True), 5)
    inputs = dataclasses.replace(inputs, step_mask=np.arange(6) < length)
    output = run_many(inputs, ALL)["dense"]
    assert int(check(inputs, dataclasses.replace(output, **tamper(output)))) == violations


def test_methods_trace_and_run_without_hidden_transfers() -> None:
    """As in training: tables and keys are constants of the program, nothing is sent along silently."""
    inputs = to_device(random_inputs(5, groups=1, rollouts=5), replicated(make_mesh()))
    with jax.transfer_guard("disallow"):
        outputs, violations = to_host(
            assign_many(inputs, methods=builders.CONTROLS, aggregate=conjunctive, options=VictOptions(seed=3))
        )
    assert violations == 0
    assert sorted(outputs) == sorted(builders.CONTROLS)
