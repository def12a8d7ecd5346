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
from vict_jax.models import decoder, lora
from vict_jax.models.config import ModelConfig
from vict_jax.rollout.collector import expert_examples
from vict_jax.rollout.template import Example, check_prompt, make_template
from vict_jax.rollout.tokenizer import Codec, load_tokenizer, save_tokenizer, train_tokenizer
from vict_jax.sharding import check_tensor_axis, make_mesh, param_shardings

Policy = tuple[nnx.GraphDef, nnx.State]  # structure and all parameters of a model


@dataclasses.dataclass(frozen=True)
class Keys:
    """One PRNG key per use, so that no use shifts another."""

    init: jax.Array
    rollout: jax.Array
    minibatch: jax.Array
    evaluate: jax.Array
    adapters: jax.Array


@dataclasses.dataclass(frozen=True)
class Job:
    """The constants of a run.

    Attributes:
      train_tasks, eval_tasks: every task of their splits (of `eval.tasks` of it).
      max_steps: the step cap T.
      graphdef: structure of the model; what is trained of its parameters is passed separately.
      frozen: the rest of its parameters, under adapters; None where all are trained.
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
    frozen: nnx.State | None
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
    keys = Keys(*jax.random.split(jax.random.key(config.seed), 5))
    mesh = make_mesh(config.mesh.shape(jax.device_count()))
    check_tensor_axis(mesh, num_heads=model.num_heads, num_kv_heads=model.num_kv_heads)
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
            graphdef=decoder.structure(model),
            frozen=None if model.lora is None else _init(lora.without_adapters(model), keys.init, mesh),
            mesh=mesh,
            keys=keys,
            examples=expert_examples(pool, train_tasks, config.rollout),
        )


def new_params(job: Job) -> nnx.State:
    """What is trained, freshly initialised, sharded over the mesh: all parameters, or the adapters."""
    if job.frozen is not None:
        return lora.init(job.model, job.keys.adapters, job.mesh)
    return _init(job.model, job.keys.init, job.mesh)


def policy(job: Job, params: nnx.State) -> Policy:
    """The model with the trained parameters `params`, for sampling and scoring; nothing is copied."""
    return job.graphdef, lora.combine(job.frozen, params)


def reference_policy(job: Job, start: nnx.State) -> Policy:
    """The reference of the KL term: the policy as the updates found it, with the trained parameters `start`.

    Adapters that no warm start has trained are off then (B = 0): the reference is the base where it lies.
    """
    if job.frozen is not None and not job.config.warm_start.active:
        return decoder.structure(lora.without_adapters(job.model)), job.frozen
    return policy(job, start)


def parameter_counts(job: Job) -> str:
    """How many parameters there are, and are trained."""
    trained = jax.eval_shape(lambda: new_params(job))
    trainable, frozen = (sum(x.size for x in jax.tree.leaves(tree)) for tree in (trained, job.frozen))
    total, adapters = f"{(trainable + frozen) / 1e6:.2f}M parameters", job.model.lora
    if adapters is None:
        return total
    return f"{total}, {trainable / 1e6:.2f}M of them trained (LoRA of rank {adapters.rank})"


def _init(model: ModelConfig, key: jax.Array, mesh: jax.sharding.Mesh) -> nnx.State:
    def init() -> nnx.State:
        return decoder.init(model, key)[1]

    shardings = param_shardings(mesh, jax.eval_shape(init), decoder.logical_axes(model))
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
    values = dataclasses.asdict(config.model)
    sizes = {name: value for name, value in values.items() if not name.startswith("lora_")}
    sizes["vocab_size"] = len(codec.tokenizer)
    return ModelConfig(**sizes, lora=config.model.lora, max_positions=config.rollout.max_context)


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
