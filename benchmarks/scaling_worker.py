"""One process of `python -m benchmarks.scaling --what processes`: `launch.local`, and what it spends.

    python -m benchmarks.scaling_worker --config=FILE --workdir=DIR [--coordinator=... as launch.local]

Beside the run, `spent-K.jsonl` gets a line for each update: CPU seconds of this process and the workers of
its environments, and how often, how long and how many bytes it told the others. Before each exchange all
meet, so that waiting for those who are behind is told apart from the exchange itself.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import pathlib
import pickle
import time
import zlib
from collections.abc import Callable
from typing import Any
from unittest import mock

from absl import flags

from benchmarks.scaling_processes import spent_folder
from launch import cli, local
from vict_jax import processes, train

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclasses.dataclass
class Told:
    """What one process has told the others: exchanges, its own bytes, seconds of waiting and of exchange."""

    exchanges: int = 0
    size: int = 0
    waited: float = 0.0
    exchanged: float = 0.0


def counting(gather: Callable[[Any], list[Any]], told: Told) -> Callable[[Any], list[Any]]:
    """`processes.gather` that keeps count."""

    def counted(value: Any) -> list[Any]:
        if processes.count() == 1:
            return gather(value)
        began = time.perf_counter()
        gather(None)
        met = time.perf_counter()
        everyones = gather(value)
        told.waited += met - began
        told.exchanged += time.perf_counter() - met
        told.exchanges += 1
        told.size += len(zlib.compress(pickle.dumps(value), 1))
        return everyones

    return counted


def cpu_seconds() -> float:
    """Of this process and those it has started."""
    here = pathlib.Path(f"/proc/{os.getpid()}/task")
    children = [pid for task in here.iterdir() for pid in (task / "children").read_text().split()]
    workers = [pathlib.Path(f"/proc/{pid}/stat").read_text() for pid in children]
    fields = [stat.rpartition(")")[2].split() for stat in workers]
    return time.process_time() + sum((int(some[11]) + int(some[12])) / _TICKS for some in fields)


def recording(run_update: Callable[..., Any], told: Told, workdir: pathlib.Path) -> Callable[..., Any]:
    """`train.run_update` that writes what each update took."""

    @functools.wraps(run_update)
    def recorded(*args: Any) -> Any:
        before, cpu, began = dataclasses.replace(told), cpu_seconds(), time.perf_counter()
        result = run_update(*args)
        spent = {name: value - vars(before)[name] for name, value in vars(told).items()}
        spent |= {"cpu": cpu_seconds() - cpu, "wall": time.perf_counter() - began}
        path = spent_folder(workdir) / f"{flags.FLAGS.process_id or 0}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(spent) + "\n")
        return result

    return recorded


def main() -> None:
    """Train as `launch.local` does, and keep count."""
    cores = sorted(os.sched_getaffinity(0))
    # One core each, whose threads are then as many: before the first computation.
    os.sched_setaffinity(0, {cores[(flags.FLAGS.process_id or 0) % len(cores)]})
    told = Told()
    recorded = recording(train.run_update, told, pathlib.Path(flags.FLAGS.workdir))
    with (
        mock.patch.object(processes, "gather", counting(processes.gather, told)),
        mock.patch.object(train, "run_update", recorded),
    ):
        local.main()


if __name__ == "__main__":
    cli.run(main)
