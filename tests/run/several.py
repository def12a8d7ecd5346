"""The run of `small.py` with something to learn in it, for one, two or four processes."""

from __future__ import annotations

import ml_collections

from tests.run.small import small_config


def several_config() -> ml_collections.ConfigDict:
    """Long replies cost something, so that advantages are not 0."""
    config = small_config().unlock()
    config.train.update(updates=3, groups=4, rollouts=2, eval_every=3, keep_checkpoints=3)
    config.reward.update(overlong_of="reply", overlong_buffer=24)
    config.ppo.minibatches = 2
    # Adam takes steps of the learning rate where a gradient is nothing but rounding, unless eps is above it.
    config.optimizer.eps = 1e-3
    config.conformance.every = 2
    config.mesh.data = -1
    return config.lock()


def get_config() -> ml_collections.ConfigDict:
    """For `--config=tests/run/several.py`."""
    return several_config()
