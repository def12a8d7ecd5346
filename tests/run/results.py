"""What two runs of one config have in common, and how tests start one in a process of its own."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import time
from typing import Any

import jax
import numpy as np
import pytest

from vict_jax import checkpoint, metrics, proofs, train
from vict_jax.batching import to_host
from vict_jax.config import RunConfig
from vict_jax.sharding import make_mesh, replicated

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Rows that a clock makes: the only values that may differ between two runs of one config.
CLOCK = ("seconds", "credit_share", "waits", "count/compiled")


class Killed(BaseException):
    """Stands for SIGKILL at a chosen place."""


def comparable(workdir: pathlib.Path) -> list[dict[str, Any]]:
    """All rows of the metrics without what the clock measured."""
    rows = metrics.read_metrics(workdir)
    return [{k: v for k, v in row.items() if not k.startswith(CLOCK)} for row in rows]


def final_state(workdir: pathlib.Path, config: RunConfig) -> dict[str, np.ndarray]:
    """Every array of the last checkpoint, by name."""
    folder = workdir / "checkpoints" / "state"
    manifest = json.loads(
        next(iter(sorted(folder.glob("step_*"))[-1:])).joinpath("manifest.json").read_text()
    )
    sharding = replicated(make_mesh())
    tree = {
        name: jax.ShapeDtypeStruct(tuple(shape), dtype, sharding=sharding)
        for name, (shape, dtype) in manifest["leaves"].items()
    }
    assert checkpoint.latest_step(folder) == config.train.updates
    return to_host(checkpoint.restore(folder, tree).tree)


def assert_same(workdir: pathlib.Path, finished: pathlib.Path, config: RunConfig) -> None:
    """No update was lost, doubled or changed: the metrics, the state and the proofs of an untroubled run."""
    assert comparable(workdir) == comparable(finished)
    expected = final_state(finished, config)
    for name, value in final_state(workdir, config).items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)
    assert proofs.logged_updates(workdir) == list(range(1, config.train.updates + 1))


def kill_at(
    patch: pytest.MonkeyPatch, owner: Any, name: str, call: int, config: RunConfig, workdir: pathlib.Path
) -> None:
    """Start the run; it is killed at a call of a function, the attribute `name` of `owner`."""
    original, calls = getattr(owner, name), 0

    def kill(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            raise Killed
        return original(*args, **kwargs)

    with patch.context() as killing:
        killing.setattr(owner, name, kill)
        with pytest.raises(Killed):
            train.train(config, workdir)


def start(workdir: pathlib.Path, *more: str) -> subprocess.Popen[str]:
    # A relative directory, as in the README.
    relative = os.path.relpath(workdir, ROOT)
    command = [sys.executable, "-m", "launch.local", "--config=tests/run/small.py", f"--workdir={relative}"]
    return subprocess.Popen(
        [*command, *more],
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_update(workdir: pathlib.Path, update: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and process.poll() is None:
        if any(row["kind"] == "train" and row["update"] == update for row in metrics.read_metrics(workdir)):
            return
        time.sleep(0.05)
    raise AssertionError(f"update {update} was not reached: {process.communicate()}")
