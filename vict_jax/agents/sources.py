"""Where the model behind an agent comes from: a chat endpoint, a trained run, or a checkpoint directory."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

from flax import nnx

from envs.base import Domain
from envs.endpoint import Endpoint
from envs.lookup import environment
from envs.pool import EnvPool
from vict_jax import config as config_lib
from vict_jax.agents.agent import Agent, AgentKind, default_reply, stop_strings, system_text
from vict_jax.agents.evaluation import Plan, evaluate_agent
from vict_jax.agents.model import EndpointModel
from vict_jax.agents.own import OwnModel
from vict_jax.agents.usage import Budget
from vict_jax.config import EnvOptions, RunConfig
from vict_jax.job import Job, new_params, open_job, policy
from vict_jax.models import hf
from vict_jax.models.hf_files import read_json as read_model_json
from vict_jax.rollout.collector import Progress, open_session
from vict_jax.rollout.options import RolloutOptions, TemplateKind
from vict_jax.rollout.parser import ReplyFormat
from vict_jax.rollout.template import check_prompt, make_template
from vict_jax.run_state import load_params
from vict_jax.sharding import batch_parts

_REFLEXION_TRIALS, _ENDPOINT_BATCH = 3, 8
# Tokens of a reply of an endpoint, and of a reply and a conversation of a checkpoint directory.
_ENDPOINT_TOKENS, _REPLY_TOKENS, _CONTEXT = 1024, 256, 4096
_SERVER_KNOWS = 2**31 - 1  # how long a conversation may be


@dataclasses.dataclass(frozen=True)
class Asked:
    """What a user asks for; None leaves it to the agent, the run or the environment.

    Attributes:
      kind: an `AgentKind`. split, tasks: the first `tasks` of the split, 0 for all.
      trials, memory, history: see `Agent`. reply: a `ReplyFormat`.
      instruction: what is told first. examples: what is told behind it.
      list_admissible: list the commands that are admissible now.
      max_new_tokens: of a reply; 0 with an endpoint: the server's own limit.
      max_context: of a conversation of our own models.
      temperature: of sampling. batch: tasks in play at a time, changes no result.
    """

    kind: str
    split: str | None = None
    tasks: int = 0
    trials: int | None = None
    memory: int = 3
    history: int = 0
    reply: str | None = None
    instruction: str | None = None
    examples: str = ""
    list_admissible: bool | None = None
    max_new_tokens: int | None = None
    max_context: int | None = None
    temperature: float | None = None
    batch: int | None = None


def environment_config(
    name: str, options: Mapping[str, Any], split: str | None, **sections: Mapping[str, Any]
) -> RunConfig:
    """The defaults of an environment with some of its options, and `sections` of the config.

    Raises:
      ValueError: an unknown environment, option or split.
    """
    values = config_lib.default_config(name).to_dict()
    values["env"] |= options
    values["eval"] |= {} if split is None else {"split": split}
    for section, changed in sections.items():
        values[section] |= changed
    return config_lib.from_plain(values)


def is_model_directory(folder: pathlib.Path) -> bool:
    """Whether a folder is a checkpoint in the Hugging Face layout; a run has a `config.json` as well."""
    return (folder / hf.CONFIG).is_file() and "model_type" in read_model_json(folder / hf.CONFIG)


def with_endpoint(
    asked: Asked,
    config: RunConfig,
    endpoint: Endpoint,
    budget: Budget,
    out: pathlib.Path,
    progress: Progress | None = None,
) -> str:
    """Evaluate the model of a chat endpoint; errors and the report as `evaluate_agent`.

    Args:
      config: of the environment and the split. endpoint: `asked` says temperature and length.
    """
    domain, env = environment(config.env.name)[0], config.env
    tokens = _ENDPOINT_TOKENS if asked.max_new_tokens is None else asked.max_new_tokens
    endpoint = dataclasses.replace(endpoint, max_tokens=tokens, temperature=asked.temperature or 0.0)
    options = RolloutOptions(
        context="append", template="chat", max_new_tokens=max(1, tokens), max_context=_SERVER_KNOWS
    )
    agent = make_agent(asked, domain, env, options, default_reply(AgentKind(asked.kind)))
    known = ("base_url", "model", "temperature", "max_tokens", "request")
    plan = Plan(
        domain=domain,
        env=env,
        agent=agent,
        model={name: vars(endpoint)[name] for name in known},
        split=config.eval.split,
        count=asked.tasks,
        seats=_ENDPOINT_BATCH if asked.batch is None else asked.batch,
        budget=budget,
    )

    def make_model(seats: int) -> EndpointModel:
        return EndpointModel(endpoint, system_text(agent), concurrency=seats)

    with EnvPool(domain, env.options, workers=env.workers, timeout_s=env.timeout_s) as pool:
        return evaluate_agent(plan, out, pool, make_model, progress=progress)


def with_run(
    asked: Asked,
    config: RunConfig,
    workdir: pathlib.Path,
    update: int | None,
    out: pathlib.Path | None,
    progress: Progress | None = None,
) -> str:
    """Evaluate a trained run in its environment.

    Args:
      config: the run's. update: which checkpoint; None is the newest.
      out: None is a folder under `evaluations` of the run.
    """
    split = config.eval.split if asked.split is None else asked.split
    config = dataclasses.replace(config, eval=dataclasses.replace(config.eval, split=split, tasks=0))
    kind = AgentKind(asked.kind)
    thoughtless = kind is AgentKind.PLAIN and config.rollout.reply != ReplyFormat.TAGS.value
    reply = config.rollout.reply if thoughtless else default_reply(kind)
    with open_job(config, workdir) as job:
        update, params = load_params(job, workdir, update)
        folder = out or workdir / "evaluations" / f"agent_{kind.value}_{split}_update_{update:06d}"
        return _with_job(asked, job, params, folder, reply, {"run": workdir.name, "update": update}, progress)


def with_model(
    asked: Asked, config: RunConfig, folder: pathlib.Path, out: pathlib.Path, progress: Progress | None = None
) -> str:
    """Evaluate a checkpoint directory as it is.

    Args:
      config: of the environment and the split, made by `model_config`.
    """
    out.mkdir(parents=True, exist_ok=True)
    with open_job(config, out) as job:
        model = {"model": folder.name, "files": dict(hf.fingerprint(folder))}
        reply = default_reply(AgentKind(asked.kind))
        return _with_job(asked, job, new_params(job), out, reply, model, progress)


def model_sections(folder: pathlib.Path) -> dict[str, Mapping[str, Any]]:
    """The sections of a config in which a checkpoint directory is prompted, for `environment_config`."""
    sizes = {"max_context": _CONTEXT, "max_new_tokens": _REPLY_TOKENS}
    return {"model": {"path": str(folder)}, "rollout": {"context": "append", "template": "chat", **sizes}}


def make_agent(
    asked: Asked, domain: Domain, env: EnvOptions, options: RolloutOptions, reply: str, *, guided: bool = True
) -> Agent:
    """The agent that is asked for.

    Args:
      options: of prompts, where `asked` leaves them open. reply: the format, likewise.
      guided: tell the environment's guide; a small model that was trained without is better off without.

    Raises:
      ValueError: what is asked for does not go together.
    """
    kind = AgentKind(asked.kind)
    reply = reply if asked.reply is None else asked.reply
    told = asked.instruction
    if told is None:
        told = options.instruction or (domain.guide(env.options) if guided else "")
    listed = options.list_admissible if asked.list_admissible is None else asked.list_admissible
    options = dataclasses.replace(
        options,
        reply=reply,
        instruction=f"{told}\n{asked.examples}".strip(),
        few_shot=0,
        stop_strings=stop_strings(reply),
        list_admissible=listed,
    )
    check_prompt(options)
    trials = asked.trials
    if trials is None:
        trials = _REFLEXION_TRIALS if kind is AgentKind.REFLEXION else 1
    return Agent(kind, options, trials=trials, memory=asked.memory, history=asked.history)


def _with_job(
    asked: Asked,
    job: Job,
    params: nnx.State,
    out: pathlib.Path,
    reply: str,
    model: Mapping[str, Any],
    progress: Progress | None,
) -> str:
    """A model that is in memory.

    Args:
      reply: the format of replies, where `asked` leaves it open. model: what it is, for the record.
    """
    saved, run = job.config.eval, job.config.rollout
    tasks, parts = min(len(job.eval_tasks), asked.tasks or len(job.eval_tasks)), batch_parts(job.mesh)
    rows = min(saved.batch if asked.batch is None else asked.batch, -(-tasks // parts) * parts)
    options = dataclasses.replace(
        run,
        context="append",
        temperature=saved.temperature if asked.temperature is None else asked.temperature,
        rows=rows,
        max_new_tokens=run.max_new_tokens if asked.max_new_tokens is None else asked.max_new_tokens,
        max_context=run.max_context if asked.max_context is None else asked.max_context,
    )
    chat = TemplateKind(run.template) is TemplateKind.CHAT
    agent = make_agent(asked, job.domain, job.config.env, options, reply, guided=chat)
    template = make_template(job.codec, agent.options)
    plan = Plan(
        domain=job.domain,
        env=job.config.env,
        agent=agent,
        model={**model, "seed": job.config.seed},
        split=saved.split,
        count=asked.tasks,
        seats=rows,
        budget=Budget(),
    )

    def make_model(seats: int) -> OwnModel:
        session = open_session(*policy(job, params), job.codec, agent.options, job.mesh)
        return OwnModel(session, template, seats=seats, key=job.keys.evaluate)

    return evaluate_agent(plan, out, job.pool, make_model, progress=progress)
