"""Shardings: specs, errors, and the same loss, gradients and samples on 8 fake devices as on one."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import jax
import pytest
from jax.sharding import AxisType, PartitionSpec

from tests.models import sizes
from vict_jax import sharding
from vict_jax.models import decoder

SCRIPT = pathlib.Path(__file__).with_name("sharded_loss.py")


@pytest.mark.parametrize("shape", [(2, 2, 2), (1, 1, 2)])
def test_sharded_equals_unsharded(shape):
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
    env = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(SCRIPT.parents[2])}
    command = [sys.executable, str(SCRIPT), ",".join(map(str, shape))]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout)
    single, split = report["loss"]
    assert split == pytest.approx(single, abs=1e-5)
    assert report["largest_gradient_difference"] < 1e-5
    assert report["samples"][0] == report["samples"][1]
    assert report["cache"] == [4 // (shape[0] * shape[1]), 2 // shape[2]]  # rows, key/value heads
    assert report["shard"] == [2, 64 // shape[1], 64 // shape[2]]


def test_sizes_of_a_mesh_from_options():
    options = sharding.MeshOptions(data=2, fsdp=-1, tensor=4)
    assert options.shape(64) == (2, 8, 4)
    assert sharding.MeshOptions().shape(5) == (1, 1, 1)
    with pytest.raises(ValueError, match=r"\(2, -1, 4\) of .* do not divide the number of devices, 12"):
        options.shape(12)
    with pytest.raises(ValueError, match=r"mesh\.fsdp=0 is not allowed"):
        sharding.MeshOptions(fsdp=0)
    with pytest.raises(ValueError, match="only one size of the mesh may be -1"):
        sharding.MeshOptions(data=-1, fsdp=-1)


def test_heads_that_tensor_does_not_divide_are_named():
    mesh = jax.sharding.AbstractMesh((1, 1, 4), sharding.AXES, axis_types=(AxisType.Auto,) * 3)
    sharding.check_tensor_axis(mesh, num_heads=8)
    with pytest.raises(ValueError, match="num_kv_heads=2 is not divisible by mesh axis 'tensor' of size 4"):
        sharding.check_tensor_axis(mesh, num_heads=8, num_kv_heads=2)


def test_an_activation_is_split_where_its_sizes_allow():
    mesh = jax.sharding.AbstractMesh((2, 2, 2), sharding.AXES, axis_types=(AxisType.Auto,) * 3)
    spec = sharding.activation(mesh, (8, 3, 4), "rows", None, "kv_heads").spec
    assert spec == PartitionSpec(("data", "fsdp"), None, "tensor")
    assert sharding.activation(mesh, (1, 3, 5), "rows", None, "kv_heads").spec == PartitionSpec(
        None, None, None
    )


def test_mesh_of_one_device_states_its_axis_types():
    mesh = sharding.make_mesh()
    assert mesh.axis_names == ("data", "fsdp", "tensor")
    assert mesh.axis_types == (AxisType.Auto,) * 3
    assert sharding.replicated(mesh).spec == PartitionSpec()


def test_every_parameter_has_the_spec_of_its_axes():
    config = sizes.micro(vocab_size=50, tie_embeddings=False)
    _, params = decoder.init(config, jax.random.key(0))
    tree = sharding.param_shardings(sharding.make_mesh(), params, decoder.logical_axes(config))
    assert jax.tree.structure(tree) == jax.tree.structure(params)
    specs = {
        jax.tree_util.keystr(path[:-1]): leaf.spec for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }
    assert specs["['embed']"] == PartitionSpec("tensor", "fsdp")
    assert specs["['layers']['q']"] == PartitionSpec(None, "fsdp", "tensor")
    assert specs["['layers']['k_bias']"] == PartitionSpec(None, "tensor")
    assert specs["['layers']['down']"] == PartitionSpec(None, "tensor", "fsdp")
    assert specs["['layers']['mlp_norm']"] == PartitionSpec(None, None)


def test_errors_name_what_is_wrong():
    with pytest.raises(ValueError, match=r"mesh shape \(64, 1, 1\) needs 64 devices, there are"):
        sharding.make_mesh((64, 1, 1))
    mesh = jax.sharding.AbstractMesh((2, 2, 1), sharding.AXES, axis_types=(AxisType.Auto,) * 3)
    with pytest.raises(ValueError, match=r"rows \[6\] are not divisible by data \* fsdp = 4"):
        sharding.batch_sharding(mesh, (4, 6, 8))
    with pytest.raises(ValueError, match="mesh shape"):
        sharding.make_mesh((1, 0, 1))
    with pytest.raises(ValueError, match=r"unknown logical axes \['hedas'\]"):
        sharding.spec(("hedas",))


def test_indivisible_dimension_is_named():
    config = sizes.micro(vocab_size=51)
    _, params = decoder.init(config, jax.random.key(0))
    mesh = jax.sharding.AbstractMesh((1, 1, 2), sharding.AXES, axis_types=(AxisType.Auto,) * 3)
    with pytest.raises(ValueError, match=r"embed.*vocab of size 51 .*'tensor' of size 2"):
        sharding.param_shardings(mesh, params, decoder.logical_axes(config))
