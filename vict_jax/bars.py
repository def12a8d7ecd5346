"""Progress bars of the first process; the others show none."""

from __future__ import annotations

from collections.abc import Iterator

import tqdm

from vict_jax import processes
from vict_jax.rollout.collector import Progress


def progress_updates(done: int, total: int) -> Iterator[int]:
    """Numbers of the updates still to do, under a progress bar with the time left."""
    yield from tqdm.trange(
        done + 1,
        total + 1,
        initial=done,
        total=total,
        desc="updates",
        unit="update",
        disable=not processes.is_first(),
    )


def bar(description: str, unit: str = "rollout") -> tuple[tqdm.tqdm, Progress]:
    """A progress bar and the callback that moves it."""
    shown = tqdm.tqdm(desc=description, leave=False, unit=unit, disable=not processes.is_first())

    def move(over: int, total: int) -> None:
        shown.total = total
        shown.update(over - shown.n)

    return shown, move
