"""Sizes of published models, as the `config.json` files of their repositories state them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_QWEN25: Mapping[str, Any] = {
    "model_type": "qwen2",
    "num_hidden_layers": 28,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "max_position_embeddings": 32768,
    "use_sliding_window": False,
}
# On the Hugging Face hub: Qwen/Qwen2.5-1.5B-Instruct, Qwen/Qwen2.5-7B-Instruct, Qwen/Qwen3-8B.
HF_CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "qwen2.5-1.5b": {
        **_QWEN25,
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
    },
    "qwen2.5-7b": {
        **_QWEN25,
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "vocab_size": 152064,
        "tie_word_embeddings": False,
    },
    "qwen3-8b": {
        "model_type": "qwen3",
        "num_hidden_layers": 36,
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "tie_word_embeddings": False,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "max_position_embeddings": 40960,
        "attention_bias": False,
    },
}
