"""Model configurations that are small enough for tests."""

from __future__ import annotations

from typing import Any

from vict_jax.models.config import ModelConfig

MICRO = {"num_layers": 2, "d_model": 64, "num_heads": 4, "num_kv_heads": 2, "head_dim": 16, "d_ff": 192}
TINY = {"num_layers": 3, "d_model": 128, "num_heads": 4, "num_kv_heads": 2, "head_dim": 32, "d_ff": 384}


def micro(**fields: Any) -> ModelConfig:
    """Two layers of width 64; `fields` replace single ones."""
    return ModelConfig(**{**MICRO, **fields})


def tiny(**fields: Any) -> ModelConfig:
    """Three layers of width 128."""
    return ModelConfig(**{**TINY, **fields})
