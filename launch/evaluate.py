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
from vict_jax.config import EvalOptions
from vict_jax.evaluate import evaluate
from vict_jax.job import open_job
from vict_jax.metrics import read_config, write_json
from vict_jax.run_state import load_params
from vict_jax.train import bar

_WORKDIR = flags.DEFINE_string("workdir", None, "directory of a run; with --agent also of a model")
_SPLIT = flags.DEFINE_string("split", None, "split; that of the run's validation if left out")
_UPDATE = flags.DEFINE_integer("update", None, "which checkpoint; the newest if left out, 0 = warm start")
_TEMPERATURE = flags.DEFINE_float("temperature", None, "0 = greedy; that of the run's validation if left out")
_MESH = flags.DEFINE_list("mesh", None, "data,fsdp,tensor; the mesh of the run if left out")
_BATCH = flags.DEFINE_integer("batch", None, "tasks in play at once; does not change the result")


def main() -> None:
    """Evaluate, print the table, write the JSON."""
    if agents.wanted():
        common = agents.Common(
            workdir=_WORKDIR.value,
            split=_SPLIT.value,
            update=_UPDATE.value,
            temperature=_TEMPERATURE.value,
            mesh=_MESH.value,
            batch=_BATCH.value,
        )
        print(agents.main(common))
        return
    if _WORKDIR.value is None:
        raise ValueError("--workdir=DIR is needed, the directory of a run")
    workdir = pathlib.Path(_WORKDIR.value)
    config = cli.on_mesh(read_config(workdir, flag="--workdir="), _MESH.value)
    saved = config.eval
    options = EvalOptions(
        split=saved.split if _SPLIT.value is None else _SPLIT.value,
        tasks=0,
        batch=saved.batch if _BATCH.value is None else _BATCH.value,
        temperature=saved.temperature if _TEMPERATURE.value is None else _TEMPERATURE.value,
    )
    config = dataclasses.replace(config, eval=options)
    with open_job(config, workdir) as job:
        update, params = load_params(job, workdir, _UPDATE.value)
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
    cli.run(main)
