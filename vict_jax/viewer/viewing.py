"""What the page asks for, as plain JSON values: the one place that the server and the export share."""

from __future__ import annotations

import collections
import dataclasses
import pathlib
import threading
from collections.abc import Iterable
from typing import Any

import numpy as np

from vict_jax.viewer import index, log, methods, record, words

# Updates whose tables are kept in memory, and computed advantages of a method on an update.
_UPDATES_KEPT, _METHODS_KEPT = 8, 32


class UnknownPlaceError(Exception):
    """There is no such update, group or rollout; the message says so."""


class Viewing:
    """A run directory, with what was read of it and computed from it. Safe to share between threads.

    Nothing is written to the directory.
    """

    def __init__(self, workdir: pathlib.Path):
        self.workdir = workdir
        self.workshop = methods.Workshop()
        self._lock = threading.RLock()
        self._summaries: dict[int, index.UpdateSummary] = {}
        self._updates: collections.OrderedDict[Any, record.UpdateLog] = collections.OrderedDict()
        self._advantages: collections.OrderedDict[Any, np.ndarray] = collections.OrderedDict()

    def close(self) -> None:
        """End the process that computes methods."""
        self.workshop.close()

    def overview(self) -> dict[str, Any]:
        """All rollouts, after a look for new or changed files."""
        with self._lock:
            self._summaries = index.refresh(self.workdir, self._summaries)
            found = index.to_json(self._summaries)
        settings, problems = self._settings()
        return {
            **found,
            "workdir": str(self.workdir),
            "method": None if settings is None else settings["method"],
            "labels": words.labels(),
            "problems": [dataclasses.asdict(problem) for problem in problems] + found["problems"],
        }

    def rollout(self, update: int, g: int, n: int) -> dict[str, Any]:
        """`record.rollout_record` of a rollout of the index."""
        self.check(update, g, n)
        settings, _ = self._settings()
        return record.rollout_record(self._update(update), g, n, settings)

    def group(self, update: int, g: int) -> dict[str, Any]:
        """`record.group_record` of a group of the index."""
        size = self.check(update, g)
        return record.group_record(self._update(update), g, size)

    def search(self, text: str, update: int | None) -> dict[str, Any]:
        """Rollouts with a text in their task, actions or observations; in all updates if None."""
        with self._lock:
            known = list(self._summaries)
        chosen = known if update is None else [update] if update in known else []
        found, problems = index.search(self.workdir, chosen, text) if text else ([], [])
        return {"found": found, "problems": [dataclasses.asdict(problem) for problem in problems]}

    def methods(self, update: int) -> list[dict[str, str]]:
        """`methods.available`."""
        self.check(update)
        return self.workshop.run(methods.available, self.workdir, update)

    def advantages(self, update: int, g: int, n: int, names: Iterable[str]) -> dict[str, list[float | None]]:
        """Advantages of each step of a rollout by each method."""
        self.check(update, g, n)
        steps = len(record.rows_of(self._update(update).steps, g, n))
        computed = self._computed(update, tuple(names))
        return {
            name: [index.finite(float(value)) for value in values[g, n, :steps]]
            for name, values in computed.items()
        }

    def observed(self, update: int, g: int, n: int) -> list[tuple[int, int, str]]:
        """`methods.observed`."""
        self.check(update, g, n)
        return self.workshop.run(methods.observed, self.workdir, update, g, n)

    def _settings(self) -> tuple[dict[str, Any] | None, list[log.Problem]]:
        problems: list[log.Problem] = []
        path = pathlib.PurePosixPath("config.json")
        return index.attempt(lambda: log.read_settings(self.workdir), problems, log.NO_UPDATE, path), problems

    def summary(self, update: int) -> index.UpdateSummary:
        """The rows of one update. Raises UnknownPlaceError."""
        with self._lock:
            if update not in self._summaries:
                self._summaries = index.refresh(self.workdir, self._summaries)
            summary = self._summaries.get(update)
        if summary is None:
            raise UnknownPlaceError(f"there is no update {update} in {self.workdir}")
        return summary

    def check(self, update: int, g: int = 0, n: int = 0) -> int:
        """The size of the groups of an update. Raises UnknownPlaceError if it has no such rollout."""
        summary = self.summary(update)
        groups = summary.columns["group"][-1] + 1 if summary.columns["group"] else 0
        size = summary.columns["rollout"][-1] + 1 if groups else 0
        if not (0 <= g < max(groups, 1) and 0 <= n < max(size, 1)):
            raise UnknownPlaceError(
                f"there is no rollout {g}/{n} in update {update}: it has {groups} groups of {size}"
            )
        return size

    def _update(self, update: int) -> record.UpdateLog:
        key = (update, index.signature(self.workdir, update))
        with self._lock:
            known = self._updates.get(key)
        if known is None:
            known = record.read_update(self.workdir, update)
        with self._lock:
            _keep(self._updates, key, known, _UPDATES_KEPT)
        return known

    def _computed(self, update: int, names: tuple[str, ...]) -> dict[str, np.ndarray]:
        now = index.signature(self.workdir, update)
        with self._lock:
            known = {name: self._advantages.get((update, now, name)) for name in names}
        if lacking := tuple(name for name, values in known.items() if values is None):
            known |= self.workshop.run(methods.advantages, self.workdir, update, lacking)
        found = {name: values for name, values in known.items() if values is not None}
        with self._lock:
            for name, values in found.items():
                _keep(self._advantages, (update, now, name), values, _METHODS_KEPT)
        return found


def _keep(cache: collections.OrderedDict[Any, Any], key: Any, value: Any, most: int) -> None:
    """Put a value last, and drop the first ones beyond `most`."""
    cache[key] = value
    cache.move_to_end(key)
    while len(cache) > most:
        cache.popitem(last=False)
