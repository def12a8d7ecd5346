"""Dynamic sampling: which tasks are drawn, what is dropped, and that it ends."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import pytest

from envs.lookup import environment
from tests.run.small import small_config
from tests.run.test_shaping import marks, play
from tests.run.together import together
from vict_jax import resampling
from vict_jax.config import RunConfig, from_config_dict
from vict_jax.job import Job, update_tasks
from vict_jax.rollout.collector import Collected
from vict_jax.rollout.episode import Counts

GROUPS, ROLLOUTS = 3, 2


def config(limit: int) -> RunConfig:
    values = small_config().unlock()
    values.train.update(groups=GROUPS, rollouts=ROLLOUTS, resample_groups=limit)
    return from_config_dict(values)


def job(limit: int) -> Job:
    """The part of a job that drawing tasks looks at."""
    chosen = config(limit)
    domain, _ = environment(chosen.env.name)
    tasks = domain.tasks(chosen.env.options, "train")
    unused: Any = None
    fields = {field.name: unused for field in dataclasses.fields(Job)}
    return Job(**{**fields, "config": chosen, "domain": domain, "train_tasks": tasks})


class Stage:
    """Stands for `collect`: the first `flat` groups played have equal returns, the others do not."""

    def __init__(self, flat: int) -> None:
        self.flat, self.calls, self.compiled = flat, [], 0

    def collect(self, *args: Any, rollouts: int, first: int, **kwargs: Any) -> Collected:
        tasks: Sequence[Any] = args[0]
        self.calls.append(([task.id for task in tasks], first))
        groups = []
        for task in tasks:
            same, self.flat = self.flat > 0, self.flat - 1
            scores = [0.0] * rollouts if same else [1.0, *[0.0] * (rollouts - 1)]
            groups.append([dataclasses.replace(play([3], score=s), task=task) for s in scores])
        self.compiled += 1
        counts = {field.name: 0 for field in dataclasses.fields(Counts)}
        counts |= {"rollouts": len(tasks) * rollouts, "compiled": self.compiled}
        return Collected(groups, [[marks(r) for r in g] for g in groups], Counts(**counts), {"env": 1.0})


def roll_out(
    monkeypatch: pytest.MonkeyPatch, limit: int, flat: int, update: int = 1
) -> tuple[Stage, resampling.Sampled]:
    stage, unused = Stage(flat), None
    monkeypatch.setattr(resampling, "player", lambda *_: stage.collect)
    monkeypatch.setattr(resampling, "sampling_policy", lambda *_: (unused, unused))
    return stage, resampling.roll_out(job(limit), unused, update, jax.random.key(0))  # type: ignore[arg-type]


def test_off_it_plays_the_updates_own_tasks_once(monkeypatch: pytest.MonkeyPatch) -> None:
    stage, sampled = roll_out(monkeypatch, limit=0, flat=3)
    assert stage.calls == [([task.id for task in update_tasks(job(0), 1)], 0)]
    assert (sampled.dropped, sampled.counts) == ([], {})


def test_flat_groups_give_way_until_none_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """3 of 3 flat, then 1 of the 3 new ones, then none: five tasks drawn, four groups dropped."""
    stage, sampled = roll_out(monkeypatch, limit=10, flat=4)
    own = [task.id for task in update_tasks(job(10), 1)]
    spare = [task.id for task in resampling.spare_tasks(job(10), 1)]
    assert stage.calls == [(own, 0), (spare[:3], 3 * ROLLOUTS), (spare[3:4], 6 * ROLLOUTS)]
    kept = [group[0].task.id for group in sampled.played.groups]
    assert kept == [spare[3], spare[1], spare[2]]  # each in the place of the one it replaces
    assert [group[0].task.id for group in sampled.dropped] == [*own, spare[0]]
    assert sampled.counts == {"groups_dropped": 4, "groups_flat": 0}
    counts = sampled.played.counts
    assert (counts.rollouts, counts.compiled) == (7 * ROLLOUTS, 3)
    assert sampled.played.seconds == {"env": 3.0}
    assert [[len(m.unparsed) for m in some] for some in sampled.played.marks] == [[1, 1]] * GROUPS


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_it_ends_at_its_limit_with_groups_of_the_same_number(
    monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    stage, sampled = roll_out(monkeypatch, limit=limit, flat=100)
    assert sum(len(tasks) for tasks, _ in stage.calls) == GROUPS + limit
    assert len(sampled.played.groups) == GROUPS
    assert sampled.counts == {"groups_dropped": limit, "groups_flat": GROUPS}
    played = [task for tasks, _ in stage.calls for task in tasks]
    assert len(set(played)) == len(played)  # no task twice in an update
    firsts = [first for _, first in stage.calls]
    sizes = [len(tasks) * ROLLOUTS for tasks, _ in stage.calls]
    assert firsts == [sum(sizes[:i]) for i in range(len(sizes))]  # every rollout has a key of its own


def test_spare_tasks_are_a_function_of_seed_and_update() -> None:
    first = [task.id for task in resampling.spare_tasks(job(8), 1)]
    assert first == [task.id for task in resampling.spare_tasks(job(8), 1)]
    assert first[:3] == [task.id for task in resampling.spare_tasks(job(3), 1)]
    assert first != [task.id for task in resampling.spare_tasks(job(8), 2)]
    own = {task.id for task in update_tasks(job(8), 1)}
    assert not own & set(first)
    # Not more than there are: 24 tasks, 3 of them the update's own.
    assert len(resampling.spare_tasks(job(100), 1)) == 21


class Odd(Stage):
    """Tasks whose place in the split is odd have equal returns."""

    def collect(self, *args: Any, rollouts: int, first: int, **kwargs: Any) -> Collected:
        order = [task.id for task in job(0).train_tasks]
        self.calls.append(([task.id for task in args[0]], first))
        groups = [
            [
                dataclasses.replace(
                    play([3], score=float(n == 0 and order.index(task.id) % 2 == 0)), task=task
                )
                for n in range(rollouts)
            ]
            for task in args[0]
        ]
        counts = {field.name: 0 for field in dataclasses.fields(Counts)}
        return Collected(groups, [[marks(r) for r in g] for g in groups], Counts(**counts), {"env": 1.0})


@pytest.mark.parametrize("limit", [1, 3, 20])
def test_several_processes_play_and_keep_what_one_does(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    stage, unused, key = Odd(0), None, jax.random.key(0)
    monkeypatch.setattr(resampling, "player", lambda *_: stage.collect)
    monkeypatch.setattr(resampling, "sampling_policy", lambda *_: (unused, unused))
    chosen = job(limit)

    def numbered() -> dict[str, int]:
        """The number of each task's first rollout."""
        return {task: first + i * ROLLOUTS for tasks, first in stage.calls for i, task in enumerate(tasks)}

    def kept(some: resampling.Sampled) -> list[str]:
        return [group[0].task.id for group in some.played.groups]

    alone = resampling.roll_out(chosen, unused, 2, key)  # type: ignore[arg-type]
    expected, stage.calls = numbered(), []
    several = together(
        monkeypatch,
        GROUPS,
        lambda _: resampling.roll_out(chosen, unused, 2, key),  # type: ignore[arg-type]
    )
    assert numbered() == expected
    assert [task for some in several for task in kept(some)] == kept(alone)
    for name, value in alone.counts.items():
        assert sum(some.counts[name] for some in several) == value
