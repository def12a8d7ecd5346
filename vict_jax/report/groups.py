"""Which run directories are seeds of one config, and which are to be compared; their curves."""

from __future__ import annotations

import dataclasses
import json
import string
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vict_jax.config import RESUME_MAY_CHANGE
from vict_jax.report.read import Record, Row, flat, is_number

SEED = "seed"
_MOST_KEYS, _LONGEST = 2, 40


@dataclasses.dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but the seed (and in what no result depends on).

    Attributes:
      letter: names it in figures and tables; empty if there is one group only.
      label: the letter and what tells it from the others, for a legend.
    """

    letter: str
    label: str
    records: Sequence[Record]

    @property
    def name(self) -> str:
        """The directories."""
        return ", ".join(str(record.path) for record in self.records)


@dataclasses.dataclass(frozen=True)
class Curve:
    """One figure over the updates that every run of a group has.

    Attributes:
      updates: i64[U], rising. values: f64[S, U], one row a run.
    """

    updates: np.ndarray
    values: np.ndarray

    def __bool__(self) -> bool:
        return len(self.updates) > 0

    @property
    def mean(self) -> np.ndarray:
        """f64[U], mean over the runs."""
        return self.values.mean(axis=0)

    @property
    def std(self) -> np.ndarray | None:
        """f64[U], sample standard deviation over the runs; None for fewer than two."""
        return self.values.std(axis=0, ddof=1) if len(self.values) > 1 else None


def points(rows: Sequence[Row], name: str) -> dict[int, float]:
    """Update -> value, where there is a finite one."""
    return {row["update"]: float(row[name]) for row in rows if is_number(row.get(name))}


def curve(group: Group, kind: str, name: str) -> Curve:
    """A figure of a group; empty if some run has no value of it."""
    return common([points(record.of_kind(kind), name) for record in group.records])


def common(runs: Sequence[Mapping[int, float]]) -> Curve:
    """The curve over the updates that all of `runs` (update -> value) have."""
    updates = sorted(set.intersection(*(set(run) for run in runs))) if runs else []
    values = [[run[update] for update in updates] for run in runs]
    return Curve(np.array(updates, np.int64), np.array(values, np.float64))


def comparable(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config's values that make a run another one, by dotted key."""
    return {key: v for key, v in flat(config).items() if key != SEED and key not in RESUME_MAY_CHANGE}


def grouped(records: Sequence[Record]) -> list[Group]:
    """Runs of equal configs together, in the order in which they first occur.

    A run whose config cannot be read is a group of its own.
    """
    keys = [
        json.dumps(comparable(record.config), sort_keys=True) if record.config else f"unreadable {number}"
        for number, record in enumerate(records)
    ]
    together = [[r for r, k in zip(records, keys, strict=True) if k == key] for key in dict.fromkeys(keys)]
    if len(together) == 1:
        return [Group("", _directories(together[0]), together[0])]
    differing = differences(together)
    letters = _letters(len(together))
    return [
        Group(letter, f"{letter}: {_told(some, number, differing)}", some)
        for number, (letter, some) in enumerate(zip(letters, together, strict=True))
    ]


def _letters(count: int) -> list[str]:
    """A, B, ..., Z, A1, B1, ..."""
    letters = string.ascii_uppercase
    return [letters[i % 26] + (str(i // 26) if i >= 26 else "") for i in range(count)]


def differences(together: Sequence[Sequence[Record]]) -> dict[str, list[str]]:
    """Dotted keys in which the groups' configs differ -> the value in each, "-" where it is not there."""
    configs = [comparable(records[0].config) for records in together]
    keys = sorted({key for config in configs for key in config})
    shown = {key: [as_json(config[key]) if key in config else "-" for config in configs] for key in keys}
    return {key: values for key, values in shown.items() if len(set(values)) > 1}


def as_json(value: Any) -> str:
    """A config value as text."""
    return json.dumps(value, ensure_ascii=False)


def _told(records: Sequence[Record], number: int, differing: Mapping[str, Sequence[str]]) -> str:
    """What tells a group from the others: its directories, and the first keys in which all differ."""
    seeds = f", {len(records)} seeds" if len(records) > 1 else ""
    if not 0 < len(differing) <= _MOST_KEYS or not records[0].config:
        return f"{_directories(records)}{seeds}"
    parts = [f"{key.split('.')[-1]} {values[number].strip(chr(34))}" for key, values in differing.items()]
    return _short(", ".join(parts)) + seeds


def _directories(records: Sequence[Record]) -> str:
    names = [record.path.resolve().name for record in records]
    return _short(names[0]) if len(names) == 1 else _short(f"{names[0]} ... {names[-1]}")


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
