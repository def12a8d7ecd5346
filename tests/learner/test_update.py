"""The PPO update as a whole: invariance to how it is computed, what it refuses, what it reports."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.learner.at_once import do_update
from vict_jax import sharding
from vict_jax.learner import losses, microbatch
from vict_jax.learner.losses import PpoOptions
from vict_jax.learner.update import PpoRows, notes, score_batch
from vict_jax.models import decoder, likelihood

LENGTHS = (1, 9, 4, 2)  # steps of rollouts 0..3, two groups of two


@pytest.fixture(scope="module")
def problems(lab):
    """`make_problem`, remembering what it compiled."""
    made = {}

    def get(**options):
        key = tuple(sorted(options.items()))
        if key not in made:
            made[key] = lab.make_problem(**options)
        return made[key]

    return get


def rollouts_of(lab, seed=0, lengths=LENGTHS):
    rng = np.random.default_rng(seed)
    return [[lab.make_sequence(rng, steps=steps)] for steps in lengths]


def advantages_of(seed=0, lengths=LENGTHS):
    real = np.arange(max(lengths)) < np.array(lengths)[:, None]
    values = np.random.default_rng(seed).normal(size=real.shape) * real
    return values.reshape(2, -1, real.shape[1]).astype(np.float32)


def run_update(problem, batch, *, advantages=None, update=1, seed=0, state=None):
    """Score with the initial parameters, then one update. (new parameters, metrics)."""
    state = problem.state() if state is None else state
    on_device = problem.put(batch)
    adv = problem.put_replicated(advantages_of() if advantages is None else advantages)
    ref = score_batch(problem.learner, problem.graphdef, state.params, on_device, num_rollouts=len(LENGTHS))
    key = jax.random.key(seed)
    with jax.transfer_guard("disallow"):
        state, metrics = do_update(problem.learner, state, ref, on_device, adv, key, update=update)
    return state, metrics


def sampled_by(problem, lab, state, sequences_of):
    """The same sequences with the log-probabilities of `state`, scored in other rows: one sequence a row."""
    alone = lab.pack(sequences_of, row_length=45, isolate_rollouts=True)
    scored = np.array(
        score_batch(problem.learner, problem.graphdef, state.params, problem.put(alone), num_rollouts=4)
    )
    sampled = []
    for i, (sequence,) in enumerate(sequences_of):
        logp = np.zeros(len(sequence.ids), np.float32)
        logp[sequence.trained] = scored[alone.loss_mask & (alone.rollout == i)]
        sampled.append([dataclasses.replace(sequence, logp=logp)])
    return sampled


def assert_close(a, b, tolerance=2e-6):
    for x, y in zip(jax.tree.leaves(a.params), jax.tree.leaves(b.params), strict=True):
        np.testing.assert_allclose(x, y, atol=tolerance)


def moved(state, problem):
    return max(
        float(jnp.abs(x - y).max())
        for x, y in zip(jax.tree.leaves(state.params), jax.tree.leaves(problem.state().params), strict=True)
    )


# --- the forward ----------------------------------------------------------------------------------


def test_scores_equal_a_direct_forward_of_each_sequence(lab, problems):
    problem = problems(micro_rows=2)
    sequences_of = rollouts_of(lab)
    batch = lab.pack(sequences_of, row_length=64)
    _, params = lab.fresh_params(problem.mesh)
    got = np.array(score_batch(problem.learner, problem.graphdef, params, problem.put(batch), num_rollouts=4))
    assert (got[~batch.loss_mask] == 0).all()

    @jax.jit
    def log_probabilities(ids):
        hidden, _ = decoder.apply(
            problem.graphdef, params, ids, jnp.ones_like(ids), jnp.arange(ids.shape[1])[None]
        )
        return jax.nn.log_softmax(decoder.logits(problem.graphdef, params, hidden)[0])

    for i, (sequence,) in enumerate(sequences_of):
        rows = log_probabilities(jnp.pad(jnp.asarray(sequence.ids), (0, 45 - len(sequence.ids)))[None])
        expected = rows[jnp.arange(len(sequence.ids) - 1), sequence.ids[1:]]
        mine = got[batch.loss_mask & (batch.rollout == i)]
        np.testing.assert_allclose(mine, expected[sequence.trained[1:]], atol=1e-5)


def test_windowed_and_appended_rows_of_the_same_tokens_weigh_the_same(lab):
    rng = np.random.default_rng(0)
    rows = {
        "appended": lab.pack([[lab.make_sequence(rng, steps=s)] for s in (1, 9)], row_length=64),
        "windowed": lab.pack([lab.windowed(rng, steps=s) for s in (1, 9)], row_length=64),
    }
    for batch in rows.values():
        batch = jax.tree.map(jnp.asarray, batch)
        everyone = jnp.ones(2, bool)
        weights = losses.loss_weights(batch, everyone, everyone, options=PpoOptions())
        totals = [weights.policy[batch.loss_mask & (batch.rollout == i)].sum() for i in (0, 1)]
        np.testing.assert_allclose(totals, [1.0, 1.0], rtol=1e-6)


# --- how it is computed does not matter -----------------------------------------------------------


def test_field_report_07_micro_batch_size_does_not_matter(lab, problems):
    batch = lab.pack(rollouts_of(lab), row_length=48)
    assert len(batch.ids) == 2  # 1 x 2 rows and 2 x 1 row
    states, metrics = zip(*(run_update(problems(micro_rows=m), batch) for m in (1, 2)), strict=True)
    assert_close(*states)
    assert moved(states[0], problems(micro_rows=1)) > 1e-3
    for name, value in metrics[0].items():
        assert metrics[1][name] == pytest.approx(value, rel=1e-4, abs=1e-6), name


def test_accumulated_gradient_equals_that_of_one_whole_loss(lab, problems):
    problem = problems(micro_rows=1)
    batch = jax.tree.map(jnp.asarray, lab.pack(rollouts_of(lab), row_length=48))
    _, params = lab.fresh_params(problem.mesh)
    everyone = jnp.ones(4, bool)
    weights = losses.loss_weights(batch, everyone, everyone, options=problem.learner.options)
    advantage = losses.gather_advantages(jnp.asarray(advantages_of()), batch)
    ref = jnp.full(batch.ids.shape, -2.5)

    def whole(p):
        hidden, _ = decoder.apply(problem.graphdef, p, batch.ids, batch.segment, batch.position)
        logp = likelihood.token_logp(problem.graphdef, p, hidden, jnp.roll(batch.ids, -1, axis=1))
        logp = jnp.roll(logp, 1, axis=1)
        return losses.ppo_loss(logp, logp, ref, advantage, batch, weights, options=problem.learner.options)[0]

    steps = problem.learner.steps
    gradients, metrics = steps.zeros(), losses.zero_metrics()
    for row in range(2):
        micro = microbatch.take_rows(
            PpoRows(batch=batch, ref_logp=ref, advantage=advantage, weights=weights),
            jnp.array([row]),
            mesh=problem.mesh,
        )
        gradients, metrics = steps.accumulate(params, gradients, metrics, micro, 48)
    loss, gradient = jax.jit(jax.value_and_grad(whole))(params)
    for x, y in zip(jax.tree.leaves(gradients), jax.tree.leaves(gradient), strict=True):
        np.testing.assert_allclose(x, y, atol=2e-6)
    assert metrics.policy_loss + 0.01 * metrics.kl_loss == pytest.approx(float(loss), abs=1e-6)


def test_field_report_08_row_length_does_not_matter(lab, problems):
    problem = problems(micro_rows=2)
    sequences_of = rollouts_of(lab)
    states = [run_update(problem, lab.pack(sequences_of, row_length=n))[0] for n in (48, 64)]
    assert_close(*states)


def test_field_report_11_padding_rows_change_no_bit(lab, problems):
    problem = problems(micro_rows=2)
    sequences_of = rollouts_of(lab)
    one, some = (run_update(problem, lab.pack(sequences_of, row_length=48, row_multiple=m)) for m in (1, 8))
    jax.tree.map(np.testing.assert_array_equal, one[0], some[0])
    assert one[1] == some[1]


def test_garbage_where_nothing_is_trained_changes_no_bit(lab, problems):
    problem = problems(micro_rows=2)
    batch = lab.pack(rollouts_of(lab), row_length=48, row_multiple=4)
    dirty = dataclasses.replace(
        batch,
        behaviour_logp=np.where(batch.loss_mask, batch.behaviour_logp, np.nan),
        ids=np.where(batch.segment > 0, batch.ids, 10**6),
    )
    clean, same = run_update(problem, batch), run_update(problem, dirty)
    jax.tree.map(np.testing.assert_array_equal, clean[0], same[0])
    assert clean[1] == same[1]


def test_minibatches_take_every_rollout_once_whatever_the_packing(lab, problems):
    problem = problems(micro_rows=2, minibatches=2, epochs=2)
    sequences_of = rollouts_of(lab)
    shared = run_update(problem, lab.pack(sequences_of, row_length=64))
    alone = run_update(problem, lab.pack(sequences_of, row_length=64, isolate_rollouts=True))
    assert_close(shared[0], alone[0])
    assert shared[1]["optimizer_steps"] == 4
    assert shared[1]["trained_tokens"] == 2 * 2 * sum(LENGTHS)
    other = run_update(problem, lab.pack(sequences_of, row_length=64), seed=1)
    assert moved(other[0], problem) > 0
    assert any(
        (x != y).any() for x, y in zip(jax.tree.leaves(shared[0]), jax.tree.leaves(other[0]), strict=True)
    )


TWO_DEVICES = """
import sys
import jax, numpy as np, pickle
jax.config.update("jax_num_cpu_devices", 2)
sys.path.insert(0, sys.argv[1])
import conftest as lab
from test_update import rollouts_of, run_update
from vict_jax.learner import optimizer
batch = lab.pack(rollouts_of(lab), row_length=48, row_multiple=2)
results = []
for shape in ((1, 1, 1), (2, 1, 1), (1, 2, 1)):
    problem = lab.make_problem(micro_rows=2, mesh_shape=shape)
    state, metrics = run_update(problem, batch)
    for p, m in zip(jax.tree.leaves(state.params), jax.tree.leaves(state.opt_state[1][0].mu), strict=True):
        assert p.sharding == m.sharding, (shape, p.sharding, m.sharding)
    if shape == (1, 2, 1):
        assert "fsdp" in str(jax.tree.leaves(state.opt_state[1][0].nu)[0].sharding.spec)
    results.append((jax.device_get(state.params), metrics))
for params, metrics in results[1:]:
    for x, y in zip(jax.tree.leaves(params), jax.tree.leaves(results[0][0]), strict=True):
        np.testing.assert_allclose(x, y, atol=2e-6)
    for name, value in results[0][1].items():
        np.testing.assert_allclose(metrics[name], value, rtol=1e-4, atol=1e-6, err_msg=name)
print("equal on", len(jax.devices()), "devices")
"""


def test_field_report_07_two_devices_give_the_update_of_one():
    here = pathlib.Path(__file__).parent
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(here.parent.parent)}
    done = subprocess.run(
        [sys.executable, "-c", TWO_DEVICES, str(here)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip() == "equal on 2 devices"


# --- what an update does and refuses --------------------------------------------------------------


def test_field_report_15_learning_rate_zero_keeps_the_ratio_at_one(lab, problems):
    problem = problems(micro_rows=2, learning_rate=0.0, epochs=2)
    state = problem.state()
    batch = lab.pack(sampled_by(problem, lab, state, rollouts_of(lab)), row_length=64)
    differences = []
    for update in range(5):
        state, metrics = run_update(problem, batch, update=update, seed=update, state=state)
        assert metrics["first_log_ratio_max"] < 1e-4
        assert metrics["ratio_max"] == pytest.approx(1.0, abs=1e-4)
        assert metrics["clip_fraction"] == 0
        differences.append(metrics["first_log_ratio_max"])
    assert len(set(differences)) == 1
    jax.tree.map(np.testing.assert_array_equal, state.params, problem.state().params)


def test_an_update_raises_what_was_good_and_lowers_what_was_bad(lab, problems):
    problem = problems(micro_rows=2, kl_coefficient=0.0)
    sampled = sampled_by(problem, lab, problem.state(), rollouts_of(lab))
    batch = lab.pack(sampled, row_length=64)
    advantages = np.ones((2, 2, 9), np.float32) * np.array([1.0, -1.0])[None, :, None]
    state, _ = run_update(problem, batch, advantages=advantages)
    before, after = (
        np.array(score_batch(problem.learner, problem.graphdef, p, problem.put(batch), num_rollouts=4))
        for p in (problem.state().params, state.params)
    )
    for rollout, sign in enumerate((1, -1, 1, -1)):
        at = batch.loss_mask & (batch.rollout == rollout)
        assert sign * (after - before)[at].mean() > 0, rollout


def test_dead_groups_alone_move_nothing_without_kl(lab, problems, caplog):
    problem = problems(micro_rows=2, kl_coefficient=0.0)
    batch = lab.pack(rollouts_of(lab), row_length=64)
    state, metrics = run_update(problem, batch, advantages=np.zeros((2, 2, 9), np.float32))
    assert metrics["dead_group_share"] == 1.0
    assert metrics["gradient_norm"] == 0.0
    assert moved(state, problem) == 0.0
    assert "update 1: all advantages are 0" in caplog.text


def test_without_reference_nothing_is_claimed_about_it(lab, problems):
    problem = problems(micro_rows=2, kl_coefficient=0.0)
    batch = problem.put(lab.pack(rollouts_of(lab), row_length=64))
    advantages = problem.put_replicated(advantages_of())
    _, metrics = do_update(
        problem.learner, problem.state(), None, batch, advantages, jax.random.key(0), update=0
    )
    assert "kl_reference" not in metrics
    assert metrics["loss"] == metrics["policy_loss"]
    with pytest.raises(ValueError, match=r"ref_logp is None, but kl_coefficient=0\.01"):
        do_update(problems(micro_rows=2).learner, None, None, batch, advantages, jax.random.key(0), update=0)


@pytest.mark.parametrize("name", ["advantages", "behaviour_logp", "ref_logp"])
def test_inputs_that_are_not_finite_are_named(lab, problems, name):
    problem = problems(micro_rows=2)
    batch = lab.pack(rollouts_of(lab), row_length=64)
    advantages, ref = advantages_of(), np.full(batch.ids.shape, -1.0, np.float32)
    if name == "advantages":
        advantages[1, 0, 2] = np.nan
    else:
        values = {"behaviour_logp": batch.behaviour_logp, "ref_logp": ref}[name]
        values[tuple(np.argwhere(batch.loss_mask)[5])] = np.inf
    with pytest.raises(microbatch.NonFiniteError, match=f"update 12: {name} is not finite"):
        do_update(
            problem.learner,
            problem.state(),
            problem.put(ref),
            problem.put(batch),
            problem.put_replicated(advantages),
            jax.random.key(0),
            update=12,
        )


def test_a_parameter_that_is_not_finite_stops_the_run_by_name(lab, problems):
    problem = problems(micro_rows=2)
    batch = lab.pack(rollouts_of(lab), row_length=64)
    state = problem.state()
    poisoned = jax.tree_util.tree_map_with_path(
        lambda path, x: x.at[0].set(jnp.nan) if "final_norm" in jax.tree_util.keystr(path) else x,
        state.params,
    )
    ref = problem.put(np.full(batch.ids.shape, -1.0, np.float32))
    with pytest.raises(
        microbatch.NonFiniteError,
        match="update 12, optimizer step 1 of 1: loss and gradient of embed not finite",
    ):
        do_update(
            problem.learner,
            dataclasses.replace(state, params=poisoned),
            ref,
            problem.put(batch),
            problem.put_replicated(advantages_of()),
            jax.random.key(0),
            update=12,
        )


def test_the_first_bad_optimizer_step_and_tensor_are_named():
    good = microbatch.Applied(gradient_norm=1.0, learning_rate=1.0, finite=np.ones(4, bool))
    bad = dataclasses.replace(good, finite=np.array([True, False, True, True]))
    with pytest.raises(
        microbatch.NonFiniteError,
        match=re.escape("update 3, optimizer step 2 of 3: gradient of b not finite"),
    ):
        microbatch.check_finite([0.0] * 3, [good, bad, bad], ["a", "b"], where="update 3")
    microbatch.check_finite([0.0], [good], ["a", "b"], where="update 3")


def test_field_report_14_a_large_masked_share_is_a_warning():
    assert notes({"masked_share": 0.2, "dead_group_share": 0.5}) == []
    assert "25% of the trained tokens" in notes({"masked_share": 0.25, "dead_group_share": 0.5})[0]


def test_an_empty_batch_is_refused(lab, problems):
    problem = problems(micro_rows=2)
    batch = lab.pack(rollouts_of(lab), row_length=64)
    batch = dataclasses.replace(batch, loss_mask=np.zeros_like(batch.loss_mask))
    with pytest.raises(ValueError, match="no trained token"):
        score_batch(
            problem.learner, problem.graphdef, problem.state().params, problem.put(batch), num_rollouts=4
        )


def test_micro_rows_must_divide_over_the_devices():
    microbatch.check_micro_size(3, sharding.make_mesh())
    abstract = jax.sharding.AbstractMesh((2, 1, 1), sharding.AXES)
    with pytest.raises(ValueError, match="micro_rows=3 must be a multiple of the 2 parts"):
        microbatch.check_micro_size(3, abstract)
