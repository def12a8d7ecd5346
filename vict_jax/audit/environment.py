"""`--env NAME`: does a verifier interface rebuild its environment's score, and what credit does with it."""

from __future__ import annotations

import argparse
import ast
import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tqdm

from envs import conformance
from envs.base import Domain
from envs.lookup import environment
from envs.play import EDITED, MUTATED
from envs.verdict import Verdict
from vict_jax.audit import figures
from vict_jax.audit.cores import compare_cores
from vict_jax.audit.findings import UserCodeError
from vict_jax.audit.fresh import noisy_groups
from vict_jax.audit.further import further
from vict_jax.audit.interventions import Play
from vict_jax.audit.source import Batch, Setting, credit
from vict_jax.audit.watch import LosableEnv, losing_mutations
from vict_jax.batching import Rollout, credit_inputs
from vict_jax.config import build
from vict_jax.credit.options import VictOptions
from vict_jax.gate import conforming_groups
from vict_jax.metrics import write_json
from vict_jax.types import CreditOutput

# Lost rollouts that are printed; the rest is counted, and all are in the JSON.
_SHOWN = 3
_NO_UPDATE = {"credit_share": "no update"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments that choose the tasks and how they are played."""
    group = parser.add_argument_group("fresh rollouts")
    group.add_argument("--data-dir", default="", help="real tasks; generated ones without it")
    group.add_argument(
        "--split", action="append", help="may repeat; every split of the environment if left out"
    )
    group.add_argument("--tasks", type=int, help="first N tasks of each split; all if left out")
    group.add_argument(
        "--plays", type=int, default=4, metavar="N", help="random and edited rollouts of each task checked"
    )
    group.add_argument(
        "--option", action="append", default=[], metavar="KEY=VALUE", help="environment option"
    )
    group.add_argument(
        "--rollouts",
        type=int,
        default=0,
        metavar="N",
        help="with --env and --benchmarks: rollouts to compute credit for",
    )
    group.add_argument("--group-size", type=int, default=8, metavar="N", help="rollouts of one task")
    group.add_argument(
        "--credit", action="append", default=[], metavar="KEY=VALUE", help="credit option, as in a config"
    )


def check_arguments(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """End the program with a message if a number is out of range."""
    if args.plays < 0 or (args.tasks is not None and args.tasks < 1):
        parser.error(f"--plays {args.plays} must not be negative and --tasks {args.tasks} not below 1")
    if args.group_size < 2:
        parser.error(f"--group-size {args.group_size} must be 2 or more: credit compares rollouts of a task")
    if args.rollouts < 0 or args.rollouts % args.group_size:
        parser.error(f"--rollouts {args.rollouts} must be a multiple of --group-size {args.group_size}")


def read_options(argument: str, pairs: Sequence[str]) -> dict[str, Any]:
    """`KEY=VALUE` texts of a command line argument as a dict; a value is a Python literal or else a text."""
    options: dict[str, Any] = {}
    for pair in pairs:
        key, separator, text = pair.partition("=")
        if not separator:
            raise ValueError(f"{argument} {pair!r} must look like KEY=VALUE")
        try:
            options[key] = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            options[key] = text
    return options


def main(args: argparse.Namespace) -> int:
    """Check a verifier interface, then the credit of fresh rollouts; returns the exit code.

    Raises:
      ValueError: an option is wrong, or there are too few tasks.
    """
    values = read_options("--option", args.option) | ({"data_dir": args.data_dir} if args.data_dir else {})
    passed, result = audit(args, args.env, values)
    if args.json is not None:
        write_json(args.json, result)
    return 0 if passed else 1


def audit(args: argparse.Namespace, name: str, values: dict[str, Any]) -> tuple[bool, dict[str, Any]]:
    """Audit one environment and print what comes out.

    Args:
      name: of the environment. values: its options.

    Returns:
      Whether nothing failed that must not, and all figures as JSON values.

    Raises:
      ValueError: an option is wrong, or there are too few tasks.
    """
    domain, options_class = environment(name)
    options: Any = build(options_class, values, "env.")
    splits = args.split or domain.splits
    reports = {split: _check_split(args, domain, options, split) for split in splits}
    passed = all(report.conforming for report in reports.values())
    result: dict[str, Any] = {"conformance": {split: r.to_json() for split, r in reports.items()}}
    if args.rollouts:
        sound, figures_json = _credit_or_reason(args, domain, options, splits[0], reports[splits[0]])
        passed, result = passed and sound, result | figures_json
    return passed, result


def _check_split(args: argparse.Namespace, domain: Domain, options: Any, split: str) -> conformance.Report:
    """Check a split and print its table."""
    tasks = list(itertools.islice(domain.tasks(options, split), args.tasks))
    env = LosableEnv(domain, options)
    with tqdm.tqdm(total=len(tasks), desc=split, unit="task", disable=None) as bar:
        report = conformance.check(
            losing_mutations(domain),
            options,
            tasks,
            rollouts=args.plays,
            seed=args.seed,
            progress=lambda done: bar.update(done - bar.n),
            env=env,
        )
    env.close()
    title = f"{domain.name} ({about})" if (about := domain.about(options)) else domain.name
    print(f"{title} {split}: {len(tasks)} tasks\n{report.table()}")
    for name, count in conformance.failures_by_name(report).items():
        print(f"FAILED {count:6} {name}")
    for played in report.lost[:_SHOWN]:
        print(f"LOST   {played.kind} rollout of task {played.task.id!r}: {played.lost}")
    if len(report.lost) > _SHOWN:
        print(f"LOST   ... and {len(report.lost) - _SHOWN} more")
    print(f"families to mask: {', '.join(report.masked_families()) or 'none'}")
    print(f"aggregator: {'FAILS' if report.aggregator_fails else 'conforms'}\n")
    return report


def _credit_or_reason(
    args: argparse.Namespace, domain: Domain, options: Any, split: str, report: conformance.Report
) -> tuple[bool, dict[str, Any]]:
    """`_audit_credit`, or why there is none: the environment raised in a rollout."""
    try:
        return _audit_credit(args, domain, options, split, report)
    except UserCodeError as error:
        print(f"FAILED no credit of fresh rollouts of {split}: {error}")
        return False, {"no_credit": str(error)}


def _audit_credit(
    args: argparse.Namespace, domain: Domain, options: Any, split: str, report: conformance.Report
) -> tuple[bool, dict[str, Any]]:
    """Credit of fresh rollouts: whether nothing failed that must not, and the figures as JSON values."""
    setting = Setting(
        domain, options, "vict", build(VictOptions, read_options("--credit", args.credit), "credit.")
    )
    verdict = report.verdict()
    groups = _fresh_groups(args, domain, options, split)
    batch = _batch(domain, options, groups, args.group_size, verdict)
    output, violations = credit(setting, batch.inputs)
    total = figures.tally(batch.inputs, output)
    cores = compare_cores(setting, [batch])
    played = {"mutation_conformance": _mutation(report), "credit_share": None}
    values = figures.figures(total) | played | cores.figures()
    print(
        f"Credit of {args.rollouts} rollouts of {len(groups)} tasks of {split}, played by the expert with "
        f"random actions in between\n{figures.text(values, _NO_UPDATE)}\n\nCores\n{cores.text()}\n"
    )
    if violations:
        print(f"FAILED {violations} corrections without a proof (Eq. 8)")
    return not violations, {
        "counts": dict(total.wholes),
        "figures": figures.to_json(values),
        "unproved_corrections": violations,
        "cores": cores.to_json(),
        **further(args, setting, [batch], _shuffled(list(_plays(groups, output)), args.seed)),
    }


def _fresh_groups(args: argparse.Namespace, domain: Domain, options: Any, split: str) -> list[list[Rollout]]:
    needed = args.rollouts // args.group_size
    tasks = list(itertools.islice(domain.tasks(options, split), needed))
    if len(tasks) < needed:
        raise ValueError(
            f"--rollouts {args.rollouts} with --group-size {args.group_size} needs {needed} tasks, "
            f"split {split!r} has {len(tasks)}"
        )
    with tqdm.tqdm(total=needed, desc="rollouts", unit="task", disable=None) as bar:
        return noisy_groups(
            domain, options, tasks, group_size=args.group_size, seed=args.seed, progress=bar.update
        )


def _batch(
    domain: Domain, options: Any, groups: Sequence[Sequence[Rollout]], group_size: int, verdict: Verdict
) -> Batch:
    inputs = credit_inputs(
        groups,
        domain=domain,
        max_steps=domain.max_steps(options),
        group_size=group_size,
        conforming=conforming_groups(domain, verdict, groups),
        masked_families=verdict.masked_families,
    )
    return Batch(0, inputs)


def _mutation(report: conformance.Report) -> float | None:
    """Share of the edited and mutated rollouts whose score is rebuilt."""
    shares = [report.share(kind=kind) for kind in (EDITED, MUTATED)]
    rollouts = sum(share.rollouts for share in shares)
    return sum(share.agree for share in shares) / rollouts if rollouts else None


def _shuffled(plays: Sequence[Play], seed: int) -> list[Play]:
    return random.Random(seed).sample(plays, len(plays))


def _plays(groups: Sequence[Sequence[Rollout]], output: CreditOutput) -> Iterator[Play]:
    """The rollouts with a correction."""
    for g, group in enumerate(groups):
        for n, rollout in enumerate(group):
            correction = output.correction[g, n, : len(rollout.actions)]
            if correction.any():
                yield Play(
                    name=f"{g}/{n}",
                    task=rollout.task,
                    actions=rollout.actions,
                    taken=rollout.taken,
                    score=rollout.score,
                    correction=np.asarray(correction),
                )
