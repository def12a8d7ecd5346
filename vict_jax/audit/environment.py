"""`--env NAME`: does an environment's verifier interface rebuild its own score."""

from __future__ import annotations

import argparse
import ast
import itertools
from collections.abc import Sequence
from typing import Any

import tqdm

from envs import conformance
from envs.lookup import environment
from vict_jax.config import build
from vict_jax.metrics import write_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments that choose the tasks and how they are played."""
    group = parser.add_argument_group("fresh rollouts")
    group.add_argument("--data-dir", default="", help="real tasks; generated ones without it")
    group.add_argument(
        "--split", action="append", help="may repeat; every split of the environment if left out"
    )
    group.add_argument("--tasks", type=int, help="first N tasks of each split; all if left out")
    group.add_argument("--rollouts", type=int, default=4, help="random and edited rollouts of each task")
    group.add_argument(
        "--option", action="append", default=[], metavar="KEY=VALUE", help="environment option"
    )


def check_arguments(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """End the program with a message if a number is out of range."""
    if args.rollouts < 0 or (args.tasks is not None and args.tasks < 1):
        parser.error(f"--rollouts {args.rollouts} must not be negative and --tasks {args.tasks} not below 1")


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


def main(args: argparse.Namespace) -> int:
    """Check a verifier interface and print one table a split; returns the exit code."""
    domain, options_class = environment(args.env)
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
        write_json(args.json, {split: report.to_json() for split, report in reports.items()})
    return 0 if all(report.conforming for report in reports.values()) else 1
