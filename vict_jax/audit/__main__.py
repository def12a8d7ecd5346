"""Audits: does a verifier interface conform, what did credit do with its records, and does it replay.

    python -m vict_jax.audit --env NAME [--rollouts N] [...]     conformance, then credit on fresh rollouts
    python -m vict_jax.audit --benchmarks --rollouts N [...]     the same for all of ours, beside the paper
    python -m vict_jax.audit --check my_env.py                   what its author wants to know; no model
    python -m vict_jax.audit --workdir DIR [--updates A:B] [...]  replay of a run's log, and its figures
    python -m vict_jax.audit --explain DIR --update U --rollout R one logged rollout, step by step

All arguments are in --help, all figures in docs/audit.md. With --json the figures are also written to a file.
The exit code is 1 if something failed that must not: a score that was not rebuilt, an unsound record, a
correction without a proof, a bit that differs in the replay.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence

from vict_jax.audit import benchmarks, check, environment, explain, further, run
from vict_jax.audit.findings import UserCodeError
from vict_jax.metrics import RunError

# Each command is chosen by its own argument and gives the exit code.
_COMMANDS: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "env": environment.main,
    "benchmarks": benchmarks.main,
    "check": check.main,
    "workdir": run.main,
    "explain": explain.main,
}
# What each reads beside its own argument; what it would ignore is refused.
_PLAYED = {"data_dir", "split", "tasks", "plays", "option", "seed", "json"}
_FURTHER = {"controls", "sweep", "interventions"}
_OF_CREDIT = {*_FURTHER, "credit", "group_size"}
_READS = {
    "env": {*_PLAYED, *_OF_CREDIT, "rollouts"},
    "benchmarks": {"data", "tasks", "plays", "seed", "json", "credit", "group_size", "rollouts"},
    "check": _PLAYED,
    "workdir": {*_FURTHER, "updates", "seed", "json"},
    "explain": {"update", "rollout", "json"},
}


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line; see the module."""
    parser = argparse.ArgumentParser(prog="python -m vict_jax.audit", description=__doc__.split("\n", 1)[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--env", metavar="NAME", help="check an environment's verifier interface")
    what.add_argument(
        "--benchmarks",
        action="store_true",
        default=None,
        help="check all benchmarks, beside the paper's figures",
    )
    what.add_argument("--check", metavar="ENV", help="check an environment of your own: a file or a module")
    what.add_argument("--workdir", type=pathlib.Path, help="replay the proof log of a run")
    what.add_argument("--explain", type=pathlib.Path, metavar="DIR", help="show one rollout of a run's log")
    parser.add_argument("--json", type=pathlib.Path, metavar="OUT", help="where to write the report")
    parser.add_argument("--seed", type=int, default=0, help="of everything random in an audit")
    for part in (environment, benchmarks, run, explain, further):
        part.add_arguments(parser)
    args = parser.parse_args(argv)
    for part in (environment, explain, further):
        part.check_arguments(parser, args)
    _refuse_unread(parser, args)
    return args


def _refuse_unread(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """End the program with a message if an argument would have no effect."""
    command = _command(args)
    given = sorted(
        name
        for name, value in vars(args).items()
        if name not in _COMMANDS and value != parser.get_default(name)
    )
    for name in given:
        flag = f"--{name.replace('_', '-')}"
        if name not in _READS[command]:
            parser.error(f"{flag} has no effect with --{command}; leave it out")
        if command in ("env", "benchmarks") and name in _OF_CREDIT and not args.rollouts:
            parser.error(f"{flag} has no effect without --rollouts N: no credit is computed")


def _command(args: argparse.Namespace) -> str:
    return next(name for name in _COMMANDS if vars(args)[name] is not None)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    args = parse_args(argv)
    return _COMMANDS[_command(args)](args)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (ValueError, OSError, RunError, UserCodeError) as error:
        sys.exit(f"error: {error}")
