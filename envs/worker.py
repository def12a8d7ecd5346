"""The worker side of `envs.pool`: hosts environment slots and turns every failure into a `Fault`.

A worker is a fresh interpreter (started by exec, never by fork, because the parent has JAX threads),
so what it imports is what the environment imports. It answers one request at a time, in order.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import os
import pathlib
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

from envs.base import Env, Observation, Task

# Lines of a traceback that are kept with a fault: enough to name the place, short enough to log.
TRACEBACK_LINES = 12


class FaultKind(enum.Enum):
    """How a rollout was lost to its environment."""

    ERROR = "env_error"
    TIMEOUT = "env_timeout"


@dataclasses.dataclass(frozen=True)
class Fault:
    """The answer of a slot whose environment failed; the slot is empty until its next reset."""

    kind: FaultKind
    message: str


class Op(enum.Enum):
    """Requests a worker answers. HELLO is answered once, after the environment was imported."""

    HELLO = "hello"
    RESET = "reset"
    STEP = "step"
    EXPERT = "expert_action"
    RECORD = "record"
    RESTORE = "restore"


@dataclasses.dataclass(frozen=True)
class Request:
    """One request. `argument` is a task (RESET), an action (STEP), a `Restore` (RESTORE) or None."""

    op: Op
    slot: int
    argument: Any = None


@dataclasses.dataclass(frozen=True)
class Restore:
    """What brings a fresh environment back to where a lost one was.

    Attributes:
      task: the task of the episode.
      calls: (op, argument) of every STEP and EXPERT call answered so far, in order.
    """

    task: Task
    calls: Sequence[tuple[Op, Any]]


@dataclasses.dataclass(frozen=True)
class Setup:
    """First message to a worker, pickled; the names in it are imported by the worker.

    Attributes:
      make: builds an environment from `options`.
      options: passed on as it is.
      timeout_s: seconds one call into the environment may take; None for no limit.
      close_s: seconds its `close` may take after it failed.
      name: of the environment, for messages.
    """

    make: Callable[[Any], Env]
    options: Any
    timeout_s: float | None
    close_s: float
    name: str


class _OutOfTime(BaseException):
    """Raised inside a call by the alarm; not an Exception, so that environments do not swallow it."""


def _on_alarm(signum: int, frame: Any) -> None:
    raise _OutOfTime


@contextlib.contextmanager
def _alarm(seconds: float | None) -> Iterator[None]:
    """Raise `_OutOfTime` in the main thread after `seconds`; a hang in C code is the parent's matter."""
    if seconds is None:
        yield
        return
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _last_lines(error: BaseException) -> str:
    lines = "".join(traceback.format_exception(error)).rstrip().splitlines()
    return "\n".join(lines[-TRACEBACK_LINES:])


def guarded(call: Callable[[], Any], seconds: float | None, what: str) -> tuple[bytes, bool]:
    """Run user code: the pickled result and True, or a pickled `Fault` and False.

    A result that cannot be pickled is a fault too. `what` ends the message of a fault: what was called.
    """
    try:
        with _alarm(seconds):
            return pickle.dumps(call(), pickle.HIGHEST_PROTOCOL), True
    except _OutOfTime as error:
        fault = Fault(FaultKind.TIMEOUT, f"no answer within {seconds} s\n{_last_lines(error)}\n{what}")
    except Exception as error:  # noqa: BLE001  whatever user code raises ends its rollout, not the run
        fault = Fault(FaultKind.ERROR, f"{_last_lines(error)}\n{what}")
    return pickle.dumps(fault, pickle.HIGHEST_PROTOCOL), False


class SlotHost:
    """Environments by slot. Used by a worker, and by the pool itself when it has no workers."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._envs: dict[int, Env] = {}
        self._tasks: dict[int, str] = {}

    def answer(self, request: Request) -> bytes:
        """The pickled answer to `request`: a value or a `Fault`; after a fault the slot is empty."""
        seconds = self._setup.timeout_s
        if seconds is not None and request.op is Op.RESTORE:
            seconds *= 1 + len(request.argument.calls)
        what = self._called(request)
        reply, succeeded = guarded(lambda: self._call(request), seconds, what)
        if not succeeded:
            self._discard(request.slot)
        return reply

    def _called(self, request: Request) -> str:
        """What a request calls, in words."""
        if request.op in (Op.RESET, Op.RESTORE):
            task = request.argument if request.op is Op.RESET else request.argument.task
            self._tasks[request.slot] = task.id
        task_id = self._tasks[request.slot]
        return f"in {request.op.value} of environment {self._setup.name!r}, task {task_id!r}"

    def close(self) -> None:
        """Close every environment that is left."""
        for slot in list(self._envs):
            self._discard(slot)

    def _call(self, request: Request) -> Any:
        slot, argument = request.slot, request.argument
        if request.op is Op.RESTORE:
            return self._restore(slot, argument)
        if request.op is Op.RESET:
            if slot not in self._envs:
                self._envs[slot] = self._setup.make(self._setup.options)
            return self._envs[slot].reset(argument)
        env = self._envs[slot]
        return env.step(argument) if request.op is Op.STEP else getattr(env, request.op.value)()

    def _restore(self, slot: int, restore: Restore) -> Observation:
        """Repeat an episode and return the observation it is at."""
        observation: Observation = self._call(Request(Op.RESET, slot, restore.task))
        for op, argument in restore.calls:
            value = self._call(Request(op, slot, argument))
            if op is Op.STEP:
                observation = value.observation
        return observation

    def _discard(self, slot: int) -> None:
        """Drop the environment of a slot. A failing `close` is reported and changes nothing else."""
        env = self._envs.pop(slot, None)
        if env is None:
            return
        reply, succeeded = guarded(env.close, self._setup.close_s, "in close")
        if not succeeded:
            print(f"envs.pool: close() of slot {slot} failed: {pickle.loads(reply).message}", file=sys.stderr)


def _die_with_parent(life: int) -> None:
    """Block until the parent's end of the `life` pipe closes, then end this process and its children."""
    os.read(life, 1)
    os.killpg(0, signal.SIGKILL)


def _go_first_when_memory_runs_out() -> None:
    """Make this process the kernel's choice: a worker is replaced, while the run it serves is not."""
    with contextlib.suppress(FileNotFoundError, PermissionError):  # Linux has it, and may forbid it
        pathlib.Path("/proc/self/oom_score_adj").write_text("1000")


def serve(connection: Connection, life: int) -> None:
    """Main loop of a worker: `Setup`, then lists of requests until the connection closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, _on_alarm)
    _go_first_when_memory_runs_out()
    threading.Thread(target=_die_with_parent, args=(life,), daemon=True).start()
    setup_bytes = connection.recv_bytes()
    try:
        host = SlotHost(pickle.loads(setup_bytes))
    except Exception as error:  # noqa: BLE001  importing user code may raise anything; the parent reports it
        connection.send_bytes(pickle.dumps(Fault(FaultKind.ERROR, _last_lines(error))))
        return
    connection.send_bytes(pickle.dumps(None))
    try:
        while True:
            for request in pickle.loads(connection.recv_bytes()):
                connection.send_bytes(host.answer(request))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        host.close()
        sys.stdout.flush()
        os.killpg(0, signal.SIGKILL)  # whatever environments have started ends with them


def main(arguments: Sequence[str]) -> None:
    """Entry point: file descriptors of the connection and of the life pipe."""
    descriptor, life = map(int, arguments)
    serve(Connection(descriptor), life)
