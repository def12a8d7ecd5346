"""TPU slices on Google Kubernetes Engine through XPK: the actions of `launch.tpu_pod`.

The command lines are those of XPK's `docs/usage/workloads.md` and of its parsers. XPK puts the code into a
container image and runs `launch/remote/container.sh` in it on every machine of the slice. Logs are read with
kubectl, which XPK needs as well; each xpk command points it at the cluster.
"""

from __future__ import annotations

import re
import shlex
import sys

from launch.commands import SCRATCH, CommandFailed, Runner, Training
from launch.place import Place
from vict_jax.metrics import RunError

# Exit statuses of `xpk workload list --wait-for-job-completion`.
SUCCEEDED, TIMED_OUT, UNSUCCESSFUL = 0, 124, 125

_IN_COLUMNS = re.compile(r"\s{2,}")


# --- commands -----------------------------------------------------------------------------------------------


def _where(place: Place) -> list[str]:
    return [f"--cluster={place.cluster_name}", f"--project={place.project}", f"--zone={place.zone}"]


def cluster_command(place: Place) -> list[str]:
    """Ask for the state of the cluster; nothing is printed if there is none."""
    which = (f"--project={place.project}", f"--filter=name={place.cluster_name}", "--format=value(status)")
    return ["gcloud", "container", "clusters", "list", *which, "--quiet"]


def create_command(place: Place) -> list[str]:
    """Create a cluster with one slice."""
    capacity = "--spot" if place.spot else "--on-demand"
    slices = (f"--tpu-type={place.accelerator}", "--num-slices=1", capacity)
    return ["xpk", "cluster", "create", *_where(place), *slices, *place.create_args]


def delete_cluster_command(place: Place) -> list[str]:
    """Delete the cluster and its machines."""
    return ["xpk", "cluster", "delete", *_where(place)]


def list_command(place: Place) -> list[str]:
    """A table of the workloads with this name in theirs."""
    return ["xpk", "workload", "list", *_where(place), f"--filter-by-job={place.name}"]


def wait_command(place: Place, seconds: int) -> list[str]:
    """Wait for the workload's end; see SUCCEEDED, TIMED_OUT and UNSUCCESSFUL."""
    wait = (f"--wait-for-job-completion={place.name}", f"--timeout={seconds}")
    return ["xpk", "workload", "list", *_where(place), *wait]


def delete_command(place: Place) -> list[str]:
    """Delete the workload; its pods get SIGTERM first."""
    return ["xpk", "workload", "delete", *_where(place), f"--workload={place.name}", "--force"]


def workload_command(place: Place, training: Training) -> list[str]:
    """Start the training in containers.

    Raises:
      ValueError: a value has a line break, which XPK's manifest cannot hold.
    """
    arguments = training.argv("python", "--distributed=auto")[3:]
    for one in arguments:
        if not one.isprintable():
            raise ValueError(
                f"{one!r} cannot be handed to XPK: line breaks and control characters are not allowed"
            )
    # XPK starts the command in a subshell and signals that; with exec the signal reaches the script.
    command = "exec " + shlex.join(["bash", "launch/remote/container.sh", *arguments])
    return [
        *("xpk", "workload", "create", *_where(place), f"--workload={place.name}"),
        *(f"--tpu-type={place.accelerator}", "--num-slices=1"),
        *(f"--base-docker-image={place.image}", f"--script-dir={_code(place)}"),
        *(f"--max-restarts={place.max_restarts}", f"--termination-grace-period-seconds={place.grace_s}"),
        # Kubernetes replaces $(NAME) in a container's command and takes $$ for one dollar sign.
        f"--command={command.replace('$', '$$')}",
    ]


def _code(place: Place) -> str:
    return f"{SCRATCH}/{place.name}/code"


def _pods(place: Place) -> str:
    return f"--selector=xpk.google.com/workload={place.name}"


def logs_command(place: Place, worker: int) -> list[str]:
    """The log of one machine of the slice as it grows."""
    pods = f"{_pods(place)},batch.kubernetes.io/job-completion-index={worker}"
    return ["kubectl", "logs", "--follow", "--tail=1000", pods, "--container=jax-tpu"]


def statuses_command(place: Place) -> list[str]:
    """A line `POD STATUS` for each pod that has ended."""
    columns = '{.metadata.name}{" "}{.status.containerStatuses[0].state.terminated.exitCode}{"\\n"}'
    return ["kubectl", "get", "pods", _pods(place), f"--output=jsonpath={{range .items[*]}}{columns}{{end}}"]


# --- actions ------------------------------------------------------------------------------------------------


def create(place: Place, runner: Runner) -> None:
    """Make sure that there is a cluster. One that was named with --cluster is never created.

    Raises:
      RunError: the cluster that was named is not there.
    """
    state = runner.read_checked(cluster_command(place)).strip()
    if state:
        runner.note(f"the cluster {place.cluster_name} exists ({state}) and is used")
        return
    if runner.dry_run and not place.owns_cluster:
        return
    if not place.owns_cluster:
        raise RunError(
            f"--cluster={place.cluster} does not exist in {place.project}; "
            "leave the flag out and one is created for this workload and deleted with it"
        )
    if runner.dry_run:
        runner.note("if there is none:")
    runner.run(create_command(place))


def copy(place: Place, runner: Runner) -> None:
    """Gather the code in a folder, which XPK puts into the image when the workload is created."""
    runner.run([sys.executable, "-m", "launch.pack", _code(place)])


def install(place: Place, runner: Runner) -> None:
    """Nothing to do beforehand: each container installs when it starts."""
    runner.note("XPK: the packages are installed in each container when it starts")


def run(place: Place, runner: Runner, training: Training) -> None:
    """Start the workload; one of this name that has ended is deleted first, another is left alone."""
    command = workload_command(place, training)
    state = workload_state(place, runner)
    if state and state != "Finished":
        runner.note(f"the workload {place.name} is there already ({state}); it is left alone")
        return
    if runner.dry_run:
        runner.note(f"if there is one that is Finished:\n{shlex.join(delete_command(place))}")
    if state:
        runner.run(delete_command(place))
    runner.run(command)


def workload_state(place: Place, runner: Runner) -> str:
    """XPK's word for the state of the workload; empty if there is none, or in a dry run."""
    table = runner.read_checked(list_command(place))
    header: list[str] = []
    for line in table.splitlines():
        cells = _IN_COLUMNS.split(line.strip())
        if "Jobset Name" in cells and "Status" in cells:
            header = cells
        elif header and cells[0] == place.name:
            return dict(zip(header, cells, strict=False)).get("Status", "unknown")
    return ""


def follow(place: Place, runner: Runner) -> int:
    """Show the log of machine 0 until the workload has ended. The training's exit status.

    Raises:
      CommandFailed: XPK cannot say what became of the workload.
    """
    log = shlex.join(logs_command(place, 1))
    runner.note(f"the log of machine 0 follows; each of the others has its own, as this shows it:\n{log}")
    seconds = max(1, round(place.poll_s))
    while True:
        # Ends with the pod, and at once while there is none yet, or a new one after a restart.
        runner.status(logs_command(place, 0))
        command = wait_command(place, seconds)
        ended = runner.status(command)
        if runner.dry_run:
            runner.status(statuses_command(place))
            return 0
        if ended == SUCCEEDED:
            runner.note(f"the workload {place.name} has ended well. {still_costs(place)}")
            return 0
        if ended == UNSUCCESSFUL:
            return _verdict(place, runner)
        if ended != TIMED_OUT:
            raise CommandFailed(f"exit status {ended} of: {shlex.join(command)}")


def _verdict(place: Place, runner: Runner) -> int:
    listed = runner.read_checked(statuses_command(place)).split("\n")
    ended = [line.split() for line in listed if len(line.split()) == 2]
    failed = [(pod, int(status)) for pod, status in ended if int(status)]
    for pod, status in failed:
        runner.note(f"{pod} ended with exit status {status}; its log:\nkubectl logs --tail=50 {pod}")
    if not failed:
        runner.note(f"the workload {place.name} did not end well, and its pods are gone")
    runner.note(still_costs(place))
    return failed[0][1] if failed else UNSUCCESSFUL


def still_costs(place: Place) -> str:
    """What is left to be paid for while the cluster exists."""
    return (
        f"The cluster {place.cluster_name} exists and costs money until it is deleted: "
        f"{shlex.join(delete_cluster_command(place))}"
    )


def status(place: Place, runner: Runner) -> int:
    """Say what there is."""
    state = runner.read_checked(cluster_command(place)).strip()
    if not state and not runner.dry_run:
        runner.note(f"there is no cluster {place.cluster_name} in {place.project}")
        return 0
    runner.status(list_command(place))
    runner.note(still_costs(place))
    return 0


def stop(place: Place, runner: Runner) -> int:
    """Delete the workload, and the cluster if it was created for it; say what is left."""
    state = runner.read_checked(cluster_command(place)).strip()
    if not state and not runner.dry_run:
        runner.note(
            f"there is no cluster {place.cluster_name} in {place.project}, so nothing of it costs money"
        )
        return 0
    if workload_state(place, runner) or runner.dry_run:
        runner.run(delete_command(place), hint=still_costs(place))
    if not place.owns_cluster:
        runner.note(still_costs(place))
        return 0
    runner.run(delete_cluster_command(place), hint=still_costs(place))
    runner.note(
        "Container images that XPK pushed to the project's registry, and your buckets and disks, are left."
    )
    return 0


def up(place: Place, runner: Runner, training: Training) -> int:
    """A cluster, the code, the workload, its log. The training's exit status."""
    create(place, runner)
    copy(place, runner)
    run(place, runner, training)
    return follow(place, runner)
