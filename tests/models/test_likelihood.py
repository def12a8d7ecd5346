"""token_logp: values and gradients of the dense form, without ever holding [tokens, vocab]."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import oracle
from vict_jax.models import config as C
from vict_jax.models import decoder, likelihood

VOCAB, B, S = 61, 3, 10


@pytest.fixture(scope="module")
def model():
    config = C.ModelConfig(
        vocab_size=VOCAB, num_layers=1, d_model=14, num_heads=2, num_kv_heads=1, head_dim=4, d_ff=9
    )
    return oracle.random_params(config, 0)


@pytest.fixture(scope="module")
def inputs():
    rng = np.random.default_rng(0)
    return jnp.asarray(rng.standard_normal((B, S, 14)), jnp.float32), jnp.asarray(
        rng.integers(0, VOCAB, (B, S))
    )


def dense(model, hidden, targets, temperature):
    logp = jax.nn.log_softmax(decoder.logits(*model, hidden) / temperature, axis=-1)
    return jnp.take_along_axis(logp, targets[..., None], -1)[..., 0], -(jnp.exp(logp) * logp).sum(-1)


@pytest.mark.parametrize("chunk", [1, 4, 12, 10_000])
@pytest.mark.parametrize("temperature", [0.4, 1.0, 2.5])
def test_values_equal_the_dense_form(model, inputs, chunk, temperature):
    got = likelihood.token_logp_entropy(*model, *inputs, temperature, chunk=chunk)
    for a, b in zip(got, dense(model, *inputs, temperature), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6)


@pytest.mark.parametrize("chunk", [1, 7, 10_000])
def test_gradients_equal_the_dense_form(model, inputs, chunk):
    hidden, targets = inputs
    graphdef, params = model
    weight = jnp.asarray(np.random.default_rng(1).standard_normal((2, B, S)), jnp.float32)

    def loss(form, params, hidden):
        logp, entropy = form((graphdef, params), hidden, targets, 0.7)
        return (weight[0] * logp + weight[1] * entropy).sum()

    def chunked(model, *args):
        return likelihood.token_logp_entropy(*model, *args, chunk=chunk)

    got = jax.jit(jax.grad(lambda *a: loss(chunked, *a), argnums=(0, 1)))(params, hidden)
    expected = jax.grad(lambda *a: loss(dense, *a), argnums=(0, 1))(params, hidden)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=3e-5)


def test_closed_form_of_equal_logits(model, inputs):
    graphdef, params = model
    logp, entropy = likelihood.token_logp_entropy(graphdef, params, jnp.zeros_like(inputs[0]), inputs[1])
    np.testing.assert_allclose(logp, -np.log(VOCAB), rtol=1e-6)
    np.testing.assert_allclose(entropy, np.log(VOCAB), rtol=1e-6)


def test_large_logits_stay_finite(model, inputs):
    logp, entropy = likelihood.token_logp_entropy(*model, 1e4 * inputs[0], inputs[1])
    assert np.isfinite(logp).all()
    assert np.isfinite(entropy).all()
    assert (np.asarray(logp) < -1e3).any()


def _sizes(jaxpr) -> set[int]:
    """Number of elements of every array that a jaxpr computes, those of inner jaxprs included."""
    sizes = set()
    for equation in jaxpr.eqns:
        sizes |= {int(np.prod(var.aval.shape)) for var in equation.outvars}
        for inner in jax.core.jaxprs_in_params(equation.params):
            sizes |= _sizes(inner)
    return sizes


@pytest.mark.parametrize("backward", [False, True])
def test_field_report_37_no_array_of_tokens_times_vocabulary(backward):
    """Forward and backward, in the jaxpr and in XLA's count of temporary memory."""
    vocab, tokens, chunk = 4096, 2 * 512, 64
    config = C.ModelConfig(
        vocab_size=vocab, num_layers=1, d_model=8, num_heads=1, num_kv_heads=1, head_dim=8, d_ff=8
    )
    graphdef, params = decoder.init(config, jax.random.key(0))
    hidden, targets = jnp.ones((2, 512, 8)), jnp.zeros((2, 512), int)

    def loss(chunk, params, hidden):
        return likelihood.token_logp(graphdef, params, hidden, targets, chunk=chunk).sum()

    def program(chunk):
        def f(params, hidden):
            return loss(chunk, params, hidden)

        return jax.jit(jax.value_and_grad(f, argnums=(0, 1)) if backward else f)

    assert max(_sizes(jax.make_jaxpr(program(chunk))(params, hidden).jaxpr)) <= chunk * vocab
    assert (
        max(_sizes(jax.make_jaxpr(program(tokens))(params, hidden).jaxpr)) >= tokens * vocab
    )  # the check can fail
    memory = program(chunk).lower(params, hidden).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 6 * 4 * chunk * vocab < 4 * tokens * vocab
