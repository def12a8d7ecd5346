"""From a run's options to what its memory depends on."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Any

from envs.lookup import environment
from vict_jax.config import ModelOptions, RunConfig
from vict_jax.models.config import ModelConfig, from_hf
from vict_jax.plan.estimate import Setting
from vict_jax.rollout.options import ContextKind

# Options that hold whether a model is read or made.
_COMMON = ("dtype", "param_dtype", "scan_layers", "remat", "attention")


def hf_model(hf: Mapping[str, Any], options: ModelOptions) -> ModelConfig:
    """The model of a `config.json`, with what `options` say beside its sizes."""
    common = {name: getattr(options, name) for name in _COMMON}
    return dataclasses.replace(from_hf(hf), lora=options.lora, **common)


def model_of(config: RunConfig) -> ModelConfig:
    """The model of a run; one that is made has the most tokens that its tokenizer may have.

    Raises:
      FileNotFoundError: `model.path` has no `config.json`.
    """
    options = config.model
    if options.path:
        return hf_model(json.loads((pathlib.Path(options.path) / "config.json").read_text()), options)
    names = {field.name for field in dataclasses.fields(ModelConfig)}
    sizes = {name: value for name, value in dataclasses.asdict(options).items() if name in names}
    return ModelConfig(**sizes, lora=options.lora, max_positions=config.rollout.max_context)


def from_config(config: RunConfig, *, model: ModelConfig, devices: int) -> Setting:
    """What a run of `config` with `model` does on so many devices.

    The rows of an update are the most there can be: one for every sequence, none packed with another, and as
    many trained tokens in it as replies can have.
    """
    domain, _ = environment(config.env.name)
    rollouts = config.train.groups * config.train.rollouts
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
    )
