"""Does an environment keep the contract of `envs.base`: its fields, its tasks, and every call into it."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from envs.base import Domain, Env, Observation, StepResult, Task, VerifierRecord
from envs.closure import circular
from envs.play import PoolEnv
from envs.pool import EnvPool
from vict_jax.audit.findings import Section, call, judged, problems
from vict_jax.audit.watch import WatchedEnv

# What a model may say: nothing, far too much, other scripts, markup, control characters, another's syntax.
ODD_TEXTS = (
    "",
    "   ",
    "x" * 20_000,
    "<b>open</b> &amp; </action><action>look",
    "öffne die Tür ☃ 打开 🔧",
    "open\nopen\tagain\r\n",
    "\x00\x1b[2J",
    "'; DROP TABLE orders; --",
    "open " * 50,
    "-1",
)
_TIMEOUT_S = 60.0  # of one call into an environment in a worker


def check_contract(domain: Domain, options: Any) -> Section:
    """Fields of the domain, and the task lists of its splits."""
    findings = [
        judged(
            "the fields of DOMAIN have usable values", problems(_fields(domain, options)), "correct DOMAIN"
        ),
        judged(
            "task ids are unique, splits are disjoint, the order is fixed",
            problems(_tasks(domain, options)),
            "let tasks(options, split) return the same list of Task objects every time, each id once in all",
        ),
        judged(
            "corpus(options) is a list of texts",
            problems(_corpus(domain, options)),
            "return the texts that the environment says and hears, so that the tokenizer knows their words",
        ),
    ]
    return Section("contract", tuple(findings))


def _fields(domain: Domain, options: Any) -> Iterator[str]:
    if not domain.name or not isinstance(domain.name, str):
        yield f"name is {domain.name!r}, expected a text"
    if not domain.splits or len(set(domain.splits)) != len(domain.splits):
        yield f"splits are {domain.splits!r}, expected at least one, each once"
    for name in ("max_atoms", "max_variables"):
        if not isinstance(vars(domain)[name], int) or vars(domain)[name] < 1:
            yield f"{name} is {vars(domain)[name]!r}, expected a whole number from 1"
    if not all(isinstance(per_atom, bool) for per_atom in domain.atom_params.values()):
        yield f"atom_params is {domain.atom_params!r}, expected True (an atom axis) or False (a scalar)"
    steps = call("max_steps(options)", domain.max_steps, options)
    if not isinstance(steps, int) or steps < 1:
        yield f"max_steps(options) is {steps!r}, expected a whole number from 1"


def _tasks(domain: Domain, options: Any) -> Iterator[str]:
    seen: Counter[str] = Counter()
    for split in domain.splits:
        tasks = list(call(f"tasks(options, {split!r})", domain.tasks, options, split))
        if not tasks:
            yield f"split {split!r} has no task"
        if tasks != list(domain.tasks(options, split)):
            yield f"tasks(options, {split!r}) is not the same when called again"
        for wrong in [task for task in tasks if task.split != split][:1]:
            yield f"task {wrong.id!r} of split {split!r} says that it is of split {wrong.split!r}"
        seen.update(task.id for task in tasks)
    for id_, count in seen.items():
        if count > 1:
            yield f"the task id {id_!r} is used {count} times"


def _corpus(domain: Domain, options: Any) -> Iterator[str]:
    texts = list(call("corpus(options)", domain.corpus, options))
    if not any(isinstance(text, str) and text for text in texts):
        yield "corpus(options) has no text in it"
    for text in [text for text in texts if not isinstance(text, str)][:1]:
        yield f"corpus(options) contains {text!r}, which is no text"


def check_protocol(domain: Domain, options: Any, tasks: Sequence[Task]) -> Section:
    """Every call into the environment, on the first task of each type."""
    sample = list({task.type: task for task in reversed(tasks)}.values())
    findings = [
        judged(
            "reset, step, expert_action and record give what envs.base says",
            problems(_shapes(domain, options, sample)),
            "compare with envs.base.Env; examples/refunds.py is a small one that is right",
        ),
        judged(
            f"step answers {len(ODD_TEXTS)} odd texts",
            problems(_odd_texts(domain, options, sample)),
            'answer every text: one that the environment does not take gets info["valid"] = False',
        ),
        judged(
            "an episode ends at max_steps(options) at the latest",
            problems(_ends(domain, options, sample)),
            "count the steps, and let step return done=True at max_steps",
        ),
        judged(
            f"the no-op {domain.no_op!r} changes no evidence",
            problems(_no_op(domain, options, sample)),
            "set DOMAIN.no_op to an action text that the environment answers without doing anything",
        ),
        judged(
            "an episode repeats: after a reset, in a new environment, in a worker process",
            problems(_repeats(domain, options, sample)),
            "draw only from random.Random(task.seed), reset everything in reset, and never depend on the "
            "order of a set, on hash() or on the clock",
        ),
    ]
    return Section("protocol", tuple(findings))


def _open(domain: Domain, options: Any) -> WatchedEnv:
    return WatchedEnv(call("make(options)", domain.make, options))


def _shapes(domain: Domain, options: Any, tasks: Sequence[Task]) -> Iterator[str]:
    for task in tasks:
        env = call("make(options)", domain.make, options)
        observation = call(f"reset({task.id!r})", env.reset, task)
        yield from _observation_problems("reset", observation)
        yield from record_problems(domain, call("record()", env.record), steps=0)
        taken = 0
        while taken < domain.max_steps(options):
            taken += 1
            action = call("expert_action()", env.expert_action)
            if not isinstance(action, str):
                yield f"expert_action() is {action!r}, expected a text"
                return
            result = call(f"step({action!r})", env.step, action)
            found = list(_result_problems(result)) or list(_observation_problems("step", result.observation))
            yield from found
            if found or result.done:
                break
        yield from record_problems(domain, call("record()", env.record), steps=taken)
        call("close()", env.close)


def _observation_problems(where: str, observation: Any) -> Iterator[str]:
    if not isinstance(observation, Observation) or not isinstance(observation.text, str):
        yield f"{where} gives {observation!r:.60}, expected an envs.base.Observation with a text"
    elif not isinstance(observation.admissible, tuple) or not all(
        isinstance(command, str) for command in observation.admissible
    ):
        yield f"admissible after {where} is {observation.admissible!r:.60}, expected a tuple of texts"


def _result_problems(result: Any) -> Iterator[str]:
    if not isinstance(result, StepResult):
        yield f"step returns {result!r:.60}, expected an envs.base.StepResult"
    elif not isinstance(result.done, (bool, np.bool_)):
        yield f"StepResult.done is {result.done!r}, expected True or False"
    elif not isinstance(result.info, Mapping) or not isinstance(result.info.get("valid"), (bool, np.bool_)):
        yield f'StepResult.info is {result.info!r:.60}, expected a dict with "valid": True or False'


def record_problems(domain: Domain, record: Any, *, steps: int) -> Iterator[str]:
    """What credit could not use in a record of `steps` actions."""
    if not isinstance(record, VerifierRecord):
        yield f"record() is {record!r:.60}, expected an envs.base.VerifierRecord"
        return
    try:
        circular(record.atoms)
    except ValueError as error:  # ids that are not unique, or an atom that is not there
        yield str(error)
    if len(record.commits) != steps:
        yield f"the record is of {len(record.commits)} steps after {steps} actions"
    for name, dtype in (("status", np.int8), ("commits", np.bool_), ("scope", np.bool_)):
        if vars(record)[name].dtype != dtype:
            yield f"VerifierRecord.{name} has dtype {vars(record)[name].dtype}, expected {np.dtype(dtype)}"
    if not all(isinstance(value, str) for row in record.evidence for value in row):
        yield 'VerifierRecord.evidence must be texts, "" for what is not available yet'
    for what, size in (("atoms", len(record.atoms)), ("variables", len(record.variables))):
        if size > vars(domain)[f"max_{what}"]:
            yield f"the record has {size} {what}, above DOMAIN.max_{what}={vars(domain)[f'max_{what}']}"
    if record.params.keys() != domain.atom_params.keys():
        yield f"params are {sorted(record.params)}, DOMAIN.atom_params names {sorted(domain.atom_params)}"
    for name in record.params.keys() & domain.atom_params.keys():
        shape, per_atom = np.shape(record.params[name]), domain.atom_params[name]
        if shape[:1] != (len(record.atoms),) if per_atom else shape:
            expected = f"an array with {len(record.atoms)} entries" if per_atom else "a scalar"
            yield f"params[{name!r}] has shape {shape}, expected {expected}"


def _odd_texts(domain: Domain, options: Any, tasks: Sequence[Task]) -> Iterator[str]:
    for task in tasks:
        env = _open(domain, options)
        for text in ODD_TEXTS:
            env.reset(task)
            if env.step(env.expert_action()).done:  # odd texts also come where something has happened
                env.reset(task)
            yield from _result_problems(env.step(text))
            env.record()
        env.close()


def _ends(domain: Domain, options: Any, tasks: Sequence[Task]) -> Iterator[str]:
    env, cap = _open(domain, options), domain.max_steps(options)
    for task in tasks:
        env.reset(task)
        if not any(env.step(domain.no_op).done for _ in range(cap)):
            yield f"task {task.id!r} is not done after {cap} times {domain.no_op!r}"
    env.close()


def _no_op(domain: Domain, options: Any, tasks: Sequence[Task]) -> Iterator[str]:
    for task in tasks:
        env = _open(domain, options)
        env.reset(task)
        if env.step(env.expert_action()).done:
            env.reset(task)
        env.step(domain.no_op)
        record = env.record()
        before, after = record.evidence[-2:]
        changed = [v.id for v, a, b in zip(record.variables, before, after, strict=True) if a != b]
        if changed or (record.status[-1] != record.status[-2]).any() or record.commits[-1]:
            what = f"the variables {changed}" if changed else "the status of an atom, or commits"
            yield f"in task {task.id!r} the action {domain.no_op!r} changes {what}"
        env.close()


@dataclasses.dataclass(frozen=True)
class _Trace:
    """What an episode looked like from outside: T+1 observations, T times whether it was over, the record."""

    observations: tuple[Observation, ...]
    done: tuple[bool, ...]
    record: VerifierRecord


def _script(domain: Domain, options: Any, task: Task) -> list[str]:
    """Actions that meet much of an episode: the expert's, with something odd for every fourth."""
    env, actions = _open(domain, options), list[str]()
    env.reset(task)
    for taken in range(domain.max_steps(options)):
        expert = env.expert_action()
        actions.append(ODD_TEXTS[taken // 4 % len(ODD_TEXTS)] if taken % 4 == 3 else expert)
        if env.step(actions[-1]).done:
            break
    env.close()
    return actions


def _trace(env: Env, task: Task, actions: Sequence[str]) -> _Trace:
    observations, done = [env.reset(task)], list[bool]()
    for action in actions:
        result = env.step(action)
        observations.append(result.observation)
        done.append(bool(result.done))
    return _Trace(tuple(observations), tuple(done), env.record())


def _repeats(domain: Domain, options: Any, tasks: Sequence[Task]) -> Iterator[str]:
    scripts = {task: _script(domain, options, task) for task in tasks}
    env = _open(domain, options)
    traces = {task: _trace(env, task, actions) for task, actions in scripts.items()}
    for task, actions in scripts.items():
        yield from _differences(task, "after a reset", traces[task], _trace(env, task, actions))
        new = _open(domain, options)
        yield from _differences(task, "in a new environment", traces[task], _trace(new, task, actions))
        new.close()
    env.close()
    start = call("starting a worker process", EnvPool, domain, options, workers=1, timeout_s=_TIMEOUT_S)
    with start as pool:
        for task, actions in scripts.items():
            other = call("a worker process", _trace, PoolEnv(pool, 0), task, actions)
            yield from _differences(task, "in a worker process", traces[task], other)


def _differences(task: Task, where: str, one: _Trace, other: _Trace) -> Iterator[str]:
    """How the same actions went differently."""
    for t, (a, b) in enumerate(zip(one.observations, other.observations, strict=True)):
        if a != b:
            yield f"task {task.id!r} goes differently {where}: before action {t} {a!r:.80} became {b!r:.80}"
            return
    if one.done != other.done:
        yield f"task {task.id!r} goes differently {where}: it is over at another step"
    for field in dataclasses.fields(VerifierRecord):
        if not _equal(vars(one.record)[field.name], vars(other.record)[field.name]):
            yield f"task {task.id!r} has another record {where}: its {field.name} differs"


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(np.array_equal(one[key], other[key]) for key in one)
    return np.array_equal(one, other) if isinstance(one, np.ndarray) else bool(one == other)
