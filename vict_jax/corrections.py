"""Errors that wait to be recovered from, over updates: options, and a buffer that is pure data.

Source: Fission-GRPO (arXiv 2601.15625; its code is not published). See `vict_jax.fission`.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Self

from vict_jax.rollout.prefix import Past, Prefix


class Order(enum.Enum):
    """Which of the errors that wait come first: the oldest (FIFO) or the newest (LIFO)."""

    FIFO = "fifo"
    LIFO = "lifo"


class ErrorKind(enum.Enum):
    """What an error is.

    UNPARSED: a reply without an action.
    REFUSED: the environment did not accept the action, or answered that it cannot be done
      (`envs.base.StepNote.refused`).
    """

    UNPARSED = "unparsed"
    REFUSED = "refused"


ANY = "any"


class Feedback(enum.Enum):
    """What the policy is told behind an error and the environment's answer to it.

    DIAGNOSIS: what was wrong with the action. FIXED: always the same.
    NONE: nothing more, for models that can read nothing but the texts of their environment.
    """

    DIAGNOSIS = "diagnosis"
    FIXED = "fixed"
    NONE = "none"


# Fields of `CreditInputs` that a model makes of the sampled tokens of every step; replayed steps have none.
_OF_SAMPLED_TOKENS = frozenset({"value", "hindsight_logp"})


@dataclasses.dataclass(frozen=True)
class FissionOptions:
    """Recovery rollouts from errors. Enumerated options are given by the value of their enumeration.

    Attributes:
      branches: N', the rollouts that go on behind an error; 0 is off.
      recoveries: the errors that an update recovers from; none as long as fewer wait.
      order: an `Order`. capacity: the most errors that wait; the oldest are dropped.
      max_age: updates after its own in which an error may still be recovered from.
      error: an `ErrorKind`, or "any".
      feedback: a `Feedback`.
    """

    branches: int = 0
    recoveries: int = 2
    order: str = "lifo"
    capacity: int = 64
    max_age: int = 5
    error: str = ANY
    feedback: str = "diagnosis"

    def __post_init__(self) -> None:
        enumerated: dict[str, list[str]] = {
            "order": [order.value for order in Order],
            "error": [ANY, *(kind.value for kind in ErrorKind)],
            "feedback": [feedback.value for feedback in Feedback],
        }
        for name, allowed in enumerated.items():
            _require(getattr(self, name) in allowed, name, getattr(self, name), f"one of {allowed}")
        for name, least in (("recoveries", 1), ("max_age", 0), ("capacity", self.recoveries)):
            _require(getattr(self, name) >= least, name, getattr(self, name), f"{least} or more")
        several = self.branches == 0 or self.branches >= 2
        _require(several, "branches", self.branches, "0 (off), or 2 or more, which can be compared")

    def check(self, *, rollouts: int, method: str, needs: Collection[str]) -> None:
        """Raise ValueError where the rest of a config does not go with it.

        Args:
          rollouts: of a group. method: the name of the credit method, needs: what it needs.
        """
        _require(self.branches <= rollouts, "branches", self.branches, f"at most train.rollouts={rollouts}")
        fits = not self.branches or _OF_SAMPLED_TOKENS.isdisjoint(needs)
        reads = "reads something at the sampled tokens of every step, which replayed steps do not have"
        _require(fits, "branches", self.branches, f"0 with credit.method={method!r}, which {reads}")


def _require(ok: bool, name: str, value: object, allowed: str) -> None:
    if not ok:
        raise ValueError(f"fission.{name}={value!r} is not allowed: it must be {allowed}")


@dataclasses.dataclass(frozen=True)
class Error:
    """An error of a rollout.

    Attributes:
      task: the id of its task. update: in which it was made.
      prefix: the rollout up to it, and what the policy is told about it.
    """

    task: str
    update: int
    prefix: Prefix

    @property
    def actions(self) -> tuple[str, ...]:
        """The actions up to the error; errors of a task are told apart by them."""
        return tuple(past.action for past in self.prefix.past)


@dataclasses.dataclass(frozen=True)
class CorrectionBuffer:
    """The errors that wait, in the order in which they were made."""

    errors: tuple[Error, ...] = ()

    def add(self, errors: Sequence[Error], options: FissionOptions) -> Self:
        """With these errors as its newest, each once, and at most `options.capacity` in all."""
        kept: dict[tuple[str, tuple[str, ...]], Error] = {}
        for error in (*self.errors, *errors):
            kept.pop((error.task, error.actions), None)
            kept[error.task, error.actions] = error
        return dataclasses.replace(self, errors=tuple(kept.values())[-options.capacity :])

    def take(self, update: int, options: FissionOptions) -> tuple[tuple[Error, ...], Self]:
        """The `options.recoveries` errors to recover from in an update, and the buffer without them.

        Errors beyond `options.max_age` are dropped. If fewer wait than are asked for, none is taken.
        """
        fresh = [error for error in self.errors if update - error.update <= options.max_age]
        count, lifo = options.recoveries, Order(options.order) is Order.LIFO
        if len(fresh) < count:
            return (), dataclasses.replace(self, errors=tuple(fresh))
        taken, left = (fresh[-count:][::-1], fresh[:-count]) if lifo else (fresh[:count], fresh[count:])
        return tuple(taken), dataclasses.replace(self, errors=tuple(left))

    def to_plain(self) -> list[dict[str, Any]]:
        """As JSON values."""
        return [dataclasses.asdict(error) for error in self.errors]

    @classmethod
    def from_plain(cls, plain: Sequence[Mapping[str, Any]]) -> Self:
        """The buffer that `to_plain` wrote."""
        return cls(tuple(_error(values) for values in plain))


def _error(values: Mapping[str, Any]) -> Error:
    prefix = values["prefix"]
    past = tuple(Past(**{**step, "ids": tuple(step["ids"])}) for step in prefix["past"])
    return Error(values["task"], values["update"], Prefix(prefix["first"], past, prefix["remark"]))
