"""What stays the same during a run: environments, tasks, tokenizer, model structure, keys."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib.metadata
import pathlib
import platform
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx

from envs.base import Domain, Task
from envs.lookup import environment
from envs.pool import EnvPool
from vict_jax.config import RunConfig
from vict_jax.metrics import RunError, read_json, write_json
from vict_jax.models import decoder
from vict_jax.models.config import ModelConfig
from vict_jax.rollout.collector import expert_examples
from vict_jax.rollout.template import Example, check_prompt, make_template
from vict_jax.rollout.tokenizer import Codec, load_tokenizer, save_tokenizer, train_tokenizer
from vict_jax.sharding import check_tensor_axis, make_mesh, param_shardings


@dataclasses.dataclass(frozen=True)
class Keys:
    """One PRNG key per use, so that no use shifts another."""

    init: jax.Array
    rollout: jax.Array
    minibatch: jax.Array
    evaluate: jax.Array


@dataclasses.dataclass(frozen=True)
class Job:
    """The constants of a run.

    Attributes:
      train_tasks, eval_tasks: every task of their splits (of `eval.tasks` of it).
      max_steps: the step cap T.
      graphdef: structure of the model; parameters are passed separately.
      examples: solved steps that every prompt begins with.
    """

    config: RunConfig
    domain: Domain
    train_tasks: Sequence[Task]
    eval_tasks: Sequence[Task]
    max_steps: int
    pool: EnvPool
    codec: Codec
    model: ModelConfig
    graphdef: nnx.GraphDef
    mesh: jax.sharding.Mesh
    keys: Keys
    examples: Sequence[Example]


@contextlib.contextmanager
def open_job(config: RunConfig, workdir: pathlib.Path) -> Iterator[Job]:
    """Start the environments and prepare everything a run or an evaluation needs.

    Raises:
      RunError: the data differ from those the run directory was started with.
      ValueError, FileNotFoundError: the environment refuses its options or data, or the tokenizer's chat
        template cannot be used.
    """
    domain, _ = environment(config.env.name)
    options = config.env.options
    check_prompt(config.rollout)
    train_tasks = domain.tasks(options, config.train.split)
    eval_tasks = domain.tasks(options, config.eval.split)
    eval_tasks = eval_tasks[: config.eval.tasks] if config.eval.tasks else eval_tasks
    _check_data(config, domain, workdir)
    codec = _codec(config, domain, workdir)
    make_template(codec, config.rollout)
    model = _model_config(config, codec)
    graphdef = nnx.graphdef(nnx.eval_shape(lambda: decoder.Decoder(model, jax.random.key(0))))
    mesh = make_mesh(config.mesh.shape(jax.device_count()))
    check_tensor_axis(mesh, num_heads=model.num_heads, num_kv_heads=model.num_kv_heads)
    keys = Keys(*jax.random.split(jax.random.key(config.seed), 4))
    with EnvPool(domain, options, workers=config.env.workers, timeout_s=config.env.timeout_s) as pool:
        yield Job(
            config=config,
            domain=domain,
            train_tasks=train_tasks,
            eval_tasks=eval_tasks,
            max_steps=domain.max_steps(options),
            pool=pool,
            codec=codec,
            model=model,
            graphdef=graphdef,
            mesh=mesh,
            keys=keys,
            examples=expert_examples(pool, train_tasks, config.rollout),
        )


def new_params(job: Job) -> nnx.State:
    """Freshly initialised parameters, sharded over the mesh."""

    def init() -> nnx.State:
        return decoder.init(job.model, job.keys.init)[1]

    shardings = param_shardings(job.mesh, jax.eval_shape(init), decoder.logical_axes(job.model))
    return jax.jit(init, out_shardings=shardings)()


def update_tasks(job: Job, update: int) -> list[Task]:
    """The tasks of update 1, 2, ...: consecutive pieces of one seeded permutation per epoch."""
    groups, total = job.config.train.groups, len(job.train_tasks)
    chosen = []
    for index in range((update - 1) * groups, update * groups):
        epoch, place = divmod(index, total)
        order = np.random.default_rng([job.config.seed, epoch]).permutation(total)
        chosen.append(job.train_tasks[int(order[place])])
    return chosen


def _codec(config: RunConfig, domain: Domain, workdir: pathlib.Path) -> Codec:
    folder = workdir / "tokenizer"
    if not (folder / "tokenizer.json").is_file():
        save_tokenizer(train_tokenizer(domain.corpus(config.env.options), config.model.vocab_size), folder)
    return Codec(load_tokenizer(folder))


def _model_config(config: RunConfig, codec: Codec) -> ModelConfig:
    sizes = dataclasses.asdict(config.model)
    sizes["vocab_size"] = len(codec.tokenizer)
    return ModelConfig(**sizes, max_positions=config.rollout.max_context)


def describe(config: RunConfig, domain: Domain) -> dict[str, Any]:
    """Versions, devices and tasks of a run: the content of `run.json`."""
    splits = dict.fromkeys([config.train.split, config.eval.split])
    return {
        "versions": {name: importlib.metadata.version(name) for name in ("jax", "flax", "optax", "numpy")}
        | {"python": platform.python_version()},
        "devices": [str(device) for device in jax.devices()],
        "tasks": {split: _task_digest(domain.tasks(config.env.options, split)) for split in splits},
        "data": dict(domain.manifest(config.env.options, list(splits))),
    }


def _task_digest(tasks: Sequence[Task]) -> dict[str, Any]:
    digest = hashlib.sha256()
    for task in tasks:
        digest.update(f"{task.id}\0{task.type}\0{task.seed}\n".encode())
    return {"count": len(tasks), "sha256": digest.hexdigest()}


def _check_data(config: RunConfig, domain: Domain, workdir: pathlib.Path) -> None:
    """Write `run.json`, or refuse to continue on other tasks or data than those it names."""
    path, now = workdir / "run.json", describe(config, domain)
    if not path.exists():
        write_json(path, now)
        return
    before = read_json(path)
    changed = [
        f"{kind} {name}: {before[kind].get(name)} -> {now[kind].get(name)}"
        for kind in ("tasks", "data")
        for name in sorted(set(before[kind]) | set(now[kind]))
        if before[kind].get(name) != now[kind].get(name)
    ]
    if changed:
        raise RunError(
            f"the data of --workdir={workdir} have changed since it was started:\n  "
            + "\n  ".join(changed)
            + "\nRestore them to continue, or start anew in another --workdir."
        )
