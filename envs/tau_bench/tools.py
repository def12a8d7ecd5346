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
# Deeper arguments are refused, since copying and comparing recurse; the original gives up at some hundreds.
_MAX_DEPTH = 200


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
