"""Schedules, the decay mask, and where the optimizer state lives."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from vict_jax.learner.optimizer import (
    OptimizerOptions,
    decay_mask,
    init_opt_state,
    leaf_names,
    make_optimizer,
    make_schedule,
)


def rates(options, total_steps, steps):
    schedule = make_schedule(options, total_steps=total_steps)
    return [float(schedule(step)) for step in steps]


def test_warmup_is_linear_and_starts_above_zero():
    options = OptimizerOptions(learning_rate=1.0, warmup_steps=4)
    assert rates(options, 100, range(6)) == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0, 1.0])
    assert rates(OptimizerOptions(learning_rate=1.0, warmup_steps=1), 100, range(2)) == [1.0, 1.0]


def test_cosine_ends_at_its_final_fraction():
    options = OptimizerOptions(learning_rate=2.0, schedule="cosine", warmup_steps=10, final_fraction=0.1)
    got = rates(options, 30, [10, 20, 30, 99])
    assert got == pytest.approx([2.0, (2.0 + 0.2) / 2, 0.2, 0.2])
    with pytest.raises(ValueError, match="total_steps=10 must be above warmup_steps=10"):
        make_schedule(options, total_steps=10)


def test_decay_spares_norms_and_biases_by_name(lab):
    _, params = lab.initial(0)
    flags = dict(zip(leaf_names(params), jax.tree.leaves(decay_mask(params)), strict=True))
    spared = {name for name, decays in flags.items() if not decays}
    assert spared == {
        "final_norm",
        "layers.attn_norm",
        "layers.mlp_norm",
        "layers.q_bias",
        "layers.k_bias",
        "layers.v_bias",
    }
    assert flags["embed"]
    assert flags["layers.down"]


def run_steps(options, gradients, start):
    transformation = make_optimizer(options, total_steps=10).transformation
    params, state = start, transformation.init(start)
    for gradient in gradients:
        updates, state = transformation.update(gradient, state, params)
        params = optax.apply_updates(params, updates)
    return params


def test_adamw_equals_its_formula():
    options = OptimizerOptions(learning_rate=0.1, weight_decay=0.5, b1=0.8, b2=0.9, eps=1e-3, clip_norm=0.0)
    gradients = [np.array([[1.0, -3.0]]), np.array([[0.5, 2.0]]), np.array([[-1.0, 0.1]])]
    p, m, v = np.array([[1.0, 2.0]]), 0.0, 0.0
    for t, g in enumerate(gradients, 1):
        m, v = 0.8 * m + 0.2 * g, 0.9 * v + 0.1 * g**2
        p = p - 0.1 * ((m / (1 - 0.8**t)) / (np.sqrt(v / (1 - 0.9**t)) + 1e-3) + 0.5 * p)
    got = run_steps(options, [{"q": jnp.asarray(g)} for g in gradients], {"q": jnp.array([[1.0, 2.0]])})
    np.testing.assert_allclose(got["q"], p, rtol=1e-5)


def test_clipping_bounds_the_global_norm():
    start = {"a": jnp.zeros(1), "b": jnp.zeros(1)}
    gradient = {"a": jnp.array([30.0]), "b": jnp.array([40.0])}
    options = {"learning_rate": 0.1, "eps": 1.0, "b1": 0.0, "b2": 0.0}
    clipped = run_steps(OptimizerOptions(clip_norm=1.0, **options), [gradient], start)
    small = {"a": jnp.array([0.6]), "b": jnp.array([0.8])}
    expected = run_steps(OptimizerOptions(clip_norm=0.0, **options), [small], start)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), clipped, expected)


def test_moments_live_where_their_parameters_do(lab):
    problem = lab.make_problem()
    _, params = lab.fresh_params(problem.mesh)
    state = init_opt_state(problem.optimizer.transformation, params)
    adam = state[1][0]
    for moments in (adam.mu, adam.nu):
        for p, moment in zip(jax.tree.leaves(params), jax.tree.leaves(moments), strict=True):
            assert moment.sharding == p.sharding


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("learning_rate", -1e-6),
        ("schedule", "linear"),
        ("warmup_steps", -1),
        ("final_fraction", 1.5),
        ("clip_norm", -1.0),
        ("weight_decay", -0.1),
        ("b1", 1.0),
        ("b2", -0.1),
        ("eps", 0.0),
    ],
)
def test_options_name_what_is_wrong(name, value):
    with pytest.raises(ValueError, match=f"{name}={value!r} is not allowed"):
        OptimizerOptions(**{name: value})
