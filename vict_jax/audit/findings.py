"""What a check of an environment found, and how what the environment itself raises becomes a finding."""

from __future__ import annotations

import dataclasses
import enum
import pathlib
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

# Problems of one kind that are printed; the rest is counted.
_SHOWN = 3


class Level(enum.Enum):
    """FAIL ends the check with exit code 1; WARN is for people to judge."""

    PASS = "ok"
    WARN = "warn"
    FAIL = "FAIL"


@dataclasses.dataclass(frozen=True)
class Finding:
    """One result.

    Attributes:
      text: what was seen.
      advice: the next step; empty where nothing is to be done.
    """

    level: Level
    text: str
    advice: str = ""


@dataclasses.dataclass(frozen=True)
class Section:
    """The results about one subject.

    Attributes:
      figures: measurements, plain JSON values.
    """

    title: str
    findings: tuple[Finding, ...]
    figures: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def failed(self) -> bool:
        """Some finding is a failure."""
        return any(finding.level is Level.FAIL for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON types."""
        findings = [{**dataclasses.asdict(f), "level": f.level.name.lower()} for f in self.findings]
        return {"failed": self.failed, "findings": findings, "figures": dict(self.figures)}

    def table(self) -> str:
        """For people: a headline, then one block a finding, then the figures."""
        lines = [f"{self.title}: {'FAILED' if self.failed else 'passed'}"]
        for finding in self.findings:
            first, *more = finding.text.splitlines()
            lines += [f"  {finding.level.value:5}{first}", *(f"       {line}" for line in more)]
            lines += [f"       next: {finding.advice}"] if finding.advice else []
        lines += [f"       {name}: {_show(value)}" for name, value in self.figures.items()]
        return "\n".join(lines)


def _show(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_show(inner)}" for key, inner in value.items()) or "none"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_show, value)) or "none"
    return str(value)


class UserCodeError(Exception):
    """The environment raised; the message says in which call, what, and where."""


def call(what: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call code of the environment. Raises UserCodeError instead of anything it raises."""
    try:
        return function(*args, **kwargs)
    except UserCodeError:
        raise
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{pathlib.Path(last.filename).name}:{last.lineno} in {last.name}"
        raise UserCodeError(f"{what} raises {type(error).__name__}: {error} ({where})") from error


def problems(found: Iterator[str]) -> list[str]:
    """All problems that a check yields; what the environment raises meanwhile is the last of them."""
    texts = []
    try:
        for text in found:
            texts.append(text)
    except UserCodeError as error:
        texts.append(str(error))
    return texts


def judged(fine: str, found: Iterable[str], advice: str, level: Level = Level.FAIL) -> Finding:
    """PASS with the text `fine` if nothing was found, else `level` with the first problems and the advice."""
    texts = list(dict.fromkeys(found))
    if not texts:
        return Finding(Level.PASS, fine)
    more = [f"... and {len(texts) - _SHOWN} more like these"] if len(texts) > _SHOWN else []
    return Finding(level, "\n".join([*texts[:_SHOWN], *more]), advice)


def share(part: int, whole: int) -> str:
    """`part` of `whole` for people."""
    return f"{part} of {whole} ({part / whole:.0%})" if whole else "none of 0"


def listed(names: Sequence[str]) -> str:
    """Names for people."""
    return ", ".join(names) or "none"
