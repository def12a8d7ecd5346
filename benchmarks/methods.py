"""Every credit method on the same task: one table, over seeds, from the same warm starts.

    python -m benchmarks.methods --config=configs/quickstart.py --out=DIR [--seeds 0 1 2] [--updates 10]
        [--methods grpo gigpo vict ...] [--jobs 2] [--set key=value method:key=value ...]

For each seed the warm start is trained once, and every method begins with it; all play as many rollouts.
What differs between two methods is what the preset of that name sets, or `credit.method` alone; nothing
is tuned for any of them. (`fission` plays recoveries beside its groups: `--set fission:train.groups=N`
evens it.) Runs that are there already are not repeated, those that were cut off continue: the same
command again completes the table. Each run has one core.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import queue
import statistics
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import tqdm

from vict_jax.metrics import read_metrics
from vict_jax.presets import PRESETS

STEP_METHODS = ("gigpo", "hgpo", "salt", "graphgpo", "rewardflow", "proxmo", "trca", "hcapo")
METHODS = (*PRESETS, *STEP_METHODS, "vict", "gigpo+vict")


@dataclasses.dataclass(frozen=True)
class Run:
    """One training run: `method` "" is the warm start alone."""

    method: str
    seed: int
    workdir: pathlib.Path
    flags: tuple[str, ...]

    @property
    def finished(self) -> bool:
        """Whether it has nothing left to do."""
        return (self.workdir / "summary.json").is_file()


def runs_of(args: argparse.Namespace, seed: int) -> tuple[Run, list[Run]]:
    """The warm start of a seed, and a run of each method that begins with it."""
    common = (f"--config.seed={seed}", *(f"--config.{one}" for one in args.set if ":" not in one))
    warm = Run(
        "",
        seed,
        args.out / f"warm_start-{seed}",
        (f"--config={args.config}", *common, "--config.train.updates=0"),
    )
    methods = []
    for method in args.methods:
        workdir = args.out / f"{method}-{seed}"
        named = f":{method}" if method in PRESETS else ""
        flags = [f"--config={args.config}{named}", *common, f"--config.warm_start.run={warm.workdir}"]
        flags += [f"--config.train.updates={args.updates}", f"--config.train.eval_every={args.updates}"]
        flags += [] if named else [f"--config.credit.method={method}"]
        own = [one.partition(":") for one in args.set if ":" in one]
        flags += [f"--config.{setting}" for name, _, setting in own if name == method]
        methods.append(Run(method, seed, workdir, tuple(flags)))
    return warm, methods


def execute(run: Run, cores: queue.Queue[int]) -> Run:
    """Train `run` on a core of its own, or find it finished.

    Raises:
      RuntimeError: it failed; the message has the end of its output.
    """
    if run.finished:
        return run
    core = cores.get()
    command = [sys.executable, "-m", "launch.local", f"--workdir={run.workdir}", *run.flags]
    run.workdir.parent.mkdir(parents=True, exist_ok=True)
    cache = {"JAX_COMPILATION_CACHE_DIR": str(run.workdir.parent / "cache"), "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | cache,
            preexec_fn=lambda: os.sched_setaffinity(0, {core}),
        )
    finally:
        cores.put(core)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return run


def execute_all(args: argparse.Namespace) -> list[Run]:
    """Warm starts first, then all methods seed by seed, `args.jobs` at a time."""
    plans = [runs_of(args, seed) for seed in args.seeds]
    cores: queue.Queue[int] = queue.Queue()
    for core in sorted(os.sched_getaffinity(0))[: args.jobs]:
        cores.put(core)
    methods = [run for _, runs in plans for run in runs]
    with (
        concurrent.futures.ThreadPoolExecutor(args.jobs) as pool,
        tqdm.tqdm(total=len(plans) + len(methods), unit="run") as shown,
    ):
        for stage in ([warm for warm, _ in plans], methods):
            for done in concurrent.futures.as_completed([pool.submit(execute, run, cores) for run in stage]):
                shown.update()
                shown.set_postfix_str(done.result().workdir.name)
    return methods


@dataclasses.dataclass(frozen=True)
class Line:
    """What a method did, over the seeds: lists have a value of each.

    Attributes:
      start, end: success (or the mean score, where scores are graded) before and after.
      credit: share of an update's time that assigning credit takes.
      update: seconds of an update.
    """

    method: str
    start: list[float]
    end: list[float]
    credit: list[float]
    update: list[float]


def line(method: str, runs: Sequence[Run], figure: str) -> Line:
    """The figures of one method's runs."""
    found = Line(method, [], [], [], [])
    for run in runs:
        rows = read_metrics(run.workdir)
        evals = [row for row in rows if row["kind"] == "eval"]
        updates = [row for row in rows if row["kind"] == "train"][1:]  # the first one compiles
        found.start.append(evals[0][figure])
        found.end.append(evals[-1][figure])
        found.credit.append(statistics.mean(row["credit_share"] for row in updates))
        seconds = [sum(v for k, v in row.items() if k.startswith("seconds/")) for row in updates]
        found.update.append(statistics.median(seconds))
    return found


def table(lines: Sequence[Line]) -> str:
    """Markdown: mean and standard deviation over the seeds, in points."""

    def spread(values: Sequence[float]) -> str:
        points = [100 * value for value in values]
        deviation = f" ± {statistics.stdev(points):.1f}" if len(points) > 1 else ""
        return f"{statistics.mean(points):.1f}{deviation}"

    rows = ["| method | warm start | after | gain | s an update | credit |", "|---|---|---|---|---|---|"]
    for one in sorted(lines, key=lambda one: -statistics.mean(one.end)):
        gain = [end - start for start, end in zip(one.start, one.end, strict=True)]
        rows.append(
            f"| `{one.method}` | {spread(one.start)} | {spread(one.end)} | {spread(gain)} | "
            f"{statistics.median(one.update):.2f} | {statistics.mean(one.credit):.1%} |"
        )
    return "\n".join(rows)


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line; see the module."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.methods", description="Methods side by side.")
    parser.add_argument("--config", required=True, help="config file, e.g. configs/quickstart.py")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="directory of the runs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--updates", type=int, default=10)
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="runs at a time")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="changes to the config")
    parser.add_argument("--figure", default="success", choices=("success", "score"))
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Train what is missing, print the table, write it and the figures to `--out`."""
    args = parse_args(argv)
    runs = execute_all(args)
    lines = [line(m, [run for run in runs if run.method == m], args.figure) for m in args.methods]
    print(table(lines))
    found: list[dict[str, Any]] = [dataclasses.asdict(one) for one in lines]
    (args.out / "methods.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    (args.out / "methods.md").write_text(table(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
