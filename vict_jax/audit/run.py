"""`--workdir DIR`: what the credit of a run did, and whether its log replays bit for bit."""

from __future__ import annotations

import argparse
import pathlib
import random
import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import tqdm

from envs.base import Task
from envs.lookup import environment
from vict_jax import proofs
from vict_jax.audit import figures
from vict_jax.audit.cores import compare_cores
from vict_jax.audit.further import further
from vict_jax.audit.interventions import Play
from vict_jax.audit.replay import Replay, compare
from vict_jax.audit.source import Batch, Setting, credit
from vict_jax.config import RunConfig
from vict_jax.metrics import RunError, read_config, read_metrics, write_json

# Differences printed one by one; the rest is only counted.
_SHOWN = 20
_NOT_LOGGED = {"mutation_conformance": "not logged", "credit_share": "not logged"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments that choose what of a run is audited."""
    group = parser.add_argument_group("a run")
    group.add_argument("--updates", metavar="A:B", help="updates A to B of the log; all if left out")


def main(args: argparse.Namespace) -> int:
    """Run the command; returns its exit code.

    Raises:
      RunError: the directory holds no run or not those updates, or a logged file is damaged.
    """
    config = read_config(args.workdir)
    domain, _ = environment(config.env.name)
    setting = Setting(domain, config.env.options, config.credit.method, config.credit.options)
    updates = choose(proofs.logged_updates(args.workdir), args.updates)
    total, replay, violations, batches = figures.EMPTY, Replay(), 0, []
    for update in tqdm.tqdm(updates, desc="replay", unit="update", disable=None):
        batch = Batch(update, proofs.read_inputs(args.workdir, update))
        output, wrong = credit(setting, batch.inputs)
        replay, violations = replay + compare(args.workdir, update, output), violations + wrong
        total += figures.tally(batch.inputs, output)
        batches.append(batch)
    cores = compare_cores(setting, batches)
    values = figures.figures(total) | logged_figures(args.workdir, updates) | cores.figures()
    print(f"{args.workdir}: credit method {setting.method}, updates {updates[0]} to {updates[-1]}")
    print(f"{figures.text(values, _NOT_LOGGED)}\n\nCores\n{cores.text()}\n\n{replay.text(_SHOWN)}\n")
    report = {
        "updates": updates,
        "method": setting.method,
        "counts": dict(total.wholes),
        "figures": figures.to_json(values),
        "replay": replay.to_json(),
        "unproved_corrections": violations,
        "cores": cores.to_json(),
        **further(args, setting, batches, corrected_plays(args.workdir, config, updates, seed=args.seed)),
    }
    if args.json is not None:
        write_json(args.json, report)
    if violations:
        print(f"FAILED {violations} corrections without a proof (Eq. 8)")
    return 1 if replay.differing or violations else 0


def choose(logged: Sequence[int], text: str | None) -> list[int]:
    """The logged updates from A to B of `A:B`, either of which may be missing; all if None.

    Raises:
      RunError: there are none.
      ValueError: the text is no such range.
    """
    if text is not None and not (match := re.fullmatch(r"(\d*):(\d*)", text)):
        raise ValueError(f"--updates {text!r} must look like A:B, with A or B left out for no bound")
    first, last = (match[1], match[2]) if text is not None and match else ("", "")
    chosen = [u for u in logged if (not first or u >= int(first)) and (not last or u <= int(last))]
    if not chosen:
        there = f"updates {logged[0]} to {logged[-1]} are logged" if logged else "no update is logged"
        raise RunError(f"there is nothing to audit{f' in --updates {text}' if text else ''}: {there}")
    return chosen


def logged_figures(workdir: pathlib.Path, updates: Sequence[int]) -> dict[str, float | None]:
    """Figures that only the metrics of the run hold: mutation conformance, and credit's share of the time."""
    chosen = set(updates)
    rows = read_metrics(workdir)
    train = [row for row in rows if row["kind"] == "train" and row["update"] in chosen]
    seconds = sum(value for row in train for name, value in row.items() if name.startswith("seconds/"))
    credit_seconds = sum(row["seconds/credit"] for row in train)
    checks = [
        row
        for row in rows
        if row["kind"] == "conformance" and row["update"] <= updates[-1] and row["departures"]
    ]
    departures = sum(row["departures"] for row in checks)
    agreeing = sum(row["mutation"] * row["departures"] for row in checks)
    return {
        "mutation_conformance": agreeing / departures if departures else None,
        "credit_share": credit_seconds / seconds if seconds else None,
    }


def corrected_plays(
    workdir: pathlib.Path, config: RunConfig, updates: Sequence[int], *, seed: int
) -> Iterator[Play]:
    """The logged rollouts with a correction, in a random order that visits no update twice before all once.

    Raises:
      RunError: a logged task is no longer among those of the run's split.
    """
    domain, _ = environment(config.env.name)
    tasks = {task.id: task for task in domain.tasks(config.env.options, config.train.split)}
    rng = random.Random(seed)
    waiting = [_shuffled(workdir, update, tasks, rng) for update in rng.sample(updates, len(updates))]
    while waiting:
        started = [(plays, next(plays, None)) for plays in waiting]
        yield from (play for _, play in started if play is not None)
        waiting = [plays for plays, play in started if play is not None]


def _shuffled(
    workdir: pathlib.Path, update: int, tasks: Mapping[str, Task], rng: random.Random
) -> Iterator[Play]:
    plays = list(_plays(workdir, update, tasks))
    yield from rng.sample(plays, len(plays))


def _plays(workdir: pathlib.Path, update: int, tasks: Mapping[str, Task]) -> Iterator[Play]:
    columns = ["group", "rollout", "task_id", "score", "action", "taken", "correction"]
    table = proofs.read_table(workdir, "rollouts", update, columns)
    places = np.array([table["group"], table["rollout"]]).T
    starts = np.flatnonzero(np.diff(places, axis=0, prepend=-1).any(axis=1))
    for start, end in zip(starts, [*starts[1:], len(places)], strict=True):
        correction = np.array(table["correction"][start:end], np.float32)
        if not correction.any():
            continue
        name = table["task_id"][start]
        if name not in tasks:
            raise RunError(f"task {name!r} of update {update} is not among the tasks of the run any more")
        yield Play(
            name=f"update {update}, {places[start][0]}/{places[start][1]}",
            task=tasks[name],
            actions=tuple(table["action"][start:end]),
            taken=np.array(table["taken"][start:end]),
            score=table["score"][start],
            correction=correction,
        )
