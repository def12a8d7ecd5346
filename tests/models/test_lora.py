"""Adapters: what they add to the forward, where they are off, merged or in a file of PEFT's."""

from __future__ import annotations

import dataclasses
import functools
import json
import pathlib
import re

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

from vict_jax import sharding
from vict_jax.models import cache, config, decoder, hf, lora, peft

TARGETS = tuple(config.LORA_TARGETS)
BASE = config.ModelConfig(
    vocab_size=40, num_layers=2, d_model=20, num_heads=6, num_kv_heads=2, head_dim=4, d_ff=28
)
LOGITS_TOLERANCE = 1e-5


def options(*targets: str, rank: int = 3, alpha: float = 12.0) -> config.LoraOptions:
    return config.LoraOptions(rank=rank, alpha=alpha, targets=frozenset(targets or TARGETS))


def make(*targets: str, **changes: object) -> tuple[config.ModelConfig, nnx.State, nnx.State]:
    """(configuration, base, adapters with a B that is not 0)."""
    mesh = sharding.make_mesh()
    model = dataclasses.replace(BASE, **changes)  # type: ignore[arg-type]
    base = jax.jit(lambda: decoder.init(model, jax.random.key(0))[1])()
    base = jax.device_put(base, sharding.param_shardings(mesh, base, decoder.logical_axes(model)))
    model = dataclasses.replace(model, lora=options(*targets))
    adapters, rng = lora.init(model, jax.random.key(1), mesh), np.random.default_rng(2)

    def moved(x: jax.Array) -> jax.Array:
        return jax.device_put(np.asarray(x) + 0.1 * rng.normal(size=x.shape).astype(np.float32), x.sharding)

    return model, base, jax.tree.map(moved, adapters)


IDS = np.random.default_rng(0).integers(0, BASE.vocab_size, (3, 9)).astype(np.int32)


@functools.partial(jax.jit, static_argnums=0)
def _forward(graphdef: nnx.GraphDef, params: nnx.State) -> jax.Array:
    position = jnp.broadcast_to(jnp.arange(IDS.shape[1]), IDS.shape)
    hidden, _ = decoder.apply(graphdef, params, jnp.asarray(IDS), jnp.ones_like(position), position)
    return decoder.logits(graphdef, params, hidden)


def logits(model: config.ModelConfig, params: nnx.State) -> np.ndarray:
    """f32[3, 9, v] of `IDS`, uncached."""
    return np.asarray(_forward(decoder.structure(model), params))


def with_products(model: config.ModelConfig, base: nnx.State, adapters: nnx.State) -> nnx.State:
    """The base with W + alpha / r A B computed layer by layer in NumPy."""
    assert model.lora is not None
    pure = jax.tree.map(np.array, nnx.to_pure_dict(base))
    parts = nnx.to_pure_dict(adapters)["layers"]
    for target in model.lora.targets:
        name = target.removesuffix("_proj")
        for layer in range(model.num_layers):
            a, b = (np.asarray(parts[f"{name}_lora_{side}"][layer], np.float64) for side in "ab")
            pure["layers"][name][layer] += model.lora.alpha / model.lora.rank * a @ b
    return jax.tree.map(
        lambda leaf, value: jnp.asarray(value), base, nnx.State(jax.tree.map(nnx.Param, pure))
    )


# --- the forward ----------------------------------------------------------------------------------


def test_new_adapters_change_no_bit_and_are_those_of_peft() -> None:
    model = dataclasses.replace(BASE, lora=options(), param_dtype="bfloat16", num_layers=6, d_model=60)
    mesh = sharding.make_mesh()
    base = decoder.init(lora.without_adapters(model), jax.random.key(0))[1]
    adapters = lora.init(model, jax.random.key(1), mesh)
    np.testing.assert_array_equal(
        logits(model, lora.combine(base, adapters)), logits(lora.without_adapters(model), base)
    )
    for name, value in nnx.to_pure_dict(adapters)["layers"].items():
        assert value.dtype == jnp.float32  # whatever the base
        if name.endswith("_b"):
            assert not value.any()
            continue
        # Kaiming's uniform with a = sqrt(5): bound sqrt(6 / ((1 + 5) in)), variance bound^2 / 3.
        bound = value.shape[1] ** -0.5
        assert 0.9 * bound < float(jnp.abs(value).max()) <= bound
        assert float(value.std()) == pytest.approx(bound / 3**0.5, rel=0.1)
    assert lora.combine(None, base) is base


@pytest.mark.parametrize("target", [*TARGETS, "all"])
def test_an_adapter_adds_its_product_to_the_weight(target: str) -> None:
    model, base, adapters = make()
    if target != "all":  # every other B is 0
        kept = f"{target.removesuffix('_proj')}_lora_b"
        parts = nnx.to_pure_dict(adapters)["layers"]
        off = {name: x if name.endswith("_a") or name == kept else 0 * x for name, x in parts.items()}
        adapters = nnx.State({"layers": jax.tree.map(nnx.LoRAParam, off)})
    plain = lora.without_adapters(model)
    got = logits(model, lora.combine(base, adapters))
    for whole in (with_products(model, base, adapters), lora.merge(model, base, adapters)):
        np.testing.assert_allclose(got, logits(plain, whole), atol=LOGITS_TOLERANCE)
    assert np.abs(got - logits(plain, base)).max() > 1e-2


def test_merging_shares_what_has_no_adapter_and_keeps_the_precision() -> None:
    model, base, adapters = make("q_proj", param_dtype="bfloat16")
    merged = lora.merge(model, base, adapters)
    assert merged["layers"]["k"][...] is base["layers"]["k"][...]
    assert merged["layers"]["q"][...].dtype == jnp.bfloat16
    expected = with_products(model, jax.tree.map(lambda x: x.astype(jnp.float32), base), adapters)
    np.testing.assert_array_equal(
        merged["layers"]["q"][...], expected["layers"]["q"][...].astype(jnp.bfloat16)
    )
    with pytest.raises(ValueError, match="has no adapters"):
        lora.merge(lora.without_adapters(model), base, adapters)


@pytest.mark.parametrize("extra", [{}, {"qk_norm": True, "qkv_bias": False}, {"o_bias": True}])
def test_cached_decoding_equals_the_uncached_forward(extra: dict[str, bool]) -> None:
    model, base, adapters = make(**extra)
    params, graphdef = lora.combine(base, adapters), decoder.structure(model)
    expected = logits(model, params)

    @jax.jit
    def decode(params: nnx.State) -> jax.Array:
        kv = cache.init_cache(model, IDS.shape[0], 16)
        ids, real = jnp.asarray(IDS), jnp.ones(IDS.shape, jnp.int32)
        position = jnp.broadcast_to(jnp.arange(IDS.shape[1]), IDS.shape)
        hidden, kv = decoder.apply(graphdef, params, ids[:, :4], real[:, :4], position[:, :4], kv, fresh=True)
        found = [decoder.logits(graphdef, params, hidden)]
        separate = decoder.unstack(graphdef, params)
        for at in range(4, IDS.shape[1]):
            one = slice(at, at + 1)
            hidden, kv = decoder.apply(*separate, ids[:, one], real[:, one], position[:, one], kv)
            found.append(decoder.logits(*separate, hidden))
        return jnp.concatenate(found, axis=1)

    np.testing.assert_allclose(decode(params), expected, atol=LOGITS_TOLERANCE)


def test_the_compute_dtype_is_that_of_the_model() -> None:
    model, base, adapters = make(dtype="bfloat16", param_dtype="bfloat16")
    params, graphdef = lora.combine(base, adapters), decoder.structure(model)
    ones = jnp.ones((1, 4), jnp.int32)
    hidden, _ = decoder.apply(graphdef, params, ones, ones, jnp.arange(4)[None])
    assert hidden.dtype == jnp.bfloat16
    jaxpr = jax.make_jaxpr(lambda p: decoder.apply(graphdef, p, ones, ones, jnp.arange(4)[None])[0])(params)
    products = re.findall(
        r"(\w+)\[4,(?:3|28)\] = dot_general", str(jaxpr)
    )  # x A; x W and (x A) B of gate and up
    assert len(products) == 7 + 4
    assert set(products) == {"bf16"}


def test_options_are_checked() -> None:
    for bad, message in (
        ({"rank": 0}, "rank of LoRA must be a positive integer, got 0"),
        ({"rank": True}, "rank of LoRA must be a positive integer, got True"),
        ({"alpha": 0.0}, r"alpha of LoRA must be a positive number, got 0\.0"),
        ({"targets": frozenset()}, r"targets of LoRA must be some of \['q_proj', .*\], got \[\]"),
        ({"targets": frozenset({"q_proj", "lm_head"})}, r"got \['lm_head', 'q_proj'\]"),
    ):
        with pytest.raises(ValueError, match=message):
            config.LoraOptions(**{"rank": 2, "alpha": 1.0, "targets": frozenset({"q_proj"}), **bad})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="has no adapters"):
        lora.init(BASE, jax.random.key(0), sharding.make_mesh())


# --- files ----------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path: pathlib.Path) -> tuple[pathlib.Path, config.ModelConfig, nnx.State, nnx.State]:
    """An adapter directory, and what is in it."""
    model, base, adapters = make("q_proj", "down_proj")
    peft.save(tmp_path / "adapters", model, adapters, base_model="base")
    return tmp_path / "adapters", model, base, adapters


def test_files_have_the_names_and_orientation_of_peft(saved: tuple) -> None:
    folder, model, _, adapters = saved
    tensors = load_file(folder / "adapter_model.safetensors")
    stems = ("self_attn.q_proj", "mlp.down_proj")
    assert tensors.keys() == {
        f"base_model.model.model.layers.{layer}.{stem}.lora_{side}.weight"
        for layer in range(model.num_layers)
        for stem in stems
        for side in "AB"
    }
    a, b = (tensors[f"base_model.model.model.layers.1.mlp.down_proj.lora_{side}.weight"] for side in "AB")
    np.testing.assert_array_equal(a, adapters["layers"]["down_lora_a"][...][1].T)
    np.testing.assert_array_equal(b, adapters["layers"]["down_lora_b"][...][1].T)
    written = json.loads((folder / "adapter_config.json").read_text())
    assert (written["r"], written["lora_alpha"]) == (3, 12.0)
    assert written["target_modules"] == ["q_proj", "down_proj"]
    assert written["base_model_name_or_path"] == "base"


def test_round_trip_is_exact(saved: tuple) -> None:
    folder, model, _, adapters = saved
    read, again = peft.load(folder, lora.without_adapters(model), sharding.make_mesh())
    assert read == model
    assert jax.tree.structure(again) == jax.tree.structure(adapters)
    for x, y in zip(jax.tree.leaves(again), jax.tree.leaves(adapters), strict=True):
        assert x.sharding.spec == jax.tree.leaves(y)[0].sharding.spec
        np.testing.assert_array_equal(x, y)
    with pytest.raises(FileExistsError, match="overwrite=True"):
        peft.save(folder, model, adapters, base_model="base")
    peft.save(folder, model, adapters, base_model="other", overwrite=True)
    assert "other" in (folder / "adapter_config.json").read_text()


def rewrite(folder: pathlib.Path, **changes: object) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"peft_type": "IA3"}, "unsupported peft_type 'IA3'"),
        ({"use_dora": True}, "unsupported use_dora True"),
        ({"use_rslora": True}, "unsupported use_rslora True"),
        ({"bias": "all"}, "unsupported bias 'all' .* allowed: 'none'"),
        ({"lora_dropout": 0.1}, r"unsupported lora_dropout 0\.1 .* allowed: 0\.0"),
        ({"rank_pattern": {"q_proj": 4}}, "unsupported rank_pattern"),
        ({"modules_to_save": ["lm_head"]}, r"unsupported modules_to_save \['lm_head'\]"),
        ({"target_modules": "all-linear"}, "target_modules .* must be a list of names, got 'all-linear'"),
        ({"target_modules": ["q_proj", "c_attn"]}, r"targets of LoRA must be some of .* got \['c_attn'"),
        ({"r": None}, "rank of LoRA must be a positive integer, got None"),
        ({"r": 4}, r"lora_A.weight' in .* has shape \(3, 20\), expected \(4, 20\)"),
        ({"target_modules": ["q_proj"]}, r"has unknown tensors: .*mlp\.down_proj"),
        ({"target_modules": ["q_proj", "down_proj", "up_proj"]}, r"lacks tensors: .*mlp\.up_proj"),
    ],
)
def test_settings_that_do_not_fit_are_refused(saved: tuple, changes: dict[str, object], message: str) -> None:
    folder, model, _, _ = saved
    rewrite(folder, **changes)
    with pytest.raises(ValueError, match=message):
        peft.load(folder, lora.without_adapters(model), sharding.make_mesh())


def test_adapters_of_other_models_are_refused(saved: tuple) -> None:
    folder, model, _, adapters = saved
    mesh, base = sharding.make_mesh(), lora.without_adapters(model)
    with pytest.raises(ValueError, match="the configuration says LoraOptions"):
        peft.load(folder, dataclasses.replace(base, lora=options("q_proj", "down_proj", rank=5)), mesh)
    with pytest.raises(ValueError, match=r"lacks tensors: .*layers\.2\.mlp"):
        peft.load(folder, dataclasses.replace(base, num_layers=3), mesh)
    with pytest.raises(ValueError, match=r"the adapters have shapes .* the configuration says"):
        peft.save(folder, dataclasses.replace(model, num_layers=3), adapters, base_model="", overwrite=True)
    path = folder / "adapter_model.safetensors"
    tensors = load_file(path)
    key = next(iter(tensors))
    save_file({**tensors, key: tensors[key].astype(np.int32)}, path)
    with pytest.raises(ValueError, match="is I32, expected one of"):
        peft.load(folder, base, mesh)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ValueError, match="damaged or no safetensors file"):
        peft.load(folder, base, mesh)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"no adapter_model\.safetensors"):
        peft.load(folder, base, mesh)


def test_half_precision_files_are_read(saved: tuple) -> None:
    folder, model, _, adapters = saved
    path = folder / "adapter_model.safetensors"
    save_file({key: value.astype(ml_dtypes.bfloat16) for key, value in load_file(path).items()}, path)
    _, read = peft.load(folder, lora.without_adapters(model), sharding.make_mesh())
    for x, y in zip(jax.tree.leaves(read), jax.tree.leaves(adapters), strict=True):
        assert x.dtype == jnp.float32
        np.testing.assert_array_equal(x, y.astype(jnp.bfloat16).astype(jnp.float32))


def test_a_model_with_adapters_is_not_exported_without_them(tmp_path: pathlib.Path) -> None:
    model, base, adapters = make()
    with pytest.raises(ValueError, match="merge the adapters first"):
        hf.export(tmp_path / "x", model, lora.combine(base, adapters), tokenizer=None, generation_config=None)
    assert not (tmp_path / "x").exists()


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # in peft
@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "llama"])
def test_peft_computes_the_same_logits(kind: str, tmp_path: pathlib.Path) -> None:
    """The `peft` package over an exported base, and back: what it saves is read."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    package = pytest.importorskip("peft")
    biases = {
        "qwen2": {},
        "qwen3": {"qkv_bias": False, "qk_norm": True},
        "llama": {"qkv_bias": False, "num_heads": 4, "head_dim": 6, "tie_embeddings": False},
    }
    model, base, adapters = make(**biases[kind])
    hf.export(tmp_path / "base", lora.without_adapters(model), base, tokenizer=None, generation_config=None)
    peft.save(tmp_path / "adapters", model, adapters, base_model=str(tmp_path / "base"))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.float32)
    theirs = package.PeftModel.from_pretrained(theirs, tmp_path / "adapters").eval()
    with torch.no_grad():
        expected = theirs(torch.from_numpy(IDS.astype(np.int64))).logits.numpy()
    difference = np.abs(logits(model, lora.combine(base, adapters)) - expected).max()
    assert difference < LOGITS_TOLERANCE
    theirs.save_pretrained(tmp_path / "again")
    read, again = peft.load(tmp_path / "again", lora.without_adapters(model), sharding.make_mesh())
    assert read == model
    jax.tree.map(np.testing.assert_array_equal, again, adapters)
    print(f"{kind}: largest difference from PEFT {difference:.2e}")
