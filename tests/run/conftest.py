"""An uninterrupted run, for all tests that need one."""

from __future__ import annotations

import pathlib

import pytest

from tests.run.small import small_config
from vict_jax import train
from vict_jax.config import RunConfig, from_config_dict


@pytest.fixture(scope="session")
def config() -> RunConfig:
    return from_config_dict(small_config())


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, config: RunConfig) -> pathlib.Path:
    """An uninterrupted run."""
    workdir = tmp_path_factory.mktemp("runs") / "whole"
    train.train(config, workdir)
    return workdir
