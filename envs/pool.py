"""Worker processes that run many environments at once and survive every way one can fail.

The pool holds *slots*, each with one environment and at most one running episode. Calls are batched:
a mapping from slot to argument in, a mapping from slot to answer out, in the order of the argument.
Slot s lives in worker s mod W, and an answer depends on nothing but the calls made to its own slot, so
results do not depend on W. Where an environment fails the answer is a `Fault`:

* a call that raises, or takes longer than `timeout_s`, is ended inside the worker;
* a call that hangs where no Python signal handler runs makes the worker miss its deadline: it is killed;
* a worker that died, or was killed, is replaced. It answers in order, so the first unanswered slot is
  the one that failed; the episodes of its other slots are repeated from their recorded calls in the new
  worker, which is exact because environments are deterministic given their task, and is checked.

Workers are separate sessions (no Ctrl-C reaches them) and end with their parent, however it ends.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import IO, Any, Self

from envs.base import Domain, Observation, StepResult, Task, VerifierRecord
from envs.worker import Fault, FaultKind, Op, Request, Restore, Setup, SlotHost

_START = (
    "import json,sys; sys.path[:]=json.loads(sys.argv[1]); from envs.worker import main; main(sys.argv[2:])"
)
_HELLO = Request(Op.HELLO, slot=-1)


@dataclasses.dataclass
class PoolCounts:
    """What went wrong since the pool was opened; `replaced` counts worker processes."""

    errors: int = 0
    timeouts: int = 0
    replaced: int = 0


@dataclasses.dataclass
class _Episode:
    """A running episode: what is needed to repeat it, and the observation it is at."""

    task: Task
    observation: Observation
    calls: list[tuple[Op, Any]] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class _Worker:
    """A worker process.

    Attributes:
      life: closing it, at the latest with this process, ends the worker.
      queue: requests without an answer, in the order the worker answers them.
      unsent: the requests behind HELLO, sent when the worker is ready for them.
      deadline: when the first request of `queue` must be answered (`time.monotonic` seconds).
      barren: replacements in a row after which no request but HELLO and RESTORE was answered.
    """

    process: subprocess.Popen[bytes]
    connection: Connection
    life: IO[bytes]
    queue: collections.deque[Request]
    unsent: list[Request]
    deadline: float
    barren: int


class EnvPool:
    """Environments of one domain in worker processes; a context manager.

    Args:
      domain: only `domain.make` is used; it must be importable by name (not from `__main__`).
      options: passed to `domain.make`; picklable.
      workers: number of processes; 0 runs environments in this process, without time limits.
      timeout_s: seconds one call into an environment may take.
      grace_s: seconds after `timeout_s` until the worker itself counts as hung.
      start_s: seconds a worker may take to import the environment.
      max_replacements: replacements of one worker in a row without an answered request that are
        tolerated.

    Raises:
      ValueError: an argument out of range, or `domain.make` defined in `__main__`.
      RuntimeError: a worker cannot start (the message has its traceback), or the limit of
        `max_replacements` is exceeded.
    """

    def __init__(
        self,
        domain: Domain,
        options: Any,
        *,
        workers: int,
        timeout_s: float,
        grace_s: float = 5.0,
        start_s: float = 120.0,
        max_replacements: int = 10,
    ) -> None:
        for name, value, least in (("workers", workers, 0), ("max_replacements", max_replacements, 0)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        for name, seconds in (("timeout_s", timeout_s), ("grace_s", grace_s), ("start_s", start_s)):
            if not seconds > 0:
                raise ValueError(f"{name} must be positive, got {seconds}")
        if domain.make.__module__ == "__main__" and workers:
            raise ValueError(f"domain.make of {domain.name!r} is defined in __main__; move it into a module")
        self._timeout_s, self._grace_s, self._start_s = timeout_s, grace_s, start_s
        self._max_replacements = max_replacements
        self._setup = Setup(
            domain.make, options, timeout_s if workers else None, close_s=grace_s / 2, name=domain.name
        )
        self._episodes: dict[int, _Episode] = {}
        self._lost: dict[int, Fault] = {}
        self._asked: tuple[list[int], dict[int, Any]] | None = None
        self._closed = False
        self._local = None if workers else SlotHost(self._setup)
        self._workers: list[_Worker] = []
        self.counts = PoolCounts()
        try:
            self._workers.extend(self._start([], barren=0) for _ in range(workers))
            self._drain({})
        except BaseException:
            self._kill_all()
            raise

    def reset(self, tasks: Mapping[int, Task]) -> dict[int, Observation | Fault]:
        """Start a task in each given slot, ending what ran there."""
        for slot in tasks:
            self._episodes.pop(slot, None)
            self._lost.pop(slot, None)
        return self._run([Request(Op.RESET, slot, task) for slot, task in tasks.items()])

    def step(self, actions: Mapping[int, str]) -> dict[int, StepResult | Fault]:
        """Apply one action in each given slot."""
        return self._run([Request(Op.STEP, slot, action) for slot, action in actions.items()])

    def ask(self, actions: Mapping[int, str]) -> None:
        """Begin what `step` does: the workers act while this process does something else.

        Without workers the environments act here and now. Until `answers` has been called nothing else may be
        asked of the pool.
        """
        requests = [Request(Op.STEP, slot, action) for slot, action in actions.items()]
        self._asked = self._begin(requests)

    def answers(self) -> dict[int, StepResult | Fault]:
        """Wait for the answers to `ask`.

        Raises:
          ValueError: nothing was asked.
        """
        if self._asked is None:
            raise ValueError("answers() without ask()")
        asked, self._asked = self._asked, None
        return self._finish(*asked)

    def expert(self, slots: Iterable[int]) -> dict[int, str | Fault]:
        """The expert's next action in each given slot."""
        return self._run([Request(Op.EXPERT, slot) for slot in slots])

    def record(self, slots: Iterable[int]) -> dict[int, VerifierRecord | Fault]:
        """The verifier's record of the episode of each given slot."""
        return self._run([Request(Op.RECORD, slot) for slot in slots])

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return [worker.process.pid for worker in self._workers]

    def close(self) -> None:
        """End the workers: they may close their environments for `grace_s`, then they are killed."""
        if self._local is not None:
            self._local.close()
        for worker in self._workers:
            worker.connection.close()
        deadline = time.monotonic() + self._grace_s
        for worker in self._workers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.process.wait(max(0.0, deadline - time.monotonic()))
        self._kill_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._kill_all()

    def _run(self, requests: list[Request]) -> dict[int, Any]:
        return self._finish(*self._begin(requests))

    def _begin(self, requests: list[Request]) -> tuple[list[int], dict[int, Any]]:
        """Send requests; returns their slots, and the answers that are known already."""
        if self._closed:
            raise ValueError("the pool is closed")
        if self._asked is not None:
            raise ValueError(f"answers() of slots {self._asked[0]} must be taken before the next call")
        slots = [request.slot for request in requests]
        if len(set(slots)) != len(slots) or any(slot < 0 for slot in slots):
            raise ValueError(f"slots must be different and not negative, got {slots}")
        for request in requests:
            if request.op is not Op.RESET and request.slot not in self._episodes | self._lost:
                raise ValueError(
                    f"slot {request.slot} has no running episode; running: {sorted(self._episodes)}"
                )
        results: dict[int, Any] = {slot: self._lost.pop(slot) for slot in slots if slot in self._lost}
        with self._or_nothing():
            self._dispatch([request for request in requests if request.slot not in results], results)
        return slots, results

    def _finish(self, slots: list[int], results: dict[int, Any]) -> dict[int, Any]:
        """Wait for the answers that are open."""
        with self._or_nothing():
            self._drain(results)
        # A slot that was not asked for can be lost with its worker: its next call says so.
        self._lost.update({slot: fault for slot, fault in results.items() if slot not in slots})
        return {slot: results[slot] for slot in slots}

    @contextlib.contextmanager
    def _or_nothing(self) -> Iterator[None]:
        """Kill the workers on any error: after half-answered requests nothing could be trusted."""
        try:
            yield
        except BaseException:
            self._kill_all()
            raise

    def _dispatch(self, requests: list[Request], results: dict[int, Any]) -> None:
        if self._local is not None:
            for request in requests:
                self._settle(request, pickle.loads(self._local.answer(request)), results)
            return
        for index, worker in enumerate(self._workers):
            share = [request for request in requests if request.slot % len(self._workers) == index]
            if not share:
                continue
            if worker.connection.poll():  # nothing is owed, so this is its end: it died between calls
                worker = self._replace(worker, None, results)
            worker.queue.extend(share)
            if worker.queue[0] is _HELLO:
                worker.unsent.extend(share)
            else:
                self._send(worker, share)

    def _drain(self, results: dict[int, Any]) -> None:
        """Receive until no request is open, replacing workers that die or miss their deadline."""
        while busy := [worker for worker in self._workers if worker.queue]:
            patience = min(worker.deadline for worker in busy) - time.monotonic()
            ready = wait([worker.connection for worker in busy], max(0.0, patience))
            for worker in busy:
                if worker.connection in ready:
                    self._receive(worker, results)
                elif time.monotonic() > worker.deadline:
                    limit = self._allowance(worker.queue[0])
                    message = f"worker hung: no answer within {limit} s"
                    self._replace(worker, Fault(FaultKind.TIMEOUT, message), results)

    def _receive(self, worker: _Worker, results: dict[int, Any]) -> None:
        try:
            answer = pickle.loads(worker.connection.recv_bytes())
        except (EOFError, OSError):  # OSError: it ended in the middle of an answer
            status = _kill(worker)
            hint = ", as when memory runs out" if status == -signal.SIGKILL else ""
            message = f"worker died (exit status {status}{hint})"
            self._replace(worker, Fault(FaultKind.ERROR, message), results)
            return
        request = worker.queue.popleft()
        if request.op is Op.HELLO:
            if isinstance(answer, Fault):
                raise RuntimeError(f"an environment worker cannot start:\n{answer.message}")
            if worker.queue:
                self._send(worker, worker.unsent)
            return
        if request.op is not Op.RESTORE:
            worker.barren = 0
        if worker.queue:
            worker.deadline = time.monotonic() + self._allowance(worker.queue[0])
        self._settle(request, answer, results)

    def _settle(self, request: Request, answer: Any, results: dict[int, Any]) -> None:
        """Take an answer down; a fault ends the episode of its slot."""
        slot = request.slot
        if slot in results:  # lost while its episode was being repeated; the request came too late
            return
        if request.op is Op.RESTORE and not isinstance(answer, Fault):
            if answer == self._episodes[slot].observation:
                return
            answer = Fault(
                FaultKind.ERROR, "repeated after the loss of its worker, the episode went differently"
            )
        if isinstance(answer, Fault):
            self.counts.timeouts += answer.kind is FaultKind.TIMEOUT
            self.counts.errors += answer.kind is FaultKind.ERROR
            self._episodes.pop(slot, None)
        elif request.op is Op.RESET:
            self._episodes[slot] = _Episode(request.argument, answer)
        elif request.op is not Op.RECORD:
            self._episodes[slot].calls.append((request.op, request.argument))
            if request.op is Op.STEP:
                self._episodes[slot].observation = answer.observation
        results[slot] = answer

    def _replace(self, worker: _Worker, fault: Fault | None, results: dict[int, Any]) -> _Worker:
        """Start a new worker in the place of `worker`; `fault` is for its first unanswered slot."""
        _kill(worker)
        pending = list(worker.queue)
        if worker.barren >= self._max_replacements:
            reason = fault.message if fault else "worker died between calls"
            raise RuntimeError(
                f"an environment worker was replaced {worker.barren} times in a row without answering a "
                f"request (max_replacements={self._max_replacements}); last reason: {reason}"
            )
        if fault is not None and pending[0].op is not Op.HELLO:
            self._settle(pending[0], fault, results)
        index = self._workers.index(worker)
        restores = [
            Request(Op.RESTORE, slot, Restore(episode.task, tuple(episode.calls)))
            for slot, episode in self._episodes.items()
            if slot % len(self._workers) == index
        ]
        again = [r for r in pending if r.op not in (Op.HELLO, Op.RESTORE) and r.slot not in results]
        self._workers[index] = self._start(restores + again, barren=worker.barren + 1)
        self.counts.replaced += 1
        return self._workers[index]

    def _start(self, requests: list[Request], *, barren: int) -> _Worker:
        """Start a process; `requests` follow when it has said HELLO."""
        parent, child = Pipe()
        life_read, life_write = os.pipe()
        arguments = [json.dumps(sys.path), str(child.fileno()), str(life_read)]
        process = subprocess.Popen(
            [sys.executable, "-c", _START, *arguments],
            stdin=subprocess.DEVNULL,
            pass_fds=(child.fileno(), life_read),
            start_new_session=True,
        )
        child.close()
        os.close(life_read)
        deadline = time.monotonic() + self._allowance(_HELLO)
        queue = collections.deque([_HELLO, *requests])
        worker = _Worker(process, parent, os.fdopen(life_write, "wb"), queue, requests, deadline, barren)
        with contextlib.suppress(BrokenPipeError):  # its death is found when it is read from
            parent.send_bytes(pickle.dumps(self._setup))
        return worker

    def _send(self, worker: _Worker, requests: Sequence[Request]) -> None:
        with contextlib.suppress(BrokenPipeError):
            worker.connection.send_bytes(pickle.dumps(list(requests)))
        worker.deadline = time.monotonic() + self._allowance(worker.queue[0])

    def _allowance(self, request: Request) -> float:
        """Seconds after which a worker that has not answered `request` counts as hung."""
        if request.op is Op.HELLO:
            return self._start_s
        calls = 1 + len(request.argument.calls) if request.op is Op.RESTORE else 1
        return calls * self._timeout_s + self._grace_s

    def _kill_all(self) -> None:
        for worker in self._workers:
            _kill(worker)
        self._closed = True


def _kill(worker: _Worker) -> int:
    """Kill a worker with everything it has started; its exit status. A second call changes nothing."""
    if worker.process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(worker.process.pid, signal.SIGKILL)
    worker.connection.close()
    worker.life.close()
    return worker.process.wait()
