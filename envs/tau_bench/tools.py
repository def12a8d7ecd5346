"""Calling a tool by name with JSON arguments, with the original's answers to bad calls.

The original passes the arguments as Python keywords to a static method and answers with the text of any
exception. Those texts are part of the observations, so binding is done here with the same wording.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from envs.tau_bench.data import Call
from envs.tau_bench.database import Database, copy_record

TERMINATING = frozenset({"transfer_to_human_agents"})
# What Python raises for values of the wrong kind; the original answers with the text of each.
_PYTHON_ERRORS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError)
# Deeper arguments are refused, since copying and comparing recurse; the original gives up at some hundreds.
_MAX_DEPTH = 200


@dataclasses.dataclass(frozen=True)
class Tool:
    """One tool of a domain.

    Attributes:
      name: as the agent calls it.
      function: (database, **arguments) -> answer; None where the original's returns nothing.
      writes: whether it may change the database.
    """

    name: str
    function: Callable[..., str | None]
    writes: bool = False

    @functools.cached_property
    def parameters(self) -> tuple[str, ...]:
        """Names of the required arguments, in the original's order."""
        return tuple(inspect.signature(self.function).parameters)[1:]

    @functools.cached_property
    def method(self) -> str:
        """The original's method, as Python names it in messages about arguments."""
        return "".join(word.capitalize() for word in self.name.split("_")) + ".invoke()"


@dataclasses.dataclass(frozen=True)
class Result:
    """The answer of a tool; `error` is what the original would have raised out of its step."""

    text: str
    terminates: bool
    error: str = ""


def read_call(name: str, kwargs: Any) -> tuple[Call, str]:
    """A call with its own copy of the arguments, and "" or why they are no arguments at all."""
    if not isinstance(kwargs, Mapping):
        return Call(name, {}), f"the arguments of {name} are no JSON object: {type(kwargs).__name__}"
    if _too_deep(kwargs):
        return Call(name, {}), f"the arguments of {name} are nested deeper than {_MAX_DEPTH} levels"
    return Call(name, copy_record(dict(kwargs))), ""


def _too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(_MAX_DEPTH):
        inner = [item.values() if isinstance(item, Mapping) else item for item in level]
        level = [item for items in inner for item in items if isinstance(item, list | Mapping)]
        if not level:
            return False
    return True


def tools_of(domain: str) -> Mapping[str, Tool]:
    """The tools of a domain by name."""
    from envs.tau_bench import airline, retail

    return {"retail": retail.TOOLS, "airline": airline.TOOLS}[domain]


def call_tool(database: Database, call: Call) -> Result:
    """Run one call on `database`, which keeps what a failing call wrote before it failed."""
    tool = tools_of(database.domain).get(call.name)
    if tool is None:
        return Result(f"Unknown action {call.name}", False)
    terminates = call.name in TERMINATING
    try:
        _check_arguments(tool, database.domain, call.kwargs)
        text = tool.function(database, **call.kwargs)
    except _PYTHON_ERRORS as error:
        return Result(f"Error: {error}", terminates)
    if text is None:
        return Result("", terminates, f"ValidationError: {call.name} returned no text")
    return Result(text, terminates)


def invoke(database: Database, name: str, kwargs: Mapping[str, Any]) -> str:
    """The answer of a tool to a call on `database`, which is changed; unknown names are answered, too."""
    call, refusal = read_call(name, kwargs)
    return f"Error: {refusal}" if refusal else call_tool(database, call).text


def _check_arguments(tool: Tool, domain: str, kwargs: Mapping[str, Any]) -> None:
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
