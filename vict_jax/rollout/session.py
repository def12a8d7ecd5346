"""The host side of sampling: rows over several turns, in a bounded number of compiled shapes.

What prompts share is computed once: a prefix that all of them have (system message, examples), and whole
prompts that are equal (the first ones of a group's rollouts). Such a prompt, and any that begins a new
sequence beside rows that go on, is computed in a small batch of its own and copied into its rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from vict_jax import sharding
from vict_jax.models import cache as kv
from vict_jax.rollout import sampler
from vict_jax.rollout.sampler import Generation, SamplerOptions, Shapes, bucket, check_room


@dataclasses.dataclass(frozen=True)
class Sample:
    """One reply on the host: ids i32[n], logp f32[n], and whether a stop token or string ended it."""

    ids: np.ndarray
    logp: np.ndarray
    stopped: bool


def _sample(out: Generation, row: int) -> Sample:
    """One row of a generation that has been fetched to the host."""
    ids, logp, n = np.asarray(out.ids), np.asarray(out.logp), int(out.count[row])
    return Sample(ids=ids[row, :n].copy(), logp=logp[row, :n].copy(), stopped=bool(out.stopped[row]))


class Session:
    """Rows that are sampled together, over one or more turns. Host side; not thread-safe.

    Rows are split over the batch axes of `mesh`, on which `params` lie; None is the first device.

    Attributes:
      compiled: the programs used so far, as (name, sizes ...): `prefill` and `place` with rows, prompt and
        cache sizes, `decode` with rows and cache size. At most `shapes.most_programs`.
      shared_tokens: prompt tokens so far that were copied instead of computed.
    """

    def __init__(
        self,
        graphdef: nnx.GraphDef,
        params: nnx.State,
        *,
        options: SamplerOptions,
        shapes: Shapes,
        prefix: Sequence[int] = (),
        stops: np.ndarray | None = None,
        mesh: jax.sharding.Mesh | None = None,
    ):
        """Args: as of `generate`; `prefix`, ids that every sequence begins with."""
        self.graphdef, self.params, self.options, self.shapes = graphdef, params, options, shapes
        self.config = nnx.merge(graphdef, params).config
        self.compiled: set[tuple[str | int, ...]] = set()
        self.shared_tokens = 0
        # Also on one device: arrays that are not put anywhere by name would have programs of their own.
        self._mesh = sharding.make_mesh() if mesh is None else mesh
        self._rows = sharding.batch_sharding(self._mesh, shapes.batch)
        self._everywhere = sharding.replicated(self._mesh)
        self._stops = None if stops is None else jax.device_put(stops, self._everywhere)
        self._prefix = np.asarray(prefix, np.int32)
        self._prefix_cache: kv.KVCache | None = None  # one row, made when first needed
        self._cache: kv.KVCache | None = None
        self._batch = shapes.batch[0]
        self._slot: dict[int, int] = {}  # row in play -> its place in the batch
        self._length = np.zeros(self._batch, np.int32)  # [batch], tokens in the cache
        # Row that holds something -> its last sampled token, which is not in the cache yet.
        self._pending: dict[int, int] = {}
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

    def restart(self, rows: Sequence[int]) -> None:
        """Rows in play whose next prompt begins a new sequence, or another rollout."""
        for row in rows:
            self._length[self._place(row)] = 0
            self._pending.pop(row, None)

    def release(self, rows: Sequence[int]) -> None:
        """Rows that are over: they are not sampled again, and their places are freed."""
        self.restart(rows)
        for row in rows:
            del self._slot[row]

    def cached(self, row: int) -> int:
        """Tokens of `row` that the cache holds; its next prompt starts with token number `cached`."""
        return int(self._length[self._place(row)])

    def extend(self, rows: Sequence[int], tokens: Sequence[np.ndarray], keys: np.ndarray) -> list[Sample]:
        """Append `tokens[i]` to row `rows[i]` and sample its reply.

        Rows in play that are not named wait.

        Args:
          rows: distinct rows in play.
          tokens: at least one id each. Of a row that is empty the whole prompt, `prefix` included; from its
            second turn on the first is its last sampled id.
          keys: u32[len(rows), 2] key data, see `row_keys`.

        Raises:
          ValueError: arguments that disagree, or a context that does not fit the largest cache.
        """
        tokens = [np.asarray(t, np.int32) for t in tokens]
        self._check(rows, tokens, keys)
        self._compact()
        place = np.array([self._slot[row] for row in rows])
        new = np.zeros(self._batch, np.int32)
        new[place] = [len(t) for t in tokens]
        check_room(self._length, new, self.options.max_new_tokens, self.shapes.cache[-1])
        room = np.where(new > 0, new + self.options.max_new_tokens - 1, 0)
        size = bucket(int(np.max(self._length + room)), self.shapes.cache, name="context length")
        cache, last = self._prefill(rows, tokens, self._reserve(size))
        key_data = np.zeros((self._batch, *keys.shape[1:]), np.uint32)
        key_data[place] = keys
        self.compiled.add(("decode", self._batch, cache.size))
        counts, key_data = jax.device_put((new, key_data), self._rows)
        self._cache, out = sampler.reply(
            self.graphdef, self.params, cache, last, counts, key_data, self._stops, self.options
        )
        out = jax.device_get(out)
        self._length += new + np.maximum(out.count - 1, 0)
        samples = [_sample(out, at) for at in place]
        self._pending.update({row: int(s.ids[-1]) for row, s in zip(rows, samples, strict=True)})
        return samples

    def _place(self, row: int) -> int:
        if row not in self._slot:
            raise ValueError(f"row {row} is not in play; rows in play: {sorted(self._slot)}")
        return self._slot[row]

    def _check(self, rows: Sequence[int], tokens: Sequence[np.ndarray], keys: np.ndarray) -> None:
        if not len(rows) == len(tokens) == len(keys) == len(set(rows)) or not rows:
            raise ValueError(
                f"rows, tokens and keys must be equally many, at least one, rows distinct; got {len(rows)} "
                f"rows ({len(set(rows))} distinct), {len(tokens)} token lists, {len(keys)} keys"
            )
        for row, t in zip(rows, tokens, strict=True):
            self._place(row)
            if not len(t):
                raise ValueError(f"tokens of row {row} must not be empty")
            if row in self._pending and t[0] != self._pending[row]:
                raise ValueError(
                    f"tokens of row {row} must start with its last sampled id "
                    f"{self._pending[row]}, got {t[0]}"
                )
            base = len(self._prefix)
            if row not in self._pending and (len(t) <= base or not np.array_equal(t[:base], self._prefix)):
                raise ValueError(f"tokens of row {row} must start with the prefix of the session and go on")

    def _prefill(
        self, rows: Sequence[int], tokens: Sequence[np.ndarray], cache: kv.KVCache
    ) -> tuple[kv.KVCache, jax.Array]:
        """Append prompts; returns the cache and the hidden state [batch, d] of each last token."""
        base = len(self._prefix)
        prompts = {self._slot[row]: t for row, t in zip(rows, tokens, strict=True)}
        going = {place: t for place, t in prompts.items() if self._length[place]}
        fresh = {place: t[base:] for place, t in prompts.items() if not self._length[place]}
        distinct = list({t.tobytes(): t for t in fresh.values()}.values())
        # Where there is nothing to share, nothing in the cache, and no smaller batch would do, prompts are
        # computed where they belong.
        smallest = bucket(max(1, len(distinct)), self.shapes.batch, name="number of prompts")
        if not base and not self._pending and smallest == self._batch:
            return self._run_prefill(cache, fresh, fresh=True)
        if not going:
            return self._insert(cache, None, fresh, distinct)
        cache = dataclasses.replace(cache, length=jax.device_put(self._length, self._rows))
        cache, last = self._run_prefill(cache, going, fresh=False)
        return self._insert(cache, last, fresh, distinct) if fresh else (cache, last)

    def _insert(
        self,
        cache: kv.KVCache,
        last: jax.Array | None,
        prompts: Mapping[int, np.ndarray],
        distinct: Sequence[np.ndarray],
    ) -> tuple[kv.KVCache, jax.Array]:
        """Compute prompts that begin a sequence in a batch of their own, each once, and copy them in."""
        base, rows = len(self._prefix), bucket(len(distinct), self.shapes.batch, name="number of prompts")
        self.shared_tokens += sum(base + len(t) for t in prompts.values()) - sum(map(len, distinct))
        size = base + min(self._width(distinct), cache.size - base)
        part = self._with_prefix(rows, size) if base else self._empty(rows, size)
        part, part_last = self._run_prefill(part, dict(enumerate(distinct)), fresh=not base)
        number = {t.tobytes(): i for i, t in enumerate(distinct)}
        source = np.full(self._batch, -1, np.int32)
        source[list(prompts)] = [number[t.tobytes()] for t in prompts.values()]
        self.compiled.add(("place", rows, size, self._batch, cache.size))
        on_device = jax.device_put(source, self._rows)
        return kv.place_rows(cache, part, on_device), _place_last(last, part_last, on_device)

    def _run_prefill(
        self, cache: kv.KVCache, prompts: Mapping[int, np.ndarray], *, fresh: bool
    ) -> tuple[kv.KVCache, jax.Array]:
        """The compiled prefill of prompts (row of `cache` -> ids)."""
        rows = cache.length.shape[0]
        width = min(self._width(list(prompts.values())), cache.size)
        ids, new = np.zeros((rows, width), np.int32), np.zeros(rows, np.int32)
        for row, t in prompts.items():
            ids[row, : len(t)], new[row] = t, len(t)
        self.compiled.add(("prefill", rows, width, cache.size, fresh))
        ids, new = jax.device_put((ids, new), self._rows)
        return sampler.prefill(self.graphdef, self.params, cache, ids, new, fresh=fresh)

    def _width(self, prompts: Sequence[np.ndarray]) -> int:
        return bucket(max(map(len, prompts)), self.shapes.prompt, name="prompt length")

    def _reserve(self, size: int) -> kv.KVCache:
        """The cache of the batch: of `size` slots, or of at least that many where rows hold something."""
        if self._cache is None or (not self._pending and self._cache.size != size):
            return self._empty(self._batch, size)
        return kv.grow(self._cache, size) if self._cache.size < size else self._cache

    def _empty(self, rows: int, size: int) -> kv.KVCache:
        return kv.init_cache(self.config, rows, size, self._mesh)

    def _with_prefix(self, rows: int, size: int) -> kv.KVCache:
        """A cache whose rows hold the prefix, which is computed at the first call."""
        if self._prefix_cache is None:
            held = len(self._prefix)
            self.shared_tokens -= held
            self.compiled.add(("prefill", 1, held, held, True))
            cache = kv.init_cache(self.config, 1, held, self._mesh)
            ids, length = jax.device_put((self._prefix[None], np.full(1, held, np.int32)), self._everywhere)
            self._prefix_cache, _ = sampler.prefill(
                self.graphdef, self.params, cache, ids, length, fresh=True
            )
        return kv.repeat_row(self._prefix_cache, rows, size)

    def _compact(self) -> None:
        """Gather the rows in play into the smallest batch size that holds them."""
        batch = bucket(max(1, len(self._slot)), self.shapes.batch, name="number of rows")
        if batch == self._batch:
            return
        place = np.array(list(self._slot.values()), np.int32)
        index = np.pad(place, (0, batch - len(place)))
        if self._cache is not None and self._pending:
            self._cache = kv.take_rows(self._cache, jax.device_put(index, self._rows))
        else:
            self._cache = None
        self._length = np.where(np.arange(batch) < len(place), self._length[index], 0)
        self._slot = {row: at for at, row in enumerate(self._slot)}
        self._batch = batch


@jax.jit
def _place_last(last: jax.Array | None, part: jax.Array, source: jax.Array) -> jax.Array:
    """Hidden states [b, d] with those of `part` in the rows that take them, see `kv.place_rows`."""
    taken = jnp.take(part, jnp.maximum(source, 0), axis=0)
    return taken if last is None else jnp.where((source >= 0)[:, None], taken, last)
