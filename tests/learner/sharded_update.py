"""Run by test_sharded.py in a process with 8 fake devices: an optimizer step on every mesh, as JSON."""

from __future__ import annotations

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np

from vict_jax import batching, sharding
from vict_jax.learner import losses, microbatch
from vict_jax.learner.losses import LossWeights, PpoOptions
from vict_jax.learner.optimizer import OptimizerOptions, make_optimizer
from vict_jax.learner.update import PpoRows, compile_ppo
from vict_jax.models import decoder
from vict_jax.models.config import ModelConfig
from vict_jax.types import TokenBatch

MODEL = ModelConfig(
    vocab_size=48,
    num_layers=2,
    d_model=32,
    num_heads=8,
    num_kv_heads=8,
    head_dim=4,
    d_ff=48,
    tie_embeddings=False,
    qk_norm=True,
    remat=True,
)
ROWS, LENGTH, MICRO = 16, 24, 8


def rows_on(mesh):
    """The same packed rows, two segments each, on any mesh."""
    rng = np.random.default_rng(0)
    shape = (ROWS, LENGTH)
    cut = rng.integers(6, 18, (ROWS, 1))
    second = np.arange(LENGTH) >= cut
    position = np.arange(LENGTH) - np.where(second, cut, 0)
    trained = (rng.random(shape) < 0.5) & (position > 0)
    f32 = lambda x: np.asarray(x, np.float32)  # noqa: E731
    i32 = lambda x: np.asarray(x, np.int32)  # noqa: E731
    batch = TokenBatch(
        ids=i32(rng.integers(0, MODEL.vocab_size, shape)),
        segment=i32(1 + second),
        position=i32(position),
        loss_mask=trained,
        behaviour_logp=f32(-3.9 + 0.1 * rng.normal(size=shape)),
        rollout=i32(np.zeros(shape)),
        step=i32(np.zeros(shape)),
    )
    total = f32(trained.sum())
    weights = LossWeights(
        policy=f32(trained), kl=f32(trained), policy_denominator=total, kl_denominator=total
    )
    ref_logp, advantage = f32(-3.9 + 0.1 * rng.normal(size=shape)), f32(trained * rng.normal(size=shape))

    def put(x):
        where = sharding.batch_sharding(mesh) if np.ndim(x) else sharding.replicated(mesh)
        return batching.to_device(x, where)

    return jax.tree.map(put, PpoRows(batch=batch, ref_logp=ref_logp, advantage=advantage, weights=weights))


def step_on(shape):
    """(loss, gradients, parameters after the step, report) of one optimizer step on a mesh."""
    mesh = sharding.make_mesh(shape)
    init = lambda: decoder.init(MODEL, jax.random.key(0))[1]  # noqa: E731
    where = sharding.param_shardings(mesh, jax.eval_shape(init), decoder.logical_axes(MODEL))
    params = jax.device_put(jax.jit(init)(), where)
    optimizer = make_optimizer(OptimizerOptions(learning_rate=1e-2, eps=1e-3), total_steps=10)
    learner = compile_ppo(
        decoder.structure(MODEL),
        params,
        optimizer,
        options=PpoOptions(micro_rows=MICRO),
        temperature=1.0,
        mesh=mesh,
    )
    state, rows = microbatch.init_state(params, optimizer), rows_on(mesh)
    gradients, metrics = learner.steps.zeros(), losses.zero_metrics()
    metrics = jax.device_put(metrics, sharding.replicated(mesh))
    donated = []
    for part in microbatch.micro_rows(np.arange(ROWS), size=MICRO, total=ROWS, mesh=mesh):
        micro = microbatch.take_rows(rows, part, mesh=mesh)
        before = gradients
        gradients, metrics = learner.steps.accumulate(
            state.params, gradients, metrics, micro, LENGTH, learner.steps.frozen
        )
        donated += [x.is_deleted() for x in jax.tree.leaves(before)]
    loss, gradient = float(metrics.policy_loss + 0.01 * metrics.kl_loss), jax.device_get(gradients)
    after, _ = learner.steps.apply(state, gradients)
    adam = after.opt_state[1][0]
    shards = {
        name: [list(x["layers"]["gate"][...].addressable_shards[0].data.shape) for x in trees]
        for name, trees in (("param", [after.params]), ("moments", [adam.mu, adam.nu]))
    }
    moments_with_params = [
        m.sharding == p.sharding
        for moments in (adam.mu, adam.nu)
        for m, p in zip(jax.tree.leaves(moments), jax.tree.leaves(after.params), strict=True)
    ]
    donated_state = [x.is_deleted() for x in jax.tree.leaves(state)]
    report = {
        "shape": shape,
        "loss": loss,
        "shards": shards,
        "moments_with_params": all(moments_with_params),
        "gradients_donated": all(donated),
        "state_donated": all(donated_state),
    }
    return gradient, jax.device_get(after.params), report


def largest_difference(a, b):
    return max(
        float(jnp.abs(x - y).max()) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


def main(shapes):
    gradient, params, single = step_on((1, 1, 1))
    reports = []
    for shape in shapes:
        sharded_gradient, sharded_params, report = step_on(shape)
        report["loss_difference"] = abs(report["loss"] - single["loss"])
        report["gradient_difference"] = largest_difference(gradient, sharded_gradient)
        report["param_difference"] = largest_difference(params, sharded_params)
        reports.append(report)
    size = max(float(np.abs(x).max()) for x in jax.tree.leaves(gradient))
    json.dump({"single": single, "largest_gradient": size, "meshes": reports}, sys.stdout)


if __name__ == "__main__":
    main([tuple(map(int, shape.split(","))) for shape in sys.argv[1:]])
