"""Golden results of the original engine, and how they write differences."""

from __future__ import annotations

import gzip
import json
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any

from envs.tau_bench import data
from envs.tau_bench.database import ABSENT, Change, Records, leaf_changes


def folder(shared_dir: pathlib.Path) -> pathlib.Path:
    return shared_dir / "data" / "tau_bench"


def benches(shared_dir: pathlib.Path) -> dict[str, data.Bench]:
    """Loaded once in a process: `data.load` remembers."""
    return {domain: data.load(str(folder(shared_dir)), domain) for domain in data.TABLES}


def rows(shared_dir: pathlib.Path, name: str) -> Iterator[dict[str, Any]]:
    with gzip.open(folder(shared_dir) / "golden" / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def logged(shared_dir: pathlib.Path) -> list[dict[str, Any]]:
    with gzip.open(folder(shared_dir) / "gpt-4o-airline.json.gz", "rt", encoding="utf-8") as file:
        return json.load(file)


def written(changes: Iterable[Change]) -> dict[str, tuple[str, str]]:
    """Changes by path, in the form of the golden files: values by `repr`, absent ones as a text."""
    return {json.dumps(path): (_value(old), _value(new)) for path, old, new in changes}


def _value(value: Any) -> str:
    return repr("<absent>" if str(value) == "<absent>" else value)


def differences(bench: data.Bench, left: Records, right: Records) -> tuple[Change, ...]:
    """Leaves in which two states over one base differ; (path, value in `left`, value in `right`)."""
    changes: list[Change] = []
    for table, key in {**left, **right}:
        original = bench.database[table].get(key, ABSENT)
        pair = left.get((table, key), original), right.get((table, key), original)
        changes.extend(leaf_changes(*pair, (table, key)))
    return tuple(changes)
