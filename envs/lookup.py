"""From the name in a config to an environment: a built-in one, or any importable module of the user's.

An environment is one module with two names in it: `DOMAIN`, an `envs.base.Domain`, and `Options`, the
frozen dataclass of what its users may set. Only the module's dotted name is stored with a run, so a run
that is resumed, evaluated or audited imports it again.
"""

from __future__ import annotations

import dataclasses
import importlib
import pickle
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from envs.base import Domain

BUILT_IN = {
    "alfworld": "envs.alfworld.domain",
    "search_qa": "envs.search_qa.domain",
    "tau_bench": "envs.tau_bench.domain",
    "webshop": "envs.webshop.domain",
}

# Keys beside an environment's own options in the section `env` of a config.
RESERVED = ("name", "workers", "timeout_s")


class LookupFailure(ValueError):
    """A name that leads to no usable environment.

    Attributes:
      problem: what is wrong. advice: what to do about it.
    """

    # One argument must do: absl rebuilds an error of a config file from its message.
    def __init__(self, problem: str, advice: str = "") -> None:
        super().__init__(f"{problem}; {advice}" if advice else problem)
        self.problem, self.advice = problem, advice


def environment(name: str) -> tuple[Domain, type[Any]]:
    """The domain of an environment and the class of its options.

    Args:
      name: a key of `BUILT_IN`, or the dotted name of a module that can be imported from here
        (`examples.refunds`; Python started with -m looks in the current directory first).

    Raises:
      LookupFailure: (a ValueError) the module cannot be imported, lacks `DOMAIN` or `Options`, or has
        them in a form that a config or a worker process cannot use.
    """
    module = _import(name)
    domain = _member(module, "DOMAIN", "DOMAIN = envs.base.Domain(name=..., make=..., ...)")
    if not isinstance(domain, Domain):
        raise LookupFailure(
            f"{module.__name__}.DOMAIN is a {type(domain).__name__}", "it must be an envs.base.Domain"
        )
    options = _member(module, "Options", "a frozen dataclass of what a config may set, even if it is empty")
    if problem := next(_option_problems(options), None):
        raise LookupFailure(
            f"{module.__name__}.Options {problem}",
            "it must be a frozen dataclass whose fields all have defaults that JSON can hold",
        )
    try:
        pickle.dumps((domain.make, options))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise LookupFailure(
            f"a worker process cannot import {module.__name__}.DOMAIN.make by name ({error})",
            "make it a class or function at the top level of a module, not a lambda or a nested function",
        ) from error
    return domain, options


def _import(name: str) -> ModuleType:
    known = f"one of {sorted(BUILT_IN)}, or the dotted name of a module with DOMAIN and Options"
    if not all(part.isidentifier() for part in name.split(".")) or name.endswith(".py"):
        raise LookupFailure(f"environment name {name!r} is not a name", f"write {known}")
    path = BUILT_IN.get(name, name)
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{path}.".startswith(f"{error.name}."):
            raise LookupFailure(
                f"there is no environment {name!r} (no module {error.name!r})",
                f"write {known}; start from the directory that holds the module, or put it on PYTHONPATH",
            ) from error
        raise _broken(name, error) from error
    except Exception as error:  # importing user code may raise anything; it is named
        raise _broken(name, error) from error


def _broken(name: str, error: Exception) -> LookupFailure:
    return LookupFailure(
        f"importing environment {name!r} fails: {type(error).__name__}: {error}",
        f'see where with: python -c "import {BUILT_IN.get(name, name)}"',
    )


def _member(module: ModuleType, name: str, wanted: str) -> Any:
    if name not in vars(module):
        raise LookupFailure(f"module {module.__name__!r} has no {name}", f"define {name} in it: {wanted}")
    return vars(module)[name]


def _option_problems(options: Any) -> Iterator[str]:
    """What keeps a class from being the options of an environment, one text a problem."""
    if not isinstance(options, type) or not dataclasses.is_dataclass(options):
        yield f"is {options!r}, not a dataclass"
        return
    if not options.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        yield "is a dataclass, but not a frozen one"
    for field in dataclasses.fields(options):
        if field.name in RESERVED:
            yield f"has a field {field.name!r}, a key that every environment has already"
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            yield f"has a field {field.name!r} without a default"
        elif field.default is not dataclasses.MISSING and not _is_plain(field.default):
            yield f"has a field {field.name!r} with the default {field.default!r}"


def _is_plain(value: Any) -> bool:
    """A value that config.json gives back as it was."""
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))
