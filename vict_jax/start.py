"""What is asked of one start of a run and is no part of the run: a later start may ask for something else."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax


@dataclasses.dataclass(frozen=True)
class Profile:
    """Updates `first` to `first + count - 1` are traced by JAX's profiler."""

    first: int
    count: int

    def __post_init__(self) -> None:
        for name in ("first", "count"):
            if getattr(self, name) < 1:
                raise ValueError(f"profile.{name}={getattr(self, name)} is not allowed: 1 or more")

    @classmethod
    def parse(cls, text: str) -> Profile:
        """The profile that `UPDATE:COUNT` asks for; ValueError if it is something else."""
        first, colon, count = text.partition(":")
        if not (first.isdecimal() and count.isdecimal() and colon):
            raise ValueError(f"--profile={text} must be UPDATE:COUNT, the first update to trace and how many")
        return cls(int(first), int(count))


@dataclasses.dataclass(frozen=True)
class StartOptions:
    """What one start is asked for.

    Attributes:
      allow_changed: keys of the config, or names of data, that may differ from those of the run so far.
      profile: updates to trace.
      prometheus: whether the newest metrics are written for Prometheus' text-file collector.
    """

    allow_changed: tuple[str, ...] = ()
    profile: Profile | None = None
    prometheus: bool = False

    def check(self, config: Mapping[str, Any], kinds: Sequence[str]) -> None:
        """Raise ValueError unless `allow_changed` are keys of the config or kinds of data."""
        keys = set(_keys(config))
        for name in self.allow_changed:
            if name not in keys and name not in kinds:
                raise ValueError(
                    f"--allow_changed={name} is not allowed: it must be a key of the config, such as "
                    f"train.groups, or one of {', '.join(kinds)}"
                )


NOTHING = StartOptions()


def _keys(config: Mapping[str, Any], where: str = "") -> Iterator[str]:
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _keys(value, f"{where}{name}.")
        else:
            yield f"{where}{name}"


def traced(updates: Iterable[int], profile: Profile | None, workdir: pathlib.Path) -> Iterator[int]:
    """The same updates; the body of a loop over them is traced where `profile` says so, into `profile/`."""
    if profile is None:
        yield from updates
        return
    running = False
    try:
        for update in updates:
            if not running and profile.first <= update < profile.first + profile.count:
                jax.profiler.start_trace(str(workdir / "profile"))
                running = True
            yield update
            if running and update == profile.first + profile.count - 1:
                jax.profiler.stop_trace()
                running = False
    finally:
        if running:
            jax.profiler.stop_trace()
