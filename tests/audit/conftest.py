"""One logged run for all tests of the audits."""

from __future__ import annotations

import pathlib

import pytest

from tests.audit.logged import Update, log_run, make_config
from vict_jax.config import RunConfig


@pytest.fixture(scope="session")
def config() -> RunConfig:
    return make_config()


@pytest.fixture(scope="session")
def run(
    tmp_path_factory: pytest.TempPathFactory, config: RunConfig
) -> tuple[pathlib.Path, dict[int, Update]]:
    """The run directory, and what was written to it."""
    workdir = tmp_path_factory.mktemp("audit") / "run"
    return workdir, log_run(workdir, config)
