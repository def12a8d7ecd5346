"""Generated household tasks, a small decoder from scratch, VICT: the whole loop on a laptop CPU.

python -m launch.local --config=configs/quickstart.py --workdir=runs/quickstart
"""

from __future__ import annotations

import ml_collections

from vict_jax.config import default_config


def get_config() -> ml_collections.ConfigDict:
    """The config, locked."""
    config = default_config("alfworld")
    config.env.max_steps = 24
    config.env.num_train = 2048
    config.env.num_valid = 192
    config.rollout.context = "append"
    config.rollout.list_admissible = False
    config.rollout.max_context = 512
    config.rollout.max_new_tokens = 12
    config.warm_start.tasks = 256
    config.train.updates = 40
    config.optimizer.learning_rate = 3e-4
    return config.lock()
