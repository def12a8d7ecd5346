"""What the launchers print and refuse, what is copied, and the shell scripts."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time

import pytest

from launch import cli, pack, slurm_job, tpu_vm, xpk
from launch.commands import ROOT, SCRATCH, Runner, Training, training
from launch.place import Place, bucket_of, canonical_accelerator
from tests.launch import stand_in

AWKWARD = '--config.rollout.instruction=it\'s $HOME "x"  y;`z` $(w) \\'
SCRIPTS = sorted((ROOT / "launch/remote").glob("*.sh"))


def _command(module: str, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=300,
    )


# --- the command line ---


def test_a_dry_run_of_the_command_is_a_script_that_can_be_pasted(world: pathlib.Path, name: str) -> None:
    run = f"{world / 'storage'}/my runs/x"
    done = _command(
        *("launch.tpu_pod", "up", "--dry-run", f"--name={name}", "--project=my-project"),
        *("--zone=us-east5-a", "--accelerator=v5e-16", "--version=v2-alpha-tpuv5-lite"),
        *("--config=configs/quickstart.py:grpo", f"--workdir={run}", AWKWARD, "--config.mesh.fsdp=-1"),
        "--ssh_arg=--internal-ip",
    )
    assert done.returncode == 0, done.stderr
    assert not (world / "calls.jsonl").exists()
    pasted = subprocess.run(["bash"], input=done.stdout, text=True, capture_output=True, timeout=120)
    assert "worker 0 continues after update 0" in pasted.stdout, pasted.stderr
    created, ssh = (
        next(argv for argv in stand_in.calls(world, "gcloud") if argv[2:4] == ["tpu-vm", verb])
        for verb in ("create", "ssh")
    )
    assert "--accelerator-type=v5litepod-16" in created
    assert "--internal-ip" in ssh
    trained = stand_in.calls(world, "train")
    assert len(trained) == stand_in.WORKERS
    assert trained[0] == [
        *("-m", "launch.local", "--distributed=auto", "--config=configs/quickstart.py:grpo"),
        *(f"--workdir={run}", AWKWARD, "--config.mesh.fsdp=-1"),
    ]


def test_a_wrong_config_key_is_refused_before_the_command_begins() -> None:
    argv = ["tpu_pod", "up", "--config=configs/quickstart.py", "--config.mesh.fspd=-1"]
    with pytest.raises(SystemExit, match=r"fspd.*fsdp"):
        cli.parse_flags(argv)


def test_the_command_ends_with_the_exit_status_of_the_training(world: pathlib.Path, name: str) -> None:
    with stand_in.changed(world) as state:
        state["behaviour"] = "worker 1 fails"
        state["clusters"] = ["mine"]
    done = _command(
        *("launch.tpu_pod", "up", "--backend=xpk", f"--name={name}", "--project=my-project"),
        *("--zone=us-east5-a", "--accelerator=v5p-16", "--cluster=mine", "--poll_seconds=0.1"),
        *("--config=configs/quickstart.py", f"--workdir={world / 'storage/run'}"),
    )
    assert done.returncode == 1, done.stderr
    assert "pod-1 ended with exit status 9" in done.stdout


# --- what is refused ---

GOOD = Place("a-slice", "my-project", "us-east5-a", "v5p-64", "v2-alpha-tpuv5")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": ""}, r"--name=\.\.\. is needed: lower-case letters"),
        ({"name": "My_Slice"}, r"--name=My_Slice is not allowed: lower-case letters.* at most 63"),
        ({"name": "a" * 64}, "at most 63 characters"),
        ({"name": "ends-"}, "--name=ends- is not allowed"),
        ({"project": ""}, r"--project=\.\.\. is needed"),
        ({"project": "My Project"}, "--project=My Project is not allowed: the id of a Google Cloud project"),
        ({"zone": "us-east5"}, "--zone=us-east5 is not allowed: a zone such as us-east5-a, not a region"),
        ({"accelerator": ""}, r"--accelerator=\.\.\. is needed: KIND-COUNT"),
        ({"accelerator": "h100-8"}, "--accelerator=h100-8 is not allowed: .*v5litepod, v5p, v6e"),
        ({"accelerator": "v5p-10"}, "the count of v5p is a multiple of 8 up to 12288"),
        ({"accelerator": "v5e-12"}, "the count of v5litepod is one of 1, 4, 8, 16"),
        ({"version": None}, r"--version=\.\.\. is needed: .* for v5p-64 the usual one is v2-alpha-tpuv5"),
        ({"backend": "gke"}, "--backend=gke is not allowed: one of tpu_vm, queued, xpk"),
        ({"cluster": "c"}, "--cluster=c has no effect with --backend=tpu_vm"),
        ({"backend": "xpk"}, "--version=v2-alpha-tpuv5 has no effect with --backend=xpk"),
        ({"backend": "xpk", "version": None, "name": "a" * 41}, "at most 40 characters"),
        ({"backend": "xpk", "version": None, "image": "gcr.io/p/i"}, "--image=gcr.io/p/i is not allowed"),
        ({"poll_s": 0.0}, "--poll_seconds=0.0 is not allowed: more than 0"),
    ],
)
def test_places_that_google_cloud_would_refuse(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(GOOD, **change)


def test_names_of_accelerators_and_buckets() -> None:
    assert canonical_accelerator("v5e-16") == canonical_accelerator("v5litepod-16") == "v5litepod-16"
    assert bucket_of("gs://my-bucket/a/b/") == ("my-bucket", "a/b")
    assert bucket_of("gs://my-bucket") == ("my-bucket", "")
    assert bucket_of("/shared/x") is None
    for wrong in ("runs/x", "gs://B/x", "gs://"):
        with pytest.raises(ValueError, match=f"--workdir={wrong} is not allowed: gs://BUCKET/PATH"):
            bucket_of(wrong)


def test_arguments_of_a_training() -> None:
    given = ["launch", "up", "--config=configs/quickstart.py", AWKWARD, "--name=x"]
    assert training("configs/quickstart.py", "/x", given).overrides == (AWKWARD,)
    with pytest.raises(ValueError, match=r"'--config\.mesh\.fsdp' cannot be handed on; write it as"):
        training("configs/quickstart.py", "/x", [*given, "--config.mesh.fsdp", "2"])
    with pytest.raises(ValueError, match="is outside the checkout"):
        training("/etc/passwd", "/x", [])
    with pytest.raises(ValueError, match="--workdir=DIR are both needed"):
        training("configs/quickstart.py", None, [])


def test_a_value_that_no_manifest_can_hold_is_refused() -> None:
    place = Place("x", "my-project", "us-east5-a", "v5p-8", backend="xpk")
    broken = Training("configs/quickstart.py", "/x", ("--config.rollout.instruction=a\nb",))
    with pytest.raises(ValueError, match="line breaks and control characters are not allowed"):
        xpk.workload_command(place, broken)


def test_a_state_that_nobody_knows_stops_the_launcher(
    place: Place, world: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with stand_in.changed(world) as state:
        state["nodes"][place.name] = {"states": ["DREAMING"], "accelerator": place.accelerator}
    with pytest.raises(Exception, match="in the state DREAMING, which this launcher does not know"):
        tpu_vm.look(place, Runner())


# --- the copy ---


def _repository(root: pathlib.Path) -> None:
    for path in (
        "a.py",
        "deep/b c.py",
        ".venv/x",
        "runs/r/y",
        "build/z",
        "p.egg-info/q",
        "deep/__pycache__/k",
    ):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(path)


def test_code_is_copied_with_git_and_without(tmp_path: pathlib.Path) -> None:
    _repository(tmp_path)
    wanted = [pathlib.Path("a.py"), pathlib.Path("deep/b c.py")]
    assert pack.code_files(tmp_path) == wanted
    ignored = ".venv/\nruns/\nbuild/\n*.egg-info/\n__pycache__/\n.gitignore\n"
    (tmp_path / ".gitignore").write_text(ignored)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@example.com"]
    for command in (["init", "-q"], ["add", "a.py"], ["commit", "-q", "-m", "x"]):
        subprocess.run([*git, *command], check=True, capture_output=True)
    assert pack.code_files(tmp_path) == wanted  # the new file comes along
    (tmp_path / "a.py").unlink()
    assert pack.code_files(tmp_path) == wanted[1:]
    pack.write_archive(tmp_path, wanted[1:], tmp_path / "out/code.tar.gz")
    with tarfile.open(tmp_path / "out/code.tar.gz") as archive:
        assert archive.getnames() == ["deep/b c.py"]
    for _ in range(2):  # what was there before is gone
        pack.write_folder(tmp_path, wanted[1:], tmp_path / "out/code")
        assert [path.name for path in (tmp_path / "out/code").rglob("*.py")] == ["b c.py"]


def test_what_is_too_large_for_code_is_named(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _repository(tmp_path)
    monkeypatch.setattr(pack, "LIMIT_MB", 0)
    with pytest.raises(
        ValueError, match=r"more than 0 MB to copy; add to \.gitignore what is not code: deep/b c"
    ):
        pack.code_files(tmp_path)


# --- Slurm ---


def _job(**change: object) -> slurm_job.Job:
    return dataclasses.replace(slurm_job.Job(nodes=2, gpus=8, time="1-12:00:00", partition="gpu"), **change)


def _text(job: slurm_job.Job, *overrides: str) -> str:
    return slurm_job.script(
        job, Training("configs/quickstart.py", "/shared/x", overrides), "/venv/bin/python"
    )


def test_the_script_of_a_slurm_job() -> None:
    text = _text(_job(account="me"))
    options = re.findall(r"^#SBATCH (.*)$", text, re.MULTILINE)
    assert options[:4] == ["--job-name=vict", "--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=8"]
    assert {"--exclusive", "--time=1-12:00:00", "--partition=gpu", "--account=me", "--requeue"} < set(options)
    assert "--signal=B:USR1@180" in options
    assert "export JAX_LOCAL_DEVICE_IDS=0,1,2,3,4,5,6,7\n" in text
    assert "--num_processes=2\n" in text
    text = _text(_job(process_per="gpu", cpus=64, container="nvcr.io/jax"))
    assert "#SBATCH --ntasks-per-node=8\n" in text
    assert text.count("--cpus-per-task=8\n") == 2  # of the job, and of the step
    assert "JAX_LOCAL_DEVICE_IDS" not in text  # JAX's default is the GPU of the process
    assert "--num_processes=16\n" in text
    assert "--container-image=nvcr.io/jax\n" in text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nodes": 0}, "--nodes=0 is not allowed: 1 or more"),
        ({"time": "soon"}, "--time=soon is not allowed"),
        ({"partition": "gpu --exclusive"}, "--partition=gpu --exclusive is not allowed"),
        ({"cpus": 60, "process_per": "gpu"}, "--cpus_per_node=60 is not allowed: a multiple of the 8"),
        ({"name": "a/b"}, "--name=a/b is not allowed: a name that a file can have"),
    ],
)
def test_slurm_jobs_that_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _job(**change)
    with pytest.raises(ValueError, match="--workdir=gs://b/x is not allowed"):
        slurm_job.script(_job(), Training("configs/quickstart.py", "gs://b/x"), "python")


def test_the_command_submits_and_says_how_to_follow_and_cancel(world: pathlib.Path, name: str) -> None:
    done = _command(
        *("launch.slurm", "--nodes=2", "--gpus_per_node=4", f"--name={name}"),
        *("--config=configs/quickstart.py", f"--workdir={world / 'storage/run'}", AWKWARD),
    )
    assert done.returncode == 0, done.stderr
    for hint in ("squeue --job=4711", f"tail -F {ROOT / SCRATCH / name}/4711.log", "scancel 4711"):
        assert hint in done.stdout
    assert AWKWARD in _run_job(world, None)[0]


def _run_job(world: pathlib.Path, sent: signal.Signals | None) -> tuple[list[str], int, int]:
    """Run the submitted script; arguments of the training, exit status, how often it was queued again."""
    before = len(stand_in.calls(world, "python3"))
    env = {**os.environ, "SLURM_JOB_ID": "4711", "SLURM_JOB_NODELIST": "node[0-1]"}
    job = subprocess.Popen(
        ["bash", str(world / "submitted.sbatch")], env=env, stdout=subprocess.PIPE, text=True
    )
    assert job.stdout is not None
    if sent is not None:
        while "waits" not in job.stdout.readline():
            pass
        job.send_signal(sent)
    said = job.communicate(timeout=60)[0]
    assert ("saves" in said) is (sent is not None)
    requeued = [argv for argv in stand_in.calls(world, "scontrol") if argv == ["requeue", "4711"]]
    return stand_in.calls(world, "python3")[before], job.returncode, len(requeued)


def test_a_slurm_job_saves_before_its_end_and_is_queued_again_but_not_when_cancelled(
    world: pathlib.Path, name: str
) -> None:
    with stand_in.changed(world) as state:
        state["behaviour"] = "waits"
    run = Training("configs/quickstart.py", str(world / "storage/run"))
    slurm_job.submit(_job(name=name), run, "python", Runner())
    assert _run_job(world, signal.SIGTERM)[1:] == (0, 0)
    assert _run_job(world, signal.SIGUSR1)[1:] == (0, 1)
    with stand_in.changed(world) as state:
        state["behaviour"] = "worker 1 fails"
    assert _run_job(world, None)[1:] == (1, 1)  # a failure is not queued again


# --- the shell scripts ---


def _shellcheck(arguments: list[str], text: str | None = None) -> None:
    program = shutil.which("shellcheck", path=f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}")
    if program is None:
        pytest.skip("shellcheck is not installed (it comes with the extra `test`)")
    done = subprocess.run([program, *arguments], input=text, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


def test_shellcheck_of_the_scripts_and_of_a_slurm_job() -> None:
    assert [path.name for path in SCRIPTS] == ["container.sh", "slurm.sh", "worker.sh"]
    _shellcheck([str(path) for path in SCRIPTS])
    # A dollar sign and a backslash in single quotes are what was asked for.
    _shellcheck(["--exclude=SC2016,SC1003", "-"], _text(_job(), AWKWARD))


def test_a_worker_that_is_asked_for_what_it_has_not(tmp_path: pathlib.Path) -> None:
    shutil.copy(ROOT / "launch/remote/worker.sh", tmp_path)

    def ask(*action: str) -> tuple[int, str]:
        done = subprocess.run(
            ["bash", str(tmp_path / "worker.sh"), *action], capture_output=True, text=True, timeout=60
        )
        return done.returncode, done.stdout + done.stderr

    assert ask("result")[1].rstrip().endswith(" none")
    assert ask("stop", "1")[1].rstrip().endswith(" none")
    status, said = ask("follow")
    assert status == 1
    assert "nothing was started here" in said
    assert ask("dance")[0] == 1


def test_a_worker_that_went_down_says_so_and_one_that_does_not_stop_is_killed(tmp_path: pathlib.Path) -> None:
    shutil.copy(ROOT / "launch/remote/worker.sh", tmp_path)
    (tmp_path / "code").mkdir()
    worker = ["bash", str(tmp_path / "worker.sh")]
    stubborn = "trap : TERM; echo here; while :; do sleep 0.2; done"
    subprocess.run([*worker, "start", "bash", "-c", stubborn], check=True, capture_output=True, timeout=60)
    end = time.monotonic() + 20
    while "here" not in (tmp_path / "run/log").read_text():
        assert time.monotonic() < end
        time.sleep(0.05)
    done = subprocess.run([*worker, "stop", "1"], check=True, capture_output=True, text=True, timeout=60)
    assert "still running after 1 s, killed" in done.stderr
    assert done.stdout.rstrip().endswith(" 137")
    (tmp_path / "run/exit").unlink()
    done = subprocess.run([*worker, "result"], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.rstrip().endswith(" lost")
