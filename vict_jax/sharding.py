"""The device mesh and what lies where on it. The only file that knows axis types and partition specs.

Mesh axes: `data` and `fsdp` split the batch, `fsdp` also splits parameters and moments along the model
width, `tensor` splits heads, feed-forward width and vocabulary. All axes are `Auto`: XLA propagates
from the shardings of the inputs. (`jax.make_mesh` alone would give `Explicit` axes.)

Left alone, XLA prefers to gather activations and to leave weights where they are, which is the wrong
way round for `fsdp`. So the model says where its activations lie (`constrain`) and where its weights are
put together (`gathered`, per layer, in the compute dtype).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

AXES = ("data", "fsdp", "tensor")
AnyMesh = Mesh | AbstractMesh  # with devices, or planned

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


_ROWS = ("data", "fsdp")
# Logical axes that only activations have: rows of a batch, and rows where `fsdp` splits another dimension.
_ROW_AXES: Mapping[str | None, str | tuple[str, ...]] = {"rows": _ROWS, "data_rows": "data"}


@dataclasses.dataclass(frozen=True)
class MeshOptions:
    """Sizes of the mesh axes; -1, for one of them, is what the others leave of the devices.

    Attributes:
      data: parts of a batch that have the weights each.
      fsdp: parts of a batch that split the weights among them and gather them layer by layer.
      tensor: parts of every layer; divides the heads, the feed-forward width and the vocabulary.
    """

    data: int = 1
    fsdp: int = 1
    tensor: int = 1

    def __post_init__(self) -> None:
        for name, size in dataclasses.asdict(self).items():
            if size < 1 and size != -1:
                raise ValueError(f"mesh.{name}={size} is not allowed: it must be 1 or more, or -1 (the rest)")
        if dataclasses.astuple(self).count(-1) > 1:
            raise ValueError(f"only one size of the mesh may be -1, got {dataclasses.astuple(self)}")

    def shape(self, devices: int) -> tuple[int, int, int]:
        """The three sizes on so many devices.

        Raises:
          ValueError: they do not divide the number of devices.
        """
        sizes = dataclasses.astuple(self)
        fixed = math.prod(size for size in sizes if size != -1)
        if devices % fixed:
            raise ValueError(f"mesh sizes {sizes} of {AXES} do not divide the number of devices, {devices}")
        data, fsdp, tensor = (devices // fixed if size == -1 else size for size in sizes)
        return data, fsdp, tensor


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


def local_mesh(mesh: Mesh) -> Mesh:
    """This process's own devices as a mesh of (data, 1, tensor): where it samples, alone.

    The mesh itself in a run of one process.

    Raises:
      ValueError: the mesh leaves devices out, or `tensor` goes over several processes.
    """
    if jax.process_count() == 1:
        return mesh
    if mesh.size != jax.device_count():
        raise ValueError(
            f"mesh {dict(mesh.shape)} has {mesh.size} devices, but the {jax.process_count()} processes have "
            f"{jax.device_count()}: with several processes every device is in it, e.g. by mesh.data=-1"
        )
    rows = mesh.devices.reshape(-1, mesh.shape["tensor"])
    owner = np.vectorize(lambda device: device.process_index)(rows)
    if (owner != owner[:, :1]).any():
        raise ValueError(
            f"mesh.tensor={mesh.shape['tensor']} is not allowed: it must divide the devices of each of the "
            f"{jax.process_count()} processes, {jax.local_device_count()}"
        )
    own = rows[owner[:, 0] == jax.process_index()]
    return Mesh(own[:, None, :], AXES, axis_types=(AxisType.Auto,) * len(AXES))


def localized(tree: Any, local: Mesh) -> Any:
    """Parameters on a global mesh as this process's own arrays on `local`, see `local_mesh`.

    Gathered over `fsdp` where they are split there, once; `tensor` stays as it is. What lies on every device
    anyway is not copied, so the result holds until the parameters are donated. Called by all processes.
    """
    if jax.process_count() == 1:
        return tree

    def view(x: jax.Array) -> jax.Array:
        assert isinstance(x.sharding, NamedSharding)
        partition = PartitionSpec(*(axis if axis == "tensor" else None for axis in x.sharding.spec))
        whole = jax.device_put(x, NamedSharding(x.sharding.mesh, partition))
        own = {shard.device: shard.data for shard in whole.addressable_shards}
        return jax.make_array_from_single_device_arrays(
            x.shape, NamedSharding(local, partition), [own[device] for device in local.devices.flat]
        )

    return jax.tree.map(view, tree)


def replicated(mesh: AnyMesh) -> NamedSharding:
    """The same value on every device."""
    return NamedSharding(mesh, PartitionSpec())


def batch_parts(mesh: AnyMesh) -> int:
    """Parts into which the rows of a batch are split."""
    return _parts(mesh, _ROWS)


def batch_sharding(mesh: AnyMesh, sizes: Sequence[int] = ()) -> NamedSharding:
    """Axis 0 (rows) split over `data` and `fsdp`, for batches, caches and sampler inputs.

    Args:
      sizes: numbers of rows that will be split so, to be checked.

    Raises:
      ValueError: one of `sizes` is not divisible by the number of batch shards.
    """
    shards = batch_parts(mesh)
    uneven = [size for size in sizes if size % shards]
    if uneven:
        raise ValueError(f"numbers of rows {uneven} are not divisible by data * fsdp = {shards} of the mesh")
    return NamedSharding(mesh, PartitionSpec(_ROWS))


def check_tensor_axis(mesh: AnyMesh, **sizes: int) -> None:
    """Raise ValueError unless `tensor` divides each of the named sizes (numbers of heads, vocabulary)."""
    for name, size in sizes.items():
        if size % mesh.shape["tensor"]:
            raise ValueError(
                f"{name}={size} is not divisible by mesh axis 'tensor' of size {mesh.shape['tensor']}"
            )


def spec(axes: tuple[str | None, ...]) -> PartitionSpec:
    """Partition spec of a weight with the given logical axes."""
    unknown = [axis for axis in axes if axis not in RULES]
    if unknown:
        raise ValueError(f"unknown logical axes {unknown}; known: {[axis for axis in RULES if axis]}")
    return PartitionSpec(*(RULES[axis] for axis in axes))


def param_shardings(mesh: AnyMesh, params: Any, logical_axes: Mapping[str, Any]) -> Any:
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


def spread(x: jax.Array) -> AbstractMesh | None:
    """The mesh that `x` is on under `jit`, None where that is one device."""
    mesh = jax.typeof(x).sharding.mesh
    return None if mesh.empty or mesh.size == 1 else mesh


def activation(mesh: AnyMesh, shape: Sequence[int], *axes: str | None) -> NamedSharding:
    """Where an activation, or a part of the key/value cache, lies; see `constrain`."""
    partition = [_ROW_AXES[axis] if axis in _ROW_AXES else RULES[axis] for axis in axes]
    divided = [
        mesh_axis if mesh_axis is None or size % _parts(mesh, mesh_axis) == 0 else None
        for size, mesh_axis in zip(shape, partition, strict=True)
    ]
    return NamedSharding(mesh, PartitionSpec(*divided))


def constrain(x: jax.Array, *axes: str | None) -> jax.Array:
    """Say where an activation lies: one logical axis per dimension, "rows" for one that is split as batches.

    Under `jit`; on one device `x` itself. A dimension that its mesh axis does not divide is not split.
    """
    mesh = spread(x)
    return x if mesh is None else jax.lax.with_sharding_constraint(x, activation(mesh, x.shape, *axes))


def row_parts(x: jax.Array) -> int:
    """Parts into which rows are split on the mesh of `x` under `jit`."""
    mesh = spread(x)
    return 1 if mesh is None else batch_parts(mesh)


def _parts(mesh: AnyMesh, axes: str | tuple[str, ...]) -> int:
    return math.prod(mesh.shape[axis] for axis in ((axes,) if isinstance(axes, str) else axes))


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def gathered(w: jax.Array, axes: tuple[str | None, ...]) -> jax.Array:
    """A weight with logical `axes`, put together over `fsdp`; its gradient is split again.

    Under `jit`; on one device `w` itself.
    """
    return constrain(w, *(None if RULES[axis] == "fsdp" else axis for axis in axes))


def _gathered_forward(w: jax.Array, axes: tuple[str | None, ...]) -> tuple[jax.Array, None]:
    return gathered(w, axes), None


def _gathered_backward(axes: tuple[str | None, ...], _: None, gradient: jax.Array) -> tuple[jax.Array]:
    return (constrain(gradient, *axes),)


gathered.defvjp(_gathered_forward, _gathered_backward)
