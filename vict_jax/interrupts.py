"""Ctrl-C where it would do harm."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def interrupt_waits() -> Iterator[list[int]]:
    """Hold the first Ctrl-C back until the block is over, and tell it of it; a second one interrupts at once.

    For what has threads of its own. Orbax's would run into the end of the interpreter and fail there with
    tracebacks that bury the message of the interrupt; TensorBoard's would wait for ever for what an
    interrupted `put` did not put into their queue.
    """
    if threading.current_thread() is not threading.main_thread():
        yield []
        return
    held: list[int] = []
    usual = signal.getsignal(signal.SIGINT)

    def hold(number: int, _frame: object) -> None:
        held.append(number)
        signal.signal(signal.SIGINT, usual)

    signal.signal(signal.SIGINT, hold)
    try:
        yield held
    finally:
        signal.signal(signal.SIGINT, usual)
    if held:
        signal.raise_signal(held[0])
