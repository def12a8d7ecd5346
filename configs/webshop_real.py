"""The quick job on WebShop's own products.

    python -m launch.local --config=configs/webshop_real.py --workdir=runs/webshop_real \
        --config.env.data_dir=DIR

DIR holds `items_shuffle_1000.json`, `items_ins_v2_1000.json`, `items_human_ins.json` and the title nouns that
`envs.webshop.importer` writes. Without the override, the environment variable WEBSHOP_DATA is used. The
defaults are a rehearsal for a laptop CPU: a small decoder from scratch sees the end of long pages only.
"""

from __future__ import annotations

import os

import ml_collections

from configs import webshop_quick


def get_config() -> ml_collections.ConfigDict:
    """The config, locked."""
    config = webshop_quick.get_config().unlock()
    config.env.update(data_dir=os.environ.get("WEBSHOP_DATA", "data/webshop"))
    config.env.update(
        layout="lines", per_page=10, max_steps=15, num_valid=96
    )  # pages and cap of the benchmark
    config.rollout.update(max_context=2048, max_new_tokens=48, rows=32, overflow="shorten")
    config.model.vocab_size = 4096
    config.warm_start.update(tasks=256, rows_per_batch=2, micro_rows=2)
    config.train.update(updates=10, groups=4, rollouts=8, eval_every=10)
    config.ppo.micro_rows = 2
    config.eval.batch = 32
    return config.lock()
