"""What the directories of checkpoints (`hf`) and of adapters (`peft`) have in common."""

from __future__ import annotations

import contextlib
import json
import pathlib
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import ml_dtypes
import numpy as np
from jax.experimental import multihost_utils

from vict_jax.models.hf_keys import Slot

# Names of precisions in a safetensors header, and ours.
FILE_DTYPES: Mapping[str, np.dtype] = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
# What makes up a tokenizer in a checkpoint directory, where it has them.
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)
_SHOWN = 5  # keys in an error message


def to_host(leaf: jax.Array, slot: Slot) -> np.ndarray:
    """One tensor of a parameter, on the host in the file's orientation; collective over the processes."""
    if slot.layer is not None:
        # A traced index: one program per parameter, not one per layer.
        leaf = jax.lax.dynamic_index_in_dim(leaf, jax.device_put(slot.layer), keepdims=False)
    if not leaf.is_fully_addressable:
        leaf = multihost_utils.process_allgather(leaf, tiled=True)
    value = np.asarray(jax.device_get(leaf))
    return value.T if slot.transposed else value


@contextlib.contextmanager
def complete_or_absent(folder: pathlib.Path, overwrite: bool) -> Iterator[pathlib.Path]:
    """A directory to write into that becomes `folder` at the end, and is removed after an error.

    Raises:
      FileExistsError: `folder` is a file, or a directory with something in it and `overwrite` is False.
    """
    folder = folder.absolute()
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file")
    if folder.is_dir() and any(folder.iterdir()) and not overwrite:
        raise FileExistsError(f"{folder} is not empty; pass overwrite=True to replace it")
    folder.parent.mkdir(parents=True, exist_ok=True)
    mark = uuid.uuid4().hex[:8]
    temporary = folder.with_name(f".{folder.name}.writing-{mark}")
    temporary.mkdir()
    try:
        yield temporary
        if folder.exists():
            old = folder.with_name(f".{folder.name}.old-{mark}")
            folder.rename(old)
            temporary.rename(folder)
            shutil.rmtree(old)
        else:
            temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def read_json(path: pathlib.Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
      FileNotFoundError: there is no such file. ValueError: it holds something else; names it.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no {path.name} in {path.parent}")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} must hold a JSON object, got a {type(value).__name__}")
    return value


def write_json(path: pathlib.Path, value: Mapping[str, Any]) -> None:
    """Write an object as an indented JSON file."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def copy_tokenizer(source: pathlib.Path, target: pathlib.Path) -> None:
    """Copy the tokenizer's files of one directory into another, to the bit.

    Raises:
      FileNotFoundError: there are none.
    """
    files = [source / name for name in TOKENIZER_FILES if (source / name).is_file()]
    if not files:
        raise FileNotFoundError(f"no tokenizer in {source}: none of {TOKENIZER_FILES}")
    for file in files:
        shutil.copyfile(file, target / file.name)


def listed(items: Sequence[str]) -> str:
    """The first few of many names, and how many more there are, for a message."""
    more = f", and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
    return ", ".join(items[:_SHOWN]) + more
