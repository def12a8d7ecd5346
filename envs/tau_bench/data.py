"""Data of one tau-bench domain: database, task lists, policy and tool schemas, and their JSON files.

The files of a data directory, for a domain `D`: one `D_<table>.json` for each table, `D_tasks_<split>.json`,
`D_wiki.md` (the policy), `D_rules.json` and `D_tools.json`. `envs.tau_bench.importer` writes them.
Source: tau-bench (arXiv 2406.12045); the records and lists are those of its repository.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import pathlib
from collections.abc import Mapping
from typing import Any

# Table names in the order of the original; every record is reached by table and id.
TABLES: Mapping[str, tuple[str, ...]] = {
    "retail": ("orders", "products", "users"),
    "airline": ("flights", "reservations", "users"),
}
SPLITS = ("train", "dev", "test")
# Name of the action that says something to the customer; its argument is `content`.
RESPOND = "respond"


@dataclasses.dataclass(frozen=True, eq=False)
class Call:
    """One call of a tool: its name and keyword arguments (JSON values). Nobody changes `kwargs`."""

    name: str
    kwargs: Mapping[str, Any]


@dataclasses.dataclass(frozen=True, eq=False)
class TaskSpec:
    """One task: who calls and why, the ground-truth calls, and what the agent has to say.

    Attributes:
      user_id: id of the customer in the users table.
      instruction: what the customer wants, for the simulated customer only.
      actions: ground-truth calls, in order.
      outputs: texts that the agent's replies must contain; often empty.
    """

    user_id: str
    instruction: str
    actions: tuple[Call, ...]
    outputs: tuple[str, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Bench:
    """Everything of one domain. Shared by all its sessions, and so never changed.

    Attributes:
      domain: `retail` or `airline`.
      database: table -> record id -> record (JSON values).
      tasks: split -> tasks in the original order.
      policy: the agent's system prompt.
      rules: short rules that the original loads and its agent never shows; may be empty.
      tools: function schemas in the original order.
    """

    domain: str
    database: dict[str, dict[str, Any]]
    tasks: dict[str, list[TaskSpec]]
    policy: str
    rules: list[str]
    tools: list[dict[str, Any]]

    def __post_init__(self) -> None:
        _check_domain(self.domain)
        expected = TABLES[self.domain]
        if tuple(sorted(self.database)) != expected:
            raise ValueError(
                f"database of {self.domain} has tables {sorted(self.database)}, expected {list(expected)}"
            )


def _check_domain(domain: str) -> None:
    if domain not in TABLES:
        raise ValueError(f"domain is {domain!r}, allowed are {sorted(TABLES)}")


def task_from_json(row: Mapping[str, Any], where: str) -> TaskSpec:
    """One task from its JSON object, which messages call `where`; ValueError if a field is missing."""
    missing = [key for key in ("user_id", "instruction", "actions", "outputs") if key not in row]
    if missing:
        raise ValueError(f"{where} lacks {missing}")
    actions = tuple(Call(action["name"], action["kwargs"]) for action in row["actions"])
    return TaskSpec(row["user_id"], row["instruction"], actions, tuple(row["outputs"]))


def read_json(path: pathlib.Path) -> Any:
    """The content of a JSON file; ValueError with the path if it is missing or no JSON."""
    if not path.is_file():
        raise ValueError(f"{path} is missing: see envs.tau_bench.importer for how to make a data directory")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is no JSON file: {error}") from error


@functools.lru_cache(maxsize=8)
def load(directory: str | pathlib.Path, domain: str) -> Bench:
    """The domain's data from a directory; one shared object for each directory and domain of a process.

    Raises:
      ValueError: an unknown domain, a missing or unreadable file, or no task list at all.
    """
    _check_domain(domain)
    folder = pathlib.Path(directory)
    tasks = {}
    for split in SPLITS:
        path = folder / f"{domain}_tasks_{split}.json"
        if path.is_file():
            tasks[split] = [task_from_json(row, f"{path} {i}") for i, row in enumerate(read_json(path))]
    if not tasks:
        raise ValueError(f"{folder} has no {domain}_tasks_<split>.json; splits: {list(SPLITS)}")
    policy = folder / f"{domain}_wiki.md"
    if not policy.is_file():
        raise ValueError(f"{policy} is missing: it holds the agent's policy")
    return Bench(
        domain=domain,
        database={table: read_json(folder / f"{domain}_{table}.json") for table in TABLES[domain]},
        tasks=tasks,
        policy=policy.read_text(encoding="utf-8"),
        rules=read_json(folder / f"{domain}_rules.json"),
        tools=read_json(folder / f"{domain}_tools.json"),
    )
