"""Evaluation by prompting: `launch.evaluate` with `--agent`; see docs/agents.md."""

from __future__ import annotations

import dataclasses
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import flags

from envs.base import Domain
from envs.endpoint import Endpoint
from envs.lookup import environment
from envs.pool import EnvPool
from launch import cli
from vict_jax import config as config_lib
from vict_jax.agents.agent import Agent, AgentKind, default_reply, stop_strings, system_text
from vict_jax.agents.evaluation import Plan, evaluate_agent
from vict_jax.agents.model import EndpointModel, Model
from vict_jax.agents.own import OwnModel
from vict_jax.agents.usage import Budget, Prices
from vict_jax.audit.environment import read_options
from vict_jax.config import EnvOptions, RunConfig
from vict_jax.job import Job, new_params, open_job, policy
from vict_jax.metrics import read_config
from vict_jax.models import hf
from vict_jax.models.hf_files import read_json as read_model_json
from vict_jax.rollout.collector import open_session
from vict_jax.rollout.options import RolloutOptions, TemplateKind
from vict_jax.rollout.parser import ReplyFormat
from vict_jax.rollout.template import check_prompt, make_template
from vict_jax.run_state import load_params
from vict_jax.sharding import batch_parts
from vict_jax.train import bar

_REFLEXION_TRIALS, _ENDPOINT_BATCH = 3, 8
# Tokens of a reply of an endpoint and of a model directory, and of the latter's conversations.
_ENDPOINT_TOKENS, _REPLY_TOKENS, _CONTEXT = 1024, 256, 4096
_SERVER_KNOWS = 2**31 - 1  # how long a conversation may be

_AGENT = flags.DEFINE_enum(
    "agent", None, [kind.value for kind in AgentKind], "evaluate by prompting, with this agent"
)
_TASKS = flags.DEFINE_integer("tasks", 0, "the first so many tasks of the split; 0 = all")
_TRIALS = flags.DEFINE_integer(
    "trials", None, f"reflexion: attempts at a task; {_REFLEXION_TRIALS} if left out"
)
_MEMORY = flags.DEFINE_integer("memory", 3, "reflexion: the newest lessons that are told, at most")
_REPLY = flags.DEFINE_enum(
    "reply", None, [one.value for one in ReplyFormat], "format of a reply; the agent's own if left out"
)
_HISTORY = flags.DEFINE_integer("history", 0, "past steps that are told; 0 = all")
_COMMANDS = flags.DEFINE_bool("list_admissible", None, "list the commands that are admissible now")
_INSTRUCTION = flags.DEFINE_string(
    "instruction", None, "what is told first, in place of the environment's guide"
)
_EXAMPLES = flags.DEFINE_string("examples", None, "a text file, told behind the instruction as it is")
_MAX_NEW = flags.DEFINE_integer("max_new_tokens", None, "tokens of a reply; 0 with an endpoint: not limited")
_MAX_CONTEXT = flags.DEFINE_integer("max_context", None, "tokens of a conversation of a model of ours")
_ENV = flags.DEFINE_string("env", None, "environment: a built-in name or the dotted name of a module")
_ENV_OPTION = flags.DEFINE_multi_string("env_option", [], "KEY=VALUE, an option of the environment")
_OUT = flags.DEFINE_string("out", None, "directory of the results; a second start continues there")

_ENDPOINT = flags.DEFINE_string("endpoint", None, "URL of a chat endpoint, up to /chat/completions")
_NAME = flags.DEFINE_string("endpoint_model", None, "the model to ask there")
_KEY = flags.DEFINE_string("key_variable", "OPENAI_API_KEY", "environment variable that holds the key")
_REQUEST = flags.DEFINE_string("request", "{}", "JSON: further fields of a request; null leaves one out")
_PRICE_PROMPT = flags.DEFINE_float("price_prompt", None, "per million prompt tokens, in any currency")
_PRICE_COMPLETION = flags.DEFINE_float("price_completion", None, "per million completion tokens")
_MAX_COST = flags.DEFINE_float("max_cost", None, "stop before a call when this is spent")
_MAX_CALLS = flags.DEFINE_integer("max_calls", None, "stop after so many calls")
_TIMEOUT = flags.DEFINE_float("request_timeout", 120.0, "seconds without a byte after which a request fails")
_RETRIES = flags.DEFINE_integer("retries", 6, "further attempts after a failure that may pass")
_CACHE = flags.DEFINE_string("cache", "", "folder of answers that are kept; none if left out")

_OF_ENDPOINT = (
    *("endpoint_model", "key_variable", "request", "price_prompt", "price_completion", "max_cost"),
    *("max_calls", "request_timeout", "retries", "cache"),
)
_OF_AGENTS = (
    *("tasks", "trials", "memory", "reply", "history", "list_admissible", "instruction", "examples"),
    *("max_new_tokens", "max_context", "env", "env_option", "out", "endpoint", *_OF_ENDPOINT),
)


@dataclasses.dataclass(frozen=True)
class Common:
    """The flags of `launch.evaluate` that agents read as well; None where they are left out."""

    workdir: str | None
    split: str | None
    update: int | None
    temperature: float | None
    mesh: Sequence[str] | None
    batch: int | None


def wanted() -> bool:
    """Whether an agent was asked for. Raises ValueError for flags that would have no effect."""
    if _AGENT.value is None:
        _refuse(_OF_AGENTS, "without --agent")
    return _AGENT.value is not None


def main(common: Common) -> str:
    """Evaluate and return the report."""
    if (common.workdir is None) == (_ENDPOINT.value is None):
        raise ValueError("--agent needs either --workdir=DIR, a run or a model directory, or --endpoint=URL")
    if _ENDPOINT.value is not None:
        _refuse(("update", "mesh", "max_context"), "with --endpoint")
        return _ask_endpoint(common, _ENDPOINT.value)
    _refuse(_OF_ENDPOINT, "without --endpoint")
    folder = pathlib.Path(str(common.workdir))
    is_model = (folder / hf.CONFIG).is_file() and "model_type" in read_model_json(folder / hf.CONFIG)
    return _ask_model_directory(common, folder) if is_model else _ask_run(common, folder)


def _refuse(names: Sequence[str], why: str) -> None:
    for name in names:
        if flags.FLAGS[name].present:
            raise ValueError(f"--{name} has no effect {why}; leave it out")


def _config(sections: Mapping[str, Mapping[str, Any]], split: str | None) -> RunConfig:
    """The defaults of the environment that `--env` names, with its options and `sections`."""
    if _ENV.value is None:
        raise ValueError("--env=NAME is needed, the environment to play")
    values = config_lib.default_config(_ENV.value).to_dict()
    values["env"] |= read_options("--env_option", _ENV_OPTION.value)
    values["eval"] |= {} if split is None else {"split": split}
    for name, changed in sections.items():
        values[name] |= changed
    return config_lib.from_plain(values)


def _agent(
    domain: Domain, env: EnvOptions, options: RolloutOptions, reply: str, *, guided: bool = True
) -> Agent:
    """The agent of the flags.

    Args:
      options: of prompts, but for what the flags say. reply: the format if there is no flag.
      guided: the environment's guide is told; a small model that was never told one is better off without.
    """
    kind = AgentKind(_AGENT.value)
    reply = reply if _REPLY.value is None else _REPLY.value
    told = _INSTRUCTION.value
    if told is None:
        told = options.instruction or (domain.guide(env.options) if guided else "")
    if _EXAMPLES.value is not None:
        told = f"{told}\n{pathlib.Path(_EXAMPLES.value).read_text(encoding='utf-8')}".strip()
    options = dataclasses.replace(
        options,
        reply=reply,
        instruction=told,
        few_shot=0,
        stop_strings=stop_strings(reply),
        list_admissible=options.list_admissible if _COMMANDS.value is None else _COMMANDS.value,
    )
    check_prompt(options)
    trials = _TRIALS.value
    if trials is None:
        trials = _REFLEXION_TRIALS if kind is AgentKind.REFLEXION else 1
    return Agent(kind, options, trials=trials, memory=_MEMORY.value, history=_HISTORY.value)


def _ask_endpoint(common: Common, url: str) -> str:
    tokens = _ENDPOINT_TOKENS if _MAX_NEW.value is None else _MAX_NEW.value
    config = _config({}, common.split)
    endpoint = Endpoint(
        base_url=url,
        model=_NAME.value or "",
        key_variable=_KEY.value,
        temperature=0.0 if common.temperature is None else common.temperature,
        timeout_s=_TIMEOUT.value,
        retries=_RETRIES.value,
        cache_dir=_CACHE.value,
        max_tokens=tokens,
        request=_REQUEST.value,
    )
    domain, _ = environment(config.env.name)
    options = RolloutOptions(
        context="append", template="chat", max_new_tokens=max(1, tokens), max_context=_SERVER_KNOWS
    )
    agent = _agent(domain, config.env, options, default_reply(AgentKind(_AGENT.value)))
    asked = ("base_url", "model", "temperature", "max_tokens", "request")
    plan = Plan(
        domain=domain,
        env=config.env,
        agent=agent,
        model={name: vars(endpoint)[name] for name in asked},
        split=config.eval.split,
        count=_TASKS.value,
        seats=_ENDPOINT_BATCH if common.batch is None else common.batch,
        budget=Budget(_MAX_COST.value, _MAX_CALLS.value, _prices()),
    )
    name = re.sub(r"[^\w.-]+", "-", endpoint.model)
    out = pathlib.Path(_OUT.value or f"runs/agents/{plan.env.name}_{plan.split}_{agent.kind.value}_{name}")
    env = plan.env
    with EnvPool(domain, env.options, workers=env.workers, timeout_s=env.timeout_s) as pool:
        return _evaluate(
            plan,
            out,
            pool,
            lambda seats: EndpointModel(endpoint, system_text(agent), concurrency=seats),
        )


def _prices() -> Prices | None:
    prompt, completion = _PRICE_PROMPT.value, _PRICE_COMPLETION.value
    if prompt is None and completion is None:
        return None
    if prompt is None or completion is None:
        raise ValueError("--price_prompt and --price_completion are needed both, or neither")
    return Prices(prompt, completion)


def _ask_run(common: Common, workdir: pathlib.Path) -> str:
    """A trained run, in its environment."""
    _refuse(("env", "env_option"), "with a run, which has its own environment")
    config = cli.on_mesh(read_config(workdir, flag="--workdir="), common.mesh)
    split = config.eval.split if common.split is None else common.split
    config = dataclasses.replace(config, eval=dataclasses.replace(config.eval, split=split, tasks=0))
    run = config.rollout
    kind = AgentKind(_AGENT.value)
    thoughtless = kind is AgentKind.PLAIN and run.reply != ReplyFormat.TAGS.value
    reply = run.reply if thoughtless else default_reply(kind)
    with open_job(config, workdir) as job:
        update, params = load_params(job, workdir, common.update)
        name = f"agent_{_AGENT.value}_{split}_update_{update:06d}"
        out = pathlib.Path(_OUT.value) if _OUT.value else workdir / "evaluations" / name
        return _ask_own(common, job, params, out, reply, {"workdir": workdir.name, "update": update})


def _ask_model_directory(common: Common, folder: pathlib.Path) -> str:
    """A checkpoint in the Hugging Face layout, as it is, in the environment of the flags."""
    _refuse(("update",), "with a model directory")
    rollout = {"context": "append", "template": "chat", "list_admissible": True, "reply": "line"}
    rollout |= {"max_context": _MAX_CONTEXT.value or _CONTEXT, "max_new_tokens": _REPLY_TOKENS}
    config = _config({"model": {"path": str(folder)}, "rollout": rollout}, common.split)
    config = cli.on_mesh(config, common.mesh)
    name = f"{config.env.name}_{config.eval.split}_{_AGENT.value}_{folder.name}"
    out = pathlib.Path(_OUT.value or f"runs/agents/{name}")
    out.mkdir(parents=True, exist_ok=True)
    with open_job(config, out) as job:
        files = dict(hf.fingerprint(folder))
        reply = default_reply(AgentKind(_AGENT.value))
        return _ask_own(common, job, new_params(job), out, reply, {"path": folder.name, "files": files})


def _ask_own(
    common: Common, job: Job, params: Any, out: pathlib.Path, reply: str, model: Mapping[str, Any]
) -> str:
    """A model that is in memory.

    Args:
      reply: the format of replies if there is no flag. model: what it is, for the record.
    """
    saved, run = job.config.eval, job.config.rollout
    temperature = saved.temperature if common.temperature is None else common.temperature
    batch, parts = saved.batch if common.batch is None else common.batch, batch_parts(job.mesh)
    tasks = min(len(job.eval_tasks), _TASKS.value or len(job.eval_tasks))
    rows = min(batch, -(-tasks // parts) * parts)
    chat = TemplateKind(run.template) is TemplateKind.CHAT
    options = dataclasses.replace(
        run,
        context="append",
        temperature=temperature,
        rows=rows,
        max_new_tokens=run.max_new_tokens if _MAX_NEW.value is None else _MAX_NEW.value,
        max_context=run.max_context if _MAX_CONTEXT.value is None else _MAX_CONTEXT.value,
    )
    agent = _agent(job.domain, job.config.env, options, reply, guided=chat)
    plan = Plan(
        domain=job.domain,
        env=job.config.env,
        agent=agent,
        model={**model, "seed": job.config.seed},
        split=saved.split,
        count=_TASKS.value,
        seats=rows,
        budget=Budget(),
    )
    template = make_template(job.codec, agent.options)

    def make_model(seats: int) -> OwnModel:
        session = open_session(*policy(job, params), job.codec, agent.options, job.mesh)
        return OwnModel(session, template, seats=seats, key=job.keys.evaluate)

    return _evaluate(plan, out, job.pool, make_model)


def _evaluate(plan: Plan, out: pathlib.Path, pool: EnvPool, make_model: Callable[[int], Model]) -> str:
    shown, move = bar(f"{plan.agent.kind.value} on {plan.split}")
    with shown:
        return evaluate_agent(plan, out, pool, make_model, progress=move)
