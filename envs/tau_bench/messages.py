"""Conversations as chat messages, the form in which tool-calling models act and logs are kept.

Source: the tool-calling agent of tau-bench: of a message only the first tool call counts, and its text is
not sent to the customer; a message without tool calls is a reply.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from envs.tau_bench.data import RESPOND, Call


def read_message(message: Mapping[str, Any]) -> tuple[str, Any]:
    """Name and arguments of what an assistant's message does, for `Session.step`.

    Args:
      message: `content` (text or None) and, optional, `tool_calls` with `function.name` and
        `function.arguments`, a JSON text. Arguments that are no JSON are returned as the text itself, which
        a session answers as it answers anything but an object.
    """
    calls = message.get("tool_calls")
    if not calls:
        return RESPOND, {"content": message.get("content")}
    function = calls[0]["function"]
    try:
        return function["name"], json.loads(function["arguments"])
    except (ValueError, RecursionError):
        return function["name"], function["arguments"]


def read_log(messages: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, ...], tuple[Call, ...]]:
    """The customer's messages and the agent's actions of a logged conversation.

    Args:
      messages: system, then the customer's first message, then actions and answers in turn; an answer of
        the role `tool` belongs to a tool call, one of `user` is the customer's.

    Raises:
      ValueError: an action of the log has no JSON object as arguments.
    """
    customer = tuple(message["content"] for message in messages if message["role"] == "user")
    calls = []
    for message in messages:
        if message["role"] == "assistant":
            name, kwargs = read_message(message)
            if not isinstance(kwargs, Mapping):
                raise ValueError(f"logged call of {name!r} has arguments {kwargs!r}, expected a JSON object")
            calls.append(Call(name, kwargs))
    return customer, tuple(calls)
