"""Beside the loop of a run: its heartbeat, an end to what hangs, and SIGTERM.

The loop says where it is (`Watch.phase`), that it gets on (`Watch.moving`), and which finished update it has
not given up yet (`Watch.hold`). At SIGTERM it ends at its next check, at the latest between two phases, and
saves what it holds. If it does not get there in half of the grace time a thread saves in its place; at its
end the process ends in any case, and what is on the disk then is a complete checkpoint: updates after it are
computed again, to the same bits.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pathlib
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any, NoReturn, Self

import jax
from absl import logging

from vict_jax import heartbeat, processes
from vict_jax.heartbeat import WatchOptions
from vict_jax.rollout.turns import Progress

_TICK_S = 0.2
# Shares of the grace time: after the first a thread saves what the loop holds, after the second all is over.
_TAKE_OVER = 0.5
_END = 0.95


class Stopped(Exception):
    """SIGTERM ended the run before its last update; what is finished is saved."""


class Watch:
    """Watches one run from its own thread; a context manager.

    Args:
      workdir: of the run.

    In a run of several processes `phase` must be entered by all of them in the same order, since they agree
    there on whether to stop.
    """

    def __init__(self, workdir: pathlib.Path, options: WatchOptions) -> None:
        self._workdir, self._options = workdir, options
        self._phase = "start"
        self._update: int | None = None
        self._progress, self._idle = 0, 0.0
        self._asked: float | None = None  # when SIGTERM came, `time.monotonic` seconds
        self._held: Callable[[], int] | None = None
        self._stopping = False  # the loop has taken note
        self._written = 0
        self._lock = threading.RLock()  # kept to the end by whoever saves in the place of the loop
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)
        self._usual: Any = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._usual = signal.signal(signal.SIGTERM, self._on_sigterm)
        if processes.is_first():
            heartbeat.remove(self._workdir)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:  # whoever saves in the place of the loop ends the process
            self._over.set()
        self._thread.join()
        self._place("ended" if kind is None else f"{kind.__name__} in {self._phase}")
        self._beat()
        if self._usual is not None:
            signal.signal(signal.SIGTERM, self._usual)

    @contextlib.contextmanager
    def phase(self, name: str, seconds: dict[str, float] | None = None) -> Iterator[None]:
        """A phase of the loop; a place where a run can stop.

        Args:
          name: for heartbeats and messages.
          seconds: gets the seconds spent inside as `seconds/<name>`.

        Raises:
          Stopped: at its start, after SIGTERM.
        """
        self.check()
        outer, began = self._phase, time.perf_counter()
        self._place(name)
        yield
        if seconds is not None:
            seconds[f"seconds/{name}"] = time.perf_counter() - began
        self._place(outer)

    def at(self, update: int) -> None:
        """Say which update runs."""
        self._update = update

    def moving(self, move: Progress) -> Progress:
        """`move` that also says that the run gets on. Raises Stopped after SIGTERM in a run of one process.

        Several processes do not reach it equally often, and end between two phases instead.
        """

        def told(done: int, total: int) -> None:
            move(done, total)
            self._progress += 1
            if processes.count() == 1:
                self.check()

        return told

    def check(self) -> None:
        """Raise Stopped if the run is to end; every process of a run calls it at the same place."""
        with self._lock:
            if stop_requested(self._asked is not None):
                self._stopping = True
                raise Stopped

    def hold(self, save: Callable[[], int]) -> None:
        """From now on `save` puts the last finished update on the disk if need be; it returns its number."""
        with self._lock:
            self._held = save

    def release(self) -> None:
        """The state that was held is about to be donated. Raises Stopped as `check`."""
        with self._lock:
            self.check()
            self._held = None

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """Where the block stops, save what is held, and say what was reached.

        Raises:
          Stopped: with a message.
        """
        try:
            yield
        except Stopped:
            with self._lock:
                self._place("checkpoint")
                held = self._held
            reached = "before the first update" if held is None else f"after update {held()}"
            raise Stopped(f"stopped {reached}; start the same command again to continue") from None

    def _place(self, phase: str) -> None:
        self._phase = phase
        self._progress += 1

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        if self._asked is None:
            self._asked = time.monotonic()

    def _watch(self) -> None:
        """The thread. Idle time is counted in ticks: a process that was halted for an hour has not hung."""
        seen, last = self._progress, time.monotonic()
        next_beat, saving = last, False
        while not self._over.wait(_TICK_S):
            now = time.monotonic()
            self._idle = 0.0 if self._progress != seen else self._idle + min(now - last, 1.0)
            seen, last = self._progress, now
            if now >= next_beat:
                self._beat()
                next_beat = now + self._options.heartbeat_s
            if 0 < self._options.timeout_s <= self._idle:
                self._end_hung()
            if self._asked is not None:
                saving = self._end_in_time((now - self._asked) / self._options.grace_s, saving)

    def _end_in_time(self, share: float, saving: bool) -> bool:
        """After so much of the grace time; whether a thread has begun to save in the place of the loop."""
        if share >= _END:
            _end(0, f"{self} did not end in time; the run continues from its last checkpoint")
        if share >= _TAKE_OVER and not saving:
            threading.Thread(target=self._save_in_place_of_the_loop, daemon=True).start()
        return share >= _TAKE_OVER

    def _beat(self) -> None:
        place = (jax.process_index(), self._phase, self._update)
        now = heartbeat.beat(*place, progress=self._progress, idle_s=self._idle, written=self._written)
        self._written += 1
        try:
            heartbeat.write(self._workdir, now)
        except OSError as error:  # the run itself may need no disk for hours
            logging.log_first_n(logging.WARNING, "no heartbeat: %s", 1, error)

    def _save_in_place_of_the_loop(self) -> None:
        """Save what is held, if the loop has not taken note of SIGTERM by now, and end the process.

        Not in a run of several processes: they write together.
        """
        with self._lock:
            if self._stopping or self._held is None or self._over.is_set() or processes.count() > 1:
                return
            _end(0, f"{self} did not end in time; stopped after update {self._held()}")

    def _end_hung(self) -> None:
        """End the process with an error, unless it gets on while the heartbeats of the others are awaited."""
        seen = self._progress
        before = {one.process: one.written for one in heartbeat.read(self._workdir)}
        time.sleep(2 * self._options.heartbeat_s)
        others = [one for one in heartbeat.read(self._workdir) if one.process != jax.process_index()]
        if self._progress != seen:
            return
        faulthandler.dump_traceback(all_threads=True)
        lines = [
            f"error: {self} made no progress for {self._idle:.0f} s (watch.timeout_s="
            f"{self._options.timeout_s:g}); where its threads are stands above"
        ]
        for one in others:
            alive = one.written > before.get(one.process, -1)
            lines.append(f"  {one}, " + (f"no progress for {one.idle_s:.0f} s" if alive else "no heartbeat"))
        _end(1, "\n".join([*lines, "Start the same command again to continue from the last checkpoint."]))

    def __str__(self) -> str:
        where = heartbeat.place(self._phase, self._update)
        return f"host {jax.process_index()} ({socket.gethostname()}), {where}"


def stop_requested(here: bool) -> bool:
    """Whether the run is to end: whether SIGTERM came to any of its processes, all of which ask together."""
    return any(processes.gather(here))


def _end(status: int, message: str) -> NoReturn:
    """End the process whatever its threads do; environments end with it."""
    os.write(2, f"\n{message}\n".encode())
    os._exit(status)
