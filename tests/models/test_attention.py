"""Implementations of attention: the kernels equal our own, and each is chosen where it can be had."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vict_jax.models import attention


def packed(s=128, n=2, kv=1, h=64):
    """(q, k, v, segment, bias) of two segments and padding in a row."""
    rng = np.random.default_rng(0)
    q, k, v = (jnp.asarray(rng.normal(size=(1, s, heads, h)), jnp.float32) for heads in (n, kv, kv))
    segment = jnp.asarray(np.repeat([1, 2, 0], [60, 50, s - 110])[None], jnp.int32)
    offset = jnp.arange(s)
    mask = (segment[:, :, None] == segment[:, None, :]) & (segment[:, None, :] > 0)
    return q, k, v, segment, attention.mask_bias(mask & (offset[:, None] >= offset))


def splash(q, k, v, segment, _):
    return attention.splash_attention(q, k, v, segment, interpret=True).reshape(*segment.shape, -1)


def xla(q, k, v, segment, bias):
    return attention.self_attention("xla", q, k, v, segment, bias)


def blocks(q, k, v, segment, bias):
    return attention.self_attention("blocks", q, k, v, segment, bias)


@pytest.mark.parametrize("kernel", [splash, xla])
def test_kernels_equal_our_own_forward_and_backward(kernel):
    q, k, v, segment, bias = packed()
    weight = jnp.asarray(np.random.default_rng(1).normal(size=(1, 128, 128)), jnp.float32)
    weight = weight * (segment > 0)[..., None]  # padding has no meaning

    def loss(f):
        return lambda q, k, v: (f(q, k, v, segment, bias) * weight).sum()

    results = [jax.value_and_grad(loss(f), argnums=(0, 1, 2))(q, k, v) for f in (kernel, blocks)]
    assert results[0][0] == pytest.approx(float(results[1][0]), abs=1e-3)
    for mine, other in zip(*(r[1] for r in results), strict=True):
        np.testing.assert_allclose(mine, other, atol=1e-5)


@pytest.mark.parametrize(
    ("platform", "shape", "dtype", "expected"),
    [
        ("cpu", (1, 256, 2, 64), "bfloat16", "blocks"),
        ("tpu", (1, 256, 2, 64), "float32", "splash"),
        ("tpu", (1, 200, 2, 64), "bfloat16", "blocks"),
        ("gpu", (1, 200, 2, 64), "bfloat16", "cudnn"),
        ("gpu", (1, 201, 2, 64), "bfloat16", "xla"),
        ("gpu", (1, 200, 2, 64), "float32", "xla"),
        ("gpu", (1, 200, 2, 256), "bfloat16", "xla"),
    ],
)
def test_auto_takes_the_kernel_of_the_platform(platform, shape, dtype, expected):
    assert attention.choose("auto", platform, shape, jnp.dtype(dtype)) == expected


def test_what_cannot_be_had_is_refused_with_the_reason():
    bf16, f32 = jnp.dtype("bfloat16"), jnp.dtype("float32")
    with pytest.raises(ValueError, match="attention='splash' is not possible here: it is a kernel for TPU"):
        attention.choose("splash", "cpu", (1, 256, 2, 64), bf16)
    with pytest.raises(ValueError, match="rows of 200 tokens are no multiple of 128"):
        attention.choose("splash", "tpu", (1, 200, 2, 64), bf16)
    with pytest.raises(ValueError, match="it computes in bfloat16, the model's dtype is float32"):
        attention.choose("cudnn", "gpu", (1, 256, 2, 64), f32)
    assert attention.choose("blocks", "tpu", (1, 256, 2, 64), bf16) == "blocks"


def test_splash_is_lowered_for_tpu_without_one():
    shapes = ((2, 256, 4, 128), (2, 256, 2, 128), (2, 256, 2, 128))
    qkv = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes]

    def loss(q, k, v, segment):
        return attention.splash_attention(q, k, v, segment).astype(jnp.float32).sum()

    traced = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).trace(*qkv, jax.ShapeDtypeStruct((2, 256), jnp.int32))
    # Forward, and backward for the queries and for keys and values.
    assert traced.lower(lowering_platforms=("tpu",)).as_text().count("tpu_custom_call") == 3
