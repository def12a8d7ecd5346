"""Several processes as one job: how they join, what each of them does, and what they tell each other.

Every process runs the same program. Device programs over the global mesh are called by all of them in the
same order at the same shapes; what differs is the share of the tasks that each plays (`share`), and that the
first alone writes. What they tell each other on the host goes through `gather`, also a collective, so that a
peer's death is noticed there and not by a clock. With one process everything here is immediate.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import time
import traceback
import zlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

import jax
import numpy as np
from jax.experimental import multihost_utils

from vict_jax import task_order
from vict_jax.metrics import RunError

T = TypeVar("T")

# What the first process may be refused, and all are then: see `on_first`.
_REFUSALS = (RunError, ValueError, OSError)
# What a process says first in an exchange: how many bytes it has, and so many of them.
_SIZE_BYTES, _AT_ONCE = 8, 4096
# Processes of one launch start together; what is not there after this time was not started at all.
_JOIN_S = 120
# A peer that says nothing for so long is dead, and JAX ends the others.
_HEARTBEAT_S = 30
_SHUTDOWN_S = 30
# How long a process that lost a peer waits for the launcher to say so and to end it.
_SUPERVISOR_S = 5.0


class PeerLost(RunError):
    """Another process of the job has ended, and this one cannot go on without it."""


def check_place(coordinator: str, count: int | None, index: int | None) -> tuple[int, int]:
    """Number and index of a process at `coordinator` ("HOST:PORT"); ValueError unless they make sense."""
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError(f"coordinator={coordinator!r} is not allowed: it must be HOST:PORT")
    if count is None or index is None:
        raise ValueError(
            f"coordinator={coordinator!r} needs num_processes and process_id too, got {count} and {index}"
        )
    if not 0 <= index < count:
        raise ValueError(
            f"process_id={index} is not allowed: it must be in 0 ... num_processes - 1 = {count - 1}"
        )
    return count, index


def join(coordinator: str, count: int | None, index: int | None) -> None:
    """Become process `index` of `count`; the first one listens at `coordinator`. Before any JAX computation.

    On CPU the processes exchange arrays through gloo.

    Raises:
      ValueError: the place makes no sense.
      RunError: not all of `count` processes came.
    """
    count, index = check_place(coordinator, count, index)
    _initialize(
        f"process {index} of {count} at {coordinator}",
        coordinator_address=coordinator,
        num_processes=count,
        process_id=index,
        cluster_detection_method="deactivate",
    )
    _check_count(count)


def join_detected(count: int | None) -> None:
    """Join as the cluster says (TPU pods, Slurm): JAX finds out where and which process this is.

    Args:
      count: how many there must be; None: as many as there are.

    Raises:
      RunError: nothing was detected, or another number of processes.
    """
    _initialize("what the cluster says of its processes")
    if count is not None:
        _check_count(count)


def _initialize(what: str, **arguments: Any) -> None:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # It would take SIGTERM away from the program.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(
            **arguments,
            initialization_timeout=_JOIN_S,
            heartbeat_timeout_seconds=_HEARTBEAT_S,
            shutdown_timeout_seconds=_SHUTDOWN_S,
        )
        jax.devices()
    except (RuntimeError, ValueError) as error:
        raise RunError(
            f"{what}: the processes did not come together ({error}). Each of them must be started, within "
            f"{_JOIN_S} s of the others, with the same coordinator and number of processes."
        ) from error


def _check_count(count: int) -> None:
    if jax.process_count() != count:
        raise RunError(
            f"num_processes={count} processes were asked for, but JAX sees {jax.process_count()}; a job of "
            "another size would train something else"
        )


def count() -> int:
    """Processes of the job."""
    return jax.process_count()


def is_first() -> bool:
    """Whether this is the process that writes and prints."""
    return jax.process_index() == 0


def check_groups(groups: int, processes: int) -> None:
    """Raise ValueError unless each process gets equally many of `train.groups`."""
    if groups % processes:
        raise ValueError(
            f"train.groups={groups} is not allowed with {processes} processes: it must be a multiple, since "
            "each plays equally many groups and a group is never split"
        )


def share(total: int) -> range:
    """This process's own of `total` things: contiguous, in the order of processes, sizes at most 1 apart."""
    return cast(range, task_order.share(range(total), host=jax.process_index(), hosts=jax.process_count()))


def gather(value: T) -> list[T]:
    """What every process passes, in the order of processes; called by all of them.

    Args:
      value: anything that pickles. All of them are sent to everyone, compressed.
    """
    if jax.process_count() == 1:
        return [value]
    return [pickle.loads(zlib.decompress(data)) for data in _exchange(zlib.compress(pickle.dumps(value), 1))]


def _exchange(data: bytes) -> list[bytes]:
    """The bytes of every process: one collective where all have at most `_AT_ONCE`, two where not."""
    first = len(data).to_bytes(_SIZE_BYTES, "little") + data[:_AT_ONCE]
    rows = _all_rows(first, _SIZE_BYTES + _AT_ONCE)
    sizes = [int.from_bytes(row[:_SIZE_BYTES], "little") for row in rows]
    told = [row[_SIZE_BYTES:] for row in rows]
    rest = max(sizes) - _AT_ONCE
    if rest > 0:
        # A power of two, so that few sizes are compiled.
        more = _all_rows(data[_AT_ONCE:], 1 << (rest - 1).bit_length())
        told = [begin + end for begin, end in zip(told, more, strict=True)]
    return [row[:size] for row, size in zip(told, sizes, strict=True)]


def _all_rows(data: bytes, length: int) -> list[bytes]:
    """`data` of each process, filled up to `length`; a collective."""
    padded = np.zeros(length, np.uint8)
    padded[: len(data)] = np.frombuffer(data, np.uint8)
    # The arrays are made and fetched by JAX's own helper.
    with jax.transfer_guard("allow"):
        rows = multihost_utils.process_allgather(padded)
    return [row.tobytes() for row in np.asarray(rows)]


def on_first(act: Callable[[], T]) -> T | None:
    """The first process acts while the others wait; its result there, None elsewhere.

    Raises:
      RunError, ValueError, OSError: the first process was refused; all raise the same.
    """
    result, refused = None, None
    if is_first():
        try:
            result = act()
        except _REFUSALS as error:
            if count() == 1:
                raise
            refused = error
    refused = gather(refused)[0]
    if refused is not None:
        raise refused
    return result


def from_first(make: Callable[[], T]) -> T:
    """What `make` returns in the first process, in all of them; it need not be called elsewhere.

    Raises:
      RunError, ValueError, OSError: see `on_first`.
    """
    return cast(T, gather(on_first(make))[0])


def leave(error: BaseException | None) -> None:
    """End this process, which ends in `error`, without waiting for the others; returns if it is the only one.

    At the end of a successful run JAX waits for all processes. After a failure nobody would come: the others
    wait in a collective. They notice as soon as this process is gone.
    """
    if error is None or not jax.distributed.is_initialized():
        return
    code = error.code if isinstance(error, SystemExit) else 1
    if code is None or code == 0:
        return
    if isinstance(error, SystemExit):
        if isinstance(code, str):
            print(code, file=sys.stderr)
    else:
        traceback.print_exception(error)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)


@contextlib.contextmanager
def peers_named() -> Iterator[None]:
    """Say in one `PeerLost` what a collective that was cut off means.

    Waits a moment before, since a launcher that started all processes knows better which one has ended, and
    ends this one.
    """
    try:
        yield
    except (ValueError, jax.errors.JaxRuntimeError) as error:
        if not (jax.distributed.is_initialized() and "Gloo" in str(error)):
            raise
        time.sleep(_SUPERVISOR_S)
        raise PeerLost(
            "another process of this run has ended; its own output says why. Start the same command again to "
            "continue from the last checkpoint"
        ) from error
