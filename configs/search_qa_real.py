"""Search QA on real questions with Search-R1's protocol, BM25 over the passages of a folder.

    python -m launch.local --config=configs/search_qa_real.py --workdir=runs/search_qa_real \
        --config.env.data_dir=DIR

DIR holds question files and `corpus*.jsonl`; `python -m envs.search_qa.importer --data-dir DIR` checks it.
Without the override, the environment variable SEARCH_QA_DATA is used. With Search-R1's retrieval server:
`--config.env.retriever=http --config.env.retriever_url=http://HOST:8000/retrieve`.

The defaults are a rehearsal for a laptop CPU: a small decoder from scratch that sees 600 characters of each
search. It learns the protocol, not to read. For the benchmark's own setting give a model with
`--config.model.path=DIR`, `--config.env.prompt=search_r1`, `--config.env.max_information=0`,
`--config.rollout.max_context=4096`, `--config.rollout.max_new_tokens=500`, and 5 rollouts a question.
"""

from __future__ import annotations

import os

import ml_collections

from configs import search_qa_quick


def get_config() -> ml_collections.ConfigDict:
    """The config, locked."""
    config = search_qa_quick.get_config().unlock()
    config.env.data_dir = os.environ.get("SEARCH_QA_DATA", "data/search_qa")
    config.env.update(topk=3, max_turns=2, max_information=600)
    config.rollout.update(max_context=1024, max_new_tokens=96, rows=32)
    config.model.vocab_size = 2048
    config.warm_start.tasks = 200
    config.train.update(updates=10, groups=4, rollouts=8, eval_every=10)
    config.eval.update(tasks=64, batch=16)
    return config.lock()
