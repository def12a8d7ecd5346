"""`--check ENV`: everything that a verifier's author wants to know before a model is trained on it.

ENV is a Python file, the dotted name of a module, or a built-in environment. No model is needed. The report
has a section each for the contract, the protocol, conformance and mutations, eligibility, coverage, the
prompt, and size; every failure names the next step (docs/your_environment.md).
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import itertools
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

from envs.base import Domain, Task
from envs.lookup import BUILT_IN, LookupFailure, environment
from vict_jax.audit.contract import check_contract, check_protocol
from vict_jax.audit.environment import read_options
from vict_jax.audit.findings import Finding, Level, Section, UserCodeError, call
from vict_jax.audit.prompts import check_prompts
from vict_jax.audit.size import check_size, source_files
from vict_jax.audit.verifier import check_conformance, check_coverage, check_eligibility
from vict_jax.audit.watch import watch
from vict_jax.config import build
from vict_jax.metrics import write_json

# Tasks of each split that are played if --tasks is left out.
_TASKS = 16
_FIX = "correct it; the other sections are checked when this one passes"


def main(args: argparse.Namespace) -> int:
    """Check an environment, print the report, and return the exit code."""
    sections = check(
        args.check,
        values=read_options("--option", args.option) | ({"data_dir": args.data_dir} if args.data_dir else {}),
        splits=args.split,
        tasks=_TASKS if args.tasks is None else args.tasks,
        rollouts=args.plays,
        seed=args.seed,
    )
    for section in sections:
        print(f"{section.table()}\n")
    failed = [section.title for section in sections if section.failed]
    print(f"{args.check}: {'FAILED (' + ', '.join(failed) + ')' if failed else 'passed'}")
    if args.json is not None:
        report = {section.title: section.to_json() for section in sections}
        write_json(args.json, {"environment": args.check, "passed": not failed, "sections": report})
    return 1 if failed else 0


def check(
    target: str,
    *,
    values: dict[str, Any],
    splits: Sequence[str] | None,
    tasks: int,
    rollouts: int,
    seed: int,
) -> list[Section]:
    """Check an environment; later sections are left out where an earlier one fails on which they build.

    Args:
      target: a Python file, a dotted module name, or a built-in name.
      values: options that differ from their defaults.
      splits: those to take tasks from; None for all.
      tasks: how many tasks of each split to play; the types take turns.
      rollouts: random, and edited, episodes of each task.

    Raises:
      ValueError: an unknown option or split.
    """
    try:
        name = import_name(target)
        domain, options_class = environment(name)
    except LookupFailure as failure:
        return [Section("contract", (Finding(Level.FAIL, failure.problem, failure.advice),))]
    options = build(options_class, values, "env.")
    for split in splits or ():
        if split not in domain.splits:
            raise ValueError(f"--split {split} is not one of {list(domain.splits)}")
    sections = [check_contract(domain, options)]
    chosen = [] if sections[0].failed else _sample(domain, options, splits or domain.splits, tasks)
    if chosen:
        sections.append(check_protocol(domain, options, chosen))
    if any(section.failed for section in sections):
        return sections
    return sections + _played(name, domain, options, chosen, rollouts, seed)


def _played(
    name: str, domain: Domain, options: Any, tasks: Sequence[Task], rollouts: int, seed: int
) -> list[Section]:
    """The sections that need episodes."""
    try:
        episodes = watch(domain, options, tasks, rollouts=rollouts, seed=seed)
    except UserCodeError as error:
        return [Section("play", (Finding(Level.FAIL, str(error), _FIX),))]
    checks: dict[str, Callable[[], Section]] = {
        "conformance": lambda: check_conformance(domain, episodes),
        "eligibility": lambda: check_eligibility(domain, episodes),
        "coverage": lambda: check_coverage(domain, options, episodes),
        "prompt": lambda: check_prompts(domain, options, episodes),
        "size": lambda: check_size(source_files(BUILT_IN.get(name, name), domain), episodes),
    }
    return [_guarded(title, section) for title, section in checks.items()]


def _guarded(title: str, section: Callable[[], Section]) -> Section:
    try:
        return section()
    except UserCodeError as error:
        return Section(title, (Finding(Level.FAIL, str(error), "correct it and check again"),))


def _sample(domain: Domain, options: Any, splits: Sequence[str], count: int) -> list[Task]:
    """`count` tasks of each split; the types take turns."""
    chosen: list[Task] = []
    for split in splits:
        by_type: dict[str, list[Task]] = {}
        for task in call(f"tasks(options, {split!r})", domain.tasks, options, split):
            by_type.setdefault(task.type, []).append(task)
        turns = itertools.zip_longest(*by_type.values())
        chosen += itertools.islice((task for turn in turns for task in turn if task is not None), count)
    return chosen


def import_name(target: str) -> str:
    """The module name of a Python file, which can be imported afterwards; any other text as it is.

    The file's folder goes to the front of the search path; of a file in a package, the folder that holds
    the package.

    Raises:
      LookupFailure: there is no such file, or another module already has its name.
    """
    if not target.endswith(".py"):
        return target
    path = pathlib.Path(target).resolve()
    if not path.is_file():
        raise LookupFailure(f"there is no file {target}", "give the path of the environment's Python file")
    folder, parts = path.parent, [path.stem]
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    first = path if len(parts) == 1 else folder / parts[0] / "__init__.py"
    spec = importlib.util.find_spec(parts[0])
    if spec is not None and spec.origin is not None and pathlib.Path(spec.origin).resolve() != first:
        raise LookupFailure(
            f"{target} cannot be imported as {parts[0]!r}: that name belongs to {spec.origin}",
            "rename the file" if len(parts) == 1 else "rename the package",
        )
    return ".".join(parts)
