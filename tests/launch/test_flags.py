"""Commands with flags of the same names, side by side in one process."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Callable, Iterator

import pytest
from absl import flags
from absl.testing import flagsaver

from launch import evaluate, export
from tests.run.small import small_config
from vict_jax.config import from_config_dict, to_plain
from vict_jax.metrics import write_json


@contextlib.contextmanager
def defined(define: Callable[[], None]) -> Iterator[list[str]]:
    """The flags of one command for a while; gives their names."""
    before = set(flags.FLAGS)
    define()
    flags.FLAGS.mark_as_parsed()
    names = sorted(set(flags.FLAGS) - before)
    try:
        yield names
    finally:
        for name in names:
            delattr(flags.FLAGS, name)


def test_flags_belong_to_the_command_that_runs() -> None:
    with defined(evaluate.define_flags) as of_evaluate:
        assert {"workdir", "split", "agent", "out"} < set(of_evaluate)
    with defined(export.define_flags) as of_export:
        assert of_export == ["adapters", "dtype", "mesh", "out", "update", "workdir"]


def test_a_command_without_its_directories_says_which() -> None:
    with defined(export.define_flags), pytest.raises(ValueError, match=r"--workdir=DIR .* and --out=DIR"):
        export.main()
    with defined(evaluate.define_flags), pytest.raises(ValueError, match="--workdir=DIR is needed"):
        evaluate.main()


def test_adapters_of_a_model_that_nobody_has_are_not_exported(tmp_path: pathlib.Path) -> None:
    config = small_config().unlock()
    config.model.lora_rank = 2
    write_json(tmp_path / "config.json", to_plain(from_config_dict(config)))
    with (
        defined(export.define_flags),
        flagsaver.flagsaver(workdir=str(tmp_path), out=str(tmp_path / "out"), adapters=True),
        pytest.raises(ValueError, match="began without a checkpoint"),
    ):
        export.main()
    assert not (tmp_path / "out").exists()
