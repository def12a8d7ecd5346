"""Task sets: the tasks of an environment, all or some, in a fixed order, with what they were made from.

A run whose `train.task_set` names one trains on its tasks in its order. It is refused if the environment,
its options, or the data under them are not those of the set.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, overload

import numpy as np
import tensorflow_datasets as tfds

from envs.base import Domain, Task
from vict_jax.datasets import storage
from vict_jax.task_order import task_digest

NAME = "task_set"
# Where data lie differs from machine to machine; the manifest says whether they are the same.
_PLACES = ("data_dir",)


class TaskSet(tfds.core.GeneratorBasedBuilder):
    """Builder of a task set: one record a task, in order.

    Args:
      splits: the tasks of each split, at least one.
      metadata: what `provenance` says.
      progress: called after each task.
    """

    VERSION = tfds.core.Version(storage.VERSION)
    RELEASE_NOTES = {storage.VERSION: "id, type, split, seed and source of each task."}  # noqa: RUF012

    def __init__(
        self,
        *,
        data_dir: pathlib.Path,
        splits: Mapping[str, Sequence[Task]],
        metadata: Mapping[str, Any],
        progress: Callable[[], object] = lambda: None,
    ) -> None:
        self._splits, self._made_from, self._progress = splits, metadata, progress
        super().__init__(data_dir=data_dir, file_format=storage.FORMAT)

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self,
            description=f"Tasks of the environment {self._made_from['environment']}.",
            features=tfds.features.FeaturesDict(
                {
                    "id": tfds.features.Text(),
                    "type": tfds.features.Text(),
                    "split": tfds.features.Text(),
                    "seed": np.int64,
                    "source": tfds.features.Text(),
                }
            ),
            metadata=tfds.core.MetadataDict(self._made_from),
            disable_shuffling=True,
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterator[tuple[int, dict[str, Any]]]]:
        return {split: self._generate_examples(tasks) for split, tasks in self._splits.items()}

    def _generate_examples(self, tasks: Sequence[Task]) -> Iterator[tuple[int, dict[str, Any]]]:
        for index, task in enumerate(tasks):
            yield index, dataclasses.asdict(task)
            self._progress()


class TaskSource(Sequence[Task]):
    """The tasks of a split of a task set, each read from its file when asked for.

    Attributes:
      made_from: see `provenance`.
    """

    def __init__(self, out: pathlib.Path, split: str) -> None:
        self._records, self.made_from = storage.open_split(out, NAME, split)
        self._what = f"split {split!r} of {storage.folder_of(out, NAME)}"

    def __len__(self) -> int:
        return len(self._records)

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Task]: ...
    def __getitem__(self, index: int | slice) -> Task | Sequence[Task]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"task {index} of {len(self)}")
        record = storage.read(self._records, index % len(self), self._what)
        texts = {name: record[name].decode() for name in ("id", "type", "split", "source")}
        return Task(**texts, seed=int(record["seed"]))


def task_source(out: pathlib.Path, split: str) -> TaskSource:
    """The tasks of a split of the task set in `out`, by random access.

    Raises:
      ValueError: there is no task set, or it has no such split.
      DamagedError: it cannot be read; also when a task is asked for.
    """
    return TaskSource(out, split)


def select(
    domain: Domain, options: Any, splits: Sequence[str], ids: Sequence[str] | None = None
) -> dict[str, Sequence[Task]]:
    """The tasks of `splits`: all of them, or those of `ids` in that order; splits without any are left out.

    Raises:
      ValueError: an id is given twice or in none of the splits, or there is no such split.
    """
    if unknown := set(splits) - set(domain.splits):
        raise ValueError(f"split {sorted(unknown)[0]!r} is not one of {list(domain.splits)}")
    tasks = {split: domain.tasks(options, split) for split in splits}
    if ids is None:
        return {split: some for split, some in tasks.items() if some}
    if len(set(ids)) < len(ids):
        twice = next(name for name in ids if ids.count(name) > 1)
        raise ValueError(f"task {twice!r} is given twice")
    by_id = {task.id: task for some in tasks.values() for task in some}
    if missing := [name for name in ids if name not in by_id]:
        raise ValueError(f"there is no task {missing[0]!r} in {list(splits)} ({len(missing)} such ids)")
    chosen = {split: [by_id[name] for name in ids if by_id[name].split == split] for split in splits}
    return {split: some for split, some in chosen.items() if some}


def provenance(
    environment: str, domain: Domain, options: Any, splits: Mapping[str, Sequence[Task]]
) -> dict[str, Any]:
    """What a task set is made from: `environment`, `options`, and for each split `manifest` (data file ->
    SHA-256), `all_tasks` (count and checksum of all that the environment has) and `tasks` (of the set)."""
    return {
        "environment": environment,
        "options": json.loads(json.dumps(dataclasses.asdict(options))),
        "manifest": {split: dict(domain.manifest(options, [split])) for split in splits},
        "all_tasks": {split: task_digest(domain.tasks(options, split)) for split in splits},
        "tasks": {split: task_digest(tasks) for split, tasks in splits.items()},
    }


def training_tasks(
    out: pathlib.Path, environment: str, domain: Domain, options: Any, split: str
) -> list[Task]:
    """The environment's own tasks that the task set in `out` names, in its order.

    Raises:
      ValueError: there is no such set or split, or it was built from another environment, other options or
        other data; the message names what differs.
      DamagedError: it cannot be read.
    """
    source = task_source(out, split)
    here = provenance(environment, domain, options, {split: source})
    if changed := list(_changes(source.made_from, here, split)):
        raise ValueError(
            f"train.task_set={str(out)!r} was built from something else than this run has:\n  "
            + "\n  ".join(changed)
            + "\nBuild it again with `python -m vict_jax.datasets --env`, or restore what it was built from."
        )
    by_id = {task.id: task for task in domain.tasks(options, split)}
    return [by_id[task.id] for task in source]


def _changes(before: Mapping[str, Any], now: Mapping[str, Any], split: str) -> Iterator[str]:
    """What differs between the provenance of a set and of this run, one text each: `name: set -> run`."""
    if before["environment"] != now["environment"]:
        yield f"environment: {before['environment']!r} -> {now['environment']!r}"
        return  # nothing else can be compared
    pairs = [(f"env.{name}", before["options"], now["options"], name) for name in now["options"]]
    pairs = [pair for pair in pairs if pair[3] not in _PLACES]
    files = sorted(set(before["manifest"][split]) | set(now["manifest"][split]))
    pairs += [(f"data {name}", before["manifest"][split], now["manifest"][split], name) for name in files]
    pairs += [(f"all tasks of {split}", before["all_tasks"], now["all_tasks"], split)]
    pairs += [(f"tasks of the set in {split}", before["tasks"], now["tasks"], split)]
    for text, old, new, name in pairs:
        if old.get(name) != new.get(name):
            yield f"{text}: {old.get(name)!r} -> {new.get(name)!r}"
