"""Several processes of one program on this machine: start them, follow them, and end them together.

A rehearsal of a run over several hosts, and the whole launcher where one machine has several. The first
process keeps this terminal. The errors of the others are kept back, and shown if one of them ends the run.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
import types
import typing
from collections.abc import Iterator, Sequence

# How long processes may take to end by themselves after the first has failed: they may have the same to say.
_SAME_S = 1.0
# ... and after a signal was passed on: they may be writing a checkpoint.
_GRACE_S = 300.0
_POLL_S = 0.05
_TAIL_LINES = 40


def free_port() -> int:
    """A port of this machine that nobody listens at."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Children:
    """The processes, in order, and the signal that was passed on to them (None: none yet)."""

    def __init__(self, command: Sequence[str], count: int):
        coordinator = f"127.0.0.1:{free_port()}"
        self.passed_on: int | None = None
        self.passed_at = 0.0
        self.running: list[subprocess.Popen[bytes]] = []
        self.said: list[typing.IO[bytes] | None] = []
        for index in range(count):
            place = [f"--coordinator={coordinator}", f"--num_processes={count}", f"--process_id={index}"]
            said = tempfile.TemporaryFile() if index else None  # noqa: SIM115 - closed in close()
            self.said.append(said)
            # A group of their own each: Ctrl-C comes from here, once.
            self.running.append(
                subprocess.Popen(
                    [*command, *place],
                    stdout=subprocess.DEVNULL if index else None,
                    stderr=said,
                    process_group=0,
                )
            )

    def send(self, number: int) -> None:
        """Send a signal to those that still run."""
        for child in self.running:
            if child.poll() is None:
                child.send_signal(number)

    def codes(self) -> list[int | None]:
        """Exit codes, negative for signals; None of those that still run."""
        return [child.poll() for child in self.running]

    def wait(self, seconds: float) -> None:
        """Wait until all have ended, at most so long."""
        deadline = time.monotonic() + seconds
        while None in self.codes() and time.monotonic() < deadline:
            time.sleep(_POLL_S)

    def close(self) -> None:
        """End what still runs, and forget what they said."""
        self.send(signal.SIGKILL)
        for child in self.running:
            child.wait()
        for said in self.said:
            if said is not None:
                said.close()


@contextlib.contextmanager
def _passing_on(children: Children) -> Iterator[None]:
    """Ctrl-C and SIGTERM go to all processes; a second Ctrl-C ends them."""

    def pass_on(number: int, _frame: types.FrameType | None) -> None:
        again = children.passed_on is not None and number == signal.SIGINT
        children.send(signal.SIGKILL if again else number)
        children.passed_on, children.passed_at = number, time.monotonic()

    usual = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)


def run_processes(command: Sequence[str], count: int) -> int:
    """Run `command` as `count` processes to their end; the exit code for this program.

    Each gets --coordinator, --num_processes and --process_id. If one fails the others are ended, and one
    message on stderr names it. After Ctrl-C or SIGTERM the code is that of the first process.
    """
    children = Children(command, count)
    try:
        with _passing_on(children):
            failed = _follow(children)
            if failed is None:
                return children.running[0].returncode
            children.wait(_SAME_S)
        return _tell(children, failed)
    finally:
        children.close()


def _follow(children: Children) -> int | None:
    """Wait until all have ended (None) or one has failed: its index."""
    while True:
        codes = children.codes()
        failed = [index for index, code in enumerate(codes) if code not in (None, 0)]
        if failed and children.passed_on is None:
            return failed[0]
        if None not in codes:
            return None
        if children.passed_on is not None and time.monotonic() > children.passed_at + _GRACE_S:
            children.send(signal.SIGKILL)
        time.sleep(_POLL_S)


def _tell(children: Children, failed: int) -> int:
    """Say which process ended the run; the first, where it has the same to say, has said it already."""
    codes = children.codes()
    first, code = codes[0], codes[failed]
    assert code is not None
    index = failed
    if first is not None and first > 0 and code > 0:
        index, code = 0, first
    said = children.said[index]
    if said is not None:
        said.seek(0)
        for line in said.read().decode(errors="replace").splitlines()[-_TAIL_LINES:]:
            print(f"[process {index}] {line}", file=sys.stderr)
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    print(
        f"error: process {index} of {len(codes)} {how}, so the others were ended too. Everything up to the "
        "last checkpoint is kept; start the same command again to continue.",
        file=sys.stderr,
    )
    return code if code > 0 else 128 - code


def command_without(flag: str, argv: Sequence[str]) -> list[str]:
    """This program's command line without `--flag=...`, to start it again."""
    kept = [arg for arg in argv if not arg.startswith((f"--{flag}=", f"-{flag}="))]
    if len(kept) == len(argv):
        raise ValueError(f"--{flag} must be written --{flag}=N")
    return [sys.executable, "-m", "launch.local", *kept[1:]]
