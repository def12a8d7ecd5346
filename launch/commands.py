"""What the launchers share: commands that are shown before they run, and the arguments of a training."""

from __future__ import annotations

import dataclasses
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence

from vict_jax.metrics import RunError

ROOT = pathlib.Path(__file__).resolve().parent.parent  # of the checkout that is copied and run
SCRATCH = "build/launch"  # under ROOT: what the launchers write on this machine
_CONFIG_ARGUMENT = re.compile(r"--?(no)?config\b")
_OVERRIDE = re.compile(r"--config\.[\w.]+=.*", re.DOTALL)


class CommandFailed(RunError):
    """A command that had to succeed did not; the message names it and its exit status."""


@dataclasses.dataclass(frozen=True)
class Output:
    """What a command that was read left behind."""

    status: int
    out: str
    err: str


@dataclasses.dataclass(frozen=True)
class Runner:
    """Runs commands in the checkout, each an argument list, and shows each before; or only shows them.

    Attributes:
      dry_run: print a shell script of the commands and run nothing. Remarks are comments in it.
    """

    dry_run: bool = False

    def note(self, text: str) -> None:
        """Tell the user something; in a dry run as a comment."""
        print("\n".join(f"# {line}" for line in text.splitlines()) if self.dry_run else text, flush=True)

    def status(self, argv: Sequence[str]) -> int:
        """Run with the terminal's input and output; the exit status (0 in a dry run)."""
        self._show(argv)
        if self.dry_run:
            return 0
        return subprocess.run(argv, cwd=ROOT, check=False).returncode

    def run(self, argv: Sequence[str], *, hint: str = "") -> None:
        """As `status`. Raises CommandFailed, with `hint` at its end, for any other status than 0."""
        status = self.status(argv)
        if status:
            raise CommandFailed(f"exit status {status} of: {shlex.join(argv)}{_after(hint)}")

    def read(self, argv: Sequence[str]) -> Output:
        """Run and return what was written (nothing in a dry run)."""
        self._show(argv)
        if self.dry_run:
            return Output(0, "", "")
        done = subprocess.run(argv, cwd=ROOT, check=False, capture_output=True, text=True)
        return Output(done.returncode, done.stdout, done.stderr)

    def read_checked(self, argv: Sequence[str], *, hint: str = "") -> str:
        """As `read`, the standard output. Raises CommandFailed for any other status than 0."""
        done = self.read(argv)
        if done.status:
            said = done.err.strip() or done.out.strip()
            raise CommandFailed(f"exit status {done.status} of: {shlex.join(argv)}\n{said}{_after(hint)}")
        return done.out

    def _show(self, argv: Sequence[str]) -> None:
        if self.dry_run:
            print(shlex.join(argv), flush=True)
        else:
            print(f"+ {shlex.join(argv)}", file=sys.stderr, flush=True)


def _after(hint: str) -> str:
    return f"\n{hint}" if hint else ""


def require_programs(names: Sequence[str], *, why: str) -> None:
    """Raise RunError for the first of the programs that is not on PATH."""
    for name in names:
        if shutil.which(name) is None:
            raise RunError(f"the program {name!r} is not on PATH; {why}")


@dataclasses.dataclass(frozen=True)
class Training:
    """What `launch.local` is started with, wherever it runs.

    Attributes:
      config: file of the checkout, relative to its root, with `:ARGUMENT` if one was given.
      workdir: directory of the run, as it was given.
      overrides: `--config.KEY=VALUE`, as they were given.
    """

    config: str
    workdir: str
    overrides: tuple[str, ...] = ()

    def argv(self, python: str, *options: str, workdir: str | None = None) -> list[str]:
        """The command line; `workdir` is the directory's name where the command runs, if it differs."""
        where = self.workdir if workdir is None else workdir
        return [
            *(python, "-m", "launch.local", *options),
            *(f"--config={self.config}", f"--workdir={where}", *self.overrides),
        ]


def training(config: str | None, workdir: str | None, arguments: Sequence[str]) -> Training:
    """The training that a launcher's command line asks for.

    Args:
      config: value of --config as it was written. workdir: value of --workdir.
      arguments: the whole command line, of which the overrides are taken as they are.

    Raises:
      ValueError: a value is missing, an override has no "=", or the config is not in the checkout.
    """
    if not config or not workdir:
        raise ValueError(
            "--config=FILE and --workdir=DIR are both needed, e.g. --config=configs/quickstart.py"
        )
    given = [one for one in arguments if _CONFIG_ARGUMENT.match(one) and not one.startswith("--config=")]
    for one in given:
        if not _OVERRIDE.fullmatch(one):
            raise ValueError(f"{one!r} cannot be handed on; write it as --config.section.key=value")
    path, colon, argument = config.partition(":")
    file = pathlib.Path(path).resolve()
    if not file.is_relative_to(ROOT):
        raise ValueError(f"--config={config} is outside the checkout {ROOT}, the only thing that is copied")
    return Training(f"{file.relative_to(ROOT).as_posix()}{colon}{argument}", workdir, tuple(given))


def raw_config(arguments: Sequence[str]) -> str | None:
    """The value of --config as it was written; the last one counts, None without any."""
    values = [one.removeprefix("--config=") for one in arguments if one.startswith("--config=")]
    return values[-1] if values else None
