"""The supervised warm start: it learns, and does not depend on how it is computed."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest

from vict_jax import sharding
from vict_jax.learner.microbatch import NonFiniteError, init_state
from vict_jax.learner.optimizer import OptimizerOptions, make_optimizer
from vict_jax.learner.warm_start import compile_supervised, epoch_rows, train_epoch


@pytest.fixture(scope="module")
def course(lab):
    """(compile, state, batch): demonstrations of different lengths, one a row."""
    mesh = sharding.make_mesh()
    optimizer = make_optimizer(OptimizerOptions(learning_rate=2e-2, clip_norm=0.0, eps=1e-3), total_steps=50)
    rng = np.random.default_rng(0)
    demonstrations = [[lab.make_sequence(rng, steps=steps)] for steps in (1, 5, 2, 4, 3, 5)]
    batch = lab.pack(demonstrations, row_length=32, isolate_rollouts=True)

    def compiled(micro_rows):
        graphdef, params = lab.fresh_params(mesh)
        return compile_supervised(graphdef, params, optimizer, micro_rows=micro_rows, mesh=mesh)

    def state():
        return init_state(lab.fresh_params(mesh)[1], optimizer)

    return compiled, state, batch, lambda tree: jax.device_put(tree, sharding.batch_sharding(mesh))


def test_epochs_lower_the_loss_and_micro_batches_do_not_matter(course):
    compiled, state, batch, put = course
    results = []
    for micro_rows in (2, 4):
        learner, current, history = compiled(micro_rows), state(), []
        with jax.transfer_guard("disallow"):
            on_device = put(batch)
            for epoch in range(6):
                current, metrics = train_epoch(
                    learner, current, on_device, rows_per_batch=4, seed=1, epoch=epoch
                )
                history.append(metrics)
        results.append((current, history))
    (a, first), (b, second) = results
    for x, y in zip(jax.tree.leaves(a.params), jax.tree.leaves(b.params), strict=True):
        np.testing.assert_allclose(x, y, atol=1e-5)
    assert first[0]["tokens"] == batch.loss_mask.sum()
    assert first[0]["optimizer_steps"] == 2
    assert [m["loss"] for m in first] == pytest.approx([m["loss"] for m in second], rel=1e-4)
    assert first[-1]["loss"] < 0.8 * first[0]["loss"]


def test_an_epoch_takes_every_row_once_in_an_order_of_its_own():
    orders = [list(epoch_rows(10, rows_per_batch=4, seed=0, epoch=epoch)) for epoch in (0, 1)]
    for order in orders:
        assert [len(part) for part in order] == [4, 4, 2]
        assert sorted(np.concatenate(order).tolist()) == list(range(10))
    assert np.concatenate(orders[0]).tolist() != np.concatenate(orders[1]).tolist()
    again = epoch_rows(10, rows_per_batch=4, seed=0, epoch=1)
    assert np.concatenate(list(again)).tolist() == np.concatenate(orders[1]).tolist()


def test_fields_of_the_sampler_are_not_read(course):
    compiled, state, batch, put = course
    learner = compiled(2)
    # The fields that are not read may hold anything.
    dirty = dataclasses.replace(batch, behaviour_logp=np.full_like(batch.behaviour_logp, np.nan))
    dirty = dataclasses.replace(dirty, rollout=np.full_like(batch.rollout, 77))
    outcomes = [
        train_epoch(learner, state(), put(b), rows_per_batch=6, seed=0, epoch=0) for b in (batch, dirty)
    ]
    assert outcomes[0][1] == outcomes[1][1]
    jax.tree.map(np.testing.assert_array_equal, outcomes[0][0].params, outcomes[1][0].params)


def test_a_nan_names_epoch_and_tensor(course):
    compiled, state, batch, put = course
    start = state()
    params = jax.tree.map(lambda x: x * np.nan, start.params)
    with pytest.raises(
        NonFiniteError, match="warm-start epoch 3, optimizer step 1 of 1: loss and gradient of embed"
    ):
        train_epoch(
            compiled(2),
            dataclasses.replace(start, params=params),
            put(batch),
            rows_per_batch=6,
            seed=0,
            epoch=3,
        )


def test_a_batch_with_nothing_to_learn_is_refused(course):
    compiled, state, batch, put = course
    empty = dataclasses.replace(batch, loss_mask=np.zeros_like(batch.loss_mask))
    with pytest.raises(ValueError, match="no trained token"):
        train_epoch(compiled(2), state(), put(empty), rows_per_batch=4, seed=0, epoch=0)
