"""Evaluation by prompting: `launch.evaluate` with `--agent`; see docs/agents.md."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import re
from collections.abc import Callable, Sequence

from absl import flags

from envs.endpoint import Endpoint
from launch import cli
from vict_jax.agents import sources
from vict_jax.agents.agent import AgentKind
from vict_jax.agents.sources import Asked
from vict_jax.agents.usage import Budget, Prices
from vict_jax.audit.environment import read_options
from vict_jax.bars import bar
from vict_jax.config import RunConfig
from vict_jax.metrics import read_config
from vict_jax.rollout.collector import Progress
from vict_jax.rollout.parser import ReplyFormat

FLAGS = flags.FLAGS

_OF_ENDPOINT = (
    *("endpoint_model", "key_variable", "request", "price_prompt", "price_completion", "max_cost"),
    *("max_calls", "request_timeout", "retries", "cache"),
)
_OF_AGENTS = (
    *("tasks", "trials", "memory", "reply", "history", "list_admissible", "instruction", "examples"),
    *("max_new_tokens", "max_context", "env", "env_option", "out", "endpoint", *_OF_ENDPOINT),
)


def define_flags() -> None:
    """Define the flags of agents, where `launch.evaluate` is the program."""
    flags.DEFINE_enum(
        "agent", None, [kind.value for kind in AgentKind], "evaluate by prompting, with this agent"
    )
    flags.DEFINE_integer("tasks", 0, "the first so many tasks of the split; 0 = all")
    flags.DEFINE_integer("trials", None, "reflexion: attempts at a task; 3 if left out")
    flags.DEFINE_integer("memory", 3, "reflexion: the newest lessons that are told, at most")
    flags.DEFINE_enum(
        "reply", None, [one.value for one in ReplyFormat], "format of a reply; the agent's own if left out"
    )
    flags.DEFINE_integer("history", 0, "past steps that are told; 0 = all")
    flags.DEFINE_bool("list_admissible", None, "list the commands that are admissible now")
    flags.DEFINE_string("instruction", None, "what is told first, in place of the environment's guide")
    flags.DEFINE_string("examples", None, "a text file, told behind the instruction as it is")
    flags.DEFINE_integer("max_new_tokens", None, "tokens of a reply; 0 with an endpoint: not limited")
    flags.DEFINE_integer("max_context", None, "tokens of a conversation of a model of ours")
    flags.DEFINE_string("env", None, "environment: a built-in name or the dotted name of a module")
    flags.DEFINE_multi_string("env_option", [], "KEY=VALUE, an option of the environment")
    flags.DEFINE_string("out", None, "directory of the results; a second start continues there")
    flags.DEFINE_string("endpoint", None, "URL of a chat endpoint, up to /chat/completions")
    flags.DEFINE_string("endpoint_model", None, "the model to ask there")
    flags.DEFINE_string("key_variable", "OPENAI_API_KEY", "environment variable that holds the key")
    flags.DEFINE_string("request", "{}", "JSON: further fields of a request; null leaves one out")
    flags.DEFINE_float("price_prompt", None, "per million prompt tokens, in any currency")
    flags.DEFINE_float("price_completion", None, "per million completion tokens")
    flags.DEFINE_float("max_cost", None, "stop before a call when this is spent")
    flags.DEFINE_integer("max_calls", None, "stop after so many calls")
    flags.DEFINE_float("request_timeout", 120.0, "seconds without a byte after which a request fails")
    flags.DEFINE_integer("retries", 6, "further attempts after a failure that may pass")
    flags.DEFINE_string("cache", "", "folder of answers that are kept; none if left out")


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
    if FLAGS.agent is None:
        _refuse(_OF_AGENTS, "without --agent")
    return FLAGS.agent is not None


def main(common: Common) -> str:
    """Evaluate and return the report."""
    if (common.workdir is None) == (FLAGS.endpoint is None):
        raise ValueError("--agent needs either --workdir=DIR, a run or a model directory, or --endpoint=URL")
    asked = _asked(common)
    if FLAGS.endpoint is not None:
        evaluate = _with_endpoint(asked, FLAGS.endpoint)
    else:
        evaluate = _with_own(asked, common, pathlib.Path(str(common.workdir)))
    shown, move = bar(f"{asked.kind} agent")
    with shown:
        return evaluate(move)


def _with_endpoint(asked: Asked, url: str) -> Callable[[Progress], str]:
    _refuse(("update", "mesh", "max_context"), "with --endpoint")
    config, endpoint = _config(asked), _endpoint(url)
    budget = Budget(FLAGS.max_cost, FLAGS.max_calls, _prices())
    return functools.partial(
        sources.with_endpoint, asked, config, endpoint, budget, _out(config, asked, endpoint.model)
    )


def _with_own(asked: Asked, common: Common, folder: pathlib.Path) -> Callable[[Progress], str]:
    _refuse(_OF_ENDPOINT, "without --endpoint")
    if sources.is_model_directory(folder):
        _refuse(("update",), "with a model directory")
        config = cli.on_mesh(_config(asked, folder), common.mesh)
        return functools.partial(sources.with_model, asked, config, folder, _out(config, asked, folder.name))
    config = cli.on_mesh(read_config(folder, flag="--workdir="), common.mesh)
    _refuse(("env", "env_option"), "with a run, which has its own environment")
    out = None if FLAGS.out is None else pathlib.Path(FLAGS.out)
    return functools.partial(sources.with_run, asked, config, folder, common.update, out)


def _refuse(names: Sequence[str], why: str) -> None:
    for name in names:
        if FLAGS[name].present:
            raise ValueError(f"--{name} has no effect {why}; leave it out")


def _asked(common: Common) -> Asked:
    examples = "" if FLAGS.examples is None else pathlib.Path(FLAGS.examples).read_text(encoding="utf-8")
    return Asked(
        kind=FLAGS.agent or "",
        split=common.split,
        tasks=FLAGS.tasks,
        trials=FLAGS.trials,
        memory=FLAGS.memory,
        history=FLAGS.history,
        reply=FLAGS.reply,
        instruction=FLAGS.instruction,
        examples=examples,
        list_admissible=FLAGS.list_admissible,
        max_new_tokens=FLAGS.max_new_tokens,
        max_context=FLAGS.max_context,
        temperature=common.temperature,
        batch=common.batch,
    )


def _config(asked: Asked, model: pathlib.Path | None = None) -> RunConfig:
    """The environment of the flags, and the model directory, if there is one."""
    if FLAGS.env is None:
        raise ValueError("--env=NAME is needed, the environment to play")
    sections = {} if model is None else sources.model_sections(model)
    given = read_options("--env_option", FLAGS.env_option)
    return sources.environment_config(FLAGS.env, given, asked.split, **sections)


def _endpoint(url: str) -> Endpoint:
    if not FLAGS.endpoint_model:
        raise ValueError("--endpoint_model=NAME is needed, the model to ask for")
    return Endpoint(
        base_url=url,
        model=FLAGS.endpoint_model,
        key_variable=FLAGS.key_variable,
        timeout_s=FLAGS.request_timeout,
        retries=FLAGS.retries,
        cache_dir=FLAGS.cache,
        request=FLAGS.request,
    )


def _prices() -> Prices | None:
    prompt, completion = FLAGS.price_prompt, FLAGS.price_completion
    if prompt is None and completion is None:
        return None
    if prompt is None or completion is None:
        raise ValueError("--price_prompt and --price_completion are needed both, or neither")
    return Prices(prompt, completion)


def _out(config: RunConfig, asked: Asked, model: str) -> pathlib.Path:
    name = f"{config.env.name}_{config.eval.split}_{asked.kind}_{model}"
    return pathlib.Path(FLAGS.out or f"runs/agents/{re.sub(r'[^A-Za-z0-9_.-]+', '-', name)}")
