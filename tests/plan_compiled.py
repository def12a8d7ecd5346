"""Run by test_plan.py in a process with fake CPU devices: compiled and planned bytes of settings, as JSON."""

from __future__ import annotations

import dataclasses
import json
import sys

from vict_jax import sharding
from vict_jax.models.config import LoraOptions, ModelConfig
from vict_jax.models.options import ModelOptions
from vict_jax.plan import verify
from vict_jax.plan.estimate import Setting
from vict_jax.plan.presets import HF_CONFIGS

SMALL = ModelConfig(
    vocab_size=2048,
    num_layers=5,
    d_model=384,
    num_heads=8,
    num_kv_heads=4,
    head_dim=64,
    d_ff=1024,
    tie_embeddings=False,
    remat=True,
    dtype="bfloat16",
)


def setting(model, mesh, micro_rows, length, width):
    return Setting(
        model=model,
        mesh=mesh,
        rows=micro_rows,
        length=length,
        micro_rows=micro_rows,
        width=width,
        sample_rows=micro_rows,
        slots=length,
        reference=True,
    )


def small():
    other = dataclasses.replace(SMALL, num_heads=4, qk_norm=True, qkv_bias=False, tie_embeddings=True)
    lora = LoraOptions(rank=8, alpha=16.0, targets=frozenset({"q_proj", "v_proj"}))
    return {
        "fsdp": setting(SMALL, (1, 8, 1), 8, 512, 256),
        "all axes, kept activations": setting(
            dataclasses.replace(other, remat=False, dtype="float32"), (2, 2, 2), 8, 256, 64
        ),
        "data": setting(dataclasses.replace(other, d_ff=2048), (8, 1, 1), 16, 256, 128),
        "tensor, adapters": setting(dataclasses.replace(SMALL, lora=lora), (2, 1, 4), 8, 256, 128),
    }


def qwen():
    options = ModelOptions(dtype="bfloat16", remat=True)
    model = options.read(HF_CONFIGS["qwen2.5-7b"])
    return {"qwen2.5-7b": setting(model, (1, 64, 1), 64, 2048, 1024)}


def main(which):
    found = {}
    for name, chosen in {"small": small, "qwen": qwen}[which]().items():
        rows = verify.compare(chosen, sharding.make_mesh(chosen.mesh), "cpu")
        found[name] = {row.program: {**dataclasses.asdict(row), "ratio": row.ratio} for row in rows}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
