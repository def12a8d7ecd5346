"""Train on this machine, or be one process of a run over several.

    python -m launch.local --config=configs/quickstart.py --workdir=runs/quickstart
    python -m launch.local --config=configs/quickstart.py --workdir=runs/grpo --config.credit.method=grpo
    python -m launch.local --config=configs/quickstart.py --workdir=runs/two \\
        --processes=2 --config.mesh.data=-1

Every value of the config can be changed with --config.section.key=value. Starting the same command
again continues the run from its last checkpoint. With --processes=N the command starts itself N times on
this machine, to rehearse a run over several hosts (docs/scaling.md). Launchers of such runs start it on each
host with --coordinator=HOST:PORT --num_processes=N --process_id=K, or with --distributed=auto where JAX finds
out itself (TPU pods).
"""

from __future__ import annotations

import pathlib
import sys

from absl import flags
from ml_collections import config_flags

from launch import cli, rehearsal
from vict_jax import config as config_lib
from vict_jax import processes
from vict_jax.start import Profile, StartOptions
from vict_jax.train import train

_CONFIG = config_flags.DEFINE_config_file(
    "config", None, "config file, e.g. configs/quickstart.py", lock_config=True
)
_WORKDIR = flags.DEFINE_string("workdir", None, "directory of the run; created, or continued")
_ALLOW_CHANGED = flags.DEFINE_list(
    "allow_changed", [], "continue a run although these keys of its config, tasks, data or tokenizer differ"
)
_PROFILE = flags.DEFINE_string("profile", None, "UPDATE:COUNT, trace so many updates with JAX's profiler")
_PROMETHEUS = flags.DEFINE_bool("prometheus", False, "write the newest metrics to WORKDIR/metrics.prom")
_PROCESSES = flags.DEFINE_integer("processes", 1, "start so many processes of this run on this machine")
_COORDINATOR = flags.DEFINE_string("coordinator", None, "HOST:PORT at which the first of several listens")
_NUM_PROCESSES = flags.DEFINE_integer("num_processes", None, "processes of the run; another number stops it")
_PROCESS_ID = flags.DEFINE_integer("process_id", None, "which of them this is, from 0")
_DISTRIBUTED = flags.DEFINE_enum(
    "distributed", "off", ["off", "auto"], "auto: JAX finds the processes itself (TPU pods)"
)


def main() -> None:
    """Validate the config and train."""
    if _CONFIG.value is None or _WORKDIR.value is None:
        raise ValueError(
            "--config=FILE and --workdir=DIR are both needed, e.g. --config=configs/quickstart.py"
        )
    config = config_lib.from_config_dict(_CONFIG.value)
    if _PROCESSES.value != 1:
        sys.exit(rehearse(config, _PROCESSES.value))
    join()
    start = StartOptions(
        allow_changed=tuple(_ALLOW_CHANGED.value),
        profile=None if _PROFILE.value is None else Profile.parse(_PROFILE.value),
        prometheus=_PROMETHEUS.value,
    )
    train(config, pathlib.Path(_WORKDIR.value), start)


def rehearse(config: config_lib.RunConfig, count: int) -> int:
    """Start this command as `count` processes; the exit code."""
    if count < 1 or _COORDINATOR.value or _DISTRIBUTED.value == "auto":
        raise ValueError(
            f"--processes={count} must be 1 or more, and without --coordinator and --distributed: it starts "
            "all of them itself"
        )
    processes.check_groups(config.train.groups, count)
    return rehearsal.run_processes(rehearsal.command_without("processes", sys.argv), count)


def join() -> None:
    """Join the other processes as the flags say; without any of them this is the only one."""
    if _COORDINATOR.value is not None:
        if _DISTRIBUTED.value == "auto":
            raise ValueError("--coordinator and --distributed=auto exclude each other")
        processes.join(_COORDINATOR.value, _NUM_PROCESSES.value, _PROCESS_ID.value)
    elif _DISTRIBUTED.value == "auto":
        processes.join_detected(_NUM_PROCESSES.value)
    elif _NUM_PROCESSES.value is not None or _PROCESS_ID.value is not None:
        raise ValueError("--num_processes and --process_id need --coordinator=HOST:PORT")


if __name__ == "__main__":
    cli.run(main)
