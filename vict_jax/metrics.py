"""The run directory: what is written where, and what survives a kill.

    DIR/config.json          the config, refused if a later start brings another one
    DIR/run.json             versions, devices, tasks and data with checksums; what was allowed to change
    DIR/tokenizer/           the tokenizer in transformers' format
    DIR/metrics.jsonl        one JSON object a line: kind, update, values
    DIR/events/              the same as TensorBoard events
    DIR/checkpoints/         Orbax: reference policy and the newest states
    DIR/rollouts/, atoms/, proofs/   four files an update, see `vict_jax.proofs`
    DIR/summary.json         the result
    DIR/report.html          what to look at first, see `vict_jax.report`

Rows and files of updates after the restored checkpoint are dropped on resume, so that every update
appears exactly once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import errno
import fcntl
import json
import math
import os
import pathlib
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorboardX

from vict_jax import config as config_lib
from vict_jax.interrupts import interrupt_waits
from vict_jax.textfile import TextFile


class RunError(Exception):
    """A run cannot start or go on; the message says why and what to do next."""


@contextlib.contextmanager
def disk_full_is_clear(path: pathlib.Path) -> Iterator[None]:
    """Turn 'no space left' under `path` into a `RunError` that says what is kept and what to do."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise RunError(
            f"no space left while writing {path}. Everything up to the last checkpoint is kept; "
            "free some space and start the same command again to continue."
        ) from error


def write_atomically(path: pathlib.Path, data: bytes) -> None:
    """Write a file so that a reader sees the old content or the new, never a part of it."""
    temporary = path.with_name(f".{path.name}.partial")
    with disk_full_is_clear(path):
        try:
            with open(temporary, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def write_json(path: pathlib.Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically. Tuples become lists."""
    write_atomically(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())


def read_json(path: pathlib.Path) -> Any:
    """Read a JSON file; a damaged one raises RunError with its name."""
    try:
        return json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise RunError(f"{path} is damaged ({error}); remove it or use another --workdir") from error


def read_config(workdir: pathlib.Path, *, flag: str = "") -> config_lib.RunConfig:
    """The config that a run directory was started with.

    Args:
      flag: put before the directory in the message (`--workdir=`).

    Raises:
      RunError: the directory holds no run.
    """
    if not (workdir / "config.json").is_file():
        raise RunError(f"{flag}{workdir} holds no run (no config.json in it)")
    return config_lib.from_plain(read_json(workdir / "config.json"))


def lock(folder: pathlib.Path, flag: str) -> typing.IO[str]:
    """Lock a directory for as long as the file that is returned stays open; `flag` names it in the message.

    Raises:
      RunError: another process has it.
    """
    with disk_full_is_clear(folder):
        held = open(folder / ".lock", "a+")  # noqa: SIM115 - the caller's
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        held.close()
        raise RunError(
            f"another process is running in {flag}={folder}; wait for it or name another"
        ) from error
    return held


def allowing(names: Iterable[str]) -> str:
    """The end of a message that refuses changes: how they are allowed."""
    return f"To continue with the changes: --allow_changed={','.join(names)} (noted in run.json)."


def noting(run: Mapping[str, Any], changes: Sequence[str]) -> dict[str, Any]:
    """The content of `run.json` with what was allowed to change, and when by the clock."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {**run, "changed": [*run.get("changed", []), {"at": now, "what": list(changes)}]}


@dataclasses.dataclass(frozen=True)
class RunDir:
    """An opened run directory, locked against a second run. Close it (or use `with`)."""

    path: pathlib.Path
    lock: typing.IO[str]

    @classmethod
    def open(cls, path: pathlib.Path, config: Mapping[str, Any], allow_changed: Sequence[str] = ()) -> RunDir:
        """Create or reopen `path` for `config`.

        Args:
          allow_changed: keys that may differ from the config so far, see `start.StartOptions`.

        Raises:
          RunError: another process uses it, or it belongs to a run with another config.
        """
        if path.exists() and not path.is_dir():
            raise RunError(f"--workdir={path} is a file; name a directory")
        with disk_full_is_clear(path):
            for name in ("rollouts", "atoms", "proofs", "events", "checkpoints"):
                (path / name).mkdir(parents=True, exist_ok=True)
        run = cls(path=path, lock=lock(path, "--workdir"))
        try:
            run._claim(config, allow_changed)
        except RunError:
            run.close()
            raise
        return run

    def _claim(self, config: Mapping[str, Any], allow_changed: Sequence[str]) -> None:
        file = self.path / "config.json"
        if not file.exists():
            write_json(file, config)
            return
        changed = config_lib.differences(read_json(file), config)
        refused = [change for change in changed if change.split(":", 1)[0] not in allow_changed]
        if refused:
            raise RunError(
                f"--workdir={self.path} holds a run with another config:\n  "
                + "\n  ".join(refused)
                + "\nUse the same config to continue it, or another --workdir to start anew. "
                + allowing(change.split(":", 1)[0] for change in changed)
            )
        if changed:
            if (self.path / "run.json").exists():
                write_json(self.path / "run.json", noting(read_json(self.path / "run.json"), changed))
            write_json(file, config)

    def close(self) -> None:
        """Release the lock."""
        self.lock.close()

    def __enter__(self) -> RunDir:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class MetricsWriter:
    """Appends rows to `metrics.jsonl` and to TensorBoard events.

    `resume_from` is the update of the restored checkpoint, or None for a run that starts from
    nothing: rows after it are dropped first.

    Args:
      gauges: gets every row too.

    Attributes:
      rows: number of rows so far.

    Raises:
      RunError: fewer than the `expected` rows of the checkpoint are there.
    """

    def __init__(
        self,
        workdir: pathlib.Path,
        resume_from: int | None,
        *,
        expected: int = 0,
        gauges: TextFile | None = None,
    ):
        self.path = workdir / "metrics.jsonl"
        kept = [] if resume_from is None else [r for r in read_metrics(workdir) if r["update"] <= resume_from]
        if len(kept) < expected:
            raise RunError(
                f"{self.path} has {len(kept)} rows up to update {resume_from}, and had {expected} when its "
                "checkpoint was written; put the rows back, or start anew in another --workdir"
            )
        self.rows, self._gauges = len(kept), gauges
        write_atomically(self.path, "".join(json.dumps(row) + "\n" for row in kept).encode())
        self._file = open(self.path, "a")  # noqa: SIM115 - closed in close()
        purge = 0 if resume_from is None else resume_from + 1
        self._events = tensorboardX.SummaryWriter(str(workdir / "events"), purge_step=purge)

    def write(self, kind: str, update: int, values: Mapping[str, Any]) -> None:
        """Append one row. Numbers that are not finite are written as null."""
        row: dict[str, Any] = {"kind": kind, "update": update}
        for name, value in values.items():
            row[name] = None if isinstance(value, float) and not math.isfinite(value) else value
        with interrupt_waits(), disk_full_is_clear(self.path):
            self._file.write(json.dumps(row) + "\n")
            self._file.flush()
            self.rows += 1
            for name, value in row.items():
                if isinstance(value, (int, float)) and name != "update":
                    self._events.add_scalar(f"{kind}/{name}", value, update)
            if self._gauges is not None:
                self._gauges.write(row)

    def sync(self) -> None:
        """Make sure that what was written is on the disk before a checkpoint says so."""
        with interrupt_waits(), disk_full_is_clear(self.path):
            os.fsync(self._file.fileno())
            self._events.flush()

    def close(self) -> None:
        """Flush and close both outputs.

        Raises:
          RunError: the disk is full.
        """
        with interrupt_waits(), disk_full_is_clear(self.path):
            self._file.close()
            self._events.close()

    def __enter__(self) -> MetricsWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Unwritten(MetricsWriter):
    """For the processes of a run that write nothing, since the first one does."""

    def __init__(self) -> None:
        self.rows = 0

    def write(self, kind: str, update: int, values: Mapping[str, Any]) -> None:
        """Nothing."""

    def sync(self) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


def read_metrics(workdir: pathlib.Path) -> list[dict[str, Any]]:
    """All complete rows of `metrics.jsonl`; a last line cut off by a kill is left out.

    Raises:
      RunError: a line other than the last is damaged.
    """
    path = workdir / "metrics.jsonl"
    if not path.exists():
        return []
    lines = path.read_text().splitlines()
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            if number < len(lines):
                raise RunError(f"{path}:{number} is not a JSON object ({error})") from error
    return rows
