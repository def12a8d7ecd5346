"""TPU VM slices through gcloud, created at once or as queued resources: the actions of `launch.tpu_pod`.

Every command follows `gcloud compute tpus tpu-vm --help` and `gcloud compute tpus queued-resources --help`.
The states are those of the Cloud TPU API v2 (`Node.State`, `QueuedResourceState.State`). What runs on the
workers is `launch/remote/worker.sh`.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import re
import shlex
import sys
import time
from collections.abc import Mapping
from typing import Any

from launch.commands import SCRATCH, CommandFailed, Runner, Training
from launch.place import Place, bucket_of
from vict_jax.metrics import RunError

REMOTE = "vict_jax"  # folder in the home of each worker
WORKER = f"{REMOTE}/worker.sh"
# EX_TEMPFAIL of sysexits.h: the slice was taken away; the same command goes on where the training was.
PREEMPTED = 75
KILLED = 137

_RESULT = re.compile(r"^vict_jax (\S+) (running|none|lost|\d+)\s*$", re.MULTILINE)
_WORKER_NUMBER = re.compile(r"-w-(\d+)$")  # of the host names that Google Cloud gives to workers


class Condition(enum.Enum):
    """What can be done with a slice."""

    ABSENT = "absent"
    WAITING = "waiting"
    READY = "ready"
    LEAVING = "being deleted"
    LOST = "taken away"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclasses.dataclass(frozen=True)
class Found:
    """A slice as it is now.

    Attributes:
      state: Google Cloud's word for it. workers: machines of a slice that is ready.
    """

    condition: Condition
    state: str = ""
    accelerator: str | None = None
    workers: int = 0


_NODE_CONDITIONS = {
    **dict.fromkeys(("CREATING", "STARTING", "RESTARTING", "REIMAGING", "REPAIRING"), Condition.WAITING),
    **dict.fromkeys(("HIDING", "HIDDEN", "UNHIDING", "STATE_UNSPECIFIED", "UNKNOWN"), Condition.WAITING),
    "READY": Condition.READY,
    "DELETING": Condition.LEAVING,
    **dict.fromkeys(("PREEMPTED", "TERMINATED"), Condition.LOST),
    **dict.fromkeys(("STOPPING", "STOPPED"), Condition.STOPPED),
}
_REQUEST_CONDITIONS = {
    **dict.fromkeys(("CREATING", "ACCEPTED", "PROVISIONING"), Condition.WAITING),
    **dict.fromkeys(("WAITING_FOR_RESOURCES", "STATE_UNSPECIFIED"), Condition.WAITING),
    "ACTIVE": Condition.READY,
    **dict.fromkeys(("SUSPENDING", "DELETING"), Condition.LEAVING),
    "SUSPENDED": Condition.LOST,
    "FAILED": Condition.FAILED,
}


# --- commands -----------------------------------------------------------------------------------------------


def _gcloud(place: Place, group: str, verb: str, *arguments: str) -> list[str]:
    where = (f"--project={place.project}", f"--zone={place.zone}")
    return ["gcloud", "compute", "tpus", group, verb, *arguments, *where, "--quiet"]


def describe_command(place: Place, *, request: bool = False) -> list[str]:
    """Ask for the slice, or for the queued resource that it was asked for with."""
    group = "queued-resources" if request else "tpu-vm"
    return _gcloud(place, group, "describe", place.name, "--format=json")


def create_command(place: Place) -> list[str]:
    """Create the slice, or put the request for it into the queue."""
    spot = ("--spot",) if place.spot else ()
    kind = f"--accelerator-type={place.accelerator}"
    if place.backend == "queued":
        node = (f"--node-id={place.name}", kind, f"--runtime-version={place.version}")
        return _gcloud(place, "queued-resources", "create", place.name, *node, *spot, *place.create_args)
    return _gcloud(
        place, "tpu-vm", "create", place.name, kind, f"--version={place.version}", *spot, *place.create_args
    )


def delete_command(place: Place) -> list[str]:
    """Delete the slice, and the request for it if it was queued."""
    if place.backend == "queued":
        return _gcloud(place, "queued-resources", "delete", place.name, "--force")
    return _gcloud(place, "tpu-vm", "delete", place.name)


def ssh_command(place: Place, worker: str, remote: list[str]) -> list[str]:
    """Run `remote`, an argument list, on one worker or on "all" at the same time."""
    return _gcloud(
        place,
        "tpu-vm",
        "ssh",
        place.name,
        f"--worker={worker}",
        f"--command={shlex.join(remote)}",
        "--ssh-flag=-n",  # ssh would swallow the commands that are pasted behind this one
        *place.ssh_args,
    )


def scp_command(place: Place, files: list[str]) -> list[str]:
    """Copy files of this machine to all workers."""
    target = f"{place.name}:{REMOTE}/"
    return _gcloud(place, "tpu-vm", "scp", *files, target, "--worker=all", *place.ssh_args)


def _worker(place: Place, worker: str, *action: str) -> list[str]:
    return ssh_command(place, worker, ["bash", WORKER, *action])


# --- states -------------------------------------------------------------------------------------------------


def look(place: Place, runner: Runner) -> Found:
    """The slice as it is now; in a dry run, as if there were none."""
    if place.backend != "queued":
        return _node(_described(place, runner, request=False))
    asked = _described(place, runner, request=True)
    if asked is None:
        if runner.dry_run:  # shown, as it is asked for once the request is active
            _described(place, runner, request=False)
        return Found(Condition.ABSENT)
    state = str(asked.get("state", {}).get("state", "STATE_UNSPECIFIED"))
    condition = _known(_REQUEST_CONDITIONS, state, "queued resource")
    if condition is Condition.FAILED:
        return Found(condition, f"{state}: {json.dumps(asked['state'])}")
    if condition is not Condition.READY:
        return Found(condition, state)
    node = _node(_described(place, runner, request=False))
    # A request stays active for a while after its slice was taken away.
    return Found(Condition.LOST, "ACTIVE without a slice") if node.condition is Condition.ABSENT else node


def _node(described: Mapping[str, Any] | None) -> Found:
    if described is None:
        return Found(Condition.ABSENT)
    state = str(described.get("state", "STATE_UNSPECIFIED"))
    return Found(
        _known(_NODE_CONDITIONS, state, "slice"),
        state,
        described.get("acceleratorType"),
        len(described.get("networkEndpoints", ())),
    )


def _known(table: Mapping[str, Condition], state: str, what: str) -> Condition:
    if state not in table:
        raise RunError(
            f"the {what} is in the state {state}, which this launcher does not know; wait, or stop it"
        )
    return table[state]


def _described(place: Place, runner: Runner, *, request: bool) -> Mapping[str, Any] | None:
    command = describe_command(place, request=request)
    done = runner.read(command)
    if runner.dry_run or (done.status and "NOT_FOUND" in done.err):
        return None
    if done.status:
        raise RunError(f"exit status {done.status} of: {shlex.join(command)}\n{done.err.strip()}")
    return json.loads(done.out)


# --- actions ------------------------------------------------------------------------------------------------


def create(place: Place, runner: Runner) -> Found:
    """Create the slice or take the one that is there; one that was taken away is deleted and asked for anew.

    Returns:
      The slice, ready.

    Raises:
      RunError: it is of another type, is stopped, failed, or was taken away while it was waited for.
    """
    found = look(place, runner)
    while found.condition is Condition.LEAVING:
        runner.note(f"{place.name} is {found.state}; waiting until it is gone")
        time.sleep(place.poll_s)
        found = look(place, runner)
    _refuse_unusable(place, found)
    if runner.dry_run:
        runner.note(
            f"if there is one that was taken away (PREEMPTED, SUSPENDED) or has failed:\n"
            f"{shlex.join(delete_command(place))}\nand then, or if there is none:"
        )
    if found.condition in (Condition.LOST, Condition.FAILED):
        runner.note(f"{place.name} is {found.state}; it is deleted and asked for anew")
        runner.run(delete_command(place))
        found = Found(Condition.ABSENT)
    if found.condition is Condition.ABSENT:
        runner.run(create_command(place), hint=_creation_hint(place))
    else:
        runner.note(f"{place.name} exists ({found.state}) and is used again")
    return _wait(place, runner)


def _refuse_unusable(place: Place, found: Found) -> None:
    if found.condition is Condition.STOPPED:
        raise RunError(
            f"--name={place.name} is {found.state}. Start it (gcloud compute tpus tpu-vm start {place.name} "
            f"--zone={place.zone} --project={place.project}), or delete it with the action stop"
        )
    if found.accelerator not in (None, place.accelerator):
        raise RunError(
            f"--accelerator={place.accelerator}, but --name={place.name} is a {found.accelerator}; "
            "use another name, or delete it with the action stop"
        )


def _creation_hint(place: Place) -> str:
    if place.backend == "queued":
        return ""
    return (
        "If there was no capacity: --backend=queued waits for it, and --spot or another --zone may have some."
    )


def _wait(place: Place, runner: Runner) -> Found:
    said = ""
    while True:
        found = look(place, runner)
        if runner.dry_run:
            runner.note(f"... every {place.poll_s:g} s until it is ready")
            return Found(Condition.READY)
        if found.condition is Condition.READY:
            return found
        if found.condition is not Condition.WAITING:
            raise RunError(
                f"{place.name} is {found.state or found.condition.value} and will not become ready"
            )
        if found.state != said:
            runner.note(f"{place.name} is {found.state}; waiting (Ctrl-C leaves it as it is)")
            said = found.state
        time.sleep(place.poll_s)


def copy(place: Place, runner: Runner) -> None:
    """Copy the code to every worker and put it in place."""
    archive = f"{SCRATCH}/{place.name}/code.tar.gz"
    runner.run([sys.executable, "-m", "launch.pack", archive])
    runner.run(
        ssh_command(place, "all", ["mkdir", "-p", REMOTE]),
        hint="All workers at once need the key in an agent: ssh-add ~/.ssh/google_compute_engine",
    )
    runner.run(scp_command(place, [archive, "launch/remote/worker.sh"]))
    runner.run(_worker(place, "all", "unpack"))


def install(place: Place, runner: Runner) -> None:
    """Install Python and the pinned packages on every worker, unless that was done."""
    runner.run(_worker(place, "all", "install"))


def run(place: Place, runner: Runner, training: Training) -> None:
    """Start the training on every worker, detached."""
    bucket = bucket_of(training.workdir)
    where = training.workdir
    if bucket is not None:
        runner.run(_worker(place, "all", "mount", bucket[0]))
        where = "/".join(("../buckets", *filter(None, bucket)))  # seen from the code's folder
    argv = training.argv("../venv/bin/python", "--distributed=auto", workdir=where)
    runner.run(_worker(place, "all", "start", *argv))


def follow(place: Place, runner: Runner, workers: int) -> int:
    """Show worker 0's log until all workers have ended.

    Returns:
      The training's exit status: 0, or that of the first worker that failed, or PREEMPTED.
    """
    log = shlex.join(ssh_command(place, "1", ["tail", "-f", f"{REMOTE}/run/log"]))
    runner.note(f"the log of worker 0 follows; each of the others has its own, as this shows it:\n{log}")
    while True:
        runner.status(_worker(place, "0", "follow"))
        found = look(place, runner)
        if runner.dry_run:
            results(place, runner)
            return 0
        if found.condition is not Condition.READY:
            return _taken_away(place, runner, found)
        states = results(place, runner)
        if len(states) == workers and "running" not in states.values():
            return _verdict(place, runner, states)
        going = sum(state == "running" for state in states.values())
        runner.note(
            f"worker 0 cannot be followed now; {going} of {workers} workers are running; looking again"
        )
        time.sleep(place.poll_s)


def results(place: Place, runner: Runner) -> dict[str, str]:
    """What became of the training on each worker, by host name in the order of the workers.

    Values are "running", "none" (nothing was started), "lost" (the machine went down) or an exit status.
    Workers that do not answer are missing.
    """
    done = runner.read(_worker(place, "all", "result"))
    return dict(sorted(_RESULT.findall(done.out), key=lambda one: _number(one[0])))


def _number(host: str) -> int:
    match = _WORKER_NUMBER.search(host)
    return int(match.group(1)) if match else 0


def _taken_away(place: Place, runner: Runner, found: Found) -> int:
    runner.note(
        f"{place.name} was taken away (state: {found.state or found.condition.value}). "
        "Run the same command again to get it back and to continue from the last checkpoint."
    )
    return PREEMPTED


def _verdict(place: Place, runner: Runner, states: Mapping[str, str]) -> int:
    failed = {host: state for host, state in states.items() if state != "0"}
    if not failed:
        runner.note(f"the training has ended on all {len(states)} workers. {still_costs(place)}")
        return 0
    for host, state in failed.items():
        log = ssh_command(place, str(_number(host)), ["tail", "-n", "50", f"{REMOTE}/run/log"])
        said = {"none": "has no training", "lost": "went down"}.get(state, f"ended with exit status {state}")
        runner.note(f"worker {_number(host)} ({host}) {said}; its log:\n{shlex.join(log)}")
    runner.note(still_costs(place))
    first = next(iter(failed.values()))
    return int(first) if first.isdecimal() else KILLED


def still_costs(place: Place) -> str:
    """What is left to be paid for while the slice exists."""
    return (
        f"The slice {place.name} ({place.accelerator}) exists and costs money until it is deleted: "
        f"python -m launch.tpu_pod stop --backend={place.backend} --name={place.name} "
        f"--project={place.project} --zone={place.zone} --accelerator={place.accelerator} "
        f"--version={place.version}"
    )


def status(place: Place, runner: Runner) -> int:
    """Say what there is and what the training does."""
    found = look(place, runner)
    if runner.dry_run:
        results(place, runner)
        return 0
    runner.note(f"{place.name}: {found.state or found.condition.value}")
    if found.condition is Condition.READY:
        for host, state in results(place, runner).items():
            runner.note(f"worker {_number(host)} ({host}): {state}")
    if found.condition not in (Condition.ABSENT, Condition.LOST, Condition.FAILED):
        runner.note(still_costs(place))
    return 0


def stop(place: Place, runner: Runner) -> int:
    """Let the training save, then delete the slice, and say what is left."""
    found = look(place, runner)
    # A slice that cannot be reached has to be deleted all the same, so a failure is only told.
    asked = found.condition is Condition.READY or runner.dry_run
    if asked and runner.status(_worker(place, "all", "stop", str(place.grace_s))):
        runner.note("the training could not be stopped on every worker (or none was there)")
    if found.condition is Condition.ABSENT and not runner.dry_run:
        runner.note(f"there is no {place.name} in {place.zone}")
    else:
        runner.run(delete_command(place), hint=still_costs(place))
    runner.note(
        f"Nothing of {place.name} is left that costs money, but for what the training wrote to buckets or "
        "disks of yours."
    )
    return 0


def up(place: Place, runner: Runner, training: Training) -> int:
    """Everything: a slice, the code, the packages, the training, its log. The training's exit status.

    A training that is running already is followed; one that runs on some workers only is stopped and
    started anew.
    """
    found = create(place, runner)
    states = results(place, runner)
    if len(states) == found.workers and set(states.values()) == {"running"}:
        runner.note("the training is running already")
        return follow(place, runner, found.workers)
    if "running" in states.values():
        runner.note("the training runs on some of the workers only; it is stopped and started anew")
        runner.run(_worker(place, "all", "stop", str(place.grace_s)))
    try:
        copy(place, runner)
        install(place, runner)
        run(place, runner, training)
    except CommandFailed:
        now = look(place, runner)
        if now.condition is Condition.READY:
            raise
        return _taken_away(place, runner, now)
    return follow(place, runner, found.workers)
