"""Write a trained model as a Hugging Face directory, or its adapters as a PEFT directory.

    python -m launch.export --workdir=runs/quickstart --out=DIR
    python -m launch.export --workdir=runs/lora --out=DIR --adapters

Adapters are merged into the model unless --adapters asks for them alone. `transformers` and `peft` read
the directories, and `--config.model.path=DIR` trains on from a model. --out must not have anything in it.
"""

from __future__ import annotations

import pathlib

from absl import flags
from flax import nnx

from launch import cli
from vict_jax.job import Job, open_job
from vict_jax.metrics import read_config
from vict_jax.models import hf, lora, peft
from vict_jax.run_state import load_params

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Define the flags of this command, where it is the program: several define the same names."""
    flags.DEFINE_string("workdir", None, "directory of a run")
    flags.DEFINE_string("out", None, "directory to write")
    flags.DEFINE_integer("update", None, "which checkpoint; the newest if left out, 0 = warm start")
    flags.DEFINE_bool("adapters", False, "only the LoRA adapters, in PEFT's format")
    flags.DEFINE_list("mesh", None, "data,fsdp,tensor; the mesh of the run if left out")
    flags.DEFINE_enum("dtype", None, list(hf.DTYPES), "precision of the weights; as trained if left out")


def export_model(job: Job, params: nnx.State, folder: pathlib.Path, dtype: str | None) -> None:
    """Write the whole model with tokenizer and generation settings, adapters merged."""
    source, model = job.config.model.path, job.model
    if job.frozen is not None:
        params, model = lora.merge(model, job.frozen, params), lora.without_adapters(model)
    own = {"eos_token_id": list(job.codec.stop_ids), "pad_token_id": job.codec.tokenizer.pad_token_id}
    hf.export(
        folder,
        model,
        params,
        tokenizer=pathlib.Path(source) if source else job.codec.tokenizer,
        generation_config=hf.load_generation_config(pathlib.Path(source)) if source else own,
        dtype=dtype,
    )


def main() -> None:
    """Restore the checkpoint and write the directory."""
    if FLAGS.workdir is None or FLAGS.out is None:
        raise ValueError("--workdir=DIR (of a run) and --out=DIR (to write) are needed")
    workdir, folder = pathlib.Path(FLAGS.workdir), pathlib.Path(FLAGS.out)
    config = cli.on_mesh(read_config(workdir, flag="--workdir="), FLAGS.mesh)
    if FLAGS.adapters and not config.model.lora_rank:
        raise ValueError(f"--adapters: the run in {workdir} has none (model.lora_rank=0); leave the flag out")
    if FLAGS.adapters and not config.model.path:
        raise ValueError(
            f"--adapters: the run in {workdir} began without a checkpoint (model.path is empty), so nobody "
            "else has the weights that its adapters belong to; leave the flag out"
        )
    if FLAGS.adapters and FLAGS.dtype:
        raise ValueError(
            f"--dtype={FLAGS.dtype}: adapters are written in float32; leave it or --adapters out"
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"--out={folder} exists and is not an empty directory; name another one")
    with open_job(config, workdir) as job:
        update, params = load_params(job, workdir, FLAGS.update)
        if FLAGS.adapters:
            peft.save(folder, job.model, params, base_model=config.model.path)
        else:
            export_model(job, params, folder, FLAGS.dtype)
    print(f"written to {folder}: {'adapters' if FLAGS.adapters else 'model'} after update {update}")


if __name__ == "__main__":
    define_flags()
    cli.run(main)
