"""A PATH of stand-in programs, and places on which nothing real is."""

from __future__ import annotations

import os
import pathlib
import shutil
from collections.abc import Iterator

import pytest

from launch.commands import ROOT, SCRATCH
from launch.place import Place
from tests.launch import stand_in


@pytest.fixture
def world(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pathlib.Path]:
    """The folder of the stand-ins, which come first on PATH."""
    folder = tmp_path / "world"
    stand_in.install(folder)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}")
    yield folder
    for name in stand_in.read_state(folder)["nodes"]:
        stand_in.destroy(folder, name)
    for workload in stand_in.read_state(folder)["workloads"].values():
        stand_in.kill_pods(workload)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> Iterator[str]:
    """A name of its own for each test, since what is copied goes through one folder of the checkout."""
    made = f"rehearsal-{os.getpid()}"
    yield made
    shutil.rmtree(ROOT / SCRATCH / made, ignore_errors=True)


@pytest.fixture
def place(name: str) -> Place:
    """Two workers, created at once."""
    return Place(
        name=name,
        project="my-project",
        zone="us-east5-a",
        accelerator="v5p-16",
        version="v2-alpha-tpuv5",
        poll_s=0.1,
        grace_s=20,
    )
