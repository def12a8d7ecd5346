"""Checkpoint directories in the Hugging Face layout, read straight into sharded arrays and written back.

    DIR/config.json                       sizes and constants, see `vict_jax.models.config`
    DIR/model.safetensors                 the weights, or
    DIR/model.safetensors.index.json      which of several model-*.safetensors holds which tensor
    DIR/generation_config.json            token ids that start, end and pad, sampling defaults
    DIR/tokenizer.json, ...               see `vict_jax.rollout.tokenizer`

`hf_keys.key_table` says for every tensor where it goes in our parameters. Reading is strict: an unknown,
missing, duplicate or misshaped tensor is an error, since a model with one wrong tensor still talks. No
torch is needed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import safetensors
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from safetensors.numpy import save_file
from transformers import PreTrainedTokenizerBase

from vict_jax import sharding
from vict_jax.models import decoder
from vict_jax.models.config import ModelConfig, family, from_hf, to_hf
from vict_jax.models.hf_files import (
    FILE_DTYPES,
    complete_or_absent,
    copy_tokenizer,
    listed,
    read_json,
    to_host,
    write_json,
)
from vict_jax.models.hf_keys import DERIVED, EMBED, HEAD, Slot, key_table

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")

DTYPES = tuple(str(dtype) for dtype in FILE_DTYPES.values())

_COMPARED_ROWS = 4096  # of the embedding at a time, when a tied head is compared with it


@dataclasses.dataclass(frozen=True)
class _Tensor:
    """A tensor in an open file; `data[slices]` reads a part of it."""

    file: pathlib.Path
    data: Any

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.data.get_shape())

    @property
    def dtype(self) -> str:
        return self.data.get_dtype()


def load_config(
    folder: pathlib.Path, *, dtype: str = "float32", param_dtype: str = "float32", remat: bool = False
) -> ModelConfig:
    """The `config.json` of a checkpoint directory; arguments and errors as `config.from_hf`.

    Raises:
      FileNotFoundError: there is none.
    """
    return from_hf(read_json(folder / CONFIG), dtype=dtype, param_dtype=param_dtype, remat=remat)


def load_generation_config(folder: pathlib.Path) -> dict[str, Any]:
    """The `generation_config.json`; without one, the token ids that `config.json` gives."""
    if (folder / GENERATION_CONFIG).is_file():
        return read_json(folder / GENERATION_CONFIG)
    hf = read_json(folder / CONFIG)
    return {name: hf[name] for name in TOKEN_IDS if hf.get(name) is not None}


def fingerprint(folder: pathlib.Path) -> dict[str, str]:
    """What tells one checkpoint directory from another, without reading all of its weights.

    Returns:
      File name -> SHA-256 of its content; of a weight file that of its header (names, shapes, places of all
      tensors) and its size.

    Raises:
      FileNotFoundError: `folder` has no config.json.
    """
    if not (folder / CONFIG).is_file():
        raise FileNotFoundError(f"no {CONFIG} in {folder}")
    found = {}
    for path in sorted(folder.glob("*.json")):
        found[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            start = file.read(8)
            header = file.read(int.from_bytes(start, "little"))
        found[path.name] = f"{hashlib.sha256(header).hexdigest()} ({path.stat().st_size} bytes)"
    return found


def load(
    folder: pathlib.Path,
    mesh: Mesh,
    *,
    dtype: str = "float32",
    param_dtype: str = "float32",
    remat: bool = False,
) -> tuple[ModelConfig, nnx.State]:
    """Read a checkpoint directory into parameters that are sharded over `mesh`.

    Of each tensor only the part that a device of this process holds is read, one parameter at a time, so
    the host never holds more than the largest parameter's share. Files may be float32, float16 or bfloat16.

    Args:
      folder: the directory.
      mesh: see `sharding.make_mesh`; parameters have the shardings of `sharding.param_shardings`.
      dtype, remat: of the computation, see `ModelConfig`.
      param_dtype: of the parameters, whatever the precision of the file.

    Returns:
      The configuration, and the parameters in the tree that `decoder.init` returns.

    Raises:
      FileNotFoundError: config.json, the weights, or a file that the index names is not there.
      ValueError: the model is not supported (see `config.from_hf`), a file is damaged, the mesh does not
        divide a dimension, a tied head in the file differs from the embedding, or a tensor is unknown,
        missing, in two files, of another shape or of a precision that is not read; the message names
        the tensor, the file, what was found and what was expected.
    """
    config = load_config(folder, dtype=dtype, param_dtype=param_dtype, remat=remat)
    abstract = jax.eval_shape(lambda: decoder.init(config, jax.random.key(0))[1])
    where = sharding.param_shardings(mesh, abstract, decoder.logical_axes(config))
    table = key_table(config)
    slots: dict[tuple[str, ...], list[str]] = {}
    for key, slot in table.items():  # layers in order
        slots.setdefault(slot.path, []).append(key)

    with contextlib.ExitStack() as stack:
        tensors = _open(folder, stack)
        _check(folder, config, table, tensors)

        def read(path: tuple, leaf: jax.ShapeDtypeStruct, placed: NamedSharding) -> jax.Array:
            keys = slots[tuple(entry.key for entry in path if isinstance(entry, jax.tree_util.DictKey))]
            return _read_array([tensors[key] for key in keys], table[keys[0]], leaf, placed)

        return config, jax.tree_util.tree_map_with_path(read, abstract, where)


def export(
    folder: pathlib.Path,
    config: ModelConfig,
    params: nnx.State,
    *,
    tokenizer: PreTrainedTokenizerBase | pathlib.Path | None,
    generation_config: Mapping[str, Any] | None,
    dtype: str | None = None,
    max_shard_size: int = 5 * 10**9,
    overwrite: bool = False,
) -> None:
    """Write a directory that `transformers.AutoModelForCausalLM.from_pretrained` and `load` read.

    It is written under another name and renamed when complete. Every process of a run calls it with its
    part of the parameters; the first one writes.

    Args:
      params: as `decoder.init` and `load` return them, wherever they lie.
      tokenizer, generation_config: saved beside the weights; None leaves them out. A path is a directory
        whose tokenizer files are copied as they are. The token ids of `generation_config` are written into
        config.json as well.
      dtype: precision of the file, one of `DTYPES`; None: that of the parameters.
      max_shard_size: bytes of tensors in a file; a larger model is split, with an index.
      overwrite: replace a directory that is there already.

    Raises:
      FileExistsError: `folder` is a file, or a directory with something in it and `overwrite` is False.
      ValueError: no HF model has this configuration (see `config.to_hf`), `dtype` or `max_shard_size` is
        out of range, or a parameter is missing, unknown or of another shape than `config` says.
    """
    arrays = nnx.to_pure_dict(params)
    _check_params(config, arrays)
    table = key_table(config)

    def tensor(key: str) -> np.ndarray:
        leaf: Any = arrays
        for name in table[key].path:
            leaf = leaf[name]
        return to_host(leaf, table[key])

    write_directory(
        folder,
        config,
        tensor,
        tokenizer=tokenizer,
        generation_config=generation_config,
        dtype=dtype or config.param_dtype,
        max_shard_size=max_shard_size,
        overwrite=overwrite,
    )


def write_directory(
    folder: pathlib.Path,
    config: ModelConfig,
    tensor: Callable[[str], np.ndarray],
    *,
    tokenizer: PreTrainedTokenizerBase | pathlib.Path | None,
    generation_config: Mapping[str, Any] | None,
    dtype: str,
    max_shard_size: int = 5 * 10**9,
    overwrite: bool = False,
) -> None:
    """`export` of weights from anywhere: `tensor(key)` gives each tensor of `key_table(config)` when needed.

    All processes call `tensor` for all keys, in the same order. Other arguments and errors as `export`.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype of the file must be one of {DTYPES}, got {dtype!r}")
    if max_shard_size < 1:
        raise ValueError(f"max_shard_size must be a positive number of bytes, got {max_shard_size}")
    token_ids = {name: (generation_config or {}).get(name) for name in TOKEN_IDS}
    hf_config = {**to_hf(config), **token_ids, "torch_dtype": dtype}
    first = jax.process_index() == 0
    with complete_or_absent(folder, overwrite) if first else contextlib.nullcontext() as temporary:
        _write_weights(temporary, key_table(config), tensor, np.dtype(dtype), max_shard_size)
        if temporary is None:
            return
        write_json(temporary / CONFIG, hf_config)
        if generation_config is not None:
            write_json(temporary / GENERATION_CONFIG, dict(generation_config))
        if isinstance(tokenizer, pathlib.Path):
            copy_tokenizer(tokenizer, temporary)
        elif tokenizer is not None:
            tokenizer.save_pretrained(temporary)


def _open(folder: pathlib.Path, stack: contextlib.ExitStack) -> dict[str, _Tensor]:
    """Open the files of a checkpoint; all tensors in them by name. Nothing is read but the headers."""
    weight_map = _weight_map(folder)
    files = sorted(set(weight_map.values())) if weight_map is not None else [WEIGHTS]
    stray = sorted({path.name for path in folder.glob("model*.safetensors")} - set(files))
    if stray:
        raise ValueError(f"{folder} holds {stray}, which {INDEX} does not name; remove what is left over")
    tensors: dict[str, _Tensor] = {}
    for name in files:
        try:
            file = stack.enter_context(safetensors.safe_open(folder / name, framework="numpy"))
        except safetensors.SafetensorError as error:
            raise ValueError(f"{folder / name} is damaged or no safetensors file: {error}") from error
        for key in file.keys():  # noqa: SIM118 (not a mapping)
            if key in tensors:
                raise ValueError(f"duplicate key {key!r}: in {tensors[key].file} and in {folder / name}")
            if weight_map is not None and weight_map.get(key) != name:
                raise ValueError(
                    f"key {key!r} is in {folder / name}; {INDEX} expects it in {weight_map.get(key)}"
                )
            tensors[key] = _Tensor(folder / name, file.get_slice(key))
    return tensors


def _weight_map(folder: pathlib.Path) -> dict[str, str] | None:
    """File of each tensor by the index, None of a checkpoint of one file; all files are there."""
    if not (folder / INDEX).is_file():
        if not (folder / WEIGHTS).is_file():
            raise FileNotFoundError(
                f"no {WEIGHTS} and no {INDEX} in {folder} (weights in other formats are not read)"
            )
        return None
    weight_map = read_json(folder / INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ValueError(f"{folder / INDEX} has no weight_map")
    for key, name in weight_map.items():
        if not isinstance(name, str) or pathlib.PurePath(name).name != name:
            raise ValueError(f"{folder / INDEX}: {key!r} must be in a file of the folder, got {name!r}")
    missing = sorted(name for name in set(weight_map.values()) if not (folder / name).is_file())
    if missing:
        raise FileNotFoundError(f"{folder / INDEX} names {missing}, which are not in the folder")
    return weight_map


def _check(
    folder: pathlib.Path, config: ModelConfig, table: Mapping[str, Slot], tensors: Mapping[str, _Tensor]
) -> None:
    """Raise unless the tensors are those of the table, but for `DERIVED` and a tied head."""
    missing = [f"{key!r} {slot.shape}" for key, slot in table.items() if key not in tensors]
    if missing:
        raise ValueError(f"{folder} lacks {len(missing)} tensors: {listed(missing)}")
    tied_head = config.tie_embeddings and HEAD in tensors
    expected = {key: slot.shape for key, slot in table.items()}
    if tied_head:
        expected[HEAD] = table[EMBED].shape
    unknown = [
        f"{key!r} {tensor.dtype}{tensor.shape} in {tensor.file}"
        for key, tensor in tensors.items()
        if key not in expected and not DERIVED.fullmatch(key)
    ]
    if unknown:
        raise ValueError(f"{len(unknown)} tensors unknown to a {family(config)} model: {listed(unknown)}")
    for key, shape in expected.items():
        tensor = tensors[key]
        if tensor.shape != shape:
            raise ValueError(f"{key!r} in {tensor.file} has shape {tensor.shape}, expected {shape}")
        if tensor.dtype not in FILE_DTYPES:
            raise ValueError(
                f"{key!r} in {tensor.file} is {tensor.dtype}, expected one of {sorted(FILE_DTYPES)}"
            )
    if tied_head:
        _check_tied_head(tensors[EMBED], tensors[HEAD])


def _check_tied_head(embed: _Tensor, head: _Tensor) -> None:
    for start in range(0, embed.shape[0], _COMPARED_ROWS):
        rows = slice(start, min(start + _COMPARED_ROWS, embed.shape[0]))
        if not np.array_equal(embed.data[rows], head.data[rows]):
            raise ValueError(
                f"{HEAD!r} in {head.file} differs from {EMBED!r} in {embed.file}, "
                "but tie_word_embeddings in config.json is true"
            )


def _read_array(
    tensors: Sequence[_Tensor], slot: Slot, leaf: jax.ShapeDtypeStruct, placed: NamedSharding
) -> jax.Array:
    """A sharded parameter of its tensors, one per layer where it is stacked; `slot`: of the first."""

    @functools.cache  # devices that hold the same part share it
    def part(bounds: tuple[tuple[int, int], ...]) -> np.ndarray:
        if slot.layer is None:
            return _read_part(tensors[0], slot, bounds).astype(leaf.dtype)
        out = np.empty([stop - start for start, stop in bounds], leaf.dtype)
        for row, layer in enumerate(range(*bounds[0])):
            out[row] = _read_part(tensors[layer], slot, bounds[1:])
        return out

    def of_index(index: tuple[slice, ...] | None) -> np.ndarray:
        assert index is not None  # of an addressable device
        return part(tuple(cut.indices(size)[:2] for cut, size in zip(index, leaf.shape, strict=True)))

    return jax.make_array_from_callback(leaf.shape, placed, of_index, dtype=leaf.dtype)


def _read_part(tensor: _Tensor, slot: Slot, bounds: Sequence[tuple[int, int]]) -> np.ndarray:
    """Part of a tensor in our orientation; `bounds` (start, stop) of each of our axes."""
    cuts = tuple(slice(*bound) for bound in bounds)
    return tensor.data[cuts[::-1]].T if slot.transposed else tensor.data[cuts]


def _check_params(config: ModelConfig, arrays: Mapping[str, Any]) -> None:
    declared = {
        jax.tree_util.keystr(path): weight.shape
        for path, weight in jax.tree_util.tree_leaves_with_path(decoder.weights(config))
    }
    given = {
        jax.tree_util.keystr(path): leaf.shape for path, leaf in jax.tree_util.tree_leaves_with_path(arrays)
    }
    for name in sorted(declared.keys() | given.keys()):
        if given.get(name) != declared.get(name):
            raise ValueError(
                f"parameter {name} has shape {given.get(name)}, the configuration says {declared.get(name)}"
            )


def _write_weights(
    folder: pathlib.Path | None,
    table: Mapping[str, Slot],
    tensor: Callable[[str], np.ndarray],
    dtype: np.dtype,
    max_shard_size: int,
) -> None:
    """Write the tensors, one file of them in memory at a time; without a folder only ask for them."""
    sizes = {key: int(np.prod(slot.shape)) * dtype.itemsize for key, slot in table.items()}
    shards = _split(sizes, max_shard_size)
    names = [WEIGHTS]
    if len(shards) > 1:
        names = [f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors" for i in range(len(shards))]
    for name, keys in zip(names, shards, strict=True):
        data = {key: np.ascontiguousarray(tensor(key), dtype) for key in keys}
        if folder is not None:
            save_file(data, folder / name, metadata={"format": "pt"})  # transformers asks for this entry
            (folder / name).chmod(folder.stat().st_mode & 0o666)  # the library keeps the file to its owner
    if folder is not None and len(shards) > 1:
        weight_map = {key: name for name, keys in zip(names, shards, strict=True) for key in keys}
        write_json(
            folder / INDEX, {"metadata": {"total_size": sum(sizes.values())}, "weight_map": weight_map}
        )


def _split(sizes: Mapping[str, int], most: int) -> list[list[str]]:
    """Keys in order, in groups of at most `most` bytes; a larger tensor is alone."""
    groups: list[list[str]] = [[]]
    room = most
    for key, size in sizes.items():
        if groups[-1] and size > room:
            groups.append([])
            room = most
        groups[-1].append(key)
        room -= size
    return groups
