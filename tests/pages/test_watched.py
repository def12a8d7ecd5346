"""The watch over a page sees what it is there for."""

from __future__ import annotations

import pytest

from tests.browser import Watched
from vict_jax.pages.render import environment, render


@pytest.fixture
def watching(browser):
    one = Watched(browser)
    yield one
    one.close()


def load(watching: Watched, path, body: str, **values) -> None:
    template = environment("vict_jax.pages").from_string(
        '{% extends "page.html" %}{% block content %}' + body + "{% endblock %}"
    )
    path.write_text(render(template, title="t", **values))
    watching.page.goto(path.as_uri())


def test_a_page_with_its_script_does_nothing_wrong(watching, tmp_path):
    load(watching, tmp_path / "a.html", "<p id='a'></p>", scripts=["document.all.a.textContent = 'ran'"])
    assert watching.page.inner_text("#a") == "ran"
    assert watching.wrong == []


@pytest.mark.parametrize(
    "body",
    [
        "<script>document.body.id = 'foreign'</script>",
        "<b onclick='0'></b><img src=x onerror=\"document.body.id = 'foreign'\">",
        "<script src='https://example.org/a.js'></script>",
        "<img src='https://example.org/a.png'>",
        "<link rel=stylesheet href='https://example.org/a.css'>",
    ],
)
def test_what_is_not_the_pages_own_neither_runs_nor_loads_and_is_seen(watching, tmp_path, body):
    load(watching, tmp_path / "a.html", body, scripts=["0;"])
    assert watching.page.get_attribute("body", "id") is None
    assert watching.wrong


def test_requests_and_errors_are_seen(watching, tmp_path):
    path = tmp_path / "a.html"
    path.write_text(
        "<img src='http://example.org/a.png'><script>console.error('e'); throw Error('t')</script>"
    )
    watching.page.goto(path.as_uri())
    kinds = {text.split(":")[0] for text in watching.wrong}
    assert kinds == {"request to the outside", "console error", "uncaught"}
