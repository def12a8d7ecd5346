"""The page of every config key, from the dataclasses that declare them.

    python -m vict_jax.reference > docs/configuration.md

Types and defaults are those of the fields, meanings those of the docstrings: `name: meaning`, several to a
line where they are short, `name, other: meaning` for a group.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import re
import typing
from collections.abc import Iterator, Sequence
from typing import Any

from envs.lookup import BUILT_IN, RESERVED, environment
from vict_jax.config import COMMON_OF_ENV, SECTIONS, EnvOptions
from vict_jax.credit.options import VictOptions

_INTRO = """# Configuration

Made by `python -m vict_jax.reference > docs/configuration.md`; a test compares the two. Every key can be
set in a config file or on the command line, `--config.section.key=value`; a wrong key or value is refused
with the allowed ones. A config file starts from `vict_jax.config.default_config(env)` and changes what it
needs; presets (`--config=FILE:dapo`) are on the page of [credit methods](credit_methods.md).

## seed

`seed` (`0`): of everything random in a run that is not in the environment's data."""


def meanings(cls: type) -> dict[str, str]:
    """What the docstring of a dataclass says of each of its fields.

    Raises:
      ValueError: it leaves a field out.
    """
    names = [field.name for field in dataclasses.fields(cls)]
    text = " ".join((inspect.getdoc(cls) or "").split())
    word = "|".join(sorted(map(re.escape, names), key=len, reverse=True))
    # An entry begins at the start, behind "Attributes:" or behind the end of a sentence.
    entry = re.compile(rf"(?:^|(?<=[.;:?\d)`\"] )|(?<=Attributes: ))`?((?:{word})`?(?:, `?(?:{word})`?)*): ")
    starts = list(entry.finditer(text))
    found: dict[str, str] = {}
    for here, behind in itertools.zip_longest(starts, starts[1:]):
        said = text[here.end() : behind.start() if behind else len(text)].strip().rstrip(".")
        for name in here.group(1).replace("`", "").split(", "):
            found[name] = said
    hints = typing.get_type_hints(cls)
    if missing := [x for x in names if x not in found and not dataclasses.is_dataclass(hints[x])]:
        raise ValueError(f"the docstring of {cls.__name__} does not say what {missing} are")
    return found


def _rows(prefix: str, cls: type) -> Iterator[Sequence[str]]:
    said, hints = meanings(cls), typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        if dataclasses.is_dataclass(hints[field.name]):
            inner = hints[field.name]
            assert isinstance(inner, type)
            yield from _rows(f"{prefix}.{field.name}", inner)
            continue
        yield f"`{prefix}.{field.name}`", f"`{_default(field)!r}`", said[field.name]


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _table(rows: Iterator[Sequence[str]]) -> str:
    lines = ["| key | default | meaning |", "|---|---|---|"]
    lines += [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    return "\n".join(lines)


def _common() -> Iterator[Sequence[str]]:
    """Of the section `env`, what every environment has."""
    said = meanings(EnvOptions)
    for key in RESERVED:
        default = f"`{COMMON_OF_ENV[key]!r}`" if key in COMMON_OF_ENV else ""
        yield f"`env.{key}`", default, said[key]


def _about(cls: type) -> str:
    """The first sentence of a docstring."""
    return (inspect.getdoc(cls) or "").split("\n\n")[0].replace("\n", " ")


def page() -> str:
    """The whole page, Markdown."""
    parts = [
        _INTRO,
        "## seed\n\n`seed` (`0`): of everything random in a run that is not in the environment's data.",
    ]
    parts.append(f"## env\n\n{_table(_common())}")
    for name in BUILT_IN:
        _, options = environment(name)
        parts.append(f"### env, {name}\n\n{_about(options)}\n\n{_table(_rows('env', options))}")
    for section, cls in SECTIONS.items():
        parts.append(f"## {section}\n\n{_about(cls)}\n\n{_table(_rows(section, cls))}")
    method = ("`credit.method`", "`'vict'`", "a name on the page of [credit methods](credit_methods.md)")
    rows = (row for row in [method, *_rows("credit", VictOptions)])
    parts.append(f"## credit\n\n{_about(VictOptions)}\n\n{_table(rows)}")
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    print(page(), end="")
