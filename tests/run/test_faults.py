"""The table of docs/faults.md: after each fault the same command gives what an untroubled run gives.

What ends an environment is in tests/envs/test_pool.py, what ends a whole process of several in
tests/run/test_processes.py.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import logging
import os
import pathlib
import re
import shutil
import signal
import time
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from tests.run.results import assert_same, comparable, kill_at, start, wait_for_update
from vict_jax import checkpoint, heartbeat, metrics, train, watch
from vict_jax.config import RunConfig
from vict_jax.heartbeat import WatchOptions
from vict_jax.job import Job, open_job
from vict_jax.learner.microbatch import NonFiniteError
from vict_jax.start import StartOptions


@pytest.fixture(scope="module")
def patient(config: RunConfig) -> RunConfig:
    """With so much grace that a busy machine does not end the tests with the run."""
    return dataclasses.replace(config, watch=WatchOptions(grace_s=3600.0))


@pytest.fixture
def two_updates(finished: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """A run that was killed when its second checkpoint was complete."""
    workdir = shutil.copytree(finished, tmp_path / "run")
    shutil.rmtree(workdir / "checkpoints" / "state" / "step_00000003")
    return workdir


# Where a run is killed, start after start: the function, and which call of it since this start.
KILLS = (
    (train, "validate", 1),  # after the warm start, before anything is saved
    (train, "save_reference", 1),
    (train.StateSaver, "save", 1),  # reference there, state not
    (train, "learn", 2),  # in update 2
    (train, "run_update", 2),  # between updates 2 and 3
    (train.StateSaver, "save", 1),  # update 3 in the metrics, not in a checkpoint
)


def test_field_report_33_a_run_that_is_killed_again_and_again_continues_exactly(
    finished: pathlib.Path, config: RunConfig, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for owner, name, call in KILLS:
        kill_at(monkeypatch, owner, name, call, config, tmp_path / "run")
    train.train(config, tmp_path / "run")
    assert_same(tmp_path / "run", finished, config)


def test_signals_lose_nothing(finished: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Ctrl-C, SIGTERM and SIGKILL on the real command, each in another update; then it ends undisturbed."""
    workdir = tmp_path / "run"
    told = {}
    for update, number in ((1, signal.SIGINT), (2, signal.SIGTERM), (3, signal.SIGKILL)):
        process = start(workdir)
        wait_for_update(workdir, update, process)
        process.send_signal(number)
        _, told[number] = process.communicate(timeout=100)
        assert process.returncode == {signal.SIGINT: 130, signal.SIGTERM: 0, signal.SIGKILL: -9}[number]
        assert "Traceback" not in told[number]
    assert "start the same command again" in told[signal.SIGINT]
    assert re.search(r"stopped after update [23]; start the same command again", told[signal.SIGTERM])
    again = start(workdir)
    stdout, stderr = again.communicate(timeout=600)
    assert again.returncode == 0, stderr
    assert "success on valid_unseen" in stdout
    assert comparable(workdir) == comparable(finished)


def sigterm_in(monkeypatch: pytest.MonkeyPatch, phase: str) -> None:
    """SIGTERM comes once, when the loop has entered a phase; in "update" when the state is given up."""
    place, learn, came = watch.Watch._place, train.learn, False

    def come() -> None:
        nonlocal came
        if not came:
            came = True
            signal.raise_signal(signal.SIGTERM)

    def placed(self: watch.Watch, name: str) -> None:
        place(self, name)
        if name == phase != "update":
            come()

    def learnt(*args: Any) -> Any:
        if phase == "update":
            come()
        return learn(*args)

    monkeypatch.setattr(watch.Watch, "_place", placed)
    monkeypatch.setattr(train, "learn", learnt)


# Updates that are finished when SIGTERM has come in a phase of update 3.
PHASES = {
    "rollouts": 2,
    "recover": 2,
    "gate": 2,
    "score": 2,
    "credit": 2,
    "log": 2,
    "update": 3,
    "validation": 3,
}


def test_sigterm_in_every_phase_saves_what_is_finished(
    two_updates: pathlib.Path, finished: pathlib.Path, patient: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = two_updates / "checkpoints" / "state"
    for phase, update in PHASES.items():
        with monkeypatch.context() as patch:
            sigterm_in(patch, phase)
            with pytest.raises(watch.Stopped, match=f"stopped after update {update}; start the same command"):
                train.train(patient, two_updates)
        assert checkpoint.latest_step(saved) == update
        beat = heartbeat.read(two_updates)[0]
        assert (beat.phase, beat.update) == ("Stopped in checkpoint", 3)
    train.train(patient, two_updates)
    assert_same(two_updates, finished, patient)


def test_sigterm_while_a_checkpoint_is_begun_ends_after_it(
    two_updates: pathlib.Path, finished: pathlib.Path, patient: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    sigterm_in(monkeypatch, "checkpoint")
    train.train(patient, two_updates)  # it was the last update, so there is nothing left to stop
    assert_same(two_updates, finished, patient)


@pytest.mark.parametrize("phase", ["conformance", "expert episodes", "warm start"])
def test_sigterm_before_the_first_update_starts_anew(
    phase: str, patient: RunConfig, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sigterm_in(monkeypatch, phase)
    with pytest.raises(watch.Stopped, match="stopped before the first update"):
        train.train(patient, tmp_path)
    assert not any((tmp_path / "checkpoints").rglob("step_*"))
    assert {row["kind"] for row in metrics.read_metrics(tmp_path)} <= {"conformance"}


def test_a_killed_worker_changes_nothing(
    two_updates: pathlib.Path, finished: pathlib.Path, config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, killed = train.roll_out, []

    def roll_out(job: Job, *args: Any, **kwargs: Any) -> Any:
        killed.append(job.pool.pids[0])
        os.kill(killed[0], signal.SIGKILL)
        os.waitid(os.P_PID, killed[0], os.WEXITED | os.WNOWAIT)
        return original(job, *args, **kwargs)

    monkeypatch.setattr(train, "roll_out", roll_out)
    train.train(config, two_updates)
    assert len(killed) == 1
    assert_same(two_updates, finished, config)


def test_a_clock_that_is_set_changes_nothing(
    two_updates: pathlib.Path, finished: pathlib.Path, config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, original, step = time.time, train.learn, 0.0

    def learn(*args: Any) -> Any:
        nonlocal step
        step = -86_400.0
        return original(*args)

    monkeypatch.setattr(time, "time", lambda: clock() + step)
    monkeypatch.setattr(train, "learn", learn)
    train.train(config, two_updates)
    assert step < 0
    assert_same(two_updates, finished, config)


def test_a_gradient_that_is_not_finite_stops_and_loses_nothing(
    two_updates: pathlib.Path, finished: pathlib.Path, config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = train.learn

    def learn(job: Job, learner: Any, state: Any, *args: Any) -> Any:
        with jax.transfer_guard("allow"):
            spoilt = dataclasses.replace(state, params=jax.tree.map(lambda x: x * jnp.nan, state.params))
        return original(job, learner, spoilt, *args)

    with monkeypatch.context() as patch:
        patch.setattr(train, "learn", learn)
        with pytest.raises(NonFiniteError, match=r"update 3, .*gradient of .* not finite"):
            train.train(config, two_updates)
    assert [row["update"] for row in metrics.read_metrics(two_updates) if row["kind"] == "train"] == [1, 2]
    train.train(config, two_updates)
    assert_same(two_updates, finished, config)


def test_a_damaged_checkpoint_is_passed_over(
    finished: pathlib.Path, config: RunConfig, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A truncated file; other damage is in test_checkpoint.py."""
    workdir = shutil.copytree(finished, tmp_path / "run")
    newest = workdir / "checkpoints" / "state" / "step_00000003"
    file = max((p for p in newest.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    file.write_bytes(file.read_bytes()[:-100])
    with caplog.at_level(logging.WARNING, logger="absl"):
        train.train(config, workdir)
    assert "using the checkpoint of update 2 instead of a damaged one" in caplog.text
    assert file.name in caplog.text
    assert_same(workdir, finished, config)


@pytest.mark.parametrize("where", ["while logging", "during a checkpoint"])
def test_a_full_disk_stops_with_one_message_and_loses_nothing(
    where: str,
    two_updates: pathlib.Path,
    finished: pathlib.Path,
    config: RunConfig,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        if where == "while logging":
            patch.setattr(metrics.os, "fsync", full)
        else:
            patch.setattr(checkpoint, "_fsync", full)
        with pytest.raises(metrics.RunError, match=r"no space left while writing .*is kept; free some space"):
            train.train(config, two_updates)
    assert checkpoint.steps(two_updates / "checkpoints" / "state") == [2]
    train.train(config, two_updates)
    assert_same(two_updates, finished, config)


def test_another_config_in_the_same_workdir_is_refused(finished: pathlib.Path, config: RunConfig) -> None:
    before = {p: p.read_bytes() for p in finished.rglob("*") if p.is_file() and p.name != ".lock"}
    other = dataclasses.replace(config, seed=1)
    with pytest.raises(metrics.RunError, match=r"seed: 0 -> 1\nUse the same config"):
        train.train(other, finished)
    assert before == {p: p.read_bytes() for p in finished.rglob("*") if p.is_file() and p.name != ".lock"}


def test_field_report_28_changed_tasks_are_refused(
    finished: pathlib.Path, config: RunConfig, tmp_path: pathlib.Path
) -> None:
    """The config names the same data, but the data are not the same any more."""
    (tmp_path / "config.json").write_bytes((finished / "config.json").read_bytes())
    header = json.loads((finished / "run.json").read_text())
    header["tasks"]["train"]["sha256"] = "0" * 64
    (tmp_path / "run.json").write_text(json.dumps(header))
    with pytest.raises(metrics.RunError, match=r"have changed since it was started:\n  tasks train"):
        train.train(config, tmp_path)


def test_a_changed_tokenizer_is_refused(two_updates: pathlib.Path, config: RunConfig) -> None:
    file = two_updates / "tokenizer" / "tokenizer.json"
    file.write_text(file.read_text() + " ")
    message = r"tokenizer tokenizer\.json: .*\nRestore them .* --allow_changed=tokenizer"
    with pytest.raises(metrics.RunError, match=message), open_job(config, two_updates):
        pass
    for _ in range(2):  # allowed once, it is the one that the run goes on with
        with open_job(config, two_updates, ("tokenizer",)):
            pass
        (noted,) = json.loads((two_updates / "run.json").read_text())["changed"]
        assert noted["what"][0].startswith("tokenizer tokenizer.json: ")
    with open_job(config, two_updates):
        pass


def test_what_is_allowed_to_change_must_exist(finished: pathlib.Path, config: RunConfig) -> None:
    for name in ("train.gruops", "games", "train"):
        options = StartOptions(allow_changed=(name,))
        with pytest.raises(ValueError, match=f"--allow_changed={name} is not allowed: it must be a key"):
            train.train(config, finished, options)
