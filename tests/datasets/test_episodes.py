"""Logged rollouts as RLDS episodes: what comes back is the log, to the bit."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import tensorflow_datasets as tfds

from tests.audit.logged import ODD_ACTION, Update, log_run, make_config
from vict_jax.batching import EndReason
from vict_jax.datasets import storage
from vict_jax.datasets.__main__ import main
from vict_jax.datasets.episodes import TERMINAL, Episode, Episodes, episode_source
from vict_jax.datasets.log import logged_episodes
from vict_jax.metrics import RunError
from vict_jax.proof_files import STEP_SCHEMA, file_stem


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[pathlib.Path, dict[int, Update]]:
    """A logged run of two updates, with a lost rollout and an odd action in each."""
    workdir = tmp_path_factory.mktemp("episodes") / "run"
    return workdir, log_run(workdir, make_config())


@pytest.fixture(scope="module")
def written(run: tuple[pathlib.Path, dict[int, Update]]) -> pathlib.Path:
    """Its episodes, written by the command."""
    out = run[0] / "out"
    main([f"--workdir={run[0]}", f"--out={out}"])
    return out


def columns_of(episodes: list[Episode]) -> dict[str, Any]:
    """The columns of the log that some episodes make up."""
    columns: dict[str, list[Any]] = {name: [] for name in STEP_SCHEMA.names}
    for episode in episodes:
        for t in range(len(episode.action)):
            for name in columns:
                value = t if name == "step" else vars(episode)[name]
                columns[name].append(value[t] if isinstance(value, (tuple, np.ndarray)) else value)
    return columns


def test_what_comes_back_is_the_log_to_the_bit(
    run: tuple[pathlib.Path, dict[int, Update]], written: pathlib.Path
) -> None:
    files = [run[0] / "rollouts" / f"{file_stem(update)}.parquet" for update in run[1]]
    back = columns_of(list(episode_source(written)))
    assert ODD_ACTION in back["action"]
    assert np.any(back["correction"])
    for name, field in zip(STEP_SCHEMA.names, STEP_SCHEMA.types, strict=True):
        logged = [value for file in files for value in pq.read_table(file)[name].to_pylist()]
        if field == "float":
            logged, got = (np.array(some, np.float32).view(np.int32) for some in (logged, back[name]))
            np.testing.assert_array_equal(got, logged, err_msg=name)
        else:
            assert back[name] == logged, name


def test_other_programs_read_rlds_steps(written: pathlib.Path) -> None:
    """With nothing of ours, and step by step, as RLDS is meant to be read."""
    builder = tfds.builder_from_directory(written / "episodes" / "1.0.0")
    ends = set()
    for episode in builder.as_data_source(split="train"):
        steps = list(episode["steps"])
        size, end = len(steps), episode["end"].decode()
        ends.add(end)
        assert [step["is_first"] for step in steps] == [True] + [False] * (size - 1)
        assert [step["is_last"] for step in steps] == [False] * (size - 1) + [True]
        assert [step["is_terminal"] for step in steps] == [False] * (size - 1) + [end in TERMINAL]
        assert [step["reward"] for step in steps] == [0.0] * (size - 1) + [episode["score"]]
        assert [step["discount"] for step in steps] == [1.0] * (size - 1) + [float(end not in TERMINAL)]
    assert {"success", "step_cap", "env_error"} <= ends
    assert builder.info.metadata["environment"] == "alfworld"
    assert builder.info.metadata["config"]["credit"]["method"] == "vict"


def test_terminal_ends_are_ends_of_rollouts() -> None:
    assert set(TERMINAL) < {end.value for end in EndReason}


def test_access_is_random(written: pathlib.Path) -> None:
    source = episode_source(written)
    assert len(source) == 24
    assert (source[-1].update, source[-1].group, source[-1].rollout) == (2, 1, 5)
    assert [(one.update, one.group, one.rollout) for one in source[12:0:-6]] == [(2, 0, 0), (1, 1, 0)]
    with pytest.raises(IndexError, match="episode 24 of 24"):
        source[24]


def test_updates_can_be_chosen(run: tuple[pathlib.Path, dict[int, Update]], tmp_path: pathlib.Path) -> None:
    main([f"--workdir={run[0]}", "--updates=2:", f"--out={tmp_path}"])
    assert {episode.update for episode in episode_source(tmp_path)} == {2}


def test_any_text_and_number_survives(tmp_path: pathlib.Path) -> None:
    numbers = np.array([np.nan, -0.0, np.inf, 1e-45], np.float32)
    texts = ("a\0", "", "x" * 20_000, "Übung 😀\u2028")
    flags = np.array([True, False, True, True])
    odd = Episode(
        update=2**31 - 1, group=0, rollout=0, task_id="\0", task_type="", end="context", score=0.1,
        observation=texts, action=texts[::-1], taken=flags, valid=~flags,
        base=numbers, correction=numbers[::-1].copy(), advantage=-numbers,
    )  # fmt: skip
    storage.write(Episodes(data_dir=tmp_path, episodes=[odd], metadata={"from": "a test"}))
    [back] = episode_source(tmp_path)
    assert np.float32(back.score) == np.float32(0.1)
    for name, value in vars(odd).items():
        if isinstance(value, np.ndarray):
            assert vars(back)[name].tobytes() == value.tobytes(), name
        elif name != "score":
            assert vars(back)[name] == value, name


def test_a_damaged_log_leaves_no_data_set(
    run: tuple[pathlib.Path, dict[int, Update]], tmp_path: pathlib.Path
) -> None:
    for file in ("rollouts/update_000001.parquet", "rollouts/update_000002.parquet"):
        copied = tmp_path / file
        copied.parent.mkdir(exist_ok=True)
        data = (run[0] / file).read_bytes()
        copied.write_bytes(data if "1.parquet" in file else data[:-9])
    builder = Episodes(
        data_dir=tmp_path / "out", episodes=logged_episodes(tmp_path, [1, 2]), metadata={"from": "a test"}
    )
    with pytest.raises(RunError, match=r"update_000002\.parquet is damaged"):
        storage.write(builder)
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file()]


@pytest.mark.parametrize("steps", [0, 2])
def test_an_episode_has_steps_and_as_many_of_everything(steps: int) -> None:
    flags, numbers = np.zeros(steps, bool), np.zeros(steps, np.float32)
    texts = ("look",) * steps
    with pytest.raises(ValueError, match="1 or more, and as many of everything"):
        Episode(
            1, 0, 0, "id", "type", "success", 1.0, texts, texts, flags, flags, numbers, numbers, numbers[1:]
        )
