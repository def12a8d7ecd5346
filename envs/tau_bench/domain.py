"""tau-bench as a `Domain`: options, task lists, the environment, texts for the tokenizer."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import operator
import pathlib
import random
from collections.abc import Mapping, Sequence

from envs.base import Domain, Observation, StepResult, Task, VerifierRecord
from envs.endpoint import Endpoint
from envs.tau_bench import conduct, data, expert, generator, moves, plan, verifier
from envs.tau_bench.action import SAY, Malformed, Style, class_name, parameters, parse, write
from envs.tau_bench.customer import EndpointCustomer, Script, ScriptedCustomer
from envs.tau_bench.data import Bench, Call, TaskSpec
from envs.tau_bench.notes import notes
from envs.tau_bench.scenario import Scenario
from envs.tau_bench.session import Customer, Session
from envs.tau_bench.tools import TOOLS
from envs.tau_bench.view import show

_CORPUS_TASKS = 240
_RANDOM_SHARE = 0.3
_CUSTOMERS = ("scripted", "endpoint")
# Seeds of the generated splits start here, so they are disjoint; options.seed shifts all of them.
_FIRST_SEED = {"train": 0, "dev": 10**8, "test": 2 * 10**8}
_SEEDS = 10**9


@dataclasses.dataclass(frozen=True)
class TauBenchOptions:
    """Which tasks, who the customer is, and what the agent is shown.

    Attributes:
      domain: `retail` or `airline`.
      data_dir: folder of the real data, as `envs.tau_bench.importer` writes it; empty: generated tasks.
      task_types: of generated tasks, which take turns; one may come more than once; empty: all of the domain.
      num_train, num_dev, num_test: generated tasks of each split.
      seed: of the generated tasks.
      max_steps: actions after which an unended episode is over, with score 0.
      style: `compact` or `json`, the form of actions and observations (both are read).
      show_policy: the first observation begins with the policy and the tools.
      suggest: name admissible commands on generated tasks (every tool takes any call), for random play.
      score: `original`, or `procedure`, which is 0 also if the customer was not identified or did not say yes
        before a change.
      customer: `scripted`, or `endpoint` for a language model.
      base_url, model, key_variable, temperature, request_timeout_s, retries, cache_dir: of the endpoint, see
        `envs.endpoint.Endpoint`.
    """

    domain: str = "retail"
    data_dir: str = ""
    task_types: tuple[str, ...] = ()
    num_train: int = 2000
    num_dev: int = 96
    num_test: int = 96
    seed: int = 0
    max_steps: int = 30
    style: str = "compact"
    show_policy: bool = False
    suggest: bool = True
    score: str = verifier.ORIGINAL
    customer: str = "scripted"
    base_url: str = ""
    model: str = ""
    key_variable: str = "OPENAI_API_KEY"
    temperature: float = 0.0
    request_timeout_s: float = 30.0
    retries: int = 4
    cache_dir: str = ""

    def __post_init__(self) -> None:
        allowed = {
            "domain": tuple(data.TABLES),
            "style": tuple(style.value for style in Style),
            "score": verifier.SCORES,
            "customer": _CUSTOMERS,
        }
        for name, values in allowed.items():
            if getattr(self, name) not in values:
                raise ValueError(f"{name}={getattr(self, name)!r} is not one of {values}")
        types = generator.TYPES[self.domain]
        if unknown := set(self.task_types) - set(types):
            raise ValueError(f"task_types has {sorted(unknown)}, {self.domain} has {types}")
        for name in ("num_train", "num_dev", "num_test"):
            if not 1 <= getattr(self, name) <= 10**8:
                raise ValueError(f"{name}={getattr(self, name)} must be from 1 to {10**8}")
        if self.max_steps < 1:
            raise ValueError(f"max_steps={self.max_steps} must be at least 1")
        if not 0 <= self.seed < 10**6:
            raise ValueError(f"seed={self.seed} must be in [0, {10**6})")
        if self.customer == "endpoint":
            self.endpoint()

    def endpoint(self) -> Endpoint:
        """Where the customer's model is. Raises ValueError as `Endpoint` does."""
        return Endpoint(
            base_url=self.base_url,
            model=self.model,
            key_variable=self.key_variable,
            temperature=self.temperature,
            timeout_s=self.request_timeout_s,
            retries=self.retries,
            cache_dir=self.cache_dir,
        )


Options = TauBenchOptions  # the name under which `envs.lookup` finds them


def tasks(options: TauBenchOptions, split: str) -> Sequence[Task]:
    """The tasks of a split, in the benchmark's order; generated ones take turns by type.

    Raises:
      ValueError: the data have no such split (airline has only `test`).
    """
    if options.data_dir:
        bench = data.load(options.data_dir, options.domain)
        if split not in bench.tasks:
            raise ValueError(f"split {split!r} is not in {options.data_dir}: there are {sorted(bench.tasks)}")
        return [
            Task(f"{options.domain}/{split}/{i}", _real_type(bench, spec), split, 0, str(i))
            for i, spec in enumerate(bench.tasks[split])
        ]
    types = options.task_types or generator.TYPES[options.domain]
    count = {"train": options.num_train, "dev": options.num_dev, "test": options.num_test}[split]
    first = options.seed * _SEEDS + _FIRST_SEED[split]
    turns = ((types[i % len(types)], first + i) for i in range(count))
    return [
        Task(f"{options.domain}/{split}/{type_}/{seed}", type_, split, seed, "generated")
        for type_, seed in turns
    ]


def _real_type(bench: Bench, spec: TaskSpec) -> str:
    """What the ground truth writes."""
    names = list(dict.fromkeys(call.name for call in spec.actions if plan.writes(bench, call)))
    return names[0] if len(names) == 1 else "several writes" if names else "no write"


def _scenario(options: TauBenchOptions, task: Task) -> Scenario:
    if not options.data_dir:
        return generator.generate(options.domain, task.type, task.seed)
    return _real_scenario(options.data_dir, options.domain, task.split, int(task.source))


@functools.lru_cache(maxsize=256)
def _real_scenario(data_dir: str, domain: str, split: str, index: int) -> Scenario:
    bench = data.load(data_dir, domain)
    spec = bench.tasks[split][index]
    wishes = tuple(call for call in spec.actions if plan.writes(bench, call))
    return Scenario(bench, spec, Script("", wishes))


class TauBenchEnv:
    """One conversation at a time; implements `envs.base.Env`.

    `info["valid"]` says that a text could be read as an action; what a tool thinks of its arguments is in
    its answer. An episode is done when the conversation has ended, or after `max_steps` actions.
    """

    def __init__(self, options: TauBenchOptions) -> None:
        self._options = options
        self._style = Style(options.style)

    def reset(self, task: Task) -> Observation:
        """See `Env.reset`. Raises CustomerError if a customer's endpoint fails."""
        self._scenario = scenario = _scenario(self._options, task)
        return self.begin(scenario.bench, scenario.task, self._customer(scenario.script))

    def begin(self, bench: Bench, task: TaskSpec, customer: Customer) -> Observation:
        """Start a task with any customer: what `reset` does with the one of the options."""
        self._session = Session(bench, customer)
        opening = self._session.reset(task)
        self._memory = expert.Memory(opening)
        self._spec = verifier.specify(bench, task, self._options.score)
        self._history = [verifier.start(self._spec, opening)]
        policy = _policy(bench, self._style) if self._options.show_policy else ""
        return self._seen(policy + show(opening, wrote=False, style=self._style))

    def step(self, action: str) -> StepResult:
        """See `Env.step`. Raises CustomerError if a customer's endpoint fails."""
        call = parse(action)
        if isinstance(call, Malformed):
            text = show(f"Error: {call.reason}", wrote=False, style=Style.JSON)
            return self._result(text, None, valid=False)
        taken = len(self._session.trace)
        outcome = self._session.step(call.name, call.kwargs)
        step = self._session.trace[-1] if len(self._session.trace) > taken else None
        self._memory.past.append((call, outcome.text))
        wrote = step is not None and bool(step.diff)
        return self._result(show(outcome.text, wrote=wrote, style=self._style), step, valid=True)

    def _result(self, text: str, step: verifier.Step | None, *, valid: bool) -> StepResult:
        records = self._session.database.records()
        self._history.append(verifier.observe(self._spec, self._history[-1], step, records))
        done = self._session.done or len(self._history) > self._options.max_steps
        return StepResult(self._seen(text), done, {"valid": valid})

    def record(self) -> VerifierRecord:
        """See `Env.record`."""
        return verifier.record(self._spec, self._history, self._score())

    def _score(self) -> float:
        session = self._session
        reward = session.score().reward
        if self._options.score == verifier.PROCEDURE and reward:
            database = session.bench.database
            kept = conduct.followed(session.bench.domain, self._memory.opening, session.trace, database)
            return reward * kept
        return reward

    def expert_action(self) -> str:
        """See `Env.expert_action`. On real tasks, which no script understands, the ground truth is played."""
        if not self._options.data_dir:
            return write(expert.decide(self._options.domain, self._memory), self._style)
        calls = plan.solution(self._session.bench, self._session.task)
        done = 0
        for call, _ in self._memory.past:
            done += done < len(calls) and _same(call, calls[done])
        return write(calls[min(done, len(calls) - 1)], self._style)

    def close(self) -> None:
        """See `Env.close`; nothing is held."""

    def _seen(self, text: str) -> Observation:
        if self._options.data_dir or not self._options.suggest:
            return Observation(text)
        known = moves.moves(self._options.domain, self._memory)
        return Observation(text, tuple(write(call, self._style) for call in known))

    def _customer(self, script: Script) -> Customer:
        if self._options.customer == "endpoint":
            return EndpointCustomer(self._options.endpoint())
        return ScriptedCustomer(script)


def _same(one: Call, other: Call) -> bool:
    return one.name == other.name and one.kwargs == other.kwargs


def _policy(bench: Bench, style: Style) -> str:
    """What the first observation begins with: the policy, the tools, the form of an action."""
    if style is Style.COMPACT:
        lines = [f"{class_name(n)} {'; '.join(parameters(n))}".strip() for n in TOOLS[bench.domain]]
        how = f"Write one call: the tool and its arguments separated by '; ', or '{SAY}' and a message."
        return "\n".join([bench.policy, "Tools:", *lines, how, ""])
    tools = bench.tools or [{"name": name, "parameters": parameters(name)} for name in TOOLS[bench.domain]]
    how = (
        'Write one call as a JSON object on one line: {"name": <tool>, "arguments": <object>}. To talk to '
        'the customer, use {"name": "respond", "arguments": {"content": <message>}}.'
    )
    return "\n".join([bench.policy, "Tools:", *map(json.dumps, tools), how, ""])


def corpus(options: TauBenchOptions) -> list[str]:
    """Texts of training tasks, played by the expert with some random moves: observations and actions."""
    split = "train" if not options.data_dir else next(iter(data.load(options.data_dir, options.domain).tasks))
    rng, env, texts = (
        random.Random(0),
        TauBenchEnv(dataclasses.replace(options, customer="scripted", suggest=True)),
        [],
    )
    for task in tasks(options, split)[:_CORPUS_TASKS]:
        observation, done = env.reset(task), False
        while not done:
            by_chance = observation.admissible and rng.random() < _RANDOM_SHARE
            action = rng.choice(observation.admissible) if by_chance else env.expert_action()
            texts += [observation.text, action]
            result = env.step(action)
            observation, done = result.observation, result.done
        texts.append(observation.text)
    return texts


def mutations(options: TauBenchOptions, task: Task) -> Mapping[str, Sequence[str]]:
    """See `Domain.mutations`."""
    scenario, style = _scenario(options, task), Style(options.style)
    found = plan.mutations(scenario.bench, scenario.task)
    return {name: [write(call, style) for call in calls] for name, calls in found.items()}


def manifest(options: TauBenchOptions, splits: Sequence[str]) -> Mapping[str, str]:
    """See `Domain.manifest`: the files of the domain and of the splits."""
    if not options.data_dir:
        return {}
    folder, domain = pathlib.Path(options.data_dir), options.domain
    names = [f"{domain}_{name}.json" for name in (*data.TABLES[domain], "rules", "tools")]
    names += [f"{domain}_wiki.md", *(f"{domain}_tasks_{split}.json" for split in splits)]
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}


def about(options: TauBenchOptions) -> str:
    """See `Domain.about`."""
    customer = options.customer if options.customer == "scripted" else f"{options.model} as"
    source = "real" if options.data_dir else "generated"
    return f"{options.domain}, {source} tasks, {customer} customer, {options.score} score"


def guide(options: TauBenchOptions) -> str:
    """See `Domain.guide`: the policy and the tools, unless the first observation has them."""
    if options.show_policy:
        return ""
    real = options.data_dir
    first = generator.TYPES[options.domain][0]
    bench = data.load(real, options.domain) if real else generator.generate(options.domain, first, 0).bench
    return _policy(bench, Style(options.style))


DOMAIN = Domain(
    name="tau_bench",
    make=TauBenchEnv,
    tasks=tasks,
    splits=data.SPLITS,
    aggregate=verifier.aggregate,
    atom_params={"required": True},
    max_atoms=40,
    max_variables=52,
    max_steps=operator.attrgetter("max_steps"),
    corpus=corpus,
    mutations=mutations,
    manifest=manifest,
    no_op="think nothing",
    about=about,
    guide=guide,
    notes=notes,
)
