"""The planner against XLA: the programs of an update compiled on abstract values, and what its analysis says.

Fake CPU devices serve everywhere. With `libtpu` installed the TPU compiler works without a TPU as well.
"""

from __future__ import annotations

import dataclasses
import time

import numpy as np
from jax.sharding import AxisType, Mesh

from vict_jax import sharding
from vict_jax.plan import programs
from vict_jax.plan.estimate import Setting, estimate

# Code generation is most of the time on a CPU, and has no part in where buffers lie.
_FAST: dict[str, str | bool] = {
    "xla_backend_optimization_level": "0",
    "xla_llvm_disable_expensive_passes": True,
}
PHASES = {"accumulate": "gradient", "apply": "optimizer"}  # program -> phase of the estimate
_BESIDE = {"accumulate": "frozen weights", "apply": "moments"}  # what it is given beside trained weights


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One program: bytes of a device as XLA counts them (arguments and temporary), and as the planner does.

    Attributes:
      seconds: what lowering and compiling it took.
    """

    program: str
    arguments: int
    temporary: int
    planned: int
    seconds: float

    @property
    def compiled(self) -> int:
        """Arguments and temporary together; outputs lie in donated arguments."""
        return self.arguments + self.temporary

    @property
    def ratio(self) -> float:
        """Planned over compiled."""
        return self.planned / self.compiled


def cpu_mesh(shape: tuple[int, int, int]) -> Mesh:
    """A mesh of fake CPU devices, which the process must have been started with."""
    return sharding.make_mesh(shape)


def tpu_mesh(shape: tuple[int, int, int], topology: str) -> Mesh:
    """A mesh of a described TPU topology such as "v5e:8x8"; needs `libtpu`, but no TPU."""
    from jax.experimental import topologies

    devices = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices
    if len(devices) != np.prod(shape):
        raise ValueError(
            f"topology {topology!r} has {len(devices)} devices, the mesh {shape} needs another number"
        )
    return Mesh(np.array(devices).reshape(shape), sharding.AXES, axis_types=(AxisType.Auto,) * 3)


def compare(setting: Setting, mesh: Mesh, platform: str) -> list[Comparison]:
    """Compile the programs of an update and compare.

    The estimate counts all that is in memory; of that, a program is given only what it reads. So reference
    and batch are left out for both, the moments for `accumulate`, and frozen weights for `apply`.
    """
    planned = estimate(setting, platform)
    began = time.perf_counter()
    lowered = programs.lower_update(
        setting.model,
        mesh,
        micro_rows=setting.micro_rows,
        length=setting.length,
        width=setting.width,
        reference=setting.reference,
    )
    found = []
    for program, phase in PHASES.items():
        analysis = (
            lowered[program].compile(compiler_options=_FAST if platform == "cpu" else None).memory_analysis()
        )
        if analysis is None:
            raise ValueError(f"platform {platform!r} has no memory analysis")
        given = planned.resident["weights"] + planned.resident[_BESIDE[program]]
        found.append(
            Comparison(
                program=program,
                arguments=analysis.argument_size_in_bytes,
                temporary=analysis.temp_size_in_bytes,
                planned=given + sum(planned.phases[phase].values()),
                seconds=time.perf_counter() - began,
            )
        )
        began = time.perf_counter()
    return found
