"""A Slurm job that trains: its batch script, and how it is submitted."""

from __future__ import annotations

import dataclasses
import pathlib
import re
import shlex

from launch.commands import ROOT, SCRATCH, Runner, Training, require_programs

_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@+/,-]*")
_TIME_FORM = re.compile(r"(\d+-)?\d+(:\d{1,2}){0,2}")


@dataclasses.dataclass(frozen=True)
class Job:
    """A Slurm job. Every field is checked; errors name the flag.

    Attributes:
      cpus: cores of a node; None: the whole node.
      process_per: "node" or "gpu". grace_s: seconds before the time limit at which the training has to save.
      container: image for pyxis (`srun --container-image`).
    """

    nodes: int
    gpus: int
    name: str = "vict"
    cpus: int | None = None
    process_per: str = "node"
    time: str | None = None
    partition: str | None = None
    account: str | None = None
    container: str | None = None
    grace_s: int = 180

    def __post_init__(self) -> None:
        for flag, number in (("nodes", self.nodes), ("gpus_per_node", self.gpus)):
            _require(number >= 1, flag, number, "1 or more")
        _require(self.grace_s >= 1, "grace_seconds", self.grace_s, "1 or more")
        if self.cpus is not None:
            per_node = self.gpus if self.process_per == "gpu" else 1
            form = f"a multiple of the {per_node} processes of a node"
            _require(self.cpus >= per_node and self.cpus % per_node == 0, "cpus_per_node", self.cpus, form)
        form = "minutes, hours:minutes:seconds or days-hours:minutes:seconds"
        _require(self.time is None or bool(_TIME_FORM.fullmatch(self.time)), "time", self.time, form)
        words = {"name": self.name, "partition": self.partition, "account": self.account}
        for flag, value in {**words, "container": self.container}.items():
            form = "letters, digits and _ . : @ + / , -, without spaces"
            _require(value is None or bool(_WORD.fullmatch(value)), flag, value, form)
        _require("/" not in self.name, "name", self.name, "a name that a file can have")

    @property
    def tasks_per_node(self) -> int:
        """Processes of a node."""
        return self.gpus if self.process_per == "gpu" else 1


def _require(ok: bool, flag: str, value: object, allowed: str) -> None:
    if not ok:
        raise ValueError(f"--{flag}={value} is not allowed: {allowed}")


def log_folder(job: Job) -> pathlib.Path:
    """Where the script and the logs are: below the checkout, which all nodes must see."""
    return ROOT / SCRATCH / job.name


def batch_options(job: Job) -> list[str]:
    """What the #SBATCH lines say, without the word."""
    cpus = "--exclusive" if job.cpus is None else f"--cpus-per-task={job.cpus // job.tasks_per_node}"
    wanted = {"time": job.time, "partition": job.partition, "account": job.account}
    return [
        *(f"--job-name={job.name}", f"--nodes={job.nodes}", f"--ntasks-per-node={job.tasks_per_node}"),
        *(f"--gpus-per-node={job.gpus}", cpus),
        *(f"--{key}={value}" for key, value in wanted.items() if value is not None),
        f"--output={log_folder(job)}/%j.log",
        "--open-mode=append",  # a job that was queued again goes on in the same file
        "--requeue",
        f"--signal=B:USR1@{job.grace_s}",
    ]


def script(job: Job, training: Training, python: str) -> str:
    """The batch script: options, variables, and the part that is the same for all.

    Raises:
      ValueError: the run's directory is no path.
    """
    _require(
        "://" not in training.workdir, "workdir", training.workdir, "a path of storage that all nodes share"
    )
    processes = job.nodes * job.tasks_per_node
    train = training.argv(python, "--distributed=auto", f"--num_processes={processes}")
    step = ["--kill-on-bad-exit=1", "--label"]
    # srun does not take the number of cores over from the job, and would bind a process to one of them.
    step.append(
        "--cpu-bind=none" if job.cpus is None else f"--cpus-per-task={job.cpus // job.tasks_per_node}"
    )
    if job.container is not None:
        folders = sorted({str(ROOT), str(ROOT / training.workdir)})
        step.append(f"--container-image={job.container}")
        step.append(f"--container-mounts={','.join(f'{one}:{one}' for one in folders)}")
        step.append(f"--container-workdir={ROOT}")
    lines = ["#!/bin/bash", *(f"#SBATCH {option}" for option in batch_options(job)), ""]
    lines.append(f"checkout={shlex.quote(str(ROOT))}")
    if job.process_per == "node":
        lines.append(
            "# JAX would take one GPU for a process that Slurm started; this one has all of the node."
        )
        lines.append(f"export JAX_LOCAL_DEVICE_IDS={','.join(map(str, range(job.gpus)))}")
    lines += _array("step_options", step) + _array("train", train) + [""]
    body = (ROOT / "launch/remote/slurm.sh").read_text(encoding="utf-8")
    return "\n".join(lines) + body


def _array(name: str, values: list[str]) -> list[str]:
    return [f"{name}=(", *(f"  {shlex.quote(value)}" for value in values), ")"]


def submit(job: Job, training: Training, python: str, runner: Runner) -> None:
    """Write the script, submit it, and say how to follow and cancel the job.

    Raises:
      RunError: there is no sbatch, or it refuses.
    """
    require_programs(["sbatch"], why="run this on a node of the cluster from which jobs are submitted")
    folder = log_folder(job)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "job.sbatch"
    path.write_text(script(job, training, python), encoding="utf-8")
    if job.container is not None:  # what is mounted has to exist
        (ROOT / training.workdir).mkdir(parents=True, exist_ok=True)
    number = runner.read_checked(["sbatch", "--parsable", str(path)]).strip().split(";")[0]
    log = shlex.quote(str(folder / f"{number}.log"))
    runner.note(
        f"job {number} submitted ({path})\n"
        f"  state:  squeue --job={number}\n"
        f"  log:    tail -F {log}\n"
        f"  cancel: scancel {number}     # the training saves first\n"
        "Submitting the same command again continues the run from its last checkpoint."
    )
