"""`python -m benchmarks.scaling --what processes`: the same work a process, in one, two and four of them."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence

from launch import rehearsal
from vict_jax.metrics import RunError, read_metrics

GROUPS, GROUP = 2, 8  # of a process, and rollouts of each
UPDATES, LEFT_OUT = 5, 2  # the first updates compile


@dataclasses.dataclass(frozen=True)
class Spent:
    """An update of a run of so many processes: medians over its updates.

    Attributes:
      seconds: wall seconds of each phase, of the first process. wall: of the whole update.
      cpu: CPU seconds of all processes and their environments.
      exchanges: of an update. size: bytes that all processes told together, compressed.
      waited, exchanged: seconds of all exchanges, means over the processes: for those who are behind, and
        of the exchange itself.
    """

    processes: int
    seconds: Mapping[str, float]
    wall: float
    cpu: float
    exchanges: float
    size: float
    waited: float
    exchanged: float

    @property
    def rollouts(self) -> int:
        """Rollouts of an update."""
        return self.processes * GROUPS * GROUP


def flags(count: int, workdir: pathlib.Path, updates: int) -> list[str]:
    """The quickstart, smaller, with as much work for each of `count` processes."""
    changes = {
        "warm_start.tasks": 64,
        "env.workers": 1,
        "env.max_steps": 6,
        "train.groups": GROUPS * count,
        "train.rollouts": GROUP,
        "train.updates": updates,
        "train.eval_every": updates,
        "train.checkpoint_every": updates,
        "conformance.tasks": 2,
        "rollout.rows": GROUPS * GROUP,
        "ppo.minibatches": 1,
        "ppo.micro_rows": 4 * count,
        "mesh.data": -1,
        "eval.tasks": 4 * count,
        "eval.batch": 4,
    }
    return [
        "--config=configs/quickstart.py",
        f"--workdir={workdir}",
        *(f"--config.{name}={value}" for name, value in changes.items()),
    ]


def run_once(count: int, workdir: pathlib.Path, updates: int) -> None:
    """A run of `count` processes; each has a core, as far as there are so many.

    Raises:
      RunError: it failed; it has said why.
    """
    command = [sys.executable, "-m", "benchmarks.scaling_worker", *flags(count, workdir, updates)]
    if count == 1:
        code = subprocess.run(command, check=False).returncode
    else:
        code = rehearsal.run_processes(command, count)
    if code:
        raise RunError(f"the run of {count} processes ended with exit code {code}")


def spent_folder(workdir: pathlib.Path) -> pathlib.Path:
    """Where the processes of a run write what they spend, a file each."""
    return workdir.with_name(f"{workdir.name}-spent")


def read(count: int, workdir: pathlib.Path) -> Spent:
    """What the updates of a finished run took, but for those that compile."""
    rows = [row for row in read_metrics(workdir) if row["kind"] == "train"][LEFT_OUT:]
    phases = [key for key in rows[0] if key.startswith("seconds/")]
    files = [spent_folder(workdir) / f"{index}.jsonl" for index in range(count)]
    spent = [[json.loads(line) for line in file.read_text().splitlines()[LEFT_OUT:]] for file in files]

    def total(name: str) -> float:
        """Over the processes, the median update."""
        return statistics.median(sum(row[name] for row in update) for update in zip(*spent, strict=True))

    return Spent(
        processes=count,
        seconds={key.removeprefix("seconds/"): statistics.median(row[key] for row in rows) for key in phases},
        wall=statistics.median(row["wall"] for row in spent[0]),
        cpu=total("cpu"),
        exchanges=total("exchanges") / count,
        size=total("size"),
        waited=total("waited") / count,
        exchanged=total("exchanged") / count,
    )


def table(found: Sequence[Spent]) -> str:
    """Markdown: a line for each number of processes; the first is what the others are compared with."""
    one = found[0]
    lines = [
        "| processes | rollouts | s an update | throughput / (N x one) | CPU ms a rollout | of one's "
        "| exchanges | KiB told | s exchanging | s waiting |",
        "|---" * 10 + "|",
    ]
    for of in found:
        throughput = (of.rollouts / of.wall) / (of.processes / one.processes * one.rollouts / one.wall)
        cpu = 1e3 * of.cpu / of.rollouts
        lines.append(
            f"| {of.processes} | {of.rollouts} | {of.wall:.2f} | {throughput:.2f} | {cpu:.1f} | "
            f"{cpu / (1e3 * one.cpu / one.rollouts):.2f} | {of.exchanges:.0f} | {of.size / 1024:.1f} | "
            f"{of.exchanged:.3f} | {of.waited:.2f} |"
        )
    return "\n".join(lines)


def phase_table(found: Sequence[Spent]) -> str:
    """Markdown: wall seconds of each phase in the first process."""
    heads = " | ".join(f"{of.processes}" for of in found)
    lines = [f"| phase, s | {heads} |", "|---" * (len(found) + 1) + "|"]
    for phase in found[0].seconds:
        lines.append(f"| {phase} | {' | '.join(f'{of.seconds[phase]:.3f}' for of in found)} |")
    return "\n".join(lines)


def run(counts: Sequence[int], *, updates: int = UPDATES) -> list[Spent]:
    """Run and print; the load of the machine is printed before each run."""
    if updates <= LEFT_OUT:
        raise ValueError(f"updates={updates} is not allowed: it must be above {LEFT_OUT}, which compile")
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for count in counts:
            workdir = pathlib.Path(folder) / f"run{count}"
            print(f"{count} processes; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
            run_once(count, workdir, updates)
            found.append(read(count, workdir))
            print(table(found), flush=True)
    print(f"{GROUPS} groups of {GROUP} rollouts a process, medians of {updates - LEFT_OUT} updates")
    print(phase_table(found), flush=True)
    return found
