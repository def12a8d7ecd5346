"""The page itself: one HTML text with its script and style inside."""

from __future__ import annotations

import json
from typing import Any

import markupsafe

from vict_jax.pages import render

# In the order in which they run; they share one global scope.
SCRIPTS = ("dom.js", "source.js", "list.js", "rollout.js", "group.js", "methods.js", "keys.js", "main.js")


def page(title: str, *, data: Any = None) -> str:
    """The viewer.

    Args:
      data: everything that it shows, as `export.collect` makes it; None for a page that asks its server.
    """
    template = render.environment("vict_jax.viewer").get_template("viewer.html")
    return render.render(
        template,
        title=title,
        scripts=[render.asset("vict_jax.viewer", name) for name in SCRIPTS],
        connect="'self'" if data is None else "'none'",
        viewer_css=markupsafe.Markup(render.asset("vict_jax.viewer", "viewer.css")),
        data=None if data is None else script_json(data),
    )


def script_json(value: Any) -> markupsafe.Markup:
    """JSON that may stand inside a script element: no `<`, `>` or `&`, and ASCII only."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return markupsafe.Markup(text)
