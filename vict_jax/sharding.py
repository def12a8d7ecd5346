"""The device mesh and what lies where on it. The only file that knows axis types and partition specs.

Mesh axes: `data` and `fsdp` split the batch, `fsdp` also splits parameters and moments along the model
width, `tensor` splits heads, feed-forward width and vocabulary. All axes are `Auto`: XLA propagates
from the shardings of the inputs. (`jax.make_mesh` alone would give `Explicit` axes.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

AXES = ("data", "fsdp", "tensor")

# Logical axis of a weight (`models.decoder.weights`) -> mesh axis; None is not split.
RULES: Mapping[str | None, str | None] = {
    "embed": "fsdp",
    "heads": "tensor",
    "kv_heads": "tensor",
    "mlp": "tensor",
    "vocab": "tensor",
    "layers": None,
    None: None,
}


def make_mesh(shape: tuple[int, int, int] = (1, 1, 1)) -> Mesh:
    """Mesh of `shape` (data, fsdp, tensor) over the first devices.

    Raises:
      ValueError: a size below 1, or more devices wanted than there are.
    """
    if len(shape) != len(AXES) or min(shape) < 1:
        raise ValueError(f"mesh shape must be {len(AXES)} sizes >= 1 for {AXES}, got {shape}")
    wanted, devices = int(np.prod(shape)), jax.devices()
    if wanted > len(devices):
        raise ValueError(f"mesh shape {shape} needs {wanted} devices, there are {len(devices)}")
    return jax.make_mesh(shape, AXES, axis_types=(AxisType.Auto,) * len(AXES), devices=devices[:wanted])


def replicated(mesh: Mesh) -> NamedSharding:
    """The same value on every device."""
    return NamedSharding(mesh, PartitionSpec())


def batch_sharding(mesh: Mesh, sizes: Sequence[int] = ()) -> NamedSharding:
    """Axis 0 (rows) split over `data` and `fsdp`, for batches, caches and sampler inputs.

    Args:
      sizes: numbers of rows that will be split so, to be checked.

    Raises:
      ValueError: one of `sizes` is not divisible by the number of batch shards.
    """
    shards = mesh.shape["data"] * mesh.shape["fsdp"]
    uneven = [size for size in sizes if size % shards]
    if uneven:
        raise ValueError(f"numbers of rows {uneven} are not divisible by data * fsdp = {shards} of the mesh")
    return NamedSharding(mesh, PartitionSpec(("data", "fsdp")))


def spec(axes: tuple[str | None, ...]) -> PartitionSpec:
    """Partition spec of a weight with the given logical axes."""
    unknown = [axis for axis in axes if axis not in RULES]
    if unknown:
        raise ValueError(f"unknown logical axes {unknown}; known: {[axis for axis in RULES if axis]}")
    return PartitionSpec(*(RULES[axis] for axis in axes))


def param_shardings(mesh: Mesh, params: Any, logical_axes: Mapping[str, Any]) -> Any:
    """Sharding of every parameter, in the tree of `params`.

    Args:
      params: the parameters, or their abstract values.
      logical_axes: `models.decoder.logical_axes(config)`.

    Raises:
      ValueError: a dimension that its mesh axis does not divide.
    """

    def of_leaf(path: tuple, leaf: Any) -> NamedSharding:
        name, axes = jax.tree_util.keystr(path), logical_axes
        for entry in path:
            if isinstance(entry, jax.tree_util.DictKey):
                axes = axes[entry.key]
        partition = spec(axes)  # type: ignore[arg-type]
        for size, axis, mesh_axis in zip(leaf.shape, axes, partition, strict=True):
            if mesh_axis is not None and size % mesh.shape[mesh_axis]:
                raise ValueError(
                    f"parameter {name}: {axis} of size {size} is not divisible by mesh axis "
                    f"{mesh_axis!r} of size {mesh.shape[mesh_axis]}"
                )
        return NamedSharding(mesh, partition)

    return jax.tree_util.tree_map_with_path(of_leaf, params)
