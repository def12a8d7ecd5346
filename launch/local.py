"""Train on this machine.

    python -m launch.local --config=configs/quickstart.py --workdir=runs/quickstart
    python -m launch.local --config=configs/quickstart.py --workdir=runs/grpo --config.credit.method=grpo

Every value of the config can be changed with --config.section.key=value. Starting the same command
again continues the run from its last checkpoint.
"""

from __future__ import annotations

import pathlib

from absl import flags
from ml_collections import config_flags

from launch import cli
from vict_jax import config as config_lib
from vict_jax.train import train

_CONFIG = config_flags.DEFINE_config_file(
    "config", None, "config file, e.g. configs/quickstart.py", lock_config=True
)
_WORKDIR = flags.DEFINE_string("workdir", None, "directory of the run; created, or continued")


def main() -> None:
    """Validate the config and train."""
    if _CONFIG.value is None or _WORKDIR.value is None:
        raise ValueError(
            "--config=FILE and --workdir=DIR are both needed, e.g. --config=configs/quickstart.py"
        )
    train(config_lib.from_config_dict(_CONFIG.value), pathlib.Path(_WORKDIR.value))


if __name__ == "__main__":
    cli.run(main)
