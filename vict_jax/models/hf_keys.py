"""Names of the tensors of a Hugging Face checkpoint and their places in our parameters, in one table."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

from vict_jax.models import decoder
from vict_jax.models.config import ModelConfig

EMBED, NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
_LAYER = "model.layers.{}."
# Tensor of a layer -> our name, and whether it is stored as [out, in] where ours is [in, out].
_LAYER_KEYS: Mapping[str, tuple[str, bool]] = {
    "input_layernorm.weight": ("attn_norm", False),
    "post_attention_layernorm.weight": ("mlp_norm", False),
    **{f"self_attn.{name}_proj.weight": (name, True) for name in "qkvo"},
    **{f"self_attn.{name}_proj.bias": (f"{name}_bias", False) for name in "qkvo"},
    **{f"self_attn.{name}_norm.weight": (f"{name}_norm", False) for name in "qk"},
    **{f"mlp.{name}_proj.weight": (name, True) for name in ("gate", "up", "down")},
}
# Buffers that old versions of transformers saved and no version needs: functions of config.json.
DERIVED = re.compile(r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq")


@dataclasses.dataclass(frozen=True)
class Slot:
    """The place of one tensor of a checkpoint in our parameters.

    Attributes:
      path: of the parameter in the tree of `decoder.weights`.
      layer: index on its axis 0, None where it is not stacked.
      transposed: the file holds [out, in], we hold [in, out].
      shape: in the file.
    """

    path: tuple[str, ...]
    layer: int | None
    transposed: bool
    shape: tuple[int, ...]


def key_table(config: ModelConfig) -> dict[str, Slot]:
    """Every tensor of a checkpoint of `config` by its name, layers in order."""
    declared = decoder.weights(config)
    table = {
        EMBED: Slot(("embed",), None, False, declared["embed"].shape),
        NORM: Slot(("final_norm",), None, False, declared["final_norm"].shape),
    }
    if not config.tie_embeddings:
        table[HEAD] = Slot(("head",), None, False, declared["head"].shape)
    for layer in range(config.num_layers):
        for key, (name, transposed) in _LAYER_KEYS.items():
            if name in declared["layers"]:
                shape = declared["layers"][name].shape[1:]
                shape = shape[::-1] if transposed else shape
                table[_LAYER.format(layer) + key] = Slot(("layers", name), layer, transposed, shape)
    return table
