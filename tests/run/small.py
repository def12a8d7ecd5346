"""A run of seconds: three updates of a very small model on generated household tasks."""

from __future__ import annotations

import ml_collections

from vict_jax.config import default_config


def small_config() -> ml_collections.ConfigDict:
    """Small enough for a test, with every part of the loop in it."""
    config = default_config("alfworld")
    config.env.update(max_steps=6, num_train=24, num_valid=6, workers=1)
    config.model.update(
        vocab_size=300, num_layers=1, d_model=32, num_heads=2, num_kv_heads=1, head_dim=16, d_ff=64
    )
    config.rollout.update(context="append", list_admissible=False, max_context=512, max_new_tokens=24, rows=8)
    config.warm_start.update(tasks=8, epochs=2, rows_per_batch=4, micro_rows=4)
    config.train.update(updates=3, groups=2, rollouts=4, eval_every=2, checkpoint_every=1)
    config.ppo.update(micro_rows=4)
    config.optimizer.learning_rate = 1e-3
    config.eval.update(tasks=6, batch=6)
    return config.lock()


def get_config() -> ml_collections.ConfigDict:
    """For `--config=tests/run/small.py`."""
    return small_config()
