"""The quickstart's job on ALFWorld's real games.

    python -m launch.local --config=configs/alfworld_real.py --workdir=runs/alfworld_real \
        --config.env.data_dir=DIR

DIR is a folder with the official layout (`json_2.1.1/<split>/...`), or an archive of the games. Without
the override, the environment variable ALFWORLD_DATA is used. The defaults are a rehearsal for a laptop CPU:
a small decoder from scratch, warm-started on 36 games.
"""

from __future__ import annotations

import os

import ml_collections

from configs import quickstart


def get_config() -> ml_collections.ConfigDict:
    """The config, locked."""
    config = quickstart.get_config().unlock()
    config.env.data_dir = os.environ.get("ALFWORLD_DATA", "data/alfworld")
    config.env.max_steps = 50  # the benchmark's cap
    config.rollout.max_context = 1024
    config.rollout.max_new_tokens = 16
    config.model.vocab_size = 2048
    config.warm_start.tasks = 36
    config.warm_start.epochs = 30
    config.train.update(updates=20, groups=4, rollouts=8, eval_every=10)
    config.eval.batch = 16
    return config.lock()
