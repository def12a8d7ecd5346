"""A name in a config leads to an environment, or to a message that says what is missing."""

from __future__ import annotations

import dataclasses
import pathlib
import re

import pytest

from envs.alfworld.domain import DOMAIN, AlfworldOptions
from envs.base import Domain
from envs.lookup import LookupFailure, environment

HEAD = "import dataclasses\nfrom envs.base import Domain\nfrom tests.envs.toy_env import DOMAIN as TOY\n"
FROZEN = "@dataclasses.dataclass(frozen=True)\nclass Options:\n    doors: int = 4\n"


@pytest.fixture
def write(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    """Write a module that can be imported; its name is made from the test's."""
    monkeypatch.syspath_prepend(tmp_path)

    def write_module(name: str, body: str) -> str:
        (tmp_path / f"{name}.py").write_text(HEAD + body)
        return name

    return write_module


def test_built_in_names_and_module_names() -> None:
    assert environment("alfworld") == environment("envs.alfworld.domain") == (DOMAIN, AlfworldOptions)


def test_a_module_of_the_users_own(write) -> None:
    domain, options = environment(write("own_env_1", f"DOMAIN = TOY\n{FROZEN}"))
    assert isinstance(domain, Domain)
    assert dataclasses.asdict(options()) == {"doors": 4}


@pytest.mark.parametrize("name", ["alfwrld", "no_such_package.env", "envs.no_such_module"])
def test_a_module_that_is_not_there(name: str) -> None:
    with pytest.raises(LookupFailure, match=rf"no environment '{name}'.*alfworld.*directory"):
        environment(name)


@pytest.mark.parametrize("name", ["my_env.py", "some/where", "", "a..b"])
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(ValueError, match=f"{re.escape(repr(name))} is not a name; write one of"):
        environment(name)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("import no_such_library\n", "fails: ModuleNotFoundError: No module named 'no_such_library'"),
        ("1 / 0\n", "fails: ZeroDivisionError: division by zero"),
        ("def f(:\n", "fails: SyntaxError"),
        ("DOMAIN = Domain(name='x')\n", "fails: TypeError: .*missing .* required"),
        (FROZEN, "has no DOMAIN; define DOMAIN in it"),
        (f"DOMAIN = 3\n{FROZEN}", "DOMAIN is a int; it must be an envs.base.Domain"),
        ("DOMAIN = TOY\n", "has no Options; define Options in it"),
        ("DOMAIN = TOY\nOptions = dict\n", "Options is <class 'dict'>, not a dataclass"),
        ("DOMAIN = TOY\n@dataclasses.dataclass\nclass Options: ...\n", "not a frozen one"),
        (
            "DOMAIN = TOY\n@dataclasses.dataclass(frozen=True)\nclass Options:\n    doors: int\n",
            "field 'doors' without a default",
        ),
        (f"DOMAIN = TOY\n{FROZEN}    workers: int = 2\n", "field 'workers', a key that every environment"),
        (f"DOMAIN = TOY\n{FROZEN}    rooms: frozenset = frozenset()\n", "field 'rooms' with the default"),
        (
            f"DOMAIN = dataclasses.replace(TOY, make=lambda options: None)\n{FROZEN}",
            "a worker process cannot import .*make by name.*; make it a class or function at the top",
        ),
    ],
)
def test_each_mistake_is_named(write, request: pytest.FixtureRequest, body: str, message: str) -> None:
    name = f"wrong_env_{request.node.callspec.indices['body']}"
    with pytest.raises(LookupFailure, match=message):
        environment(write(name, body))
