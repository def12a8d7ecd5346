"""Train on the GPUs of a Slurm cluster: write a batch script, and submit it.

    python -m launch.slurm --nodes=2 --gpus_per_node=8 --time=12:00:00 --partition=gpu \
        --config=configs/quickstart.py --workdir=/shared/runs/x --config.mesh.fsdp=-1
    python -m launch.slurm --dry-run ...        # prints the script and submits nothing

A node is one process by default, as a TPU host is: it has one set of environment workers, and devices of a
node can share the rows of a batch (`mesh.tensor`) without another process needing the same rollouts. JAX
allows that, but takes a single GPU for a process that Slurm started, so the script names all GPUs of the
node to it. `--process_per=gpu` follows JAX's default. Before the time limit the training is told to save,
and the job queues itself again; Slurm does that after a pre-emption. See docs/launchers.md.
"""

from __future__ import annotations

import sys

from absl import flags
from ml_collections import config_flags

from launch import cli, commands
from launch.slurm_job import Job, script, submit
from vict_jax import config as config_lib

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Define the flags of this command, where it is the program: several define the same names."""
    config_flags.DEFINE_config_file(
        "config", None, "config file, e.g. configs/quickstart.py", lock_config=True
    )
    flags.DEFINE_string("workdir", None, "directory of the run, on storage that all nodes share")
    flags.DEFINE_string("name", "vict", "name of the job")
    flags.DEFINE_integer("nodes", None, "nodes of the job")
    flags.DEFINE_integer("gpus_per_node", None, "GPUs of each node")
    flags.DEFINE_integer("cpus_per_node", None, "CPU cores of each node; all if left out, with --exclusive")
    flags.DEFINE_enum("process_per", "node", ["node", "gpu"], "what a process is")
    flags.DEFINE_string("time", None, "time limit, e.g. 12:00:00; the partition's if left out")
    flags.DEFINE_string("partition", None, "partition")
    flags.DEFINE_string("account", None, "account that pays")
    flags.DEFINE_string("container", None, "image to run in, with the pyxis plugin")
    flags.DEFINE_string("python", None, "interpreter on the nodes; this one, or python3 in a container")
    flags.DEFINE_integer("grace_seconds", 180, "before the time limit, to save")
    flags.DEFINE_bool("dry-run", False, "print the script and submit nothing")
    flags.DEFINE_alias("dry_run", "dry-run")


def main() -> None:
    """Check the config here, then write and submit the job."""
    training = commands.training(commands.raw_config(sys.argv), FLAGS.workdir, sys.argv)
    config_lib.from_config_dict(FLAGS.config)
    if FLAGS.nodes is None or FLAGS.gpus_per_node is None:
        raise ValueError("--nodes=N and --gpus_per_node=N are both needed")
    job = Job(
        nodes=FLAGS.nodes,
        gpus=FLAGS.gpus_per_node,
        name=FLAGS.name,
        cpus=FLAGS.cpus_per_node,
        process_per=FLAGS.process_per,
        time=FLAGS.time,
        partition=FLAGS.partition,
        account=FLAGS.account,
        container=FLAGS.container,
        grace_s=FLAGS.grace_seconds,
    )
    python = FLAGS.python or ("python3" if job.container else sys.executable)
    if FLAGS["dry-run"].value:
        print(script(job, training, python), end="")
    else:
        submit(job, training, python, commands.Runner())


if __name__ == "__main__":
    define_flags()
    cli.run(main)
