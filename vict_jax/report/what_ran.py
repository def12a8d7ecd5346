"""What ran: the config beside its defaults, how to run it again, data, versions and devices."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from envs.lookup import LookupFailure
from vict_jax.config import RESUME_MAY_CHANGE, default_config
from vict_jax.report.groups import Group, as_json, differences
from vict_jax.report.read import Record, flat
from vict_jax.report.tables import NONE, Cell, Table


@dataclasses.dataclass(frozen=True)
class Setting:
    """One value of a config. `default`: as text; empty if there is none that is known."""

    key: str
    value: str
    default: str
    changed: bool


@dataclasses.dataclass(frozen=True)
class Ran:
    """What is said of one run.

    Attributes:
      note: why defaults are not known; empty if they are.
      again: the command that runs it again; empty if its config is not known.
    """

    record: Record
    settings: Sequence[Setting]
    note: str
    again: str
    tasks: Table
    data: Table
    versions: Table
    state: Table


def what_ran(record: Record) -> Ran:
    """Everything about one run that is not a figure of it."""
    defaults, note = _defaults(record)
    return Ran(
        record=record,
        settings=_settings(record, defaults),
        note=note,
        again=_again(record),
        tasks=_tasks(record.about),
        data=_data(record.about),
        versions=_versions(record.about),
        state=_state(record),
    )


def _defaults(record: Record) -> tuple[Mapping[str, Any], str]:
    """Defaults for the run's environment, by dotted key as JSON has them, or why they are not known."""
    name = record.setting("env", "name")
    if not isinstance(name, str):
        return {}, "The environment is not known, so values are not compared with their defaults."
    try:
        defaults = default_config(name)
    except LookupFailure as error:
        return {}, f"Values are not compared with their defaults: {error}"
    return flat(json.loads(json.dumps(defaults.to_dict()))), ""


def _settings(record: Record, defaults: Mapping[str, Any]) -> list[Setting]:
    return [
        Setting(
            key=key,
            value=as_json(value),
            default=as_json(defaults[key]) if key in defaults else "",
            changed=bool(defaults) and (key not in defaults or defaults[key] != value),
        )
        for key, value in flat(record.config).items()
    ]


def _again(record: Record) -> str:
    """Command with the run's own config, into another directory."""
    if not record.config:
        return ""
    where = str(record.path)
    return shlex.join(
        [
            *("python", "-m", "launch.local", f"--config=configs/again.py:{where}"),
            f"--workdir={where.rstrip('/')}-again",
        ]
    )


def _entries(about: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = about.get(name)
    return value if isinstance(value, Mapping) else {}


def _tasks(about: Mapping[str, Any]) -> Table:
    rows: list[list[Cell]] = []
    for split, value in _entries(about, "tasks").items():
        known = value if isinstance(value, Mapping) else {}
        rows.append([split, str(known.get("count", NONE)), str(known.get("sha256", NONE))])
    return Table(["split", "tasks", "SHA-256 of ids, types and seeds"], rows, "lrl")


def _data(about: Mapping[str, Any]) -> Table:
    rows = [[name, str(value)] for name, value in _entries(about, "data").items()]
    return Table(["file or source", "checksum or version"], rows, "ll")


def _versions(about: Mapping[str, Any]) -> Table:
    rows: list[list[Cell]] = [[name, str(value)] for name, value in _entries(about, "versions").items()]
    devices = about.get("devices")
    if isinstance(devices, list):
        rows.append(["devices", f"{len(devices)}: {', '.join(map(str, devices))}"])
    return Table(["what", "version"], rows, "ll")


def _state(record: Record) -> Table:
    kept = ", ".join(map(str, record.checkpoints)) or "none"
    logged = record.logged
    log = f"{len(logged)} updates, {logged[0]} to {logged[-1]}" if logged else "none"
    planned = record.setting("train", "updates")
    rows: list[list[Cell]] = [
        ["directory", str(record.path)],
        ["updates", f"{record.updates} of {NONE if planned is None else planned}"],
        ["checkpoints after updates", kept],
        ["proof log", log],
        ["rows of metrics", ", ".join(f"{kind} {len(rows)}" for kind, rows in record.rows.items()) or "none"],
    ]
    return Table(["what", "there is"], rows, "ll")


def differing(groups: Sequence[Group]) -> Table | None:
    """The keys in which the groups differ, one column a group; None for fewer than two groups."""
    if len(groups) < 2:
        return None
    found = differences([group.records for group in groups])
    rows: list[list[Cell]] = [[key, *values] for key, values in found.items()]
    return Table(["key", *(group.letter for group in groups)], rows, "l" * (len(groups) + 1))


def members(groups: Sequence[Group]) -> Table:
    """Which directory is in which group, and what beside the seed may differ inside one."""
    rows: list[list[Cell]] = [
        [group.letter or NONE, str(record.path), str(record.config.get("seed", NONE)), _free(record)]
        for group in groups
        for record in group.records
    ]
    return Table(["group", "directory", "seed", "no result depends on"], rows, "llrl")


def _free(record: Record) -> str:
    values = flat(record.config)
    return ", ".join(f"{key}={as_json(values[key])}" for key in RESUME_MAY_CHANGE if key in values)
