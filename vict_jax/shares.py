"""What the processes of a run make of the rollouts that each of them played.

Token rows stay with the process that packed them and are one global array. Everything that is small or has
statistics over the whole batch (the inputs of credit, penalties, values) is put together on every process, in
the order of the groups' numbers, so that credit and what follows from it is computed as in a run of one
process: the same call, the same bits.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from vict_jax import processes
from vict_jax.batching import Rollout, to_device
from vict_jax.packing import RowReport, token_rows, with_rows
from vict_jax.sharding import batch_parts, batch_sharding
from vict_jax.types import TokenBatch

# The number of token rows is padded up to a multiple of this, so that few sizes are compiled; empty rows
# cost no computation.
_ROW_MULTIPLE = 64


@dataclasses.dataclass(frozen=True)
class Share:
    """Which groups of an update this process has.

    Attributes:
      own: their numbers in the update, ascending.
      order: for the groups of all processes one behind the other, where group 0, 1, ... of the update is.
    """

    own: tuple[int, ...]
    order: np.ndarray

    @property
    def total(self) -> int:
        """Groups of the update."""
        return len(self.order)


def share_of(numbers: Sequence[int]) -> Share:
    """The share of this process, which has the groups `numbers`; called by all processes.

    Raises:
      ValueError: the numbers of all processes together are not 0, 1, ..., each once.
    """
    everyone = [number for some in processes.gather(list(numbers)) for number in some]
    if sorted(everyone) != list(range(len(everyone))):
        raise ValueError(f"numbers={everyone} of all processes must be 0, 1, ... in some order, each once")
    return Share(tuple(numbers), np.argsort(everyone))


def whole(own: Any, share: Share) -> Any:
    """A tree of NumPy arrays with leading axis G, from that of each process with its own groups."""
    parts = processes.gather(own)
    if len(parts) == 1:
        return own
    return jax.tree.map(lambda *arrays: np.concatenate(arrays)[share.order], *parts)


def part(everything: Any, share: Share) -> Any:
    """Of a tree of NumPy arrays with leading axis G, or scalars, what belongs to this process's groups."""
    if share.own == tuple(range(share.total)):
        return everything
    return jax.tree.map(lambda x: np.asarray(x)[list(share.own)] if np.ndim(x) else x, everything)


def global_rows(
    groups: Sequence[Sequence[Rollout]],
    share: Share,
    mesh: jax.sharding.Mesh,
    *,
    group_size: int,
    row_length: int,
    isolate_rollouts: bool = False,
) -> tuple[TokenBatch, RowReport]:
    """The token rows of all processes as one batch on the device; called by all processes.

    Every process packs its own rollouts and pads to the largest number of rows; which row is whose makes no
    difference, since each token says its rollout.

    Args:
      groups: this process's, those of `share`. The other arguments are those of `token_rows`.

    Returns:
      The batch, sharded along rows, and what packing did over all processes.
    """
    multiple = math.lcm(_ROW_MULTIPLE, batch_parts(mesh)) // processes.count()
    rows, report = token_rows(
        groups,
        numbers=share.own,
        group_size=group_size,
        row_length=row_length,
        isolate_rollouts=isolate_rollouts,
    )
    reports = processes.gather(report)
    most = max(one.rows for one in reports)
    batch = with_rows(rows, max(1, -(-most // multiple)) * multiple)
    names = [field.name for field in dataclasses.fields(RowReport)]
    total = RowReport(**{name: sum(vars(one)[name] for one in reports) for name in names})
    return to_device(batch, batch_sharding(mesh)), total
