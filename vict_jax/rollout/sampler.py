"""Batched sampling: a jitted prefill-and-decode, and a host session that keeps its shapes bounded.

`generate` is the device part. `Session` is the host part: it pads ragged prompts into a few shapes,
keeps the key/value cache across turns, and gathers the rows still in play into smaller batches. A
windowed context calls `start` at every step; an appended context starts once and extends.
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

from vict_jax import sharding
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
      stop_ids: a reply ends with the first of these tokens, which is part of it.
    """

    max_new_tokens: int
    temperature: float = 1.0
    stop_ids: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be at least 1, got {self.max_new_tokens}")
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature must be 0 (greedy) or a positive number, got {self.temperature}")
        if not self.stop_ids or min(self.stop_ids) < 0:
            raise ValueError(f"stop_ids must be one or more token ids >= 0, got {self.stop_ids}")


@pytree
class Generation:
    """Sampled replies of b rows, padded with 0 after `count` tokens.

    Attributes:
      ids: i32[b, max_new], the stop token included.
      logp: f32[b, max_new], log-probability under softmax(logits / temperature) over the whole
        vocabulary, what `decoder.token_logp` gives; at temperature 0 that of temperature 1.
      count: i32[b], tokens of the reply; 0 for a row with an empty prompt.
      stopped: bool[b], it ended with a stop token; False with `count == max_new` is a truncation.
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
    """
    cache, last = _prefill(graphdef, params, cache, ids, length, fresh=fresh)
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
        max_new=options.max_new_tokens,
        stop_ids=options.stop_ids,
    )


@functools.partial(jax.jit, static_argnums=(0,), static_argnames=("fresh",), donate_argnums=(2,))
def _prefill(
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


@functools.partial(jax.jit, static_argnums=(0,), static_argnames=("max_new", "stop_ids"), donate_argnums=(2,))
def _decode(
    graphdef: nnx.GraphDef,
    params: nnx.State,
    cache: kv.KVCache,
    last: jax.Array,
    length: jax.Array,
    keys: jax.Array,
    temperature: jax.Array,
    *,
    max_new: int,
    stop_ids: tuple[int, ...],
) -> tuple[kv.KVCache, Generation]:
    """Sample up to `max_new` tokens of the rows with a prompt, from the hidden states `last` [b, d] on."""
    keys = keys if jnp.issubdtype(keys.dtype, jax.dtypes.prng_key) else jax.random.wrap_key_data(keys)
    graphdef, params = decoder.unstack(graphdef, params)
    stops, rows = jnp.asarray(stop_ids, jnp.int32), last.shape[0]
    out = Generation(
        ids=jnp.zeros((rows, max_new), jnp.int32),
        logp=jnp.zeros((rows, max_new), jnp.float32),
        count=jnp.zeros((rows,), jnp.int32),
        stopped=jnp.zeros((rows,), bool),
    )

    def draw(step: Any, last: jax.Array, active: jax.Array, out: Generation) -> tuple:
        """Sample token `step` of the active rows; returns it, who goes on, and the record."""
        z = decoder.logits(graphdef, params, last)
        token, logp = sample_token(z, jax.vmap(jax.random.fold_in, (0, None))(keys, step), temperature)
        stop = active & (token[:, None] == stops).any(axis=1)
        out = Generation(
            ids=out.ids.at[:, step].set(jnp.where(active, token, 0)),
            logp=out.logp.at[:, step].set(jnp.where(active, logp, 0.0)),
            count=out.count + active,
            stopped=out.stopped | stop,
        )
        return token, active & ~stop, out

    def advance(state: tuple) -> tuple:
        step, token, active, cache, out = state
        segment = active[:, None].astype(jnp.int32)
        hidden, cache = decoder.apply(graphdef, params, token[:, None], segment, cache.length[:, None], cache)
        token, active, out = draw(step, hidden[:, 0], active, out)
        return step + 1, token, active, cache, out

    def unfinished(state: tuple) -> jax.Array:
        step, _, active, _, _ = state
        return (step < max_new) & active.any()

    token, active, out = draw(0, last, length > 0, out)
    *_, cache, out = lax.while_loop(unfinished, advance, (1, token, active, cache, out))
    return cache, out


def sample_token(z: jax.Array, keys: jax.Array, temperature: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Draw one token per row (Gumbel-max), or take the best one at temperature 0.

    Args:
      z: f32[b, v] logits. keys: typed keys [b]. temperature: f32[b].

    Returns:
      token: i32[b]. logp: f32[b], under softmax(z / temperature), or softmax(z) at temperature 0.
    """
    greedy = (temperature == 0)[:, None]
    z = z / jnp.where(greedy, 1.0, temperature[:, None])
    noise = jax.vmap(lambda key: jax.random.gumbel(key, z.shape[1:], jnp.float32))(keys)
    score = z + jnp.where(greedy, 0.0, noise)
    # argmax as two plain reductions: XLA's own, a reduction over pairs, is four times slower on CPU.
    vocabulary = jnp.arange(z.shape[-1], dtype=jnp.int32)
    best = score == score.max(axis=-1, keepdims=True)
    token = jnp.where(best, vocabulary, z.shape[-1]).min(axis=-1)
    chosen = jnp.where(vocabulary == token[:, None], z, 0.0).sum(axis=-1)
    return token, chosen - jax.nn.logsumexp(z, axis=-1)


def row_keys(key: jax.Array, rollout: np.ndarray, step: np.ndarray) -> np.ndarray:
    """Key data u32[n, 2] of `fold_in(fold_in(key, rollout), step)`, computed at a padded size."""
    n = len(rollout)
    pad = (0, (1 << (n - 1).bit_length()) - n)
    rollout, step = (jax.device_put(np.pad(np.asarray(x, np.uint32), pad)) for x in (rollout, step))
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

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            sizes = getattr(self, field.name)
            if not sizes or sizes[0] < 1 or any(a >= b for a, b in itertools.pairwise(sizes)):
                raise ValueError(f"Shapes.{field.name} must be ascending positive sizes, got {sizes}")


@dataclasses.dataclass(frozen=True)
class Sample:
    """One reply on the host: ids i32[n], logp f32[n], and whether a stop token ended it."""

    ids: np.ndarray
    logp: np.ndarray
    stopped: bool


def _sample(out: Generation, row: int) -> Sample:
    """One row of a generation that has been fetched to the host."""
    ids, logp, n = np.asarray(out.ids), np.asarray(out.logp), int(out.count[row])
    return Sample(ids=ids[row, :n].copy(), logp=logp[row, :n].copy(), stopped=bool(out.stopped[row]))


class Session:
    """Rows that are sampled together, over one or more turns. Host side; not thread-safe.

    With a `mesh`, on which `params` lie, rows are split over its batch axes.

    `compiled` is the set of (batch, prompt, cache) sizes used so far. Each has one prefill program, or
    two where both first and later turns came in that size; each (batch, cache) has one decode program.
    """

    def __init__(
        self,
        graphdef: nnx.GraphDef,
        params: nnx.State,
        *,
        options: SamplerOptions,
        shapes: Shapes,
        mesh: jax.sharding.Mesh | None = None,
    ):
        self.graphdef, self.params, self.options, self.shapes = graphdef, params, options, shapes
        self.config = nnx.merge(graphdef, params).config
        self.compiled: set[tuple[int, int, int]] = set()
        self._rows = None if mesh is None else sharding.batch_sharding(mesh, shapes.batch)
        self._cache: kv.KVCache | None = None
        self._batch = shapes.batch[0]
        self._slot: dict[int, int] = {}  # row in play -> its place in the batch
        self._length = np.zeros(self._batch, np.int32)  # [batch], as in the cache
        self._pending: dict[int, int] = {}  # row -> sampled token that is not in the cache yet
        if shapes.cache[-1] > self.config.max_positions:
            raise ValueError(
                f"the largest cache size {shapes.cache[-1]} is over the model's "
                f"max_positions {self.config.max_positions}"
            )

    def start(self, rows: int) -> None:
        """Forget everything and begin with `rows` rows, numbered 0 ... rows - 1, all empty."""
        batch = bucket(rows, self.shapes.batch, name="number of rows")
        if batch != self._batch:
            self._cache = None
        self._batch = batch
        self._slot = {row: row for row in range(rows)}
        self._length = np.zeros(batch, np.int32)
        self._pending = {}

    def release(self, rows: Sequence[int]) -> None:
        """Rows that are over: they are not sampled again, and their places are freed."""
        for row in rows:
            if row not in self._slot:
                raise ValueError(f"row {row} is not in play; rows in play: {sorted(self._slot)}")
            del self._slot[row]
            self._pending.pop(row, None)
        self._compact()

    def cached(self, row: int) -> int:
        """Tokens of `row` that the cache holds; its next prompt starts with token number `cached`."""
        return int(self._length[self._slot[row]])

    def extend(self, rows: Sequence[int], tokens: Sequence[np.ndarray], keys: np.ndarray) -> list[Sample]:
        """Append `tokens[i]` to row `rows[i]` and sample its reply.

        Rows in play that are not named wait.

        Args:
          rows: distinct rows in play.
          tokens: at least one id each; from a row's second turn on the first is its last sampled id.
          keys: u32[len(rows), 2] key data, see `row_keys`.

        Raises:
          ValueError: arguments that disagree, or a context that does not fit the largest cache.
        """
        self._check(rows, tokens, keys)
        place = np.array([self._slot[row] for row in rows])
        new = np.zeros(self._batch, np.int32)
        new[place] = [len(t) for t in tokens]
        check_room(self._length, new, self.options.max_new_tokens, self.shapes.cache[-1])
        need = int(np.max(self._length + np.where(new > 0, new + self.options.max_new_tokens - 1, 0)))
        fresh = not self._length.any()
        cache = self._reserve(bucket(need, self.shapes.cache, name="context length"), fresh)
        width = bucket(int(new.max()), self.shapes.prompt, name="prompt length")
        ids = np.zeros((self._batch, width), np.int32)
        for at, t in zip(place, tokens, strict=True):
            ids[at, : len(t)] = t
        key_data = np.zeros((self._batch, *keys.shape[1:]), np.uint32)
        key_data[place] = keys
        self.compiled.add((self._batch, width, cache.size))
        inputs = jax.device_put((ids, new, key_data), self._rows)
        self._cache, out = generate(
            self.graphdef, self.params, cache, *inputs, options=self.options, fresh=fresh
        )
        out = jax.device_get(out)
        self._length += new + np.maximum(out.count - 1, 0)
        samples = [_sample(out, at) for at in place]
        self._pending.update({row: int(s.ids[-1]) for row, s in zip(rows, samples, strict=True)})
        return samples

    def _check(self, rows: Sequence[int], tokens: Sequence[np.ndarray], keys: np.ndarray) -> None:
        if not len(rows) == len(tokens) == len(keys) == len(set(rows)) or not rows:
            raise ValueError(
                f"rows, tokens and keys must be equally many, at least one, rows distinct; got {len(rows)} "
                f"rows ({len(set(rows))} distinct), {len(tokens)} token lists, {len(keys)} keys"
            )
        for row, t in zip(rows, tokens, strict=True):
            if row not in self._slot:
                raise ValueError(f"row {row} is not in play; rows in play: {sorted(self._slot)}")
            if not len(t):
                raise ValueError(f"tokens of row {row} must not be empty")
            if row in self._pending and t[0] != self._pending[row]:
                raise ValueError(
                    f"tokens of row {row} must start with its last sampled id "
                    f"{self._pending[row]}, got {t[0]}"
                )

    def _reserve(self, size: int, fresh: bool) -> kv.KVCache:
        """A cache of the present batch: of `size` slots if `fresh`, else of at least that many."""
        if self._cache is None or (fresh and self._cache.size != size):
            return jax.device_put(kv.init_cache(self.config, self._batch, size), self._rows)
        return kv.grow(self._cache, size) if self._cache.size < size else self._cache

    def _compact(self) -> None:
        """Gather the rows in play into the smallest batch size that holds them."""
        batch = bucket(max(1, len(self._slot)), self.shapes.batch, name="number of rows")
        if batch == self._batch:
            return
        place = np.array(list(self._slot.values()), np.int32)
        index = np.pad(place, (0, batch - len(place)))
        if self._cache is not None:
            rows = kv.take_rows(self._cache, jax.device_put(index, self._rows))
            self._cache = jax.device_put(rows, self._rows)
        self._length = np.where(np.arange(batch) < len(place), self._length[index], 0)
        self._slot = {row: at for at, row in enumerate(self._slot)}
        self._batch = batch
