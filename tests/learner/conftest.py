"""A small learning problem shared by the learner's tests: a micro decoder and random rollouts.

Tests reach it through the fixture `lab`, since test folders are not packages.
"""

from __future__ import annotations

import dataclasses
import functools
import types

import jax
import numpy as np
import pytest

from vict_jax import batching, packing, sharding
from vict_jax.learner.losses import PpoOptions
from vict_jax.learner.microbatch import init_state
from vict_jax.learner.optimizer import OptimizerOptions, make_optimizer
from vict_jax.learner.update import compile_ppo
from vict_jax.models import config, decoder

VOCABULARY = 24
MODEL = config.ModelConfig(
    vocab_size=VOCABULARY, num_layers=2, d_model=16, num_heads=2, num_kv_heads=1, head_dim=8, d_ff=32
)


@functools.cache
def initial(seed):
    """(graphdef, params) on the host."""
    graphdef, params = decoder.init(MODEL, jax.random.key(seed))
    return graphdef, jax.device_get(params)


def fresh_params(mesh, seed=0):
    """(graphdef, params) on `mesh`, new buffers at every call; equal seeds give equal values."""
    graphdef, params = initial(seed)
    shardings = sharding.param_shardings(mesh, params, decoder.logical_axes(MODEL))
    return graphdef, jax.device_put(params, shardings)


def make_sequence(rng, *, steps, prompt=3, reply=2, first_step=0):
    """One appended sequence: for each step a prompt of `prompt` tokens and a reply of `reply`."""
    trained = np.tile(np.arange(prompt + reply) >= prompt, steps)
    return batching.TokenSequence(
        ids=rng.integers(0, VOCABULARY, trained.size).astype(np.int32),
        trained=trained,
        logp=(-3.0 + 0.3 * rng.normal(size=trained.size)).astype(np.float32),
        step=np.repeat(np.arange(first_step, first_step + steps), prompt + reply).astype(np.int32),
    )


def windowed(rng, *, steps, prompt=3, reply=2):
    """The same rollout as one sequence per step."""
    return [make_sequence(rng, steps=1, prompt=prompt, reply=reply, first_step=t) for t in range(steps)]


def pack(sequences_of, **options):
    """Rows of the rollouts' sequences, NumPy."""
    pairs = [(i, sequence) for i, sequences in enumerate(sequences_of) for sequence in sequences]
    return packing.pack_sequences(pairs, **options)[0]


@dataclasses.dataclass
class Problem:
    """A learner with its first state, on `mesh`."""

    mesh: jax.sharding.Mesh
    graphdef: object
    learner: object
    optimizer: object

    def state(self, seed=0):
        return init_state(fresh_params(self.mesh, seed)[1], self.optimizer)

    def put(self, batch):
        return batching.to_device(batch, sharding.batch_sharding(self.mesh))

    def put_replicated(self, x):
        return batching.to_device(np.asarray(x), sharding.replicated(self.mesh))


def make_problem(*, learning_rate=1e-2, mesh_shape=(1, 1, 1), clip_norm=0.0, **ppo):
    """A problem with PPO options `ppo`."""
    mesh = sharding.make_mesh(mesh_shape)
    graphdef, params = fresh_params(mesh)
    optimizer = make_optimizer(
        OptimizerOptions(learning_rate=learning_rate, clip_norm=clip_norm, eps=1e-3), total_steps=100
    )
    learner = compile_ppo(
        graphdef,
        params,
        optimizer,
        options=PpoOptions(**ppo),
        temperature=1.0,
        mesh=mesh,
    )
    return Problem(mesh=mesh, graphdef=graphdef, learner=learner, optimizer=optimizer)


@pytest.fixture(scope="session")
def lab():
    """The functions above."""
    return types.SimpleNamespace(
        MODEL=MODEL,
        VOCABULARY=VOCABULARY,
        fresh_params=fresh_params,
        initial=initial,
        make_problem=make_problem,
        make_sequence=make_sequence,
        pack=pack,
        windowed=windowed,
    )
