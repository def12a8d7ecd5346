"""The step-level methods against loops, in worked cases, and where there is nothing to compare."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
import pytest

from tests.credit import builders, step_oracle
from tests.credit.step_builders import NAMES, fill, played, random_steps, run
from vict_jax.credit.assign import assign_many
from vict_jax.credit.diagnostics import check_placed
from vict_jax.credit.methods import STEP_METHODS, Claim
from vict_jax.credit.options import VictOptions
from vict_jax.credit.step_options import (
    GigpoOptions,
    GraphGpoOptions,
    HcapoOptions,
    HgpoOptions,
    ProxmoOptions,
    RewardFlowOptions,
    StepOptions,
    TrcaOptions,
)
from vict_jax.credit.step_proximity import modulation, soft_baseline
from vict_jax.types import CreditInputs, CreditOutput

# --- against the loops ----------------------------------------------------------------------------

LN2 = float(np.log(2))
VARIANTS = {
    "defaults": VictOptions(),
    "means": VictOptions(
        base="dr_grpo",
        gigpo=GigpoOptions(mode="mean"),
        hgpo=HgpoOptions(mode="mean"),
        graphgpo=GraphGpoOptions(mode="mean"),
        rewardflow=RewardFlowOptions(gamma=0.5, omega=2.0),
        proxmo=ProxmoOptions(temperature=0.5 / LN2, modulation=0.0),
        trca=TrcaOptions(mode="mean"),
        hcapo=HcapoOptions(smoothing=0.5),
    ),
    "rows": VictOptions(
        steps=StepOptions(pay=3.0, rows=True, success_only=True),
        hgpo=HgpoOptions(mode="mean", gamma=0.75, history=3, alpha=0.5, base_group=True),
        graphgpo=GraphGpoOptions(omega=2.0, gamma=0.5),
        rewardflow=RewardFlowOptions(mode="mean_std", omega=0.5, gamma=0.5),
        proxmo=ProxmoOptions(omega=2.0, gamma=0.5, temperature=0.5, modulation=1.0, steepness=2.0),
        trca=TrcaOptions(omega=2.0, gamma=0.5, breakthrough=0.25, evidence=2.0, invalidity=-0.5),
        hcapo=HcapoOptions(omega=2.0, gamma=0.5, temperature=2.0, rho_low=0.5, rho_high=2.0),
    ),
}
SEEDS = range(5)


@functools.cache
def outputs(seed: int, variant: str) -> dict[str, CreditOutput]:
    return run(random_steps(seed), VARIANTS[variant])


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("method", NAMES)
def test_methods_equal_the_loops(method: str, variant: str) -> None:
    moved = 0
    for seed in SEEDS:
        inputs, output = random_steps(seed), outputs(seed, variant)[method]
        expected = step_oracle.advantages(method, inputs, VARIANTS[variant])
        np.testing.assert_allclose(output.advantages, expected, rtol=2e-4, atol=2e-4)
        np.testing.assert_array_equal(output.base, output.advantages)
        within = np.where(inputs.step_mask, expected, np.nan)
        moved += int((np.nanmax(within, -1) - np.nanmin(within, -1) > 1e-3).sum())
    assert moved > 20


# --- worked cases ---------------------------------------------------------------------------------


def one(inputs: CreditInputs, method: str, variant: str = "defaults") -> np.ndarray:
    return np.asarray(run(inputs, VARIANTS[variant])[method].advantages[0])


def gigpo_case() -> CreditInputs:
    """a visits s0, s1 and wins; b visits s0, s0 and fails."""
    return played([(1.0, [1, 2, 3]), (0.0, [1, 1, 4])])


@pytest.mark.parametrize("method", ["gigpo", "gigpo_similar"])
def test_gigpo_mean(method: str) -> None:
    found = one(gigpo_case(), method, "means")
    np.testing.assert_allclose(found, [[11.333333, 5.0], [-8.166667, -8.166667]], rtol=1e-6)


def test_gigpo_mean_std() -> None:
    """With row-counting episode statistics as in the paper's code, and with each rollout counted once."""
    rows = one(gigpo_case(), "gigpo", "rows")
    np.testing.assert_allclose(rows, [[2.020725, 0.866025], [-1.443375, -1.443375]], rtol=1e-5)
    once = one(gigpo_case(), "gigpo")
    expected = [[1.154700 + 0.707107, 0.707107], [-0.577350 - 0.707107, -0.577350 - 0.707107]]
    np.testing.assert_allclose(once, expected, rtol=1e-5)


def test_gigpo_compares_a_rollout_that_is_alone_with_itself_where_it_comes_back() -> None:
    found = one(played([(1.0, [1, 2, 1, 9])]), "gigpo", "means")
    np.testing.assert_allclose(found, [[(9.025 - 10) / 2, 0.0, (10 - 9.025) / 2]], rtol=1e-5)


def test_gigpo_clusters_count_as_one_observation() -> None:
    inputs = dataclasses.replace(gigpo_case(), cluster_id=np.array([[[1, 1], [1, 1]]], np.int32))
    found = one(inputs, "gigpo_similar", "means")
    mean = (9.5 + 10) / 4
    expected = [[5 + 9.5 - mean, 5 + 10 - mean], [-5 - mean, -5 - mean]]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_salt() -> None:
    """Outcome advantages (+1, +1, -2); rollouts 1 and 3 share an edge."""
    inputs = played(
        [(2.0, [1, 2, 3]), (2.0, [1, 2, 4]), (-1.0, [1, 2, 5])],
        actions=[[7, 1], [8, 1], [7, 1]],
    )
    found = one(inputs, "salt", "means")
    np.testing.assert_allclose(found, [[-0.5, 1.0], [1.0, 1.0], [-0.5, -2.0]], rtol=1e-6)


def test_salt_counts_a_rollout_once_however_often_it_repeats_a_transition() -> None:
    inputs = played([(1.0, [1, 1, 2]), (0.0, [1, 1, 1, 1, 3])], actions=[[7, 8], [7, 7, 7, 8]])
    found = one(inputs, "salt", "means")
    np.testing.assert_allclose(found, [[0.0, 0.5, 0.0, 0.0], [0.0, 0.0, 0.0, -0.5]], atol=1e-7)
    alone = played([(1.0, [1, 2]), (0.0, [1, 1, 1, 1])], actions=[[7], [7, 7, 7]])
    np.testing.assert_allclose(one(alone, "salt", "means"), [[0.5, 0, 0], [-0.5, -0.5, -0.5]], atol=1e-7)


def test_salt_takes_no_rounding_of_a_mean_for_a_step_part() -> None:
    """Three equal outcome advantages whose float32 mean is another number by a last bit."""
    inputs = played([*[(0.9, [1, 2, 3])] * 3, *[(0.2, [4, 5, 6])] * 3])
    output = run(inputs, VARIANTS["means"])["salt"]
    own = np.asarray(output.advantages[0, 0, 0])
    assert (own + own + own) / np.float32(3) != own
    np.testing.assert_array_equal(output.advantages[0, :3], own)
    assert float(output.diagnostics["step_share"]) == 0.0


def test_graphgpo() -> None:
    """Edges s0 -> s1 -> goal (a) and s0 -> s0 (b): step returns (1, 10) and 0.1."""
    inputs = played([(1.0, [1, 2, 3]), (0.0, [1, 1])])
    found = one(inputs, "graphgpo", "means")
    np.testing.assert_allclose(found, [[5 + 0.45, 5.0], [-5 - 0.45, 0.0]], rtol=1e-6)
    scaled = one(inputs, "graphgpo")
    np.testing.assert_allclose(scaled, [[2 * 0.707107, 0.707107], [-2 * 0.707107, 0.0]], rtol=1e-5)


def test_rewardflow() -> None:
    """The same graph: V(s1) = 9, V(s0) = 8.1; step rewards (0.9, 1) and 0."""
    inputs = played([(1.0, [1, 2, 3]), (0.0, [1, 1])])
    np.testing.assert_allclose(one(inputs, "rewardflow"), [[5.45, 5.0], [-5.45, 0.0]], rtol=1e-6)


def test_hgpo() -> None:
    """Three rollouts meet in s2, two of them by way of s1: levels of 3 and 2 members, weights 2 and 3."""
    inputs = played([(1.0, [1, 2, 8]), (0.0, [1, 2, 8]), (0.0, [3, 2, 8])])
    found = one(inputs, "hgpo", "means")
    second = [(2 * 6.666667 + 3 * 5.0) / 5, (2 * -3.333333 - 3 * 5.0) / 5, -3.333333]
    first = [4.75, -4.75, 0.0]  # one level, the start: 9.5 and 0
    np.testing.assert_allclose(found, np.stack([first, second], axis=1), rtol=1e-6)
    # With the task group as a level of weight 1; pay 3, gamma 3/4, alpha 1/2.
    based = one(inputs, "hgpo", "rows")
    outcome, start, weight = np.array([2.0, -1.0, -1.0]), 3 * 0.75 / 2, 2**0.5
    expected = [
        (outcome[0] + weight * start) / (1 + weight),
        (outcome[1] - weight * start) / (1 + weight),
        outcome[2],
    ]
    np.testing.assert_allclose(based[:, 0], expected, rtol=1e-6)


def test_proxmo() -> None:
    """Two observations at an angle of 60 degrees, temperature 0.5 / ln 2: weights 1 and 1/2."""
    inputs = played([(1.0, [1, 3]), (0.0, [2, 3])], terms={1: [1.0, 0.0], 2: [0.5, 0.75**0.5]})
    found = one(inputs, "proxmo", "means")
    np.testing.assert_allclose(found, [[5 + 10 / 3], [-5 - 10 / 3]], rtol=1e-6)


def test_proxmo_compares_observations_without_words_with_all_alike() -> None:
    """At a temperature at which exp(-1 / temperature) is 0 in float32."""
    value, real = np.array([3.0, 1.0, 2.0, 9.0], np.float32), np.array([True, True, True, False])
    terms = np.array([[0, 0], [1, 0], [0, 1], [np.nan, np.nan]], np.float32)
    found = jax.jit(functools.partial(soft_baseline, temperature=0.005))(value, terms, real)
    np.testing.assert_allclose(found[:3], [2.0, 1.0, 2.0], rtol=1e-6)


def test_proxmo_modulates_rare_successes_up_and_rare_failures_down() -> None:
    success = np.array([[True, False]])

    def of_rate(rate: float) -> np.ndarray:
        return np.asarray(modulation(success, np.array([[rate]], np.float32), beta=0.1, steepness=4.0))[0]

    np.testing.assert_allclose(of_rate(0.0), [1.05, 1.0], rtol=1e-6)
    np.testing.assert_allclose(of_rate(1.0), [1.0, 0.95], rtol=1e-6)
    np.testing.assert_allclose(of_rate(0.5), [1.0, 1.0], atol=4e-3)  # ProxMO leaves the middle alone


def test_a_loop_makes_no_way_shorter_and_only_successes_lead_to_the_goal() -> None:
    inputs = played([(1.0, [1, 2, 1, 2, 5, 6]), (0.0, [1, 5]), (0.5, [3, 6])])
    found = one(inputs, "rewardflow", "means")
    # To the goal from 5, 2 and 1: 1, 2 and 2 steps (1 -> 5 is b's); none from 3. Values 5, 2.5, 2.5 and 0.
    start, middle = np.mean([0, 0, 2.5]), np.mean([0, 2.5])
    expected = 5 + 2 * np.array([-start, -middle, -start, 2.5 - middle, 0.0])
    np.testing.assert_allclose(found[0], expected, rtol=1e-6)
    np.testing.assert_allclose(found[1, 0], -5 + 2 * (2.5 - start), rtol=1e-6)
    assert found[2, 0] == 0.0


# --- nothing to compare ---------------------------------------------------------------------------


# These compare all steps of a task, and so first with second ones.
AMONG_ALL = ("proxmo", "hcapo")


@pytest.fixture(scope="module")
def corners() -> dict[str, CreditOutput]:
    """Groups of three rollouts of two steps: all fail; one is real; all win alike; all win, at other speeds;
    all score a third."""
    groups = [
        played([(0.0, [1, 2, 3]), (0.0, [1, 1, 3]), (0.0, [2, 1, 3])]),
        dataclasses.replace(
            played([(1.0, [1, 2, 3]), (0.0, [1, 2, 3]), (0.0, [1, 2, 3])]),
            rollout_mask=np.array([[True, False, False]]),
        ),
        played([(1.0, [1, 2, 3]), (1.0, [1, 2, 3]), (1.0, [1, 2, 3])]),
        played([(1.0, [1, 2, 3]), (1.0, [1, 1, 2]), (1.0, [2, 1, 3])]),
        played([(1 / 3, [1, 2, 3])] * 3),
    ]
    return run(builders.batch(groups))


@pytest.mark.parametrize("method", NAMES)
def test_all_fail_and_one_real_rollout_give_nothing(corners: dict[str, CreditOutput], method: str) -> None:
    """The real rollout sees each observation once; one that comes back is compared with itself."""
    output = corners[method]
    np.testing.assert_array_equal(output.advantages[0], 0.0)
    if method not in AMONG_ALL:
        np.testing.assert_array_equal(output.advantages[1], 0.0)
    assert float(output.diagnostics["dead_groups"]) == 1.0


def test_proxmo_compares_the_steps_of_a_rollout_that_is_alone(corners: dict[str, CreditOutput]) -> None:
    """Its two observations share no word: the baseline is almost the step's own return."""
    alone = np.asarray(corners["proxmo"].advantages[1])
    np.testing.assert_allclose(alone[0], [0.0, 0.0], atol=1e-4)
    assert alone[0, 0] < 0 < alone[0, 1]
    np.testing.assert_array_equal(alone[1:], 0.0)


@pytest.mark.parametrize("method", NAMES)
def test_equal_successes_give_nothing_and_unequal_ones_compare_steps(
    corners: dict[str, CreditOutput], method: str
) -> None:
    output = corners[method]
    if method not in AMONG_ALL:
        np.testing.assert_array_equal(output.advantages[2], 0.0)
    if method == "salt":  # shares outcome advantages, of which there are none
        np.testing.assert_array_equal(output.advantages[3], 0.0)
    else:
        assert np.abs(output.advantages[3]).max() > 1e-6
        # From state 1 it pays to go on to the end at once.
        if method != "rewardflow":
            assert output.advantages[3, 2, 1] > output.advantages[3, 1, 0]


@pytest.mark.parametrize("method", NAMES)
def test_values_that_are_equal_but_for_rounding_are_equal(
    corners: dict[str, CreditOutput], method: str
) -> None:
    """Three returns of 10 / 3 and of 9.5 / 3, whose mean may be off by a bit."""
    if method not in AMONG_ALL:
        np.testing.assert_array_equal(corners[method].advantages[4], 0.0)


# --- masks, padding, batches ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def unpadded() -> dict[str, CreditOutput]:
    return builders.run_many(random_steps(0), NAMES)


@pytest.mark.parametrize("method", NAMES)
def test_field_report_11_padding_changes_no_bit(method: str, unpadded: dict[str, CreditOutput]) -> None:
    output, plain = outputs(0, "defaults")[method], unpadded[method]
    assert plain.diagnostics.keys() == output.diagnostics.keys()
    if method == "proxmo":  # the product of word vectors is summed in another order
        np.testing.assert_allclose(output.advantages, plain.advantages, rtol=1e-5, atol=1e-5)
        return
    np.testing.assert_array_equal(output.advantages, plain.advantages)
    for name, value in plain.diagnostics.items():
        np.testing.assert_array_equal(output.diagnostics[name], value, err_msg=name)


@functools.cache
def rearranged() -> tuple[list[int], dict[str, CreditOutput], dict[str, CreditOutput]]:
    """Groups of the first batch in another order, and its first three beside those of another batch."""
    inputs, other, order = random_steps(0), random_steps(9), [3, 0, 5, 1, 4, 2]
    mixed = jax.tree.map(lambda a, b: np.concatenate([np.asarray(a)[:3], np.asarray(b)[3:]]), inputs, other)
    return order, run(jax.tree.map(lambda x: np.asarray(x)[order], inputs)), run(mixed)


@pytest.mark.parametrize("method", NAMES)
def test_a_group_does_not_see_the_others(method: str) -> None:
    plain = np.asarray(outputs(0, "defaults")[method].advantages)
    order, shuffled, mixed = rearranged()
    np.testing.assert_array_equal(shuffled[method].advantages, plain[order])
    np.testing.assert_array_equal(mixed[method].advantages[:3], plain[:3])


def test_field_report_10_a_long_rollout_counts_once_in_the_outcome_part() -> None:
    inputs = played([(1.0, [1, 9]), (0.0, [2, 3, 4, 9])])
    np.testing.assert_allclose(one(inputs, "gigpo")[:, 0], [0.707107, -0.707107], rtol=1e-5)
    np.testing.assert_allclose(one(inputs, "gigpo", "rows")[:, 0], [1.5, -0.5], rtol=1e-5)


@pytest.mark.parametrize("method", NAMES)
def test_figures_and_claims(method: str) -> None:
    assert STEP_METHODS[method].claim is Claim.STEPS
    inputs, output = random_steps(1), outputs(1, "defaults")[method]
    real = inputs.step_mask & inputs.rollout_mask[..., None]
    share, size = (float(output.diagnostics[name]) for name in ("step_share", "step_size"))
    assert 0.1 < share <= 1
    assert 0.01 < size < 10
    if method == "hgpo":  # all of it is a step part
        part = np.abs(np.asarray(output.advantages))[real]
        assert share == pytest.approx((part > 0).mean())
        assert size == pytest.approx(part[part > 0].mean(), rel=1e-5)


def test_advantages_on_padding_and_such_as_are_not_finite_break_the_claim() -> None:
    inputs, output = random_steps(0), outputs(0, "defaults")["gigpo"]
    padding = tuple(np.argwhere(~inputs.step_mask)[0])
    real = tuple(np.argwhere(inputs.step_mask & inputs.rollout_mask[..., None])[0])
    for place, value in ((padding, 1.0), (real, np.nan), (real, np.inf)):
        wrong = dataclasses.replace(output, advantages=output.advantages.at[place].set(value))
        assert int(check_placed(inputs, wrong)) == 1
    assert int(check_placed(inputs, output)) == 0


@pytest.mark.parametrize(
    ("method", "field"), [("hgpo", "penalty"), ("hcapo", "hindsight_logp"), ("proxmo", "state_terms")]
)
def test_nan_of_a_real_step_is_not_hidden(method: str, field: str) -> None:
    """Groups of equal values are dropped; one with a NaN is none, so that the claim breaks."""
    inputs = random_steps(2)
    place = tuple(np.argwhere(inputs.step_mask & inputs.rollout_mask[..., None])[3])
    values = np.array(dataclasses.asdict(inputs)[field])
    values[place] = np.nan
    broken = fill(dataclasses.replace(inputs, **{field: values}))
    outputs, violations = assign_many(
        broken, methods=NAMES, aggregate=builders.conjunctive, options=builders.DEFAULT
    )
    assert np.isnan(np.asarray(outputs[method].advantages)[place])
    assert int(violations) > 0


def test_a_field_that_nobody_made_is_named() -> None:
    inputs = dataclasses.replace(random_steps(0), state_terms=None)
    with pytest.raises(ValueError, match=r"'proxmo' needs CreditInputs.state_terms, which is None"):
        assign_many(
            inputs, methods=("gigpo", "proxmo"), aggregate=builders.conjunctive, options=builders.DEFAULT
        )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GigpoOptions(mode="std"), r"gigpo.mode='std' is not allowed: one of \['mean_std', 'mean'\]"),
        (lambda: GigpoOptions(omega=-1.0), "gigpo.omega=-1.0 is not allowed: a finite number, 0 or more"),
        (lambda: GigpoOptions(similarity=1.5), r"gigpo.similarity=1.5 is not allowed: within \[0, 1\]"),
        (lambda: HgpoOptions(history=-1), "hgpo.history=-1"),
        (lambda: GraphGpoOptions(gamma=float("nan")), "graphgpo.gamma=nan"),
        (lambda: RewardFlowOptions(mode=""), "rewardflow.mode=''"),
        (
            lambda: ProxmoOptions(temperature=0.0),
            "proxmo.temperature=0.0 is not allowed: a finite number above 0",
        ),
        (lambda: ProxmoOptions(modulation=3.0), r"proxmo.modulation=3.0 is not allowed: within \[0, 2\]"),
        (lambda: ProxmoOptions(terms=0), "proxmo.terms=0"),
        (lambda: StepOptions(pay=0.0), "steps.pay=0.0"),
    ],
)
def test_options_are_checked(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
