"""tau-bench itself: real tasks, a customer played by a language model, a pretrained policy.

    python -m envs.tau_bench.importer --checkout DIR --out data/tau_bench
    python -m launch.local --config=configs/tau_bench_real.py --workdir=runs/tau_bench_real \
        --config.model.path=DIR --config.env.base_url=http://localhost:8000/v1 --config.env.model=NAME

The policy is a checkpoint directory in the Hugging Face layout with a chat template (the paper trains
Qwen3-8B). The customer is any server with an OpenAI-compatible endpoint, local or not; its key is read from
the environment variable OPENAI_API_KEY. Trains on the retail train split and evaluates on its test tasks;
airline has test tasks only, so with `--config.env.domain=airline` train.split and eval.split must both be
`test`, and the result is no measure of generalisation. For accelerators: policy and tools alone take about
5,000 tokens. A starting point: nobody has trained with it yet.
"""

from __future__ import annotations

import os

import ml_collections

from vict_jax.config import default_config


def get_config() -> ml_collections.ConfigDict:
    """The config, locked."""
    config = default_config("tau_bench")
    config.env.data_dir = os.environ.get("TAU_BENCH_DATA", "data/tau_bench")
    config.env.update(domain="retail", style="json", show_policy=True, customer="endpoint")
    config.env.update(base_url="http://localhost:8000/v1", model="customer", cache_dir="")
    # The same conversation should not go the same way in all rollouts of a group.
    config.env.temperature = 0.7
    config.env.timeout_s = 300.0  # of one step, with the customer's retries in it
    config.model.update(path="models/policy", dtype="bfloat16", remat=True)
    config.rollout.update(context="append", template="chat", reply="tags", list_admissible=False)
    config.rollout.update(max_context=16384, max_new_tokens=512, overflow="end", rows=32)
    config.warm_start.tasks = 0  # there is no expert on real tasks but the ground truth itself
    config.train.update(updates=300, groups=16, rollouts=8, eval_every=10, checkpoint_every=5)
    config.train.update(split="train")
    config.eval.update(split="test", batch=32)
    config.optimizer.update(learning_rate=1e-6)
    config.credit.budget = 16  # cores of real tasks have up to 28 atoms
    config.conformance.update(tasks=4, rollouts=0, every=0)  # played with the customer's model, too
    return config.lock()
