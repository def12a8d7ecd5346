"""What a run keeps on disk of its learner: its state after an update, and the policy before the first."""

from __future__ import annotations

import dataclasses
import pathlib
import threading
import time
from types import TracebackType
from typing import Any, Self

import jax
import jax.numpy as jnp
from absl import logging
from flax import nnx

from vict_jax import checkpoint
from vict_jax.config import RunConfig
from vict_jax.corrections import CorrectionBuffer
from vict_jax.job import Job, abstract_params, abstract_trained, with_value_head
from vict_jax.learner import value
from vict_jax.learner.microbatch import LearnerState, abstract_state, init_state
from vict_jax.learner.optimizer import Optimizer, make_optimizer
from vict_jax.metrics import MetricsWriter, RunError, disk_full_is_clear
from vict_jax.resampling import Sampled
from vict_jax.types import pytree


def optimizer_steps(config: RunConfig) -> int:
    """Optimizer steps of the whole run, the length of its schedule; at least 1."""
    return max(1, config.train.updates * config.ppo.epochs * config.ppo.minibatches)


@jax.jit
def copy(tree: Any) -> Any:
    """A copy in buffers of its own: the policy's are donated to every update."""
    return jax.tree.map(jnp.copy, tree)


def replaced(old: Any, tree: Any) -> Any:
    """A copy of `tree`, before which the buffers of `old` are given back."""
    for leaf in jax.tree.leaves(old):
        leaf.delete()
    return copy(tree)


def save_reference(workdir: pathlib.Path, params: nnx.State) -> None:
    """Keep the warm-started policy as the reference of the KL term."""
    start = value.without_head(params)
    with disk_full_is_clear(workdir / "checkpoints"):
        checkpoint.save(workdir / "checkpoints" / "reference", 0, start, {}, keep=1)


@dataclasses.dataclass(frozen=True)
class RunState:
    """Where a run stands: all of it that is not a function of its config and the number of the update.

    Attributes:
      update: the last finished one.
      learner: parameters, moments, and the optimizer's count, which is the place in its schedule.
      corrections: the errors that wait.
      rows: rows of the metrics up to here. They also hold what conformance has found.
      behind: the trained parameters that the next update's rollouts are sampled with, if they are not those
        of `learner`: with `train.staleness`, in buffers of their own.
      ahead: the next update's rollouts, if they are played already. A function of the rest, so not kept.
    """

    update: int
    learner: LearnerState
    corrections: CorrectionBuffer
    rows: int
    behind: nnx.State | None = None
    ahead: Sampled | None = None

    @property
    def sampled_with(self) -> nnx.State:
        """The trained parameters that the next update's rollouts are sampled with."""
        return self.learner.params if self.behind is None else self.behind


def first_state(job: Job, params: nnx.State, optimizer: Optimizer, rows: int) -> RunState:
    """The state before the first update; `params`, those of the policy, are taken over."""
    learner = init_state(with_value_head(job, params), optimizer)
    behind = copy(learner.params) if job.config.train.staleness else None
    return RunState(0, learner, CorrectionBuffer(), rows, behind)


@pytree
class Kept:
    """The arrays of a state on the disk, see `RunState`."""

    learner: LearnerState
    behind: Any


def abstract_kept(job: Job, optimizer: Optimizer) -> Kept:
    """Shapes, dtypes and shardings of what is kept, for `checkpoint.restore`."""
    params = abstract_trained(job)
    behind = params if job.config.train.staleness else None
    return Kept(abstract_state(params, optimizer), behind)


class StateSaver:
    """Writes states while the loop goes on, one at a time; leaving the block waits for the last.

    Args:
      metrics: made sure of before a checkpoint says that its rows are there.
      keep: newest states to keep.
      restored: the state that is on the disk; None if there is none.

    Every method raises RunError if a state, be it the one before, could not be written for want of space.
    """

    def __init__(
        self, workdir: pathlib.Path, metrics: MetricsWriter, keep: int, restored: RunState | None
    ) -> None:
        self._folder = workdir / "checkpoints"
        self._metrics, self._keep = metrics, keep
        self._last = None if restored is None else restored.update
        self._pending: checkpoint.Pending | None = None
        self._blocked = 0.0
        self._lock = threading.RLock()  # see `Watch`: a thread may save in the place of the loop

    def save(self, state: RunState) -> None:
        """Wait for the state before, and begin to write this one unless that was begun. It may be donated."""
        with self._lock:
            if state.update == self._last:
                return
            began = time.perf_counter()
            self.wait()
            self._metrics.sync()
            kept = {
                "update": state.update,
                "corrections": state.corrections.to_plain(),
                "rows": state.rows,
            }
            with disk_full_is_clear(self._folder):
                self._pending = checkpoint.begin(
                    self._folder / "state",
                    state.update,
                    Kept(state.learner, state.behind),
                    kept,
                    keep=self._keep,
                )
            self._last = state.update
            self._blocked += time.perf_counter() - began

    def wait(self) -> None:
        """Wait until the state that was begun last is complete."""
        with self._lock:
            pending, self._pending = self._pending, None
            if pending is not None:
                with disk_full_is_clear(self._folder):
                    pending.wait()

    def finish(self, state: RunState) -> int:
        """`save` and `wait`; the update."""
        self.save(state)
        self.wait()
        return state.update

    def take_seconds(self) -> float:
        """Seconds for which `save` kept the loop waiting since this was last asked."""
        blocked, self._blocked = self._blocked, 0.0
        return blocked

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.wait()


def restore(job: Job, optimizer: Optimizer, workdir: pathlib.Path) -> RunState | None:
    """The last complete state, or None where there is none yet.

    Raises:
      RunError: there are checkpoints, but none is undamaged.
    """
    folder = workdir / "checkpoints"
    if not checkpoint.steps(folder / "state"):
        return None
    try:
        state = checkpoint.restore(folder / "state", abstract_kept(job, optimizer))
    except checkpoint.CheckpointError as error:
        raise RunError(f"{error}. Start anew in another --workdir.") from error
    for skipped in state.skipped:
        logging.warning("using the checkpoint of update %d instead of a damaged one: %s", state.step, skipped)
    corrections = CorrectionBuffer.from_plain(state.metadata["corrections"])
    kept = state.tree
    return RunState(state.step, kept.learner, corrections, state.metadata["rows"], kept.behind)


def restore_reference(job: Job, workdir: pathlib.Path) -> nnx.State:
    """The trained parameters as they were before the first update.

    Raises:
      RunError: their checkpoint is damaged.
    """
    try:
        return checkpoint.restore(workdir / "checkpoints" / "reference", abstract_params(job)).tree
    except checkpoint.CheckpointError as error:
        raise RunError(f"{error}. Start anew in another --workdir.") from error


def load_params(job: Job, workdir: pathlib.Path, update: int | None) -> tuple[int, nnx.State]:
    """Parameters of a finished or unfinished run: of its newest state, or of a chosen update (0: warm start).

    Those of the policy, without a value head.

    Raises:
      RunError: there is no such checkpoint; names those there are.
    """
    folder = workdir / "checkpoints"
    optimizer = make_optimizer(job.config.optimizer, total_steps=optimizer_steps(job.config))
    try:
        if update == 0:
            return 0, checkpoint.restore(folder / "reference", abstract_params(job)).tree
        restored = checkpoint.restore(folder / "state", abstract_kept(job, optimizer), step=update)
    except checkpoint.CheckpointError as error:
        raise RunError(f"{error} (update 0 is always kept: the warm start)") from error
    return restored.step, value.without_head(restored.tree.learner.params)
