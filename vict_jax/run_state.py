"""What a run keeps on disk of its learner: its state after an update, and the policy before the first."""

from __future__ import annotations

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
from absl import logging
from flax import nnx

from vict_jax import checkpoint
from vict_jax.config import RunConfig
from vict_jax.corrections import CorrectionBuffer
from vict_jax.job import Job, abstract_params, abstract_trained
from vict_jax.learner import value
from vict_jax.learner.microbatch import LearnerState, abstract_state
from vict_jax.learner.optimizer import make_optimizer
from vict_jax.metrics import RunError, disk_full_is_clear


def optimizer_steps(config: RunConfig) -> int:
    """Optimizer steps of the whole run, the length of its schedule; at least 1."""
    return max(1, config.train.updates * config.ppo.epochs * config.ppo.minibatches)


@jax.jit
def copy(tree: Any) -> Any:
    """A copy in buffers of its own: the policy's are donated to every update."""
    return jax.tree.map(jnp.copy, tree)


def save_reference(workdir: pathlib.Path, params: nnx.State) -> None:
    """Keep the warm-started policy as the reference of the KL term."""
    start = value.without_head(params)
    with disk_full_is_clear(workdir / "checkpoints"):
        checkpoint.save(workdir / "checkpoints" / "reference", 0, start, {}, keep=1)


def save(
    workdir: pathlib.Path, update: int, state: LearnerState, corrections: CorrectionBuffer, *, keep: int
) -> None:
    """Write the state after `update`, and the errors that wait then."""
    kept = {"update": update, "corrections": corrections.to_plain()}
    with disk_full_is_clear(workdir / "checkpoints"):
        checkpoint.save(workdir / "checkpoints" / "state", update, state, kept, keep=keep)


def restore(
    job: Job, optimizer: Any, workdir: pathlib.Path
) -> tuple[int, LearnerState, CorrectionBuffer] | None:
    """The number of the last complete update, and what `save` wrote after it; None where there is none yet.

    Raises:
      RunError: there are checkpoints, but none is undamaged.
    """
    folder = workdir / "checkpoints"
    if not checkpoint.steps(folder / "state"):
        return None
    fresh = abstract_state(abstract_trained(job), optimizer)
    try:
        state = checkpoint.restore(folder / "state", fresh)
    except checkpoint.CheckpointError as error:
        raise RunError(f"{error}. Start anew in another --workdir.") from error
    for skipped in state.skipped:
        logging.warning("using the checkpoint of update %d instead of a damaged one: %s", state.step, skipped)
    return state.step, state.tree, CorrectionBuffer.from_plain(state.metadata["corrections"])


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
    fresh = abstract_state(abstract_trained(job), optimizer)
    try:
        if update == 0:
            return 0, checkpoint.restore(folder / "reference", abstract_params(job)).tree
        restored = checkpoint.restore(folder / "state", fresh, step=update)
    except checkpoint.CheckpointError as error:
        raise RunError(f"{error} (update 0 is always kept: the warm start)") from error
    return restored.step, value.without_head(restored.tree.params)
