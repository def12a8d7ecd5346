"""Counterfactual edits, cores and marginals (Eq. 5, 6, 13), by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax.numpy as jnp
import numpy as np
import pytest

from tests.credit.builders import AGGREGATES, UNKNOWN, S, U, V
from vict_jax.credit import cores
from vict_jax.credit.diagnostics import Cause

EGG: Mapping[int, Sequence[int]] = {1: [0], 2: [0, 1]}  # heated needs acquired, placed needs both


class Case:
    """A terminal record with its verifier."""

    def __init__(
        self,
        aggregate: str,
        weight: Sequence[float],
        status: Sequence[int],
        *,
        requires: Mapping[int, Sequence[int]] | None = None,
        gate: Sequence[bool] | None = None,
        usable: Sequence[bool] | None = None,
    ):
        params = {"weight": jnp.array(weight), "gate": jnp.array(gate or [False] * len(weight))}
        closure = np.eye(len(weight), dtype=bool)
        for j, required in (requires or {}).items():
            closure[j, list(required)] = True
        self.requires = jnp.array(closure)
        self.usable = jnp.array([True] * len(weight) if usable is None else usable)
        self.status = jnp.array(status, jnp.int8)
        self.score = lambda z: jnp.asarray(AGGREGATES[aggregate](z, params), jnp.float32)

    def core(self, name: str, q: int, rho: float, *, eta: float = 0.0, budget: int = 8) -> cores.Core:
        return cores.CORES[name](
            self.score,
            self.status == S,
            jnp.float32(q),
            jnp.float32(rho),
            requires=self.requires,
            usable=self.usable,
            eta=jnp.float32(eta),
            budget=budget,
        )

    def marginals(self, name: str, q: int, atoms: Sequence[int]) -> list[float]:
        mask = jnp.zeros(len(self.usable), bool).at[jnp.array(atoms)].set(True)
        return [
            float(x)
            for x in cores.MARGINALS[name](
                self.score, self.status, jnp.float32(q), mask, requires=self.requires, usable=self.usable
            )
        ]


def atoms(core: cores.Core) -> list[int]:
    return [int(j) for j in np.flatnonzero(core.atoms)]


def why(core: cores.Core, rho: float, eta: float = 0.0) -> Cause:
    return Cause(int(cores.refusal(core, jnp.float32(rho), jnp.float32(eta))))


def test_direction_and_threshold_are_in_score_units() -> None:
    q, rho = cores.direction(jnp.array([1.5, -0.5, 0.04, 0.0]), jnp.float32(0.5), eps_q=0.05, gamma_rho=1.0)
    np.testing.assert_array_equal(q, [1, -1, 0, 0])
    np.testing.assert_allclose(rho[:2], [0.75, 0.25])


def test_remove_takes_dependents_and_repair_brings_requirements() -> None:
    case = Case("conjunctive", [1, 1, 1], [S, S, S], requires=EGG)
    z, one = jnp.array([True, True, True]), jnp.array([False, True, False])
    np.testing.assert_array_equal(cores.remove(z, one, case.requires), [True, False, False])
    np.testing.assert_array_equal(cores.repair(~z, one, case.requires), [True, True, False])


def test_record_is_consistent_only_if_requirements_of_satisfied_atoms_hold() -> None:
    requires = Case("conjunctive", [1, 1, 1], [S, S, S], requires=EGG).requires
    usable = jnp.ones(3, bool)
    assert bool(cores.consistent(jnp.array([True, True, False]), requires, usable))
    assert not bool(cores.consistent(jnp.array([True, False, True]), requires, usable))
    assert bool(cores.consistent(jnp.array([True, False, True]), requires, jnp.array([True, False, True])))


def test_conjunctive_success_needs_every_atom_in_the_complete_core_but_one_in_the_greedy() -> None:
    case = Case("conjunctive", [1, 1, 1], [S, S, S], requires=EGG)
    complete, greedy = case.core("complete", 1, 0.75), case.core("greedy", 1, 0.75)
    assert atoms(complete) == [0, 1, 2]
    assert atoms(greedy) == [0]
    assert float(complete.delta) == float(greedy.delta) == 1.0
    assert why(complete, 0.75) == why(greedy, 0.75) == Cause.NONE
    assert case.marginals("contextual", 1, [0, 1, 2]) == [1, 1, 1]
    assert case.marginals("literal", 1, [0]) == [1, 0, 0]


def test_egg_placed_cold_acquisition_positive_placement_negative() -> None:
    case = Case("conjunctive", [1, 1, 1], [S, U, U], requires=EGG)
    core = case.core("complete", -1, 0.25)
    assert atoms(core) == [0, 1, 2]
    assert float(core.delta) == 1.0
    assert case.marginals("contextual", -1, atoms(core)) == [1, -1, -1]
    # The literal repair of `placed` brings the rest along; the backward pass then needs it to be closed.
    greedy = case.core("greedy", -1, 0.25)
    assert atoms(greedy) == [0, 1, 2]
    assert case.marginals("literal", -1, atoms(greedy)) == [0, 0, 1]


def test_wrong_product_with_right_colour_and_size() -> None:
    case = Case("multiplicative", [0, 0.5, 0.5], [U, S, S], gate=[True, False, False])
    core = case.core("complete", -1, 0.5)
    assert atoms(core) == [0, 1, 2]
    assert case.marginals("contextual", -1, atoms(core)) == [-1, 0.5, 0.5]
    assert atoms(case.core("greedy", -1, 0.5)) == [0]


def test_violated_counts_as_not_satisfied() -> None:
    case = Case("weighted_sum", [0.5, 0.25], [V, S])
    assert case.marginals("contextual", -1, [0, 1]) == [-0.5, 0.25]


def test_disjunctive_success_with_two_grounds_has_no_complete_core() -> None:
    case = Case("disjunctive", [1, 1], [S, S])
    assert why(case.core("complete", 1, 0.5), 0.5) == Cause.NO_CORE
    greedy = case.core("greedy", 1, 0.5)
    assert atoms(greedy) == [0, 1]
    assert why(greedy, 0.5) == Cause.NONE
    assert case.marginals("literal", 1, [0, 1]) == [1, 1]


def test_greedy_adds_the_largest_first_and_drops_what_is_not_needed() -> None:
    """0.25 < rho: takes atom 1 (0.5), then atom 2 (0.375), enough; nothing to drop."""
    case = Case("weighted_sum", [0.25, 0.5, 0.375], [S, S, S])
    assert atoms(case.core("greedy", 1, 0.8)) == [1, 2]
    # Atom 1 brings atom 0 (required): alone enough after the backward pass dropped its dependent.
    case = Case("weighted_sum", [0.25, 0.5], [S, S], requires={1: [0]})
    assert atoms(case.core("greedy", 1, 0.75)) == [0]


def test_greedy_backward_pass_keeps_the_set_closed() -> None:
    """Repairing atom 0 needs atoms 1 and 2; all stay, though the score reads atom 0 only."""
    case = Case("weighted_sum", [1.0, 0.0, 0.0, 0.0], [U, U, U, U], requires={0: [1, 2]})
    assert atoms(case.core("greedy", -1, 0.5)) == [0, 1, 2]


def test_ties_go_to_the_lowest_index() -> None:
    case = Case("weighted_sum", [0.25, 0.5, 0.5], [S, S, S])
    assert atoms(case.core("greedy", 1, 0.4)) == [1]
    assert atoms(case.core("complete", 1, 0.4, budget=1)) == [1]


@pytest.mark.parametrize("q", [1, -1])
def test_budget_of_the_greedy_core(q: int) -> None:
    case = Case("weighted_sum", [0.25] * 4, [S if q > 0 else U] * 4)
    short, enough = case.core("greedy", q, 0.75, budget=2), case.core("greedy", q, 0.75, budget=3)
    assert bool(short.budget_hit)
    assert why(short, 0.75) == Cause.BUDGET
    assert not bool(enough.budget_hit)
    assert why(enough, 0.75) == Cause.NONE
    everything = case.core("greedy", q, 1.5, budget=8)
    assert not bool(everything.budget_hit)
    assert why(everything, 1.5) == Cause.NO_CORE


def test_budget_of_the_complete_core_keeps_the_largest_and_is_recorded() -> None:
    case = Case("weighted_sum", [0.125, 0.5, 0.25], [S, S, S])
    core = case.core("complete", 1, 0.6, budget=2)
    assert atoms(core) == [1, 2]
    assert bool(core.budget_hit)
    assert why(core, 0.6) == Cause.NONE
    assert why(core, 0.8) == Cause.BUDGET


def test_complete_core_is_closed_even_over_budget() -> None:
    case = Case("weighted_sum", [0.0, 0.0, 1.0], [S, S, S], requires={2: [0, 1]})
    core = case.core("complete", 1, 0.5, budget=1)
    assert atoms(core) == [0]  # all three effects are 1; the lowest index stays
    case = Case("weighted_sum", [0.0, 0.0, 1.0], [S, S, S], requires={0: [1, 2]})
    assert atoms(case.core("complete", 1, 0.5, budget=1)) == [2]
    case = Case("weighted_sum", [1.0, 0.0, 0.0], [U, U, U], requires={0: [1, 2]})
    assert atoms(case.core("complete", -1, 0.5, budget=1)) == [0, 1, 2]


def test_effects_within_the_tolerance_are_not_load_bearing() -> None:
    case = Case("weighted_sum", [0.5, 0.125], [S, S])
    assert atoms(case.core("complete", 1, 0.2, eta=0.0)) == [0, 1]
    assert atoms(case.core("complete", 1, 0.2, eta=0.0625)) == [0]


def test_uncertainty_band_is_two_eta_and_vanishes_when_exact() -> None:
    core = Case("weighted_sum", [0.5], [S]).core("complete", 1, 0.5)
    assert why(core, 0.5, eta=0.0) == Cause.NONE
    assert why(core, 0.5, eta=0.0625) == Cause.UNCERTAINTY_BAND
    assert why(core, 0.375, eta=0.0625) == Cause.UNCERTAINTY_BAND
    assert why(core, 0.3, eta=0.0625) == Cause.NONE
    assert why(core, 0.625, eta=0.0625) == Cause.UNCERTAINTY_BAND
    assert why(core, 0.7, eta=0.0625) == Cause.NO_CORE


def test_unusable_atoms_are_no_candidates_but_stay_in_the_score() -> None:
    case = Case("conjunctive", [1, 1], [S, S], usable=[True, False])
    assert atoms(case.core("complete", 1, 0.5)) == [0]
    case = Case("conjunctive", [1, 1], [U, U], usable=[True, False])
    assert why(case.core("complete", -1, 0.5), 0.5) == Cause.NO_CORE


def test_unknown_is_repaired_like_unsatisfied() -> None:
    case = Case("conjunctive", [1, 1], [UNKNOWN, S])
    core = case.core("complete", -1, 0.5)
    assert atoms(core) == [0, 1]
    assert why(core, 0.5) == Cause.NONE
