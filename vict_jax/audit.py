"""Conformance report of an environment's verifier interface.

    python -m vict_jax.audit --env alfworld [--data-dir DIR] [--split SPLIT] [--tasks N] [--rollouts N]
        [--option KEY=VALUE] [--json OUT]

Plays the expert, random rollouts, edits and mutations of solutions (`envs.conformance`), prints one
table a split, and ends with exit code 1 if a score was not rebuilt or a record is unsound.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import tqdm

from envs import conformance
from vict_jax.config import ENVIRONMENTS, build


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line; see the module."""
    parser = argparse.ArgumentParser(prog="python -m vict_jax.audit", description="Conformance report.")
    parser.add_argument("--env", required=True, choices=sorted(ENVIRONMENTS))
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


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    args = parse_args(argv)
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
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
