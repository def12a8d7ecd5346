"""From a run's options to what its memory depends on."""

from __future__ import annotations

import pathlib

from envs.lookup import environment
from vict_jax.config import RunConfig
from vict_jax.models import hf
from vict_jax.models.config import ModelConfig
from vict_jax.models.hf_files import read_json
from vict_jax.plan.estimate import Setting
from vict_jax.rollout.options import ContextKind


def model_of(config: RunConfig) -> ModelConfig:
    """The model of a run; one that is made has the most tokens that its tokenizer may have.

    Raises:
      FileNotFoundError: `model.path` has no `config.json`.
    """
    options = config.model
    if options.path:
        return options.read(read_json(pathlib.Path(options.path) / hf.CONFIG))
    return options.made(vocab_size=options.vocab_size, max_positions=config.rollout.max_context)


def from_config(config: RunConfig, *, model: ModelConfig, devices: int) -> Setting:
    """What a run of `config` with `model` does on so many devices.

    The rows of an update are the most there can be: one for every sequence, none packed with another, and as
    many trained tokens in it as replies can have. Groups of recoveries are among them. Not counted, as small
    beside what is: a critic's head, d_model + 1 numbers, and the outcomes in the rows of HCAPO's pass, which
    has no backward pass.
    """
    domain, _ = environment(config.env.name)
    recovered = config.fission.recoveries if config.fission.branches else 0
    rollouts = (config.train.groups + recovered) * config.train.rollouts
    windowed = ContextKind(config.rollout.context) is ContextKind.WINDOW
    length = config.rollout.max_context
    steps = domain.max_steps(config.env.options)
    trained = config.rollout.max_new_tokens * (1 if windowed else steps)
    return Setting(
        model=model,
        mesh=config.mesh.shape(devices),
        rows=rollouts * (steps if windowed else 1),
        length=length,
        micro_rows=config.ppo.micro_rows,
        width=min(length, max(32, 1 << (trained - 1).bit_length())),
        sample_rows=config.rollout.rows,
        slots=length,
        reference=config.ppo.kl_coefficient > 0,
        stale=config.train.staleness > 0,
    )
