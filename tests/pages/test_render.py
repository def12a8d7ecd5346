"""The shared page: everything printed is escaped and visible, and nothing outside it is allowed."""

from __future__ import annotations

import html
import pathlib
import re

import jinja2
import pytest

from vict_jax.pages.render import asset, environment, render, visible

NASTY = "<script>alert(1)</script> & \"q\" 'a' \x1b[31m \u202e \ud800 \x00 \nnext\tline"


def page(body: str, **values) -> str:
    template = environment("vict_jax.pages").from_string(
        '{% extends "page.html" %}{% block content %}' + body + "{% endblock %}"
    )
    return render(template, **({"title": "t"} | values))


def test_characters_without_a_glyph_are_written_out():
    assert visible("a\x1b[31m\u202e\ud800\x00") == r"a\x1b[31m\u202e\ud800\x00"
    assert visible("line\n\ttab é 漢 🙂") == "line\n\ttab é 漢 🙂"


def test_text_comes_back_as_text():
    text = page("<p>{{ text }}</p><i title='{{ text }}'></i>", text=NASTY)
    shown = re.search("<p>(.*?)</p>", text, re.S)
    assert shown is not None
    assert html.unescape(shown[1]) == visible(NASTY)
    assert "<script" not in text
    assert text.encode("utf-8")  # no lone surrogate is left


def test_what_is_not_a_string_is_made_one_first():
    assert "<p>[&#39;&lt;\\x1b&#39;] 3 None</p>" in page(
        "<p>{{ a }} {{ b }} {{ c }}</p>", a=["<\x1b"], b=3, c=None
    )
    path = pathlib.PurePosixPath("a\x1b<b>")
    assert r"<p>a\x1b&lt;b&gt;</p>" in page("<p>{{ path }}</p>", path=path)


def test_a_title_is_escaped():
    assert "<title>&lt;/title&gt;&lt;b&gt;</title>" in page("", title="</title><b>")


def test_scripts_are_named_in_the_policy():
    text = page("", scripts=["let a = 1 < 2;"])
    assert "<script>let a = 1 < 2;</script>" in text
    # From `openssl dgst -sha256 -binary | base64` of the same text.
    assert "script-src &#39;sha256-Xd/xFl+DmsVqHczJvGQWMh7nLH7H7r5iGmQKRm0JimU=&#39;" in text
    assert "script-src &#39;none&#39;" in page("")
    assert "connect-src &#39;none&#39;" in text
    assert "connect-src &#39;self&#39;" in page("", connect="'self'")


@pytest.mark.parametrize("script", ["x = '</script>'", "x = '</SCRIPT'", "<!-- x"])
def test_a_script_cannot_end_its_element(script):
    with pytest.raises(ValueError, match="scripts may not hold"):
        page("", scripts=[script])


def test_a_missing_value_is_an_error():
    with pytest.raises(jinja2.UndefinedError, match="nothing"):
        page("{{ nothing }}")


def test_the_style_sheet_asks_for_nothing():
    assert not re.search(r"@import|url\(|https?:", asset("vict_jax.pages", "page.css"))
