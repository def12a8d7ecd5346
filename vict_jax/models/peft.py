"""Adapters in the directory format of the `peft` package, written and read without it.

    DIR/adapter_config.json           rank, alpha, targets
    DIR/adapter_model.safetensors     `base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight` ...

Reading is as strict as that of checkpoints: an unknown, missing or misshaped tensor, or a setting in use that
the decoder does not have, is an error.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import safetensors
from flax import nnx
from jax.sharding import Mesh
from safetensors.numpy import save_file

from vict_jax.models import decoder, lora
from vict_jax.models.config import LORA_TARGETS, LoraOptions, ModelConfig
from vict_jax.models.hf_files import FILE_DTYPES, complete_or_absent, listed, read_json, to_host, write_json
from vict_jax.models.hf_keys import Slot, key_table
from vict_jax.sharding import param_shardings

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
_PREFIX = "base_model.model."

# Settings of adapter_config.json that change what is computed or trained, and the spellings of what the
# decoder has. A setting that is not there means that as well.
_ONLY: Mapping[str, tuple[Any, ...]] = {
    "bias": ("none",),
    "fan_in_fan_out": (False,),
    "use_rslora": (False,),
    "use_dora": (False,),
    "lora_bias": (False,),
    "lora_dropout": (0.0,),
    "rank_pattern": ({}, None),
    "alpha_pattern": ({}, None),
    "modules_to_save": ([], None),
    "layers_to_transform": ([], None),
    "exclude_modules": ([], None),
    "target_parameters": ([], None),
    "trainable_token_indices": ([], {}, None),
}


def save(
    folder: pathlib.Path,
    config: ModelConfig,
    adapters: nnx.State,
    *,
    base_model: str,
    overwrite: bool = False,
) -> None:
    """Write a directory that `peft.PeftModel.from_pretrained` and `load` read.

    Written under another name and renamed when complete; every process of a run calls it, the first writes.

    Args:
      config: with `lora`. adapters: its adapters, wherever they lie.
      base_model: directory or name of the base, for `base_model_name_or_path`.
      overwrite: replace a directory that is there already.

    Raises:
      FileExistsError: `folder` is a file, or a directory with something in it and `overwrite` is False.
      ValueError: `config.lora` is None, or the adapters are not those that `config` says.
    """
    options, layers = lora.options_of(config), nnx.to_pure_dict(adapters).get("layers", {})
    table = _adapter_table(config)
    declared = {slot.path[-1]: (config.num_layers, *slot.shape[::-1]) for slot in table.values()}
    given = {name: leaf.shape for name, leaf in layers.items()}
    if given != declared:
        raise ValueError(f"the adapters have shapes {given}, the configuration says {declared}")
    tensors = {key: np.ascontiguousarray(to_host(layers[s.path[-1]], s)) for key, s in table.items()}
    if jax.process_index() != 0:
        return
    with complete_or_absent(folder, overwrite) as temporary:
        save_file(tensors, temporary / WEIGHTS, metadata={"format": "pt"})
        (temporary / WEIGHTS).chmod(temporary.stat().st_mode & 0o666)  # the library keeps it to its owner
        write_json(temporary / CONFIG, _config_of(options, base_model))


def load_options(folder: pathlib.Path) -> LoraOptions:
    """Rank, alpha and targets from an `adapter_config.json`.

    Raises:
      FileNotFoundError: there is none.
      ValueError: it is no LoRA, or uses what the decoder does not have; names the setting and its value.
    """
    values = read_json(folder / CONFIG)
    if values.get("peft_type") != "LORA":
        raise ValueError(
            f"unsupported peft_type {values.get('peft_type')!r} in {folder / CONFIG}; only 'LORA'"
        )
    for name, allowed in _ONLY.items():
        if name in values and values[name] not in allowed:
            raise ValueError(
                f"unsupported {name} {values[name]!r} in {folder / CONFIG}; allowed: {allowed[0]!r}"
            )
    targets = values.get("target_modules")
    if not isinstance(targets, list) or not all(isinstance(target, str) for target in targets):
        raise ValueError(f"target_modules in {folder / CONFIG} must be a list of names, got {targets!r}")
    missing = [name for name in ("r", "lora_alpha") if name not in values]
    if missing:
        raise ValueError(f"{folder / CONFIG} lacks {missing}")
    try:
        return LoraOptions(rank=values["r"], alpha=values["lora_alpha"], targets=frozenset(targets))
    except ValueError as error:
        raise ValueError(f"{folder / CONFIG}: {error}") from error


def load(folder: pathlib.Path, config: ModelConfig, mesh: Mesh) -> tuple[ModelConfig, nnx.State]:
    """Read adapters for a base.

    Args:
      folder: the directory; its tensors may be float32, float16 or bfloat16.
      config: of the base. Its `lora`, if set, must be what the directory holds.
      mesh: that the base lies on.

    Returns:
      `config` with the directory's `lora`, and the adapters, float32 and sharded over `mesh`.

    Raises:
      FileNotFoundError: a file is not there.
      ValueError: a setting is not supported (see `load_options`) or not that of `config`, the file is
        damaged, or a tensor is unknown, missing, of another shape or of a precision that is not read.
    """
    options = load_options(folder)
    if config.lora is not None and config.lora != options:
        raise ValueError(f"{folder} holds {options}, the configuration says {config.lora}")
    config = dataclasses.replace(config, lora=options)
    table = _adapter_table(config)
    tensors = _read(folder / WEIGHTS, table)
    stacked: dict[str, list[np.ndarray]] = {}
    for key, slot in table.items():  # layers in order
        stacked.setdefault(slot.path[-1], []).append(tensors[key].astype(np.float32).T)
    adapters: nnx.State = nnx.State(
        {"layers": {name: nnx.LoRAParam(np.stack(x)) for name, x in stacked.items()}}
    )
    where = param_shardings(mesh, adapters, decoder.logical_axes(config))
    return config, jax.device_put(adapters, where)


def _adapter_table(config: ModelConfig) -> dict[str, Slot]:
    """Every tensor of the adapters of `config` by its name in the file, layers in order."""
    names, declared = lora.options_of(config).names, decoder.weights(config)["layers"]
    table = {}
    for key, slot in key_table(config).items():
        if slot.path[-1] not in names:
            continue
        for side in "ab":
            name = f"{slot.path[-1]}_lora_{side}"
            shape = declared[name].shape[:0:-1]
            place = Slot(("layers", name), slot.layer, True, shape)
            table[f"{_PREFIX}{key.removesuffix('weight')}lora_{side.upper()}.weight"] = place
    return table


def _config_of(options: LoraOptions, base_model: str) -> dict[str, Any]:
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_model,
        "r": options.rank,
        "lora_alpha": options.alpha,
        "target_modules": [target for target in LORA_TARGETS if target in options.targets],
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "use_rslora": False,
        "use_dora": False,
        "inference_mode": True,
    }


def _read(path: pathlib.Path, table: Mapping[str, Slot]) -> dict[str, np.ndarray]:
    """All tensors of the file, which are those of the table."""
    if not path.is_file():
        raise FileNotFoundError(f"no {path.name} in {path.parent} (adapters in other formats are not read)")
    try:
        file = safetensors.safe_open(path, framework="numpy")
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path} is damaged or no safetensors file: {error}") from error
    with file:
        found = {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118 (not a mapping)
        for what, keys in (
            ("lacks", table.keys() - found.keys()),
            ("has unknown", found.keys() - table.keys()),
        ):
            if keys:
                raise ValueError(f"{path} {what} tensors: {listed(sorted(keys))}")
        for key, slot in table.items():
            shape, kind = tuple(found[key].get_shape()), found[key].get_dtype()
            if shape != slot.shape:
                raise ValueError(f"{key!r} in {path} has shape {shape}, expected {slot.shape}")
            if kind not in FILE_DTYPES:
                raise ValueError(f"{key!r} in {path} is {kind}, expected one of {sorted(FILE_DTYPES)}")
        return {key: found[key][:] for key in table}
