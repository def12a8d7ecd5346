"""The optimizer step on every mesh of 8 fake devices: equal to one device, sharded, donated."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).with_name("sharded_update.py")
MESHES = [(d, f, 8 // (d * f)) for d in (1, 2, 4, 8) for f in (1, 2, 4, 8) if 8 % (d * f) == 0]


@pytest.fixture(scope="module")
def result():
    """(report, what XLA wrote to stderr)."""
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
    env = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(SCRIPT.parents[2])}
    command = [sys.executable, "-W", "error", str(SCRIPT), *(",".join(map(str, shape)) for shape in MESHES)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout), done.stderr


def of(result, shape):
    return next(report for report in result[0]["meshes"] if tuple(report["shape"]) == shape)


def test_there_are_ten_meshes():
    assert len(MESHES) == 10


@pytest.mark.parametrize("shape", MESHES)
def test_every_mesh_gives_the_loss_and_the_gradients_of_one_device(result, shape):
    report = of(result, shape)
    assert report["loss_difference"] < 1e-5
    assert report["gradient_difference"] < 1e-5 < 1e-2 * result[0]["largest_gradient"]
    assert report["param_difference"] < 1e-5


@pytest.mark.parametrize("shape", MESHES)
def test_parameters_and_moments_are_split(result, shape):
    report = of(result, shape)
    split = [2, 32 // shape[1], 48 // shape[2]]  # layers, width / fsdp, feed-forward / tensor
    assert report["shards"] == {"param": [split], "moments": [split, split]}
    assert report["moments_with_params"]


@pytest.mark.parametrize("shape", MESHES)
def test_gradients_and_state_are_donated(result, shape):
    report = of(result, shape)
    assert report["gradients_donated"]
    assert report["state_donated"]


def test_nothing_is_replicated_against_our_will(result):
    assert "rematerialization" not in result[1]
