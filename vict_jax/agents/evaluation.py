"""An evaluation by prompting from its tasks to its report."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from envs.base import Domain, Task
from envs.endpoint import EndpointError
from envs.pool import EnvPool
from vict_jax import summary
from vict_jax.agents.agent import Agent, system_text
from vict_jax.agents.model import Model
from vict_jax.agents.play import Game, play
from vict_jax.agents.results import Results, TaskResult, by_trial, counts
from vict_jax.agents.usage import Budget, describe_usage
from vict_jax.config import EnvOptions
from vict_jax.metrics import RunError, write_json
from vict_jax.rollout.collector import Progress
from vict_jax.task_order import task_digest


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is to be evaluated.

    Attributes:
      model: who answers, as JSON values; for the record and the comparison with a later start.
      count: play the first `count` tasks of the split; 0 is all of them.
      seats: tasks in play at a time; changes no result.
    """

    domain: Domain
    env: EnvOptions
    agent: Agent
    model: Mapping[str, Any]
    split: str
    count: int
    seats: int
    budget: Budget

    def __post_init__(self) -> None:
        if self.split not in self.domain.splits:
            raise ValueError(f"split={self.split!r} is not one of {list(self.domain.splits)}")
        if self.count < 0 or self.seats < 1:
            raise ValueError(f"tasks={self.count} must be 0 (all) or more and batch={self.seats} 1 or more")


def settings(plan: Plan) -> dict[str, Any]:
    """What the result of a task depends on, as JSON values."""
    options, agent = plan.env.options, plan.agent
    return {
        "model": dict(plan.model),
        "agent": {
            "kind": agent.kind.value,
            "instruction": system_text(agent),
            "trials": agent.trials,
            "memory": agent.memory,
            "history": agent.history,
            "prompts": dataclasses.asdict(dataclasses.replace(agent.options, rows=1)),
        },
        "env": {"name": plan.env.name, **dataclasses.asdict(options)},
        "split": plan.split,
        "tasks": task_digest(plan.domain.tasks(options, plan.split)),
        "data": dict(plan.domain.manifest(options, [plan.split])),
    }


def evaluate_agent(
    plan: Plan,
    folder: pathlib.Path,
    pool: EnvPool,
    make_model: Callable[[int], Model],
    *,
    progress: Progress | None = None,
) -> str:
    """Play what `folder` does not have yet, and write its `summary.json`.

    Args:
      make_model: number of seats -> who answers; not called if nothing is left to play.

    Returns:
      The report for people.

    Raises:
      RunError: `folder` belongs to another evaluation, or the model gives no answer.
    """
    tasks = list(plan.domain.tasks(plan.env.options, plan.split))
    chosen = tasks[: plan.count] if plan.count else tasks
    with Results(folder, settings(plan)) as results:
        left = [(number, task) for number, task in enumerate(chosen) if task.id not in results.done]
        reason = _play(plan, results, pool, left, make_model, progress) if left else ""
        report, values = _report(plan, results, chosen, reason)
        write_json(folder / "summary.json", values)
    return f"{report}\nwritten to {folder}"


def _play(
    plan: Plan,
    results: Results,
    pool: EnvPool,
    tasks: Sequence[tuple[int, Task]],
    make_model: Callable[[int], Model],
    progress: Progress | None,
) -> str:
    seats = min(plan.seats, len(tasks))
    game = Game(
        pool=pool,
        agent=plan.agent,
        max_steps=plan.domain.max_steps(plan.env.options),
        finished=results.finished,
        unfinished=results.unfinished,
        progress=progress,
    )
    try:
        return play(game, make_model(seats), tasks, seats=seats, budget=plan.budget, used=results.usage)
    except EndpointError as error:
        raise RunError(
            f"{error}\n{len(results.done)} finished tasks are kept in {results.folder}; the same command "
            "goes on with the others."
        ) from error


def _report(plan: Plan, results: Results, tasks: Sequence[Task], reason: str) -> tuple[str, dict[str, Any]]:
    """For people, and as JSON values."""
    finished = [results.done[task.id] for task in tasks if task.id in results.done]
    missing = [task.id for task in tasks if task.id not in results.done]
    prices, usage = plan.budget.prices, results.usage
    known_cost = prices is not None and not usage.unstated
    about = plan.domain.about(plan.env.options)
    trials = by_trial(finished, plan.agent.trials, about=about) if finished else {}
    values = {
        **settings(plan),
        "trials": trials,
        "counts": counts(finished),
        "usage": dataclasses.asdict(usage),
        "prices_per_million": dataclasses.asdict(prices) if prices else None,
        "cost": prices.cost(usage) if prices is not None and known_cost else None,
        "stopped": reason,
        "not_run": missing,
    }
    lines = [summary.evaluation_table(plan.split, _titles(plan, trials))] if trials else []
    lines += [_counted(finished), describe_usage(usage, prices)]
    if missing:
        named = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        lines.append(f"stopped: {reason}; {len(missing)} of {len(tasks)} tasks were not run: {named}")
    return "\n".join(lines), values


def _titles(plan: Plan, trials: Mapping[str, Any]) -> dict[str, Any]:
    """Column titles: the agent's name, and the trial where there are several."""
    kind = plan.agent.kind.value
    return {f"{kind}, {name}" if len(trials) > 1 else kind: one for name, one in trials.items()}


def _counted(finished: Sequence[TaskResult]) -> str:
    named = counts(finished)
    return ", ".join(f"{value:,} {name.replace('_', ' ')}" for name, value in named.items())
