"""From a template and values to one HTML page that asks for nothing outside itself.

Two lines of defence against what a policy or an environment may say: everything a template prints is
escaped, and a content security policy in the page runs no script but those given to `render`, which it
knows by their SHA-256, and loads nothing.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
from collections.abc import Sequence
from typing import Any

import jinja2
import markupsafe

# Kept as they are: the two that lay text out. Every other character without a glyph is shown as its escape.
_LAYOUT = frozenset("\n\t")


def visible(text: str) -> str:
    r"""`text` with control, bidirectional and lone surrogate characters written out, e.g. `\x1b`."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in _LAYOUT else c.encode("unicode_escape").decode() for c in text
    )


def _finalize(value: Any) -> Any:
    """What a template prints: markup as it is, anything else (a path, say) as visible text."""
    return value if isinstance(value, markupsafe.Markup) else visible(str(value))


def environment(package: str) -> jinja2.Environment:
    """Templates of `package` (its folder `templates`) beside those of this package, with autoescape on.

    A template extends `page.html` and fills its blocks `style`, `content` and, for JSON, `data`. A name
    that is not given to a template raises `jinja2.UndefinedError`.
    """
    return jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(package), jinja2.PackageLoader(__package__)]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def asset(package: str, name: str) -> str:
    """The text of a file beside the code of `package`, e.g. a script or a style sheet."""
    return importlib.resources.files(package).joinpath(name).read_text(encoding="utf-8")


def render(
    template: jinja2.Template,
    *,
    title: str,
    scripts: Sequence[str] = (),
    connect: str = "'none'",
    **values: Any,
) -> str:
    """The page as text, to be written or sent as UTF-8.

    Args:
      title: of the page.
      scripts: JavaScript sources, run in this order at the end of the page.
      connect: what scripts may fetch from, as the policy's `connect-src`: `'none'` for a file, `'self'`
        for a page that its own server feeds.
      values: what the template asks for. Lone surrogates may only be in what is printed, not in markup.

    Raises:
      ValueError: a script would end its element early.
    """
    for script in scripts:
        if "</script" in script.lower() or "<!--" in script:
            raise ValueError(
                "scripts may not hold '</script' or '<!--': the page would end the element there"
            )
    return template.render(
        title=title,
        css=markupsafe.Markup(asset(__package__, "page.css")),
        policy=_policy(scripts, connect),
        scripts=[markupsafe.Markup(script) for script in scripts],
        **values,
    )


def _policy(scripts: Sequence[str], connect: str) -> str:
    """Content security policy: inline styles, the given scripts, pictures inside the page, nothing else."""
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{value}'" for value in hashes) or "'none'"
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src {allowed}; "
        f"connect-src {connect}; base-uri 'none'; form-action 'none'"
    )
