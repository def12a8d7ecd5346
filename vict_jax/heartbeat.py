"""A file a host that says where its run is: `heartbeats/host_0003.json`, rewritten every few seconds.

Nothing here compares clocks, neither those of two hosts nor one with itself, since any may be set. A host
counts itself how long it has made no progress; whether it is alive shows in `written`, which grows.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import pathlib
import socket

FOLDER = "heartbeats"


@dataclasses.dataclass(frozen=True)
class WatchOptions:
    """How a run is watched.

    Attributes:
      grace_s: seconds from SIGTERM until the process has saved and ended.
      timeout_s: seconds without progress after which the process ends with an error that names the hosts
        and their phases; 0: never. Longer than anything that may take long at once: the compilation of a
        program, the gradient steps of an update, the reading of a checkpoint.
      heartbeat_s: seconds between two heartbeats.
    """

    grace_s: float = 30.0
    timeout_s: float = 1800.0
    heartbeat_s: float = 5.0

    def __post_init__(self) -> None:
        for name, least in (("grace_s", 1.0), ("timeout_s", 0.0), ("heartbeat_s", 0.1)):
            if not getattr(self, name) >= least:
                value = getattr(self, name)
                raise ValueError(f"watch.{name}={value!r} is not allowed: {least} or more seconds")


@dataclasses.dataclass(frozen=True)
class Heartbeat:
    """Where a process of a run is.

    Attributes:
      process: its number; 0 if there is only one.
      host: name of its machine. pid: its process id there.
      phase: what it does. update: of this update; None before the first.
      progress: grows whenever the run gets on.
      idle_s: seconds since it last did.
      written: how often the file was written before.
      time: when, by the clock of the host; for people.
    """

    process: int
    host: str
    pid: int
    phase: str
    update: int | None
    progress: int
    idle_s: float
    written: int
    time: str

    def __str__(self) -> str:
        return f"host {self.process} ({self.host}): {place(self.phase, self.update)}"


def place(phase: str, update: int | None) -> str:
    """A phase and its update in words."""
    return f"phase {phase!r}" + ("" if update is None else f" of update {update}")


def beat(
    process: int, phase: str, update: int | None, *, progress: int, idle_s: float, written: int
) -> Heartbeat:
    """A heartbeat of this process, now."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return Heartbeat(
        process=process,
        host=socket.gethostname(),
        pid=os.getpid(),
        phase=phase,
        update=update,
        progress=progress,
        idle_s=round(idle_s, 1),
        written=written,
        time=now,
    )


def write(workdir: pathlib.Path, heartbeat: Heartbeat) -> None:
    """Replace the process's file; a reader sees the old content or the new. OSError if it cannot."""
    path = workdir / FOLDER / f"host_{heartbeat.process:04d}.json"
    path.parent.mkdir(exist_ok=True)
    temporary = path.with_name(f".{path.name}.partial")
    temporary.write_text(json.dumps(dataclasses.asdict(heartbeat)) + "\n")
    temporary.replace(path)


def read(workdir: pathlib.Path) -> list[Heartbeat]:
    """The last heartbeat of every process of a run, by number."""
    paths = sorted((workdir / FOLDER).glob("host_*.json"))
    return [Heartbeat(**json.loads(path.read_text())) for path in paths]


def remove(workdir: pathlib.Path) -> None:
    """Remove those of an earlier start, which may have had more processes."""
    for path in (workdir / FOLDER).glob("host_*.json"):
        path.unlink()
