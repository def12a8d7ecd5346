"""Calling the tools of a domain by name with JSON arguments, with the original's answers to bad calls."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from envs.tau_bench import airline, retail
from envs.tau_bench.data import Call
from envs.tau_bench.database import Database, copy_record
from envs.tau_bench.tool import Tool, check_arguments

TOOLS: Mapping[str, Mapping[str, Tool]] = {"retail": retail.TOOLS, "airline": airline.TOOLS}
TERMINATING = frozenset(tool.name for tools in TOOLS.values() for tool in tools.values() if tool.terminates)
# What Python raises for values of the wrong kind (MemoryError: from its parser, for too deep a nesting); the
# original answers with the text of each.
_PYTHON_ERRORS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
)
_MAX_DEPTH = 100
_MAX_BITS = 3322


@dataclasses.dataclass(frozen=True)
class Result:
    """The answer of a tool; `error` is what the original would have raised out of its step."""

    text: str
    terminates: bool
    error: str = ""


def read_call(name: Any, kwargs: Any) -> tuple[Call, str]:
    """A call with its own copy of the arguments, and "" or why it cannot be one.

    Accepted is what JSON can say, down to 100 levels and with integers up to 1,000 digits: deeper values
    and longer numbers cannot be written or compared, in the original neither.
    """
    if not isinstance(name, str):
        return Call(str(name), {}), f"the name of a tool must be a text, not {type(name).__name__}"
    if not isinstance(kwargs, Mapping):
        return Call(name, {}), f"the arguments must be an object, not {type(kwargs).__name__}"
    refusal = _refuse_value(dict(kwargs))
    return (Call(name, {}), refusal) if refusal else (Call(name, copy_record(dict(kwargs))), "")


def _refuse_value(value: Any) -> str:
    """Why the value is none that a record may hold, or "". Level by level, as recursion has limits."""
    level = [value]
    for _ in range(_MAX_DEPTH):
        inner: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                if not all(isinstance(key, str) for key in item):
                    return "the keys of an object must be texts"
                inner.extend(item.values())
            elif isinstance(item, list):
                inner.extend(item)
            elif isinstance(item, int) and item.bit_length() > _MAX_BITS:
                return f"an integer has {item.bit_length()} bits, allowed are {_MAX_BITS}"
            elif not isinstance(item, str | int | float | None):
                return f"{type(item).__name__} is no JSON value"
        if not inner:
            return ""
        level = inner
    return f"the arguments are nested deeper than {_MAX_DEPTH} levels"


def call_tool(database: Database, call: Call) -> Result:
    """Run one call on `database`, which keeps what a failing call wrote before it failed."""
    tool = TOOLS[database.domain].get(call.name)
    if tool is None:
        return Result(f"Unknown action {call.name}", False)
    try:
        check_arguments(tool, database.domain, call.kwargs)
        text = tool.function(database, **call.kwargs)
    except _PYTHON_ERRORS as error:
        return Result(f"Error: {error}", tool.terminates)
    if text is None:
        return Result("", tool.terminates, f"ValidationError: {call.name} returned no text")
    return Result(text, tool.terminates)


def invoke(database: Database, name: str, kwargs: Mapping[str, Any]) -> str:
    """The answer of a tool to a call on `database`, which is changed; unknown names are answered, too."""
    call, refusal = read_call(name, kwargs)
    return f"Error: {refusal}" if refusal else call_tool(database, call).text
