"""Shared prompts, refilled rows, truncated sampling, stop strings: the same replies, fewer computations."""

from __future__ import annotations

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.envs import toy_env
from tests.rollout.test_sampler import CONFIG, VOCAB, keys, options, prompts, same, scored
from vict_jax.models import cache as kv
from vict_jax.models import decoder
from vict_jax.rollout import sampler
from vict_jax.rollout.sampler import Shapes
from vict_jax.rollout.session import Session
from vict_jax.rollout.tokenizer import Codec, first_stop, stop_table, train_tokenizer

PREFIX = [7, 1, 4, 4, 2]
SHAPES = Shapes(batch=(4, 8), prompt=(8, 32), cache=(48,))


@pytest.fixture(scope="module")
def model():
    return decoder.init(CONFIG, jax.random.key(1))


def session(model, prefix=(), **change):
    return Session(*model, options=options(**change), shapes=SHAPES, prefix=prefix)


def replies(s, texts, chosen=None, step=0):
    rows = range(len(texts)) if chosen is None else chosen
    return s.extend(rows, texts, keys(rows, step))


def test_equal_prompts_are_computed_once(model):
    """Two groups of four rows: two prefills, replies as if each row had been computed for itself."""
    a, b = prompts(2, low=5)
    texts = [a] * 4 + [b] * 4
    shared, alone = session(model), session(model)
    shared.start(8)
    together = replies(shared, texts)
    assert shared.shared_tokens == 3 * (len(a) + len(b))
    assert {sizes[0] for name, *sizes in shared.compiled if name == "prefill"} == {4}
    assert len({tuple(sample.ids) for sample in together}) > 4
    for row, text in enumerate(texts):
        alone.start(row + 1)  # alone in play, at another place, without sharing
        (sample,) = alone.extend([row], [text], keys([row]))
        same(together[row], sample)
    # And the copied rows go on as their own.
    then = [np.array([sample.ids[-1], 3 + row]) for row, sample in enumerate(together)]
    later = replies(shared, then, step=1)
    for row, sample in enumerate(later):
        alone.start(1)
        whole = np.array([*texts[row], *together[row].ids, 3 + row])
        same(sample, alone.extend([0], [whole], keys([row], 1))[0])


def test_a_common_prefix_is_computed_once(model):
    """With different, and with equal prompts behind it; windowed (started anew) and over several turns."""
    texts = [np.array([*PREFIX, *p]) for p in (*prompts(5, seed=1), *[[1, 2]] * 3)]
    s, plain = session(model, PREFIX), session(model)
    for step in range(3):
        s.start(8)
        plain.start(8)
        for a, b in zip(replies(s, texts, step=step), replies(plain, texts, step=step), strict=True):
            same(a, b)
    assert s.shared_tokens >= (3 * 8 - 1) * len(PREFIX)
    first = replies(s, [np.array([sample, 3]) for sample in s._pending.values()], step=4)
    whole = replies(plain, [np.array([sample, 3]) for sample in plain._pending.values()], step=4)
    for a, b in zip(first, whole, strict=True):
        same(a, b)
    s.restart([1])
    with pytest.raises(ValueError, match="row 1 must start with the prefix"):
        s.extend([1], [np.array([1, 2, 3, 4, 5, 6])], keys([1]))
    with pytest.raises(ValueError, match="row 1 must start with the prefix of the session and go on"):
        s.extend([1], [np.array(PREFIX)], keys([1]))


@pytest.mark.parametrize("prefix", [False, True])
def test_refilled_rows_equal_fresh_ones(model, prefix):
    """Rows begin anew beside rows in the middle of their sequences, at every turn."""
    rng = np.random.default_rng(5)
    begin = PREFIX if prefix else []
    s = session(model, begin)
    alone = session(model)
    s.start(5)
    sequences = [[*begin, *p] for p in prompts(5, seed=6)]
    for turn in range(6):
        if turn:
            renewed = [int(r) for r in rng.choice(5, 2, replace=False)]
            s.restart(renewed)
            for row in renewed:
                sequences[row] = [*begin, *rng.integers(0, VOCAB, rng.integers(1, 9))]
        samples = replies(s, [np.array(seq[s.cached(row) :]) for row, seq in enumerate(sequences)], step=turn)
        for row, sample in enumerate(samples):
            alone.start(1)
            same(sample, alone.extend([0], [np.array(sequences[row])], keys([row], turn))[0])
            sequences[row] += [*sample.ids, 1, 2]
            if len(sequences[row]) > 30:
                sequences[row] = [*begin, 4]
                s.restart([row])


def test_rows_that_wait_are_not_disturbed_by_new_ones(model):
    s, alone = session(model), session(model)
    texts = prompts(3, seed=3)
    s.start(3)
    first = replies(s, texts)
    s.restart([1])
    s.extend([1], [np.array([2, 2])], keys([1], 1))  # rows 0 and 2 wait
    s.release([1])
    later = s.extend([0], [np.array([first[0].ids[-1], 9])], keys([0], 2))[0]
    alone.start(1)
    same(later, alone.extend([0], [np.array([*texts[0], *first[0].ids, 9])], keys([0], 2))[0])


def test_programs_are_bounded_and_all_reported(model):
    """Whatever comes: `compiled` names every program that JAX had to compile, within the bound."""
    s = session(model, PREFIX)
    rng = np.random.default_rng(8)
    before = [f._cache_size() for f in (sampler.prefill, sampler._decode, kv.place_rows)]
    s.start(8)
    for turn in range(25):
        if not turn % 8:
            s.start(int(rng.integers(2, 9)))
        rows = sorted(s._slot)
        full = [row for row in rows if s.cached(row) > 30]
        s.restart(sorted({*full, *rows[:: int(rng.integers(1, 4))]}))
        texts = [
            np.array(
                [s._pending[row], 1]
                if row in s._pending
                else [*PREFIX, *rng.integers(0, 9, rng.integers(1, 12))]
            )
            for row in rows
        ]
        s.extend(rows, texts, keys(rows, turn))
        if len(rows) > 2 and turn % 3 == 2:
            s.release(rows[-1:])
    grown = [
        f._cache_size() - n
        for f, n in zip((sampler.prefill, sampler._decode, kv.place_rows), before, strict=True)
    ]
    by_name = {name: sum(sizes[0] == name for sizes in s.compiled) for name in ("prefill", "decode", "place")}
    assert sum(by_name.values()) == len(s.compiled) <= SHAPES.most_programs
    # Other tests of this process may have compiled some of them before.
    assert all(new <= by_name[name] for new, name in zip(grown, ("prefill", "decode", "place"), strict=True))
    assert min(by_name.values()) > 1


@pytest.mark.parametrize(
    ("top_k", "top_p"), [(0, 0.7), (0, 1e-6), (0, 0.999), (5, 1.0), (1, 1.0), (7, 0.6), (99, 0.5)]
)
def test_candidates_are_those_of_transformers(top_k, top_p):
    torch = pytest.importorskip("torch", reason="torch is the optional extra `parity`")
    from transformers import LogitsProcessorList, TopKLogitsWarper, TopPLogitsWarper

    z = np.random.default_rng(0).normal(size=(64, 57)).astype(np.float32) * 3
    z[:, 0] = [-0.0, 0.0] * 32
    warpers = LogitsProcessorList()
    if top_k:
        warpers.append(TopKLogitsWarper(min(top_k, 57)))
    if top_p < 1:
        warpers.append(TopPLogitsWarper(top_p))
    expected = torch.isfinite(warpers(None, torch.from_numpy(z))).numpy()
    np.testing.assert_array_equal(np.asarray(sampler.candidates(jnp.asarray(z), top_k, top_p)), expected)


def test_equally_probable_candidates_stay_together():
    z = jnp.asarray([[1.0, 2.0, 2.0, 2.0, -1.0]])
    assert np.asarray(sampler.candidates(z, 2, 1.0)).tolist() == [[False, True, True, True, False]]
    assert np.asarray(sampler.candidates(z, 0, 0.3)).tolist() == [[False, True, True, True, False]]


@functools.partial(jax.jit, static_argnames=("top_k", "top_p"))
def candidates(z, top_k=0, top_p=1.0):
    return sampler.candidates(z, top_k, top_p)


@pytest.mark.parametrize("change", [{"top_k": 3}, {"top_p": 0.5}, {"top_k": 6, "top_p": 0.8}])
def test_field_report_13_truncated_sampling_stores_the_trainers_log_probability(model, change):
    """Only candidates are drawn, all of them, renormalised; the stored values are those of the whole."""
    temperature, texts = 1.3, [np.array([5, 1, 9])] * 8
    s = session(model, temperature=temperature, **change)
    first = []
    for step in range(40):
        s.start(8)
        for sample in replies(s, texts, step=step):
            first.append(int(sample.ids[0]))
            if step < 2:
                sequence = [5, 1, 9, *sample.ids]
                logp, z = scored(model, sequence, temperature)
                np.testing.assert_allclose(sample.logp, logp[2:], atol=1e-4)
                z = np.pad(z, ((0, 48 - len(z)), (0, 0))) / temperature
                allowed = np.asarray(candidates(z, **change))
                assert allowed[np.arange(2, len(sequence) - 1), sample.ids].all()
    z = np.broadcast_to(scored(model, [5, 1, 9], temperature)[1][2] / temperature, (48, VOCAB))
    allowed = np.asarray(candidates(z, **change))[0]
    assert set(first) == set(np.flatnonzero(allowed))
    share = np.where(allowed, np.exp(z[0]), 0) / np.exp(z[0])[allowed].sum()
    for token in set(first):
        deviation = np.sqrt(share[token] * (1 - share[token]) / len(first))
        assert abs(first.count(token) / len(first) - share[token]) < 4.5 * deviation


CODEC = Codec(
    train_tokenizer([*toy_env.corpus(toy_env.ToyOptions()), "</action> <action> stop\nstop"] * 3, 400)
)
STOPS = ("</action>", "or\n", "oo", "\n\n", "door 1")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            ["do", "o", "or", "r\n", "\n", "</", "action", ">", "</action>", " door", " ", "1", "é", "x"]
        ),
        max_size=9,
    ),
    st.sets(st.sampled_from(STOPS), min_size=1),
)
def test_the_automaton_finds_the_token_that_completes_a_stop_string(pieces, stops):
    stops = tuple(sorted(stops))
    ids = [i for piece in pieces for i in CODEC.text(piece)]
    table = stop_table(CODEC.token_texts, stops, len(CODEC.tokenizer) + 3)
    state, found = 0, None
    for count, token in enumerate(ids, 1):
        state = table[state, token]
        if state < 0:
            found = count
            break
    assert found == first_stop(CODEC, ids, stops)


def test_tokens_without_text_do_not_interrupt_a_stop_string():
    """Those that only pad the vocabulary, and those whose text is empty."""
    table = stop_table(("ab", "", "b", "x"), ("abb",), 5)
    begun = table[0, 0]
    assert begun > 0
    assert table[begun, 1] == begun
    assert table[begun, 4] == begun
    assert table[begun, 2] == -1
    assert table[begun, 3] == 0, "another text does"


def test_replies_end_with_a_stop_string(model):
    """The reply ends with the token that completes it and is otherwise the one without stop strings."""
    texts = prompts(8, seed=4)
    ends = [(a, b) for a, b in itertools.product(range(8, 16), range(VOCAB))]
    table = np.zeros((2, VOCAB), np.int32)  # an automaton of its own: any of 8..15, then anything
    table[0, 8:16] = 1
    table[1] = -1
    plain, stopping = session(model), Session(*model, options=options(), shapes=SHAPES, stops=table)
    cut = 0
    for step in range(4):
        plain.start(8)
        stopping.start(8)
        whole, ended = replies(plain, texts, step=step), replies(stopping, texts, step=step)
        for a, b in zip(whole, ended, strict=True):
            at = [i + 2 for i in range(len(a.ids) - 1) if (int(a.ids[i]), int(a.ids[i + 1])) in ends]
            count = at[0] if at else len(a.ids)
            np.testing.assert_array_equal(b.ids, a.ids[:count])
            np.testing.assert_allclose(b.logp, a.logp[:count], atol=1e-5)
            assert b.stopped == (bool(at) or a.stopped)
            cut += count < len(a.ids)
        # The cache goes on right behind it.
        then = [np.array([sample.ids[-1], 1]) for sample in ended]
        again = [np.array([*t, *sample.ids, 1]) for t, sample in zip(texts, ended, strict=True)]
        later = replies(stopping, then, step=9)
        plain.start(8)
        for a, b in zip(later, replies(plain, again, step=9), strict=True):
            np.testing.assert_array_equal(a.ids, b.ids[: len(a.ids)])
    assert cut > 4
