"""Household tasks with SmolLM2-135M-Instruct, a real language model that a laptop can train a little.

make smollm      # fetches and converts the model, once
python -m launch.local --config=configs/alfworld_smollm2.py --workdir=runs/smollm2
"""

from __future__ import annotations

import ml_collections

from vict_jax.config import default_config


def get_config() -> ml_collections.ConfigDict:
    """The config, locked."""
    config = default_config("alfworld")
    config.env.update(max_steps=10, num_train=2048, num_valid=48)
    config.env.update(min_receptacles=5, max_receptacles=5, min_things=3, max_things=4)
    config.model.path = "build/SmolLM2-135M-Instruct"
    # Without solved examples as earlier turns this model has no valid action at all. With two, at temperature
    # 1, valid actions have 0.48 to 0.58 of the probability of six first replies (0.30 to 0.38 in tags, with
    # reply="action"), and 0.12 to 0.34 of four later ones: it drifts into prose. A short warm start on
    # the expert's replies keeps it at commands; without any success a group has nothing to compare.
    config.rollout.update(context="append", template="chat", reply="line", few_shot=2)
    config.rollout.update(max_context=1280, max_new_tokens=16, rows=16, stop_strings=("\n",))
    config.rollout.instruction = "You act in a household. Answer with one of the admissible commands."
    config.warm_start.update(tasks=32, epochs=1, rows_per_batch=4, micro_rows=1)
    config.warm_start.update(learning_rate=1e-4, warmup_steps=2)
    config.train.update(updates=3, groups=2, rollouts=6, eval_every=3, checkpoint_every=1)
    config.ppo.update(micro_rows=1, kl_coefficient=0.01)
    config.optimizer.update(learning_rate=1e-5, warmup_steps=1)
    config.credit.center = "mean"
    config.conformance.every = 0
    config.eval.update(tasks=12, batch=12, temperature=1.0)
    return config.lock()
