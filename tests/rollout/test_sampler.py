"""Sampling: distribution, stored log-probabilities, independence of rows, stopping, bounded shapes."""

from __future__ import annotations

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from tests.models import sizes
from vict_jax.models import cache as kv
from vict_jax.models import decoder, likelihood
from vict_jax.rollout import sampler
from vict_jax.rollout.sampler import SamplerOptions, Shapes
from vict_jax.rollout.session import Session

VOCAB = 23
CONFIG = sizes.micro(vocab_size=VOCAB, num_layers=1, d_model=32, d_ff=48)
KEY = jax.random.key(0)
SHAPES = Shapes(batch=(2, 4, 8), prompt=(4, 8, 16, 32), cache=(16, 32, 48))


@pytest.fixture(scope="module")
def model():
    return decoder.init(CONFIG, jax.random.key(1))


def options(**change) -> SamplerOptions:
    return SamplerOptions(**{"max_new_tokens": 6, "stop_ids": (3, 7), **change})


def session(model, **change) -> Session:
    return Session(*model, options=options(**change), shapes=SHAPES)


def keys(rows, step=0):
    return sampler.row_keys(KEY, np.asarray(rows), np.full(len(rows), step))


def prompts(count, seed=0, low=1, high=9):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, VOCAB, rng.integers(low, high)) for _ in range(count)]


@functools.partial(jax.jit, static_argnums=0)
def _forward(graphdef, params, ids, real, temperature):
    position = jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)
    hidden, _ = decoder.apply(graphdef, params, ids, real, position)
    logp = likelihood.token_logp(graphdef, params, hidden[:, :-1], ids[:, 1:], temperature)
    return logp, decoder.logits(graphdef, params, hidden)


def scored(model, ids, temperature=1.0):
    """From one uncached forward: [n - 1] log-probability of each id after the first; [n, v] logits."""
    n, width = len(ids), 48
    padded = np.pad(np.asarray(ids, np.int32), (0, width - n))[None]
    logp, logits = _forward(*model, padded, (np.arange(width) < n)[None].astype(np.int32), temperature)
    return np.asarray(logp)[0, : n - 1], np.asarray(logits)[0, :n]


def same(a, b, exact_logp=False):
    np.testing.assert_array_equal(a.ids, b.ids)
    np.testing.assert_allclose(a.logp, b.logp, atol=0 if exact_logp else 1e-5)
    assert a.stopped == b.stopped


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_stored_logp_equals_one_forward(model, temperature):
    """Over three turns of an appended context, with rows leaving and the batch shrinking."""
    s = session(model, temperature=temperature)
    rows, sequences = list(range(7)), [list(p) for p in prompts(7)]
    rng = np.random.default_rng(1)
    s.start(7)
    records = []
    for turn in range(3):
        new = [np.array(sequences[r][s.cached(r) :]) for r in rows]
        for r, sample in zip(rows, s.extend(rows, new, keys(rows, turn)), strict=True):
            records.append((r, len(sequences[r]), sample))
            sequences[r] += [*sample.ids, *rng.integers(0, VOCAB, rng.integers(1, 4))]
        gone = rows[turn :: 3 - turn]
        s.release(gone)
        rows = [r for r in rows if r not in gone]
    assert len({batch for name, batch, *_ in s.compiled if name == "decode"}) > 1
    for r, start, sample in records:
        expected = scored(model, sequences[r], temperature)[0][start - 1 : start - 1 + len(sample.ids)]
        np.testing.assert_allclose(sample.logp, expected, atol=1e-4)


def test_frequencies_match_the_probabilities(model):
    """Chi-square of the first two tokens of 4,096 replies to one prompt, over all 23 x 23 outcomes."""
    n, temperature, prompt = 4096, 1.3, [5, 1, 9]
    cache = kv.init_cache(CONFIG, n, 5)
    ids = jnp.broadcast_to(jnp.asarray(prompt, jnp.int32), (n, 3))
    _, out = sampler.generate(
        *model, cache, ids, jnp.full(n, 3), jax.random.split(KEY, n),
        options=SamplerOptions(max_new_tokens=2, temperature=temperature, stop_ids=(VOCAB + 5,)), fresh=True,
    )  # fmt: skip
    pairs = jnp.stack(jnp.meshgrid(jnp.arange(VOCAB), jnp.arange(VOCAB), indexing="ij"), -1).reshape(-1, 2)
    rows = jnp.concatenate([jnp.broadcast_to(jnp.asarray(prompt), (len(pairs), 3)), pairs], 1)
    hidden, _ = decoder.apply(*model, rows, jnp.ones_like(rows), jnp.broadcast_to(jnp.arange(5), rows.shape))
    logp = likelihood.token_logp(*model, hidden[:, 2:4], rows[:, 3:], temperature)
    probability = np.exp(np.asarray(logp, np.float64).sum(1))
    assert probability.sum() == pytest.approx(1, abs=1e-5)
    observed = np.bincount(np.asarray(out.ids[:, 0] * VOCAB + out.ids[:, 1]), minlength=VOCAB**2)
    expected = n * probability / probability.sum()
    common = expected >= 5

    def pool(x):
        return np.append(x[common], x[~common].sum())

    assert common.sum() > 50
    assert scipy.stats.chisquare(pool(observed), pool(expected)).pvalue > 1e-3
    # the test can fail: the same counts against temperature 1
    flat = np.exp(
        np.asarray(likelihood.token_logp(*model, hidden[:, 2:4], rows[:, 3:], 1.0), np.float64).sum(1)
    )
    assert scipy.stats.chisquare(pool(observed), n * pool(flat) / flat.sum()).pvalue < 1e-3


def test_a_row_does_not_depend_on_the_others(model):
    """Alone, in any company, at any place, in any batch or prompt size: the same reply."""
    texts = prompts(7)
    s = session(model)
    s.start(7)
    together = s.extend(range(7), texts, keys(range(7)))
    assert len({len(sample.ids) for sample in together}) > 1
    for chosen in ([0], [6, 2], [5, 4, 3, 1]):
        s.start(len(chosen))
        alone = s.extend(range(len(chosen)), [texts[r] for r in chosen], keys(chosen))
        for r, sample in zip(chosen, alone, strict=True):
            same(together[r], sample)


def test_keys_decide_and_nothing_else(model):
    text = np.array([4, 4, 2])
    s = session(model)
    s.start(8)
    first = s.extend(range(8), [text] * 8, keys(range(8)))
    assert len({tuple(sample.ids) for sample in first}) > 4  # members of a group differ
    s.start(8)
    for a, b in zip(first, s.extend(range(8), [text] * 8, keys(range(8))), strict=True):
        same(a, b, exact_logp=True)
    s.start(8)
    other = s.extend(range(8), [text] * 8, keys(range(8), step=1))
    assert [tuple(a.ids) for a in first] != [tuple(b.ids) for b in other]


def test_row_keys_are_folded_rollout_then_step():
    expected = jax.random.fold_in(jax.random.fold_in(KEY, 11), 4)
    np.testing.assert_array_equal(sampler.row_keys(KEY, np.array([2, 11, 5]), np.array([0, 4, 9]))[1],
                                  jax.random.key_data(expected))  # fmt: skip


def test_a_turn_continues_as_if_the_whole_context_were_new(model):
    """Append mode equals window mode on the same tokens and keys, over several turns."""
    growing, fresh = session(model), session(model)
    rows, sequences = [0, 1, 2], [list(p) for p in prompts(3, seed=2)]
    growing.start(3)
    for turn in range(3):
        new = [np.array(sequences[r][growing.cached(r) :]) for r in rows]
        fresh.start(3)
        whole = [np.array(sequences[r]) for r in rows]
        a = growing.extend(rows, new, keys(rows, turn))
        b = fresh.extend(rows, whole, keys(rows, turn))
        for r in rows:
            same(a[r], b[r])
            sequences[r] += [*a[r].ids, 1]


def test_waiting_rows_keep_their_cache(model):
    s = session(model)
    texts = prompts(3, seed=3)
    s.start(3)
    first = s.extend([0, 1, 2], texts, keys([0, 1, 2]))
    s.extend([1], [np.array([first[1].ids[-1], 2])], keys([1], 1))
    later = s.extend([0], [np.array([first[0].ids[-1], 9, 9])], keys([0], 2))[0]
    s.start(1)
    direct = s.extend([0], [np.array([*texts[0], *first[0].ids, 9, 9])], keys([0], 2))[0]
    same(later, direct)


def test_greedy_takes_the_best_token_and_stores_temperature_1(model):
    s = session(model, temperature=0.0, stop_ids=(VOCAB + 1,))
    s.start(2)
    text = np.array([5, 2, 8])
    a, b = s.extend([0, 1], [text, text], keys([0, 1]))
    same(a, b)
    sequence = list(text)
    for token in a.ids:
        assert token == scored(model, sequence)[1][-1].argmax()
        sequence.append(int(token))
    np.testing.assert_allclose(a.logp, scored(model, sequence)[0][2:], atol=1e-5)


def test_stop_token_is_kept_and_truncation_is_marked(model):
    """The stop token ends the reply and is part of it; a truncated reply keeps its last sampled token."""
    s = session(model)
    seen = set()
    for step in range(4):
        s.start(8)
        for sample in s.extend(range(8), prompts(8, seed=step), keys(range(8), step)):
            assert sample.ids.shape == sample.logp.shape
            assert not np.isin(sample.ids[:-1], (3, 7)).any()
            assert sample.stopped == (sample.ids[-1] in (3, 7))
            assert sample.stopped or len(sample.ids) == 6
            seen.add((sample.stopped, len(sample.ids)))
    assert {(False, 6), (True, 1)} <= seen


def test_longer_limit_only_extends_truncated_replies(model):
    """The random numbers of a token depend on its index, not on the limit."""
    results = []
    for limit in (2, 6):
        s = session(model, max_new_tokens=limit)
        s.start(8)
        results.append(s.extend(range(8), prompts(8), keys(range(8))))
    for short, long in zip(*results, strict=True):
        np.testing.assert_array_equal(short.ids, long.ids[:2])


def test_generation_stops_as_soon_as_every_row_has(model):
    """With every token a stop token one draw is made, and no token reaches the cache."""
    cache = kv.init_cache(CONFIG, 2, 16)
    ids, length = jnp.asarray([[1, 2, 3], [4, 0, 0]], jnp.int32), jnp.asarray([3, 1], jnp.int32)
    cache, out = sampler.generate(*model, cache, ids, length, jax.random.split(KEY, 2),
                                  options=options(stop_ids=tuple(range(VOCAB))), fresh=True)  # fmt: skip
    np.testing.assert_array_equal(out.count, [1, 1])
    np.testing.assert_array_equal(cache.length, length)
    assert out.stopped.all()
    assert not out.ids[:, 1:].any()
    assert not out.logp[:, 1:].any()


def test_idle_rows_are_untouched(model):
    cache = kv.init_cache(CONFIG, 2, 16)
    ids = jnp.asarray([[1, 2], [9, 9]], jnp.int32)
    cache, _ = sampler.generate(*model, cache, ids, jnp.asarray([2, 2], jnp.int32), jax.random.split(KEY, 2),
                                options=options(max_new_tokens=1))  # fmt: skip
    before = jax.tree.map(np.array, cache)
    one = jnp.asarray([2, 0], jnp.int32)
    cache, out = sampler.generate(*model, cache, ids, one, jax.random.split(KEY, 2), options=options())
    assert int(out.count[1]) == 0
    assert not bool(out.stopped[1])
    for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(cache), strict=True):
        np.testing.assert_array_equal(a[1], b[1])


def test_cache_is_donated_and_updated_in_place(model):
    cache = kv.init_cache(CONFIG, 4, 24)
    ids, length = jnp.ones((4, 4), jnp.int32), jnp.full(4, 4)
    args = (*model, cache, jnp.zeros((4, 32)), length, jax.random.split(KEY, 4), jnp.ones(4), None)
    text = sampler._decode.lower(*args, max_new=5, stop_ids=(3,), top_k=0, top_p=1.0).compile().as_text()
    for x in (cache.k[0], cache.v[0]):
        shape = f"f32[{','.join(map(str, x.shape))}]"
        assert len(re.findall(re.escape(shape) + r"\S* scatter\(", text)) > 0
        assert not re.findall(re.escape(shape) + r"\S* (?:copy|transpose|select)\(", text)
    pointers = [x.unsafe_buffer_pointer() for x in (*cache.k, *cache.v)]
    after, _ = sampler.generate(
        *model, cache, ids, length, jax.random.split(KEY, 4), options=options(), fresh=True
    )
    assert cache.k[0].is_deleted()
    assert pointers == [x.unsafe_buffer_pointer() for x in (*after.k, *after.v)]


def test_shapes_are_bounded_and_reported(model):
    s = session(model)
    rng = np.random.default_rng(4)
    for step in range(12):
        rows = int(rng.integers(1, 9))
        s.start(rows)
        s.extend(range(rows), prompts(rows, seed=step, high=17), keys(range(rows), step))
    prefills = [sizes for name, *sizes in s.compiled if name == "prefill"]
    assert 1 < len(prefills) <= 3 * 4 * 2
    assert {batch for batch, *_ in prefills} <= {2, 4, 8}
    assert {prompt for _, prompt, *_ in prefills} <= {4, 8, 16, 32}
    known = len(s.compiled)
    s.start(rows)
    s.extend(range(rows), prompts(rows, seed=step, high=17), keys(range(rows), step))
    assert len(s.compiled) == known


def test_sampling_makes_no_implicit_transfer(model):
    s = session(model)
    with jax.transfer_guard("disallow"):
        s.start(3)
        first = s.extend(range(3), prompts(3), keys(range(3)))
        s.release([1, 2])
        s.extend([0], [np.array([first[0].ids[-1], 1])], keys([0], 1))


class TestErrors:
    def test_context_over_the_largest_cache(self, model):
        s = session(model)
        s.start(2)
        s.extend([0, 1], [np.ones(16, int), np.ones(2, int)], keys([0, 1]))
        for _ in range(8):
            with_room = s.cached(0) + 9 + 5 <= 48
            tokens = np.array([s._pending[0], *[1] * 8])
            if not with_room:
                break
            s.extend([0], [tokens], keys([0]))
        before = s.cached(0)
        with pytest.raises(
            ValueError, match=rf"needs {before + 14} cache slots \({before} cached \+ 9 .*are 48"
        ):
            s.extend([0], [tokens], keys([0]))
        assert s.cached(0) == before
        s.extend([1], [np.array([s._pending[1]])], keys([1]))  # the others go on

    def test_exactly_full_is_allowed(self, model):
        sampler.check_room(np.array([10]), np.array([4]), 3, 16)
        with pytest.raises(ValueError, match="row 1 needs 17 cache slots"):
            sampler.check_room(np.array([0, 10]), np.array([1, 5]), 3, 16)
        sampler.check_room(np.array([16]), np.array([0]), 3, 16)  # idle

    def test_prompt_and_rows_over_the_largest_size(self, model):
        s = session(model)
        with pytest.raises(ValueError, match=r"number of rows 9 .*\(2, 4, 8\)"):
            s.start(9)
        s.start(1)
        with pytest.raises(ValueError, match=r"prompt length 33 .*\(4, 8, 16, 32\)"):
            s.extend([0], [np.ones(33, int)], keys([0]))

    def test_last_sampled_token_must_come_first(self, model):
        s = session(model)
        s.start(1)
        last = s.extend([0], [np.array([1])], keys([0]))[0].ids[-1]
        with pytest.raises(ValueError, match=rf"row 0 .*last sampled id {last}, got {(last + 1) % VOCAB}"):
            s.extend([0], [np.array([(last + 1) % VOCAB])], keys([0]))

    def test_rows_that_are_not_in_play(self, model):
        s = session(model)
        with pytest.raises(ValueError, match="row 0 is not in play"):
            s.extend([0], [np.array([1])], keys([0]))
        s.start(3)
        s.release([1])
        with pytest.raises(ValueError, match=r"row 1 is not in play; rows in play: \[0, 2\]"):
            s.extend([1], [np.array([1])], keys([1]))
        with pytest.raises(ValueError, match="row 1 is not in play"):
            s.release([1])

    def test_arguments_that_disagree(self, model):
        s = session(model)
        s.start(2)
        with pytest.raises(ValueError, match="1 token lists"):
            s.extend([0, 1], [np.array([1])], keys([0, 1]))
        with pytest.raises(ValueError, match="1 distinct"):
            s.extend([0, 0], [np.array([1])] * 2, keys([0, 1]))
        with pytest.raises(ValueError, match="row 1 must not be empty"):
            s.extend([0, 1], [np.array([1]), np.array([], int)], keys([0, 1]))

    def test_cache_over_the_models_positions(self):
        small = decoder.init(sizes.micro(vocab_size=VOCAB, max_positions=40), KEY)
        with pytest.raises(ValueError, match=r"48 .*max_positions 40"):
            session(small)

    @pytest.mark.parametrize(
        ("change", "name"),
        [
            ({"max_new_tokens": 0}, "max_new_tokens"),
            ({"temperature": -1.0}, "temperature"),
            ({"temperature": float("nan")}, "temperature"),
            ({"top_k": -1}, "top_k must be 0"),
            ({"top_p": 0.0}, "top_p must be above 0"),
            ({"top_p": 1.5}, "top_p must be above 0"),
            ({"stop_ids": ()}, "stop_ids"),
            ({"stop_ids": (-1,)}, "stop_ids"),
        ],
    )
    def test_options(self, change, name):
        with pytest.raises(ValueError, match=name):
            options(**change)

    @pytest.mark.parametrize("sizes", [(), (0, 2), (4, 4), (4, 2)])
    def test_shapes(self, sizes):
        with pytest.raises(ValueError, match=r"Shapes\.prompt"):
            Shapes(batch=(1,), prompt=sizes, cache=(8,))
