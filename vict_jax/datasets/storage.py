"""Where a data set lies and how it is opened: what task sets and episodes share.

A data set is DIR/NAME/VERSION, as tensorflow-datasets lays it out: ArrayRecord files of each split, the
features, and `metadata.json`, which says what the data were made from. Any program reads it with
`tfds.builder_from_directory(DIR/NAME/VERSION).as_data_source(split)`.
"""

from __future__ import annotations

import contextlib
import io
import pathlib
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow_datasets as tfds
from google.protobuf import json_format

FORMAT = "array_record"
VERSION = "1.0.0"


class DamagedError(ValueError):
    """A file of a data set is damaged or gone; the message names the data set."""


def folder_of(out: pathlib.Path, name: str) -> pathlib.Path:
    """The directory of the data set `name` under `out`."""
    return out / name / VERSION


def write(builder: tfds.core.GeneratorBasedBuilder) -> pathlib.Path:
    """Write a data set whole or not at all, and return its directory.

    Raises:
      FileExistsError: there is one already.
    """
    folder = pathlib.Path(builder.data_dir)
    if folder.exists():
        raise FileExistsError(f"{folder} exists already; remove it or name another directory")
    tfds.disable_progress_bar()  # the caller has one that knows how much there is to do
    with (
        tempfile.TemporaryDirectory() as downloads,  # nothing is downloaded, but the folder would stay
        contextlib.redirect_stdout(io.StringIO()),  # two lines that speak of downloads
    ):
        builder.download_and_prepare(download_dir=downloads)
    return folder


def open_split(
    out: pathlib.Path, name: str, split: str, decoders: Mapping[str, Any] | None = None
) -> tuple[Sequence[Mapping[str, Any]], Mapping[str, Any]]:
    """The records of a split, read when asked for, and the metadata of the data set.

    Raises:
      ValueError: there is no such data set or split.
      DamagedError: its description cannot be read.
    """
    folder = folder_of(out, name)
    if not (folder / "dataset_info.json").is_file():
        raise ValueError(f"{out} holds no {name}: there is no {folder / 'dataset_info.json'}")
    try:
        builder = tfds.builder_from_directory(folder)
        metadata = builder.info.metadata
    except (ValueError, json_format.ParseError, OSError) as error:
        raise DamagedError(f"the description of {folder} is damaged: {error}") from error
    if not metadata:
        raise DamagedError(f"the description of {folder} is damaged: metadata.json is gone")
    if split not in builder.info.splits:
        known = sorted(builder.info.splits)
        raise ValueError(f"split={split!r} is not one of {known}, the splits of {folder}")
    return builder.as_data_source(split=split, decoders=decoders), metadata


def read(records: Sequence[Mapping[str, Any]], index: int, what: str) -> Mapping[str, Any]:
    """Record `index`, 0 to the length less 1; `what` names the data set in the message.

    Raises:
      DamagedError: the record cannot be read.
    """
    try:
        return records[index]
    # TypeError: where a file was cut off, its reader answers None, which tensorflow-datasets tries to decode.
    except (RuntimeError, TypeError) as error:
        raise DamagedError(f"record {index} of {what} cannot be read: {error}") from error
