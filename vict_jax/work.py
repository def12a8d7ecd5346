"""Work that is done in pieces, so that something else can go on between them."""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any, Generic, TypeVar

import jax

T = TypeVar("T")

# Yields after each piece what the device computes in it, and returns the result.
Work = Generator[Any, None, T]


def finish(work: Work[T]) -> T:
    """Do all of it at once, without waiting for the device in between."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            return done.value


class Pieces(Generic[T]):
    """Work, some of whose pieces are done before its result is asked for.

    Args:
      each: pieces of one `advance`.

    Attributes:
      seconds: spent in `advance` so far.
    """

    def __init__(self, work: Work[T], each: int = 1) -> None:
        self._work, self._each = work, each
        self._done: list[T] = []
        self.seconds = 0.0

    def advance(self) -> None:
        """Do the next pieces, if there are any, and wait until the device has done them."""
        began = time.perf_counter()
        for _ in range(self._each):
            if self._done:
                break
            try:
                jax.block_until_ready(next(self._work))
            except StopIteration as done:
                self._done.append(done.value)
        self.seconds += time.perf_counter() - began

    def result(self) -> T:
        """The result, after the pieces that are left."""
        if not self._done:
            self._done.append(finish(self._work))
        return self._done[0]
