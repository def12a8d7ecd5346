"""Sizes and constants of a decoder, and their exchange with an HF `config.json`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

DTYPES = ("float32", "bfloat16")

# What an unwritten key means in a Qwen2 `config.json` (defaults of transformers' `Qwen2Config`).
_HF_DEFAULTS: Mapping[str, Any] = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "max_window_layers": 28,
    "max_position_embeddings": 32768,
    "attention_dropout": 0.0,
}
_HF_SIZES: Mapping[str, str] = {
    "vocab_size": "vocab_size",
    "num_hidden_layers": "num_layers",
    "hidden_size": "d_model",
    "num_attention_heads": "num_heads",
    "intermediate_size": "d_ff",
}
_DEFAULT_ROPE_THETA = 10_000.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A decoder of the Qwen2 family.

    Attributes:
      vocab_size: rows of the embedding; may exceed the number of tokens of the tokenizer.
      num_layers, d_model, d_ff: depth, width of the residual stream, width of the SwiGLU layer.
      num_heads, num_kv_heads: query heads and key/value heads; the second divides the first.
      head_dim: width of one head, even (rotary pairs); not necessarily `d_model / num_heads`.
      rope_theta: base of the rotary frequencies. rms_eps: added to the mean square in RMSNorm.
      tie_embeddings: the output head is the embedding matrix.
      qkv_bias: biases on the query, key and value projections.
      max_positions: longest sequence; checked on the host, positions are not clipped on the device.
      dtype: of activations and matmuls. param_dtype: of the stored parameters.
      scan_layers: scan over the layers (compile time independent of the depth) or unroll them.
      remat: recompute a layer's activations in the backward pass instead of keeping them.
    """

    vocab_size: int
    num_layers: int
    d_model: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    d_ff: int
    rope_theta: float = _DEFAULT_ROPE_THETA
    rms_eps: float = 1e-6
    tie_embeddings: bool = True
    qkv_bias: bool = True
    max_positions: int = 4096
    dtype: str = "float32"
    param_dtype: str = "float32"
    scan_layers: bool = True
    remat: bool = False

    def __post_init__(self) -> None:
        for name in (*_HF_SIZES.values(), "num_kv_heads", "head_dim", "max_positions"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} must be a positive integer, got {value!r}")
        for name in ("rope_theta", "rms_eps"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise ValueError(f"{name} must be a positive number, got {value!r}")
        for name in ("tie_embeddings", "qkv_bias", "scan_layers", "remat"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be True or False, got {getattr(self, name)!r}")
        for name in ("dtype", "param_dtype"):
            if getattr(self, name) not in DTYPES:
                raise ValueError(f"{name} must be one of {DTYPES}, got {getattr(self, name)!r}")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_kv_heads must divide num_heads, got {self.num_kv_heads} and {self.num_heads}"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim must be even for rotary positions, got {self.head_dim}")

    @property
    def compute_dtype(self) -> jnp.dtype:
        """`dtype` as a NumPy dtype."""
        return jnp.dtype(self.dtype)


def from_hf(
    hf: Mapping[str, Any], *, dtype: str = "float32", param_dtype: str = "float32", remat: bool = False
) -> ModelConfig:
    """Read a Qwen2 `config.json` (of transformers 4 or 5).

    The precision of the checkpoint's file is not a property of the model and is given by the caller.

    Raises:
      ValueError: a size is missing, or a feature that the decoder does not have is in use: the
        message names the key, its value and what is allowed.
    """
    if hf.get("model_type") != "qwen2":
        raise ValueError(f"model_type must be 'qwen2', got {hf.get('model_type')!r}")
    hf = {**_HF_DEFAULTS, **hf}
    _refuse_unsupported(hf)
    missing = sorted(set(_HF_SIZES) - set(hf))
    if missing:
        raise ValueError(f"config.json lacks {missing}")
    for key in _HF_SIZES:
        if not isinstance(hf[key], int):
            raise ValueError(f"{key} in config.json must be an integer, got {hf[key]!r}")
    sizes = {name: hf[key] for key, name in _HF_SIZES.items()}
    return ModelConfig(
        **sizes,
        num_kv_heads=_given(hf, "num_key_value_heads", sizes["num_heads"]),
        head_dim=_given(hf, "head_dim", sizes["d_model"] // sizes["num_heads"]),
        rope_theta=float(_rope(hf).get("rope_theta", _DEFAULT_ROPE_THETA)),
        rms_eps=float(hf["rms_norm_eps"]),
        tie_embeddings=hf["tie_word_embeddings"],
        qkv_bias=True,  # Qwen2 always has them, and has no key that says so.
        max_positions=hf["max_position_embeddings"],
        dtype=dtype,
        param_dtype=param_dtype,
        remat=remat,
    )


def to_hf(config: ModelConfig) -> dict[str, Any]:
    """The Qwen2 `config.json` of `config`; `from_hf` reads it back.

    Raises:
      ValueError: the model has no q/k/v biases, which a Qwen2 `config.json` cannot say.
    """
    if not config.qkv_bias:
        raise ValueError("qkv_bias must be True for a Qwen2 config.json, got False")
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        **{key: getattr(config, name) for key, name in _HF_SIZES.items()},
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "rope_theta": config.rope_theta,
        "rms_norm_eps": config.rms_eps,
        "tie_word_embeddings": config.tie_embeddings,
        "max_position_embeddings": config.max_positions,
        "hidden_act": "silu",
        "use_sliding_window": False,
        "attention_dropout": 0.0,
        "torch_dtype": config.param_dtype,
    }


def _given(hf: Mapping[str, Any], key: str, otherwise: int) -> int:
    """The value of a key that HF lets be absent or null."""
    value = hf.get(key)
    return otherwise if value is None else value


def _rope(hf: Mapping[str, Any]) -> Mapping[str, Any]:
    """Rotary settings: `rope_parameters` (transformers 5) over `rope_theta` + `rope_scaling` (4)."""
    theta = {"rope_theta": hf["rope_theta"]} if "rope_theta" in hf else {}
    return {**theta, **(hf.get("rope_scaling") or {}), **(hf.get("rope_parameters") or {})}


def _refuse_unsupported(hf: Mapping[str, Any]) -> None:
    """Raise for the first feature in use that the decoder does not have."""
    rope = _rope(hf)
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    windowed = hf["use_sliding_window"] and hf["max_window_layers"] < hf.get("num_hidden_layers", 0)
    layer_types = set(hf.get("layer_types") or ())
    checks = (
        ("hidden_act", hf["hidden_act"], hf["hidden_act"] == "silu", "'silu'"),
        ("rope_scaling", rope_type, rope_type == "default", "none"),
        ("partial_rotary_factor", *_is(rope.get("partial_rotary_factor", 1.0), 1.0)),
        ("use_sliding_window", hf["use_sliding_window"], not windowed, "False"),
        ("layer_types", sorted(layer_types), layer_types <= {"full_attention"}, "full_attention only"),
        ("attention_dropout", *_is(hf["attention_dropout"], 0.0)),
        ("use_mrope", *_is(hf.get("use_mrope", False), False)),
        ("quantization_config", *_is(hf.get("quantization_config"), None)),
    )
    for key, value, allowed, expected in checks:
        if not allowed:
            raise ValueError(f"unsupported {key} {value!r} in config.json; allowed: {expected}")


def _is(value: Any, expected: Any) -> tuple[Any, bool, str]:
    return value, value == expected, repr(expected)


# Small models that are trained from scratch: (vocab_size) comes from the tokenizer.
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "micro": {"num_layers": 2, "d_model": 64, "num_heads": 4, "num_kv_heads": 2, "head_dim": 16, "d_ff": 192},
    "tiny": {"num_layers": 3, "d_model": 128, "num_heads": 4, "num_kv_heads": 2, "head_dim": 32, "d_ff": 384},
    "small": {
        "num_layers": 6,
        "d_model": 256,
        "num_heads": 8,
        "num_kv_heads": 2,
        "head_dim": 32,
        "d_ff": 768,
    },
}


def preset(name: str, *, vocab_size: int, **overrides: Any) -> ModelConfig:
    """A configuration of `PRESETS` for a vocabulary; `overrides` replace single fields."""
    if name not in PRESETS:
        raise ValueError(f"model preset must be one of {sorted(PRESETS)}, got {name!r}")
    known = {field.name for field in dataclasses.fields(ModelConfig)}
    unknown = sorted(set(overrides) - known)
    if unknown:
        raise ValueError(f"unknown model settings {unknown}; known: {sorted(known)}")
    return ModelConfig(vocab_size=vocab_size, **{**PRESETS[name], **overrides})
