"""Sizes and constants of a decoder, and their exchange with an HF `config.json`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

DTYPES = ("float32", "bfloat16")
ATTENTION = ("auto", "blocks", "xla", "cudnn", "splash")  # see `vict_jax.models.attention`


@dataclasses.dataclass(frozen=True)
class _Family:
    """What a `model_type` stands for.

    Attributes:
      architecture: transformers' class.
      defaults: what an unwritten key of its `config.json` means (its configuration class).
    """

    architecture: str
    defaults: Mapping[str, Any]


_COMMON: Mapping[str, Any] = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "attention_dropout": 0.0,
}
_QWEN: Mapping[str, Any] = {
    **_COMMON,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
_LLAMA: Mapping[str, Any] = {
    **_COMMON,
    "max_position_embeddings": 2048,
    "attention_bias": False,
    "mlp_bias": False,
}
FAMILIES: Mapping[str, _Family] = {
    "qwen2": _Family("Qwen2ForCausalLM", _QWEN),
    "qwen3": _Family("Qwen3ForCausalLM", {**_QWEN, "head_dim": 128, "attention_bias": False}),
    "llama": _Family("LlamaForCausalLM", _LLAMA),
}
_HF_SIZES: Mapping[str, str] = {
    "vocab_size": "vocab_size",
    "num_hidden_layers": "num_layers",
    "hidden_size": "d_model",
    "num_attention_heads": "num_heads",
    "intermediate_size": "d_ff",
}
_DEFAULT_ROPE_THETA = 10_000.0
# Counts of experts under the names that mixture-of-experts configurations give them.
_EXPERT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_intermediate_size")


# Projections of a layer that an adapter may be on, by the names that PEFT gives them, and their names here.
LORA_TARGETS: Mapping[str, str] = {
    f"{name}_proj": name for name in ("q", "k", "v", "o", "gate", "up", "down")
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoraOptions:
    """Low-rank adapters (LoRA, arXiv 2106.09685): W x becomes W x + (alpha / rank) B A x, with W frozen.

    There is no dropout: the log-probabilities of the update are those that were sampled from.

    Attributes:
      rank: width of the bottleneck. alpha: numerator of the scale.
      targets: adapted projections of every layer, keys of `LORA_TARGETS`.
    """

    rank: int
    alpha: float
    targets: frozenset[str]

    def __post_init__(self) -> None:
        if not isinstance(self.rank, int) or isinstance(self.rank, bool) or self.rank < 1:
            raise ValueError(f"rank of LoRA must be a positive integer, got {self.rank!r}")
        if isinstance(self.alpha, bool) or not isinstance(self.alpha, int | float) or not self.alpha > 0:
            raise ValueError(f"alpha of LoRA must be a positive number, got {self.alpha!r}")
        if not self.targets or not self.targets <= LORA_TARGETS.keys():
            raise ValueError(
                f"targets of LoRA must be some of {list(LORA_TARGETS)}, got {sorted(self.targets)}"
            )

    @property
    def scale(self) -> float:
        """What the product of the two matrices is multiplied by."""
        return self.alpha / self.rank

    @property
    def names(self) -> frozenset[str]:
        """Names of the adapted projections in `decoder.weights`."""
        return frozenset(LORA_TARGETS[target] for target in self.targets)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A decoder of the Qwen2, Qwen3 or Llama kind.

    Attributes:
      vocab_size: rows of the embedding; may exceed the number of tokens of the tokenizer.
      num_layers, d_model, d_ff: depth, width of the residual stream, width of the SwiGLU layer.
      num_heads, num_kv_heads: query heads and key/value heads; the second divides the first.
      head_dim: width of one head, even (rotary pairs); not necessarily `d_model / num_heads`.
      rope_theta: base of the rotary frequencies. rms_eps: added to the mean square in RMSNorm.
      tie_embeddings: the output head is the embedding matrix.
      qkv_bias: biases on the query, key and value projections (Qwen2). o_bias: one on the output projection
        of attention as well (`attention_bias` of Llama and Qwen3 is both).
      qk_norm: an RMSNorm over each query and each key head, before the rotation (Qwen3).
      max_positions: longest sequence; checked on the host, positions are not clipped on the device.
      dtype: of activations and matmuls. param_dtype: of the stored parameters, adapters excepted.
      scan_layers: scan over the layers (compile time independent of the depth) or unroll them.
      remat: recompute a layer's activations in the backward pass instead of keeping them.
      attention: which implementation packed rows go through, one of `ATTENTION`; "auto" suits the platform.
      lora: the layers have adapters, see `vict_jax.models.lora`; None: they have none.
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
    o_bias: bool = False
    qk_norm: bool = False
    max_positions: int = 4096
    dtype: str = "float32"
    param_dtype: str = "float32"
    scan_layers: bool = True
    remat: bool = False
    attention: str = "auto"
    lora: LoraOptions | None = None

    def __post_init__(self) -> None:
        for name in (*_HF_SIZES.values(), "num_kv_heads", "head_dim", "max_positions"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} must be a positive integer, got {value!r}")
        for name in ("rope_theta", "rms_eps"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise ValueError(f"{name} must be a positive number, got {value!r}")
        for name in ("tie_embeddings", "qkv_bias", "o_bias", "qk_norm", "scan_layers", "remat"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be True or False, got {getattr(self, name)!r}")
        for name in ("dtype", "param_dtype"):
            if getattr(self, name) not in DTYPES:
                raise ValueError(f"{name} must be one of {DTYPES}, got {getattr(self, name)!r}")
        if self.attention not in ATTENTION:
            raise ValueError(f"attention must be one of {ATTENTION}, got {self.attention!r}")
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


def family(config: ModelConfig) -> str:
    """The HF `model_type` whose `config.json` can describe this decoder; a key of `FAMILIES`.

    Raises:
      ValueError: biases and norms that no family combines.
    """
    if config.qk_norm and config.qkv_bias == config.o_bias:
        return "qwen3"
    if not config.qk_norm and config.qkv_bias == config.o_bias:
        return "llama"
    if not config.qk_norm and config.qkv_bias:
        return "qwen2"
    raise ValueError(
        f"no HF model combines qkv_bias={config.qkv_bias}, o_bias={config.o_bias}, qk_norm={config.qk_norm}; "
        "qwen2 is True, False, False; o_bias equals qkv_bias in qwen3 (with qk_norm) and llama (without)"
    )


def from_hf(
    hf: Mapping[str, Any], *, dtype: str = "float32", param_dtype: str = "float32", remat: bool = False
) -> ModelConfig:
    """Read a Qwen2, Qwen3 or Llama `config.json` (of transformers 4 or 5).

    The precision of the checkpoint's file is not a property of the model and is given by the caller.

    Raises:
      ValueError: a size is missing, or a feature that the decoder does not have is in use: the
        message names the key, its value and what is allowed.
    """
    kind = hf.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise ValueError(f"unsupported model_type {kind!r} in config.json; allowed: {sorted(FAMILIES)}")
    hf = {**FAMILIES[kind].defaults, **hf}
    _refuse_unsupported(hf)
    sizes: dict[str, Any] = {name: _integer(hf, key) for key, name in _HF_SIZES.items()}
    attention_bias = _boolean(hf, "attention_bias") if "attention_bias" in FAMILIES[kind].defaults else False
    return ModelConfig(
        **sizes,
        num_kv_heads=_integer(hf, "num_key_value_heads", sizes["num_heads"]),
        head_dim=_head_dim(hf, sizes),
        rope_theta=_positive(_rope(hf), "rope_theta", _DEFAULT_ROPE_THETA),
        rms_eps=_positive(hf, "rms_norm_eps"),
        tie_embeddings=_boolean(hf, "tie_word_embeddings"),
        qkv_bias=kind == "qwen2" or attention_bias,  # Qwen2 always has them, and has no key that says so.
        o_bias=attention_bias,
        qk_norm=kind == "qwen3",
        max_positions=_integer(hf, "max_position_embeddings"),
        dtype=dtype,
        param_dtype=param_dtype,
        remat=remat,
    )


def to_hf(config: ModelConfig) -> dict[str, Any]:
    """The `config.json` of `config`, for transformers 4 and 5; `from_hf` reads it back.

    Token ids are properties of the tokenizer and not in it.

    Raises:
      ValueError: no family has these biases and norms, see `family`; or a Llama of a width that its heads
        do not divide, which transformers refuses; or the model has adapters, which would be lost.
    """
    kind = family(config)
    if config.lora is not None:
        raise ValueError(
            f"a config.json cannot say lora={config.lora}: merge the adapters first (lora.merge), "
            "or save them alone (peft.save)"
        )
    if kind == "llama" and config.d_model % config.num_heads:
        raise ValueError(
            "num_heads must divide d_model in a llama config.json, "
            f"got {config.num_heads} and {config.d_model}"
        )
    return {
        "architectures": [FAMILIES[kind].architecture],
        "model_type": kind,
        **{key: getattr(config, name) for key, name in _HF_SIZES.items()},
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "rope_theta": config.rope_theta,
        "rms_norm_eps": config.rms_eps,
        "tie_word_embeddings": config.tie_embeddings,
        "max_position_embeddings": config.max_positions,
        "hidden_act": "silu",
        "attention_dropout": 0.0,
        "torch_dtype": config.param_dtype,
        **({} if kind == "llama" else {"use_sliding_window": False}),
        **({} if kind == "qwen2" else {"attention_bias": config.o_bias}),
        **({"mlp_bias": False} if kind == "llama" else {}),
    }


def _integer(hf: Mapping[str, Any], key: str, otherwise: int | None = None) -> int:
    """The value of a key; `otherwise` where HF lets it be absent or null."""
    value = hf.get(key)
    value = otherwise if value is None else value
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{key} in config.json must be an integer, got {value!r}")
    return value


def _positive(hf: Mapping[str, Any], key: str, otherwise: float | None = None) -> float:
    value = hf.get(key, otherwise)
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ValueError(f"{key} in config.json must be a positive number, got {value!r}")
    return float(value)


def _boolean(hf: Mapping[str, Any], key: str) -> bool:
    if not isinstance(hf[key], bool):
        raise ValueError(f"{key} in config.json must be true or false, got {hf[key]!r}")
    return hf[key]


def _head_dim(hf: Mapping[str, Any], sizes: Mapping[str, int]) -> int:
    d_model, num_heads = sizes["d_model"], sizes["num_heads"]
    if hf.get("head_dim") is None and (num_heads < 1 or d_model % num_heads):
        raise ValueError(
            f"config.json has no head_dim, and num_attention_heads {num_heads} does not divide "
            f"hidden_size {d_model}"
        )
    return _integer(hf, "head_dim", d_model // num_heads)


def _rope(hf: Mapping[str, Any]) -> Mapping[str, Any]:
    """Rotary settings: `rope_scaling`, else `rope_parameters` (transformers 5), over the top level (4)."""
    top = {key: hf[key] for key in ("rope_theta", "partial_rotary_factor") if hf.get(key) is not None}
    return {**top, **(hf.get("rope_scaling") or hf.get("rope_parameters") or {})}


def _windowed(hf: Mapping[str, Any]) -> bool:
    """Whether a sliding window is in use on some layer: only Qwen has one, and `layer_types` overrule it."""
    if hf.get("layer_types") is not None or "use_sliding_window" not in hf:
        return False
    in_use = hf["use_sliding_window"] and hf["sliding_window"] is not None
    return in_use and hf["max_window_layers"] < _integer(hf, "num_hidden_layers")


def _refuse_unsupported(hf: Mapping[str, Any]) -> None:
    """Raise for the first feature in use that the decoder does not have."""
    rope = _rope(hf)
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    # Per layer type: {"full_attention": {...}, ...}.
    nested = sorted(key for key, value in rope.items() if isinstance(value, Mapping))
    layer_types = set(hf.get("layer_types") or ())
    window = hf.get("use_sliding_window")
    checks = (
        ("hidden_act", *_is(hf["hidden_act"], "silu")),
        ("rope_scaling", rope_type, rope_type == "default", "none"),
        ("rope_parameters", nested, not nested, "one set for all layers"),
        ("mrope_section", *_is(rope.get("mrope_section"), None)),
        ("partial_rotary_factor", *_is(rope.get("partial_rotary_factor", 1.0), 1.0)),
        ("layer_types", sorted(layer_types), layer_types <= {"full_attention"}, "full_attention only"),
        ("use_sliding_window", window, not _windowed(hf), "False"),
        ("attention_dropout", *_is(hf["attention_dropout"], 0.0)),
        ("mlp_bias", *_is(hf.get("mlp_bias", False), False)),
        ("use_mrope", *_is(hf.get("use_mrope", False), False)),
        *((key, *_is(hf.get(key), None)) for key in _EXPERT_KEYS),
        ("quantization_config", *_is(hf.get("quantization_config"), None)),
    )
    for key, value, allowed, expected in checks:
        if not allowed:
            raise ValueError(f"unsupported {key} {value!r} in config.json; allowed: {expected}")


def _is(value: Any, expected: Any) -> tuple[Any, bool, str]:
    return value, value == expected, repr(expected)
