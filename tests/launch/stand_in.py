"""Programs that stand in for gcloud, xpk, kubectl and Slurm in rehearsals, and for what workers have.

One file under many names: `install` writes each as a small script onto a PATH. Whatever is called is
recorded with its arguments. A slice is a small state machine in `state.json`; each of its workers is a
folder, in which the command of `gcloud ... ssh` is executed by bash, as sshd would do it, and to which `scp`
copies.

What the training does is said by `behaviour` in the state: "well" (it ends), "worker 1 fails", "taken away
once" (the slice is pre-empted while it runs), "waits" (until SIGTERM, then it saves and exits 0).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

LOCAL = ("gcloud", "xpk", "kubectl", "docker", "sbatch", "srun", "scontrol")
ON_WORKERS = ("python3", "uv", "gcsfuse", "mountpoint")
WORKERS = 2


def install(folder: pathlib.Path) -> None:
    """Put the programs into `folder/bin` (this machine) and `folder/worker_bin` (the workers)."""
    for place, names in (("bin", LOCAL), ("worker_bin", ON_WORKERS)):
        (folder / place).mkdir(parents=True)
        for name in names:
            write_program(folder / place / name, name, folder)
    (folder / "worker_bin/hostname").write_text('#!/bin/sh\necho "$STAND_IN_HOST"\n')
    (folder / "worker_bin/hostname").chmod(0o755)
    (folder / "storage").mkdir()
    write_state(folder, {"behaviour": "well", "nodes": {}, "requests": {}, "clusters": [], "workloads": {}})


def write_program(path: pathlib.Path, name: str, folder: pathlib.Path) -> None:
    """A script that calls this file as the program `name`; imported, so that it is compiled only once."""
    start = "import sys; sys.path.insert(0, sys.argv.pop(1)); import stand_in; stand_in.main()"
    here = str(pathlib.Path(__file__).parent)
    arguments = [sys.executable, "-IS", "-c", start, here, str(folder), name]
    path.write_text(f'#!/bin/sh\nexec {shlex.join(arguments)} "$@"\n')
    path.chmod(0o755)


def read_state(folder: pathlib.Path) -> Any:
    """The state of the world."""
    return json.loads((folder / "state.json").read_text())


def write_state(folder: pathlib.Path, state: Any) -> None:
    """Replace the state of the world."""
    partial = folder / f"state.{os.getpid()}"
    partial.write_text(json.dumps(state))
    partial.replace(folder / "state.json")


@contextlib.contextmanager
def changed(folder: pathlib.Path) -> Iterator[Any]:
    """The state, to be changed by one program at a time."""
    with (folder / "state.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        state = read_state(folder)
        yield state
        write_state(folder, state)


def calls(folder: pathlib.Path, name: str) -> list[list[str]]:
    """The recorded argument lists of a program, in order."""
    path = folder / "calls.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [row["argv"] for row in rows if row["name"] == name]


def _record(folder: pathlib.Path, name: str, argv: list[str]) -> None:
    row = {"name": name, "argv": argv, "cwd": str(pathlib.Path.cwd())}
    with (folder / "calls.jsonl").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(json.dumps(row) + "\n")


def _options(argv: list[str]) -> tuple[list[str], dict[str, str]]:
    words = [one for one in argv if not one.startswith("--")]
    options = dict(one.removeprefix("--").partition("=")[::2] for one in argv if one.startswith("--"))
    return words, options


# --- gcloud ---------------------------------------------------------------------------------------


def gcloud(folder: pathlib.Path, argv: list[str]) -> int:
    words, options = _options(argv)
    if words[:2] == ["auth", "list"]:
        if read_state(folder).get("account", True):
            print("somebody@example.com")
        return 0
    if words[:3] == ["container", "clusters", "list"]:
        name = options["filter"].removeprefix("name=")
        if name in read_state(folder)["clusters"]:
            print("RUNNING")
        return 0
    assert words[:2] == ["compute", "tpus"], argv
    assert options["project"], "without --project the user's default would be taken"
    assert options["zone"], "without --zone as well"
    group, verb, names = words[2], words[3], words[4:]
    action = {
        ("tpu-vm", "describe"): _describe_node,
        ("tpu-vm", "create"): _create_node,
        ("tpu-vm", "delete"): _delete_node,
        ("tpu-vm", "ssh"): _ssh,
        ("tpu-vm", "scp"): _scp,
        ("queued-resources", "describe"): _describe_request,
        ("queued-resources", "create"): _create_request,
        ("queued-resources", "delete"): _delete_request,
    }[group, verb]
    return action(folder, names, options)


def _error(message: str) -> int:
    print(f"ERROR: (gcloud) {message}", file=sys.stderr)
    return 1


def _later(states: list[str]) -> str:
    """The state now; the next look sees the next one, the last stays."""
    return states.pop(0) if len(states) > 1 else states[0]


def _describe_node(folder: pathlib.Path, names: list[str], options: dict[str, str]) -> int:
    with changed(folder) as state:
        node = state["nodes"].get(names[0])
        if node is None:
            return _error(f"NOT_FOUND: Resource 'projects/x/locations/y/nodes/{names[0]}' was not found")
        endpoints = [{"ipAddress": f"10.0.0.{number}"} for number in range(WORKERS)]
        shown = {"state": _later(node["states"]), "acceleratorType": node["accelerator"]}
    print(json.dumps({**shown, "networkEndpoints": endpoints}))
    return 0


def _create_node(folder: pathlib.Path, names: list[str], options: dict[str, str]) -> int:
    with changed(folder) as state:
        if names[0] in state["nodes"]:
            return _error(f"ALREADY_EXISTS: {names[0]}")
        if state.get("capacity") == "none":
            return _error("RESOURCE_EXHAUSTED: There is no more capacity in the zone")
        state["nodes"][names[0]] = _new_node(folder, names[0], options["accelerator-type"])
    assert options["version"]
    return 0


def _new_node(folder: pathlib.Path, name: str, accelerator: str) -> Any:
    for worker in range(WORKERS):
        (folder / "workers" / name / str(worker)).mkdir(parents=True)
    return {"states": ["CREATING", "READY"], "accelerator": accelerator}


def _delete_node(folder: pathlib.Path, names: list[str], options: dict[str, str]) -> int:
    with changed(folder) as state:
        if state["nodes"].pop(names[0], None) is None:
            return _error(f"NOT_FOUND: {names[0]}")
    destroy(folder, names[0])
    return 0


def destroy(folder: pathlib.Path, name: str) -> None:
    """Switch the workers of a slice off: nothing of them is left."""
    for worker in range(WORKERS):
        home = folder / "workers" / name / str(worker)
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, ValueError):
            os.kill(int((home / "vict_jax/run/pid").read_text()), signal.SIGKILL)
        shutil.rmtree(home, ignore_errors=True)


def _describe_request(folder: pathlib.Path, names: list[str], options: dict[str, str]) -> int:
    with changed(folder) as state:
        request = state["requests"].get(names[0])
        if request is None:
            return _error(f"NOT_FOUND: Resource 'queuedResources/{names[0]}' was not found")
        now = _later(request["states"])
        if now == "ACTIVE" and names[0] not in state["nodes"]:
            state["nodes"][names[0]] = _new_node(folder, names[0], request["accelerator"])
    print(json.dumps({"state": {"state": now}}))
    return 0


def _create_request(folder: pathlib.Path, names: list[str], options: dict[str, str]) -> int:
    with changed(folder) as state:
        if names[0] in state["requests"]:
            return _error(f"ALREADY_EXISTS: {names[0]}")
        states = ["ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"]
        state["requests"][names[0]] = {"states": states, "accelerator": options["accelerator-type"]}
    assert options["runtime-version"]
    assert options["node-id"] == names[0]
    return 0


def _delete_request(folder: pathlib.Path, names: list[str], options: dict[str, str]) -> int:
    with changed(folder) as state:
        request = state["requests"].pop(names[0], None)
        if request is None:
            return _error(f"NOT_FOUND: {names[0]}")
        if request["states"][0] == "ACTIVE" and "force" not in options:
            return _error("FAILED_PRECONDITION: the queued resource has a slice; use --force")
        state["nodes"].pop(names[0], None)
    destroy(folder, names[0])
    return 0


def _reachable(folder: pathlib.Path, name: str) -> bool:
    node = read_state(folder)["nodes"].get(name)
    return node is not None and node["states"][-1] == "READY"


def _ssh(folder: pathlib.Path, names: list[str], options: dict[str, str]) -> int:
    if not _reachable(folder, names[0]):
        return _error(f"TPU {names[0]} is in an unusable state")
    if options.get("ssh-flag") != "-n":
        sys.stdin.read()  # as ssh does
    # As gcloud hands a command to ssh: split at spaces, and joined again.
    command = " ".join(options["command"].split(" "))
    chosen = range(WORKERS) if options["worker"] == "all" else [int(options["worker"])]
    started = [_on_worker(folder, names[0], worker, command) for worker in chosen]
    while any(process.poll() is None for process in started):
        if not _reachable(folder, names[0]):
            for process in started:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            return 255
        time.sleep(0.1)
    assert all(_alone(process) for process in started), "a process is left that keeps the connection open"
    return next((process.returncode for process in started if process.returncode), 0)


def _alone(process: subprocess.Popen[bytes]) -> bool:
    """Whether nothing else of the connection is left, within two seconds; sshd would wait for it."""
    for _ in range(40):
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    return False


def _on_worker(folder: pathlib.Path, name: str, worker: int, command: str) -> subprocess.Popen[bytes]:
    home = folder / "workers" / name / str(worker)
    path = f"{folder / 'worker_bin'}:/usr/bin:/bin"
    env = {"HOME": str(home), "PATH": path, "STAND_IN_HOST": f"t1v-n-0123abcd-w-{worker}"}
    return subprocess.Popen(["bash", "-c", command], cwd=home, env=env, start_new_session=True)


def _scp(folder: pathlib.Path, names: list[str], options: dict[str, str]) -> int:
    *files, target = names
    name, _, where = target.partition(":")
    if not _reachable(folder, name):
        return _error(f"TPU {name} is in an unusable state")
    assert options["worker"] == "all"
    for worker in range(WORKERS):
        for file in files:
            shutil.copy(file, folder / "workers" / name / str(worker) / where)
    return 0


# --- the workers ----------------------------------------------------------------------------------


def python3(folder: pathlib.Path, argv: list[str]) -> int:
    """`python3 -m pip install --target=DIR ... uv`, or the interpreter of a container, which trains."""
    if argv[:3] == ["-m", "pip", "install"]:
        _, options = _options(argv[3:])
        assert pathlib.Path(options["constraint"]).is_file()
        if "target" in options:
            target = pathlib.Path(options["target"]) / "bin"
            target.mkdir(parents=True, exist_ok=True)
            write_program(target / "uv", "uv", folder)
        return 0
    return train(folder, argv)


def uv(folder: pathlib.Path, argv: list[str]) -> int:
    """`uv venv DIR` makes an interpreter that trains; `uv pip install` looks whether it was told what."""
    words, options = _options(argv)
    if words[0] == "venv":
        assert options["python"] == "3.11"
        (pathlib.Path(words[1]) / "bin").mkdir(parents=True)
        write_program(pathlib.Path(words[1]) / "bin/python", "train", folder)
        return 0
    assert words == ["pip", "install"]
    assert pathlib.Path(options["python"]).is_file()
    assert pathlib.Path(options["constraint"]).is_file()
    assert options["editable"].endswith("[tpu]")
    return 0


def gcsfuse(folder: pathlib.Path, argv: list[str]) -> int:
    words, _ = _options(argv)
    mount = pathlib.Path(words[1])
    mount.rmdir()
    bucket = folder / "storage" / words[0]
    bucket.mkdir(exist_ok=True)
    mount.symlink_to(bucket)
    return 0


def mountpoint(folder: pathlib.Path, argv: list[str]) -> int:
    return 0 if pathlib.Path(argv[-1]).is_symlink() else 1


def train(folder: pathlib.Path, argv: list[str]) -> int:
    """The training: two updates, each a checkpoint in the run's directory, which is shared."""
    worker = int(os.environ["STAND_IN_HOST"].rpartition("-")[2])
    _, options = _options(argv)
    assert argv[:2] == ["-m", "launch.local"], argv
    assert pathlib.Path(options["config"].partition(":")[0]).is_file(), "the code is not in this folder"
    run = pathlib.Path(options["workdir"])
    run.mkdir(parents=True, exist_ok=True)
    checkpoint = run / "checkpoint"
    behaviour = read_state(folder)["behaviour"]
    done = int(checkpoint.read_text()) if checkpoint.exists() else 0
    print(f"worker {worker} continues after update {done}", flush=True)
    if behaviour == "waits":
        return _wait_for_sigterm(checkpoint, worker)
    if behaviour == "worker 1 fails":
        time.sleep(0.3 * (1 - worker))  # JAX ends the others when one is gone
        print(f"worker {worker}: {'out of memory' if worker else 'a peer is gone'}", flush=True)
        return 9 if worker else 1
    if behaviour == "taken away once" and done == 0:
        if worker == 0:
            _save(checkpoint, 1)
            while not any("follow" in one for argv in calls(folder, "gcloud") for one in argv):
                time.sleep(0.1)
            take_away(folder)
        time.sleep(60)
    if worker == 0:
        _save(checkpoint, 2)
    return 0


def _save(checkpoint: pathlib.Path, update: int) -> None:
    partial = checkpoint.with_name("partial")
    partial.write_text(str(update))
    partial.replace(checkpoint)  # the other worker may be reading


def _wait_for_sigterm(checkpoint: pathlib.Path, worker: int) -> int:
    told = False

    def end(signum: int, frame: object) -> None:
        nonlocal told
        told = True

    signal.signal(signal.SIGTERM, end)
    print(f"worker {worker} waits", flush=True)
    while not told:
        time.sleep(0.05)
    print(f"worker {worker} saves", flush=True)
    if worker == 0:
        _save(checkpoint, 1)
    return 0


def take_away(folder: pathlib.Path) -> None:
    """Pre-empt every slice: the machines and their disks are gone."""
    with changed(folder) as state:
        names = list(state["nodes"])
        for name in names:
            state["nodes"][name]["states"] = ["PREEMPTED"]
        for request in state["requests"].values():
            request["states"] = ["SUSPENDING", "SUSPENDED"]
    for name in names:
        destroy(folder, name)


# --- XPK and Kubernetes ---------------------------------------------------------------------------


def xpk(folder: pathlib.Path, argv: list[str]) -> int:
    words, options = _options(argv)
    action = {
        ("cluster", "create"): _create_cluster,
        ("cluster", "delete"): _delete_cluster,
        ("workload", "create"): _create_workload,
        ("workload", "delete"): _delete_workload,
        ("workload", "list"): _list_workloads,
    }[words[0], words[1]]
    assert options["cluster"]
    assert options["project"]
    assert options["zone"]
    return action(folder, options)


def _create_cluster(folder: pathlib.Path, options: dict[str, str]) -> int:
    with changed(folder) as state:
        state["clusters"].append(options["cluster"])
    return 0


def _delete_cluster(folder: pathlib.Path, options: dict[str, str]) -> int:
    with changed(folder) as state:
        state["clusters"].remove(options["cluster"])
    return 0


def _create_workload(folder: pathlib.Path, options: dict[str, str]) -> int:
    """Builds the image (a copy of the code) and starts a pod on each machine, as XPK's manifest says."""
    name = options["workload"]
    with changed(folder) as state:
        if options["cluster"] not in state["clusters"] or name in state["workloads"]:
            print(f"[XPK] {name} already exists, or there is no cluster", file=sys.stderr)
            return 1
        state["workloads"][name] = {"pods": [], "restarts": int(options["max-restarts"])}
    shutil.copytree(options["script-dir"], folder / "images" / name, dirs_exist_ok=True)
    assert "\n" not in options["command"], "the manifest would break"
    _start_pods(folder, name, options["command"])
    return 0


def _start_pods(folder: pathlib.Path, name: str, command: str) -> None:
    # Kubernetes expands the command (here only the doubled dollar), XPK's script runs it in a subshell.
    script = f"({command.replace('$$', '$')}) & PID=$!\nwait $PID\nexit $?"
    pods = []
    for worker in range(WORKERS):
        env = {"PATH": f"{folder / 'worker_bin'}:/usr/bin:/bin", "STAND_IN_HOST": f"pod-{worker}"}
        log = folder / f"{name}-{worker}.log"
        code = f"bash -c {shlex.quote(script)}; echo $? >{shlex.quote(str(log))}.exit"
        with log.open("w") as file:
            process = subprocess.Popen(
                ["bash", "-c", code],
                cwd=folder / "images" / name,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        pods.append({"log": str(log), "pid": process.pid})
    with changed(folder) as state:
        state["workloads"][name]["pods"] = pods


def terminate_pod(folder: pathlib.Path, name: str, number: int) -> None:
    """What the kubelet does to a pod that has to go, by way of XPK's trap: SIGTERM to the command."""
    shell = read_state(folder)["workloads"][name]["pods"][number]["pid"]
    for level in ("the script of the container", "the subshell, which the command has replaced"):
        found = pathlib.Path(f"/proc/{shell}/task/{shell}/children").read_text().split()
        assert len(found) == 1, f"{level}: {found}"
        shell = int(found[0])
    os.kill(shell, signal.SIGTERM)


def _pod_statuses(workload: Any) -> list[int | None]:
    files = [pathlib.Path(f"{pod['log']}.exit") for pod in workload["pods"]]
    return [int(file.read_text()) if file.exists() and file.read_text() else None for file in files]


def _delete_workload(folder: pathlib.Path, options: dict[str, str]) -> int:
    assert "force" in options, "it would ask"
    with changed(folder) as state:
        workload = state["workloads"].pop(options["workload"])
    kill_pods(workload)
    return 0


def kill_pods(workload: Any) -> None:
    """End what a workload runs, and forget how it ended."""
    for pod in workload["pods"]:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pod["pid"], signal.SIGKILL)
        pathlib.Path(f"{pod['log']}.exit").unlink(missing_ok=True)


def _list_workloads(folder: pathlib.Path, options: dict[str, str]) -> int:
    workloads = read_state(folder)["workloads"]
    waited = options.get("wait-for-job-completion")
    if waited is not None:
        return _wait_for_workload(folder, waited, float(options["timeout"]))
    print("[XPK] Starting xpk")
    columns = ("Jobset Name", "Created Time", "Priority", "Status", "Status Message")
    print("   ".join(f"{column:<20}" for column in columns))
    for name, workload in workloads.items():
        if options["filter-by-job"] in name:
            ended = None not in _pod_statuses(workload)
            state = ("Finished", "JobSet finished") if ended else ("Admitted", "Admitted by ClusterQueue")
            cells = (name, "2026-01-01T01:00:00Z", "medium", *state)
            print("   ".join(f"{cell:<20}" for cell in cells))
    return 0


def _wait_for_workload(folder: pathlib.Path, name: str, timeout: float) -> int:
    workload = read_state(folder)["workloads"][name]
    until = time.monotonic() + timeout
    while None in (statuses := _pod_statuses(workload)):
        if time.monotonic() > until:
            return 124
        time.sleep(0.05)
    return 125 if any(statuses) else 0


def kubectl(folder: pathlib.Path, argv: list[str]) -> int:
    words, options = _options(argv)
    labels = dict(one.split("=") for one in options["selector"].split(","))
    workload = read_state(folder)["workloads"][labels["xpk.google.com/workload"]]
    if words[0] == "get":
        for number, status in enumerate(_pod_statuses(workload)):
            print(f"pod-{number} {'' if status is None else status}")
        return 0
    assert options["tail"] != "10", "kubectl's default with a selector"
    pod = workload["pods"][int(labels["batch.kubernetes.io/job-completion-index"])]
    while not pathlib.Path(f"{pod['log']}.exit").exists():
        time.sleep(0.05)
    print(pathlib.Path(pod["log"]).read_text(), end="")
    return 0


# --- Slurm ----------------------------------------------------------------------------------------


def sbatch(folder: pathlib.Path, argv: list[str]) -> int:
    words, options = _options(argv)
    assert "parsable" in options
    shutil.copy(words[0], folder / "submitted.sbatch")
    print("4711;cluster")
    return 0


def srun(folder: pathlib.Path, argv: list[str]) -> int:
    """Run the command once, as one of the tasks, and hand signals on to it."""
    command = argv[next(n for n, one in enumerate(argv) if not one.startswith("--")) :]
    env = {**os.environ, "STAND_IN_HOST": "node-0"}
    process = subprocess.Popen([str(folder / "worker_bin/python3"), *command[1:]], env=env)
    signal.signal(signal.SIGTERM, lambda *_: process.send_signal(signal.SIGTERM))
    return process.wait()


def scontrol(folder: pathlib.Path, argv: list[str]) -> int:
    return 0


def main() -> None:
    folder, name, *argv = sys.argv[1:]
    _record(pathlib.Path(folder), name, argv)
    programs = {one.__name__: one for one in (gcloud, xpk, kubectl, sbatch, srun, scontrol)}
    programs |= {one.__name__: one for one in (python3, uv, gcsfuse, mountpoint, train)}
    sys.exit(programs[name](pathlib.Path(folder), argv))


if __name__ == "__main__":
    main()
