"""From the proof log of a run to episodes."""

from __future__ import annotations

import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from vict_jax import proofs
from vict_jax.config import RunConfig, to_plain
from vict_jax.datasets.episodes import EPISODE_FEATURES, STEP_ARRAYS, STEP_TEXTS, Episode
from vict_jax.metrics import read_json


def logged_episodes(workdir: pathlib.Path, updates: Iterable[int]) -> Iterator[Episode]:
    """The rollouts of some updates in the order of the log. Rollouts without a step are not in the log.

    Raises:
      RunError: a file of the log is missing or damaged.
    """
    for update in updates:
        table = proofs.read_table(workdir, "rollouts", update)
        places = np.array([table["group"], table["rollout"]]).T
        starts = np.flatnonzero(np.diff(places, axis=0, prepend=-1).any(axis=1)).tolist()
        for start, end in zip(starts, [*starts[1:], len(places)], strict=True):
            yield _episode({name: column[start:end] for name, column in table.items()})


def _episode(rows: Mapping[str, list[Any]]) -> Episode:
    """The episode of consecutive rows of the table of steps."""
    fields: dict[str, Any] = {name: rows[name][0] for name in EPISODE_FEATURES}
    fields |= {name: tuple(rows[name]) for name in STEP_TEXTS}
    fields |= {name: np.array(rows[name], dtype) for name, dtype in STEP_ARRAYS.items()}
    return Episode(**fields)


def provenance(workdir: pathlib.Path, config: RunConfig) -> dict[str, Any]:
    """What the episodes of a run come from: its config, and the versions, tasks and data it started with.

    Raises:
      RunError: `run.json` is damaged.
    """
    path = workdir / "run.json"
    started = read_json(path) if path.is_file() else {}
    return {"environment": config.env.name, "config": to_plain(config), "run": started}
