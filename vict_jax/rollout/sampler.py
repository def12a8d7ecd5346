"""Batched sampling on the device: a jitted prefill, a jitted decode, and the sizes they are compiled for.

`vict_jax.rollout.session` is the host side.

Stored log-probabilities are always those of softmax(logits / temperature) over the whole vocabulary, which
is what the trainer computes, so that PPO's ratio is exactly 1 before the first step. With `top_k` or
`top_p` the tokens come from the same distribution cut off and renormalised; the policy gradient then is
that of the whole distribution on samples that never come from its tail, which is what users of truncation
in training ask for. Without truncation both are the same.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax

from vict_jax.models import cache as kv
from vict_jax.models import decoder
from vict_jax.types import pytree


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplerOptions:
    """How replies are sampled.

    Attributes:
      max_new_tokens: limit of one reply, the stop token included.
      temperature: of the sampling distribution; 0 is greedy, for evaluation only (a policy gradient
        needs the distribution it sampled from).
      top_k: only the k most probable tokens are sampled; 0 is off.
      top_p: of these, only the most probable ones are sampled that together have probability p; 1 is off.
      stop_ids: a reply ends with the first of these tokens, which is part of it.
    """

    max_new_tokens: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    stop_ids: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be at least 1, got {self.max_new_tokens}")
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature must be 0 (greedy) or a positive number, got {self.temperature}")
        if self.top_k < 0:
            raise ValueError(f"top_k must be 0 (off) or more, got {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1 (off), got {self.top_p}")
        if not self.stop_ids or min(self.stop_ids) < 0:
            raise ValueError(f"stop_ids must be one or more token ids >= 0, got {self.stop_ids}")


@pytree
class Generation:
    """Sampled replies of b rows, padded with 0 after `count` tokens.

    Attributes:
      ids: i32[b, max_new], the stop token included.
      logp: f32[b, max_new], log-probability under softmax(logits / temperature) over the whole
        vocabulary, what `likelihood.token_logp` gives; at temperature 0 that of temperature 1.
      count: i32[b], tokens of the reply; 0 for a row with an empty prompt.
      stopped: bool[b], it ended with a stop token or a stop string; False with `count == max_new` is a
        truncation.
    """

    ids: jax.Array
    logp: jax.Array
    count: jax.Array
    stopped: jax.Array


def generate(
    graphdef: nnx.GraphDef,
    params: nnx.State,
    cache: kv.KVCache,
    ids: jax.Array,
    length: jax.Array,
    keys: jax.Array,
    *,
    options: SamplerOptions,
    fresh: bool = False,
    stops: jax.Array | None = None,
) -> tuple[kv.KVCache, Generation]:
    """Append ragged prompts to the cache and sample a reply to each.

    Token i of a row is drawn with `fold_in(keys[row], i)`: a row's reply depends on its prompt and
    its key, not on the rows beside it. The last sampled token is not in the returned cache: the
    caller puts it first in the row's next prompt. Two compiled programs, of which the second does
    not depend on the prompt size. `cache` is donated. Room for prompt and reply is not checked here
    (the lengths are on the device): see `check_room`.

    Args:
      cache: b rows; prompts go after `cache.length`.
      ids: i32[b, p], right-padded prompts. length: i32[b], their real lengths; a row of length 0
        is idle: nothing is appended or sampled.
      keys: typed PRNG keys [b], or their u32[b, 2] key data.
      fresh: take the cache as empty, whatever it holds.
      stops: i32[states, v], the automaton of the stop strings, see `tokenizer.stop_table`.
    """
    cache, last = prefill(graphdef, params, cache, ids, length, fresh=fresh)
    return reply(graphdef, params, cache, last, length, keys, stops, options)


def reply(
    graphdef: nnx.GraphDef,
    params: nnx.State,
    cache: kv.KVCache,
    last: jax.Array,
    length: jax.Array,
    keys: jax.Array,
    stops: jax.Array | None,
    options: SamplerOptions,
) -> tuple[kv.KVCache, Generation]:
    """Replies after prefill. The temperature is traced: training and evaluation share a program."""
    # One value per row, so that it lies where the rows lie.
    temperature = jax.device_put(np.full(length.shape, options.temperature, np.float32), length.sharding)
    return _decode(
        graphdef,
        params,
        cache,
        last,
        length,
        keys,
        temperature,
        stops,
        max_new=options.max_new_tokens,
        stop_ids=options.stop_ids,
        top_k=options.top_k,
        top_p=options.top_p,
    )


@functools.partial(jax.jit, static_argnums=(0,), static_argnames=("fresh",), donate_argnums=(2,))
def prefill(
    graphdef: nnx.GraphDef,
    params: nnx.State,
    cache: kv.KVCache,
    ids: jax.Array,
    length: jax.Array,
    *,
    fresh: bool,
) -> tuple[kv.KVCache, jax.Array]:
    """Append the prompts; returns the cache and the hidden state [b, d] of each last token."""
    offset = jnp.arange(ids.shape[1])
    segment = (offset < length[:, None]).astype(jnp.int32)
    position = jnp.broadcast_to(offset, ids.shape) + (0 if fresh else cache.length[:, None])
    hidden, cache = decoder.apply(graphdef, params, ids, segment, position, cache, fresh=fresh)
    return cache, hidden[jnp.arange(ids.shape[0]), jnp.maximum(length - 1, 0)]


@functools.partial(
    jax.jit,
    static_argnums=(0,),
    static_argnames=("max_new", "stop_ids", "top_k", "top_p"),
    donate_argnums=(2,),
)
def _decode(
    graphdef: nnx.GraphDef,
    params: nnx.State,
    cache: kv.KVCache,
    last: jax.Array,
    length: jax.Array,
    keys: jax.Array,
    temperature: jax.Array,
    stops: jax.Array | None,
    *,
    max_new: int,
    stop_ids: tuple[int, ...],
    top_k: int,
    top_p: float,
) -> tuple[kv.KVCache, Generation]:
    """Sample up to `max_new` tokens of the rows with a prompt, from the hidden states `last` [b, d] on."""
    keys = keys if jnp.issubdtype(keys.dtype, jax.dtypes.prng_key) else jax.random.wrap_key_data(keys)
    graphdef, params = decoder.unstack(graphdef, params)
    ends, rows = jnp.asarray(stop_ids, jnp.int32), last.shape[0]
    out = Generation(
        ids=jnp.zeros((rows, max_new), jnp.int32),
        logp=jnp.zeros((rows, max_new), jnp.float32),
        count=jnp.zeros((rows,), jnp.int32),
        stopped=jnp.zeros((rows,), bool),
    )

    def draw(step: Any, last: jax.Array, active: jax.Array, matched: jax.Array, out: Generation) -> tuple:
        """Sample token `step` of the active rows; returns it, who goes on, and the record."""
        z = decoder.logits(graphdef, params, last)
        key = jax.vmap(jax.random.fold_in, (0, None))(keys, step)
        token, logp = sample_token(z, key, temperature, top_k=top_k, top_p=top_p)
        stop = active & (token[:, None] == ends).any(axis=1)
        if stops is not None:
            matched = stops[matched, token]
            stop, matched = stop | (active & (matched < 0)), jnp.maximum(matched, 0)
        out = Generation(
            ids=out.ids.at[:, step].set(jnp.where(active, token, 0)),
            logp=out.logp.at[:, step].set(jnp.where(active, logp, 0.0)),
            count=out.count + active,
            stopped=out.stopped | stop,
        )
        return token, active & ~stop, matched, out

    def advance(state: tuple) -> tuple:
        step, token, active, matched, cache, out = state
        segment = active[:, None].astype(jnp.int32)
        hidden, cache = decoder.apply(graphdef, params, token[:, None], segment, cache.length[:, None], cache)
        token, active, matched, out = draw(step, hidden[:, 0], active, matched, out)
        return step + 1, token, active, matched, cache, out

    def unfinished(state: tuple) -> jax.Array:
        step, _, active, *_ = state
        return (step < max_new) & active.any()

    token, active, matched, out = draw(0, last, length > 0, jnp.zeros((rows,), jnp.int32), out)
    *_, cache, out = lax.while_loop(unfinished, advance, (1, token, active, matched, cache, out))
    return cache, out


def sample_token(
    z: jax.Array, keys: jax.Array, temperature: jax.Array, *, top_k: int = 0, top_p: float = 1.0
) -> tuple[jax.Array, jax.Array]:
    """Draw one token per row (Gumbel-max), or take the best one at temperature 0.

    Args:
      z: f32[b, v] logits. keys: typed keys [b]. temperature: f32[b].
      top_k, top_p: see `SamplerOptions`.

    Returns:
      token: i32[b]. logp: f32[b], under softmax(z / temperature), or softmax(z) at temperature 0, over the
        whole vocabulary.
    """
    greedy = (temperature == 0)[:, None]
    z = z / jnp.where(greedy, 1.0, temperature[:, None])
    noise = jax.vmap(lambda key: jax.random.gumbel(key, z.shape[1:], jnp.float32))(keys)
    score = jnp.where(candidates(z, top_k, top_p), z, -jnp.inf) if top_k or top_p < 1 else z
    score = score + jnp.where(greedy, 0.0, noise)
    # argmax as two plain reductions: XLA's own, a reduction over pairs, is four times slower on CPU.
    vocabulary = jnp.arange(z.shape[-1], dtype=jnp.int32)
    best = score == score.max(axis=-1, keepdims=True)
    token = jnp.where(best, vocabulary, z.shape[-1]).min(axis=-1)
    chosen = jnp.where(vocabulary == token[:, None], z, 0.0).sum(axis=-1)
    return token, chosen - jax.nn.logsumexp(z, axis=-1)


def candidates(z: jax.Array, top_k: int, top_p: float) -> jax.Array:
    """bool[b, v]: tokens that truncated sampling may draw, from scaled logits f32[b, v].

    `top_k` is applied first and `top_p` to what it leaves, renormalised (the order of transformers). Tokens
    as probable as the last one kept are kept.
    """
    order = lax.bitcast_convert_type(z, jnp.uint32)
    # Unsigned integers in the order of the floats.
    order = jnp.where(order >> 31 == 1, ~order, order | jnp.uint32(1 << 31))
    kept = jnp.ones(z.shape, bool)
    if top_k:
        kept = order >= _cut(order, kept.astype(jnp.float32), float(min(top_k, z.shape[-1])))
    if top_p < 1:
        probability = jax.nn.softmax(jnp.where(kept, z, -jnp.inf), axis=-1)
        kept &= order >= _cut(order, probability, top_p)
    return kept


def _cut(order: jax.Array, weight: jax.Array, least: float) -> jax.Array:
    """u32[b, 1], the largest cut so that the entries of a row with `order >= cut` weigh at least `least`.

    One bit after the other: 32 sums over a row instead of sorting it, which XLA does slowly on CPU.
    """

    def add_bit(i: jax.Array, cut: jax.Array) -> jax.Array:
        higher = cut | (jnp.uint32(1) << (31 - i).astype(jnp.uint32))
        enough = jnp.where(order >= higher, weight, 0.0).sum(axis=-1, keepdims=True) >= least
        return jnp.where(enough, higher, cut)

    return lax.fori_loop(0, 32, add_bit, jnp.zeros((order.shape[0], 1), jnp.uint32))


def row_keys(key: jax.Array, rollout: np.ndarray, step: np.ndarray) -> np.ndarray:
    """Key data u32[n, 2] of `fold_in(fold_in(key, rollout), step)`, computed at a padded size."""
    n = len(rollout)
    pad = (0, (1 << (n - 1).bit_length()) - n)
    padded = [np.pad(np.asarray(x, np.uint32), pad) for x in (rollout, step)]
    rollout, step = jax.device_put(padded, key.sharding)
    return jax.device_get(_row_keys(key, rollout, step))[:n]


@jax.jit
def _row_keys(key: jax.Array, rollout: jax.Array, step: jax.Array) -> jax.Array:
    by_rollout = jax.vmap(jax.random.fold_in, (None, 0))(key, rollout)
    return jax.random.key_data(jax.vmap(jax.random.fold_in)(by_rollout, step))


def bucket(n: int, sizes: Sequence[int], *, name: str) -> int:
    """The smallest of the ascending `sizes` that holds `n`.

    Raises:
      ValueError: none does; the message has `name`, `n` and the sizes.
    """
    for size in sizes:
        if n <= size:
            return size
    raise ValueError(f"{name} {n} is over the largest allowed size; sizes: {tuple(sizes)}")


def check_room(length: np.ndarray, new: np.ndarray, max_new_tokens: int, size: int) -> None:
    """Make sure that prompts and replies fit into a cache of `size` slots.

    Args:
      length: [b], tokens in the cache. new: [b], prompt lengths. The last sampled token needs no slot.

    Raises:
      ValueError: names the first row that does not fit, with the numbers.
    """
    need = np.where(new > 0, length + new + max_new_tokens - 1, length)
    if (need > size).any():
        row = int(np.argmax(need > size))
        raise ValueError(
            f"row {row} needs {need[row]} cache slots ({length[row]} cached + {new[row]} prompt + "
            f"{max_new_tokens} - 1 new tokens), there are {size}"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shapes:
    """The sizes that compiled programs may have, each ascending.

    Attributes:
      batch: rows. prompt: tokens of one prefill. cache: slots per row; the last one is the longest
        context, prompt and reply together.
    """

    batch: tuple[int, ...]
    prompt: tuple[int, ...]
    cache: tuple[int, ...]

    @property
    def most_programs(self) -> int:
        """The most programs that a session can compile with these sizes, see `Session.compiled`."""
        batch, cache = len(self.batch), len(self.cache)
        width = len(self.prompt) + cache  # prompts are padded to one of these, or to what a cache has left
        decode, prefill = batch * cache, batch * width * (2 * cache + 1)
        return decode + prefill + batch * width * decode + 1

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            sizes = getattr(self, field.name)
            if not sizes or sizes[0] < 1 or any(a >= b for a, b in itertools.pairwise(sizes)):
                raise ValueError(f"Shapes.{field.name} must be ascending positive sizes, got {sizes}")
