"""What credit costs: the kernels against the NumPy loops, their growth, and the share of a quickstart update.

    python -m benchmarks.credit [--rollouts 128 1024] [--largest 8192] [--atoms 8 16 32 64 128]
        [--skip-oracle] [--skip-share] [--workdir DIR] [--json OUT]
    python -m benchmarks.credit --methods=all|NAME,NAME [--update-seconds 3.85] [--json OUT]

Kernels and loops compute the same batch in the same process, one after the other. The share is taken
from a short run of the quickstart's config (or from the run in --workdir): padding, hashing, transfers
and kernels as the run itself timed them, and the evidence extraction that its environments did, timed
by playing the logged actions again in this process. Median of the repetitions; wall time.

With --methods: every method on 16 groups of 8 rollouts of up to 50 steps, on four times the groups, and with
steps and rollouts of a group doubled; beside it, what the host spends on the texts of as many rollouts of the
household's noisy expert (first time seen), and both as a share of an update of the quickstart. Here the
fastest repetition counts, and CPU time on the host, so that a machine in use by others tells the same.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib
import json
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from unittest import mock

import jax
import numpy as np
import pyarrow.parquet as pq

from benchmarks import credit_methods
from configs import quickstart
from envs.alfworld import verifier
from vict_jax import proofs
from vict_jax.config import environment, from_config_dict
from vict_jax.credit.assign import assign_credit
from vict_jax.credit.vict import VictOptions
from vict_jax.metrics import RunError, read_config, read_metrics
from vict_jax.train import train
from vict_jax.types import CreditInputs, Status

GROUP = 8  # rollouts of a task
STEPS = 50
ATOMS = 16


@dataclasses.dataclass(frozen=True)
class Timing:
    """One measurement: what, its sizes, median wall milliseconds, and seconds of the first call."""

    what: str
    rollouts: int
    atoms: int
    milliseconds: float
    first_seconds: float


def conjunctive(satisfied: Any, params: Mapping[str, Any]) -> Any:
    """1 if every required atom holds; runs on NumPy and JAX arrays."""
    return (satisfied | ~params["required"]).all()


def batch(
    rollouts: int, *, atoms: int = ATOMS, steps: int = STEPS, group: int = GROUP, seed: int = 0
) -> CreditInputs:
    """A batch like those of household tasks: one state and one observation variable an atom.

    An atom is revealed, then written once or twice; most atoms of a successful rollout hold, one or two of
    a failed one do not. Requirements are chains of four atoms; two thirds of the atoms are scored.
    """
    rng = np.random.default_rng(seed)
    g, n, t, m = rollouts // group, group, steps, atoms
    length = rng.integers(steps // 3, steps + 1, (g, n))
    moment = np.sort(rng.integers(0, steps, (g, n, 3, m)), axis=2)  # revealed, written, written again
    step = np.arange(t + 1)[:, None]
    seen, first, second = (moment[:, :, k, None] < step for k in range(3))
    chain = (np.arange(m)[:, None] // 4 == np.arange(m) // 4) & (np.arange(m)[:, None] >= np.arange(m))
    holds = (rng.random((g, n, m)) < 0.93)[:, :, None] & first & seen
    holds = ~np.any(chain & ~holds[..., None, :], axis=-1)
    status = np.where(holds, Status.SATISFIED, np.where(seen, Status.UNSATISFIED, Status.UNKNOWN))
    last = np.minimum(step, length[..., None, None])
    status = np.take_along_axis(status, last, axis=2).astype(np.int8)
    evidence = np.concatenate([seen * 7, 1 + first + second], axis=-1).astype(np.int32)
    evidence = np.take_along_axis(evidence, last, axis=2)
    required = np.tile(np.arange(m) % 3 != 0, (g, 1))
    terminal = status[:, :, -1] == Status.SATISFIED
    arrays: dict[str, Any] = dict(
        score=(terminal | ~required[:, None]).all(-1).astype(np.float32),
        status=status,
        evidence=evidence,
        commits=np.zeros((g, n, t), bool),
        scope=np.zeros((g, n, t, m), bool),
        mentions=rng.random((g, n, t, m)) < 0.1,
        binds=np.tile(np.concatenate([np.eye(m, dtype=bool)] * 2, axis=1), (g, 1, 1)),
        observation_var=np.tile(np.arange(2 * m) < m, (g, 1)),
        requires=np.broadcast_to(chain, (g, n, m, m)).copy(),
        usable=np.ones((g, n, m), bool),
        irreversible=np.zeros((g, m), bool),
        terminal_only=np.zeros((g, m), bool),
        conforming=np.ones(g, bool),
        eta=np.zeros(g, np.float32),
        params={"required": required},
        step_mask=np.arange(t) < length[..., None],
        rollout_mask=np.ones((g, n), bool),
        state_id=rng.integers(1, 40, (g, n, t + 1)).astype(np.int32),
        action_id=rng.integers(1, 40, (g, n, t)).astype(np.int32),
        penalty=np.zeros((g, n, t), np.float32),
        value=np.zeros((g, n, t), np.float32),
    )
    return CreditInputs(**arrays)


def measure(what: str, work: Callable[[Any], Any], inputs: CreditInputs, repeats: int) -> Timing:
    """Time a jitted function of `inputs`; its first call compiles."""
    on_device = jax.block_until_ready(jax.device_put(inputs))
    began = time.perf_counter()
    jax.block_until_ready(work(on_device))
    first = time.perf_counter() - began
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        jax.block_until_ready(work(on_device))
        times.append(time.perf_counter() - began)
    g, n, _ = inputs.commits.shape
    return Timing(what, g * n, inputs.binds.shape[1], 1e3 * statistics.median(times), first)


def kernel(method: str) -> Callable[[Any], Any]:
    """A credit method as the training loop calls it."""
    return functools.partial(assign_credit, method=method, aggregate=conjunctive, options=VictOptions())


def oracle_seconds(inputs: CreditInputs) -> float:
    """Wall seconds of the NumPy loops of the tests on the same batch."""
    oracle = importlib.import_module("tests.credit.oracle")  # of the checkout; not installed
    began = time.perf_counter()
    oracle.credit(inputs, conjunctive, VictOptions())
    return time.perf_counter() - began


def short_run(workdir: pathlib.Path) -> None:
    """A few updates of the quickstart at its own sizes, from a short warm start."""
    config = quickstart.get_config().unlock()
    config.warm_start.tasks = 1600
    config.train.update(updates=4, eval_every=4, checkpoint_every=4)
    config.eval.tasks = 16
    train(from_config_dict(config), workdir)


def extraction_seconds(workdir: pathlib.Path, update: int) -> float:
    """CPU seconds that the environments of an update spent on evidence, by playing its actions again."""
    config = read_config(workdir)
    if config.env.name != "alfworld":
        raise ValueError(
            f"{workdir} is a run of {config.env.name!r}; extraction is timed for 'alfworld' only"
        )
    domain, _ = environment(config.env.name)
    tasks = {task.id: task for task in domain.tasks(config.env.options, config.train.split)}
    rows = pq.read_table(workdir / "rollouts" / f"{proofs.file_stem(update)}.parquet").to_pylist()
    plays: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for row in rows:
        plays.setdefault((row["group"], row["rollout"]), []).append(row)
    env, spent, observe = domain.make(config.env.options), [0.0], verifier.observe

    def timed(*args: Any) -> Any:
        began = time.process_time()
        result = observe(*args)
        spent[0] += time.process_time() - began
        return result

    with mock.patch.object(verifier, "observe", timed):
        for steps in plays.values():
            env.reset(tasks[steps[0]["task_id"]])
            for row in steps:
                if row["taken"]:
                    env.step(row["action"])
            began = time.process_time()
            env.record()
            spent[0] += time.process_time() - began
    return spent[0]


def share_of_update(workdir: pathlib.Path) -> dict[str, float]:
    """Seconds of an update of a run and what of it is credit, medians over its updates but the first."""
    rows = [row for row in read_metrics(workdir) if row["kind"] == "train"][1:]
    if not rows:
        raise RunError(f"--workdir {workdir} has fewer than 2 updates (the first compiles, and is left out)")
    phases = sorted({key for row in rows for key in row if key.startswith("seconds/")})
    figures = {phase: statistics.median(row[phase] for row in rows) for phase in phases}
    figures["update"] = statistics.median(sum(row[phase] for phase in phases) for row in rows)
    updates = proofs.logged_updates(workdir)[-3:]
    figures["extraction"] = statistics.median(extraction_seconds(workdir, update) for update in updates)
    figures["share"] = (figures["seconds/credit"] + figures["extraction"]) / figures["update"]
    return figures


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line; see the module."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.credit", description="What credit costs.")
    parser.add_argument("--rollouts", type=int, nargs="+", default=[128, 1024], help="for the loops")
    parser.add_argument("--largest", type=int, default=8192, help="growth goes from 128 by fours to this")
    parser.add_argument("--atoms", type=int, nargs="+", default=[8, 16, 32, 64, 128])
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--skip-oracle", action="store_true", help="the loops take minutes")
    parser.add_argument("--skip-share", action="store_true", help="no run of the quickstart")
    parser.add_argument("--workdir", type=pathlib.Path, help="take the share from this run")
    parser.add_argument("--methods", metavar="all|NAME,...", help="time these methods, and nothing else")
    parser.add_argument(
        "--update-seconds", type=float, default=3.85, help="with --methods: of an update, for the shares"
    )
    parser.add_argument("--json", type=pathlib.Path, metavar="OUT")
    args = parser.parse_args(argv)
    if any(count < GROUP or count % GROUP for count in (*args.rollouts, args.largest)):
        parser.error(f"--rollouts {args.rollouts} and --largest {args.largest} must be multiples of {GROUP}")
    return args


def kernel_timings(args: argparse.Namespace) -> list[Timing]:
    """Growth with the rollouts and with the atoms, and the methods for scale."""
    found = []
    counts = [128]
    while counts[-1] < args.largest:
        counts.append(min(4 * counts[-1], args.largest))
    for count in counts:
        found.append(measure("vict", kernel("vict"), batch(count), args.repeats))
        print(line(found[-1]), flush=True)
    for atoms in args.atoms:
        if atoms != ATOMS:
            found.append(measure("vict", kernel("vict"), batch(128, atoms=atoms), args.repeats))
            print(line(found[-1]), flush=True)
    others: dict[str, Callable[[Any], Any]] = {
        "grpo": kernel("grpo"),
        "gigpo": kernel("gigpo"),
    }
    for what, work in others.items():
        found.append(measure(what, work, batch(128), args.repeats))
        print(line(found[-1]), flush=True)
    return found


def line(timing: Timing) -> str:
    """One row of the table."""
    return (
        f"{timing.what:28}{timing.rollouts:>9}{timing.atoms:>7}{timing.milliseconds:>12.2f}"
        f"{timing.first_seconds:>12.2f}"
    )


def time_methods(args: argparse.Namespace) -> None:
    """What --methods asks for."""
    found = credit_methods.costs(
        credit_methods.chosen(args.methods),
        kernel,
        batch,
        repeats=args.repeats,
        update_seconds=args.update_seconds,
    )
    if args.json:
        rows = [dataclasses.asdict(cost) for cost in found]
        args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> None:
    """Command line."""
    args = parse_args(argv)
    if args.methods is not None:
        time_methods(args)
        return
    print(f"{'':28}{'rollouts':>9}{'atoms':>7}{'ms':>12}{'first, s':>12}   ({STEPS} steps)")
    timings = kernel_timings(args)
    result: dict[str, Any] = {"timings": [dataclasses.asdict(timing) for timing in timings]}
    if not args.skip_oracle:
        result["oracle"] = {}
        for count in args.rollouts:
            inputs = batch(count)
            seconds = oracle_seconds(inputs)
            ours = measure("vict", kernel("vict"), inputs, args.repeats)
            ratio = seconds / (ours.milliseconds / 1e3)
            result["oracle"][count] = {"seconds": seconds, "milliseconds": ours.milliseconds, "ratio": ratio}
            print(f"NumPy loops, {count} rollouts: {seconds:.1f} s, {ratio:.0f} times the jitted kernels")
    if not args.skip_share:
        with tempfile.TemporaryDirectory() as folder:
            workdir = args.workdir or pathlib.Path(folder) / "run"
            if not args.workdir:
                short_run(workdir)
            result["share"] = share_of_update(workdir)
        for name, value in result["share"].items():
            print(f"{name:28}{value:>9.4f}{'' if name == 'share' else ' s'}")
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
