"""Checkpoints: Orbax writes the arrays, a manifest with checksums says that they are all there.

    DIR/step_00000012/arrays/         Orbax
    DIR/step_00000012/manifest.json   step, metadata, shape and dtype of every leaf, SHA-256 of every file
    DIR/.writing_*, DIR/.removing_*   what a kill may leave behind; never read, removed by the next `save`

A checkpoint is written under another name and renamed when it is complete, so one that has its final
name was complete once. Orbax alone does not notice flipped bits in its files; the checksums do.

Writing goes on behind the caller's back: `begin` returns when the arrays are off the device, so that their
buffers may be donated, and `Pending.wait` when the checkpoint is there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import pathlib
import shutil
from collections.abc import Iterator, Mapping
from concurrent import futures
from typing import Any

import jax
from absl import logging
from jax.experimental import multihost_utils
from orbax.checkpoint import v1 as ocp

from vict_jax.interrupts import interrupt_waits

_PREFIX = "step_"
_WRITING = ".writing_"
_REMOVING = ".removing_"


class CheckpointError(Exception):
    """There is no checkpoint to restore, or the one asked for is damaged; the message says which and why."""


@dataclasses.dataclass(frozen=True)
class Restored:
    """A restored checkpoint.

    Attributes:
      step: which one.
      tree: arrays, of the structure and shardings asked for.
      metadata: what was given to `save`, through JSON.
      skipped: newer checkpoints that are damaged, each with the reason.
    """

    step: int
    tree: Any
    metadata: dict[str, Any]
    skipped: tuple[str, ...]


def steps(directory: pathlib.Path) -> list[int]:
    """Steps of all complete checkpoints, ascending. Files are not verified."""
    found = [path.name.removeprefix(_PREFIX) for path in directory.glob(f"{_PREFIX}*")]
    return sorted(int(text) for text in found if text.isdecimal())


def latest_step(directory: pathlib.Path) -> int | None:
    """The newest step, or None. Files are not verified."""
    return max(steps(directory), default=None)


@dataclasses.dataclass(frozen=True)
class Pending:
    """A checkpoint on its way to the disk.

    Attributes:
      path: where it will be.
      written: done when it is there, or failed.
    """

    path: pathlib.Path
    written: futures.Future[None]

    def wait(self) -> None:
        """Return when the checkpoint is complete; called by every process. A first Ctrl-C waits as well.

        Raises:
          OSError: it could not be written, with the path; every earlier checkpoint is still there.
        """
        with interrupt_waits():
            self.written.result()
        _barrier("checkpoint_commit")


def begin(
    directory: pathlib.Path, step: int, tree: Any, metadata: Mapping[str, Any], *, keep: int
) -> Pending:
    """Copy a checkpoint off the device, and write it in the background.

    When it is complete, all but the newest `keep` up to and including it are removed. A checkpoint of
    the same step is replaced, and those of later steps, left from a run that was set back, are removed.
    Called by every process with the same arguments; the directory is shared between them, and the last
    checkpoint that was begun there must have been waited for.

    Args:
      directory: made if it does not exist.
      step: 0 or more.
      tree: any pytree of `jax.Array`s, typed PRNG keys and integers included. It may be donated afterwards.
      metadata: anything JSON can hold.
      keep: how many to keep, 1 or more.

    Raises:
      ValueError: `keep` or `step` is out of range, or a leaf is not a `jax.Array`.
      OSError: it cannot be written, with the path; every earlier checkpoint is still there.
    """
    if keep < 1 or step < 0:
        raise ValueError(f"keep={keep} must be 1 or more and step={step} 0 or more")
    leaves = _named_leaves(tree)
    for name, leaf in leaves.items():
        if not isinstance(leaf, jax.Array):
            raise ValueError(f"checkpoint leaf {name!r} is a {type(leaf).__name__}, expected a jax.Array")
    target = directory / f"{_PREFIX}{step:08d}"
    temporary = directory / f"{_WRITING}{step:08d}"
    if jax.process_index() == 0:
        _prepare(directory, leaves)
    _barrier("checkpoint_prepare")
    described = {name: _describe(leaf) for name, leaf in leaves.items()}

    def finish() -> None:
        with _failed_write(temporary):
            arrays.result()
            if jax.process_index() == 0:
                _write_manifest(temporary, step, described, metadata)
                _commit(temporary, target)
        if jax.process_index() == 0:
            _remove_all_but(directory, step, keep)

    with interrupt_waits() as interrupts, _failed_write(temporary):
        with jax.transfer_guard("allow"):  # processes agree on names through small arrays
            # Orbax refuses relative paths.
            arrays = ocp.save_async((temporary / "arrays").absolute(), leaves)
        writer = futures.ThreadPoolExecutor(1, "checkpoint")
        written = writer.submit(finish)
        writer.shutdown(wait=False)  # its thread ends with the checkpoint
        if interrupts:  # nobody will wait for it any more
            futures.wait([written])
    return Pending(target, written)


def save(
    directory: pathlib.Path, step: int, tree: Any, metadata: Mapping[str, Any], *, keep: int
) -> pathlib.Path:
    """Write a checkpoint and wait for it: `begin` and `Pending.wait`. Returns its path."""
    pending = begin(directory, step, tree, metadata, keep=keep)
    pending.wait()
    return pending.path


def restore(directory: pathlib.Path, abstract_tree: Any, *, step: int | None = None) -> Restored:
    """Read the checkpoint of `step`, or the newest one that is undamaged.

    Args:
      abstract_tree: `jax.ShapeDtypeStruct` leaves that carry shardings.

    Raises:
      CheckpointError: there is none, `step` is damaged, or all are damaged.
      ValueError: a leaf is missing, unknown, or of another shape or dtype; names it and both shapes.
    """
    available = steps(directory)
    if step is not None and step not in available:
        raise CheckpointError(f"no checkpoint of step {step} in {directory}; there are {available}")
    skipped: list[str] = []
    for candidate in [step] if step is not None else reversed(available):
        path = directory / f"{_PREFIX}{candidate:08d}"
        manifest, damage = _verify(path)
        if damage is None:
            _check_leaves(path, manifest["leaves"], abstract_tree)
            tree = _read_arrays(path / "arrays", abstract_tree)
            return Restored(candidate, tree, manifest["metadata"], tuple(skipped))
        skipped.append(f"{path}: {damage}")
        logging.warning("checkpoint %s is damaged (%s)", path, damage)
    if skipped:
        raise CheckpointError("no undamaged checkpoint: " + "; ".join(skipped))
    raise CheckpointError(f"no checkpoint in {directory}")


def _named_leaves(tree: Any) -> dict[str, Any]:
    """Leaves by dotted path. A checkpoint holds this flat dict, so no container type is needed to read it."""
    paths, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in paths}


def _barrier(name: str) -> None:
    if jax.process_count() > 1:
        with jax.transfer_guard("allow"):
            multihost_utils.sync_global_devices(name)


def _prepare(directory: pathlib.Path, leaves: Mapping[str, jax.Array]) -> None:
    """Clear what an earlier kill left, and refuse to start what cannot fit."""
    directory.mkdir(parents=True, exist_ok=True)
    for prefix in (_WRITING, _REMOVING):
        for path in directory.glob(f"{prefix}*"):
            shutil.rmtree(path)
    needed = sum(x.nbytes for x in leaves.values())
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise _no_space(directory, f"a checkpoint needs up to {needed} bytes and {free} are free")


def _no_space(path: pathlib.Path, why: str) -> OSError:
    kept = steps(path if path.is_dir() else path.parent)
    return OSError(errno.ENOSPC, f"{why}; checkpoints of steps {kept} are kept", str(path))


@contextlib.contextmanager
def _failed_write(temporary: pathlib.Path) -> Iterator[None]:
    """Remove the unfinished checkpoint where it could not be written, and say what is kept.

    Raises:
      OSError: as the block did, or for a full disk that TensorStore reported.
    """
    try:
        yield
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    except ValueError as error:
        # TensorStore reports a full disk as a ValueError with this status.
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        shutil.rmtree(temporary, ignore_errors=True)
        raise _no_space(temporary.parent, "no space left while writing a checkpoint") from error


def _read_arrays(path: pathlib.Path, abstract_tree: Any) -> Any:
    named = _named_leaves(abstract_tree)
    with interrupt_waits():
        loaded = ocp.load(path.absolute(), named)
    # PRNG keys come back under the sharding of their raw words, one axis more; the others stay as they are.
    leaves = [jax.device_put(loaded[name], leaf.sharding) for name, leaf in named.items()]
    return jax.tree.unflatten(jax.tree.structure(abstract_tree), leaves)


def _describe(leaf: Any) -> list[Any]:
    return [list(leaf.shape), str(leaf.dtype)]


def _write_manifest(
    path: pathlib.Path, step: int, leaves: Mapping[str, Any], metadata: Mapping[str, Any]
) -> None:
    files = sorted(p for p in path.rglob("*") if p.is_file())
    manifest = {
        "step": step,
        "metadata": dict(metadata),
        "leaves": dict(leaves),
        "files": {str(p.relative_to(path)): _sha256(p) for p in files},
    }
    with open(path / "manifest.json", "w") as file:
        json.dump(manifest, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    for p in files:
        _fsync(p)


def _sha256(path: pathlib.Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fsync(path: pathlib.Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _commit(temporary: pathlib.Path, target: pathlib.Path) -> None:
    _discard(target)
    temporary.rename(target)
    _fsync(target.parent)


def _discard(path: pathlib.Path) -> None:
    """Remove a checkpoint; a kill on the way leaves no part of it under its name."""
    if path.exists():
        aside = path.with_name(_REMOVING + path.name)
        path.rename(aside)
        shutil.rmtree(aside)


def _remove_all_but(directory: pathlib.Path, step: int, keep: int) -> None:
    available = steps(directory)
    kept = [s for s in available if s <= step][-keep:]
    for old in available:
        if old not in kept:
            _discard(directory / f"{_PREFIX}{old:08d}")


def _verify(path: pathlib.Path) -> tuple[dict[str, Any], str | None]:
    """The manifest of a checkpoint, and what is wrong with its files (None: nothing)."""
    try:
        manifest = json.loads((path / "manifest.json").read_text())
    except (OSError, ValueError) as error:
        return {}, f"manifest.json: {error}"
    if not isinstance(manifest, dict) or manifest.keys() != {"step", "metadata", "leaves", "files"}:
        return {}, "manifest.json has other entries than a checkpoint's"
    for name, digest in manifest["files"].items():
        file = path / name
        if not file.is_file():
            return manifest, f"{name} is missing"
        if _sha256(file) != digest:
            return manifest, f"{name} has another checksum"
    return manifest, None


def _check_leaves(path: pathlib.Path, stored: Mapping[str, Any], abstract_tree: Any) -> None:
    wanted = {name: _describe(leaf) for name, leaf in _named_leaves(abstract_tree).items()}
    missing, unknown = sorted(set(wanted) - set(stored)), sorted(set(stored) - set(wanted))
    if missing or unknown:
        raise ValueError(f"checkpoint {path} lacks leaves {missing} and has unknown leaves {unknown}")
    for name, (shape, dtype) in wanted.items():
        have_shape, have_dtype = stored[name]
        if shape != have_shape or dtype != have_dtype:
            raise ValueError(
                f"checkpoint {path}: leaf {name!r} is {have_dtype}{have_shape}, expected {dtype}{shape}"
            )
