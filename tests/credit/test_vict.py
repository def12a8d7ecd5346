"""The method as a whole: worked cases, properties, the invariant, composition, options."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.credit import builders
from tests.credit.builders import UNKNOWN, S, U, group, jitted, rollout
from vict_jax.credit.diagnostics import Cause, check_invariant
from vict_jax.credit.options import VictOptions
from vict_jax.credit.vict import add_corrections, outcome_advantages, vict
from vict_jax.types import CreditInputs, CreditOutput, Relation

check = jax.jit(check_invariant)
DEFAULT = VictOptions()


def proofs_of(output: CreditOutput) -> Any:
    assert output.proofs is not None
    return output.proofs


# --- worked cases ---------------------------------------------------------------------------------

# Atoms: 0 acquired, 1 heated (needs 0), 2 placed (needs both). Steps of the first rollout: take, heat, put.
EGG_REQUIRES = {1: [0], 2: [0, 1]}


def egg_group(**changes: Any) -> CreditInputs:
    heated = rollout(1.0, [S, S, S], steps=3, writes=[(0, 0), (1, 1)], commits={2: [2]})
    cold = rollout(0.0, [S, U, U], steps=2, writes=[(0, 0)], commits={1: [2]})
    cooled_again = rollout(0.0, [S, U, U], steps=3, writes=[(0, 0), (1, 1), (2, 1)])
    only_seen = rollout(0.0, [U, U, U], steps=2, reveals=[(0, 0)])
    rollouts = [heated, cold, cooled_again, only_seen, only_seen, only_seen]
    return group(rollouts, weight=[1, 1, 1], requires=EGG_REQUIRES, **changes)


# n = 6, one success: A = 5/6 / sqrt(1/6) and -1/6 / sqrt(1/6). Atom 0: three +1, three -1, median 0,
# std sqrt(6/5). Atoms 1 and 2: one +1 and one -1, std sqrt(2). |A_vict|: 6 x 0.91287, 3 x 0.70711,
# 2 x 0.35355, median 0.91287. |A_base|: 11 x 0.40825, 3 x 2.04124; median 0.40825, 0.95-quantile 2.04124.
HIGH, LOW, ATOM0, PAIR = 2.041241, -0.408248, 0.912871, 0.707107
LAMBDA = 0.5 * 0.408248 / 0.912871


def test_egg_heated_and_placed_is_credited_and_cold_placement_is_blamed() -> None:
    output = jitted()(egg_group())
    proofs = proofs_of(output)
    np.testing.assert_array_equal(
        proofs.marginal[0], [[1, 1, 1], [1, -1, -1], [1, -1, -1], *[[-1, -1, -1]] * 3]
    )
    expected = np.zeros((6, 3))
    expected[0] = [ATOM0, PAIR, PAIR]
    expected[1] = [ATOM0, -PAIR, 0]
    expected[2] = [ATOM0, -PAIR / 2, -PAIR / 2]
    expected[3:, 0] = -ATOM0
    np.testing.assert_allclose(output.lambda_, LAMBDA, rtol=1e-4)
    np.testing.assert_allclose(output.clip, HIGH, rtol=1e-4)
    np.testing.assert_allclose(output.correction[0], LAMBDA * expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(output.advantages[0, 0], HIGH + LAMBDA * expected[0], rtol=1e-4)
    np.testing.assert_allclose(
        output.advantages[0, 1], [LOW + LAMBDA * ATOM0, LOW - LAMBDA * PAIR, 0], rtol=1e-4
    )
    assert int(check(egg_group(), output)) == 0


def test_figures_of_the_egg_group() -> None:
    figures = {k: float(v) for k, v in jitted()(egg_group()).diagnostics.items()}
    expected = {
        "reconstruction": 1.0,
        "eligibility": 1.0,
        "proof_coverage": 10 / 18,  # 18 marginals; edges: 3 + 2 + 2 + 3 x 1
        "abstention": 0.0,
        "trigger": 1.0,
        "sparsity": 11 / 14,
        "core_size_mean": 3.0,
        "core_size_std": 0.0,
        "budget_hit": 0.0,
        "usable_atoms": 3.0,
        "atom_abstention/no_proof_support": 8 / 18,
        "dead_groups": 0.0,
    }
    for name, value in expected.items():
        np.testing.assert_allclose(figures[name], value, rtol=1e-5, err_msg=name)


def test_right_colour_and_size_of_the_wrong_product() -> None:
    """Atoms: 0 product type (gates the score), 1 colour, 2 size; one click each."""
    steps = [(0, 0), (1, 1), (2, 2)]
    rollouts = [
        rollout(1.0, [S, S, S], steps=3, writes=steps),
        rollout(0.0, [U, S, S], steps=3, writes=steps),
        rollout(0.0, [S, U, U], steps=3, writes=steps),
        rollout(0.0, [U, U, U], steps=3, writes=steps),
    ]
    inputs = group(rollouts, weight=[0, 0.5, 0.5], gate=[True, False, False])
    output = jitted("vict", "multiplicative")(inputs)
    np.testing.assert_array_equal(proofs_of(output).marginal[0, 1], [-1, 0.5, 0.5])
    assert (np.sign(output.correction[0, 1]) == [-1, 1, 1]).all()
    assert (np.sign(output.correction[0, 2]) == [1, -1, -1]).all()


def test_literal_rule_credits_one_atom_of_a_conjunction() -> None:
    paper = VictOptions(core="greedy", marginals="literal")
    proofs = proofs_of(jitted("vict", "conjunctive", paper)(egg_group()))
    np.testing.assert_array_equal(proofs.core[0, 0], [True, False, False])


# --- causes ---------------------------------------------------------------------------------------


def cause_of(inputs: CreditInputs, i: int = 0, options: VictOptions = DEFAULT) -> Cause:
    return Cause(int(proofs_of(jitted("vict", "conjunctive", options)(inputs)).cause[0, i]))


def test_task_that_does_not_conform_gets_no_correction() -> None:
    inputs = egg_group(conforming=False)
    output = jitted()(inputs)
    assert cause_of(inputs) == Cause.CONFORMANCE
    np.testing.assert_array_equal(output.correction, np.zeros((1, 6, 3)))
    assert float(output.lambda_) == 0.0
    np.testing.assert_allclose(output.advantages[0, 0], [HIGH] * 3, rtol=1e-4)


def test_no_usable_atom_is_a_failed_conformance() -> None:
    inputs = egg_group(usable=[False] * 3)
    assert cause_of(inputs) == Cause.CONFORMANCE
    assert not np.asarray(jitted()(inputs).correction).any()


def test_masked_family_gets_nothing_and_the_rest_is_credited() -> None:
    output = jitted()(egg_group(usable=[True, False, True]))
    assert not np.asarray(proofs_of(output).contribution[..., 1, :]).any()
    assert (np.asarray(output.correction[0, 0]) != 0).tolist() == [True, False, True]


def test_inconsistent_record_is_not_credited() -> None:
    inputs = egg_group()
    broken = dataclasses.replace(inputs, status=inputs.status.at[0, 1, 2:, 2].set(S))  # placed, never heated
    assert cause_of(broken, 1) == Cause.INCONSISTENT_RECORD
    output = jitted()(broken)
    np.testing.assert_array_equal(output.correction[0, 1], [0, 0, 0])
    assert int(check(broken, output)) == 0
    assert int(check(broken, jitted()(inputs))) == 2


def test_unknown_evidence_abstains() -> None:
    inputs = egg_group()
    unknown = dataclasses.replace(inputs, status=inputs.status.at[0, 3, 2:, 0].set(UNKNOWN))
    proofs = proofs_of(jitted()(unknown))
    assert int(proofs.atom_cause[0, 3, 0]) == Cause.UNKNOWN_EVIDENCE
    assert float(proofs.marginal[0, 3, 0]) == 0.0
    assert not np.asarray(proofs.contribution[0, 3]).any()


def test_group_without_spread_is_a_near_tie() -> None:
    inputs = group([rollout(1.0, [S], steps=1, writes=[(0, 0)])] * 3, weight=[1])
    assert cause_of(inputs) == Cause.NEAR_TIE


def test_atom_with_the_same_marginal_everywhere_has_zero_scale() -> None:
    """Both took the egg; one finished. Acquisition says nothing within this group."""
    taken = [(0, 0)]
    rollouts = [
        rollout(1.0, [S, S], steps=1, writes=taken),
        rollout(0.0, [S, U], steps=1, writes=taken),
    ]
    proofs = proofs_of(jitted()(group(rollouts, weight=[1, 1], requires={1: [0]})))
    np.testing.assert_array_equal(proofs.atom_cause[0], [[Cause.ZERO_SCALE, Cause.NO_PROOF_SUPPORT]] * 2)
    np.testing.assert_array_equal(proofs.cause[0], [Cause.ZERO_SCALE] * 2)


def test_a_masked_atom_that_the_core_needs_does_not_hide_the_cause() -> None:
    """It stands in the core because the usable one requires it, and cannot be credited itself."""
    rollouts = [
        rollout(1.0, [S, S], steps=1, writes=[(0, 0)]),
        rollout(0.0, [S, U], steps=1, writes=[(0, 0)]),
    ]
    proofs = proofs_of(jitted()(group(rollouts, weight=[1, 1], requires={1: [0]}, usable=[False, True])))
    np.testing.assert_array_equal(proofs.core[0], [[True, True]] * 2)
    np.testing.assert_array_equal(proofs.cause[0], [Cause.NO_PROOF_SUPPORT] * 2)


# --- properties -----------------------------------------------------------------------------------

SEEDS = range(8)
EXACT = VictOptions(gamma_rho=0.93, eps_q=0.047)


def random_batch(seed: int) -> CreditInputs:
    return builders.random_inputs(seed, groups=6, aggregate="weighted_sum", exact_params=True)


def run(inputs: CreditInputs) -> CreditOutput:
    return jitted("vict", "weighted_sum", EXACT)(inputs)


@pytest.mark.parametrize("seed", SEEDS)
def test_groups_meet_only_in_lambda_and_c(seed: int) -> None:
    inputs, other = random_batch(seed), random_batch(seed + 100)
    mixed = jax.tree.map(lambda a, b: np.concatenate([a[:3], b[3:]]), inputs, other)
    plain, output = run(inputs), run(mixed)
    for a, b in zip(jax.tree.leaves(plain.proofs), jax.tree.leaves(output.proofs), strict=True):
        np.testing.assert_array_equal(a[:3], b[:3])
    np.testing.assert_array_equal(plain.base[:3], output.base[:3])


def test_jitted_equals_unjitted() -> None:
    inputs = egg_group()
    plain, output = vict(inputs, builders.conjunctive, DEFAULT), jitted()(inputs)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), plain, output)


# --- the invariant --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tamper", "violations"),
    [
        (lambda o: {"correction": o.correction.at[0, 3, 1].set(0.1)}, 1),  # looked around: no edge
        (lambda o: {"correction": o.correction.at[0, 1, 2].set(0.1)}, 1),  # a padded step
        (lambda o: {"advantages": o.advantages.at[0, 3, 1].set(9.0)}, 1),  # changed without saying so
        (lambda o: {"correction": o.correction.at[0, 0, 0].set(jnp.nan)}, 1),
        (lambda o: {"proofs": dataclasses.replace(o.proofs, core=jnp.zeros_like(o.proofs.core))}, 11),
        (lambda o: {"proofs": dataclasses.replace(o.proofs, marginal=o.proofs.marginal * 0)}, 11),
        (lambda o: {"proofs": dataclasses.replace(o.proofs, witness=o.proofs.witness & False)}, 11),
        (lambda o: {"proofs": None}, 11),
        (lambda o: {}, 0),
    ],
)
def test_check_counts_every_unproved_correction(tamper: Any, violations: int) -> None:
    inputs = egg_group()
    output = jitted()(inputs)
    assert int(check(inputs, dataclasses.replace(output, **tamper(output)))) == violations


def test_check_reads_the_raw_record_not_the_claimed_edges() -> None:
    inputs = egg_group()
    output = jitted()(inputs)
    assert int(check(dataclasses.replace(inputs, evidence=inputs.evidence * 0 + 1), output)) == 9
    assert int(check(dataclasses.replace(inputs, commits=inputs.commits & False), output)) == 2
    assert int(check(dataclasses.replace(inputs, conforming=inputs.conforming & False), output)) == 11
    assert int(check(dataclasses.replace(inputs, usable=inputs.usable & False), output)) == 11


@pytest.mark.parametrize("method", ["grpo", "rloo", "dr_grpo"])
def test_outcome_methods_pass_the_check(method: str) -> None:
    inputs = egg_group()
    assert int(check(inputs, jitted(method)(inputs))) == 0


# --- composition, options, inputs -----------------------------------------------------------------


def test_composition_takes_lambda_and_c_from_the_other_method_and_q_from_the_outcome() -> None:
    """Eq. 10: ten times the step advantages give ten times lambda and c, and the same proofs."""
    inputs = egg_group()
    outcome, scale = outcome_advantages(inputs, DEFAULT)
    steps = outcome[..., None] * jnp.array([10.0, 10.0, 10.0])

    @jax.jit
    def composed(inputs: CreditInputs) -> CreditOutput:
        return add_corrections(
            inputs, builders.conjunctive, DEFAULT, step_advantages=steps, outcome=outcome, scale=scale
        )

    output, alone = composed(inputs), jitted()(inputs)
    np.testing.assert_allclose(output.lambda_, 10 * alone.lambda_, rtol=1e-5)
    np.testing.assert_allclose(output.clip, 10 * alone.clip, rtol=1e-5)
    np.testing.assert_allclose(output.correction, 10 * alone.correction, rtol=1e-5, atol=1e-6)
    jax.tree.map(np.testing.assert_array_equal, output.proofs, alone.proofs)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"base": "gae"}, r"base='gae' is not allowed: one of \['dr_grpo', 'grpo', 'grpo_rows', "),
        ({"core": "all"}, "core='all'"),
        ({"marginals": "signed"}, "marginals='signed'"),
        ({"scale": "var"}, "scale='var'"),
        ({"center": "mode"}, "center='mode'"),
        ({"gamma_rho": -1.0}, "gamma_rho=-1.0 is not allowed"),
        ({"eps_q": float("nan")}, "eps_q=nan"),
        ({"gamma_lambda": float("inf")}, "gamma_lambda=inf"),
        ({"smoothing": -1e-6}, "smoothing"),
        ({"eps": 0.0}, "eps=0.0 is not allowed: a finite number above 0"),
        ({"clip_quantile": 1.5}, "clip_quantile=1.5"),
        ({"budget": 0}, "budget=0 is not allowed: 1 or more"),
    ],
)
def test_options_name_what_is_allowed(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        VictOptions(**change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"score": jnp.zeros((1, 6), jnp.int32)},
            r"CreditInputs.score is int32\[1, 6\], expected float32\[1, 6\]",
        ),
        ({"status": jnp.zeros((1, 6, 3, 3), jnp.int8)}, r"status is int8\[1, 6, 3, 3\], expected .*4, 3\]"),
    ],
)
def test_inputs_of_a_wrong_type_or_shape_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        vict(dataclasses.replace(egg_group(), **change), builders.conjunctive, DEFAULT)


def test_every_relation_can_carry_credit() -> None:
    """One atom, one edge of each kind in the failed rollout; the other three rollouts give the spread."""
    mixed = rollout(0.0, [builders.V], steps=4, writes=[(0, 0)], reveals=[(1, 0)], commits={2: [0]})
    mixed["status"][3, 0], mixed["status"][4, 0] = U, builders.V
    done = rollout(1.0, [S], steps=1, writes=[(0, 0)])
    inputs = group([mixed, done], weight=[1], irreversible=[True])
    output = jitted()(inputs)
    contribution = np.asarray(proofs_of(output).contribution[0, 0])
    for t, relation in enumerate((Relation.WRITE, Relation.REVEAL, Relation.COMMIT, Relation.VIOLATE)):
        np.testing.assert_allclose(contribution[t, 0, relation], -PAIR / 4, rtol=1e-4)
    assert int(check(inputs, output)) == 0
