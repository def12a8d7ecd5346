"""The critic: where its values are read, its loss, and an update that trains it beside the policy."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.learner.at_once import do_update
from vict_jax import sharding
from vict_jax.learner import value
from vict_jax.learner.losses import PpoOptions
from vict_jax.learner.microbatch import init_state
from vict_jax.learner.optimizer import leaf_names, value_mask
from vict_jax.learner.update import compile_ppo, judge_batch
from vict_jax.learner.value import CriticRows, Values
from vict_jax.models import decoder

LENGTHS = (1, 3, 2, 2)  # steps of rollouts 0..3, two groups of two
SHAPE = (2, 2, 3)
REAL = (np.arange(3) < np.array(LENGTHS)[:, None]).reshape(SHAPE)


@pytest.fixture(scope="module")
def problem(lab):
    return lab.make_problem(micro_rows=2, kl_coefficient=0.0, value_clip=0.3, learning_rate=1e-2)


def rows_of(lab, how="appended"):
    rng = np.random.default_rng(0)
    rollouts = [[lab.make_sequence(rng, steps=steps)] for steps in LENGTHS]
    if how == "windowed":
        rng = np.random.default_rng(0)
        rollouts = [lab.windowed(rng, steps=steps) for steps in LENGTHS]
    return rollouts, lab.pack(rollouts, row_length=32, row_multiple=4)


def random_head(problem):
    head = value.new_head(16, problem.mesh)
    weight = np.random.default_rng(1).normal(size=16).astype(np.float32)
    head[value.HEAD]["weight"] = value.ValueParam(problem.put_replicated(weight))
    head[value.HEAD]["bias"] = value.ValueParam(problem.put_replicated(np.float32(0.5)))
    return head


def trained(problem, lab, head=None):
    """Fresh parameters with a head: new buffers, since an update takes them."""
    params = lab.fresh_params(problem.mesh)[1]
    return value.attach(params, value.new_head(16, problem.mesh) if head is None else head)


def by_step(problem, batch, params):
    judged = judge_batch(problem.learner, params, batch, num_rollouts=4)
    return jax.jit(lambda b, v: value.per_step(jnp.where(value.first_tokens(b), v, 0.0), b, SHAPE))(
        batch, judged
    )


@pytest.mark.parametrize("how", ["appended", "windowed"])
def test_values_are_read_at_the_token_before_each_action(lab, problem, how):
    sequences, rows = rows_of(lab, how)
    head = random_head(problem)
    got = np.asarray(by_step(problem, problem.put(rows), trained(problem, lab, head)))
    graphdef, params = lab.fresh_params(problem.mesh)
    apply = jax.jit(decoder.apply, static_argnums=0)
    weight, bias = (np.asarray(head[value.HEAD][name][...]) for name in ("weight", "bias"))
    expected = np.zeros(SHAPE)
    for r, some in enumerate(sequences):
        for sequence in some:
            ids, real = np.zeros((1, 15), np.int32), np.zeros((1, 15), np.int32)
            ids[0, : len(sequence.ids)], real[0, : len(sequence.ids)] = sequence.ids, 1
            position = np.arange(15, dtype=np.int32)[None]
            hidden = np.asarray(apply(graphdef, params, ids, real, position)[0][0])
            for step in np.unique(sequence.step):
                first = np.flatnonzero(sequence.trained & (sequence.step == step))[0]
                expected[r // 2, r % 2, step] = hidden[first - 1] @ weight + bias
    np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-5)
    assert (got[~REAL] == 0).all()


def test_replies_that_touch_are_told_apart(lab):
    """Two steps without a prompt between them, two rollouts in a row, an untrained token inside a step."""
    rows = lab.pack([[lab.make_sequence(np.random.default_rng(0), steps=1)]], row_length=8)
    mask = np.array([[0, 1, 1, 1, 0, 1, 0, 1]], bool)
    step = np.array([[0, 0, 0, 1, 0, 1, 0, 1]], np.int32)
    segment = np.array([[1, 1, 1, 1, 1, 1, 2, 2]], np.int32)
    rollout = np.array([[0, 0, 0, 0, 0, 0, 0, 1]], np.int32)
    batch = dataclasses.replace(rows, loss_mask=mask, step=step, segment=segment, rollout=rollout)
    assert np.flatnonzero(value.first_tokens(jax.tree.map(jnp.asarray, batch))[0]).tolist() == [1, 3, 7]


def test_sums_per_step_leave_out_what_is_not_trained(lab):
    rows = rows_of(lab)[1]
    ones = jnp.where(rows.loss_mask, 1.0, jnp.nan)
    total = value.per_step(ones, jax.tree.map(jnp.asarray, rows), SHAPE)
    np.testing.assert_array_equal(total, np.where(REAL, 2.0, 0.0))  # replies of two tokens


# --- the loss -------------------------------------------------------------------------------------


def critic(old, target, counts, denominator):
    return CriticRows(
        old=jnp.array(old, jnp.float32),
        target=jnp.array(target, jnp.float32),
        counts=jnp.array(counts, bool),
        denominator=jnp.float32(denominator),
    )


@pytest.mark.parametrize(
    ("clip", "expected", "clipped", "gradient"),
    [
        (0.0, (1.0 + 0.01) / 4, 0, [0.5, 0.05]),
        # The first moved by 1 against a bound of .2: 1.8^2 > 1^2, and no gradient; the second stayed inside.
        (0.2, (1.8**2 + 0.01) / 4, 1, [0.0, 0.05]),
    ],
)
def test_value_loss_by_hand(clip, expected, clipped, gradient):
    """V = (2, .1), old (1, 0), target (3, 0): wrong by 1 too little and .1 too much."""
    options = PpoOptions(value_clip=clip)
    rows = critic([[1.0, 0.0, np.nan]], [[3.0, 0.0, np.nan]], [[1, 1, 0]], 2)
    call = lambda v: value.value_loss(v, rows, options=options)  # noqa: E731
    v = jnp.array([[2.0, 0.1, jnp.nan]])
    loss, stopped, count = call(v)
    assert (loss, stopped, count) == (pytest.approx(expected), clipped, 2)
    got = jax.grad(lambda v: call(v)[0])(v)[0]
    np.testing.assert_allclose(got, [-gradient[0], gradient[1], 0.0], atol=1e-6)


def test_a_clip_that_makes_the_error_smaller_does_not_count():
    """The larger of both errors: V beyond its target is pulled back, whatever the bound says."""
    rows = critic([[0.0]], [[0.3]], [[1]], 1)
    loss, stopped, _ = value.value_loss(jnp.array([[2.0]]), rows, options=PpoOptions(value_clip=0.3))
    assert (loss, stopped) == (pytest.approx(0.5 * 1.7**2), 0)


def test_field_report_07_shares_of_micro_batches_add_up_to_the_whole():
    rng = np.random.default_rng(0)
    v, old, target = (jnp.asarray(rng.normal(size=(4, 6)), jnp.float32) for _ in range(3))
    counts = jnp.asarray(rng.random((4, 6)) < 0.5)
    rows = CriticRows(old=old, target=target, counts=counts, denominator=counts.sum().astype(jnp.float32))
    options = PpoOptions(value_clip=0.5)
    whole = value.value_loss(v, rows, options=options)

    def share(part):
        some = dataclasses.replace(rows, old=old[part], target=target[part], counts=counts[part])
        return value.value_loss(v[part], some, options=options)

    parts = [share(slice(0, 1)), share(slice(1, 4))]
    for total, *pieces in zip(whole, *parts, strict=True):
        assert total == pytest.approx(sum(float(x) for x in pieces), rel=1e-6)
    bound = jnp.clip(v, old - 0.5, old + 0.5)
    loop = np.maximum(np.square(v - target), np.square(bound - target))[np.asarray(counts)].mean() / 2
    assert whole[0] == pytest.approx(float(loop), rel=1e-5)


def test_nothing_selected_is_a_loss_of_zero():
    loss, _, count = value.value_loss(
        jnp.array([[jnp.nan]]), critic([[0.0]], [[1.0]], [[0]], 0), options=PpoOptions()
    )
    assert (loss, count) == (0.0, 0.0)


# --- the tree -------------------------------------------------------------------------------------


def test_the_head_comes_off_as_it_went_on(lab):
    mesh = sharding.make_mesh((1, 1, 1))
    policy = lab.fresh_params(mesh)[1]
    both = value.attach(policy, value.new_head(16, mesh))
    assert value.has_head(both)
    assert not value.has_head(policy)
    assert leaf_names(value.without_head(both)) == leaf_names(policy)
    assert set(leaf_names(both)) - set(leaf_names(policy)) == {"value_head.weight", "value_head.bias"}
    masked = dict(zip(leaf_names(both), jax.tree.leaves(value_mask(both)), strict=True))
    assert [name for name, flag in masked.items() if flag] == ["value_head.bias", "value_head.weight"]
    shapes = jax.tree.map(lambda x: (x.shape, x.dtype, x.sharding), value.new_head(16, mesh))
    abstract = jax.tree.map(lambda x: (x.shape, x.dtype, x.sharding), value.abstract_head(16, mesh))
    assert jax.tree.structure(shapes) == jax.tree.structure(abstract)
    assert jax.tree.leaves(shapes) == jax.tree.leaves(abstract)
    assert isinstance(both, nnx.State)


# --- the update -----------------------------------------------------------------------------------


def test_an_update_moves_the_values_towards_their_targets(lab, problem):
    learner = compile_ppo(
        problem.graphdef,
        trained(problem, lab),
        problem.optimizer,
        options=problem.learner.options,
        temperature=1.0,
        mesh=problem.mesh,
    )
    state, batch = init_state(trained(problem, lab), problem.optimizer), problem.put(rows_of(lab)[1])
    old = by_step(problem, batch, state.params)
    target = problem.put_replicated(np.where(REAL, 1.0, np.nan).astype(np.float32))
    advantages = problem.put_replicated(np.zeros(SHAPE, np.float32))
    key = jax.random.key(0)
    with jax.transfer_guard("disallow"):
        state, metrics = do_update(
            learner, state, None, batch, advantages, key, update=1, values=Values(old=old, target=target)
        )
    after = np.asarray(by_step(problem, batch, state.params))
    assert metrics["value_loss"] == pytest.approx(0.5)  # V = 0 everywhere before
    assert metrics["loss"] == pytest.approx(0.25)
    assert (metrics["value_clip_fraction"], metrics["policy_loss"]) == (0.0, 0.0)
    assert (after[REAL] > 0).all()
    assert np.square(after[REAL] - 1).mean() < 1.0


def test_values_and_head_go_together(lab, problem):
    rows = problem.put(rows_of(lab)[1])
    with pytest.raises(ValueError, match="params has no 'value_head'"):
        judge_batch(problem.learner, lab.fresh_params(problem.mesh)[1], rows, num_rollouts=4)
    state = init_state(trained(problem, lab), problem.optimizer)
    zeros = problem.put_replicated(np.zeros(SHAPE, np.float32))
    with pytest.raises(ValueError, match="values is None, but a critic is trained if and only if"):
        do_update(problem.learner, state, None, rows, zeros, jax.random.key(0), update=1)
