"""The decoder written as NumPy loops in float64, from the papers' formulas."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flax import nnx

from vict_jax.models import decoder
from vict_jax.models.config import ModelConfig


def random_params(config: ModelConfig, seed: int) -> tuple[nnx.GraphDef, nnx.State]:
    """Parameters with every norm scale and bias away from its initial 1 or 0."""
    graphdef, params = decoder.init(config, jax.random.key(seed))
    rng = np.random.default_rng(seed)

    def disturb(path: tuple, x: jax.Array) -> jax.Array:
        name = jax.tree_util.keystr(path)
        return (
            x + 0.3 * rng.standard_normal(x.shape).astype(x.dtype) if "norm" in name or "bias" in name else x
        )

    return graphdef, jax.tree_util.tree_map_with_path(disturb, params)


def as_numpy(params: nnx.State) -> dict[str, Any]:
    return jax.tree.map(lambda x: np.asarray(x, np.float64), nnx.to_pure_dict(params))


def rms(x: np.ndarray, scale: np.ndarray, eps: float) -> np.ndarray:
    return x / math.sqrt(float(np.mean(x * x)) + eps) * scale


def rope(x: np.ndarray, position: int, theta: float) -> np.ndarray:
    """Rotate one head vector x [h]: pair (i, i + h/2) by position * theta^(-2i/h)."""
    half, out = len(x) // 2, np.empty_like(x)
    for i in range(half):
        angle = position * theta ** (-2 * i / len(x))
        c, s = math.cos(angle), math.sin(angle)
        out[i], out[i + half] = x[i] * c - x[i + half] * s, x[i + half] * c + x[i] * s
    return out


def head_norm(config: ModelConfig, w: Mapping[str, Any], name: str, x: np.ndarray) -> np.ndarray:
    """RMSNorm of one query or key head where the model has one."""
    return rms(x, w[f"{name}_norm"], config.rms_eps) if config.qk_norm else x


def logits(config: ModelConfig, params: Mapping[str, Any], ids: list[int]) -> np.ndarray:
    """[len(ids), v] of one sequence that starts at position 0; token by token, head by head."""
    c, layers = config, params["layers"]
    x = [params["embed"][i] for i in ids]
    for l in range(c.num_layers):
        w = {name: value[l] for name, value in layers.items()}
        normed = [rms(row, w["attn_norm"], c.rms_eps) for row in x]
        q, k, v = ([row @ w[name] + w.get(name + "_bias", 0.0) for row in normed] for name in "qkv")
        for t in range(len(ids)):
            heads = []
            for n in range(c.num_heads):
                own, shared = (
                    slice(n * c.head_dim, (n + 1) * c.head_dim),
                    n // (c.num_heads // c.num_kv_heads),
                )
                of = slice(shared * c.head_dim, (shared + 1) * c.head_dim)
                query = rope(head_norm(c, w, "q", q[t][own]), t, c.rope_theta)
                keys = [rope(head_norm(c, w, "k", k[j][of]), j, c.rope_theta) for j in range(t + 1)]
                score = [query @ key / math.sqrt(c.head_dim) for key in keys]
                p = np.exp(np.array(score) - max(score))
                heads.append(sum(a * v[j][of] for j, a in enumerate(p / p.sum())))
            x[t] = x[t] + np.concatenate(heads) @ w["o"] + w.get("o_bias", 0.0)
            y = rms(x[t], w["mlp_norm"], c.rms_eps)
            gate = y @ w["gate"]
            x[t] = x[t] + (gate / (1 + np.exp(-gate)) * (y @ w["up"])) @ w["down"]
    head = params["embed"] if c.tie_embeddings else params["head"]
    return np.array([rms(row, params["final_norm"], c.rms_eps) @ head.T for row in x])


def log_softmax(z: np.ndarray) -> np.ndarray:
    z = z - z.max(axis=-1, keepdims=True)
    return z - np.log(np.exp(z).sum(axis=-1, keepdims=True))
