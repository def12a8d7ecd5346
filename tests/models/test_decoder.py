"""The decoder against a NumPy oracle, and what its masks, cache and head must guarantee."""

from __future__ import annotations

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.models import oracle, sizes
from vict_jax.models import attention, decoder, likelihood
from vict_jax.models import cache as kv
from vict_jax.models import config as C

BASE = {"num_layers": 2, "d_model": 22, "num_heads": 6, "num_kv_heads": 2, "head_dim": 6, "d_ff": 37}


def make(seed: int = 0, **change) -> tuple[C.ModelConfig, nnx.GraphDef, nnx.State]:
    config = C.ModelConfig(vocab_size=53, **{**BASE, "rope_theta": 500.0, "rms_eps": 1e-5, **change})
    return config, *oracle.random_params(config, seed)


def forward(graphdef, params, ids, segment=None, position=None):
    """Logits [b, s, v] of plain or packed rows."""
    ids = jnp.asarray(ids, jnp.int32)
    segment = jnp.ones_like(ids) if segment is None else jnp.asarray(segment, jnp.int32)
    count = jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)
    position = count if position is None else jnp.asarray(position, jnp.int32)
    hidden, _ = jax.jit(decoder.apply, static_argnums=0)(graphdef, params, ids, segment, position)
    return np.asarray(decoder.logits(graphdef, params, hidden))


@pytest.mark.parametrize(
    ("tie", "bias", "kv_heads"), itertools.product((True, False), (True, False), (1, 2, 6))
)
def test_equals_the_numpy_oracle(tie, bias, kv_heads):
    config, graphdef, params = make(tie_embeddings=tie, qkv_bias=bias, num_kv_heads=kv_heads)
    ids = np.random.default_rng(1).integers(0, 53, 9)
    expected = oracle.logits(config, oracle.as_numpy(params), list(ids))
    np.testing.assert_allclose(forward(graphdef, params, ids[None])[0], expected, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("bias", [False, True])
def test_head_norms_and_output_bias_equal_the_numpy_oracle(bias):
    config, graphdef, params = make(qk_norm=True, qkv_bias=bias, o_bias=bias)
    ids = np.random.default_rng(9).integers(0, 53, 9)
    expected = oracle.logits(config, oracle.as_numpy(params), list(ids))
    np.testing.assert_allclose(forward(graphdef, params, ids[None])[0], expected, atol=2e-5, rtol=1e-5)


def test_query_blocks_equal_the_oracle():
    """A length that splits into blocks of unequal width."""
    config, graphdef, params = make(num_layers=1)
    ids = np.random.default_rng(2).integers(0, 53, 4 * attention.MIN_QUERY_BLOCK - 21)
    assert len(ids) > 2 * attention.MIN_QUERY_BLOCK
    expected = oracle.logits(config, oracle.as_numpy(params), list(ids))
    np.testing.assert_allclose(forward(graphdef, params, ids[None])[0], expected, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("change", [{"scan_layers": False}, {"remat": True}])
def test_unrolling_and_remat_change_nothing(change):
    config, graphdef, params = make()
    other, _ = decoder.init(dataclasses.replace(config, **change), jax.random.key(0))
    ids = np.random.default_rng(1).integers(0, 53, (2, 8))
    np.testing.assert_allclose(forward(graphdef, params, ids), forward(other, params, ids), atol=1e-5)


def pack(rng, lengths_of_rows, width, left=False):
    """Rows of several sequences with garbage ids and garbage positions on the padding."""
    shape = (len(lengths_of_rows), width)
    ids = rng.choice([-7, 10**6, 2**31 - 1, 12], shape)
    segment, position = np.zeros(shape, int), rng.integers(-5, 500, shape)
    sequences = []
    for row, lengths in enumerate(lengths_of_rows):
        at = width - sum(lengths) if left else 0
        for number, n in enumerate(lengths):
            here = (row, slice(at, at + n))
            ids[here], segment[here], position[here] = rng.integers(0, 53, n), number + 1, np.arange(n)
            sequences.append((here, ids[here].copy()))
            at += n
    return ids, segment, position, sequences


@pytest.mark.parametrize("left", [False, True])
def test_padding_and_packing(left):
    """Each packed sequence gives the logits it gives alone, whatever lies in the padding."""
    config, graphdef, params = make()
    ids, segment, position, sequences = pack(np.random.default_rng(3), [[5, 3, 4], [7], [1, 8]], 14, left)
    packed = forward(graphdef, params, ids, segment, position)
    weights = oracle.as_numpy(params)
    for here, alone in sequences:
        np.testing.assert_allclose(
            packed[here], oracle.logits(config, weights, list(alone)), atol=2e-5, rtol=1e-5
        )


def test_padding_leaks_into_no_gradient():
    """Garbage in the padding changes neither loss nor gradient by a single bit, and nothing is NaN."""
    _, graphdef, params = make()
    rng = np.random.default_rng(4)
    ids, segment, position, _ = pack(rng, [[5, 3], [6], []], 11)

    @jax.jit
    def loss(params, ids, position, targets):
        hidden, _ = decoder.apply(graphdef, params, ids, jnp.asarray(segment), position)
        logp = likelihood.token_logp(graphdef, params, hidden, targets)
        return -jnp.where(jnp.asarray(segment) > 0, logp, 0.0).sum()

    results = []
    for seed in (0, 1):
        noise = np.random.default_rng(seed).integers(-(10**6), 10**6, ids.shape)

        def fill(x, noise=noise):
            return jnp.asarray(np.where(segment > 0, x, noise), jnp.int32)

        results.append(jax.value_and_grad(loss)(params, fill(ids), fill(position), fill(np.abs(ids) % 53)))
    for a, b in zip(*map(jax.tree.leaves, results), strict=True):
        assert np.isfinite(a).all()
        np.testing.assert_array_equal(a, b)


def test_a_sequence_reads_no_other_and_no_future():
    _, graphdef, params = make()
    rng = np.random.default_rng(5)
    ids, segment, position, _ = pack(rng, [[6, 6]], 12)
    before = forward(graphdef, params, ids, segment, position)[0]
    for changed in range(12):
        other = ids.copy()
        other[0, changed] = (other[0, changed] + 1) % 53
        after = forward(graphdef, params, other, segment, position)[0]
        end = 6 if changed < 6 else 12
        np.testing.assert_array_equal(
            np.delete(after, slice(changed, end), 0), np.delete(before, slice(changed, end), 0)
        )
        assert (after[changed:end] != before[changed:end]).any(axis=-1).all()


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("change", [{}, {"qk_norm": True, "qkv_bias": False}])
def test_cached_equals_uncached_at_every_position(fresh, change):
    """Ragged prefill, ragged second chunk, then single tokens, with rows dropping out."""
    _, graphdef, params = make(**change)
    rng = np.random.default_rng(6)
    total, first, second = np.array([13, 9, 15, 11]), np.array([5, 1, 7, 4]), np.array([3, 4, 0, 6])
    ids = rng.integers(0, 53, (4, 15))
    expected = forward(graphdef, params, ids)
    config = nnx.merge(graphdef, params).config
    cache = kv.init_cache(config, 4, 17)
    if fresh:  # leftovers of an earlier use must not matter
        cache = jax.tree.map(lambda x: x + 7, cache)
    seen = np.zeros(4, int)
    chunks = [(first, fresh), (second, False)] + [(np.ones(4, int), False)] * 8
    for count, is_fresh in chunks:
        count = np.minimum(count, total - seen)
        width = count.max() + 1  # at least one column of padding
        chunk = np.full((4, width), 10**6)
        for row, n in enumerate(count):
            chunk[row, :n] = ids[row, seen[row] : seen[row] + n]
        segment = np.arange(width) < count[:, None]
        position = seen[:, None] + np.arange(width)
        args = (jnp.asarray(x, jnp.int32) for x in (chunk, segment, position))
        hidden, cache = decoder.apply(graphdef, params, *args, cache, fresh=is_fresh)
        got = np.asarray(decoder.logits(graphdef, params, hidden))
        for row, n in enumerate(count):
            np.testing.assert_allclose(
                got[row, :n], expected[row, seen[row] : seen[row] + n], atol=2e-5, rtol=1e-5
            )
        seen += count
        np.testing.assert_array_equal(cache.length, seen)
    np.testing.assert_array_equal(seen, total)


def test_single_token_appends_equal_uncached_with_separate_layers():
    _, graphdef, params = make()
    ids = np.random.default_rng(7).integers(0, 53, (2, 6))
    expected = forward(graphdef, params, ids)
    cache = kv.init_cache(nnx.merge(graphdef, params).config, 2, 6)
    separate = decoder.unstack(graphdef, params)
    for t in range(6):
        one = jnp.asarray(ids[:, t : t + 1], jnp.int32)
        hidden, cache = decoder.apply(*separate, one, jnp.ones_like(one), jnp.full_like(one, t), cache)
        np.testing.assert_allclose(
            decoder.logits(*separate, hidden)[:, 0], expected[:, t], atol=2e-5, rtol=1e-5
        )


def test_a_token_without_room_is_dropped_not_written_elsewhere():
    """The device never clamps a write onto another slot; the host check makes it an error earlier."""
    config, graphdef, params = make()
    cache = kv.init_cache(config, 1, 3)
    ids = jnp.asarray([[1, 2, 3]], jnp.int32)
    _, cache = decoder.apply(graphdef, params, ids, jnp.ones_like(ids), jnp.arange(3)[None], cache)
    for width in (1, 2):
        more = jnp.ones((1, width), jnp.int32)
        _, after = decoder.apply(graphdef, params, more, more, 3 + jnp.arange(width)[None], cache)
        for a, b in zip((*cache.k, *cache.v), (*after.k, *after.v), strict=True):
            np.testing.assert_array_equal(a, b)


def test_cache_rows_and_growth():
    config, _, _ = make()
    cache = kv.init_cache(config, 3, 4)
    cache = jax.tree.map(lambda x: jax.random.normal(jax.random.key(x.size), x.shape).astype(x.dtype), cache)
    some = kv.take_rows(cache, jnp.asarray([2, 0]))
    np.testing.assert_array_equal(some.k[1], np.asarray(cache.k[1])[[2, 0]])
    np.testing.assert_array_equal(some.length, np.asarray(cache.length)[[2, 0]])
    grown = kv.grow(cache, 9)
    assert grown.size == 9
    assert grown.v[0].shape == (3, 2, 9, 6)
    np.testing.assert_array_equal(grown.k[0][..., :4], cache.k[0])
    np.testing.assert_array_equal(grown.v[0][:, :, :4], cache.v[0])
    with pytest.raises(ValueError, match=r"size.*4 slots.*3"):
        kv.grow(cache, 3)


def test_bfloat16_compute_keeps_float32_parameters():
    config, graphdef, params = make(dtype="bfloat16")
    _, exact, _ = make()
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(params))
    ids = np.random.default_rng(8).integers(0, 53, (2, 8))
    hidden, cache = decoder.apply(
        graphdef, params, jnp.asarray(ids), jnp.ones((2, 8), int), jnp.arange(8)[None].repeat(2, 0),
        kv.init_cache(config, 2, 8), fresh=True,
    )  # fmt: skip
    assert hidden.dtype == cache.k[0].dtype == jnp.bfloat16
    got = decoder.logits(graphdef, params, hidden)
    assert got.dtype == likelihood.token_logp(graphdef, params, hidden, jnp.asarray(ids)).dtype == jnp.float32
    np.testing.assert_allclose(got, forward(exact, params, ids), atol=0.15)


def test_declared_weights_are_the_parameters():
    config, _, params = make(tie_embeddings=False)
    declared = decoder.weights(config)
    flat = jax.tree_util.tree_leaves_with_path(nnx.to_pure_dict(params))
    assert {path: leaf.shape for path, leaf in flat} == {
        path: w.shape for path, w in jax.tree_util.tree_leaves_with_path(declared)
    }
    assert all(len(w.axes) == len(w.shape) for w in jax.tree.leaves(declared))


def test_fresh_parameters_have_the_intended_scale():
    """Unit-variance projections, damped residual outputs, logits of order one; keys are all different."""
    config = sizes.tiny(vocab_size=512, tie_embeddings=False)
    _, params = decoder.init(config, jax.random.key(0))

    def std(name):
        return float(params["layers"][name][...].std())

    assert std("q") == pytest.approx(config.d_model**-0.5, rel=0.05)
    assert std("down") == pytest.approx((2 * config.num_layers * config.d_ff) ** -0.5, rel=0.05)
    assert float(params["embed"][...].std()) == pytest.approx(config.d_model**-0.5, rel=0.05)
    gate = params["layers"]["gate"][...]
    assert not jnp.allclose(gate, params["layers"]["up"][...])
    assert not jnp.allclose(gate[0], gate[1])
