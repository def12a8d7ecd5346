"""Fixtures shared by all tests."""

from __future__ import annotations

import os
import pathlib

import pytest

# Results must not depend on the machine: CPU backend, and nothing is ever fetched.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="session")
def shared_dir() -> pathlib.Path:
    """Folder with real games and golden results; tests that need it skip where it is absent."""
    root = pathlib.Path(__file__).resolve().parent.parent
    path = pathlib.Path(os.environ.get("VICT_SHARED", root.parent / "shared"))
    if not (path / "data").is_dir():
        pytest.skip(f"no benchmark data at {path} (set VICT_SHARED to the folder that holds data/)")
    return path
