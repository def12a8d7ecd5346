"""Checkpoint directories: round trips that are equal to the bit, and an error for everything that is off."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.models import oracle
from vict_jax import sharding
from vict_jax.models import config as C
from vict_jax.models import decoder, hf
from vict_jax.models.hf_keys import EMBED, HEAD, key_table
from vict_jax.rollout.tokenizer import load_tokenizer, train_tokenizer

MESH = sharding.make_mesh()
SIZES = {
    "vocab_size": 29,
    "num_layers": 2,
    "d_model": 12,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 6,
    "d_ff": 17,
}
GENERATION = {"bos_token_id": 1, "eos_token_id": [2, 5], "pad_token_id": 0, "temperature": 0.7}


def make(**change):
    config = C.ModelConfig(**{**SIZES, **change})
    return config, oracle.random_params(config, 0)[1]


def write(folder: pathlib.Path, **change) -> pathlib.Path:
    """A checkpoint directory of a random model."""
    config, params = make(**change)
    hf.export(folder, config, params, tokenizer=None, generation_config=None)
    return folder


def edit(folder: pathlib.Path, change) -> None:
    """Apply `change` to the tensors of a checkpoint of one file."""
    tensors = load_file(folder / hf.WEIGHTS)
    change(tensors)
    save_file(tensors, folder / hf.WEIGHTS)


def edit_config(folder: pathlib.Path, **change) -> None:
    path = folder / hf.CONFIG
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))


def split(folder: pathlib.Path, assign) -> None:
    """Spread a checkpoint of one file over `a.safetensors` and `b.safetensors` as `assign(key)` says."""
    tensors, files = load_file(folder / hf.WEIGHTS), {"model-a.safetensors": {}, "model-b.safetensors": {}}
    (folder / hf.WEIGHTS).unlink()
    for key, value in tensors.items():
        files[assign(key)][key] = value
    for name, part in files.items():
        save_file(part, folder / name)
    (folder / hf.INDEX).write_text(json.dumps({"weight_map": {key: assign(key) for key in tensors}}))


def by_layer(key: str) -> str:
    return "model-a.safetensors" if "layers.0" in key else "model-b.safetensors"


def assert_equal_trees(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


# Configuration class and its settings, precision of the file and of the parameters, bytes of a shard.
ROUND_TRIPS = [
    ("Qwen2Config", {"tie_word_embeddings": True}, "float32", "float32", "5GB"),
    ("Qwen2Config", {"tie_word_embeddings": False}, "bfloat16", "bfloat16", "5KB"),
    ("Qwen3Config", {"tie_word_embeddings": True, "head_dim": 6}, "bfloat16", "float32", "5KB"),
    ("Qwen3Config", {"tie_word_embeddings": False, "head_dim": 10}, "float32", "float32", "5KB"),
    ("LlamaConfig", {"tie_word_embeddings": True}, "float16", "float32", "5GB"),
    ("LlamaConfig", {"tie_word_embeddings": False, "attention_bias": True}, "float32", "float32", "5KB"),
]


@pytest.mark.parametrize(("kind", "settings", "dtype", "param_dtype", "shard"), ROUND_TRIPS)
def test_round_trip_through_transformers(kind, settings, dtype, param_dtype, shard, tmp_path):
    """transformers -> load -> export -> transformers -> load: every bit of every tensor is the same."""
    torch = pytest.importorskip("torch", reason="torch is the optional extra `parity`")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    settings = {
        "vocab_size": 29,
        "hidden_size": 12,
        "intermediate_size": 17,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        **settings,
    }
    theirs = transformers.AutoModelForCausalLM.from_config(getattr(transformers, kind)(**settings))
    for parameter in theirs.parameters():  # norms and biases away from 1 and 0
        torch.nn.init.normal_(parameter)
    theirs = theirs.to(getattr(torch, dtype))
    theirs.save_pretrained(tmp_path / "first", max_shard_size=shard)
    assert (tmp_path / "first" / hf.INDEX).is_file() is (shard == "5KB")

    config, params = hf.load(tmp_path / "first", MESH, param_dtype=param_dtype)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype(param_dtype)}
    for key, slot in key_table(config).items():
        value = params[slot.path[0]] if slot.layer is None else params["layers"][slot.path[1]][slot.layer]
        value = np.asarray(value[...], np.float32)
        expected = theirs.get_parameter(key).detach().float().numpy()
        np.testing.assert_array_equal(value.T if slot.transposed else value, expected)

    size = {"5GB": 5 * 10**9, "5KB": 5000}[shard]
    hf.export(
        tmp_path / "ours", config, params,
        tokenizer=None, generation_config=GENERATION, dtype=dtype, max_shard_size=size,
    )  # fmt: skip
    again, info = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "ours", output_loading_info=True
    )
    assert not any(info.values()), info
    assert again.dtype == getattr(torch, dtype)
    expected = theirs.state_dict()
    assert set(expected) == set(again.state_dict())
    for key, value in again.state_dict().items():
        assert torch.equal(value, expected[key]), key
    again.save_pretrained(tmp_path / "second", max_shard_size=shard)
    assert_equal_trees(hf.load(tmp_path / "second", MESH, param_dtype=param_dtype)[1], params)


def test_stories_round_trip(shared_dir, tmp_path):
    """Of real weights with their tokenizer: every tensor, the token ids and the encoding are the same."""
    source = shared_dir / "data/models/stories260K"
    config, params = hf.load(source, MESH)
    hf.export(
        tmp_path / "out",
        config,
        params,
        tokenizer=load_tokenizer(source),
        generation_config=hf.load_generation_config(source),
    )
    before, after = load_file(source / hf.WEIGHTS), load_file(tmp_path / "out" / hf.WEIGHTS)
    assert before.keys() == after.keys()
    for key in before:
        np.testing.assert_array_equal(before[key], after[key])
    assert hf.load_config(tmp_path / "out") == config
    assert hf.load_generation_config(tmp_path / "out") == hf.load_generation_config(source)
    text = "Once upon a time, Zoë had 3 cats."
    assert load_tokenizer(tmp_path / "out")(text).input_ids == load_tokenizer(source)(text).input_ids


def test_export_writes_tokenizer_and_token_ids(tmp_path):
    transformers = pytest.importorskip("transformers")
    config, params = make()
    tokenizer = train_tokenizer(["go to the drawer 1"] * 3, 300)
    tokenizer.chat_template = "{{ messages[0]['content'] }}"
    hf.export(tmp_path / "out", config, params, tokenizer=tokenizer, generation_config=GENERATION)
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert loaded("go to").input_ids == tokenizer("go to").input_ids
    assert loaded.chat_template == tokenizer.chat_template
    assert hf.load_generation_config(tmp_path / "out") == GENERATION
    written = json.loads((tmp_path / "out" / hf.CONFIG).read_text())
    assert {name: written[name] for name in hf.TOKEN_IDS} == {name: GENERATION[name] for name in hf.TOKEN_IDS}
    (tmp_path / "out" / hf.GENERATION_CONFIG).unlink()
    assert hf.load_generation_config(tmp_path / "out") == {n: GENERATION[n] for n in hf.TOKEN_IDS}


def test_every_weight_has_a_key():
    for change in (
        {"qkv_bias": True, "tie_embeddings": False},
        {"qkv_bias": True, "o_bias": True, "qk_norm": True},
    ):
        config, _ = make(**change)
        paths = {slot.path: [] for slot in key_table(config).values()}
        for slot in key_table(config).values():
            paths[slot.path].append(slot.layer)
        declared = {
            tuple(entry.key for entry in path): leaf
            for path, leaf in jax.tree_util.tree_leaves_with_path(decoder.weights(config))
        }
        assert paths.keys() == declared.keys()
        for path, layers in paths.items():
            assert layers == ([0, 1] if path[0] == "layers" else [None])


def test_shards_of_an_export_hold_at_most_the_limit(tmp_path):
    config, params = make(tie_embeddings=False)
    hf.export(tmp_path / "out", config, params, tokenizer=None, generation_config=None, max_shard_size=1500)
    index = json.loads((tmp_path / "out" / hf.INDEX).read_text())
    files = sorted(path.name for path in (tmp_path / "out").glob("*.safetensors"))
    assert len(files) > 3
    assert files == sorted(set(index["weight_map"].values()))
    assert files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    total = 0
    for name in files:
        sizes = [value.nbytes for value in load_file(tmp_path / "out" / name).values()]
        assert sum(sizes) <= 1500 or len(sizes) == 1
        total += sum(sizes)
    assert index["metadata"]["total_size"] == total
    assert_equal_trees(hf.load(tmp_path / "out", MESH)[1], params)


def test_eight_devices_read_only_their_parts():
    """On a (2, 2, 2) mesh: equal values, right shards, each byte read once, no read of a whole matrix."""
    script = pathlib.Path(__file__).with_name("sharded_checkpoint.py")
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
    env = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(script.parents[2])}
    done = subprocess.run(
        [sys.executable, str(script)], env=env, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout)
    assert report["equal"]
    assert report["exported_equal"]
    assert report["shard"] == [2, 8, 8]
    assert report["read"] == report["size"]
    assert report["largest"] == report["matrix"] // 4


def test_float16_and_bfloat16_files_become_float32(tmp_path):
    config, params = make()
    for dtype, exact in (("float16", np.float16), ("bfloat16", jnp.bfloat16)):
        folder = tmp_path / dtype
        hf.export(folder, config, params, tokenizer=None, generation_config=None, dtype=dtype)
        _, loaded = hf.load(folder, MESH)
        for a, b in zip(jax.tree.leaves(loaded), jax.tree.leaves(params), strict=True):
            assert a.dtype == jnp.float32
            np.testing.assert_array_equal(a, np.asarray(b).astype(exact).astype(np.float32))


def test_a_tied_head_in_the_file_must_equal_the_embedding(tmp_path):
    folder = write(tmp_path / "m")
    edit(folder, lambda t: t.update({HEAD: t[EMBED].copy()}))
    _, params = hf.load(folder, MESH)
    assert_equal_trees(params, make()[1])

    def differ(tensors):
        tensors[HEAD][17, 3] += 1e-6

    edit(folder, differ)
    with pytest.raises(ValueError, match=r"lm_head.*differs from 'model.embed_tokens.weight'.*tie_word"):
        hf.load(folder, MESH)


def test_derived_buffers_are_ignored_and_only_those(tmp_path):
    folder = write(tmp_path / "m")
    buffer = np.ones(3, np.float32)
    edit(folder, lambda t: t.update({"model.layers.1.self_attn.rotary_emb.inv_freq": buffer}))
    assert_equal_trees(hf.load(folder, MESH)[1], make()[1])
    edit(folder, lambda t: t.update({"model.layers.1.self_attn.rotary_emb.scale": buffer}))
    with pytest.raises(ValueError, match=r"rotary_emb.scale' F32\(3,\) in .*model.safetensors"):
        hf.load(folder, MESH)


NORM_1 = "model.layers.1.input_layernorm.weight"
GATE_0 = "model.layers.0.mlp.gate_proj.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop(NORM_1), rf"lacks 1 tensors: '{NORM_1}' \(12,\)"),
        (lambda t: t.update({"model.layers.2.mlp.up_proj.weight": t[GATE_0]}), r"unknown to a qwen2.*rs\.2"),
        (lambda t: t.update({"model.layers.0.self_attn.q_norm.weight": t[NORM_1]}), r"unknown.*q_norm"),
        (lambda t: t.update({GATE_0: t[GATE_0].T.copy()}), r"gate_proj.* \(12, 17\), expected \(17, 12\)"),
        (lambda t: t.update({GATE_0: t[GATE_0].astype(np.int8)}), r"gate_proj.*is I8, expected one of"),
        (lambda t: t.update({HEAD: t[EMBED][:-1].copy()}), r"lm_head.*shape \(28, 12\), expected \(29, 12\)"),
    ],
)  # fmt: skip
def test_wrong_tensors_raise_with_name_and_expectation(change, message, tmp_path):
    folder = write(tmp_path / "m")
    edit(folder, change)
    with pytest.raises(ValueError, match=message):
        hf.load(folder, MESH)


def test_an_untied_model_needs_its_head(tmp_path):
    folder = write(tmp_path / "m")
    edit_config(folder, tie_word_embeddings=False)
    with pytest.raises(ValueError, match=r"lacks 1 tensors: 'lm_head.weight' \(29, 12\)"):
        hf.load(folder, MESH)


def test_shards_by_index(tmp_path):
    folder = write(tmp_path / "m")
    split(folder, by_layer)
    assert_equal_trees(hf.load(folder, MESH)[1], make()[1])


def test_wrong_index_raises(tmp_path):
    folder = write(tmp_path / "m")
    split(folder, by_layer)
    index = json.loads((folder / hf.INDEX).read_text())

    def rewrite(change):
        (folder / hf.INDEX).write_text(json.dumps({"weight_map": {**index["weight_map"], **change}}))

    rewrite({GATE_0: "model-b.safetensors"})
    with pytest.raises(ValueError, match=r"gate_proj.* is in .*model-a.*expects it in model-b"):
        hf.load(folder, MESH)
    rewrite({GATE_0: "model-c.safetensors"})
    with pytest.raises(FileNotFoundError, match=r"names \['model-c.safetensors'\], which are not"):
        hf.load(folder, MESH)
    rewrite({GATE_0: "../model-a.safetensors"})
    with pytest.raises(ValueError, match=r"gate_proj.*must be in a file of the folder.*\.\./model-a"):
        hf.load(folder, MESH)
    (folder / hf.INDEX).write_text("{}")
    with pytest.raises(ValueError, match="no weight_map"):
        hf.load(folder, MESH)


def test_a_tensor_in_two_files_raises(tmp_path):
    folder = write(tmp_path / "m")
    split(folder, by_layer)
    tensors = load_file(folder / "model-b.safetensors")
    save_file({**tensors, GATE_0: np.zeros((17, 12), np.float32)}, folder / "model-b.safetensors")
    with pytest.raises(ValueError, match=r"duplicate key '.*gate_proj.weight': in .*model-a.*model-b"):
        hf.load(folder, MESH)


def test_a_file_that_the_index_does_not_name_raises(tmp_path):
    folder = write(tmp_path / "m")
    shutil.copy(folder / hf.WEIGHTS, tmp_path / "old")
    split(folder, by_layer)
    shutil.copy(tmp_path / "old", folder / hf.WEIGHTS)
    with pytest.raises(ValueError, match=r"\['model.safetensors'\], which .*index.json does not name"):
        hf.load(folder, MESH)


def test_missing_and_damaged_files_raise(tmp_path):
    folder = write(tmp_path / "m")
    whole = (folder / hf.WEIGHTS).read_bytes()
    for bad in (whole[: len(whole) // 2], b"PK\x03\x04" + whole[4:], b""):
        (folder / hf.WEIGHTS).write_bytes(bad)
        with pytest.raises(ValueError, match=r"model.safetensors is damaged or no safetensors file"):
            hf.load(folder, MESH)
    (folder / hf.WEIGHTS).unlink()
    (folder / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(FileNotFoundError, match=r"no model.safetensors and no .*other formats"):
        hf.load(folder, MESH)
    (folder / hf.CONFIG).write_text("{")
    with pytest.raises(ValueError, match=r"config.json is not JSON"):
        hf.load(folder, MESH)
    (folder / hf.CONFIG).write_text("[]")
    with pytest.raises(ValueError, match=r"config.json must hold a JSON object, got a list"):
        hf.load(folder, MESH)
    with pytest.raises(FileNotFoundError, match=r"no config.json in .*nowhere"):
        hf.load(tmp_path / "nowhere", MESH)


def test_export_refuses_what_is_there_unless_told(tmp_path):
    config, params = make()
    other = jax.tree.map(lambda x: x + 1, params)
    folder = write(tmp_path / "m")
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="not empty; pass overwrite=True"):
        hf.export(folder, config, other, tokenizer=None, generation_config=None)
    assert_equal_trees(hf.load(folder, MESH)[1], params)
    hf.export(folder, config, other, tokenizer=None, generation_config=None, overwrite=True)
    assert_equal_trees(hf.load(folder, MESH)[1], other)
    assert not (folder / "notes.txt").exists()
    (tmp_path / "empty").mkdir()
    hf.export(tmp_path / "empty", config, params, tokenizer=None, generation_config=None)
    with pytest.raises(FileExistsError, match="is a file"):
        hf.export(folder / hf.CONFIG, config, params, tokenizer=None, generation_config=None, overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "m"]


def test_a_failed_export_leaves_the_old_directory_and_nothing_else(tmp_path):
    config, params = make()
    folder = write(tmp_path / "m")

    def tensor(key):
        if "layers.1" in key:
            raise OSError("disk full")
        return np.zeros(key_table(config)[key].shape, np.float32)

    with pytest.raises(OSError, match="disk full"):
        hf.write_directory(
            folder, config, tensor, tokenizer=None, generation_config=None, dtype="float32", overwrite=True
        )
    assert [path.name for path in tmp_path.iterdir()] == ["m"]
    assert_equal_trees(hf.load(folder, MESH)[1], params)


def test_export_checks_its_arguments(tmp_path):
    config, params = make()
    rest = {"tokenizer": None, "generation_config": None}
    with pytest.raises(ValueError, match=r"\['layers'\]\['down'\] has shape \(2, 17, 12\).*\(2, 18, 12\)"):
        hf.export(tmp_path / "m", make(d_ff=18)[0], params, **rest)
    with pytest.raises(ValueError, match=r"\['head'\] has shape None, the configuration says \(29, 12\)"):
        hf.export(tmp_path / "m", make(tie_embeddings=False)[0], params, **rest)
    with pytest.raises(ValueError, match=r"dtype of the file must be one of .*'int8'"):
        hf.export(tmp_path / "m", config, params, dtype="int8", **rest)
    with pytest.raises(ValueError, match=r"max_shard_size.*got 0"):
        hf.export(tmp_path / "m", config, params, max_shard_size=0, **rest)
    config, params = make(qk_norm=True)
    with pytest.raises(ValueError, match="no HF model combines"):
        hf.export(tmp_path / "m", config, params, **rest)
    assert not any(tmp_path.iterdir())
