"""The one way in which an option says what it does not take."""

from __future__ import annotations

from typing import Any


def require(ok: bool, name: str, value: Any, allowed: str) -> None:
    """Raise ValueError naming an option, its value and what is allowed, unless `ok`."""
    if not ok:
        raise ValueError(f"{name}={value!r} is not allowed: {allowed}")
