"""Which tasks are played when, and by which host: pure functions of the seed and the numbers.

Training goes through one seeded permutation of the tasks after another, an epoch each; an update takes the
next few, wherever an epoch ends. Evaluation goes through a split in its own order. In both, hosts take
consecutive pieces, so that what they hold, put one after the other in their order, is what one host alone
would have held.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from envs.base import Task

T = TypeVar("T")


def epoch_order(total: int, *, seed: int, epoch: int) -> np.ndarray:
    """The order of an epoch: int64[total], every index below `total` once.

    Args:
      seed, epoch: 0 or more.

    Raises:
      ValueError: `total` is below 1.
    """
    if total < 1:
        raise ValueError(f"total={total} is not allowed: 1 task or more")
    return np.random.default_rng([seed, epoch]).permutation(total)


def update_order(update: int, *, groups: int, total: int, seed: int) -> list[int]:
    """Indices of the tasks of update 1, 2, ..., one for each group.

    Args:
      groups: tasks an update, on all hosts together.
      total: tasks there are; with fewer than `groups` an update goes through several epochs.

    Raises:
      ValueError: `update`, `groups` or `total` is below 1.
    """
    for name, value in (("update", update), ("groups", groups), ("total", total)):
        if value < 1:
            raise ValueError(f"{name}={value} is not allowed: 1 or more")
    first, end = (update - 1) * groups, update * groups
    indices: list[int] = []
    for epoch in range(first // total, (end - 1) // total + 1):
        begin = epoch * total
        order = epoch_order(total, seed=seed, epoch=epoch)
        indices += order[max(first - begin, 0) : end - begin].tolist()
    return indices


def share(items: Sequence[T], *, host: int, hosts: int) -> Sequence[T]:
    """The piece of `items` that `host` of `hosts` takes; it may be empty.

    The pieces of all hosts are disjoint and, one after the other, are `items`; their lengths differ by at
    most 1, and none is longer than the first.

    Raises:
      ValueError: there is no such host.
    """
    if hosts < 1 or not 0 <= host < hosts:
        raise ValueError(f"host={host} is not allowed with hosts={hosts}: 0 to hosts - 1, and hosts above 0")
    size, more = divmod(len(items), hosts)
    begin = host * size + min(host, more)
    return items[begin : begin + size + (host < more)]


def task_digest(tasks: Iterable[Task]) -> dict[str, Any]:
    """Number and checksum of a list of tasks."""
    digest, count = hashlib.sha256(), 0
    for task in tasks:
        digest.update(f"{task.id}\0{task.type}\0{task.seed}\n".encode())
        count += 1
    return {"count": count, "sha256": digest.hexdigest()}
