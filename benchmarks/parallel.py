"""Speed and memory of many environments in one process, for every built-in environment.

Each environment plays the expert's actions, found beforehand, so neither the expert nor a model is measured.
They take their steps in turn, as in a worker of the pool. Times are CPU times of the process, memory is what
the process holds above its imports when all environments are in the middle of an episode.
"""

from __future__ import annotations

import dataclasses
import gc
import importlib.util
import itertools
import multiprocessing
import pathlib
import resource
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from envs.base import Domain, Env, Task
from envs.lookup import environment

PARALLEL = (1, 64, 256)
# Engines of an environment: name -> options that differ from the defaults. Others have one engine.
ENGINES: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "alfworld": {"native": {}, "textworld (original)": {"engine": "textworld"}},
    "search_qa": {"BM25 in process": {}},
    "tau_bench": {"retail": {"domain": "retail"}, "airline": {"domain": "airline"}},
}
# What an engine needs beside the core dependencies. It is slow, too: the first engine, which says and hears
# the same, finds its actions.
_NEEDS = {"textworld (original)": "textworld"}
# Figures of the originals, one process, CPU time: measured once with the versions that the pages of the
# environments name; not comparable to the last digit, as tasks and machines differ.
ORIGINALS = {
    "alfworld": "alfworld 0.4.2: 21 steps/s, reset 370 ms, 2.1 to 6.6 MB an environment beside 68 MB",
    "search_qa": "Search-R1 has no environment apart from its trainer; retrieval is a server (e5, or Lucene)",
    "tau_bench": (
        "tau-bench: read step 0.016 to 0.022 ms; reset 16 ms (retail) and 64 ms (airline), score 247 and "
        "627 ms, 6.1 and 13.1 MB an environment"
    ),
    "webshop": "WebShop, 1,000 products: 33 steps/s (Lucene), 48 (BM25 in process); 521 and 205 MB",
}
_TASKS = 64


@dataclasses.dataclass(frozen=True)
class ParallelSpeed:
    """One measurement.

    Attributes:
      steps_per_second: steps by CPU seconds spent in them, the observation included.
      reset_ms, record_ms: mean CPU time of a reset, and of a record at the end of an episode.
      first_reset_ms: of the very first one, with everything that is loaded once.
      memory_mb: of all environments together, above the imports.
    """

    environment: str
    engine: str
    parallel: int
    steps: int
    steps_per_second: float
    first_reset_ms: float
    reset_ms: float
    record_ms: float
    memory_mb: float


def engines_of(name: str) -> Mapping[str, Mapping[str, Any]]:
    """The engines of an environment that can run here."""
    found = ENGINES.get(name, {"native": {}})
    return {
        engine: options
        for engine, options in found.items()
        if engine not in _NEEDS or importlib.util.find_spec(_NEEDS[engine]) is not None
    }


def measure_apart(name: str, engine: str, parallel: int, *, seconds: float) -> ParallelSpeed:
    """`measure` in a process of its own, since it reports the process's memory."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measure, (name, engine, parallel, seconds))


def measure(name: str, engine: str, parallel: int, seconds: float) -> ParallelSpeed:
    """Measure one engine with `parallel` environments.

    Args:
      seconds: CPU time of steps after which no new round of episodes begins; there is at least one.
    """
    domain, options_class = environment(name)
    engines = engines_of(name)
    options = options_class(**engines[engine])
    finder = options_class(**next(iter(engines.values()))) if engine in _NEEDS else options
    tasks = domain.tasks(options, domain.splits[0])[:_TASKS]
    gc.collect()
    before = memory_mb()
    first, _ = _timed(_first_reset, domain, options, tasks[0])
    envs = [domain.make(options) for _ in range(parallel)]
    clock = _Clock()
    for start in itertools.count(0, parallel):
        chosen = [tasks[(start + i) % len(tasks)] for i in range(parallel)]
        scripts = {task.id: _script(domain, finder, task) for task in {*chosen}}
        held = _round(envs, chosen, scripts, clock)
        if start == 0:
            memory = held - before
        if clock.steps_s >= seconds:
            break
    for env in envs:
        env.close()
    return ParallelSpeed(
        environment=name,
        engine=engine,
        parallel=parallel,
        steps=clock.steps,
        steps_per_second=clock.steps / clock.steps_s,
        first_reset_ms=1e3 * first,
        reset_ms=1e3 * clock.resets_s / clock.episodes,
        record_ms=1e3 * clock.records_s / clock.episodes,
        memory_mb=memory,
    )


@dataclasses.dataclass
class _Clock:
    """Sums of CPU seconds, and of what was done in them."""

    steps: int = 0
    episodes: int = 0
    steps_s: float = 0.0
    resets_s: float = 0.0
    records_s: float = 0.0


def _round(
    envs: Sequence[Env], tasks: Sequence[Task], scripts: Mapping[str, Sequence[str]], clock: _Clock
) -> float:
    """An episode in every environment; returns the memory in the middle of it, in MB."""
    for env, task in zip(envs, tasks, strict=True):
        clock.resets_s += _timed(env.reset, task)[0]
    longest = max(map(len, scripts.values()))
    middle, held = longest // 2, 0.0
    for t in range(longest):
        for env, task in zip(envs, tasks, strict=True):
            if t < len(scripts[task.id]):
                clock.steps_s += _timed(env.step, scripts[task.id][t])[0]
                clock.steps += 1
        if t == middle:
            held = memory_mb()
    for env in envs:
        clock.records_s += _timed(env.record)[0]
    clock.episodes += len(envs)
    return held


def _first_reset(domain: Domain, options: Any, task: Task) -> None:
    env = domain.make(options)
    env.reset(task)
    env.close()


def _script(domain: Domain, options: Any, task: Task) -> list[str]:
    """The expert's actions on a task."""
    env = domain.make(options)
    env.reset(task)
    actions = list(_expert(env))
    env.close()
    return actions


def _expert(env: Env) -> Iterator[str]:
    done = False
    while not done:
        action = env.expert_action()
        yield action
        done = env.step(action).done


def _timed(work: Any, *arguments: Any) -> tuple[float, Any]:
    """CPU seconds of a call, and its answer."""
    begin = time.process_time()
    answer = work(*arguments)
    return time.process_time() - begin, answer


def memory_mb() -> float:
    """Resident memory of this process; Linux only."""
    resident_pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return resident_pages * resource.getpagesize() / 2**20


HEAD = f"{'environment':12}{'engine':22}" + "".join(
    f"{name:>11}" for name in ("parallel", "steps/s", "reset ms", "first ms", "record ms", "memory MB")
)


def line(speed: ParallelSpeed) -> str:
    """A measurement as a line under `HEAD`."""
    return (
        f"{speed.environment:12}{speed.engine:22}{speed.parallel:11}{speed.steps_per_second:11.0f}"
        f"{speed.reset_ms:11.3f}{speed.first_reset_ms:11.1f}{speed.record_ms:11.3f}{speed.memory_mb:11.1f}"
    )
