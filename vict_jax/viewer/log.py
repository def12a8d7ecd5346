"""Reading a proof log that may be damaged or half written: what can be read, and why the rest cannot.

Nothing here needs JAX. `vict_jax.proofs` reads the same files and refuses whatever is not whole.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vict_jax.proof_files import ATOM_SCHEMA, FOLDERS, KINDS, PROOF_SCHEMA, STEP_SCHEMA, file_stem

SCHEMAS: Mapping[str, pa.Schema] = dict(zip(FOLDERS, (STEP_SCHEMA, ATOM_SCHEMA, PROOF_SCHEMA), strict=True))
_NAME = re.compile(r"update_(\d{6,9})")
_KEYS = ("group", "rollout", "step")
NO_UPDATE = -1  # of a problem with a file of the whole run
# No update has as many groups, rollouts of a group or steps; a larger number is damage.
_MOST = 1_000_000

# Types of those arrays of `CreditInputs` that are read here.
_TYPES = {"score": np.float32, "status": np.int8, "rollout_mask": np.bool_}
# What `zipfile` and NumPy raise for bytes that are not what they were: an attribute or key that is not there,
# a method of compression that does not exist, a password that was never set, a size beyond the memory.
_DAMAGED_ZIP = (
    *(
        ValueError,
        EOFError,
        OSError,
        AttributeError,
        KeyError,
        NotImplementedError,
        RuntimeError,
        MemoryError,
    ),
    *(zipfile.BadZipFile, zlib.error),
)


class UnreadableError(Exception):
    """A file of the log cannot be read; the message says why, without its path."""


@dataclasses.dataclass(frozen=True)
class Problem:
    """A file that is not readable. `file` is relative to the run directory; `update` may be `NO_UPDATE`."""

    update: int
    file: str
    why: str


def found_updates(workdir: pathlib.Path) -> list[int]:
    """Updates of which at least one file is there, in order."""
    names = {path.stem for folder, suffix in KINDS for path in (workdir / folder).glob(f"update_*{suffix}")}
    return sorted(int(match[1]) for match in map(_NAME.fullmatch, names) if match)


def table_path(folder: str, update: int) -> pathlib.PurePosixPath:
    """A table's path in the run directory."""
    return pathlib.PurePosixPath(folder, f"{file_stem(update)}.parquet")


def arrays_path(update: int) -> pathlib.PurePosixPath:
    """The path of an update's arrays in the run directory."""
    return pathlib.PurePosixPath("rollouts", f"{file_stem(update)}.npz")


def read_table(
    workdir: pathlib.Path, folder: str, update: int, columns: Sequence[str] | None = None
) -> pa.Table:
    """Columns of a table of the log, checked against the schema; all columns of the schema if None.

    Raises:
      UnreadableError: the file is missing, damaged, or of another version.
    """
    schema = SCHEMAS[folder]
    names = list(schema.names if columns is None else columns)
    path = workdir / table_path(folder, update)
    try:
        with pq.ParquetFile(path) as file:
            if lacking := [name for name in names if name not in file.schema_arrow.names]:
                raise UnreadableError(f"is of another version of the log: it has no column {lacking}")
            table = file.read(columns=names).select(names)
        table = table.cast(pa.schema([schema.field(name) for name in names]))
        table.validate(full=True)
    except FileNotFoundError as error:
        raise UnreadableError("is missing") from error
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
        raise UnreadableError(f"is damaged: {_first_line(error)}") from error
    _check_keys(table)
    return table


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _check_keys(table: pa.Table) -> None:
    for name in set(_KEYS) & set(table.column_names):
        column = table[name]
        values = column.to_numpy() if not column.null_count else np.array([-1])
        if len(values) and not 0 <= values.min() <= values.max() < _MOST:
            raise UnreadableError(f"is damaged: a {name} that is no number from 0 to {_MOST - 1}")


def read_arrays(workdir: pathlib.Path, update: int, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Some of the logged arrays of an update.

    Raises:
      UnreadableError: the file is missing, damaged, or of another version.
    """
    try:
        with open(workdir / arrays_path(update), "rb") as file, np.load(file, allow_pickle=False) as arrays:
            if lacking := [name for name in names if name not in arrays.files]:
                raise UnreadableError(f"is of another version of the log: it has no array {lacking}")
            found = {name: arrays[name] for name in names}
    except FileNotFoundError as error:
        raise UnreadableError("is missing") from error
    except _DAMAGED_ZIP as error:
        raise UnreadableError(f"is damaged: {_first_line(error)}") from error
    if wrong := [name for name, array in found.items() if array.dtype != _TYPES[name]]:
        raise UnreadableError(f"is damaged: the type of {wrong} is another")
    return found


def read_settings(workdir: pathlib.Path) -> dict[str, Any]:
    """The credit section of the run's config.

    Raises:
      UnreadableError: the file is missing, damaged, or has no such section.
    """
    try:
        credit = json.loads((workdir / "config.json").read_text(encoding="utf-8"))["credit"]
        return {"method": str(credit["method"]), "eps_q": float(credit["eps_q"])}
    except FileNotFoundError as error:
        raise UnreadableError("is missing") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UnreadableError(f"is damaged: {type(error).__name__}: {_first_line(error)}") from error
