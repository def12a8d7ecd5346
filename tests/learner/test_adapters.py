"""Training adapters: the base stays as it is, and so does everything else that an update promises."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.learner.at_once import do_update
from vict_jax import batching, sharding
from vict_jax.learner import losses
from vict_jax.learner.losses import PpoOptions
from vict_jax.learner.microbatch import init_state, plan_rows
from vict_jax.learner.optimizer import OptimizerOptions, make_optimizer
from vict_jax.learner.update import PpoRows, compile_ppo, score_batch
from vict_jax.learner.warm_start import compile_supervised, train_epoch
from vict_jax.models import decoder, likelihood, lora
from vict_jax.models.config import LORA_TARGETS, LoraOptions

LENGTHS = (3, 4)
OPTIMIZER = make_optimizer(OptimizerOptions(learning_rate=1e-2, clip_norm=0.0, eps=1e-3), total_steps=50)


@dataclasses.dataclass
class Adapted:
    """A learner of adapters on a frozen base."""

    model: object
    graphdef: object
    base_graphdef: object
    base: object
    learner: object
    mesh: object

    def adapters(self, seed=1):
        """Adapters whose B is not 0."""
        fresh, rng = lora.init(self.model, jax.random.key(seed), self.mesh), np.random.default_rng(seed)
        return jax.tree.map(
            lambda x: jax.device_put(x + 0.1 * rng.normal(size=x.shape).astype(np.float32), x.sharding), fresh
        )

    def put(self, batch):
        return batching.to_device(batch, sharding.batch_sharding(self.mesh))


def make_adapted(lab, mesh):
    base_graphdef, base = lab.fresh_params(mesh)
    options = LoraOptions(rank=2, alpha=4.0, targets=frozenset(LORA_TARGETS))
    model = dataclasses.replace(lab.MODEL, lora=options)
    graphdef = decoder.structure(model)
    learner = compile_ppo(
        graphdef,
        lora.init(model, jax.random.key(1), mesh),
        OPTIMIZER,
        options=PpoOptions(micro_rows=4),
        temperature=1.0,
        mesh=mesh,
        frozen=base,
    )
    return Adapted(model, graphdef, base_graphdef, base, learner, mesh)


@pytest.fixture(scope="module")
def adapted(lab):
    return make_adapted(lab, sharding.make_mesh())


def make_rows(lab):
    rng = np.random.default_rng(0)
    return lab.pack(
        [[lab.make_sequence(rng, steps=steps)] for steps in LENGTHS], row_length=24, row_multiple=4
    )


@pytest.fixture(scope="module")
def rows(lab):
    return make_rows(lab)


def advantages():
    real = np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]
    return (np.random.default_rng(0).normal(size=real.shape) * real).reshape(1, 2, -1).astype(np.float32)


def one_update(adapted, rows, state=None):
    """Score with the base as the reference, then one update. (new state, metrics)."""
    state = init_state(adapted.adapters(), OPTIMIZER) if state is None else state
    batch = adapted.put(rows)
    ref = score_batch(adapted.learner, adapted.base_graphdef, adapted.base, batch, num_rollouts=2)
    adv = batching.to_device(advantages(), sharding.replicated(adapted.mesh))
    key = jax.random.key(0)
    with jax.transfer_guard("disallow"):
        return do_update(adapted.learner, state, ref, batch, adv, key, update=1)


def test_an_update_moves_the_adapters_and_nothing_else(adapted, rows):
    base_before, start = jax.device_get(adapted.base), adapted.adapters()
    before = jax.tree.map(jnp.copy, start)  # device_get would keep the buffers alive
    state = init_state(start, OPTIMIZER)
    moments = [x for x in jax.tree.leaves(state.opt_state) if x.ndim]
    assert sum(x.size for x in moments) == 2 * sum(x.size for x in jax.tree.leaves(start))
    old = state
    state, metrics = one_update(adapted, rows, state)
    assert all(x.is_deleted() for x in jax.tree.leaves((old.params, old.opt_state)))  # donated
    assert metrics["gradient_norm"] > 0
    assert metrics["kl_reference"] > 0
    for x, y in zip(jax.tree.leaves(state.params), jax.tree.leaves(before), strict=True):
        assert np.abs(x - y).max() > 1e-3
    jax.tree.map(np.testing.assert_array_equal, adapted.base, base_before)


def test_the_gradient_is_that_of_the_merged_weights_by_the_chain_rule(adapted, rows):
    batch = jax.tree.map(jnp.asarray, rows)
    everyone = jnp.ones(2, bool)
    options = adapted.learner.options
    weights = losses.loss_weights(batch, everyone, everyone, options=options)
    advantage = losses.gather_advantages(jnp.asarray(advantages()), batch)
    ref, adapters, steps = jnp.full(batch.ids.shape, -2.5), adapted.adapters(), adapted.learner.steps
    micro = PpoRows(batch=batch, ref_logp=ref, advantage=advantage, weights=weights)
    width = plan_rows(adapted.put(rows), num_rollouts=2, mesh=adapted.mesh).width
    got, _ = steps.accumulate(adapters, steps.zeros(), losses.zero_metrics(), micro, width, steps.frozen)

    def whole(merged):
        hidden, _ = decoder.apply(adapted.base_graphdef, merged, batch.ids, batch.segment, batch.position)
        logp = likelihood.token_logp(adapted.base_graphdef, merged, hidden, jnp.roll(batch.ids, -1, axis=1))
        logp = jnp.roll(logp, 1, axis=1)
        return losses.ppo_loss(logp, logp, ref, advantage, batch, weights, options=options)[0]

    gradient = jax.jit(jax.grad(whole))(lora.merge(adapted.model, adapted.base, adapters))
    for name in adapted.model.lora.names:
        a, b = (np.asarray(adapters["layers"][f"{name}_lora_{side}"][...]) for side in "ab")
        dw = adapted.model.lora.scale * np.asarray(gradient["layers"][name][...])
        for side, expected in (("a", dw @ b.swapaxes(1, 2)), ("b", a.swapaxes(1, 2) @ dw)):
            np.testing.assert_allclose(got["layers"][f"{name}_lora_{side}"][...], expected, atol=2e-6)


def test_the_reference_is_the_base_to_the_bit(adapted, rows, lab):
    batch = adapted.put(rows)
    off = score_batch(adapted.learner, adapted.base_graphdef, adapted.base, batch, num_rollouts=2)
    plain = lab.make_problem(micro_rows=4)
    _, params = lab.fresh_params(adapted.mesh)
    np.testing.assert_array_equal(
        off, score_batch(plain.learner, plain.graphdef, params, batch, num_rollouts=2)
    )
    fresh = lora.combine(adapted.base, lora.init(adapted.model, jax.random.key(5), adapted.mesh))
    np.testing.assert_array_equal(
        off, score_batch(adapted.learner, adapted.graphdef, fresh, batch, num_rollouts=2)
    )
    trained = lora.combine(adapted.base, adapted.adapters())
    on = score_batch(adapted.learner, adapted.graphdef, trained, batch, num_rollouts=2)
    assert np.abs(off - on).max() > 1e-3


def test_a_warm_start_of_adapters_learns(adapted, rows):
    base_before = jax.device_get(adapted.base)
    fresh = lora.init(adapted.model, jax.random.key(1), adapted.mesh)
    learner = compile_supervised(
        adapted.graphdef, fresh, OPTIMIZER, micro_rows=2, mesh=adapted.mesh, frozen=adapted.base
    )
    state, seen = init_state(fresh, OPTIMIZER), []
    for epoch in range(8):
        state, metrics = train_epoch(learner, state, adapted.put(rows), rows_per_batch=2, seed=0, epoch=epoch)
        seen.append(metrics["loss"])
    assert seen[-1] < seen[0] - 0.05
    jax.tree.map(np.testing.assert_array_equal, adapted.base, base_before)


FOUR_DEVICES = """
import sys
import jax, numpy as np
jax.config.update("jax_num_cpu_devices", 4)
sys.path.insert(0, sys.argv[1])
import conftest as lab
import test_adapters as here
from vict_jax import sharding
results = []
for shape in ((1, 1, 1), (1, 2, 2)):
    adapted = here.make_adapted(lab, sharding.make_mesh(shape))
    state, metrics = here.one_update(adapted, here.make_rows(lab))
    for p, m in zip(jax.tree.leaves(state.params), jax.tree.leaves(state.opt_state[1][0].mu), strict=True):
        assert p.sharding == m.sharding, (shape, p.sharding, m.sharding)
    a, b = (state.params["layers"][f"q_lora_{side}"][...] for side in "ab")
    parts = [x.addressable_shards[0].data.shape for x in (a, b)]
    assert parts == [(2, 16 // shape[1], 2), (2, 2, 16 // shape[2])], parts
    results.append((jax.device_get(state.params), metrics))
for params, metrics in results[1:]:
    for x, y in zip(jax.tree.leaves(params), jax.tree.leaves(results[0][0]), strict=True):
        np.testing.assert_allclose(x, y, atol=2e-6)
    for name, value in results[0][1].items():
        np.testing.assert_allclose(metrics[name], value, rtol=1e-4, atol=1e-6, err_msg=name)
print("equal on", len(jax.devices()), "devices")
"""


def test_four_devices_give_the_update_of_one():
    here = pathlib.Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", FOUR_DEVICES, str(here)],
        env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(here.parent.parent)},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip() == "equal on 4 devices"
