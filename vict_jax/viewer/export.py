"""One page of chosen groups that works offline: everything that the server would answer, put into it."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

from vict_jax.viewer import index, log
from vict_jax.viewer.methods import UnavailableError
from vict_jax.viewer.page import page
from vict_jax.viewer.viewing import Viewing


def export(
    workdir: pathlib.Path,
    file: pathlib.Path,
    *,
    updates: Sequence[int] | None,
    groups: Sequence[int] | None,
    methods: Sequence[str],
    most_bytes: int,
) -> str:
    """Write the page. Returns a message that says what is in it and what was left out, and why.

    Args:
      updates: which; the last if None. groups: which of each update; all if None.
      methods: credit methods to compare with the one that is logged.
      most_bytes: groups are left out that would make the data larger.

    Raises:
      ValueError: an update, group or method does not exist, nothing fits, or the file cannot be written.
    """
    viewing = Viewing(workdir)
    try:
        data, left_out = collect(
            viewing, updates=updates, groups=groups, methods=methods, most_bytes=most_bytes
        )
    finally:
        viewing.close()
    html = page(f"Credit viewer: {workdir}", data=data).encode()
    partial = file.with_name(file.name + ".partial")
    partial.write_bytes(html)
    partial.replace(file)
    return "\n".join([f"written to {file} ({len(html) / 1e6:.1f} MB): {data['index']['note']}", *left_out])


def collect(
    viewing: Viewing,
    *,
    updates: Sequence[int] | None,
    groups: Sequence[int] | None,
    methods: Sequence[str],
    most_bytes: int,
) -> tuple[dict[str, Any], list[str]]:
    """The data of the page, and what was left out of it in words; see `export`."""
    known = viewing.overview()["updates"]
    if not known:
        raise ValueError(f"--workdir={viewing.workdir} has no logged update yet")
    chosen = sorted(set(updates)) if updates else known[-1:]
    if unknown := [update for update in chosen if update not in known]:
        raise ValueError(
            f"--update={unknown[0]}: logged are {known[0]} to {known[-1]} ({len(known)} updates)"
        )
    wanted = [(u, g) for u in chosen for g in _groups(viewing, u, groups)]
    data: dict[str, Any] = {"groups": {}, "rollouts": {}, "methods": []}
    data["methods"], left_out = _methods(viewing, chosen, methods)
    names = [method["name"] for method in data["methods"] if not method["why_not"]]
    kept, size = [], 0
    for update, g in wanted:
        group, rollouts = viewing.group(update, g), dict(_rollouts(viewing, update, g, names))
        size_now = len(json.dumps([group, rollouts]))
        if size + size_now > most_bytes:
            continue
        size += size_now
        kept.append((update, g))
        data["groups"][f"{update}/{g}"] = group
        data["rollouts"] |= rollouts
    if not kept:
        raise ValueError(
            f"--export_mb={most_bytes / 1e6:g} is too small for any of the {len(wanted)} groups; raise it"
        )
    note = f"exported: {len(data['rollouts'])} rollouts of {_places(kept)}"
    data["index"] = {**_index(viewing, kept), "note": note}
    return data, [*_left_out(known, chosen, wanted, kept, most_bytes), *left_out]


def _groups(viewing: Viewing, update: int, groups: Sequence[int] | None) -> list[int]:
    there = sorted(set(viewing.summary(update).columns["group"]))
    if groups is None:
        return there
    if unknown := [g for g in groups if g not in there]:
        raise ValueError(
            f"--group={unknown[0]}: update {update} has the {len(there)} groups {there[:1]} to ..."
        )
    return sorted(set(groups))


def _methods(
    viewing: Viewing, updates: Sequence[int], names: Sequence[str]
) -> tuple[list[dict[str, str]], list[str]]:
    """Each named method with why it is not possible on these updates, and the same in words."""
    try:
        tables = (
            [{one["name"]: one["why_not"] for one in viewing.methods(u)} for u in updates] if names else []
        )
    except UnavailableError as error:
        return [], [f"left out: other credit methods ({error})"]
    found = []
    for name in names:
        if unknown := [table for table in tables if name not in table]:
            raise ValueError(f"--methods: {name!r} is not one of {sorted(unknown[0])}")
        found.append({"name": name, "why_not": next((t[name] for t in tables if t[name]), "")})
    return found, [f"left out: {one['why_not']}" for one in found if one["why_not"]]


def _rollouts(
    viewing: Viewing, update: int, g: int, names: Sequence[str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    for n in range(viewing.check(update, g)):
        try:
            observed: Any = viewing.observed(update, g, n)
            advantages = viewing.advantages(update, g, n, names) if names else {}
        except UnavailableError:  # a damaged update: the record says which file
            observed, advantages = [], {}
        record = viewing.rollout(update, g, n)
        yield f"{update}/{g}/{n}", {"record": record, "observed": observed, "advantages": advantages}


def _index(viewing: Viewing, kept: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """The index of the groups that are kept."""
    summaries = {}
    for update in dict.fromkeys(update for update, _ in kept):
        summary = viewing.summary(update)
        rows = [i for i, g in enumerate(summary.columns["group"]) if (update, g) in kept]
        columns = {name: [values[i] for i in rows] for name, values in summary.columns.items()}
        summaries[update] = dataclasses.replace(summary, columns=columns)
    problems = [p for p in viewing.overview()["problems"] if p["update"] in (*summaries, log.NO_UPDATE)]
    return {**viewing.overview(), **index.to_json(summaries), "problems": problems}


def _places(kept: Sequence[tuple[int, int]]) -> str:
    updates = dict.fromkeys(update for update, _ in kept)
    some = ", ".join(map(str, list(updates)[:5])) + (", ..." if len(updates) > 5 else "")
    return f"{len(kept)} groups of update {some}"


def _left_out(
    known: Sequence[int],
    chosen: Sequence[int],
    wanted: Sequence[tuple[int, int]],
    kept: Sequence[tuple[int, int]],
    most_bytes: int,
) -> Iterator[str]:
    if len(known) > len(chosen):
        yield f"left out: {len(known) - len(chosen)} of {len(known)} updates; --update=U names others"
    if len(wanted) > len(kept):
        lost = ", ".join(f"{u}/{g}" for u, g in wanted if (u, g) not in kept)
        yield (
            f"left out: {len(wanted) - len(kept)} of {len(wanted)} groups (update/group {lost}), which "
            f"would have made the data larger than --export_mb={most_bytes / 1e6:g}; choose "
            "with --group, or raise it"
        )
