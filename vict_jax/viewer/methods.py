"""What needs JAX: the advantages of other credit methods, and evidence that was touched without credit.

These run in a process of their own (`Workshop`), so that the page opens without JAX and stays quick while
a method is compiled.
"""

from __future__ import annotations

import concurrent.futures
import concurrent.futures.process
import functools
import multiprocessing
import pathlib
import signal
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")

_PROCESS = multiprocessing.get_context("spawn")


class UnavailableError(Exception):
    """A method or an update cannot be computed; the message says why."""


def available(workdir: pathlib.Path, update: int) -> list[dict[str, str]]:
    """Every method, alone and under VICT where that is allowed, and why it cannot be computed on an update;
    empty if it can.
    """
    from vict_jax import compare
    from vict_jax.credit.methods import composable, method_names

    batch = _stored(workdir, update)
    names = method_names()
    names += [f"{name}+vict" for name in names if composable(name, batch.options)]
    return [{"name": name, "why_not": compare.why_not(batch, name)} for name in names]


def advantages(workdir: pathlib.Path, update: int, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Advantages f32[G, N, T] of each method, on the rollouts of one update, with the run's options."""
    from vict_jax import compare

    batch = _stored(workdir, update)
    return compare.advantages(batch, compare.chosen_methods(",".join(names), batch.options))


def observed(workdir: pathlib.Path, update: int, g: int, n: int) -> list[tuple[int, int, str]]:
    """(step, atom, relation) of every edge of a rollout, credited or not."""
    from vict_jax.audit.explain import witnessed

    return list(witnessed(_stored(workdir, update).inputs, g, n))


@functools.lru_cache(maxsize=2)
def _stored(workdir: pathlib.Path, update: int) -> Any:
    from vict_jax import compare

    return compare.logged(workdir, update, [])


def _guarded(task: Callable[..., T], *args: Any) -> T:
    """Run in the other process; what may go wrong there comes back as one kind of error."""
    from vict_jax.audit.findings import UserCodeError
    from vict_jax.credit.assign import InvariantError
    from vict_jax.metrics import RunError

    try:
        return task(*args)
    except (RunError, UserCodeError, InvariantError, ValueError, OSError) as error:
        raise UnavailableError(str(error)) from error


def _leave_ctrl_c_to_the_server() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class Workshop:
    """The process in which this module's functions run; it starts with the first call."""

    def __init__(self) -> None:
        self._pool: concurrent.futures.ProcessPoolExecutor | None = None
        self._lock = threading.Lock()

    def run(self, task: Callable[..., T], *args: Any) -> T:
        """`task(*args)`, a function of this module.

        Raises:
          UnavailableError: it cannot be computed, or the process died.
        """
        with self._lock:
            if self._pool is None:
                self._pool = concurrent.futures.ProcessPoolExecutor(
                    1, mp_context=_PROCESS, initializer=_leave_ctrl_c_to_the_server
                )
            pool = self._pool
        try:
            return pool.submit(_guarded, task, *args).result()
        except concurrent.futures.process.BrokenProcessPool as error:
            with self._lock:
                self._pool = None
            raise UnavailableError(
                "the process that computes methods died; ask again to start it anew"
            ) from error

    def close(self) -> None:
        """End the process."""
        with self._lock:
            if self._pool is not None:
                self._pool.shutdown(cancel_futures=True)
                self._pool = None
