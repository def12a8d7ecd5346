"""A generated shop, a small decoder from scratch, VICT: WebShop on a laptop CPU.

python -m launch.local --config=configs/webshop_quick.py --workdir=runs/webshop_quick

Seed 0, 192 goals of unseen products, one sampled attempt each: mean score 0.645 and success 45.8 % after the
warm start, 0.775 and 54.7 % after 12 updates; other seeds in docs/webshop.md.
"""

from __future__ import annotations

import ml_collections

from vict_jax.config import default_config
from vict_jax.presets import preset


def get_config(method: str = "") -> ml_collections.ConfigDict:
    """The config, locked; `method` is the name of a preset."""
    config = default_config("webshop")
    # Short pages: what is needed to choose stands in the titles, and the instruction on the first page only.
    # Many products: with a few hundred the model learns them by heart instead of reading the lists.
    config.env.update(products=6000, long_titles=0.0, title_attributes=3, per_page=3, layout="lines")
    config.env.update(held_out="products", max_steps=8, num_valid=192)
    config.model.update(num_layers=2, d_model=128, num_heads=4, num_kv_heads=2, head_dim=32, d_ff=384)
    config.model.update(vocab_size=1408, scan_layers=False)
    config.rollout.update(context="append", template="plain", reply="line", list_admissible=False)
    config.rollout.update(max_context=288, max_new_tokens=28, rows=128)
    # Many small steps: with half as many of 4 rows it depends on rounding whether copying is learnt at all.
    config.warm_start.update(tasks=12000, epochs=1, rows_per_batch=2, micro_rows=2)
    config.warm_start.update(tokens="everything", learning_rate=2e-3, warmup_steps=200, weight_decay=0.1)
    config.train.update(updates=40, groups=8, rollouts=16, eval_every=10, checkpoint_every=10)
    config.ppo.update(minibatches=4, micro_rows=8)
    config.optimizer.update(learning_rate=2e-4, warmup_steps=5)
    config.credit.update(center="mean", budget=16)  # a goal has up to 12 atoms here
    # What the papers of step-level methods use in WebShop; only their methods read it.
    config.credit.gigpo.mode = config.credit.hgpo.mode = "mean"
    config.credit.graphgpo.gamma = 0.2
    config.eval.update(batch=96, temperature=1.0)  # the policy as it is trained
    return (preset(config, method) if method else config).lock()
