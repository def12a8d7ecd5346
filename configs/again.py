"""The config of a run that is there already, to run it again or with a change.

python -m launch.local --config=configs/again.py:runs/quickstart --workdir=runs/again
python -m launch.local --config=configs/again.py:runs/quickstart --workdir=runs/seed1 --config.seed=1
"""

from __future__ import annotations

import pathlib

import ml_collections

from vict_jax.config import default_config, to_plain
from vict_jax.metrics import RunError, read_config


def get_config(workdir: str = "runs/quickstart") -> ml_collections.ConfigDict:
    """The config, locked.

    Raises:
      ValueError: `workdir` holds no run, or one of a version that had other keys.
    """
    try:
        ran = read_config(pathlib.Path(workdir))
    except RunError as error:
        raise ValueError(str(error)) from error
    config = default_config(ran.env.name)
    config.update(to_plain(ran))
    return config.lock()
