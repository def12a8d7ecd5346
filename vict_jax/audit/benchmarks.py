"""`--benchmarks`: the built-in environments one after the other, and their figures side by side.

Beside each figure stands what the paper reports for that benchmark (VICT, arXiv 2608.28128, table 5 and
appendix E). Its figures are of a policy in training, these of an expert with random actions in between, so
coverage and abstention are for orientation; atoms and conformance can be compared.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from vict_jax.audit import environment
from vict_jax.audit.figures import PAPER_OF, show
from vict_jax.audit.text import table
from vict_jax.metrics import write_json


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """A column of the table.

    Attributes:
      env, options: the environment. split: its evaluation split.
    """

    env: str
    options: Mapping[str, Any]
    split: str


BENCHMARKS: Mapping[str, Benchmark] = {
    "ALFWorld": Benchmark("alfworld", {}, "valid_unseen"),
    "WebShop": Benchmark("webshop", {}, "test"),
    "tau-bench retail": Benchmark("tau_bench", {"domain": "retail"}, "test"),
    "tau-bench airline": Benchmark("tau_bench", {"domain": "airline"}, "test"),
    "search QA": Benchmark("search_qa", {}, "valid"),
}
# Figures of the table, with their meaning. Shares but for the last.
_ROWS = {
    "reconstruction": "F = V on the rollouts",
    "mutation_conformance": "F = V on edits and mutations",
    "proof_coverage": "non-zero marginals with an edge",
    "abstention": "rollouts without credit",
    "trigger": "rollouts with a correction",
    "usable_atoms": "usable atoms of a rollout",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where the real data are."""
    group = parser.add_argument_group("all benchmarks")
    group.add_argument(
        "--data",
        action="append",
        default=[],
        metavar="ENV=DIR",
        help="with --benchmarks: real data of an environment; generated tasks without it",
    )


def main(args: argparse.Namespace) -> int:
    """Audit each benchmark, print the table; returns the exit code.

    Raises:
      ValueError: `--data` names no environment of the table, or an environment refuses its data.
    """
    folders = environment.read_options("--data", args.data)
    known = sorted({benchmark.env for benchmark in BENCHMARKS.values()})
    if unknown := sorted(set(folders) - set(known)):
        raise ValueError(f"--data {unknown[0]!r} is not one of the environments {known}")
    results: dict[str, Any] = {}
    passed = True
    for name, benchmark in BENCHMARKS.items():
        chosen = copy.copy(args)
        chosen.split = [benchmark.split]
        data = {"data_dir": str(folders[benchmark.env])} if benchmark.env in folders else {}
        sound, results[name] = environment.audit(chosen, benchmark.env, {**benchmark.options, **data})
        passed = passed and sound
    print(side_by_side({name: figures_of(result) for name, result in results.items()}))
    if args.json is not None:
        write_json(args.json, results)
    return 0 if passed else 1


def figures_of(result: Mapping[str, Any]) -> dict[str, float | None]:
    """Figure by name of an environment's audit; none if it gave no credit."""
    return {name: figure["value"] for name, figure in result.get("figures", {}).items()}


def side_by_side(found: Mapping[str, Mapping[str, float | None]]) -> str:
    """The table: a line for each figure, ours and the paper's for each benchmark."""
    rows: list[Sequence[str]] = []
    for figure, meaning in _ROWS.items():
        cells = []
        for name, values in found.items():
            paper = PAPER_OF.get(name, {}).get(figure)
            beside = "" if paper is None else f" ({show(figure, paper)})"
            cells.append(f"{show(figure, values.get(figure))}{beside}")
        rows.append([figure, *cells, meaning])
    title = ["here (paper)", *found, "meaning"]
    return table(title, rows, align=f"l{'r' * len(found)}l")
