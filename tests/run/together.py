"""Several processes of a run as threads of the test: what they decide together, without devices."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent import futures
from typing import Any, TypeVar

import jax
import pytest

from vict_jax import processes

T = TypeVar("T")


def together(monkeypatch: pytest.MonkeyPatch, count: int, act: Callable[[int], T]) -> list[T]:
    """What `act(index)` returns in each of `count` processes, which run at the same time and may `gather`."""
    here = threading.local()
    meeting = threading.Barrier(count, timeout=60)
    told: list[Any] = [None] * count

    def gather(value: Any) -> list[Any]:
        told[here.index] = value
        meeting.wait()
        everyones = list(told)
        meeting.wait()
        return everyones

    def run(index: int) -> T:
        here.index = index
        try:
            return act(index)
        except BaseException:
            meeting.abort()  # the others would wait for it
            raise

    with monkeypatch.context() as patch:
        patch.setattr(processes, "gather", gather)
        patch.setattr(jax, "process_count", lambda: count)
        patch.setattr(jax, "process_index", lambda: here.index)
        with futures.ThreadPoolExecutor(count) as pool:
            return list(pool.map(run, range(count)))
