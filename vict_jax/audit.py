"""Audits: does a verifier interface conform, and do the logged corrections of a run replay.

    python -m vict_jax.audit --env alfworld [--data-dir DIR] [--split SPLIT] [--tasks N] [--rollouts N]
        [--option KEY=VALUE] [--json OUT]
    python -m vict_jax.audit --workdir DIR [--json OUT]

With --env, plays the expert, random rollouts, edits and mutations of solutions (`envs.conformance`), prints
one table a split, and ends with exit code 1 if a score was not rebuilt or a record is unsound. With
--workdir, recomputes every logged correction from the logged trajectories and ends with exit code 1 if
one bit differs.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import itertools
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import tqdm

from envs import conformance
from vict_jax import proofs
from vict_jax.batching import to_device, to_host
from vict_jax.config import ENVIRONMENTS, build, from_plain
from vict_jax.credit.assign import InvariantError, assign_credit
from vict_jax.metrics import RunError, read_json, write_json
from vict_jax.sharding import make_mesh, replicated
from vict_jax.types import CreditInputs, CreditOutput

# Differences printed one by one; the rest is only counted.
_SHOWN = 20


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line; see the module."""
    parser = argparse.ArgumentParser(prog="python -m vict_jax.audit", description="Conformance and replay.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--env", choices=sorted(ENVIRONMENTS), help="check an environment's verifier interface")
    what.add_argument("--workdir", type=pathlib.Path, help="replay the proof log of a run")
    parser.add_argument("--data-dir", default="", help="real tasks; generated ones without it")
    parser.add_argument(
        "--split", action="append", help="may repeat; every split of the environment if left out"
    )
    parser.add_argument("--tasks", type=int, help="first N tasks of each split; all if left out")
    parser.add_argument("--rollouts", type=int, default=4, help="random and edited rollouts of each task")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--option", action="append", default=[], metavar="KEY=VALUE", help="environment option"
    )
    parser.add_argument("--json", type=pathlib.Path, metavar="OUT", help="where to write the report")
    args = parser.parse_args(argv)
    if args.rollouts < 0 or (args.tasks is not None and args.tasks < 1):
        parser.error(f"--rollouts {args.rollouts} must not be negative and --tasks {args.tasks} not below 1")
    return args


def read_options(pairs: Sequence[str]) -> dict[str, Any]:
    """`KEY=VALUE` texts as a dict; a value is a Python literal or else a text."""
    options: dict[str, Any] = {}
    for pair in pairs:
        key, separator, text = pair.partition("=")
        if not separator:
            raise ValueError(f"--option {pair!r} must look like KEY=VALUE")
        try:
            options[key] = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            options[key] = text
    return options


def audit_run(workdir: pathlib.Path) -> proofs.Replay:
    """Replay every logged update of a run and print what came out.

    Raises:
      RunError: the directory holds no run, or a logged file is damaged.
    """
    if not (workdir / "config.json").is_file():
        raise RunError(f"--workdir {workdir} holds no run (no config.json in it)")
    config = from_plain(read_json(workdir / "config.json"))
    domain, _ = ENVIRONMENTS[config.env.name]
    sharding = replicated(make_mesh())

    def credit(inputs: CreditInputs) -> CreditOutput:
        output, violations = assign_credit(
            to_device(inputs, sharding),
            method=config.credit.method,
            aggregate=domain.aggregate,
            options=config.credit.options,
        )
        if violations:
            raise InvariantError(f"{violations} replayed corrections have no proof (Eq. 8)")
        return to_host(output)

    updates = proofs.logged_updates(workdir)
    with tqdm.tqdm(updates, desc="replay", unit="update", disable=None) as bar:
        result = proofs.replay(workdir, bar, credit)
    print(f"{workdir}: {result.updates} updates, {result.steps} steps, {result.proofs} proofs replayed")
    for line in result.differing[:_SHOWN]:
        print(f"DIFFERS {line}")
    print(f"{len(result.differing)} differences, bit for bit")
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    args = parse_args(argv)
    if args.workdir is not None:
        result = audit_run(args.workdir)
        if args.json is not None:
            write_json(args.json, dataclasses.asdict(result))
        return 1 if result.differing else 0
    return audit_environment(args)


def audit_environment(args: argparse.Namespace) -> int:
    """Check a verifier interface and print one table a split; returns the exit code."""
    domain, options_class = ENVIRONMENTS[args.env]
    values = read_options(args.option) | ({"data_dir": args.data_dir} if args.data_dir else {})
    options: Any = build(options_class, values, "env.")
    reports = {}
    for split in args.split or domain.splits:
        tasks = list(itertools.islice(domain.tasks(options, split), args.tasks))
        with tqdm.tqdm(total=len(tasks), desc=split, unit="task", disable=None) as bar:
            report = conformance.check(
                domain,
                options,
                tasks,
                rollouts=args.rollouts,
                seed=args.seed,
                progress=lambda done, bar=bar: bar.update(done - bar.n),  # type: ignore[misc]
            )
        reports[split] = report
        print(f"{args.env} {split}: {len(tasks)} tasks\n{report.table()}")
        for name, count in conformance.failures_by_name(report).items():
            print(f"FAILED {count:6} {name}")
        print(f"families to mask: {', '.join(report.masked_families()) or 'none'}")
        print(f"aggregator: {'FAILS' if report.aggregator_fails else 'conforms'}\n")
    if args.json is not None:
        args.json.write_text(
            json.dumps({split: r.to_json() for split, r in reports.items()}, indent=1) + "\n"
        )
    return 0 if all(report.conforming for report in reports.values()) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (ValueError, OSError, RunError) as error:
        sys.exit(f"error: {error}")
