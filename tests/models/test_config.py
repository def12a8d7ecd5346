"""ModelConfig: validation, presets, and exchange with an HF config.json."""

from __future__ import annotations

import dataclasses

import pytest

from vict_jax.models import config as C

# Sizes of Qwen2.5-1.5B-Instruct's config.json, with the keys that file has.
QWEN25_1_5B = {
    "architectures": ["Qwen2ForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "hidden_act": "silu",
    "hidden_size": 1536,
    "initializer_range": 0.02,
    "intermediate_size": 8960,
    "max_position_embeddings": 32768,
    "max_window_layers": 21,
    "model_type": "qwen2",
    "num_attention_heads": 12,
    "num_hidden_layers": 28,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}


def test_reads_every_size_of_a_real_config():
    config = C.from_hf(QWEN25_1_5B, dtype="bfloat16")
    assert config == C.ModelConfig(
        vocab_size=151936,
        num_layers=28,
        d_model=1536,
        num_heads=12,
        num_kv_heads=2,
        head_dim=128,
        d_ff=8960,
        rope_theta=1e6,
        rms_eps=1e-6,
        tie_embeddings=True,
        qkv_bias=True,
        max_positions=32768,
        dtype="bfloat16",
    )


def test_round_trip():
    config = C.preset("tiny", vocab_size=77, rope_theta=5e5, tie_embeddings=False, head_dim=24)
    assert C.from_hf(C.to_hf(config)) == config


def test_rope_parameters_of_transformers_5():
    hf = {key: value for key, value in QWEN25_1_5B.items() if key != "rope_theta"}
    hf["rope_parameters"] = {"rope_type": "default", "rope_theta": 123456.0}
    assert C.from_hf(hf).rope_theta == 123456.0


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"model_type": "qwen3"}, "model_type"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope_scaling"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, "rope_scaling"),
        ({"attention_dropout": 0.1}, "attention_dropout"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ({"use_mrope": True}, "use_mrope"),
        ({"num_key_value_heads": 5}, "num_kv_heads"),
        ({"hidden_size": "1536"}, "hidden_size"),
    ],
)
def test_unsupported_values_raise_with_their_name(change, name):
    with pytest.raises(ValueError, match=name):
        C.from_hf({**QWEN25_1_5B, **change})


def test_missing_size_is_named():
    with pytest.raises(ValueError, match="intermediate_size"):
        C.from_hf({key: value for key, value in QWEN25_1_5B.items() if key != "intermediate_size"})


def test_sliding_window_beyond_the_last_layer_is_not_in_use():
    assert C.from_hf({**QWEN25_1_5B, "use_sliding_window": True, "max_window_layers": 28}).num_layers == 28


def test_model_without_biases_has_no_qwen2_config():
    with pytest.raises(ValueError, match="qkv_bias"):
        C.to_hf(C.preset("tiny", vocab_size=10, qkv_bias=False))


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"num_layers": 0}, "num_layers"),
        ({"d_ff": 3.5}, "d_ff"),
        ({"head_dim": 15}, "head_dim"),
        ({"num_kv_heads": 3}, "num_kv_heads"),
        ({"dtype": "float16"}, "dtype"),
        ({"rms_eps": 0.0}, "rms_eps"),
        ({"rope_theta": "1e4"}, "rope_theta"),
        ({"tie_embeddings": 1}, "tie_embeddings"),
        ({"widht": 3}, "widht"),
    ],
)
def test_invalid_settings_raise_with_their_name(change, name):
    with pytest.raises(ValueError, match=name):
        C.preset("tiny", vocab_size=10, **change)


def test_unknown_preset_lists_the_known_ones():
    with pytest.raises(ValueError, match="tiny"):
        C.preset("tyni", vocab_size=10)


def test_config_is_frozen_and_hashable():
    config = C.preset("micro", vocab_size=10)
    assert hash(config) == hash(dataclasses.replace(config))
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.d_model = 3  # type: ignore[misc]
