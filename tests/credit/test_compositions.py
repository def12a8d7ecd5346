"""VICT on top of other methods (Eq. 10), and those it is refused on."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from tests.credit import builders
from tests.credit.step_builders import played, random_steps
from vict_jax.credit.methods import Claim, credit_method, method_names, needs
from vict_jax.credit.options import VictOptions
from vict_jax.credit.step_options import GigpoOptions, HgpoOptions
from vict_jax.types import CreditInputs, CreditOutput

METHODS = ("gigpo", "salt", "gigpo+vict", "salt+vict")
OPTIONS = VictOptions(gigpo=GigpoOptions(mode="mean"), center="mean")


def batch() -> CreditInputs:
    return random_steps(0, groups=12)


@functools.cache
def outputs() -> dict[str, CreditOutput]:
    return builders.run_many(batch(), METHODS, "weighted_sum", OPTIONS)


@pytest.mark.parametrize("method", ["gigpo", "salt"])
def test_the_method_stays_and_calibrates_what_is_added(method: str) -> None:
    alone, both = outputs()[method], outputs()[f"{method}+vict"]
    np.testing.assert_array_equal(both.base, alone.advantages)
    np.testing.assert_array_equal(both.advantages, np.asarray(both.base) + np.asarray(both.correction))
    real = batch().step_mask & batch().rollout_mask[..., None]
    size = np.abs(np.asarray(alone.advantages))[real]
    a_vict = np.asarray(both.proofs.contribution).sum((-1, -2))
    credited = np.abs(a_vict[real & (np.abs(a_vict) > 1e-6)])
    clip = np.quantile(size[size > 1e-6], 0.95)
    lambda_ = 0.5 * np.median(size[size > 1e-6]) / (np.median(credited) + 1e-6)
    np.testing.assert_allclose(both.clip, clip, rtol=1e-5)
    np.testing.assert_allclose(both.lambda_, lambda_, rtol=1e-4)
    expected = np.where(real & (np.abs(a_vict) > 1e-6), lambda_ * np.clip(a_vict, -clip, clip), 0)
    np.testing.assert_allclose(both.correction, expected, rtol=1e-3, atol=1e-5)
    assert (expected != 0).sum() > 5
    assert {"step_share", "eligibility", "lambda"} <= set(both.diagnostics)


def test_the_calibrations_differ() -> None:
    """Mean mode pays 10: its advantages, and so the corrections on them, are an order larger."""
    assert float(outputs()["gigpo+vict"].lambda_) > 3 * float(outputs()["salt+vict"].lambda_)


def test_a_composition_is_held_to_proofs() -> None:
    for name in ("gigpo+vict", "salt+vict", "grpo+vict", "reinforce_pp+vict"):
        assert credit_method(name, OPTIONS).claim is Claim.PROOF
    assert credit_method("gigpo", OPTIONS).claim is Claim.STEPS


def test_the_side_comes_from_the_outcome_part() -> None:
    """The last step of each rollout wrote the atom: it holds in the winner, it does not in the loser."""
    inputs = played([(1.0, [1, 2, 2, 2, 9]), (0.0, [1, 2, 9])])
    g, n, t = batch().commits.shape
    m, v = batch().binds.shape[1:]
    padded = builders.pad(inputs, groups=g - 1, rollouts=n - 2, steps=t - 4, atoms=m - 1, variables=v - 2)
    output = builders.run_many(padded, METHODS, "weighted_sum", OPTIONS)["gigpo+vict"]
    output = builders.crop(output, inputs)
    correction, causes = np.asarray(output.correction[0]), np.asarray(output.proofs.cause[0])
    assert (causes == 0).all()
    assert correction[0, 3] > 0 > correction[1, 1]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "hgpo+vict",
            r"'hgpo\+vict' is refused: hgpo cannot be composed \(Eq. 10\), its advantage compares the",
        ),
        (
            "gae+vict",
            r"'gae\+vict' is refused: gae cannot be composed \(Eq. 10\), its advantage comes from a",
        ),
        ("vict+vict", "it corrects an outcome advantage itself"),
        ("dense+vict", "it corrects an outcome advantage itself"),
        (
            "gigpo+dense",
            r"'gigpo\+dense' is unknown: allowed are \['commit_only', .*'vict'\], and one of them",
        ),
        ("gigpo+", r"'gigpo\+' is unknown"),
        ("gigpo+vict+vict", "is unknown"),
        ("ppo", "'ppo' is unknown"),
    ],
)
def test_names_that_are_refused(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        credit_method(name, OPTIONS)


def test_what_is_refused_can_depend_on_the_options() -> None:
    options = VictOptions(hgpo=HgpoOptions(base_group=True))
    assert credit_method("hgpo+vict", options).claim is Claim.PROOF


def test_every_name_is_a_method_and_says_what_it_needs() -> None:
    for name in method_names():
        assert credit_method(name, OPTIONS).needs == needs([name], OPTIONS)
    assert needs(["proxmo+vict", "gigpo_similar", "grpo"], OPTIONS) == {"state_terms", "cluster_id"}
    assert needs(["gigpo", "salt", "vict"], OPTIONS) == frozenset()
