"""Generated household tasks, a small decoder from scratch, VICT: the whole loop on a laptop CPU.

python -m launch.local --config=configs/quickstart.py --workdir=runs/quickstart
"""

from __future__ import annotations

import ml_collections

from vict_jax.config import default_config
from vict_jax.presets import preset


def get_config(method: str = "") -> ml_collections.ConfigDict:
    """The config, locked; `method` is the name of a preset."""
    config = default_config("alfworld")
    config.env.update(max_steps=15, num_train=8192, num_valid=192)
    config.env.update(min_receptacles=5, max_receptacles=5, min_things=3, max_things=4)
    config.model.update(num_layers=2, d_model=128, num_heads=4, num_kv_heads=2, head_dim=32, d_ff=384)
    config.model.scan_layers = False  # two layers compile fast enough, and run faster on a CPU
    config.rollout.update(context="append", template="plain", reply="line", list_admissible=False)
    config.rollout.update(max_context=320, max_new_tokens=12, rows=128)
    config.warm_start.update(tasks=8000, epochs=1, rows_per_batch=4, micro_rows=4)
    config.warm_start.update(tokens="everything", learning_rate=2e-3, warmup_steps=50, weight_decay=0.1)
    config.train.update(updates=80, groups=8, rollouts=16, eval_every=20, checkpoint_every=10)
    config.ppo.update(minibatches=4, micro_rows=8)
    config.optimizer.update(learning_rate=1e-4, warmup_steps=5)
    # Most marginals of a group are equal, so their median is the value itself and nothing is left to
    # credit; the mean keeps a correction in a fifth to a third of the rollouts.
    config.credit.center = "mean"
    config.eval.update(batch=96, temperature=1.0)  # the policy as it is trained
    return (preset(config, method) if method else config).lock()
