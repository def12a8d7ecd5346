"""Turn a Llama-type GGUF file into a directory that `hf.load` and `transformers` read.

    python -m vict_jax.models.import_gguf FILE DIR [--dtype=float32|bfloat16|float16] [--overwrite]

Weights are dequantised; tokenizer, chat template and token ids come from the file as well. GGUF format:
ggml-org/ggml docs/gguf.md. Needs the extra `smollm`.
"""

from __future__ import annotations

import argparse
import collections
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from vict_jax.models import hf
from vict_jax.models.config import ModelConfig
from vict_jax.models.hf_keys import EMBED, HEAD, NORM, key_table

try:
    import gguf
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("reading GGUF files needs the extra: pip install 'vict_jax[smollm]'") from error

ARCHITECTURE = "llama"
QUANTISATIONS = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")

_TOP_NAMES: Mapping[str, str] = {
    EMBED: "token_embd.weight",
    HEAD: "output.weight",
    NORM: "output_norm.weight",
}
# Module of a layer in the HF layout -> in GGUF.
_LAYER_NAMES: Mapping[str, str] = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
# Entries `llama.*` that are read, and those that are allowed with one value.
_READ = (
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "vocab_size",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "rope.freq_base",
    "rope.dimension_count",
)
_ALLOWED: Mapping[str, Any] = {"rope.scaling.type": "none", "expert_count": 0, "expert_used_count": 0}
_SPACE = "▁"  # stands for a blank in SentencePiece vocabularies


def convert(
    file: pathlib.Path, folder: pathlib.Path, *, dtype: str = "float32", overwrite: bool = False
) -> ModelConfig:
    """Write `folder` from the GGUF `file`; returns the model's configuration.

    An output matrix that equals the embedding, or is absent, becomes a tied head.

    Args:
      dtype, overwrite: as for `hf.export`.

    Raises:
      FileNotFoundError: no such file.
      FileExistsError: as `hf.export`.
      ValueError: not a GGUF file, or an architecture, quantisation, tokenizer, tensor or entry that is not
        supported; the message names it and what is allowed.
    """
    reader = _open(file)
    meta = {name: field.contents() for name, field in reader.fields.items()}
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    _check_quantisation(tensors)
    config = read_config(meta, tie_embeddings=_is_tied(tensors))
    if len(_tokens(meta)) > config.vocab_size:
        raise ValueError(
            f"the GGUF file has {len(_tokens(meta))} tokens for a vocabulary of {config.vocab_size} rows"
        )
    names = {key: _gguf_name(key) for key in key_table(config)}
    _check_tensors(tensors, names, config)

    def tensor(key: str) -> np.ndarray:
        value = _dequantise(tensors[names[key]])
        heads = {"attn_q": config.num_heads, "attn_k": config.num_kv_heads}
        kind = names[key].split(".")[-2]
        return _half_split(value, heads[kind]) if kind in heads else value

    hf.write_directory(
        folder,
        config,
        tensor,
        tokenizer=read_tokenizer(meta),
        generation_config=_token_ids(meta),
        dtype=dtype,
        overwrite=overwrite,
    )
    return config


def read_config(meta: Mapping[str, Any], *, tie_embeddings: bool) -> ModelConfig:
    """The model's sizes from the metadata of a Llama-type GGUF file.

    Raises:
      ValueError: another architecture, a missing size, or an entry that is not supported.
    """
    if meta.get("general.architecture") != ARCHITECTURE:
        raise ValueError(
            f"unsupported GGUF architecture {meta.get('general.architecture')!r}; allowed: {ARCHITECTURE!r}"
        )
    own = {key[6:]: value for key, value in meta.items() if key.startswith(f"{ARCHITECTURE}.")}
    for key, value in own.items():
        if key not in _READ and not (key in _ALLOWED and _ALLOWED[key] == value):
            allowed = f"only {_ALLOWED[key]!r}" if key in _ALLOWED else "no such entry"
            raise ValueError(f"unsupported GGUF entry {ARCHITECTURE}.{key} = {value!r}; allowed: {allowed}")
    required = ("block_count", "context_length", "embedding_length", "feed_forward_length")
    missing = [
        key
        for key in (*required, "attention.head_count", "attention.layer_norm_rms_epsilon")
        if key not in own
    ]
    if missing:
        raise ValueError(f"the GGUF file lacks the entries {[f'{ARCHITECTURE}.{key}' for key in missing]}")
    num_heads = own["attention.head_count"]
    head_dim = own.get("attention.key_length", own["embedding_length"] // num_heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        if own.get(key, head_dim) != head_dim:
            raise ValueError(
                f"unsupported GGUF entry {ARCHITECTURE}.{key} = {own[key]}; allowed: {head_dim}, "
                "the width of a head"
            )
    return ModelConfig(
        vocab_size=own.get("vocab_size", len(_tokens(meta))),
        num_layers=own["block_count"],
        d_model=own["embedding_length"],
        num_heads=num_heads,
        num_kv_heads=own.get("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        d_ff=own["feed_forward_length"],
        rope_theta=_shortest(own.get("rope.freq_base", 10_000.0)),
        rms_eps=_shortest(own["attention.layer_norm_rms_epsilon"]),
        tie_embeddings=tie_embeddings,
        qkv_bias=False,
        max_positions=own["context_length"],
    )


def read_tokenizer(meta: Mapping[str, Any]) -> PreTrainedTokenizerFast:
    """The tokenizer and chat template of a GGUF file.

    Raises:
      ValueError: a kind of tokenizer or pre-tokenizer that is not supported, or duplicate tokens.
    """
    kind, pre = meta.get("tokenizer.ggml.model"), meta.get("tokenizer.ggml.pre")
    tokens = _tokens(meta)
    repeated = [token for token, count in collections.Counter(tokens).items() if count > 1]
    if repeated:
        raise ValueError(f"the GGUF file has duplicate tokens {repeated[:5]}")
    if kind == "gpt2" and pre == "smollm":
        backend = _byte_level(tokens, meta["tokenizer.ggml.merges"])
    elif kind == "llama":
        backend = _sentencepiece(tokens, meta)
    else:
        raise ValueError(
            f"unsupported GGUF tokenizer {kind!r} with pre-tokenizer {pre!r}; "
            "allowed: 'gpt2' with 'smollm', or 'llama'"
        )
    backend.add_special_tokens(
        [
            tokenizers.AddedToken(token, special=True, normalized=False)
            for token, type_ in zip(tokens, meta["tokenizer.ggml.token_type"], strict=True)
            if type_ in (gguf.TokenType.CONTROL, gguf.TokenType.UNKNOWN)
        ]
    )
    ids = _token_ids(meta)
    names = {key.removesuffix("_id"): tokens[value] for key, value in ids.items()}
    unknown = meta.get("tokenizer.ggml.unknown_token_id")
    if meta.get("tokenizer.ggml.add_bos_token", kind == "llama"):
        backend.post_processor = _prepend(names["bos_token"], ids["bos_token_id"])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        **names,
        **({} if unknown is None else {"unk_token": tokens[unknown]}),
        chat_template=meta.get("tokenizer.chat_template"),
        model_max_length=meta[f"{ARCHITECTURE}.context_length"],
        clean_up_tokenization_spaces=False,
    )


def _open(file: pathlib.Path) -> gguf.GGUFReader:
    if not file.is_file():
        raise FileNotFoundError(f"no file {file}")
    try:
        return gguf.GGUFReader(file)
    except (ValueError, IndexError) as error:
        raise ValueError(f"{file} is damaged or no GGUF file: {error}") from error


def _tokens(meta: Mapping[str, Any]) -> list[str]:
    if "tokenizer.ggml.tokens" not in meta:
        raise ValueError("the GGUF file lacks the entry tokenizer.ggml.tokens")
    return meta["tokenizer.ggml.tokens"]


def _token_ids(meta: Mapping[str, Any]) -> dict[str, int]:
    """Ids under the names of generation_config.json; without a padding token the end token pads."""
    names = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    entries = {key: f"tokenizer.ggml.{name}_token_id" for key, name in names.items()}
    if entries["pad_token_id"] not in meta:
        entries["pad_token_id"] = entries["eos_token_id"]
    missing = sorted(set(entries.values()) - meta.keys())
    if missing:
        raise ValueError(f"the GGUF file lacks the entries {missing}")
    return {key: meta[entry] for key, entry in entries.items()}


def _shortest(value: float) -> float:
    """The shortest decimal that is this float32: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _gguf_name(key: str) -> str:
    """GGUF's name of a tensor of `key_table`."""
    if key in _TOP_NAMES:
        return _TOP_NAMES[key]
    _, _, layer, rest = key.split(".", 3)
    return f"blk.{layer}.{_LAYER_NAMES[rest.removesuffix('.weight')]}.weight"


def _check_quantisation(tensors: Mapping[str, Any]) -> None:
    for name, tensor in tensors.items():
        if tensor.tensor_type.name not in QUANTISATIONS:
            raise ValueError(
                f"unsupported quantisation {tensor.tensor_type.name} of GGUF tensor {name!r}; "
                f"allowed: {QUANTISATIONS}"
            )


def _is_tied(tensors: Mapping[str, Any]) -> bool:
    embed, head = _TOP_NAMES[EMBED], _TOP_NAMES[HEAD]
    if head not in tensors or embed not in tensors:
        return True  # a missing embedding is reported with the other tensors
    return bool(np.array_equal(_dequantise(tensors[embed]), _dequantise(tensors[head])))


def _check_tensors(tensors: Mapping[str, Any], names: Mapping[str, str], config: ModelConfig) -> None:
    tied = {_TOP_NAMES[HEAD]} if config.tie_embeddings else set()
    missing = sorted(set(names.values()) - tensors.keys())
    unknown = sorted(tensors.keys() - set(names.values()) - tied)
    if missing or unknown:
        raise ValueError(
            f"the GGUF file lacks tensors {missing[:5]} and has unsupported tensors {unknown[:5]}"
        )
    for key, slot in key_table(config).items():
        shape = tuple(int(size) for size in reversed(tensors[names[key]].shape))
        if shape != slot.shape:
            raise ValueError(f"GGUF tensor {names[key]!r} has shape {shape}, expected {slot.shape}")


def _dequantise(tensor: Any) -> np.ndarray:
    """f32[out, in]; GGUF lists the fastest axis first, the data lie as NumPy has them."""
    return gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)


def _half_split(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a query or key projection from interleaved rotary pairs (GGUF) to half-split ones (HF)."""
    out, width = weight.shape
    return weight.reshape(heads, out // heads // 2, 2, width).swapaxes(1, 2).reshape(out, width)


def _byte_level(tokens: Sequence[str], merges: Sequence[str]) -> tokenizers.Tokenizer:
    """The BPE of SmolLM2: digits apart, then GPT-2's words, over bytes."""
    pairs = [(left, right) for left, right in (merge.split(" ") for merge in merges)]
    backend = tokenizers.Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, pairs))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentencepiece(tokens: Sequence[str], meta: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """SentencePiece's BPE with byte fallback. Its merges are not in the file but follow from the scores."""
    prefixed = meta.get("tokenizer.ggml.add_space_prefix", True)
    vocabulary = {token: i for i, token in enumerate(tokens)}
    bpe = models.BPE(
        vocabulary,
        _merges(vocabulary, meta["tokenizer.ggml.scores"], meta["tokenizer.ggml.token_type"]),
        unk_token=tokens[meta.get("tokenizer.ggml.unknown_token_id", 0)],
        fuse_unk=True,
        byte_fallback=True,
    )
    backend = tokenizers.Tokenizer(bpe)
    replace = normalizers.Replace(" ", _SPACE)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), replace]) if prefixed else replace
    strip = [decoders.Strip(" ", 1, 0)] if prefixed else []
    backend.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return backend


def _merges(
    vocabulary: Mapping[str, int], scores: Sequence[float], types: Sequence[int]
) -> list[tuple[str, str]]:
    """Every split of a piece into two pieces, those of the highest score first."""
    pieces = [token for token, i in vocabulary.items() if types[i] == gguf.TokenType.NORMAL]
    pieces.sort(key=lambda token: -scores[vocabulary[token]])
    return [
        (piece[:cut], piece[cut:])
        for piece in pieces
        for cut in range(1, len(piece))
        if piece[:cut] in vocabulary and piece[cut:] in vocabulary
    ]


def _prepend(token: str, token_id: int) -> processors.TemplateProcessing:
    return processors.TemplateProcessing(
        single=f"{token} $A", pair=f"{token} $A {token} $B", special_tokens=[(token, token_id)]
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Command line, see the module."""
    parser = argparse.ArgumentParser(
        prog="python -m vict_jax.models.import_gguf", description="Convert a Llama-type GGUF file."
    )
    parser.add_argument("file", type=pathlib.Path, help="the GGUF file")
    parser.add_argument("folder", type=pathlib.Path, help="directory to write")
    parser.add_argument("--dtype", choices=hf.DTYPES, default="float32", help="precision of the weights")
    parser.add_argument("--overwrite", action="store_true", help="replace a directory that is there already")
    args = parser.parse_args(argv)
    config = convert(args.file, args.folder, dtype=args.dtype, overwrite=args.overwrite)
    print(
        f"{args.folder}: {config.num_layers} layers, width {config.d_model}, vocabulary {config.vocab_size}"
    )


if __name__ == "__main__":
    main()
