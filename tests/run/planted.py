"""The run of `tests/run/small.py` with a verifier that is wrong only where a policy can get."""

from __future__ import annotations

import ml_collections

from tests.run.small import small_config
from vict_jax.config import default_config


def get_config() -> ml_collections.ConfigDict:
    """`placed` claims to hold at the end of every episode in which no command was accepted."""
    config = small_config()
    env = default_config("tests.envs.planted").env
    env.update(max_steps=config.env.max_steps, num_train=24, num_valid=6, workers=1)
    env.update(fault="premature_atom", silent=True)
    env.task_types = ("pick_and_place_simple", "pick_heat_then_place_in_recep")
    with config.unlocked():
        config.env = env
        config.conformance.update(tasks=4, rollouts=0, every=2, recheck_tasks=1)
    return config
