"""What an environment and its verifier interface cost to write."""

from __future__ import annotations

import ast
import inspect
import io
import pathlib
import sys
import tokenize
from collections import Counter
from collections.abc import Mapping, Sequence

from envs.base import Domain, ScoreRole
from vict_jax.audit.findings import Section, judged, share
from vict_jax.audit.watch import Episode

_LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
_LEVELS = {0: "state difference", 1: "verifier branch", 2: "evidence adapter"}


def code_lines(source: str) -> int:
    """Lines of Python with code on them: neither blank, nor comment, nor docstring."""
    lines = {
        line
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type not in _LAYOUT
        for line in range(token.start[0], token.end[0] + 1)
    }
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
            and ast.get_docstring(node) is not None
        ):
            docstring = node.body[0]
            lines -= set(range(docstring.lineno, (docstring.end_lineno or docstring.lineno) + 1))
    return len(lines)


def source_files(module: str, domain: Domain) -> dict[str, pathlib.Path]:
    """Files by module name: the environment's own, and those of its package that DOMAIN has functions of."""
    package, names = module.partition(".")[0], [module]
    found = [inspect.getmodule(value) for value in vars(domain).values() if callable(value)]
    names += [found_in.__name__ for found_in in found if found_in is not None]
    mine = [
        name for name in dict.fromkeys(names) if name.partition(".")[0] == package and name != "envs.base"
    ]
    return {name: pathlib.Path(inspect.getfile(sys.modules[name])) for name in mine}


def check_size(files: Mapping[str, pathlib.Path], episodes: Sequence[Episode]) -> Section:
    """Lines of code; atoms, variables and families of the tasks played; levels of instrumentation."""
    records = {episode.played.task.id: episode.record for episode in episodes}.values()
    atoms = [atom for record in records for atom in record.atoms]
    lines = {name: code_lines(path.read_text()) for name, path in files.items()}
    levels = Counter(atom.level for atom in atoms)
    figures = {
        "lines of code": lines,
        "atoms of a task": _range([len(record.atoms) for record in records]),
        "variables of a task": _range([len(record.variables) for record in records]),
        "families": len({atom.family for atom in atoms}),
        "atoms that the score reads": share(sum(a.role is ScoreRole.SCORED for a in atoms), len(atoms)),
        "levels of instrumentation": {
            f"{level} ({name})": share(levels[level], len(atoms)) for level, name in _LEVELS.items()
        },
    }
    wrong = (f"{atom.id} has level {atom.level}" for atom in atoms if atom.level not in _LEVELS)
    finding = judged(
        f"{sum(lines.values())} lines of code, docstrings and comments not counted",
        wrong,
        "a level is 0, 1 or 2, see envs.base.Atom",
    )
    return Section("size", (finding,), figures)


def _range(counts: Sequence[int]) -> str:
    return f"{min(counts)} to {max(counts)}" if min(counts) < max(counts) else str(counts[0])
