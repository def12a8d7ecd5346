"""Options of a run's model: read from a directory or made from scratch, and how much of it is trained."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from vict_jax.models.config import LORA_TARGETS, LoraOptions, ModelConfig, from_hf
from vict_jax.required import require

# What the config.json of a checkpoint directory says.
SIZES = (
    *("vocab_size", "num_layers", "d_model", "num_heads", "num_kv_heads", "head_dim", "d_ff"),
    *("rope_theta", "tie_embeddings", "qkv_bias", "qk_norm"),
)


@dataclasses.dataclass(frozen=True)
class ModelOptions:
    """The decoder: read from a directory or made from scratch, and how much of it is trained.

    Attributes:
      path: checkpoint directory in the Hugging Face layout, with tokenizer; "": a new model of the sizes
        below, which with a path come from its `config.json` and cannot be given.
      vocab_size: the most the tokenizer may use.
      num_layers, d_model, num_heads, num_kv_heads, head_dim, d_ff: sizes; `num_kv_heads` divides `num_heads`.
      rope_theta: base of the rotary angles. tie_embeddings: the output head is the embedding.
      qkv_bias: queries, keys and values have a bias. qk_norm: queries and keys are normed by head.
      dtype: of activations and matmuls. param_dtype: of the stored parameters.
      scan_layers: layers are compiled once, in a loop; unrolled, a few layers run faster on a CPU.
      remat: keep the input of each layer only and compute the rest again in the backward pass.
      attention: an implementation, see `vict_jax.models.attention`; "auto": what suits the device.
      lora_rank: 0: every parameter is trained. Above: the model is frozen, and adapters of this rank are
        trained.
      lora_alpha: adapters are scaled by `lora_alpha / lora_rank`. lora_targets: where they are, PEFT's names.
    """

    path: str = ""
    vocab_size: int = 1024
    num_layers: int = 3
    d_model: int = 128
    num_heads: int = 4
    num_kv_heads: int = 4
    head_dim: int = 32
    d_ff: int = 384
    rope_theta: float = 10_000.0
    tie_embeddings: bool = True
    qkv_bias: bool = True
    qk_norm: bool = False
    dtype: str = "float32"
    param_dtype: str = "float32"
    scan_layers: bool = True
    remat: bool = False
    attention: str = "auto"
    lora_rank: int = 0
    lora_alpha: float = 32.0
    lora_targets: tuple[str, ...] = tuple(LORA_TARGETS)

    def __post_init__(self) -> None:
        require(self.lora_rank >= 0, "model.lora_rank", self.lora_rank, "0 (off) or more")
        require(
            self.vocab_size >= 300,
            "model.vocab_size",
            self.vocab_size,
            "at least 300 (256 bytes and specials)",
        )
        _ = self.lora  # which checks the rest
        if self.path:
            for field in dataclasses.fields(self):
                value = getattr(self, field.name)
                if field.name in SIZES and value != field.default:
                    allowed = f"with model.path={self.path!r} it comes from config.json there"
                    require(False, f"model.{field.name}", value, allowed)

    @property
    def lora(self) -> LoraOptions | None:
        """The adapters, None without any."""
        if not self.lora_rank:
            return None
        return LoraOptions(rank=self.lora_rank, alpha=self.lora_alpha, targets=frozenset(self.lora_targets))

    def made(self, *, vocab_size: int, max_positions: int) -> ModelConfig:
        """A model of these sizes."""
        sizes = {name: getattr(self, name) for name in SIZES} | {"vocab_size": vocab_size}
        return ModelConfig(**sizes, **self._run(), max_positions=max_positions)

    def read(self, hf: Mapping[str, Any]) -> ModelConfig:
        """The model of a `config.json`; errors as `from_hf`."""
        return dataclasses.replace(from_hf(hf), **self._run())

    def _run(self) -> dict[str, Any]:
        """What holds whether a model is made or read."""
        names = ("dtype", "param_dtype", "scan_layers", "remat", "attention", "lora")
        return {name: getattr(self, name) for name in names}
