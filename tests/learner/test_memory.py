"""What a gradient computation holds: precision by precision, and what rematerialisation saves."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from vict_jax import sharding
from vict_jax.learner.microbatch import row_logp
from vict_jax.models import decoder, likelihood
from vict_jax.models.config import ModelConfig
from vict_jax.plan import programs

MODEL = ModelConfig(
    vocab_size=4096,
    num_layers=6,
    d_model=64,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    d_ff=128,
    dtype="bfloat16",
    tie_embeddings=False,
)
ROWS, LENGTH = 8, 512


def arrays(jaxpr):
    """Every abstract value that a jaxpr computes, those of inner jaxprs included."""
    for equation in jaxpr.eqns:
        yield from (var.aval for var in equation.outvars)
        for inner in jax.core.jaxprs_in_params(equation.params):
            yield from arrays(inner)


@pytest.fixture(scope="module")
def traced():
    """The jaxpr of loss and backward."""
    mesh = sharding.make_mesh()
    params = programs.abstract_params(MODEL, mesh)
    batch = programs.abstract_rows(ROWS, LENGTH, mesh, reference=True).batch

    def loss(params, batch):
        logp, entropy = row_logp(decoder.structure(MODEL), params, batch, width=LENGTH, temperature=1.0)
        return (logp + entropy).sum()

    return jax.make_jaxpr(jax.value_and_grad(loss))(params, batch)


def test_no_float32_array_of_tokens_times_vocabulary(traced):
    largest = max(
        x.size for x in arrays(traced.jaxpr) if MODEL.vocab_size in x.shape and x.dtype == jnp.float32
    )
    assert largest == likelihood.CHUNK * MODEL.vocab_size < ROWS * LENGTH * MODEL.vocab_size


def test_matrix_products_are_bfloat16_and_gradients_float32(traced):
    layers = [
        x for x in arrays(traced.jaxpr) if x.shape[-1:] == (MODEL.d_ff,) and x.shape[:1] == (ROWS * LENGTH,)
    ]
    assert layers
    assert any(x.dtype == jnp.bfloat16 for x in layers)
    assert {x.dtype for x in traced.out_avals} == {jnp.dtype("float32")}
    state = programs.abstract_state(
        programs.abstract_params(MODEL, sharding.make_mesh()), sharding.make_mesh()
    )
    moments = [x for x in jax.tree.leaves(state.opt_state) if x.ndim]
    assert {x.dtype for x in moments} == {jnp.dtype("float32")}


def test_rematerialisation_lowers_what_a_gradient_needs():
    temporary = {}
    for remat in (False, True):
        lowered = programs.lower_update(
            dataclasses.replace(MODEL, remat=remat),
            sharding.make_mesh(),
            micro_rows=ROWS,
            length=LENGTH,
            width=LENGTH,
            reference=True,
        )
        compiled = lowered["accumulate"].compile(compiler_options={"xla_backend_optimization_level": "0"})
        temporary[remat] = compiled.memory_analysis().temp_size_in_bytes
    assert temporary[True] < 0.5 * temporary[False]
