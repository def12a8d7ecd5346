"""Several processes as one run: the result of one process, other numbers on resume, and the end of a peer."""

from __future__ import annotations

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from launch import rehearsal
from tests.run.results import ROOT, comparable, final_state
from tests.run.several import several_config
from vict_jax import checkpoint, heartbeat, processes, proofs, sharding, shares, train
from vict_jax.config import RunConfig, from_config_dict
from vict_jax.metrics import RunError

# What depends on which rows and prompts are beside each other, and what is nothing but rounding.
PACKING = ("count/shared_tokens", "token_rows", "row_fill")
ROUNDING = ("first_log_ratio_max", "kl_", "loss", "policy_loss")


@pytest.fixture(scope="module")
def config() -> RunConfig:
    return from_config_dict(several_config())


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory, config: RunConfig) -> pathlib.Path:
    """A run of one process."""
    workdir = tmp_path_factory.mktemp("processes") / "one"
    train.train(config, workdir)
    return workdir


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The same run over two processes, by the command."""
    workdir = tmp_path_factory.mktemp("processes") / "two"
    finish(start(workdir, 2))
    return workdir


@pytest.fixture(scope="module")
def killed(
    two: pathlib.Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[pathlib.Path, int, str, float]:
    """That run, its second process killed in update 3: its exit code, what it said, seconds to the end."""
    workdir = set_back(two, tmp_path_factory.mktemp("processes") / "killed")
    command = start(workdir, 2)
    assert command.stdout is not None
    assert any(line == "continuing after update 2\n" for line in command.stdout)
    os.kill(child(command, 1), signal.SIGKILL)
    began = time.monotonic()
    _, stderr = command.communicate(timeout=120)
    return workdir, command.returncode, stderr, time.monotonic() - began


def start(workdir: pathlib.Path, count: int, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "launch.local", "--config=tests/run/several.py", f"--workdir={workdir}"]
    return subprocess.Popen(
        [*command, f"--processes={count}", *more],
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(command: subprocess.Popen[str]) -> str:
    try:
        stdout, stderr = command.communicate(timeout=600)
    finally:
        command.terminate()
    assert command.returncode == 0, stderr
    return stdout


def child(command: subprocess.Popen[str], index: int) -> int:
    """Process id of process `index` of the run."""
    pids = pathlib.Path(f"/proc/{command.pid}/task/{command.pid}/children").read_text().split()
    place = f"--process_id={index}".encode()
    return next(int(pid) for pid in pids if place in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes())


def set_back(run: pathlib.Path, to: pathlib.Path) -> pathlib.Path:
    """A copy of a finished run as if it had been killed in its last update."""
    shutil.copytree(run, to)
    shutil.rmtree(to / "checkpoints" / "state" / "step_00000003")
    return to


def assert_same_run(run: pathlib.Path, expected: pathlib.Path, config: RunConfig) -> None:
    """Tasks, rollouts and credit are the same, and parameters, moments and advantages to 1e-6."""
    assert proofs.logged_updates(run) == [1, 2, 3]
    for path in sorted(expected.glob("*/update_*.parquet")):
        assert_same_table(pq.read_table(run / path.relative_to(expected)), pq.read_table(path))
    for update in (1, 2, 3):
        found, wanted = proofs.read_inputs(run, update), proofs.read_inputs(expected, update)
        jax.tree.map(np.testing.assert_array_equal, found, wanted)
    state, wanted_state = final_state(run, config), final_state(expected, config)
    assert state.keys() == wanted_state.keys()
    for name, value in wanted_state.items():
        np.testing.assert_allclose(state[name], value, rtol=0, atol=1e-6, err_msg=name)
    rows, wanted_rows = comparable(run), comparable(expected)
    assert [(row["kind"], row["update"]) for row in rows] == [(r["kind"], r["update"]) for r in wanted_rows]
    for row, wanted_row in zip(rows, wanted_rows, strict=True):
        assert row.keys() == wanted_row.keys()
        for name, value in wanted_row.items():
            if not name.startswith((*PACKING, *ROUNDING)):
                close = pytest.approx(value, rel=1e-3, abs=1e-6) if isinstance(value, float) else value
                assert row[name] == close, (name, row[name], value)


def assert_same_table(found: pa.Table, expected: pa.Table) -> None:
    assert found.schema == expected.schema
    for name in expected.column_names:
        if pa.types.is_floating(expected.schema.field(name).type):
            np.testing.assert_allclose(found[name], expected[name], rtol=0, atol=1e-6, err_msg=name)
        else:
            assert found[name].to_pylist() == expected[name].to_pylist(), name


def test_field_report_35_two_processes_train_what_one_does(
    one: pathlib.Path, two: pathlib.Path, config: RunConfig
) -> None:
    """Field report 35: one mesh over both processes, and the result of one."""
    table = pa.concat_tables([pq.read_table(path) for path in sorted((one / "rollouts").glob("*.parquet"))])
    assert len(np.unique(table["advantage"])) > 8  # there is something to learn
    assert_same_run(two, one, config)
    files = {path.relative_to(one) for path in one.rglob("*") if path.is_file()}
    written = {path.relative_to(two) for path in two.rglob("*") if path.is_file()}
    # Named after clock and host; laid out by Orbax; a file a process.
    inside = {"events", "checkpoints", "heartbeats"}
    assert {path for path in files if path.parts[0] not in inside} == {
        path for path in written if path.parts[0] not in inside
    }
    assert not list(two.rglob(".*partial"))


def test_a_killed_process_ends_the_run_with_one_message(
    killed: tuple[pathlib.Path, int, str, float],
) -> None:
    _, code, stderr, seconds = killed
    assert code == 128 + signal.SIGKILL
    assert "error: process 1 of 2 was killed by SIGKILL" in stderr
    assert "start the same command again to continue" in stderr
    assert stderr.count("error:") == 1
    assert "Traceback" not in stderr
    assert seconds < 60


def test_sigterm_to_one_process_stops_all_at_the_same_update(
    two: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    workdir = set_back(two, tmp_path / "run")
    command = start(workdir, 2)
    assert command.stdout is not None
    assert any(line == "continuing after update 2\n" for line in command.stdout)
    os.kill(child(command, 1), signal.SIGTERM)
    _, stderr = command.communicate(timeout=600)
    assert command.returncode == 0, stderr
    assert "stopped after update 2; start the same command again" in stderr
    assert checkpoint.latest_step(workdir / "checkpoints" / "state") == 2
    assert [(beat.process, beat.phase) for beat in heartbeat.read(workdir)] == [
        (0, "Stopped in checkpoint"),
        (1, "Stopped in checkpoint"),
    ]


def test_the_same_command_continues_exactly(
    killed: tuple[pathlib.Path, int, str, float],
    two: pathlib.Path,
    config: RunConfig,
    tmp_path: pathlib.Path,
) -> None:
    workdir = shutil.copytree(killed[0], tmp_path / "run")
    assert "continuing after update 2" in finish(start(workdir, 2))
    assert comparable(workdir) == comparable(two)
    expected = final_state(two, config)
    for name, value in final_state(workdir, config).items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)


def test_a_run_of_two_processes_is_resumed_by_one(
    killed: tuple[pathlib.Path, int, str, float],
    one: pathlib.Path,
    config: RunConfig,
    tmp_path: pathlib.Path,
) -> None:
    workdir = shutil.copytree(killed[0], tmp_path / "run")
    train.train(config, workdir)
    assert_same_run(workdir, one, config)


@pytest.mark.parametrize("count", [2, 4])
def test_a_run_of_one_process_is_resumed_by_several(
    count: int, one: pathlib.Path, config: RunConfig, tmp_path: pathlib.Path
) -> None:
    workdir = set_back(one, tmp_path / "run")
    assert checkpoint.latest_step(workdir / "checkpoints" / "state") == 2
    assert "continuing after update 2" in finish(start(workdir, count))
    assert_same_run(workdir, one, config)


# --- what one process can show ---------------------------------------------------------------------


def as_process(monkeypatch: pytest.MonkeyPatch, index: int, count: int) -> None:
    monkeypatch.setattr(jax, "process_index", lambda: index)
    monkeypatch.setattr(jax, "process_count", lambda: count)


@pytest.mark.parametrize(("total", "count"), [(7, 3), (4, 4), (2, 4), (0, 2)])
def test_every_task_is_of_exactly_one_process(
    total: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares_of_all = []
    for index in range(count):
        as_process(monkeypatch, index, count)
        shares_of_all.append(processes.share(total))
    assert [n for share in shares_of_all for n in share] == list(range(total))


def test_groups_of_several_processes_come_back_in_the_order_of_the_update(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Recoveries stand behind all other groups, whoever has played them."""
    numbers = [[0, 1, 4], [2, 3, 5]]
    values = [np.array(some) * 10 for some in numbers]
    monkeypatch.setattr(processes, "gather", lambda own: numbers if isinstance(own, list) else values)
    for own, some in zip(numbers, values, strict=True):
        share = shares.share_of(own)
        assert share.total == 6
        everything = shares.whole(some, share)
        assert everything.tolist() == [0, 10, 20, 30, 40, 50]
        assert shares.part((everything, np.float32(7)), share)[0].tolist() == some.tolist()
    numbers = [[0, 1], [1]]
    with pytest.raises(ValueError, match=r"numbers=\[0, 1, 1\] of all processes must be 0, 1, \.\.\."):
        shares.share_of([0, 1])


@pytest.mark.parametrize(
    ("coordinator", "count", "index", "message"),
    [
        ("host", 2, 0, "coordinator='host' is not allowed: it must be HOST:PORT"),
        ("host:1", None, 0, "needs num_processes and process_id too, got None and 0"),
        ("host:1", 2, 2, "process_id=2 is not allowed: it must be in 0 ... num_processes - 1 = 1"),
    ],
)
def test_a_place_that_makes_no_sense(
    coordinator: str, count: int | None, index: int | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message.replace(".", r"\.")):
        processes.check_place(coordinator, count, index)


def test_groups_and_mesh_must_fit_the_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"train\.groups=4 is not allowed with 3 processes"):
        processes.check_groups(4, 3)
    mesh = sharding.make_mesh()
    assert sharding.local_mesh(mesh) is mesh
    as_process(monkeypatch, 0, 2)
    monkeypatch.setattr(jax, "device_count", lambda: 2)
    with pytest.raises(ValueError, match=r"has 1 devices, but the 2 processes have 2.*mesh\.data=-1"):
        sharding.local_mesh(mesh)


def test_too_few_processes_stop_the_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax.distributed, "initialize", lambda **_: None)
    with pytest.raises(RunError, match="num_processes=3 processes were asked for, but JAX sees 1"):
        processes.join("127.0.0.1:1", 3, 0)


@pytest.mark.parametrize(
    ("sizes", "collectives"), [((0, 3), 1), ((4096, 17), 1), ((4097, 0), 2), ((9000, 70_000), 2)]
)
def test_what_processes_exchange_is_what_they_said(
    monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, int], collectives: int
) -> None:
    said = [np.random.default_rng(size).integers(0, 256, size, np.uint8).tobytes() for size in sizes]
    meet, calls, found = threading.Barrier(2), [0, 0], [[], []]
    here, rows = threading.local(), [b"", b""]

    def allgather(padded: np.ndarray) -> np.ndarray:
        calls[here.index] += 1
        rows[here.index] = padded.tobytes()
        meet.wait(10)
        together = np.stack([np.frombuffer(row, np.uint8) for row in rows])  # fails if the lengths differ
        meet.wait(10)
        return together

    def act(index: int) -> None:
        here.index = index
        found[index] = processes._exchange(said[index])

    monkeypatch.setattr(processes.multihost_utils, "process_allgather", allgather)
    threads = [threading.Thread(target=act, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [said, said]
    assert calls == [collectives] * 2


def test_what_the_first_process_is_refused_all_are(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = [RunError("another run is here")]
    monkeypatch.setattr(processes, "gather", lambda own: told)
    as_process(monkeypatch, 1, 2)
    with pytest.raises(RunError, match="another run is here"):
        processes.from_first(lambda: pytest.fail("only the first may act"))


# --- the launcher, with programs that need no JAX -----------------------------------------------------


def run(script: str, count: int = 2) -> int:
    """The exit code of `run_processes`; `script` has its index as `index`."""
    place = "import sys, time, signal; index = int(sys.argv[-1].partition('=')[2]); "
    return rehearsal.run_processes([sys.executable, "-c", place + script], count)


def test_the_first_process_has_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    assert run("print('hello from', index)", 3) == 0
    assert capfd.readouterr() == ("hello from 0\n", "")


@pytest.mark.parametrize(
    ("script", "code", "said"),
    [
        (
            "sys.exit('boom') if index == 1 else time.sleep(60)",
            1,
            "[process 1] boom\nerror: process 1 of 2 ended",
        ),
        ("signal.raise_signal(9) if index == 1 else time.sleep(60)", 137, "error: process 1 of 2 was killed"),
        ("signal.raise_signal(9) if index == 0 else time.sleep(60)", 137, "error: process 0 of 2 was killed"),
        (
            "time.sleep(0.5 * (1 - index)); sys.exit('boom')",
            1,
            "boom\nerror: process 0 of 2 ended with exit code 1",
        ),
    ],
)
def test_one_failure_ends_all_with_one_message(
    script: str, code: int, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    began = time.monotonic()
    assert run(script) == code
    assert time.monotonic() - began < 20
    assert capfd.readouterr().err.startswith(said)


def test_a_signal_reaches_all_processes(capfd: pytest.CaptureFixture[str], tmp_path: pathlib.Path) -> None:
    """Both end by themselves with 0, as a run does that saves its state at SIGTERM."""
    script = (
        f"import pathlib; here = pathlib.Path({str(tmp_path)!r}); "
        "signal.signal(15, lambda *_: ((here / f'ended{index}').touch(), sys.exit(0))); "
        "(here / f'ready{index}').touch(); time.sleep(60)"
    )

    def interrupt() -> None:
        while not all((tmp_path / f"ready{index}").exists() for index in range(2)):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=interrupt)
    thread.start()
    assert run(script) == 0
    thread.join()
    assert all((tmp_path / f"ended{index}").exists() for index in range(2))
    assert capfd.readouterr().err == ""


def test_the_flag_that_is_taken_out() -> None:
    argv = ["launch/local.py", "--config=c.py", "--processes=2", "--workdir=w"]
    assert rehearsal.command_without("processes", argv)[3:] == ["--config=c.py", "--workdir=w"]
    with pytest.raises(ValueError, match="must be written --processes=N"):
        rehearsal.command_without("processes", ["local.py", "--processes", "2"])
