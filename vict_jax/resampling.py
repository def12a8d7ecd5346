"""An update's rollouts: a group for each of its tasks and, if asked for, new tasks for groups without signal.

DAPO's dynamic sampling (arXiv 2503.14476, section 3.2): a group all of whose rollouts have the same return is
dropped and another task is played in its place, until every group has a spread or `train.resample_groups`
further tasks have been played. The number of groups that are trained on stays the same, so shapes do; what
is still without a spread then stays in its place, with advantages of 0.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx

from envs.base import Task
from vict_jax import processes
from vict_jax.batching import Rollout
from vict_jax.job import Job, player, sampling_policy, update_tasks
from vict_jax.rollout.collector import Collected, Progress
from vict_jax.rollout.episode import Counts
from vict_jax.shaping import same_return
from vict_jax.work import Pieces


@dataclasses.dataclass(frozen=True)
class Sampled:
    """The rollouts of an update.

    Attributes:
      played: those that are trained on; its counts and seconds are of all that were played. In a run of
        several processes all of this is of the groups of one, `processes.share`.
      dropped: groups that others took the place of.
      counts: with `train.resample_groups`, `groups_dropped`, and `groups_flat`: those that are trained on
        although they have no spread of returns.
    """

    played: Collected
    dropped: list[list[Rollout]]
    counts: dict[str, int]


def spare_tasks(job: Job, update: int) -> list[Task]:
    """Tasks to take the place of dropped groups, in order: none of the update's own, none twice.

    A function of the seed and the update's number, so that a resumed run draws the same.
    """
    limit = job.config.train.resample_groups
    if not limit:
        return []
    own = {task.id for task in update_tasks(job, update)}
    order = np.random.default_rng([job.config.seed, update, 1]).permutation(len(job.train_tasks))
    others = (task for task in (job.train_tasks[int(i)] for i in order) if task.id not in own)
    return list(itertools.islice(others, limit))


def roll_out(
    job: Job,
    params: nnx.State,
    update: int,
    key: jax.Array,
    progress: Progress | None = None,
    work: Pieces[Any] | None = None,
) -> Sampled:
    """The update's rollouts with the trained parameters `params`: this process's share of the groups.

    Called by all processes. What is played does not depend on how many there are.

    Args:
      key: of this update. Rollout i of all that are played is sampled with `fold_in(key, i)`, whether it
        is one of the first groups or of one that took a place.
      progress: told how many rollouts are over, and of how many.
      work: advances while environments act, and is done in the end. Its time counts as `host`.
    """
    config = job.config
    collect = player(job, sampling_policy(job, params), config.rollout)

    def play(tasks: Sequence[Task], first: int, meanwhile: Callable[[], None] | None = None) -> Collected:
        size = config.train.rollouts
        return collect(
            tasks, rollouts=size, key=key, first=first * size, progress=progress, meanwhile=meanwhile
        )

    own, tasks = processes.share(config.train.groups), update_tasks(job, update)
    played = play([tasks[g] for g in own], own.start, None if work is None else work.advance)
    if work is not None:
        work.result()  # before processes, which have advanced it by more or less, meet
    spare, drawn = spare_tasks(job, update), 0
    dropped: list[list[Rollout]] = []
    while True:
        flat = flat_groups(job, played)
        # Of all processes: tasks go to flat groups in the order of their numbers.
        before, flat_everywhere = before_own(len(flat))
        most = min(flat_everywhere, len(spare) - drawn)
        if not most:
            counts = {"groups_dropped": len(dropped), "groups_flat": len(flat)}
            return Sampled(played, dropped, counts if config.train.resample_groups else {})
        places = flat[: max(most - before, 0)]
        if places:
            first = drawn + before
            more = play(spare[first : first + len(places)], config.train.groups + first)
            dropped += [played.groups[g] for g in places]
            played = in_place(played, places, more)
        drawn += most


def before_own(count: int) -> tuple[int, int]:
    """Of something that this process has `count` of: how many the processes before it have, and all."""
    counts = processes.gather(count)
    return sum(counts[: jax.process_index()]), sum(counts)


def flat_groups(job: Job, played: Collected) -> list[int]:
    """Indices of the groups whose rollouts all have the same return."""
    config = job.config
    return [
        g
        for g, (group, marks) in enumerate(zip(played.groups, played.marks, strict=True))
        if same_return(group, marks, config.reward, config.rollout)
    ]


def in_place(played: Collected, places: Sequence[int], more: Collected) -> Collected:
    """`played` with the groups of `more` in the given places, and the counts and times of both."""
    groups, marks = list(played.groups), list(played.marks)
    for place, group, mark in zip(places, more.groups, more.marks, strict=True):
        groups[place], marks[place] = group, mark
    seconds = {phase: played.seconds[phase] + more.seconds[phase] for phase in played.seconds}
    return Collected(groups, marks, _add(played.counts, more.counts), seconds)


def _add(a: Counts, b: Counts) -> Counts:
    """Counts of both; `compiled` is a running total of the session already."""
    total = {
        field.name: getattr(a, field.name) + getattr(b, field.name) for field in dataclasses.fields(Counts)
    }
    return Counts(**{**total, "compiled": b.compiled})
