"""Create, run, follow, stop: whole cycles against stand-ins of gcloud and XPK."""

from __future__ import annotations

import dataclasses
import pathlib
import shlex
import time

import pytest

from launch import pod_actions, tpu_vm
from launch.commands import CommandFailed, Runner, Training
from launch.place import Place
from tests.launch import stand_in
from vict_jax.metrics import RunError

AWKWARD = ('--config.rollout.instruction=it\'s $HOME "x"  y;`z`', "--config.mesh.fsdp=-1")


@pytest.fixture
def training(world: pathlib.Path) -> Training:
    return Training("configs/quickstart.py", str(world / "storage/run"), AWKWARD)


def _behave(world: pathlib.Path, behaviour: str) -> None:
    with stand_in.changed(world) as state:
        state["behaviour"] = behaviour


def _trained(world: pathlib.Path, name: str = "train") -> list[list[str]]:
    return [argv for argv in stand_in.calls(world, name) if "launch.local" in argv]


def _shown(text: str) -> list[list[str]]:
    """The commands of a dry run, those in comments as well."""
    lines = [line.removeprefix("# ") for line in text.splitlines()]
    return [shlex.split(line) for line in lines if line.startswith(("gcloud ", "xpk ", "kubectl "))]


@pytest.mark.parametrize("backend", ["tpu_vm", "queued"])
def test_the_whole_cycle_with_a_slice_that_is_taken_away_once(
    backend: str, place: Place, world: pathlib.Path, training: Training, capfd: pytest.CaptureFixture[str]
) -> None:
    place = dataclasses.replace(place, backend=backend, spot=True)
    assert pod_actions.act("up", place, Runner(dry_run=True), training) == 0
    shown = _shown(capfd.readouterr().out)
    assert stand_in.calls(world, "gcloud") == []
    pod_actions.check(place, Runner())
    _behave(world, "taken away once")
    assert pod_actions.act("up", place, Runner(), training) == tpu_vm.PREEMPTED
    said = capfd.readouterr().out
    assert "--worker=1 '--command=tail -f vict_jax/run/log' --ssh-flag=-n" in said
    assert "Run the same command again to get it back" in said
    assert pod_actions.act("up", place, Runner(), training) == 0
    said = capfd.readouterr().out
    assert "worker 0 continues after update 1" in said
    assert f"The slice {place.name} (v5p-16) exists and costs money" in said
    # The dry run shows everything that was run, exactly.
    ran = [["gcloud", *argv] for argv in stand_in.calls(world, "gcloud") if argv[0] != "auth"]
    assert [argv for argv in ran if argv not in shown] == []
    group = "queued-resources" if backend == "queued" else "tpu-vm"
    made = [argv[4] for argv in ran if argv[3] == group and argv[4] in ("create", "delete")]
    assert made == ["create", "delete", "create"]
    # Every worker trains, with the arguments as they were given.
    assert len(_trained(world)) == 2 * stand_in.WORKERS
    for argv in _trained(world):
        assert argv == training.argv("python", "--distributed=auto")[1:]
    assert pod_actions.act("stop", place, Runner(), None) == 0
    assert "Nothing of" in capfd.readouterr().out
    assert stand_in.read_state(world)["nodes"] == stand_in.read_state(world)["requests"] == {}


def test_a_worker_that_fails_gives_its_status_and_its_name(
    place: Place, world: pathlib.Path, training: Training, capfd: pytest.CaptureFixture[str]
) -> None:
    _behave(world, "worker 1 fails")
    in_bucket = dataclasses.replace(training, workdir="gs://my-bucket/deep/run")
    assert pod_actions.act("up", place, Runner(), in_bucket) == 1
    assert (world / "storage/my-bucket/deep/run").is_dir()  # mounted where the code sees it
    said = capfd.readouterr().out
    assert "worker 0: a peer is gone" in said
    assert "worker 1 (t1v-n-0123abcd-w-1) ended with exit status 9; its log:" in said
    assert "--worker=1 '--command=tail -n 50 vict_jax/run/log'" in said


def test_a_running_training_is_followed_and_saves_when_it_is_stopped(
    place: Place, world: pathlib.Path, training: Training, capfd: pytest.CaptureFixture[str]
) -> None:
    _behave(world, "waits")
    for action in ("create", "copy", "install", "run"):
        assert pod_actions.act(action, place, Runner(), training) == 0
    assert pod_actions.act("run", place, Runner(), training) == 0  # as after a lost connection
    assert "running already" in capfd.readouterr().out
    assert len(_trained(world)) == stand_in.WORKERS
    with pytest.raises(CommandFailed, match=r"worker\.sh unpack"):
        pod_actions.act("copy", place, Runner(), training)
    assert "its code is left alone" in capfd.readouterr().err
    other = dataclasses.replace(training, overrides=())
    with pytest.raises(CommandFailed, match=r"worker\.sh start"):
        pod_actions.act("run", place, Runner(), other)
    assert pod_actions.act("status", place, Runner(), None) == 0
    assert "worker 1 (t1v-n-0123abcd-w-1): running" in capfd.readouterr().out
    assert pod_actions.act("stop", place, Runner(), None) == 0
    said = capfd.readouterr().out
    assert "vict_jax t1v-n-0123abcd-w-0 0" in said  # SIGTERM, saved, exit status 0
    assert (world / "storage/run/checkpoint").read_text() == "1"
    assert stand_in.read_state(world)["nodes"] == {}


def test_up_follows_what_runs_and_restarts_what_runs_in_part(
    place: Place, world: pathlib.Path, training: Training, capfd: pytest.CaptureFixture[str]
) -> None:
    _behave(world, "waits")
    for action in ("create", "copy", "install", "run"):
        pod_actions.act(action, place, Runner(), training)
    remote = world / "workers" / place.name / "1/vict_jax"
    # Worker 1 ends alone; the same command stops worker 0 and starts both.
    assert tpu_vm.results(place, Runner())["t1v-n-0123abcd-w-1"] == "running"
    Runner().run(tpu_vm.ssh_command(place, "1", ["bash", "vict_jax/worker.sh", "stop", "20"]))
    assert (remote / "run/exit").read_text() == "0\n"
    _behave(world, "well")
    capfd.readouterr()
    assert pod_actions.act("up", place, Runner(), training) == 0
    said = capfd.readouterr().out
    assert "some of the workers only" in said
    assert "exists (READY) and is used again" in said
    assert len(_trained(world)) == 2 * stand_in.WORKERS
    assert len(list((remote / "run").glob("log.*"))) == 1  # the log of the attempt before is kept
    installed = [argv for argv in stand_in.calls(world, "uv") if argv[0] == "venv"]
    assert len(installed) == stand_in.WORKERS  # once on each, not again


@pytest.mark.parametrize("own", [True, False])
def test_the_whole_cycle_with_xpk(
    own: bool, name: str, world: pathlib.Path, training: Training, capfd: pytest.CaptureFixture[str]
) -> None:
    place = Place(
        name=name,
        project="my-project",
        zone="us-east5-a",
        accelerator="v5e-8",
        backend="xpk",
        cluster=None if own else "shared",
        poll_s=0.1,
    )
    if not own:
        with pytest.raises(RunError, match="--cluster=shared does not exist"):
            pod_actions.act("up", place, Runner(), training)
        with stand_in.changed(world) as state:
            state["clusters"].append("shared")
    pod_actions.act("up", place, Runner(dry_run=True), training)
    shown = _shown(capfd.readouterr().out)
    pod_actions.check(place, Runner())
    assert pod_actions.act("up", place, Runner(), training) == 0
    assert "worker 0 continues after update 0" in capfd.readouterr().out
    ran = [["xpk", *argv] for argv in stand_in.calls(world, "xpk")]
    assert [argv for argv in ran if argv not in shown] == []
    for argv in _trained(world, "python3"):
        assert argv == training.argv("python", "--distributed=auto")[1:]
    # A workload that has ended is made anew under its name, and its exit status is handed on.
    _behave(world, "worker 1 fails")
    assert pod_actions.act("up", place, Runner(), training) == 1
    said = capfd.readouterr().out
    assert "pod-1 ended with exit status 9" in said
    assert pod_actions.act("stop", place, Runner(), None) == 0
    said = capfd.readouterr().out
    state = stand_in.read_state(world)
    assert state["workloads"] == {}
    assert state["clusters"] == ([] if own else ["shared"])
    assert ("The cluster shared exists and costs money" in said) is not own


def test_a_pod_that_has_to_go_asks_to_be_started_again(
    name: str, world: pathlib.Path, training: Training
) -> None:
    place = Place(name, "my-project", "us-east5-a", "v5e-8", backend="xpk", poll_s=0.1)
    _behave(world, "waits")
    for action in ("create", "copy", "run"):
        pod_actions.act(action, place, Runner(), training)
    logs = [world / f"{name}-{number}.log" for number in range(stand_in.WORKERS)]
    _until(lambda: all(log.exists() and f"worker {n} waits" in log.read_text() for n, log in enumerate(logs)))
    pod_actions.act("run", place, Runner(), training)  # it is there: left alone
    assert len(_trained(world, "python3")) == stand_in.WORKERS
    for number in range(stand_in.WORKERS):
        stand_in.terminate_pod(world, name, number)
    _until(lambda: all((world / f"{name}-{number}.log.exit").exists() for number in range(2)))
    assert "worker 0 saves" in logs[0].read_text()
    assert pod_actions.act("follow", place, Runner(), None) == 143  # XPK's policy restarts such a pod


def _until(done: object, seconds: float = 20.0) -> None:
    assert callable(done)
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def test_trouble_before_and_while_a_slice_is_created(
    place: Place, world: pathlib.Path, training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stand_in.changed(world) as state:
        state["capacity"] = "none"
    with pytest.raises(CommandFailed, match=r"(?s)tpu-vm create.*--backend=queued waits for it"):
        pod_actions.act("up", place, Runner(), training)
    with stand_in.changed(world) as state:
        state["nodes"][place.name] = {"states": ["READY"], "accelerator": "v5p-8"}
    with pytest.raises(RunError, match=r"--accelerator=v5p-16, but --name=.* is a v5p-8"):
        pod_actions.act("up", place, Runner(), training)
    with stand_in.changed(world) as state:
        state["nodes"][place.name] = {"states": ["STOPPED"], "accelerator": "v5p-16"}
    with pytest.raises(RunError, match=r"is STOPPED\. Start it"):
        pod_actions.act("create", place, Runner(), None)
    with stand_in.changed(world) as state:
        state["account"] = False
    with pytest.raises(RunError, match="nobody is logged in to gcloud; run: gcloud auth login"):
        pod_actions.check(place, Runner())
    monkeypatch.setenv("PATH", str(world / "worker_bin"))
    with pytest.raises(RunError, match="'gcloud' is not on PATH"):
        pod_actions.check(place, Runner())
    pod_actions.check(place, Runner(dry_run=True))  # which needs nothing
