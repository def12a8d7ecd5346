"""Accelerators by name: how many devices, and how much memory each has."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping

GIB = 2**30
# Left to the runtime: compiled programs, collectives' buffers, fragmentation.
RESERVED_SHARE = 0.08


@dataclasses.dataclass(frozen=True)
class Device:
    """One kind of accelerator.

    Attributes:
      platform: "tpu", "gpu" or "cpu".
      gib: memory of one JAX device, as its maker states it.
      group: devices with a fast connection among each other, the widest sensible `tensor` axis.
      cores: of a device, where the maker counts cores in the name of a slice.
    """

    platform: str
    gib: float
    group: int
    cores: int = 1


# Memory: the makers' data sheets (Google Cloud's pages "TPU v4", "v5e", "v5p", "v6e"; NVIDIA's of A100, H100,
# H200). A v4 or v5p slice is named by its TensorCores, of which a chip, one device of JAX, has two.
DEVICES: Mapping[str, Device] = {
    "v4": Device("tpu", 32, 8, cores=2),
    "v5e": Device("tpu", 16, 8),
    "v5p": Device("tpu", 95, 8, cores=2),
    "v6e": Device("tpu", 32, 8),
    "a100-40gb": Device("gpu", 40, 8),
    "a100": Device("gpu", 80, 8),
    "h100": Device("gpu", 80, 8),
    "h200": Device("gpu", 141, 8),
}


@dataclasses.dataclass(frozen=True)
class Fleet:
    """`count` devices of a kind.

    Attributes:
      usable: bytes of one device that a run may fill.
    """

    name: str
    platform: str
    count: int
    group: int
    usable: int


def parse_fleet(name: str) -> Fleet:
    """Devices by name: `v5p-64` or `v5e-16` (a TPU slice), `h100x8`, `cpu`, `cpux8` (of one host).

    Raises:
      ValueError: an unknown name, or a slice that has no whole number of devices.
    """
    match = re.fullmatch(r"(.+?)(?:x(\d+)|-(\d+))?", name)
    kind, times, slice_ = match.groups() if match else (name, None, None)
    if name in DEVICES:
        kind, times, slice_ = name, None, None
    if kind == "cpu" and slice_ is None:
        count = int(times or 1)
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return Fleet(name, "cpu", count, count, int(memory * (1 - RESERVED_SHARE) / count))
    if kind not in DEVICES or (slice_ is not None and DEVICES[kind].platform != "tpu"):
        known = ", ".join(DEVICES)
        raise ValueError(
            f"--device={name!r} is unknown: it must be KINDxN, or a TPU slice KIND-N, or cpu or cpuxN; "
            f"kinds: {known}"
        )
    device = DEVICES[kind]
    cores = int(slice_) if slice_ else device.cores * int(times or 1)
    if cores < 1 or cores % device.cores:
        raise ValueError(f"--device={name!r} has no whole number of devices: {device.cores} cores each")
    usable = int(device.gib * GIB * (1 - RESERVED_SHARE))
    return Fleet(name, device.platform, cores // device.cores, device.group, usable)
