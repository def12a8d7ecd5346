"""What watches a run: who saves when time is short, what hangs, heartbeats, profiles, gauges."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from absl import app, flags
from absl.testing import flagsaver

from launch import cli
from tests.run.results import ROOT
from vict_jax import heartbeat, metrics, watch
from vict_jax.heartbeat import Heartbeat, WatchOptions
from vict_jax.learner.microbatch import NonFiniteError
from vict_jax.start import Profile, traced
from vict_jax.textfile import TextFile

SOON = WatchOptions(grace_s=1.0, heartbeat_s=0.1)


class Ended:
    """Stands in for the end of the process: who ends it first, and why, can be seen."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, str]] = []
        self.called = threading.Event()

    def __call__(self, status: int, message: str) -> None:
        self.calls.append((status, message))
        self.called.set()


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> Ended:
    end = Ended()
    monkeypatch.setattr(watch, "_end", end)
    return end


def test_sigterm_is_answered_at_the_next_check_and_what_is_held_is_saved(tmp_path: pathlib.Path) -> None:
    saved = []

    def save() -> int:
        saved.append(7)
        return 7

    usual = signal.getsignal(signal.SIGTERM)

    def loop() -> None:
        with watch.Watch(tmp_path, WatchOptions()) as watched, watched.saving():
            watched.hold(save)
            told = watched.moving(lambda done, total: None)
            told(1, 2)
            signal.raise_signal(signal.SIGTERM)
            told(2, 2)
            pytest.fail("the loop goes on")

    with pytest.raises(watch.Stopped, match="stopped after update 7; start the same command again"):
        loop()
    assert saved == [7]
    assert signal.getsignal(signal.SIGTERM) is usual


def test_a_phase_that_takes_too_long_is_not_waited_for(tmp_path: pathlib.Path, ended: Ended) -> None:
    with watch.Watch(tmp_path, SOON) as watched, watched.phase("score"):
        watched.at(8)
        watched.hold(lambda: 7)
        signal.raise_signal(signal.SIGTERM)
        assert ended.called.wait(30)
    status, message = ended.calls[0]
    assert status == 0
    assert "phase 'score' of update 8 did not end in time; stopped after update 7" in message


def test_a_state_that_is_being_changed_is_not_saved(tmp_path: pathlib.Path, ended: Ended) -> None:
    with watch.Watch(tmp_path, SOON) as watched, watched.phase("update"):
        watched.hold(lambda: pytest.fail("saved"))
        watched.release()
        signal.raise_signal(signal.SIGTERM)
        assert ended.called.wait(30)
    status, message = ended.calls[0]
    assert status == 0
    assert "phase 'update' did not end in time; the run continues from its last checkpoint" in message


PROGRAM = """
import pathlib, signal, sys, time
from vict_jax.watch import Watch, WatchOptions
workdir = pathlib.Path(sys.argv[1])
def save():
    (workdir / "saved").write_text("7")
    return 7
with Watch(workdir, WatchOptions(grace_s=2.0)) as watched, watched.phase("rollouts"):
    watched.hold(save)
    signal.raise_signal(signal.SIGTERM)
    time.sleep(600)
"""


def test_the_process_ends_within_its_grace_time(tmp_path: pathlib.Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    assert "stopped after update 7" in done.stderr
    assert (tmp_path / "saved").read_text() == "7"


def test_a_hang_names_all_hosts_and_their_phases(
    tmp_path: pathlib.Path, ended: Ended, capfd: pytest.CaptureFixture[str]
) -> None:
    options = WatchOptions(timeout_s=0.3, heartbeat_s=0.1)
    with watch.Watch(tmp_path, options) as watched, watched.phase("score"):
        watched.at(4)
        other = Heartbeat(1, "elsewhere", 99, "rollouts", 4, progress=10, idle_s=0.0, written=3, time="")
        heartbeat.write(tmp_path, other)
        assert ended.called.wait(30)
    status, message = ended.calls[0]
    assert status == 1
    assert "phase 'score' of update 4 made no progress for" in message
    assert "host 1 (elsewhere): phase 'rollouts' of update 4, no heartbeat" in message
    assert "test_a_hang_names_all_hosts" in capfd.readouterr().err  # where it stood


def test_progress_is_no_hang_and_ends_with_a_last_heartbeat(tmp_path: pathlib.Path, ended: Ended) -> None:
    options = WatchOptions(timeout_s=1.0, heartbeat_s=0.1)
    with watch.Watch(tmp_path, options) as watched, watched.phase("rollouts"):
        told = watched.moving(lambda done, total: None)
        for n in range(30):
            time.sleep(0.05)
            told(n, 30)
        (one,) = heartbeat.read(tmp_path)
    assert not ended.calls
    assert (one.process, one.pid, one.phase, one.update) == (0, os.getpid(), "rollouts", None)
    assert one.written > 1
    assert heartbeat.read(tmp_path)[0].phase == "ended"


def test_heartbeats_of_an_earlier_start_are_gone(tmp_path: pathlib.Path) -> None:
    for process in range(3):
        heartbeat.write(tmp_path, heartbeat.beat(process, "score", 1, progress=1, idle_s=0.0, written=0))
    with watch.Watch(tmp_path, WatchOptions()):
        pass
    assert [one.process for one in heartbeat.read(tmp_path)] == [0]


def test_a_disk_without_room_for_heartbeats_stops_nothing(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(heartbeat, "write", full)
    with watch.Watch(tmp_path, WatchOptions()), caplog.at_level("WARNING", logger="absl"):
        pass
    assert "no heartbeat: No space left on device" in caplog.text


@pytest.mark.parametrize(("name", "value"), [("grace_s", 0.5), ("timeout_s", -1.0), ("heartbeat_s", 0.0)])
def test_options_are_checked(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"watch\.{name}={value} is not allowed"):
        WatchOptions(**{name: value})


def test_updates_are_traced_on_request(tmp_path: pathlib.Path) -> None:
    seen = []
    for update in traced(range(1, 5), Profile.parse("2:2"), tmp_path):
        seen.append(update)
        jax.block_until_ready(jnp.ones(3) * update)
        written = any(tmp_path.rglob("*.xplane.pb"))
        assert written is (update == 4)
    assert seen == [1, 2, 3, 4]


def test_a_trace_that_is_cut_off_is_written(tmp_path: pathlib.Path) -> None:
    def loop() -> Iterator[int]:
        yield from traced(range(1, 5), Profile(2, 9), tmp_path)

    updates = loop()
    assert [next(updates), next(updates)] == [1, 2]
    updates.close()
    assert any(tmp_path.rglob("*.xplane.pb"))


@pytest.mark.parametrize("text", ["3", "a:1", "1:", "0:1", "1:0"])
def test_a_profile_must_say_which_updates(text: str) -> None:
    with pytest.raises(ValueError, match=r"UPDATE:COUNT|is not allowed"):
        Profile.parse(text)


def test_gauges_hold_the_newest_values(tmp_path: pathlib.Path) -> None:
    with metrics.MetricsWriter(tmp_path, None, gauges=TextFile(tmp_path / "metrics.prom")) as writer:
        writer.write("train", 1, {"success": 0.25, "seconds/env": 2.0, "note": "words"})
        writer.write("train", 2, {"success": 0.5, "seconds/env": 3.0})
        writer.write("eval", 2, {"success": 0.75})
    lines = (tmp_path / "metrics.prom").read_text().splitlines()
    assert {"vict_train_success 0.5", "vict_train_seconds_env 3.0", "vict_train_update 2.0"} <= set(lines)
    assert "vict_eval_success 0.75" in lines
    assert not any("note" in line for line in lines)


def test_gauges_say_what_they_need(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ValueError, match=r"pip install vict_jax\[watch\]"):
        TextFile(tmp_path / "metrics.prom")


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (watch.Stopped("stopped after update 7"), 0, "stopped after update 7"),
        (NonFiniteError("update 8: loss is not finite"), 1, "update 8: loss is not finite\nNothing of this"),
    ],
)
def test_entry_points_end_with_one_message(
    error: Exception,
    code: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def main() -> None:
        raise error

    def run(guarded: Any, flags_parser: Any) -> None:
        try:
            guarded(["program"])
        except SystemExit as end:
            ends.append(end)

    ends: list[SystemExit] = []
    monkeypatch.setattr(app, "run", run)
    flags.FLAGS.mark_as_parsed()
    with flagsaver.flagsaver(traceback=False):
        cli.run(main)
    assert len(ends) == code
    assert message in (str(ends[0].code) if ends else capfd.readouterr().err)
