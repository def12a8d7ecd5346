"""Train on a TPU slice: create it, copy the code, install, run on all workers, follow, stop.

    python -m launch.tpu_pod up --name=vict --project=PROJECT --zone=us-east5-a --accelerator=v5p-64 \
        --version=v2-alpha-tpuv5 --config=configs/quickstart.py --workdir=gs://BUCKET/vict \
        --config.mesh.fsdp=-1
    python -m launch.tpu_pod stop --name=vict ...          # the same flags; lets the training save first

Actions: `up` is all of create, copy, install, run and follow; each of them alone; status; stop. `--dry-run`
prints every command and runs nothing. `--backend=queued` waits in the queue for capacity (with `--spot` for
a cheaper slice that may be taken away); `--backend=xpk` uses GKE. Starting the same command again goes on
with what is there: a slice that was taken away is asked for again and the training continues from its
checkpoint. `up` and `follow` end with the training's exit status, or 75 if the slice was taken away. See
docs/launchers.md.
"""

from __future__ import annotations

import shlex
import sys

from absl import flags
from ml_collections import config_flags

from launch import cli, commands, pod_actions
from launch.place import BACKENDS, Place, bucket_of
from vict_jax import config as config_lib

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Define the flags of this command, where it is the program: several define the same names."""
    config_flags.DEFINE_config_file(
        "config", None, "config file, e.g. configs/quickstart.py", lock_config=True
    )
    flags.DEFINE_string("workdir", None, "gs://BUCKET/PATH, or a path of storage that all workers share")
    flags.DEFINE_string("name", None, "name of the slice, or of the XPK workload")
    flags.DEFINE_string("project", None, "id of the Google Cloud project")
    flags.DEFINE_string("zone", None, "zone, e.g. us-east5-a")
    flags.DEFINE_string("accelerator", None, "type of the slice, e.g. v5p-64 or v5e-16")
    flags.DEFINE_string("version", None, "runtime version of the VMs, e.g. v2-alpha-tpuv5")
    flags.DEFINE_enum("backend", "tpu_vm", BACKENDS, "how the slice is had")
    flags.DEFINE_bool("spot", False, "cheaper, and may be taken away at any time")
    flags.DEFINE_string("cluster", None, "xpk: a cluster that exists; else one is made for the workload")
    flags.DEFINE_string("image", "python:3.11", "xpk: the image that the code is put into")
    flags.DEFINE_integer("max_restarts", 20, "xpk: restarts after lost machines")
    flags.DEFINE_multi_string("create_arg", [], "handed to the creating command, e.g. --network=NAME")
    flags.DEFINE_multi_string("ssh_arg", [], "handed to ssh and scp, e.g. --internal-ip")
    flags.DEFINE_float("poll_seconds", 20.0, "between two looks at a state")
    flags.DEFINE_integer("grace_seconds", 180, "that a training has to save when it is stopped")
    flags.DEFINE_bool("dry-run", False, "print every command and run nothing")
    flags.DEFINE_alias("dry_run", "dry-run")


def place_of_flags() -> Place:
    """The place that the flags describe. Raises ValueError naming the flag, the value and what is allowed."""
    return Place(
        name=FLAGS.name or "",
        project=FLAGS.project or "",
        zone=FLAGS.zone or "",
        accelerator=FLAGS.accelerator or "",
        version=FLAGS.version,
        backend=FLAGS.backend,
        spot=FLAGS.spot,
        cluster=FLAGS.cluster,
        image=FLAGS.image,
        max_restarts=FLAGS.max_restarts,
        create_args=tuple(FLAGS.create_arg),
        ssh_args=tuple(FLAGS.ssh_arg),
        poll_s=FLAGS.poll_seconds,
        grace_s=FLAGS.grace_seconds,
    )


def training_of_flags(place: Place) -> commands.Training:
    """The training that the flags ask for, its config checked as `launch.local` would.

    Raises:
      ValueError: the config or --workdir is missing or wrong, or the workers could not reach the directory.
    """
    asked = commands.training(commands.raw_config(sys.argv), FLAGS.workdir, sys.argv)
    config_lib.from_config_dict(FLAGS.config)
    if bucket_of(asked.workdir) is not None and place.backend == "xpk":
        raise ValueError(
            f"--workdir={asked.workdir} cannot be mounted in a container; attach the bucket to the cluster "
            "(xpk storage attach ... --mount-point=/data --auto-mount=true) and give --workdir=/data/PATH"
        )
    return asked


def main(action: str) -> None:
    """Check everything that can be checked here, then do the action."""
    runner = commands.Runner(bool(FLAGS["dry-run"].value))
    place = place_of_flags()
    training = training_of_flags(place) if action in pod_actions.TRAINING else None
    if runner.dry_run:
        print(f"cd {shlex.quote(str(commands.ROOT))}")
    pod_actions.check(place, runner)
    sys.exit(pod_actions.act(action, place, runner, training))


if __name__ == "__main__":
    define_flags()
    cli.run(main, actions=pod_actions.ACTIONS)
