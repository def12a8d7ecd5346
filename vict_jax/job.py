"""What stays the same during a run: environments, tasks, tokenizer, model structure, keys."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import importlib.metadata
import pathlib
import platform
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx

from envs.base import Domain, Task
from envs.lookup import environment
from envs.pool import EnvPool
from vict_jax import processes
from vict_jax.batching import to_device
from vict_jax.config import RunConfig
from vict_jax.credit.methods import needs
from vict_jax.learner import value
from vict_jax.metrics import RunError, allowing, noting, read_json, write_json
from vict_jax.models import decoder, hf, lora
from vict_jax.models.config import ModelConfig
from vict_jax.models.hf_files import read_json as read_model_json
from vict_jax.rollout.collector import Collected, collect, expert_examples, open_sessions
from vict_jax.rollout.options import RolloutOptions
from vict_jax.rollout.template import Example, check_prompt, make_template
from vict_jax.rollout.tokenizer import Codec, load_codec, load_tokenizer, save_tokenizer, train_tokenizer
from vict_jax.sharding import (
    check_tensor_axis,
    local_mesh,
    localized,
    make_mesh,
    param_shardings,
    replicated,
)
from vict_jax.task_order import task_digest, update_order

# What of the data `run.json` tells of, by kind; these may be named in `StartOptions.allow_changed`.
DATA = ("tasks", "data", "tokenizer")

Policy = tuple[nnx.GraphDef, nnx.State]  # structure and all parameters of a model


@dataclasses.dataclass(frozen=True)
class Keys:
    """One PRNG key per use, so that no use shifts another.

    Those that replies are sampled with, `rollout` and `evaluate`, are on `Job.sampling_mesh`.
    """

    init: jax.Array
    rollout: jax.Array
    minibatch: jax.Array
    evaluate: jax.Array
    adapters: jax.Array


@dataclasses.dataclass(frozen=True)
class Job:
    """The constants of a run.

    Attributes:
      train_tasks: those of the training split, or of `train.task_set` in its order.
      eval_tasks: those of the validation split, or the first `eval.tasks` of them.
      max_steps: the step cap T.
      graphdef: structure of the model; what is trained of its parameters is passed separately.
      frozen: the rest of its parameters, under adapters; None where all are trained.
      sampling_mesh: this process's own part of the mesh, on which it samples; the mesh itself in a run of
        one process.
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
    sampling_mesh: jax.sharding.Mesh
    keys: Keys
    examples: Sequence[Example]


@contextlib.contextmanager
def open_job(config: RunConfig, workdir: pathlib.Path, allow_changed: Sequence[str] = ()) -> Iterator[Job]:
    """Start the environments and prepare everything a run or an evaluation needs.

    Args:
      allow_changed: which of `DATA` may differ from those of the run so far.

    Raises:
      RunError: the data differ from those the run directory was started with.
      ValueError, FileNotFoundError: the environment refuses its options or data, or the tokenizer's chat
        template cannot be used.
    """
    domain, _ = environment(config.env.name)
    options = config.env.options
    check_prompt(config.rollout)
    train_tasks = training_tasks(config, domain)
    eval_tasks = domain.tasks(options, config.eval.split)
    eval_tasks = eval_tasks[: config.eval.tasks] if config.eval.tasks else eval_tasks
    processes.check_groups(config.train.groups, processes.count())
    processes.on_first(lambda: _check_data(workdir, describe(config, domain), allow_changed))
    codec = _codec(config, domain, workdir, allow_changed)
    model = _model_config(config, codec)
    mesh = make_mesh(config.mesh.shape(jax.device_count()))
    sampling_mesh = local_mesh(mesh)
    keys = _keys(config.seed, mesh, sampling_mesh)
    check_tensor_axis(mesh, num_heads=model.num_heads, num_kv_heads=model.num_kv_heads)
    with EnvPool(domain, options, workers=config.env.workers, timeout_s=config.env.timeout_s) as pool:
        examples = expert_examples(pool, train_tasks, config.rollout)
        make_template(codec, config.rollout, examples)  # refuses what does not fit before weights are read
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
            frozen=_frozen(config, keys.init, model, mesh),
            mesh=mesh,
            sampling_mesh=sampling_mesh,
            keys=keys,
            examples=examples,
        )


def _keys(seed: int, mesh: jax.sharding.Mesh, sampling_mesh: jax.sharding.Mesh) -> Keys:
    init, rollout, minibatch, evaluate, adapters = jax.random.split(jax.random.key(seed), 5)

    def on(key: jax.Array, where: jax.sharding.Mesh) -> jax.Array:
        data = to_device(np.asarray(jax.random.key_data(key)), replicated(where))
        return jax.random.wrap_key_data(data)

    return Keys(
        init=on(init, mesh),
        rollout=on(rollout, sampling_mesh),
        minibatch=on(minibatch, mesh),
        evaluate=on(evaluate, sampling_mesh),
        adapters=on(adapters, mesh),
    )


@jax.jit
def _fold(key: jax.Array, number: jax.Array) -> jax.Array:
    return jax.random.fold_in(key, number)


def fold(key: jax.Array, number: int) -> jax.Array:
    """`fold_in(key, number)` with an explicit transfer of the number."""
    return _fold(key, to_device(np.uint32(number), key.sharding))


def new_params(job: Job) -> nnx.State:
    """What is trained, as it is before training, sharded over the mesh: all parameters, or the adapters."""
    if job.frozen is not None:
        return lora.init(job.model, job.keys.adapters, job.mesh)
    return _whole_model(job.config, job.keys.init, job.model, job.mesh)


def abstract_params(job: Job) -> Any:
    """Shapes, dtypes and shardings of what `new_params` returns, without making or reading it."""
    params = jax.eval_shape(lambda: decoder.init(job.model, job.keys.init)[1])
    if job.frozen is not None:
        params = lora.adapters_of(params)
    shardings = param_shardings(job.mesh, params, decoder.logical_axes(job.model))
    return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), params, shardings)


def needs_values(config: RunConfig) -> bool:
    """Whether the credit method needs a critic, which is trained beside the policy then."""
    return "value" in needs([config.credit.method], config.credit.options)


def longest_sequence(config: RunConfig) -> int:
    """Most tokens that the model reads in one sequence: the context and, in the pass of HCAPO, an outcome."""
    with_outcome = "hindsight_logp" in needs([config.credit.method], config.credit.options)
    outcome = config.credit.options.hcapo.outcome_tokens if with_outcome else 0
    return config.rollout.max_context + outcome


def with_value_head(job: Job, params: nnx.State) -> nnx.State:
    """The policy's trained parameters and, if the credit method needs one, a new value head."""
    if not needs_values(job.config):
        return params
    return value.attach(params, value.new_head(job.model.d_model, job.mesh))


def abstract_trained(job: Job) -> Any:
    """Shapes, dtypes and shardings of what `with_value_head` returns."""
    params = abstract_params(job)
    if not needs_values(job.config):
        return params
    return value.attach(params, value.abstract_head(job.model.d_model, job.mesh))


def policy(job: Job, params: nnx.State) -> Policy:
    """The model with the trained parameters `params`, for sampling and scoring; nothing is copied.

    A value head among them is left out.
    """
    return job.graphdef, lora.combine(job.frozen, value.without_head(params))


def sampling_policy(job: Job, params: nnx.State) -> Policy:
    """The model with the trained parameters `params` on `job.sampling_mesh`; called by all processes.

    It holds until the parameters are donated.
    """
    graphdef, whole = policy(job, params)
    return graphdef, localized(whole, job.sampling_mesh)


def player(job: Job, model: Policy, options: RolloutOptions) -> Callable[..., Collected]:
    """`collect` with the environments and limits of the run: `play(tasks, rollouts=..., key=..., ...)`.

    Args:
      model: on `job.sampling_mesh`, see `sampling_policy`. options: of the run, or of an evaluation.
    """
    sessions = open_sessions(*model, job.codec, options, job.sampling_mesh, job.examples)
    return functools.partial(
        collect,
        job.pool,
        sessions,
        job.codec,
        options=options,
        max_steps=job.max_steps,
        examples=job.examples,
    )


def reference_policy(job: Job, start: nnx.State) -> Policy:
    """The reference of the KL term: the policy as the updates found it, with the trained parameters `start`.

    Adapters that no warm start has trained are off then (B = 0): the reference is the base where it lies.
    """
    if job.frozen is not None and not job.config.warm_start.active:
        return decoder.structure(lora.without_adapters(job.model)), job.frozen
    return policy(job, start)


def parameter_counts(job: Job) -> str:
    """How many parameters there are, and are trained."""
    trainable, frozen = (
        sum(x.size for x in jax.tree.leaves(tree)) for tree in (abstract_trained(job), job.frozen)
    )
    total, adapters = f"{(trainable + frozen) / 1e6:.2f}M parameters", job.model.lora
    if adapters is None:
        return total
    return f"{total}, {trainable / 1e6:.2f}M of them trained (LoRA of rank {adapters.rank})"


def _frozen(
    config: RunConfig, key: jax.Array, model: ModelConfig, mesh: jax.sharding.Mesh
) -> nnx.State | None:
    """The base below adapters, None without them."""
    return None if model.lora is None else _whole_model(config, key, lora.without_adapters(model), mesh)


def _whole_model(config: RunConfig, key: jax.Array, model: ModelConfig, mesh: jax.sharding.Mesh) -> nnx.State:
    """All parameters: those of the checkpoint directory that the config names, or new ones."""
    if config.model.path:
        return hf.load(pathlib.Path(config.model.path), mesh, param_dtype=model.param_dtype)[1]

    def init(key: jax.Array) -> nnx.State:
        return decoder.init(model, key)[1]

    shardings = param_shardings(mesh, jax.eval_shape(init, key), decoder.logical_axes(model))
    return jax.jit(init, out_shardings=shardings)(key)


def training_tasks(config: RunConfig, domain: Domain) -> Sequence[Task]:
    """The tasks of the training split: all of them, or those that a task set names, in its order.

    Raises:
      ValueError, DamagedError: the task set does not fit the environment or cannot be read.
    """
    train, options = config.train, config.env.options
    if not train.task_set:
        return domain.tasks(options, train.split)
    from vict_jax.datasets import tasks  # takes half a second, which only those who ask for it should wait

    return tasks.training_tasks(pathlib.Path(train.task_set), config.env.name, domain, options, train.split)


def update_tasks(job: Job, update: int) -> list[Task]:
    """The tasks of update 1, 2, ..., of all hosts: consecutive pieces of one seeded permutation per epoch."""
    order = update_order(
        update, groups=job.config.train.groups, total=len(job.train_tasks), seed=job.config.seed
    )
    return [job.train_tasks[index] for index in order]


def _codec(config: RunConfig, domain: Domain, workdir: pathlib.Path, allow_changed: Sequence[str]) -> Codec:
    if config.model.path:
        return load_codec(pathlib.Path(config.model.path))
    folder = workdir / "tokenizer"

    def prepare() -> None:
        _make_tokenizer(config, domain, folder)
        digest = hashlib.sha256((folder / "tokenizer.json").read_bytes()).hexdigest()
        _check_data(workdir, {"tokenizer": {"tokenizer.json": digest}}, allow_changed)

    processes.on_first(prepare)
    return Codec(load_tokenizer(folder))


def _make_tokenizer(config: RunConfig, domain: Domain, folder: pathlib.Path) -> None:
    if config.warm_start.run and not folder.exists():
        _copy_tokenizer(pathlib.Path(config.warm_start.run), folder)
    if not (folder / "tokenizer.json").is_file():
        save_tokenizer(train_tokenizer(domain.corpus(config.env.options), config.model.vocab_size), folder)


def _copy_tokenizer(run: pathlib.Path, folder: pathlib.Path) -> None:
    """Take over the tokenizer of another run.

    Raises:
      FileNotFoundError: that directory has none.
    """
    source = run / "tokenizer"
    if not (source / "tokenizer.json").is_file():
        raise FileNotFoundError(
            f"warm_start.run={str(run)!r} has no tokenizer/tokenizer.json: it must be the directory of a run "
            "that trained its own model"
        )
    shutil.copytree(source, folder)


def _model_config(config: RunConfig, codec: Codec) -> ModelConfig:
    """Sizes from the checkpoint directory or from the config.

    Raises:
      ValueError: the checkpoint's tokenizer or the longest context does not fit the checkpoint's model.
    """
    options, longest = config.model, longest_sequence(config)
    if not options.path:
        return options.made(vocab_size=len(codec.tokenizer), max_positions=longest)
    model = options.read(read_model_json(pathlib.Path(options.path) / hf.CONFIG))
    if len(codec.tokenizer) > model.vocab_size:
        raise ValueError(
            f"model.path={options.path!r}: the tokenizer has {len(codec.tokenizer)} tokens, the model "
            f"{model.vocab_size}"
        )
    if config.rollout.max_context > model.max_positions:
        raise ValueError(
            f"rollout.max_context={config.rollout.max_context} is above the {model.max_positions} positions "
            f"of the model at {options.path!r}"
        )
    if longest > model.max_positions:
        raise ValueError(
            f"rollout.max_context={config.rollout.max_context} leaves no room for "
            f"credit.hcapo.outcome_tokens={config.credit.options.hcapo.outcome_tokens} below the "
            f"{model.max_positions} positions of the model at {options.path!r}, which "
            f"credit.method={config.credit.method!r} reads in one sequence"
        )
    return model


def describe(config: RunConfig, domain: Domain) -> dict[str, Any]:
    """Versions, devices and tasks of a run: the content of `run.json`."""
    splits = dict.fromkeys([config.train.split, config.eval.split])
    digests = {split: task_digest(domain.tasks(config.env.options, split)) for split in splits}
    if config.train.task_set:
        digests["of train.task_set"] = task_digest(training_tasks(config, domain))
    return {
        "versions": {name: importlib.metadata.version(name) for name in ("jax", "flax", "optax", "numpy")}
        | {"python": platform.python_version()},
        "devices": [str(device) for device in jax.devices()],
        "tasks": digests,
        "data": dict(domain.manifest(config.env.options, list(splits))) | _model_files(config),
    }


def _model_files(config: RunConfig) -> dict[str, str]:
    if not config.model.path:
        return {}
    found = hf.fingerprint(pathlib.Path(config.model.path))
    return {f"model {name}": value for name, value in found.items()}


def _check_data(workdir: pathlib.Path, now: Mapping[str, Any], allow_changed: Sequence[str]) -> None:
    """Add `now` to `run.json`, or refuse to continue on other data than those it names already."""
    path = workdir / "run.json"
    before = read_json(path) if path.exists() else {}
    changed = {
        kind: [
            f"{kind} {name}: {before[kind].get(name)} -> {now[kind].get(name)}"
            for name in sorted(set(before[kind]) | set(now[kind]))
            if before[kind].get(name) != now[kind].get(name)
        ]
        for kind in DATA
        if kind in before and kind in now
    }
    changed = {kind: lines for kind, lines in changed.items() if lines}
    refused = [line for kind, lines in changed.items() if kind not in allow_changed for line in lines]
    if refused:
        raise RunError(
            f"the data of --workdir={workdir} have changed since it was started:\n  "
            + "\n  ".join(refused)
            + "\nRestore them to continue, or start anew in another --workdir. "
            + allowing(changed)
        )
    told = {**now, **before, **{kind: now[kind] for kind in changed}}
    if changed:
        told = noting(told, [line for lines in changed.values() for line in lines])
    if told != before:
        write_json(path, told)
