"""Training on a task set, and writing and reading data sets, never import TensorFlow, even if it is there."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

from tests.conftest import ROOT

# Stands for an installed TensorFlow; whoever imports it is written down, even if the failure is swallowed.
PLANTED = """
import pathlib, traceback
pathlib.Path(__file__).with_name("imported").write_text("".join(traceback.format_stack()))
raise ImportError("TensorFlow was imported")
"""
WHOLE_WAY = """
import pathlib, sys
from tests.run.small import small_config
from vict_jax.config import from_config_dict
from vict_jax.metrics import read_metrics
from vict_jax.train import train

assert "tensorflow_datasets" not in sys.modules  # nor this, unless a task set is asked for

from vict_jax.datasets.__main__ import main
from vict_jax.datasets.episodes import episode_source
from vict_jax.datasets.tasks import task_source

folder = pathlib.Path(sys.argv[1])
config = small_config().unlock()
options = [f"--option={name}={config.env[name]}" for name in ("max_steps", "num_train", "num_valid")]
main(["--env=alfworld", "--split=train", *options, f"--out={folder}"])
config.train.update(updates=1, task_set=str(folder))
config.warm_start.tasks = 0
config.conformance.tasks = 1
config.eval.tasks = 2
train(from_config_dict(config), folder / "run")
main([f"--workdir={folder / 'run'}", f"--out={folder}"])
played = {episode.task_id for episode in episode_source(folder)}
assert len(played) == 2 and played <= {task.id for task in task_source(folder, "train")}
assert [row["update"] for row in read_metrics(folder / "run") if row["kind"] == "train"] == [1]
print("tensorflow" in sys.modules, "tensorflow_datasets" in sys.modules)
"""


@pytest.fixture
def planted(tmp_path: pathlib.Path) -> pathlib.Path:
    """A package `tensorflow` that says when it is imported."""
    package = tmp_path / "planted" / "tensorflow"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(PLANTED)
    return package


def run(code: str, planted: pathlib.Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process that could import the planted package."""
    path = os.pathsep.join([str(planted.parent), str(ROOT)])
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_planted_package_is_noticed(planted: pathlib.Path) -> None:
    """By the RLDS helper of tensorflow-datasets, which is why it is not used."""
    code = "import tensorflow_datasets as tfds; tfds.rlds.rlds_base.tf.bool"
    assert "TensorFlow was imported" in run(code, planted).stderr
    assert (planted / "imported").exists()


def test_training_and_data_sets_leave_it_alone(planted: pathlib.Path, tmp_path: pathlib.Path) -> None:
    ended = run(WHOLE_WAY, planted, str(tmp_path))
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == "False True"
    assert not (planted / "imported").exists(), (planted / "imported").read_text()
