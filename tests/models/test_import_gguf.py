"""GGUF files written here with the `gguf` package and converted back: weights, tokenizers, and refusals."""

from __future__ import annotations

import functools
import json
import pathlib

import jax
import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from tests.models import oracle
from vict_jax import sharding
from vict_jax.models import config as C
from vict_jax.models import hf
from vict_jax.models.hf_keys import key_table
from vict_jax.rollout.tokenizer import load_tokenizer

gguf = pytest.importorskip("gguf", reason="gguf is the optional extra `smollm`")

from vict_jax.models import import_gguf  # noqa: E402 (needs gguf)

VOCAB = 280
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6
TEMPLATE = "{% for m in messages %}{{ m['content'] }}<|im_end|>{% endfor %}"
CONFIG = C.ModelConfig(
    vocab_size=VOCAB,
    num_layers=2,
    d_model=64,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    d_ff=96,
    rope_theta=500.0,
    rms_eps=1e-5,
    qkv_bias=False,
    max_positions=256,
)
LAYER_NAMES = {
    "attn_norm": ("attn_norm", None),
    "ffn_norm": ("mlp_norm", None),
    "attn_q": ("q", "num_heads"),
    "attn_k": ("k", "num_kv_heads"),
    "attn_v": ("v", None),
    "attn_output": ("o", None),
    "ffn_gate": ("gate", None),
    "ffn_up": ("up", None),
    "ffn_down": ("down", None),
}


def interleave(weight: np.ndarray, heads: int) -> np.ndarray:
    """Row i of a head's first half to row 2i, of its second half to row 2i + 1: GGUF's rotary pairs."""
    out = np.empty_like(weight)
    width = len(weight) // heads
    for head in range(heads):
        for i in range(width // 2):
            out[head * width + 2 * i] = weight[head * width + i]
            out[head * width + 2 * i + 1] = weight[head * width + width // 2 + i]
    return out


def gguf_tensors(config: C.ModelConfig, params) -> dict[str, np.ndarray]:
    """Tensors of a model by their GGUF names, as [out, in]."""
    tree = jax.tree.map(np.asarray, params)
    tensors = {
        "token_embd.weight": tree["embed"][...],
        "output_norm.weight": tree["final_norm"][...],
    }
    if not config.tie_embeddings:
        tensors["output.weight"] = tree["head"][...]
    for name, (ours, heads) in LAYER_NAMES.items():
        for layer, value in enumerate(tree["layers"][ours][...]):
            value = value.T if value.ndim == 2 else value
            if heads:
                value = interleave(value, {"num_heads": config.num_heads}.get(heads, config.num_kv_heads))
            tensors[f"blk.{layer}.{name}.weight"] = np.ascontiguousarray(value)
    return tensors


@functools.cache
def smollm_like() -> tokenizers.Tokenizer:
    """A byte-level BPE with SmolLM2's pre-tokenizer, three control tokens first."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(["the cat sat on the mat in 2024, and then the dog ran"] * 9, trainer)
    assert backend.get_vocab_size() == VOCAB
    return backend


def byte_level_entries(backend: tokenizers.Tokenizer) -> dict:
    model = json.loads(backend.to_str())["model"]
    tokens = sorted(backend.get_vocab(), key=backend.get_vocab().__getitem__)
    return {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": tokens,
        "types": [CONTROL] * 3 + [NORMAL] * (len(tokens) - 3),
        "merges": [" ".join(pair) for pair in model["merges"]],
        "ids": {"bos": 1, "eos": 2, "unk": 0, "pad": 2},
        "add_bos": False,
        "template": TEMPLATE,
    }


def write_gguf(
    path: pathlib.Path,
    config: C.ModelConfig,
    tensors,
    tokenizer,
    *,
    quantisation="F32",
    architecture="llama",
    more=(),
) -> pathlib.Path:
    """A GGUF file; matrices in `quantisation`; `more`: entries as (method of the writer, arguments)."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.num_layers)
    writer.add_context_length(config.max_positions)
    writer.add_embedding_length(config.d_model)
    writer.add_feed_forward_length(config.d_ff)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_layer_norm_rms_eps(config.rms_eps)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_tokenizer_model(tokenizer["model"])
    writer.add_token_list(tokenizer["tokens"])
    writer.add_token_types(tokenizer["types"])
    if "scores" in tokenizer:
        writer.add_token_scores(tokenizer["scores"])
    if "merges" in tokenizer:
        writer.add_tokenizer_pre(tokenizer["pre"])
        writer.add_token_merges(tokenizer["merges"])
        writer.add_add_bos_token(tokenizer["add_bos"])
        writer.add_chat_template(tokenizer["template"])
    for name, value in tokenizer["ids"].items():
        getattr(writer, f"add_{name}_token_id")(value)
    for method, arguments in more:
        getattr(writer, method)(*arguments)
    kind = gguf.GGMLQuantizationType[quantisation]
    for name, value in tensors.items():
        if value.ndim == 1 or quantisation == "F32":
            writer.add_tensor(name, value.astype(np.float32))
        else:
            writer.add_tensor(name, gguf.quants.quantize(value, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def random_model():
    _, params = oracle.random_params(CONFIG, 0)
    return gguf_tensors(CONFIG, params), params


@pytest.fixture(scope="module")
def tokenizer():
    return byte_level_entries(smollm_like())


@pytest.mark.parametrize("quantisation", import_gguf.QUANTISATIONS)
def test_weights_of_every_quantisation(quantisation, random_model, tokenizer, tmp_path):
    """Converted = quantised and dequantised in GGUF's order, then with HF's order of rotary pairs."""
    tensors, params = random_model
    file = write_gguf(tmp_path / "m.gguf", CONFIG, tensors, tokenizer, quantisation=quantisation)
    assert import_gguf.convert(file, tmp_path / "out") == CONFIG
    config, loaded = hf.load(tmp_path / "out", sharding.make_mesh())
    assert config == CONFIG
    kind = gguf.GGMLQuantizationType[quantisation]
    got = gguf_tensors(config, loaded)
    assert got.keys() == tensors.keys()
    for name, value in tensors.items():
        if value.ndim == 2 and quantisation != "F32":
            value = gguf.quants.dequantize(gguf.quants.quantize(value, kind), kind)
        np.testing.assert_array_equal(got[name], value, err_msg=name)
    for a, b in zip(jax.tree.leaves(loaded), jax.tree.leaves(params), strict=True):
        np.testing.assert_allclose(a, b, atol=0.2 if quantisation.startswith("Q") else 1e-2)


def test_heads_are_tied_when_equal_or_absent(random_model, tokenizer, tmp_path):
    tensors, _ = random_model
    same = {**tensors, "output.weight": tensors["token_embd.weight"]}
    file = write_gguf(tmp_path / "same.gguf", CONFIG, same, tokenizer)
    assert import_gguf.convert(file, tmp_path / "same").tie_embeddings
    assert "lm_head.weight" not in load_file(tmp_path / "same" / hf.WEIGHTS)
    other = {**tensors, "output.weight": tensors["token_embd.weight"] + 1}
    file = write_gguf(tmp_path / "other.gguf", CONFIG, other, tokenizer)
    assert not import_gguf.convert(file, tmp_path / "other").tie_embeddings
    head = load_file(tmp_path / "other" / hf.WEIGHTS)["lm_head.weight"]
    np.testing.assert_array_equal(head, other["output.weight"])


def test_stories_through_gguf(shared_dir, tmp_path):
    """Real weights and a SentencePiece vocabulary: the same directory comes back, but for BOS by default."""
    source = shared_dir / "data/models/stories260K"
    config, params = hf.load(source, sharding.make_mesh())
    stored = json.loads((source / "tokenizer.json").read_text())
    vocabulary = stored["model"]["vocab"]
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    entries = {
        "model": "llama",
        "tokens": tokens,
        "types": [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * (len(tokens) - 259),
        "scores": [0.0] * 259 + [-float(i) for i in range(len(tokens) - 259)],
        "ids": {"bos": 1, "eos": 2, "unk": 0},
    }
    file = write_gguf(tmp_path / "s.gguf", config, gguf_tensors(config, params), entries)
    import_gguf.main([str(file), str(tmp_path / "out")])
    before, after = load_file(source / hf.WEIGHTS), load_file(tmp_path / "out" / hf.WEIGHTS)
    assert before.keys() == after.keys() == key_table(config).keys()
    for key in before:
        np.testing.assert_array_equal(before[key], after[key])
    assert hf.load_config(tmp_path / "out") == config
    assert hf.load_generation_config(tmp_path / "out") == hf.load_generation_config(source)
    converted = json.loads((tmp_path / "out" / "tokenizer.json").read_text())
    for part in ("model", "normalizer", "decoder"):
        assert converted[part] == stored[part]
    theirs, ours = load_tokenizer(source), load_tokenizer(tmp_path / "out")
    text = "Once upon a time, Zoë had 3 cats.\n  The end"
    ids = theirs(text, add_special_tokens=False).input_ids
    assert ours(text).input_ids == [1, *ids]
    assert ours.decode(ids) == text


@functools.cache
def converted_byte_level() -> PreTrainedTokenizerFast:
    entries = byte_level_entries(smollm_like())
    ids = {"bos": 1, "eos": 2, "unknown": 0, "padding": 2}
    return import_gguf.read_tokenizer(
        {
            "llama.context_length": 256,
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "smollm",
            "tokenizer.ggml.tokens": entries["tokens"],
            "tokenizer.ggml.token_type": entries["types"],
            "tokenizer.ggml.merges": entries["merges"],
            "tokenizer.chat_template": TEMPLATE,
            **{f"tokenizer.ggml.{name}_token_id": value for name, value in ids.items()},
        }
    )


@given(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
    | st.lists(st.sampled_from(["the ", " cat", "20", "7", "<|im_end|>", "\n", "don't", "é"])).map("".join)
)
def test_byte_level_tokenizer_equals_its_source(text):
    ids = converted_byte_level()(text).input_ids
    assert ids == smollm_like().encode(text).ids
    assert converted_byte_level().decode(ids) == text


def test_tokenizer_in_the_directory(random_model, tokenizer, tmp_path):
    """Chat template, control tokens and ids; `transformers` and our loader read it."""
    file = write_gguf(tmp_path / "m.gguf", CONFIG, random_model[0], tokenizer)
    import_gguf.convert(file, tmp_path / "out")
    loaded = load_tokenizer(tmp_path / "out")
    assert (loaded.bos_token, loaded.eos_token, loaded.pad_token) == (
        "<|im_start|>",
        "<|im_end|>",
        "<|im_end|>",
    )
    assert loaded.unk_token == "<|endoftext|>"
    text = loaded.apply_chat_template([{"role": "user", "content": "the cat"}], tokenize=False)
    assert text == "the cat<|im_end|>"
    ids = loaded(text).input_ids
    assert ids == smollm_like().encode(text).ids  # no BOS
    assert ids[-1] == 2
    assert hf.load_generation_config(tmp_path / "out") == {
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
    }


def test_more_tokens_than_rows_raise(random_model, tokenizer, tmp_path):
    more = [("add_vocab_size", (VOCAB - 1,))]
    file = write_gguf(tmp_path / "m.gguf", CONFIG, random_model[0], tokenizer, more=more)
    with pytest.raises(ValueError, match=f"{VOCAB} tokens for a vocabulary of {VOCAB - 1} rows"):
        import_gguf.convert(file, tmp_path / "out")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"architecture": "qwen2"}, r"unsupported GGUF architecture 'qwen2'; allowed: 'llama'"),
        ({"more": [("add_rope_scaling_type", (gguf.RopeScalingType.YARN,))]}, r"rope.scaling.type = 'yarn'"),
        ({"more": [("add_expert_count", (8,))]}, r"llama.expert_count = 8; allowed: only 0"),
        ({"more": [("add_sliding_window", (64,))]}, r"llama.attention.sliding_window = 64; allowed: no such"),
        ({"more": [("add_value_length", (8,))]}, r"attention.value_length = 8; allowed: 16"),
    ],
)
def test_unsupported_entries_raise_with_their_name(settings, message, random_model, tokenizer, tmp_path):
    file = write_gguf(tmp_path / "m.gguf", CONFIG, random_model[0], tokenizer, **settings)
    with pytest.raises(ValueError, match=message):
        import_gguf.convert(file, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_unsupported_quantisation_raises_with_its_name(random_model, tokenizer, tmp_path):
    tensors, name = random_model[0], "blk.1.ffn_up.weight"
    kind = gguf.GGMLQuantizationType.IQ4_NL  # blocks of 32 values in 18 bytes
    packed = np.zeros((96, 64 // 32 * 18), np.uint8)
    more = [("add_tensor", (name, packed, None, kind))]
    others = {key: value for key, value in tensors.items() if key != name}
    file = write_gguf(tmp_path / "m.gguf", CONFIG, others, tokenizer, more=more)
    with pytest.raises(ValueError, match=rf"unsupported quantisation IQ4_NL of GGUF tensor '{name}'"):
        import_gguf.convert(file, tmp_path / "out")


def test_wrong_tensors_raise_with_their_name(random_model, tokenizer, tmp_path):
    tensors = random_model[0]
    cases = {
        r"lacks tensors \['blk.1.ffn_up.weight'\]": {k: v for k, v in tensors.items() if "1.ffn_up" not in k},
        r"unsupported tensors \['rope_freqs.weight'\]": {**tensors, "rope_freqs.weight": np.ones(8)},
        r"'output_norm.weight' has shape \(63,\), expected \(64,\)": {
            **tensors,
            "output_norm.weight": np.ones(63),
        },
    }
    for message, changed in cases.items():
        file = write_gguf(tmp_path / "m.gguf", CONFIG, changed, tokenizer)
        with pytest.raises(ValueError, match=message):
            import_gguf.convert(file, tmp_path / "out")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pre": "llama-bpe"}, r"unsupported GGUF tokenizer 'gpt2' with pre-tokenizer 'llama-bpe'"),
        ({"ids": {"bos": 1}}, r"lacks the entries \['tokenizer.ggml.eos_token_id'\]"),
    ],
)
def test_unsupported_tokenizers_raise(change, message, random_model, tokenizer, tmp_path):
    file = write_gguf(tmp_path / "m.gguf", CONFIG, random_model[0], {**tokenizer, **change})
    with pytest.raises(ValueError, match=message):
        import_gguf.convert(file, tmp_path / "out")


def test_missing_and_damaged_files_raise(random_model, tokenizer, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no file .*none.gguf"):
        import_gguf.convert(tmp_path / "none.gguf", tmp_path / "out")
    file = write_gguf(tmp_path / "m.gguf", CONFIG, random_model[0], tokenizer)
    whole = file.read_bytes()
    for bad in (whole[: len(whole) // 2], whole[:40], b"PK\x03\x04" + whole[4:], b""):
        file.write_bytes(bad)
        with pytest.raises(ValueError, match=r"m.gguf is damaged or no GGUF file"):
            import_gguf.convert(file, tmp_path / "out")
    file.write_bytes(whole)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("x")
    with pytest.raises(FileExistsError, match="not empty"):
        import_gguf.convert(file, tmp_path / "out")
