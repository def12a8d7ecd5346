"""Evaluate a run on every task of a split, each exactly once.

    python -m launch.evaluate --workdir=runs/quickstart --split=valid_seen
    python -m launch.evaluate --workdir=runs/quickstart --split=valid_unseen --update=0
    python -m launch.evaluate --agent=react --endpoint=URL --endpoint_model=NAME --env=alfworld --tasks=20
    python -m launch.evaluate --agent=reflexion --workdir=MODEL --env=webshop --trials=3

With --agent a model is prompted instead, see docs/agents.md: one behind a chat endpoint, a trained run, or a
directory in the Hugging Face layout.

The result is printed as a table and written to WORKDIR/evaluations/. It does not depend on --batch.
"""

from __future__ import annotations

import dataclasses
import pathlib

from absl import flags

from launch import agents, cli
from vict_jax import summary
from vict_jax.bars import bar
from vict_jax.config import EvalOptions
from vict_jax.evaluate import evaluate
from vict_jax.job import open_job
from vict_jax.metrics import read_config, write_json
from vict_jax.run_state import load_params

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Define the flags of this command, where it is the program: several define the same names."""
    flags.DEFINE_string("workdir", None, "directory of a run; with --agent also of a model")
    flags.DEFINE_string("split", None, "split; that of the run's validation if left out")
    flags.DEFINE_integer("update", None, "which checkpoint; the newest if left out, 0 = warm start")
    flags.DEFINE_float("temperature", None, "0 = greedy; that of the run's validation if left out")
    flags.DEFINE_list("mesh", None, "data,fsdp,tensor; the mesh of the run if left out")
    flags.DEFINE_integer("batch", None, "tasks in play at once; does not change the result")
    agents.define_flags()


def main() -> None:
    """Evaluate, print the table, write the JSON."""
    if agents.wanted():
        common = agents.Common(
            workdir=FLAGS.workdir,
            split=FLAGS.split,
            update=FLAGS.update,
            temperature=FLAGS.temperature,
            mesh=FLAGS.mesh,
            batch=FLAGS.batch,
        )
        print(agents.main(common))
        return
    if FLAGS.workdir is None:
        raise ValueError("--workdir=DIR is needed, the directory of a run")
    workdir = pathlib.Path(FLAGS.workdir)
    config = cli.on_mesh(read_config(workdir, flag="--workdir="), FLAGS.mesh)
    saved = config.eval
    options = EvalOptions(
        split=saved.split if FLAGS.split is None else FLAGS.split,
        tasks=0,
        batch=saved.batch if FLAGS.batch is None else FLAGS.batch,
        temperature=saved.temperature if FLAGS.temperature is None else FLAGS.temperature,
    )
    config = dataclasses.replace(config, eval=options)
    with open_job(config, workdir) as job:
        update, params = load_params(job, workdir, FLAGS.update)
        shown, move = bar(f"{options.split} after update {update}")
        with shown:
            result = evaluate(job, params, progress=move)
    folder = workdir / "evaluations"
    folder.mkdir(exist_ok=True)
    path = folder / f"{options.split}_update_{update:06d}_t{options.temperature:g}.json"
    write_json(path, {"split": options.split, "update": update, **dataclasses.asdict(options), **result})
    table = summary.evaluation_table(options.split, {f"update {update}, every task once": result})
    print(f"{table}\nwritten to {path}")


if __name__ == "__main__":
    define_flags()
    cli.run(main)
