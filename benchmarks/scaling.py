"""How an update scales: over processes, with its rollouts, and on paper on a TPU slice.

    python -m benchmarks.scaling [--what processes host estimate] [--json OUT]
        [--processes 1 2 4] [--updates 5]
        [--rollouts 128 1024 4096 16384] [--group 8] [--steps 50]
        [--device v5p-256] [--model qwen2.5-7b] [--assume KEY=VALUE ...]

processes: the same work for each of 1, 2 and 4 processes of `launch.local`, one core each as far as there are
so many (benchmarks.scaling_processes). host: credit and the host's phases for updates of household rollouts
(benchmarks.scaling_host). estimate: seconds of an update of a large model, from FLOPs and bytes, with every
assumption (benchmarks.scaling_estimate; --assume has the keys of its `Work`); it takes the host's phases from
the part `host` where that runs as well, else from an update of 1,024 rollouts, in proportion.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
from collections.abc import Sequence
from typing import Any

from benchmarks import scaling_estimate, scaling_host, scaling_processes
from benchmarks.scaling_estimate import Work
from benchmarks.scaling_host import Phase
from vict_jax.models.options import ModelOptions
from vict_jax.plan.presets import HF_CONFIGS

PARTS = ("processes", "host", "estimate")
# For an estimate without the part `host`.
_FEW = 1024


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line; see the module."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description="How an update scales.")
    parser.add_argument("--what", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--updates", type=int, default=scaling_processes.UPDATES, help="of each run")
    parser.add_argument("--rollouts", type=int, nargs="+", default=[128, 1024, 4096, 16384])
    parser.add_argument("--group", type=int, default=8, help="rollouts of a task")
    parser.add_argument("--steps", type=int, default=50, help="the most of a rollout")
    parser.add_argument(
        "--windowed-most", type=int, default=16384, help="rollouts up to which a sequence a step is packed"
    )
    parser.add_argument("--device", default="v5p-256", help="a v5p slice")
    parser.add_argument("--model", default="qwen2.5-7b", choices=sorted(HF_CONFIGS))
    parser.add_argument("--assume", nargs="*", default=[], metavar="KEY=VALUE", help="fields of `Work`")
    parser.add_argument("--json", type=pathlib.Path, metavar="OUT")
    args = parser.parse_args(argv)
    if any(count < args.group or count % args.group for count in args.rollouts):
        parser.error(f"--rollouts {args.rollouts} must be multiples of --group {args.group}")
    try:
        args.work = assumed(args.assume)
        scaling_estimate.v5p(args.device)
    except ValueError as error:
        parser.error(str(error))
    return args


def assumed(changes: Sequence[str]) -> Work:
    """The assumptions with changes such as `steps=50`.

    Raises:
      ValueError: an unknown key, or a value that is not allowed.
    """
    kinds = {name: type(value) for name, value in dataclasses.asdict(Work()).items()}
    found: dict[str, Any] = {}
    for change in changes:
        name, _, value = change.partition("=")
        if name not in kinds:
            raise ValueError(f"assume={change!r} is not allowed: the key must be one of {', '.join(kinds)}")
        if kinds[name] is bool and value not in ("True", "False"):
            raise ValueError(f"assume={change!r} is not allowed: it must be True or False")
        found[name] = value == "True" if kinds[name] is bool else kinds[name](value)
    return Work(**found)


def host(args: argparse.Namespace, counts: Sequence[int]) -> list[Phase]:
    """The part `host`, for these numbers of rollouts."""
    return scaling_host.run(counts, group=args.group, steps=args.steps, windowed_most=args.windowed_most)


def estimate(args: argparse.Namespace, phases: Sequence[Phase]) -> dict[str, float]:
    """The part `estimate`, printed."""
    work, chip = args.work, scaling_estimate.v5p(args.device)
    model = ModelOptions().read(HF_CONFIGS[args.model])
    measured = max(phase.rollouts for phase in phases)
    of_host = scaling_host.at(phases, work.rollouts)
    told = of_host["compress"].size
    own = {name: phase.cpu for name, phase in of_host.items() if name in scaling_host.OWN}
    whole = {
        name: phase.cpu
        for name, phase in of_host.items()
        if name not in (*scaling_host.OWN, scaling_host.PACK_STEPS)
    }
    parts = scaling_estimate.estimate(model, work, chip, own=own, whole=whole, told=told)
    print(scaling_estimate.describe(args.device, args.model, model, work, chip))
    print(
        f"  host: CPU seconds of this machine for {measured:,} household rollouts, in proportion; "
        "credit on its CPU, not on a chip"
    )
    print(scaling_estimate.table(parts), flush=True)
    return parts


def main(argv: Sequence[str] | None = None) -> None:
    """Command line."""
    args = parse_args(argv)
    result: dict[str, Any] = {"load": os.getloadavg(), "cores": os.cpu_count()}
    if "processes" in args.what:
        spent = scaling_processes.run(args.processes, updates=args.updates)
        result["processes"] = [dataclasses.asdict(one) for one in spent]
    if "host" in args.what or "estimate" in args.what:
        phases = host(args, args.rollouts if "host" in args.what else [_FEW])
        result["host"] = [dataclasses.asdict(phase) for phase in phases]
        if "estimate" in args.what:
            result["estimate"] = estimate(args, phases)
            result["assumptions"] = dataclasses.asdict(args.work)
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
