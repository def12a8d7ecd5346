"""Hostile actions against an environment: none may crash it, and none may hang it.

    python -m benchmarks.fuzz --env NAME [--actions 100000] [--seed 0] [--option KEY=VALUE]

Episodes of generated or real tasks, each action one of: an admissible command, the expert's action, that of
another task, one of these with a piece cut out, doubled, swapped or replaced, and texts that no policy
should say: empty, huge, other scripts, control characters, brackets, tags of replies and protocols, broken
and wrong JSON. The environment's record is taken at the end of each episode, and once within it. Exits with
1 if a call raised or took longer than `--limit` seconds; the actions that led there are printed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import random
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from envs.base import Domain, Env, StepResult, Task, hash_evidence
from envs.lookup import environment
from vict_jax.audit.contract import record_problems
from vict_jax.audit.environment import read_options
from vict_jax.config import build
from vict_jax.rollout.tokenizer import SPECIAL_TOKENS

T = TypeVar("T")
_TASKS = 60
_KEEP = 400
_TAGS = (
    *SPECIAL_TOKENS,
    *("<search>", "</search>", "<answer>", "</answer>", "<information>", "</information>"),
    *("<tool_call>", "</tool_call>", "<|im_start|>user", "[INST]", "###", "{{", "}}", "<![CDATA["),
)
_SCRIPTS = (
    "é",
    "ß",
    "İ",
    "☃",
    "🔧",
    "日本語",
    "עברית",
    "\u202e",
    "\u0301",
    "\ufeff",
    "\ud800",
    "\x00",
    "\x1b[2J",
)
_BRACKETS = ("[", "]", "(", ")", "{", "}", "<", ">", "[]", "{}", "()", '"', "'", "`", "\\", "/", "%s", "$(x)")
_JSON: tuple[Any, ...] = (
    None,
    True,
    -1,
    10**30,
    1e308,
    "",
    [],
    {},
    [[[[]]]],
    {"name": None, "arguments": None},
    {"name": "", "arguments": "{}"},
    {"name": ["x"], "arguments": [1]},
    {"arguments": {}},
)
_BROKEN = (
    '{"name": ',
    '{"name": "x", "arguments": {',
    "{'name': 'x'}",
    "NaN",
    '{"a": 1}{"a": 2}',
    '"\\ud800"',
)
_ODD = (
    "",
    " ",
    "\n",
    "\r\n\t",
    "-1",
    "None",
    "__class__",
    "1/0",
    "9**9**9",
    "9" * 400,
    "x" * 20_000,
    "x y " * 5_000,
    "[" * 3_000,
    "(" * 500 + "1" + ")" * 500,
    "<answer>" * 3_000,
    '{"a":' * 2_000,
    "a" * 30 + "!" * 30 + "(a+)+$",
)


@dataclasses.dataclass(frozen=True)
class Failure:
    """A call that raised, took too long, or gave something else than its contract says.

    Attributes:
      call: what was called. what: the exception or the time. trace: where it was raised.
      task: id of the task. actions: those of the episode, the failing one last.
    """

    call: str
    what: str
    trace: str
    task: str
    actions: tuple[str, ...]


@dataclasses.dataclass
class Result:
    """What was seen.

    Attributes:
      actions, episodes, valid: counts; valid actions are those that the environment took.
      seconds: in steps. slowest_s, slowest: the longest step, and its action.
      failures: at most one a task.
    """

    actions: int = 0
    episodes: int = 0
    valid: int = 0
    seconds: float = 0.0
    slowest_s: float = 0.0
    slowest: str = ""
    failures: list[Failure] = dataclasses.field(default_factory=list)


def fuzz(domain: Domain, options: Any, *, actions: int, seed: int, limit_s: float) -> Result:
    """Play `actions` hostile actions, the tasks in a random order; a function of the arguments but for times.

    Args:
      limit_s: the longest that a call may take.
    """
    rng, result = random.Random(seed), Result()
    tasks = [task for split in domain.splits for task in _some(domain.tasks(options, split), rng)]
    pool = list(_BRACKETS)
    failed: set[str] = set()
    env = domain.make(options)
    while result.actions < actions and (left := [task for task in tasks if task.id not in failed]):
        task = rng.choice(left)
        episode = _Episode(domain, env, task, limit_s, result)
        if not episode.play(rng, pool, min(domain.max_steps(options) + 2, actions - result.actions)):
            failed.add(task.id)
            env = domain.make(options)  # one that raised is not used again
    env.close()
    return result


def _some(tasks: Sequence[Task], rng: random.Random) -> list[Task]:
    return [tasks[i] for i in rng.sample(range(len(tasks)), min(_TASKS, len(tasks)))]


class _Episode:
    """One episode under fire: every call is timed, and what it raises becomes a `Failure`."""

    def __init__(self, domain: Domain, env: Env, task: Task, limit_s: float, result: Result) -> None:
        self._domain, self._env, self._task = domain, env, task
        self._limit_s, self._result = limit_s, result
        self._actions: list[str] = []

    def play(self, rng: random.Random, pool: list[str], most: int) -> bool:
        """Play to the end and two steps beyond; False after a failure."""
        self._result.episodes += 1
        seen = self._timed("reset", lambda: self._env.reset(self._task))
        if seen is None:
            return False
        admissible, beyond = seen.admissible, 0
        middle = rng.randrange(most)
        for step in range(most):
            expert = self._timed("expert_action", self._env.expert_action) if not beyond else ""
            if expert is None:
                return False
            action = choose(rng, admissible, expert, pool)
            self._actions.append(action)
            result = self._step(action)
            if result is None or (step == middle and not self._recorded()):
                return False
            admissible = result.observation.admissible
            pool += [expert] * (len(pool) < _KEEP and expert != "")
            beyond += bool(result.done)
            if beyond > 2:
                break
        return self._recorded()

    def _step(self, action: str) -> StepResult | None:
        begin = time.perf_counter()
        result = self._timed("step", lambda: self._env.step(action))
        took = time.perf_counter() - begin
        self._result.actions += 1
        self._result.seconds += took
        if took > self._result.slowest_s:
            self._result.slowest_s, self._result.slowest = took, action
        if result is not None:
            self._result.valid += bool(result.info["valid"])
        return result

    def _recorded(self) -> bool:
        record = self._timed("record", self._env.record)
        if record is None:
            return False
        problems = list(record_problems(self._domain, record, steps=len(self._actions)))
        if self._timed("hash_evidence", lambda: hash_evidence(record.evidence)) is None:
            return False
        if problems:
            self._fail("record", problems[0], "")
        return not problems

    def _timed(self, name: str, call: Callable[[], T]) -> T | None:
        """The answer of a call; None if it raised. One that takes too long is a failure, too."""
        begin = time.perf_counter()
        try:
            answer = call()
        except Exception as error:  # noqa: BLE001  (whatever it is, it is what is looked for)
            self._fail(name, f"{type(error).__name__}: {error}", traceback.format_exc())
            return None
        if (took := time.perf_counter() - begin) > self._limit_s:
            self._fail(name, f"took {took:.1f} s, above the limit of {self._limit_s:g} s", "")
            return None
        return answer

    def _fail(self, call: str, what: str, trace: str) -> None:
        self._result.failures.append(Failure(call, what, trace, self._task.id, tuple(self._actions)))


def choose(rng: random.Random, admissible: Sequence[str], expert: str, pool: Sequence[str]) -> str:
    """One action: half of them useful or nearly so, half of them hostile."""
    good = rng.choice([expert, expert, rng.choice(admissible) if admissible else expert, rng.choice(pool)])
    kind = rng.random()
    if kind < 0.25:
        return good
    if kind < 0.6:
        return _mutated(rng, good, pool)
    return next(_hostile(rng, good))


def _mutated(rng: random.Random, text: str, pool: Sequence[str]) -> str:
    """A text with one to three changes at random places."""
    for _ in range(rng.randint(1, 3)):
        start, end = sorted(rng.randrange(len(text) + 1) for _ in range(2))
        piece = text[start:end]
        other = rng.choice([rng.choice(pool), *_TAGS[:2], rng.choice(_TAGS), rng.choice(_BRACKETS), " ", ""])
        text = rng.choice(
            [
                text[:start] + text[end:],
                text[:end] + piece + text[end:],
                text[:start] + other + text[end:],
                text[:start] + other + text[start:],
                text[:start] + piece.swapcase() + text[end:],
                text[:start] + piece[::-1] + text[end:],
                " ".join(rng.sample(words, len(words))) if (words := text.split()) else other,
            ]
        )[:100_000]
    return text


def _hostile(rng: random.Random, good: str) -> Iterator[str]:
    """A text that no policy should say."""
    words = [*_TAGS, *_SCRIPTS, *_BRACKETS, *good.split()]
    yield rng.choice(
        [
            rng.choice(_ODD),
            "".join(rng.choices(words, k=rng.randint(1, 30))),
            " ".join(rng.choices(words, k=rng.randint(1, 30))),
            json.dumps(rng.choice(_JSON)),
            json.dumps({"name": good, "arguments": rng.choice(_JSON)}),
            json.dumps({"name": rng.choice(words), "arguments": {rng.choice(words): rng.choice(_JSON)}}),
            rng.choice(_BROKEN),
            f"{rng.choice(_TAGS)}{good}{rng.choice(_TAGS)}",
            f"{good}\n{good}",
            f"{good}{rng.choice(_SCRIPTS)}",
            good.upper(),
            good * rng.choice([2, 50, 2_000]),
            "".join(chr(rng.choice([rng.randrange(32), rng.randrange(0x110000)])) for _ in range(20)),
        ]
    )


def report(name: str, result: Result) -> str:
    """The result for people."""
    shown = repr(result.slowest) if len(result.slowest) <= 60 else f"{result.slowest[:50]!r}..."
    lines = [
        f"{name}: {result.actions} actions in {result.episodes} episodes, {result.valid} of them valid, "
        f"{len(result.failures)} failures",
        f"  {result.actions / max(result.seconds, 1e-9):.0f} steps per second, slowest step "
        f"{1e3 * result.slowest_s:.1f} ms ({len(result.slowest)} characters: {shown})",
    ]
    for failure in result.failures:
        lines.append(f"FAILED {failure.call} in task {failure.task!r}: {failure.what}")
        lines += [f"    {t}: {action!r:.200}" for t, action in enumerate(failure.actions)]
        lines.append(failure.trace)
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(description="Hostile actions against an environment.")
    parser.add_argument("--env", required=True, help="a built-in name or the dotted name of a module")
    parser.add_argument("--actions", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=5.0, help="seconds that a call may take")
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--json", type=pathlib.Path, help="where to write the result")
    args = parser.parse_args(arguments)
    if args.actions < 1 or args.limit <= 0:
        parser.error(f"--actions {args.actions} must be 1 or more, and --limit {args.limit} above 0")
    try:
        domain, options_class = environment(args.env)
        options = build(options_class, read_options("--option", args.option), "env.")
    except ValueError as error:
        parser.error(str(error))
    result = fuzz(domain, options, actions=args.actions, seed=args.seed, limit_s=args.limit)
    print(report(args.env, result))
    if args.json is not None:
        args.json.write_text(json.dumps(dataclasses.asdict(result), indent=1) + "\n", encoding="utf-8")
    return 1 if result.failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
