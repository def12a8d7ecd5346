"""What an agent is shown of a tool's answer: the original's JSON text, or what matters in few tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from envs.tau_bench.action import Style

# The short answer to a call that wrote: the record that the tool returns was shown before, or can be read.
DONE = "ok"
# What no generated task turns on and takes many tokens.
_HIDDEN = ("address", "email", "fulfillments", "saved_passengers")


def show(text: str, *, wrote: bool, style: Style) -> str:
    """An observation as the agent sees it, without characters that cannot be encoded.

    Args:
      text: the tool's answer or the customer's message.
      wrote: it answers a call that changed the database.
    """
    if style is Style.COMPACT:
        text = DONE if wrote and not text.startswith("Error") else _shorten(text)
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _shorten(text: str) -> str:
    """JSON objects and lists as `key value` in brackets; any other text as it is."""
    if not text.startswith(("{", "[")):
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return _plain(value)[1:-1]


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        if _lists_records(value):
            return _plain(list(value.values()))
        shown = {key: item for key, item in value.items() if key not in _HIDDEN and item not in ("", [], {})}
        return f"({' '.join(f'{_words(key)} {_plain(item)}' for key, item in shown.items())})"
    if isinstance(value, list):
        return f"[{', '.join(_plain(item) for item in value)}]"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def _words(key: str) -> str:
    """A field's name in few tokens: `payment_method_id` is `payment method`."""
    return key.removesuffix("_id").replace("_", " ")


def _lists_records(value: Mapping[str, Any]) -> bool:
    """Whether every key is repeated inside its record, as an id."""
    return bool(value) and all(isinstance(v, dict) and k in v.values() for k, v in value.items())
