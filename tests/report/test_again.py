"""A config file that is a run's own config."""

from __future__ import annotations

import dataclasses
import json

import pytest

from configs.again import get_config
from tests.run.small import small_config
from vict_jax.config import from_config_dict, to_plain


def test_it_is_the_config_of_the_run_and_can_be_changed(tmp_path):
    config = from_config_dict(small_config())
    (tmp_path / "config.json").write_text(json.dumps(to_plain(config)))
    again = get_config(str(tmp_path))
    assert from_config_dict(again) == config
    again.seed = 7
    assert from_config_dict(again) == dataclasses.replace(config, seed=7)


def test_no_run_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="holds no run"):
        get_config(str(tmp_path))


def test_keys_of_another_version_are_an_error(tmp_path):
    plain = to_plain(from_config_dict(small_config()))
    del plain["reward"]
    (tmp_path / "config.json").write_text(json.dumps(plain))
    with pytest.raises(ValueError, match="'reward' is missing"):
        get_config(str(tmp_path))
