"""`train.staleness=1`: rollouts are played ahead by the policy before, and nothing else changes."""

from __future__ import annotations

import dataclasses
import pathlib
import signal
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.run.results import assert_same, kill_at
from tests.run.several import several_config
from tests.run.test_processes import assert_same_run, finish, start
from vict_jax import ahead, checkpoint, metrics, train, watch
from vict_jax.batching import Rollout
from vict_jax.config import RunConfig, from_config_dict
from vict_jax.heartbeat import WatchOptions
from vict_jax.job import fold, open_job
from vict_jax.proof_files import file_stem
from vict_jax.resampling import roll_out
from vict_jax.run_state import load_params


@pytest.fixture(scope="module")
def config() -> RunConfig:
    made = from_config_dict(several_config())
    return dataclasses.replace(
        made,
        train=dataclasses.replace(made.train, staleness=1),
        watch=WatchOptions(grace_s=3600.0),  # a busy machine does not end the tests with the run
    )


@pytest.fixture(scope="module")
def stale(tmp_path_factory: pytest.TempPathFactory, config: RunConfig) -> pathlib.Path:
    """An uninterrupted run. Rollouts 2 and 3 were played ahead."""
    workdir = tmp_path_factory.mktemp("staleness") / "run"
    train.train(config, workdir)
    return workdir


def played_by(config: RunConfig, workdir: pathlib.Path, policy: int, update: int) -> list[list[Rollout]]:
    """The rollouts of an update by the policy that was reached after another, played now."""
    with open_job(config, workdir) as job:
        _, params = load_params(job, workdir, policy)
        return roll_out(job, params, update, fold(job.keys.rollout, update)).played.groups


def replies(groups: list[list[Rollout]]) -> list[list[list[int]]]:
    return [[sequence.ids.tolist() for one in group for sequence in one.sequences] for group in groups]


def test_rollouts_are_those_of_the_policy_before(stale: pathlib.Path, config: RunConfig) -> None:
    for update, policy in ((1, 0), (2, 0), (3, 1)):
        logged = pq.read_table(stale / "rollouts" / f"{file_stem(update)}.parquet")["action"].to_pylist()
        groups = played_by(config, stale, policy, update)
        assert [action for group in groups for one in group for action in one.actions] == logged, update
    on_policy, by_the_one_before = (replies(played_by(config, stale, policy, 3)) for policy in (2, 1))
    assert on_policy != by_the_one_before  # so that the check above could have failed


def test_a_first_update_is_on_policy_and_later_ones_are_weighed(stale: pathlib.Path) -> None:
    rows = [row for row in metrics.read_metrics(stale) if row["kind"] == "train"]
    first, *later = ([row[f"importance_{what}"] for what in ("mean", "max")] for row in rows)
    assert first == pytest.approx([1.0, 1.0], abs=1e-4)
    for one in later:
        assert one != pytest.approx([1.0, 1.0], abs=1e-4)
    # PPO's own ratio is to the policy that the update begins with.
    assert all(row["first_log_ratio_max"] < 1e-4 for row in rows)


def test_seconds_of_playing_ahead_belong_to_the_update_they_were_spent_in(stale: pathlib.Path) -> None:
    rows = [row for row in metrics.read_metrics(stale) if row["kind"] == "train"]
    assert all(row["seconds/sample"] > 0 and row["seconds/update"] > 0 for row in rows[:2])
    assert rows[2]["seconds/sample"] == rows[2]["seconds/env"] == 0.0  # the last one plays nothing ahead
    assert all(0 <= row["waits/device"] <= 1 for row in rows)


@pytest.mark.parametrize(("owner", "name", "call"), [(ahead, "roll_out", 2), (train.StateSaver, "save", 3)])
def test_a_killed_run_continues_exactly(
    owner: Any,
    name: str,
    call: int,
    stale: pathlib.Path,
    config: RunConfig,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kill_at(monkeypatch, owner, name, call, config, tmp_path / "run")
    train.train(config, tmp_path / "run")
    assert_same(tmp_path / "run", stale, config)


def test_sigterm_while_rollouts_are_played_ahead_ends_with_the_update(
    stale: pathlib.Path, config: RunConfig, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collect, calls = roll_out, 0

    def come(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:  # while update 2 is computed
            signal.raise_signal(signal.SIGTERM)
        return collect(*args)

    with monkeypatch.context() as patch:
        patch.setattr(ahead, "roll_out", come)
        with pytest.raises(watch.Stopped, match="stopped after update 2; start the same command again"):
            train.train(config, tmp_path / "run")
    assert checkpoint.latest_step(tmp_path / "run" / "checkpoints" / "state") == 2
    train.train(config, tmp_path / "run")
    assert_same(tmp_path / "run", stale, config)


def test_two_processes_train_what_one_does(
    stale: pathlib.Path, config: RunConfig, tmp_path: pathlib.Path
) -> None:
    finish(start(tmp_path / "two", 2, "--config.train.staleness=1"))
    assert_same_run(tmp_path / "two", stale, config)


def test_a_run_is_not_resumed_with_another_staleness(stale: pathlib.Path, config: RunConfig) -> None:
    other = dataclasses.replace(config, train=dataclasses.replace(config.train, staleness=0))
    with pytest.raises(metrics.RunError, match=r"train\.staleness: 1 -> 0"):
        train.train(other, stale)


def test_more_than_one_update_is_refused(config: RunConfig) -> None:
    with pytest.raises(ValueError, match=r"train\.staleness=2 is not allowed: 0 \(on-policy\) or 1"):
        dataclasses.replace(config.train, staleness=2)
