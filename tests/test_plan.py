"""The planner: exact where it counts, close to XLA's own analysis where it reckons, and of use."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import subprocess
import sys

import jax
import pytest

from vict_jax import sharding
from vict_jax.config import default_config, from_config_dict
from vict_jax.learner.microbatch import init_state
from vict_jax.learner.optimizer import OptimizerOptions, make_optimizer
from vict_jax.models import decoder
from vict_jax.models.cache import init_cache
from vict_jax.models.config import LoraOptions, ModelConfig
from vict_jax.models.options import ModelOptions
from vict_jax.plan import devices, programs, report, search, settings
from vict_jax.plan.estimate import Setting, estimate, shard_bytes
from vict_jax.plan.presets import HF_CONFIGS

ROOT = pathlib.Path(__file__).parents[1]
SCRIPT = pathlib.Path(__file__).with_name("plan_compiled.py")
MODEL = ModelConfig(
    vocab_size=64, num_layers=2, d_model=32, num_heads=4, num_kv_heads=2, head_dim=8, d_ff=64, qk_norm=True
)
SETTING = Setting(
    model=MODEL,
    mesh=(1, 1, 1),
    rows=16,
    length=64,
    micro_rows=4,
    width=32,
    sample_rows=8,
    slots=64,
    reference=True,
)


def compiled(which, count):
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={count}"
    env = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(SCRIPT), which]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


# --- against XLA ----------------------------------------------------------------------------------


def test_small_models_on_eight_devices_within_a_tenth():
    found = compiled("small", 8)
    assert len(found) == 4
    for name, result in found.items():
        for program, row in result.items():
            assert row["ratio"] == pytest.approx(1, abs=0.1), (name, program, row)


def test_a_training_step_of_qwen_7b_on_64_devices_within_a_tenth():
    """Loss, backward and optimizer, lowered and compiled on abstract values: no weights."""
    step = compiled("qwen", 64)["qwen2.5-7b"]
    parameters = 7_615_616_512
    assert step["accumulate"]["arguments"] > 2 * 4 * parameters / 64  # weights and gradients
    assert step["apply"]["arguments"] > 4 * 4 * parameters / 64  # and both moments
    for row in step.values():
        assert row["ratio"] == pytest.approx(1, abs=0.1)


# --- what is exact --------------------------------------------------------------------------------


@pytest.mark.parametrize("lora", [None, LoraOptions(rank=4, alpha=8.0, targets=frozenset({"q_proj"}))])
def test_weights_and_moments_are_those_of_a_run(lora):
    model = dataclasses.replace(MODEL, lora=lora)
    params = decoder.init(model, jax.random.key(0))[1]
    placed = jax.device_put(
        params, sharding.param_shardings(sharding.make_mesh(), params, decoder.logical_axes(model))
    )
    trained, frozen = programs.split_params(model, placed)
    state = init_state(trained, make_optimizer(OptimizerOptions(), total_steps=1))
    found = estimate(dataclasses.replace(SETTING, model=model), "cpu")
    nbytes = lambda tree: sum(x.nbytes for x in jax.tree.leaves(tree))  # noqa: E731
    assert found.resident["weights"] == nbytes(trained)
    assert found.resident["frozen weights"] == nbytes(frozen)
    assert found.resident["moments"] == nbytes(state.opt_state) + state.step.nbytes
    assert found.resident["reference"] == (0 if lora else nbytes(trained))
    assert found.phases["gradient"]["gradients"] == nbytes(trained)


def test_the_cache_is_that_of_the_sampler():
    cache = init_cache(MODEL, SETTING.sample_rows, SETTING.slots)
    planned = estimate(SETTING, "cpu").phases["sampling"]["key/value cache"]
    assert planned == sum(x.nbytes for x in jax.tree.leaves(cache))


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("qwen2.5-1.5b", 1_543_714_304), ("qwen2.5-7b", 7_615_616_512), ("qwen3-8b", 8_190_735_360)],
)
def test_published_models_have_their_published_size(name, parameters):
    model = ModelOptions().read(HF_CONFIGS[name])
    params = programs.abstract_params(model, dataclasses.replace(SETTING, mesh=(1, 1, 1)).abstract_mesh)
    assert shard_bytes(params) == 4 * parameters


def test_a_mesh_divides_what_it_splits():
    whole = estimate(SETTING, "cpu")
    split = estimate(dataclasses.replace(SETTING, mesh=(1, 2, 2)), "cpu")
    for name in ("weights", "moments", "reference"):
        assert 0.25 <= split.resident[name] / whole.resident[name] < 0.27  # norms are on every device
    assert split.resident["batch"] < whole.resident["batch"]
    with pytest.raises(ValueError, match="num_kv_heads=2 is not divisible by mesh axis 'tensor' of size 4"):
        estimate(dataclasses.replace(SETTING, mesh=(1, 1, 4)), "cpu")
    with pytest.raises(ValueError, match=r"numbers of rows \[4\] are not divisible by data \* fsdp = 8"):
        estimate(dataclasses.replace(SETTING, mesh=(8, 1, 1)), "cpu")


# --- devices and the search -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "platform", "count"),
    [
        ("v5p-64", "tpu", 32),
        ("v5e-16", "tpu", 16),
        ("h100x8", "gpu", 8),
        ("a100-40gb", "gpu", 1),
        ("cpux8", "cpu", 8),
    ],
)
def test_devices_by_name(name, platform, count):
    fleet = devices.parse_fleet(name)
    assert (fleet.platform, fleet.count) == (platform, count)
    assert fleet.usable > 2**30


@pytest.mark.parametrize("name", ["v5p-63", "h100-8", "abacus", "cpu-4"])
def test_unknown_devices_are_named(name):
    with pytest.raises(ValueError, match=f"--device='{name}'"):
        devices.parse_fleet(name)


def big(**changes):
    model = ModelOptions(dtype="bfloat16").read(HF_CONFIGS["qwen2.5-7b"])
    return dataclasses.replace(SETTING, model=model, rows=256, length=2048, slots=2048, width=1024, **changes)


def test_what_is_suggested_fits_and_less_of_it_would_not():
    fleet = devices.parse_fleet("h100x8")
    setting, found = search.suggest(big(sample_rows=64), fleet)
    assert found.peak <= fleet.usable
    assert setting.count == 8
    assert setting.mesh[1] > 1  # 16 bytes a parameter, twice 7.6 thousand million, are not on one device
    first = next(search.candidates(big(sample_rows=64), fleet))
    assert first.mesh == (8, 1, 1)
    assert estimate(first, "gpu").peak > fleet.usable


def test_rollouts_in_play_during_an_update_keep_their_policy_and_cache():
    plain, stale = (estimate(dataclasses.replace(SETTING, stale=on), "tpu") for on in (False, True))
    policy, cache = plain.resident["weights"], plain.phases["sampling"]["key/value cache"]
    for phase, more in (("gradient", policy + cache), ("optimizer", policy + cache), ("sampling", policy)):
        assert stale.total(phase) - plain.total(phase) == more > 0


def test_what_cannot_fit_has_no_suggestion():
    assert search.suggest(big(sample_rows=64), devices.parse_fleet("v5e-4")) is None
    assert "nothing that was tried fits" in report.suggestion(None, devices.parse_fleet("v5e-4"))


def test_remat_and_adapters_save_what_they_should():
    mesh = {"mesh": (1, 8, 1), "micro_rows": 8, "sample_rows": 64}
    plain = estimate(big(**mesh), "gpu")
    model = dataclasses.replace(big().model, remat=True)
    recomputed = estimate(dataclasses.replace(big(**mesh), model=model), "gpu")
    kept = "kept for the backward pass"
    assert recomputed.phases["gradient"][kept] < 0.2 * plain.phases["gradient"][kept]
    lora = LoraOptions(rank=16, alpha=32.0, targets=frozenset({"q_proj", "v_proj"}))
    adapted = estimate(dataclasses.replace(big(**mesh), model=dataclasses.replace(model, lora=lora)), "gpu")
    assert adapted.resident["moments"] < 0.01 * plain.resident["moments"]
    assert adapted.resident["reference"] == 0


def test_a_setting_comes_from_a_config():
    config = default_config("alfworld")
    config.env.max_steps = 10
    config.rollout.update(context="window", max_context=256, max_new_tokens=12)
    config.train.update(groups=2, rollouts=3)
    plain = from_config_dict(config)
    setting = settings.from_config(plain, model=settings.model_of(plain), devices=1)
    assert (setting.rows, setting.length, setting.width) == (2 * 3 * 10, 256, 32)
    assert setting.model.vocab_size == config.model.vocab_size
    config.fission.update(branches=2, recoveries=3)
    more = settings.from_config(from_config_dict(config), model=setting.model, devices=1)
    assert more.rows == (2 + 3) * 3 * 10


def test_the_command_prints_a_table_and_flags():
    command = [sys.executable, "-m", "vict_jax.plan", "--config=configs/quickstart.py", "--device=v5e-8"]
    command += ["--model=qwen2.5-1.5b", "--config.mesh.fsdp=-1", "--config.model.remat=True"]
    env = {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    assert "8 of them in the mesh data=1 fsdp=8 tensor=1" in done.stdout
    assert any(line.startswith("weights") for line in lines)
    assert any(line.startswith("suggested: --config.mesh.data=") for line in lines)
