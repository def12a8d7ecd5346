"""Run by test_sharding.py in a process with 8 fake devices: prints sharded and single results as JSON."""

from __future__ import annotations

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np

from tests.models import sizes
from vict_jax import sharding
from vict_jax.models import decoder, likelihood
from vict_jax.rollout import sampler
from vict_jax.rollout.session import Session

CONFIG = sizes.micro(vocab_size=48, tie_embeddings=False)


def loss(graphdef, params, ids, segment, position):
    hidden, _ = decoder.apply(graphdef, params, ids, segment, position)
    logp, entropy = likelihood.token_logp_entropy(graphdef, params, hidden[:, :-1], ids[:, 1:], 0.9, chunk=32)
    real = segment[:, 1:] > 0
    return -jnp.where(real, logp + 0.01 * entropy, 0.0).sum() / real.sum()


def main(shape: tuple[int, int, int]) -> None:
    graphdef, params = decoder.init(CONFIG, jax.random.key(0))
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 48, (8, 12)).astype(np.int32)
    segment = (np.arange(12) < rng.integers(3, 13, (8, 1))).astype(np.int32)
    position = np.broadcast_to(np.arange(12, dtype=np.int32), ids.shape)
    step = jax.jit(jax.value_and_grad(loss, argnums=1), static_argnums=0)
    value, grad = step(graphdef, params, ids, segment, position)

    mesh = sharding.make_mesh(shape)
    where = sharding.param_shardings(mesh, params, decoder.logical_axes(CONFIG))
    split = jax.device_put(params, where)
    batch = jax.device_put((ids, segment, position), sharding.batch_sharding(mesh))
    value_split, grad_split = step(graphdef, split, *batch)

    difference = jax.tree.map(
        lambda a, b: float(np.abs(np.asarray(a) - np.asarray(b)).max()), grad, grad_split
    )
    samples, prefix = [], [5, 9]
    for weights, on in ((params, None), (split, mesh)):
        session = Session(
            graphdef,
            weights,
            options=sampler.SamplerOptions(max_new_tokens=5, stop_ids=(3,)),
            shapes=sampler.Shapes(batch=(4, 8), prompt=(8,), cache=(16, 24)),
            prefix=prefix,
            mesh=on,
        )
        key = jax.random.key(1)
        with jax.transfer_guard("disallow"):
            session.start(7)
            keys = sampler.row_keys(key, np.arange(7), np.zeros(7))
            # Equal prompts behind a common prefix; later one row begins anew beside three that go on.
            prompts = [np.array([*prefix, *row[:6]]) for row in ids[[0, 1, 2, 3, 0, 1, 2]]]
            first = session.extend(range(7), prompts, keys)
            session.release([1, 4, 5])
            session.restart([2])
            rows = [0, 2, 3, 6]
            after = [np.array([*prefix, 7] if r == 2 else [first[r].ids[-1], 9]) for r in rows]
            then = session.extend(rows, after, keys[rows])
        cache_shard = session._cache.k[0].addressable_shards[0].data.shape[:2]
        samples.append([[*map(int, s.ids)] for s in (*first, *then)])
    q = split["layers"]["q"][...]
    report = {
        "loss": [float(value), float(value_split)],
        "largest_gradient_difference": max(jax.tree.leaves(difference)),
        "samples": samples,
        "cache": list(cache_shard),
        "shard": list(q.addressable_shards[0].data.shape),
    }
    json.dump(report, sys.stdout)


if __name__ == "__main__":
    main(tuple(map(int, sys.argv[1].split(","))))  # type: ignore[arg-type]
