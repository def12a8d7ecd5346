"""The exhaustive search against sets in plain Python, and the comparison of the rules with it."""

from __future__ import annotations

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.alfworld.domain import DOMAIN
from tests.credit.builders import AGGREGATES, S, U, group, rollout
from vict_jax.audit.cores import MOST_ATOMS, all_subsets, compare_cores, exhaustive_core
from vict_jax.audit.source import Batch, Setting
from vict_jax.credit.cores import greedy_core
from vict_jax.credit.options import VictOptions


def smallest(score, satisfied, q, rho, requires, usable):
    """The core as the definition says it, over sets of indices; None if there is none."""
    atoms = range(len(usable))

    def closure(some):
        return {k for j in some for k in atoms if requires[j, k]}

    def delta(some):
        if q > 0:
            left = {k for k in satisfied if not any(requires[k, j] for j in some)}
            return score(satisfied) - score(left)
        return score(satisfied | closure(some)) - score(satisfied)

    candidates = [j for j in atoms if usable[j]]
    found = []
    for size in range(1, len(candidates) + 1):
        for some in itertools.combinations(candidates, size):
            closed = closure(some)
            if {j for j in closed if usable[j]} == set(some) and delta(closed) >= rho:
                found.append((len(closed), some, closed))
    return min(found)[2] if found else None


@pytest.mark.parametrize("name", sorted(AGGREGATES))
@pytest.mark.parametrize("side", [1.0, -1.0])
def test_the_search_is_the_definition(name, side):
    """Random verifiers of five atoms, some unusable, some with requirements; scores are sums of eighths, so
    that float32 and Python agree on every threshold."""
    aggregate, atoms = AGGREGATES[name], 5
    rng = np.random.default_rng(len(name))
    subsets, found = jnp.asarray(all_subsets(atoms)), []

    @jax.jit
    def search(satisfied, rho, requires, usable, params):
        def score(held):
            return jnp.asarray(aggregate(held, params), jnp.float32)

        return exhaustive_core(
            score, satisfied, jnp.float32(side), rho, requires=requires, usable=usable, subsets=subsets
        )

    for _ in range(60):
        requires = np.tril(rng.random((atoms, atoms)) < 0.25, -1) | np.eye(atoms, dtype=bool)
        for k in range(atoms):
            requires |= requires[:, k : k + 1] & requires[k : k + 1]
        order = rng.permutation(atoms)
        requires, usable = requires[order][:, order], rng.random(atoms) < 0.8
        params = {
            "weight": rng.choice([0.0, 0.125, 0.25, 0.5], atoms).astype(np.float32),
            "gate": rng.random(atoms) < 0.3,
        }
        satisfied, rho = rng.random(atoms) < 0.6, float(rng.choice([0.125, 0.25, 0.5, 1.0]))

        def score(some, params=params):
            held = np.array([j in some for j in range(atoms)])
            return float(np.asarray(aggregate(held, params), np.float32))

        expected = smallest(score, set(np.flatnonzero(satisfied)), side, rho, requires, usable)
        core = search(satisfied, np.float32(rho), requires, usable, params)
        assert set(np.flatnonzero(core.atoms).tolist()) == (expected or set())
        found.append(expected)
    assert any(found)
    assert not all(found)


def test_all_subsets_are_ordered_by_size_and_then_by_index():
    rows = all_subsets(4)
    keys = [(int(row.sum()), np.flatnonzero(row).tolist()) for row in rows]
    assert keys == sorted(keys)
    assert len({tuple(row) for row in rows.tolist()}) == 16
    for atoms in (0, MOST_ATOMS + 1):
        with pytest.raises(ValueError, match=f"atoms={atoms} must be from 1 to 12"):
            all_subsets(atoms)


def compared(batch, aggregate="conjunctive", **options):
    domain = dataclasses.replace(DOMAIN, aggregate=AGGREGATES[aggregate])
    setting = Setting(domain, None, "vict", VictOptions(**options))
    return compare_cores(setting, [Batch(1, jax.tree.map(np.asarray, batch))])


def two_rollouts(weight):
    """A winner that writes every atom in a step of its own, and a loser without any."""
    atoms = len(weight)
    writes = [(j, j) for j in range(atoms)]
    won = rollout(1.0, [S] * atoms, steps=atoms, writes=writes)
    lost = rollout(0.0, [U] * atoms, steps=atoms)
    return group([won, lost], weight=weight)


def test_conjunction_one_atom_is_enough_and_the_complete_core_has_all():
    """The winner's smallest core is its first atom; the complete one credits every writer."""
    report = compared(two_rollouts([1.0, 1.0, 1.0]), base="dr_grpo")
    assert (report.rollouts, report.skipped, report.found) == (2, 0, 2)
    assert report.mean_size == 2.0  # one atom for the winner, all three to repair the loser
    greedy, complete = report.rules["greedy"], report.rules["complete"]
    assert (greedy.accepted, greedy.both) == (2, 2)
    assert (greedy.minimal, greedy.same_actions, greedy.overlap) == (1.0, 1.0, 1.0)
    assert complete.mean_size == 3.0
    assert complete.minimal == 0.5
    # The loser has no edge, so both sets are empty there; of the winner's three actions one is in common.
    assert complete.same_actions == 0.5
    assert complete.overlap == pytest.approx((1 / 3 + 1) / 2)


def test_greedy_is_not_always_minimal():
    """Six things to cover: the largest set leaves one at each end, the two best halves leave none."""
    covers = np.array(
        [
            [0, 1, 1, 1, 1, 0],
            [1, 0, 0, 0, 0, 0],
            [0, 0, 0, 0, 0, 1],
            [1, 1, 1, 0, 0, 0],
            [0, 0, 0, 1, 1, 1],
        ],
        bool,
    )

    @jax.jit
    def both():
        def score(held):
            return jnp.sum(jnp.any(held[:, None] & covers, axis=0)).astype(jnp.float32)

        case = {"requires": jnp.eye(5, dtype=bool), "usable": jnp.ones(5, bool)}
        start = (score, jnp.zeros(5, bool), jnp.float32(-1), jnp.float32(6))
        return (
            greedy_core(*start, eta=jnp.float32(0), budget=8, **case),
            exhaustive_core(*start, subsets=jnp.asarray(all_subsets(5)), **case),
        )

    greedy, least = both()
    assert greedy.atoms.tolist() == [True, True, True, False, False]
    assert least.atoms.tolist() == [False, False, False, True, True]
    assert greedy.delta == least.delta == 6.0


def test_rollouts_with_more_atoms_are_left_out_and_counted():
    small, large = 12, 13
    report = compared(two_rollouts([1.0] * large), base="dr_grpo")
    assert (report.rollouts, report.skipped, report.found) == (2, 2, 0)
    assert report.rules["greedy"].both == 0
    assert report.rules["greedy"].minimal is None
    assert "2 left out" in report.text()
    report = compared(two_rollouts([1.0] * small), base="dr_grpo")
    assert (report.skipped, report.found) == (0, 2)


def test_rollouts_that_credit_does_not_admit_are_not_compared():
    batch = two_rollouts([1.0, 1.0])
    assert compared(dataclasses.replace(batch, conforming=np.array([False]))).rollouts == 0
    assert compared(batch, eps_q=100.0).rollouts == 0
