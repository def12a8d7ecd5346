"""Write a data set.

    python -m vict_jax.datasets --workdir=runs/quickstart --out=DIR               logged rollouts, as RLDS
    python -m vict_jax.datasets --env=alfworld --split=train --out=DIR            a task set
    python -m vict_jax.datasets --env=webshop --ids=chosen.txt --out=DIR          some tasks in an order

It is written to DIR/episodes or DIR/task_set, whole or not at all; see docs/data.md.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import tqdm

from envs.lookup import environment
from vict_jax import proofs
from vict_jax.audit.environment import read_options
from vict_jax.audit.run import choose
from vict_jax.config import build
from vict_jax.datasets import log, storage, tasks
from vict_jax.datasets.episodes import Episodes
from vict_jax.metrics import RunError, disk_full_is_clear, read_config


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line; see the module."""
    parser = argparse.ArgumentParser(
        prog="python -m vict_jax.datasets", description=__doc__.split("\n", 1)[0]
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--workdir", type=pathlib.Path, help="directory of a run: its logged rollouts")
    what.add_argument("--env", metavar="NAME", help="an environment: its tasks")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="where to write; created")
    parser.add_argument("--updates", metavar="A:B", help="with --workdir: updates A to B; all if left out")
    parser.add_argument("--split", action="append", help="with --env: may repeat; every split if left out")
    parser.add_argument("--ids", type=pathlib.Path, help="with --env: file of task ids, one a line")
    parser.add_argument("--data-dir", default="", help="with --env: real tasks; generated ones without it")
    parser.add_argument(
        "--option", action="append", default=[], metavar="KEY=VALUE", help="with --env: environment option"
    )
    args = parser.parse_args(argv)
    chosen, unread = ("workdir", "split ids data_dir option") if args.workdir else ("env", "updates")
    for name in unread.split():
        if vars(args)[name] != parser.get_default(name):
            parser.error(f"--{name.replace('_', '-')} has no effect with --{chosen}; leave it out")
    return args


def write_episodes(args: argparse.Namespace) -> pathlib.Path:
    """Write the logged rollouts of a run; returns the directory of the data set.

    Raises:
      RunError: there is no run or no such update, the log is damaged, or the disk is full.
      FileExistsError: --out has episodes already.
    """
    config = read_config(args.workdir, flag="--workdir=")
    updates = choose(proofs.logged_updates(args.workdir), args.updates)
    with tqdm.tqdm(total=len(updates), desc="updates", unit="update", disable=None) as bar:
        builder = Episodes(
            data_dir=args.out,
            episodes=log.logged_episodes(args.workdir, updates),
            metadata=log.provenance(args.workdir, config),
            progress=lambda episode: bar.update(updates.index(episode.update) - bar.n),
        )
        with disk_full_is_clear(args.out):
            folder = storage.write(builder)
        bar.update(len(updates) - bar.n)
    return folder


def write_tasks(args: argparse.Namespace) -> pathlib.Path:
    """Write the tasks of an environment; returns the directory of the data set.

    Raises:
      ValueError: an option, a split or an id is wrong, or there is no task.
      RunError: the disk is full.
      FileExistsError: --out has a task set already.
    """
    domain, options_class = environment(args.env)
    values = read_options("--option", args.option) | ({"data_dir": args.data_dir} if args.data_dir else {})
    options: Any = build(options_class, values, "env.")
    ids = None if args.ids is None else [line for line in args.ids.read_text().splitlines() if line]
    splits = tasks.select(domain, options, args.split or domain.splits, ids)
    if not splits:
        raise ValueError(f"--env {args.env} has no such task: nothing to write")
    total = sum(len(some) for some in splits.values())
    with tqdm.tqdm(total=total, desc="tasks", unit="task", disable=None) as bar:
        builder = tasks.TaskSet(
            data_dir=args.out,
            splits=splits,
            metadata=tasks.provenance(args.env, domain, options, splits),
            progress=bar.update,
        )
        with disk_full_is_clear(args.out):
            return storage.write(builder)


def main(argv: Sequence[str] | None = None) -> None:
    """Write the data set and say where."""
    args = parse_args(argv)
    folder = write_episodes(args) if args.workdir else write_tasks(args)
    print(f"written to {folder}")


if __name__ == "__main__":
    try:
        main()
    except (ValueError, OSError, RunError) as error:
        sys.exit(f"error: {error}")
