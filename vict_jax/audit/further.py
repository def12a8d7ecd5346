"""The audits that look at the rollouts once more, whether they come from a run or are fresh."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import tqdm

from vict_jax.audit import contrast
from vict_jax.audit.interventions import Play, intervene
from vict_jax.audit.source import Batch, Setting


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments that ask for them."""
    group = parser.add_argument_group("further audits, of the rollouts of --workdir or --env")
    group.add_argument(
        "--interventions",
        type=int,
        default=0,
        metavar="N",
        help="replay up to N corrected rollouts with single actions taken out (deterministic environments)",
    )
    group.add_argument(
        "--controls", action="store_true", help="every credit method on the rollouts of the last update"
    )
    group.add_argument(
        "--sweep",
        action="store_true",
        help=f"other credit options on up to {contrast.SWEEP_UPDATES} updates; a minute or two of compiling",
    )


def check_arguments(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """End the program with a message if a number is out of range."""
    if args.interventions < 0:
        parser.error(f"--interventions {args.interventions} must not be negative")


def further(
    args: argparse.Namespace, setting: Setting, batches: Sequence[Batch], plays: Iterable[Play]
) -> dict[str, Any]:
    """Do what was asked for: prints tables, returns the same as JSON values.

    Args:
      plays: rollouts with corrections that can be replayed.
    """
    report: dict[str, Any] = {}
    if args.controls:
        rows = contrast.controls(setting, batches[-1])
        print(f"Credit methods on update {batches[-1].update}\n{contrast.text(rows, unproved=True)}\n")
        report["controls"] = [row.to_json() for row in rows]
    if args.sweep:
        report["sweep"] = _sweep(setting, batches)
    if args.interventions:
        report["interventions"] = _interventions(args, setting, plays)
    return report


def _sweep(setting: Setting, batches: Sequence[Batch]) -> list[dict[str, Any]]:
    chosen = contrast.spread(batches, contrast.SWEEP_UPDATES)
    variants = len(list(contrast.variants(setting.options)))
    with tqdm.tqdm(total=variants, desc="sweep", unit="setting", disable=None) as bar:
        rows = contrast.sweep(setting, chosen, progress=bar.update)
    names = ", ".join(str(batch.update) for batch in chosen)
    print(f"Sweep around the options, on updates {names}\n{contrast.text(rows, unproved=False)}\n")
    return [row.to_json() for row in rows]


def _interventions(args: argparse.Namespace, setting: Setting, plays: Iterable[Play]) -> dict[str, Any]:
    chosen = list(itertools.islice(plays, args.interventions))
    with tqdm.tqdm(total=len(chosen), desc="interventions", unit="rollout", disable=None) as bar:
        result = intervene(setting, chosen, seed=args.seed, progress=bar.update)
    print(f"Interventions\n{result.text()}\n")
    return result.to_json()
