"""Questions about generated worlds, a small decoder from scratch, VICT: search QA on a laptop CPU.

python -m launch.local --config=configs/search_qa_quick.py --workdir=runs/search_qa

One seed, 192 questions about unseen worlds, one sampled attempt each: 69.8 % after the warm start, 88.5 %
after 10 updates, 91.7 % after 20, 95.3 % after 40; 4 minutes of CPU time.
"""

from __future__ import annotations

import ml_collections

from vict_jax.config import default_config
from vict_jax.presets import preset


def get_config(method: str = "") -> ml_collections.ConfigDict:
    """The config, locked; `method` is the name of a preset."""
    config = default_config("search_qa")
    # One passage a search, and two searches: a query of the bare name, which the expert makes three times in
    # four, finds a namesake first, and leaves no search for the second step of a question.
    config.env.update(num_train=6000, num_valid=192, topk=1, max_turns=2, prompt="question")
    config.model.update(num_layers=2, d_model=128, num_heads=4, num_kv_heads=2, head_dim=32, d_ff=384)
    config.model.update(vocab_size=896, scan_layers=False)
    # The whole reply is the action, as in Search-R1: it ends with the block that says what to do.
    config.rollout.update(context="append", template="plain", reply="raw", list_admissible=False)
    config.rollout.stop_strings = ("</search>", "</answer>")
    config.rollout.update(max_context=192, max_new_tokens=12, rows=128)
    config.warm_start.update(tasks=4500, epochs=1, rows_per_batch=4, micro_rows=4)
    config.warm_start.update(tokens="everything", learning_rate=2e-3, warmup_steps=50, weight_decay=0.1)
    config.train.update(updates=40, groups=8, rollouts=16, eval_every=10, checkpoint_every=10)
    config.ppo.update(minibatches=4, micro_rows=8)
    config.optimizer.update(learning_rate=2e-4, warmup_steps=5)
    config.credit.center = "mean"
    config.eval.update(batch=96, temperature=1.0)  # the policy as it is trained
    return (preset(config, method) if method else config).lock()
