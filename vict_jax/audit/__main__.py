"""Audits: does a verifier interface conform, what did credit do with its records, and does it replay.

    python -m vict_jax.audit --env NAME [--data-dir DIR] [--split SPLIT] [--tasks N] [--rollouts N]
        [--option KEY=VALUE] [--json OUT]
    python -m vict_jax.audit --workdir DIR [--json OUT]

Every command prints tables and, with --json, writes the same figures to a file. The exit code is 1 if
something failed that must not: a score that was not rebuilt, an unsound record, a bit that differs in
the replay.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence

from vict_jax.audit import environment, run
from vict_jax.metrics import RunError

# Each command is chosen by its own argument and gives the exit code.
_COMMANDS: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "env": environment.main,
    "workdir": run.main,
}


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line; see the module."""
    parser = argparse.ArgumentParser(prog="python -m vict_jax.audit", description="Conformance and replay.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--env", metavar="NAME", help="check an environment's verifier interface")
    what.add_argument("--workdir", type=pathlib.Path, help="replay the proof log of a run")
    parser.add_argument("--json", type=pathlib.Path, metavar="OUT", help="where to write the report")
    environment.add_arguments(parser)
    args = parser.parse_args(argv)
    environment.check_arguments(parser, args)
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    args = parse_args(argv)
    chosen = next(name for name in _COMMANDS if vars(args)[name] is not None)
    return _COMMANDS[chosen](args)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (ValueError, OSError, RunError) as error:
        sys.exit(f"error: {error}")
