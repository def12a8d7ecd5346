"""What must hold for every batch, for VICT in both modes and for the controls, on random batches."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

from tests.credit import builders
from tests.credit.builders import CONTROLS, S, U, run_many
from vict_jax.credit.diagnostics import Cause
from vict_jax.credit.options import VictOptions
from vict_jax.types import CreditInputs, CreditOutput

# Thresholds that no effect or advantage of the small batches meets exactly, where rounding would decide.
COMPLETE = VictOptions(gamma_rho=0.93, eps_q=0.047)
LITERAL = VictOptions(core="greedy", marginals="literal", gamma_rho=0.93, eps_q=0.047)
MODES = pytest.mark.parametrize("options", [COMPLETE, LITERAL], ids=["complete", "literal"])
SEEDS = range(6)
METHODS = ("vict", *CONTROLS)
GROUPS, ROLLOUTS, STEPS, ATOMS = 6, 5, 6, 4


def random_batch(seed: int) -> CreditInputs:
    return builders.random_inputs(seed, groups=GROUPS, aggregate="weighted_sum", exact_params=True)


def run(inputs: CreditInputs, options: VictOptions) -> dict[str, CreditOutput]:
    return run_many(inputs, METHODS, "weighted_sum", options)


def corrections(outputs: dict[str, CreditOutput]) -> dict[str, np.ndarray]:
    return {name: np.asarray(output.correction) for name, output in outputs.items()}


def assert_same_bits(a: Any, b: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, a, b)


@MODES
def test_corrections_are_bounded_finite_and_on_real_steps(options: VictOptions) -> None:
    corrected = dict.fromkeys(METHODS, 0)
    for seed in SEEDS:
        inputs = random_batch(seed)
        real = inputs.step_mask & inputs.rollout_mask[..., None]
        for name, output in run(inputs, options).items():
            correction, advantages = np.asarray(output.correction), np.asarray(output.advantages)
            assert np.isfinite(correction).all(), name
            assert (np.abs(correction) <= float(output.lambda_ * output.clip)).all(), name
            assert not correction[~real].any(), name
            assert not advantages[~real].any(), name
            np.testing.assert_array_equal(advantages, np.asarray(output.base) + correction)
            corrected[name] += int((correction != 0).sum())
    assert min(corrected.values()) > 0, corrected
    assert sum(corrected.values()) > 300, corrected


@MODES
def test_a_claimed_proof_has_an_edge_and_a_marginal(options: VictOptions) -> None:
    for seed in SEEDS:
        inputs = random_batch(seed)
        outputs = run(inputs, options)
        for name, output in outputs.items():
            assert (output.proofs is not None) == (name in ("vict", "commit_only"))
            if output.proofs is not None:
                credited = output.proofs.witness & (output.proofs.marginal_norm != 0)[:, :, None, :, None]
                assert not np.asarray(output.correction)[~np.asarray(credited).any((-1, -2))].any(), name
                assert float(output.diagnostics["eligibility"]) == 1.0


@MODES
def test_unsupported_atoms_change_nothing(options: VictOptions) -> None:
    """Turned over in a rollout without an edge to it, an atom keeps its credit in the other rollouts."""
    turned = 0
    for seed in SEEDS:
        inputs = random_batch(seed)
        inputs = dataclasses.replace(inputs, score=np.where(inputs.rollout_mask, inputs.score, 0.0))
        plain = run(inputs, options)["vict"].proofs
        assert plain is not None
        edge = np.asarray(plain.witness).any((2, 4))
        for g, n, j in np.argwhere(np.asarray(plain.core) & inputs.usable & ~edge)[:3]:
            length = int(inputs.step_mask[g, n].sum())
            status = inputs.status.copy()
            status[g, n, length, j] = U if status[g, n, length, j] == S else S
            output = run(dataclasses.replace(inputs, status=status), options)["vict"].proofs
            assert output is not None
            others = np.arange(ROLLOUTS) != n
            for field in ("marginal_norm", "contribution"):
                a, b = (np.asarray(getattr(proofs, field))[g, others, ..., :] for proofs in (output, plain))
                a, b = (x[..., j] if field == "marginal_norm" else x[..., j, :] for x in (a, b))
                np.testing.assert_array_equal(a, b)
            assert not np.asarray(output.contribution)[g, n, :, j].any()
            turned += 1
    assert turned > 5


@MODES
def test_no_correction_without_a_gate(options: VictOptions) -> None:
    """Not conforming, a near tie, a record that breaks D_x, and, for rules with a core, no accepted one."""
    stopped: set[int] = set()
    for seed in SEEDS:
        inputs = random_batch(seed)
        outputs = run(inputs, options)
        proofs = outputs["vict"].proofs
        assert proofs is not None
        cause = np.where(inputs.rollout_mask, np.asarray(proofs.cause), Cause.CONFORMANCE)
        gates = np.isin(cause, [Cause.CONFORMANCE, Cause.INCONSISTENT_RECORD, Cause.NEAR_TIE])
        without_core = ~np.asarray(proofs.core).any(-1)
        for name, correction in corrections(outputs).items():
            if name != "random_edges":  # it moves credit between the rollouts of a group
                assert not correction[gates].any(), name
            if name not in ("random_edges", "dense", "no_core"):
                assert not correction[without_core].any(), name
            closed = (gates | without_core if name == "random_edges" else gates).all(-1)
            assert not correction[closed].any(), name
        stopped |= set(cause[without_core])
    assert {Cause.CONFORMANCE, Cause.INCONSISTENT_RECORD, Cause.NEAR_TIE, Cause.NO_CORE} <= stopped


@pytest.mark.parametrize(
    "change",
    [
        lambda x: {"conforming": np.zeros_like(x.conforming)},
        lambda x: {"score": np.where(x.rollout_mask, 0.25, np.nan).astype(np.float32)},
        lambda x: {"usable": np.zeros_like(x.usable)},
        lambda x: {"rollout_mask": np.zeros_like(x.rollout_mask)},
    ],
    ids=["nothing conforms", "equal scores", "all atoms masked", "all lost"],
)
@MODES
def test_closed_gates_close_every_method(options: VictOptions, change: Any) -> None:
    inputs = random_batch(0)
    outputs = run(dataclasses.replace(inputs, **change(inputs)), options)
    for name, output in outputs.items():
        assert not np.asarray(output.correction).any(), name
        np.testing.assert_array_equal(output.advantages, output.base)
        assert float(output.lambda_) == 0.0, name


@MODES
@pytest.mark.parametrize("seed", SEEDS)
def test_masked_atoms_change_nothing(options: VictOptions, seed: int) -> None:
    """Whatever is recorded of an unusable atom that F does not read: not one bit differs."""
    rng = np.random.default_rng(seed)
    inputs = random_batch(seed)
    masked = ~inputs.usable
    weight = np.where(masked.any(1), 0.0, inputs.params["weight"]).astype(np.float32)
    inputs = dataclasses.replace(inputs, params={**inputs.params, "weight": weight})
    read = np.einsum("gnm,gmv->gnv", inputs.usable.astype(int), inputs.binds.astype(int)) > 0
    never = masked.all(1)
    assert masked.any()
    assert (~read).any()

    def garbled(values: np.ndarray, where: np.ndarray, high: int) -> np.ndarray:
        return np.where(where, rng.integers(0, high, values.shape), values).astype(values.dtype)

    changed = dataclasses.replace(
        inputs,
        status=garbled(inputs.status, masked[:, :, None], 4),
        evidence=garbled(inputs.evidence, ~read[:, :, None], 9),
        scope=garbled(inputs.scope, masked[:, :, None], 2),
        mentions=garbled(inputs.mentions, masked[:, :, None], 2),
        irreversible=garbled(inputs.irreversible, never, 2),
        terminal_only=garbled(inputs.terminal_only, never, 2),
    )
    assert_same_bits(run(changed, options), run(inputs, options))


@MODES
@pytest.mark.parametrize("seed", SEEDS)
def test_padding_changes_no_bit(options: VictOptions, seed: int) -> None:
    inputs = random_batch(seed)
    padded = builders.pad(inputs, groups=2, rollouts=3, steps=4, atoms=3, variables=2, seed=seed)
    plain, outputs = run(inputs, options), run(padded, options)
    for name, output in outputs.items():
        for field in ("advantages", "correction"):
            rest = np.asarray(getattr(output, field)).copy()
            rest[:GROUPS, :ROLLOUTS, :STEPS] = 0.0
            assert not rest.any(), (name, field)
        assert_same_bits(builders.crop(output, inputs), plain[name])


@pytest.mark.parametrize(
    "amount", [{"groups": 1, "rollouts": 17}, {"steps": 17, "variables": 1}, {"atoms": 9, "rollouts": 1}]
)
def test_any_amount_of_padding_changes_no_bit(amount: dict[str, int]) -> None:
    inputs = random_batch(1)
    methods = ("vict", "no_proof", "random_edges")
    plain = run_many(inputs, methods, "weighted_sum", COMPLETE)
    outputs = run_many(builders.pad(inputs, **amount), methods, "weighted_sum", COMPLETE)
    assert_same_bits({name: builders.crop(output, inputs) for name, output in outputs.items()}, plain)


@MODES
@pytest.mark.parametrize("seed", SEEDS)
def test_permuting_rollouts_permutes(options: VictOptions, seed: int) -> None:
    inputs = random_batch(seed)
    order = np.random.default_rng(seed).permutation(ROLLOUTS)
    by_task = ("binds", "observation_var", "irreversible", "terminal_only", "conforming", "eta", "params")
    changes = {
        name: value[:, order]
        for name, value in vars(inputs).items()
        if name not in by_task and value is not None
    }
    plain, outputs = run(inputs, options), run(dataclasses.replace(inputs, **changes), options)
    for name, output in outputs.items():
        expected = np.asarray(plain[name].advantages)[:, order]
        if name == "random_edges":  # another group, another draw; the values are the same
            expected = np.sort(plain[name].correction.reshape(GROUPS, -1))
            np.testing.assert_allclose(
                np.sort(output.correction.reshape(GROUPS, -1)), expected, rtol=1e-4, atol=1e-5
            )
        else:
            np.testing.assert_allclose(output.advantages, expected, rtol=1e-4, atol=1e-5, err_msg=name)
    cause = outputs["vict"].proofs.cause  # type: ignore[union-attr]
    np.testing.assert_array_equal(cause, np.asarray(plain["vict"].proofs.cause)[:, order])  # type: ignore[union-attr]


@pytest.mark.parametrize("seed", SEEDS)
def test_permuting_atoms_changes_nothing(seed: int) -> None:
    """In complete mode; the greedy core breaks ties by index."""
    inputs = random_batch(seed)
    order = np.random.default_rng(seed).permutation(ATOMS)
    axis = {"status": 3, "scope": 3, "mentions": 3, "usable": 2}
    axis |= dict.fromkeys(("binds", "irreversible", "terminal_only"), 1)
    changes: dict[str, Any] = {
        name: np.take(getattr(inputs, name), order, axis=a) for name, a in axis.items()
    }
    changes["requires"] = inputs.requires[:, :, order][..., order]
    changes["params"] = {name: value[:, order] for name, value in inputs.params.items()}
    plain, outputs = run(inputs, COMPLETE), run(dataclasses.replace(inputs, **changes), COMPLETE)
    for name, output in outputs.items():
        np.testing.assert_allclose(
            output.advantages, plain[name].advantages, rtol=1e-4, atol=1e-5, err_msg=name
        )


# --- the random control ---------------------------------------------------------------------------


@MODES
def test_random_edges_keep_the_values_of_each_group_and_move_them(options: VictOptions) -> None:
    moves = 0
    for seed in SEEDS:
        inputs = random_batch(seed)
        outputs = run(inputs, options)
        vict, moved = (corrections(outputs)[name].reshape(GROUPS, -1) for name in ("vict", "random_edges"))
        np.testing.assert_array_equal(np.sort(moved), np.sort(vict))
        moves += int((moved != vict).sum())
        assert_same_bits(run(inputs, options), outputs)
    assert moves > 10


def test_random_edges_differ_with_the_seed_and_with_what_was_done() -> None:
    inputs = random_batch(2)
    options = (COMPLETE, dataclasses.replace(COMPLETE, seed=1))
    here, there = (
        np.asarray(builders.jitted("random_edges", "weighted_sum", o)(inputs).correction) for o in options
    )
    assert (here != there).any()
    other = dataclasses.replace(inputs, action_id=inputs.action_id + 1)
    later = np.asarray(builders.jitted("random_edges", "weighted_sum", COMPLETE)(other).correction)
    assert (here != later).any()


def test_random_edges_reach_every_action_alike() -> None:
    """One credited action among six, 96 groups: each place is drawn about 16 times (std 3.7)."""
    rollouts = [
        builders.rollout(1.0, [S], steps=3, commits={0: [0]}),
        builders.rollout(0.0, [U], steps=3),
        builders.rollout(1.0, [S], steps=3, commits={0: [0]}),
    ]
    one = builders.group(rollouts[:2], weight=[1.0])
    done = builders.group([rollouts[0], builders.rollout(0.0, [U], steps=3, commits={0: [0]})], weight=[1.0])
    assert not np.asarray(builders.jitted("random_edges")(one).correction).any(), "one supported rollout"
    batch = builders.batch([done] * 96)
    ids = np.random.default_rng(0).integers(1, 2**31, batch.action_id.shape).astype(np.int32)
    output = builders.jitted("random_edges")(dataclasses.replace(batch, action_id=ids))
    credited = (np.asarray(output.correction).reshape(96, 6) > 0).sum(axis=0)
    assert credited.sum() == 96
    assert credited.min() >= 5
    assert credited.max() <= 30
