"""What a tool is, and how arguments are bound to it.

The original passes the arguments as Python keywords to a static method and answers with the text of any
exception. Those texts are part of the observations, so binding is done here with the same wording.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Tool:
    """One tool of a domain.

    Attributes:
      name: as the agent calls it.
      function: (database, **arguments) -> answer; None where the original's returns nothing.
      writes: whether it may change the database.
      terminates: whether a call ends the conversation, even one that fails.
    """

    name: str
    function: Callable[..., str | None]
    writes: bool = False
    terminates: bool = False

    @functools.cached_property
    def parameters(self) -> tuple[str, ...]:
        """Names of the required arguments, in the original's order."""
        return tuple(inspect.signature(self.function).parameters)[1:]

    @functools.cached_property
    def method(self) -> str:
        """The original's method, as Python names it in messages about arguments."""
        return "".join(word.capitalize() for word in self.name.split("_")) + ".invoke()"


def check_arguments(tool: Tool, domain: str, kwargs: Mapping[str, Any]) -> None:
    """Raise the TypeError that Python raises for the original's call with these keywords."""
    if "data" in kwargs:
        where = f"tau_bench.envs.{domain}.tools.{tool.name}.{tool.method}"
        raise TypeError(f"{where} got multiple values for keyword argument 'data'")
    for name in kwargs:
        if name not in tool.parameters:
            raise TypeError(f"{tool.method} got an unexpected keyword argument '{name}'")
    missing = [repr(name) for name in tool.parameters if name not in kwargs]
    if missing:
        *first, last = missing
        comma = "," if len(first) > 1 else ""
        listed = f"{', '.join(first)}{comma} and {last}" if first else last
        plural = "s" if first else ""
        raise TypeError(
            f"{tool.method} missing {len(missing)} required positional argument{plural}: {listed}"
        )
