"""The page of the configuration: it is what the code says, and leaves no key out."""

from __future__ import annotations

import dataclasses
import pathlib
import re

import pytest

from envs.lookup import BUILT_IN
from vict_jax import reference
from vict_jax.config import default_config

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_the_page_is_what_the_code_says() -> None:
    assert (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8") == reference.page()


@pytest.mark.parametrize("env", sorted(BUILT_IN))
def test_every_key_has_a_default_and_a_meaning(env: str) -> None:
    rows = [
        re.split(r"(?<!\\) \| ", line.strip("| "))
        for line in reference.page().splitlines()
        if line[:3] == "| `"
    ]
    known = {row[0].strip("`") for row in rows}
    config = default_config(env)
    for section, values in config.items():
        if section == "seed":
            continue
        for key, value in values.items():
            names = (
                [f"{section}.{key}.{inner}" for inner in value]
                if hasattr(value, "keys")
                else [f"{section}.{key}"]
            )
            assert known.issuperset(names)
    assert all(len(row) == 3 and row[2] for row in rows)


def test_a_docstring_that_leaves_a_field_out_is_refused() -> None:
    @dataclasses.dataclass
    class Options:
        """Some.

        Attributes:
          one: the first. two, three: of the same kind.
        """

        one: int = 1
        two: int = 2
        three: int = 3

    assert reference.meanings(Options) == {
        "one": "the first",
        "two": "of the same kind",
        "three": "of the same kind",
    }
    Options.__doc__ = "Some.\n\nAttributes:\n  one: the first. three: the last."
    with pytest.raises(ValueError, match=r"Options does not say what \['two'\]"):
        reference.meanings(Options)
