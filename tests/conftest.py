"""Fixtures shared by all tests."""

from __future__ import annotations

import os
import pathlib

import pytest

from tests.browser import Watched, launched

# Results must not depend on the machine: CPU backend, and nothing is ever fetched.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Most of the time of the tests goes into compiling; workers, subprocesses and later runs share the results.
ROOT = pathlib.Path(__file__).resolve().parent.parent
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".pytest_cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "0")
os.environ.setdefault("JAX_COMPILATION_CACHE_MAX_SIZE", str(2**31))  # with a limit, files are locked


@pytest.fixture(scope="session")
def shared_dir() -> pathlib.Path:
    """Folder with real games and golden results; tests that need it skip where it is absent."""
    path = pathlib.Path(os.environ.get("VICT_SHARED", ROOT.parent / "shared"))
    if not (path / "data").is_dir():
        pytest.skip(f"no benchmark data at {path} (set VICT_SHARED to the folder that holds data/)")
    return path


@pytest.fixture(scope="session")
def browser():
    """The system's Chromium; tests that need it skip, with the reason, where there is none."""
    with launched() as opened:
        yield opened


@pytest.fixture
def watched(browser):
    """A page of its own (`watched.page`) that must do nothing wrong while the test goes through it."""
    one = Watched(browser, viewport={"width": 1280, "height": 900})
    yield one
    one.close()
    assert not one.wrong
