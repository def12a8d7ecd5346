"""ModelConfig: validation, presets, and exchange with an HF config.json."""

from __future__ import annotations

import dataclasses

import pytest

from tests.models import sizes
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

# The same of Qwen3-8B's, as transformers 5 writes it.
QWEN3_8B = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "dtype": "bfloat16",
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 12288,
    "layer_types": ["full_attention"] * 36,
    "max_position_embeddings": 40960,
    "max_window_layers": 36,
    "model_type": "qwen3",
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"},
    "sliding_window": None,
    "tie_word_embeddings": False,
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
LLAMA = {
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
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


def test_reads_qwen3():
    assert C.from_hf(QWEN3_8B) == C.ModelConfig(
        vocab_size=151936,
        num_layers=36,
        d_model=4096,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        d_ff=12288,
        rope_theta=1e6,
        rms_eps=1e-6,
        tie_embeddings=False,
        qkv_bias=False,
        o_bias=False,
        qk_norm=True,
        max_positions=40960,
    )


def test_unwritten_keys_mean_what_transformers_says():
    """The defaults of the three configuration classes, which differ."""
    transformers = pytest.importorskip("transformers")
    for kind, theirs in (
        ("llama", transformers.LlamaConfig),
        ("qwen2", transformers.Qwen2Config),
        ("qwen3", transformers.Qwen3Config),
    ):
        hf = {**LLAMA, "model_type": kind, "num_attention_heads": 64, "hidden_size": 64 * 6}
        del hf["num_key_value_heads"]
        ours, full = C.from_hf(hf), theirs(**hf)
        assert ours.num_kv_heads == full.num_key_value_heads
        assert ours.rms_eps == full.rms_norm_eps
        assert ours.max_positions == full.max_position_embeddings
        assert ours.tie_embeddings == full.tie_word_embeddings
        assert ours.rope_theta == full.rope_parameters["rope_theta"]
        assert ours.head_dim == (128 if kind == "qwen3" else 6)
        assert ours.o_bias is False
        assert ours.qkv_bias is (kind == "qwen2")


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("hf", [LLAMA, QWEN3_8B])
def test_attention_bias_is_on_all_four_projections(hf, bias):
    config = C.from_hf({**hf, "attention_bias": bias})
    assert config.qkv_bias is config.o_bias is bias


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({}, "qwen2"),
        ({"qkv_bias": False}, "llama"),
        ({"o_bias": True}, "llama"),
        ({"qkv_bias": False, "qk_norm": True}, "qwen3"),
        ({"o_bias": True, "qk_norm": True}, "qwen3"),
    ],
)
def test_round_trip(change, kind):
    config = sizes.tiny(vocab_size=77, rope_theta=5e5, tie_embeddings=False, head_dim=24, **change)
    assert C.family(config) == C.to_hf(config)["model_type"] == kind
    assert C.from_hf(C.to_hf(config)) == config


@pytest.mark.parametrize("change", [{"qk_norm": True}, {"qkv_bias": False, "o_bias": True}])
def test_no_family_has_these_biases(change):
    with pytest.raises(ValueError, match=r"qkv_bias=.*o_bias=.*qk_norm="):
        C.to_hf(sizes.tiny(vocab_size=10, **change))


def test_rope_parameters_of_transformers_5():
    hf = {key: value for key, value in QWEN25_1_5B.items() if key != "rope_theta"}
    hf["rope_parameters"] = {"rope_type": "default", "rope_theta": 123456.0}
    assert C.from_hf(hf).rope_theta == 123456.0


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"model_type": "qwen3_moe"}, "model_type 'qwen3_moe'"),
        ({"model_type": None}, "model_type"),
        ({"num_experts": 8}, "num_experts 8"),
        ({"num_local_experts": 8}, "num_local_experts"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope_scaling"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, "rope_scaling"),
        ({"attention_dropout": 0.1}, "attention_dropout"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ({"use_mrope": True}, "use_mrope"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "rope_parameters"),
        ({"rope_scaling": {"type": "default", "mrope_section": [1, 2]}}, "mrope_section"),
        ({"num_key_value_heads": 5}, "num_kv_heads"),
        ({"hidden_size": "1536"}, "hidden_size"),
        ({"hidden_size": 1537}, "num_attention_heads 12 does not divide hidden_size 1537"),
        ({"rms_norm_eps": "1e-6"}, "rms_norm_eps"),
        ({"rope_theta": -1.0}, "rope_theta"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings"),
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
    assert C.from_hf({**QWEN25_1_5B, "use_sliding_window": True, "sliding_window": None}).num_layers == 28


def test_layer_types_overrule_the_window_switch():
    hf = {**QWEN3_8B, "use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 3}
    assert C.from_hf(hf).num_layers == 36
    with pytest.raises(ValueError, match="use_sliding_window"):
        C.from_hf({**hf, "layer_types": None})


def test_width_that_heads_do_not_divide_has_no_llama_config():
    with pytest.raises(ValueError, match=r"num_heads must divide d_model.*3 and 128"):
        C.to_hf(sizes.tiny(vocab_size=10, qkv_bias=False, num_heads=3, num_kv_heads=1))


def test_rope_scaling_null_and_top_level_theta():
    assert C.from_hf({**LLAMA, "rope_scaling": None, "rope_theta": 100000}).rope_theta == 1e5


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
    ],
)
def test_invalid_settings_raise_with_their_name(change, name):
    with pytest.raises(ValueError, match=name):
        sizes.tiny(vocab_size=10, **change)


def test_config_is_frozen_and_hashable():
    config = sizes.micro(vocab_size=10)
    assert hash(config) == hash(dataclasses.replace(config))
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.d_model = 3  # type: ignore[misc]
