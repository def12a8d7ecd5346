"""What a run needs of each device, what fits, and what to set.

    python -m vict_jax.plan --config=configs/quickstart.py --device=cpu
    python -m vict_jax.plan --config=configs/x.py --model=qwen2.5-7b --device=v5p-128 --config.mesh.fsdp=-1
    python -m vict_jax.plan --config=configs/x.py --hf_config=DIR/config.json --device=h100x8
    python -m vict_jax.plan --config=configs/x.py --model=qwen2.5-7b --device=cpux64 --verify ...

Nothing is allocated and no device is needed. With --verify the programs of an update are compiled on abstract
values, for fake CPU devices, or for a TPU topology (--topology=v5e:8x8) where `libtpu` is installed, and the
compiler's own count is shown beside the planner's.
"""

from __future__ import annotations

import pathlib

import jax
from absl import flags
from ml_collections import config_flags

from launch import cli
from vict_jax import config as config_lib
from vict_jax.models.config import ModelConfig
from vict_jax.models.hf_files import read_json
from vict_jax.plan import report, settings, verify
from vict_jax.plan.devices import parse_fleet
from vict_jax.plan.estimate import Setting, estimate
from vict_jax.plan.presets import HF_CONFIGS
from vict_jax.plan.search import suggest

_CONFIG = config_flags.DEFINE_config_file("config", None, "config file", lock_config=True)
_DEVICE = flags.DEFINE_string("device", "cpu", "v5p-64, v5e-16, h100x8, cpu, cpux8, ...")
_MODEL = flags.DEFINE_enum("model", None, sorted(HF_CONFIGS), "a published model instead of the config's")
_HF_CONFIG = flags.DEFINE_string("hf_config", None, "config.json of a model instead of the config's")
_VERIFY = flags.DEFINE_bool("verify", False, "compile, and compare with XLA's analysis")
_TOPOLOGY = flags.DEFINE_string("topology", None, "with --verify: a TPU topology, e.g. v5e:8x8")


def main() -> None:
    """Print the plan."""
    if _CONFIG.value is None:
        raise ValueError("--config=FILE is needed, e.g. --config=configs/quickstart.py")
    config = config_lib.from_config_dict(_CONFIG.value)
    fleet = parse_fleet(_DEVICE.value)
    setting = settings.from_config(config, model=_model(config), devices=fleet.count)
    print(report.describe(setting, fleet))
    if _VERIFY.value:
        _verify(setting, fleet.platform)
        return
    print(report.table(estimate(setting, fleet.platform), fleet))
    print(report.suggestion(suggest(setting, fleet), fleet))


def _model(config: config_lib.RunConfig) -> ModelConfig:
    if _MODEL.value and _HF_CONFIG.value:
        raise ValueError("--model and --hf_config are both given; one of them is wanted")
    if _MODEL.value:
        return config.model.read(HF_CONFIGS[_MODEL.value])
    if _HF_CONFIG.value:
        return config.model.read(read_json(pathlib.Path(_HF_CONFIG.value)))
    return settings.model_of(config)


def _verify(setting: Setting, platform: str) -> None:
    if _TOPOLOGY.value:
        mesh, platform = verify.tpu_mesh(setting.mesh, _TOPOLOGY.value), "tpu"
    elif platform == "cpu":
        jax.config.update("jax_num_cpu_devices", setting.count)
        mesh = verify.cpu_mesh(setting.mesh)
    else:
        raise ValueError("--verify needs --device=cpuxN (fake devices), or --topology=... and libtpu")
    print(report.comparison(verify.compare(setting, mesh, platform)))


if __name__ == "__main__":
    cli.run(main)
