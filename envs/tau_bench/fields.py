"""Fields of records: which are judged together, how they differ from the start, and what can be repaired."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from envs.base import Status
from envs.tau_bench.data import Bench
from envs.tau_bench.evidence import MISSING, value_text

# Fields that are judged together, by what an agent decides with them; other fields are groups by themselves.
_GROUPS = {
    "orders": {
        "cancel_reason": "reason",
        "payment_history": "payments",
        "exchange_items": "items",
        "return_items": "items",
        "exchange_new_items": "new_items",
        "exchange_price_difference": "new_items",
        "exchange_payment_method_id": "payment",
        "return_payment_method_id": "payment",
    },
    "reservations": {
        "payment_history": "payments",
        "total_baggages": "bags",
        "nonfree_baggages": "bags",
        **dict.fromkeys(("reservation_id", "user_id", "created_at", "insurance"), "terms"),
        **dict.fromkeys(("origin", "destination", "flight_type", "cabin"), "trip"),
    },
    "users": {"payment_methods": "balances"},
}
_GROWING = frozenset({"payment_history", "reservations", "orders"})
# Fields of existing records that are written more than once in the life of a record.
_REWRITABLE: Mapping[str, frozenset[str]] = {
    "orders": frozenset({"address"}),
    "reservations": frozenset({"flights", "passengers", "total_baggages", "nonfree_baggages"}),
    "users": frozenset({"address", "payment_methods"}),
}


@dataclasses.dataclass(frozen=True)
class Field:
    """A field of a record, its value at the start and the one that it must have at the end.

    Either may be `MISSING`. Of a list that grows in several steps, a field is one of its stretches: the
    entries from `start` to `stop` (None: all the rest).
    """

    table: str
    key: str
    name: str
    before: Any
    wanted: Any
    start: int = 0
    stop: int | None = None

    def cut(self, value: Any) -> Any:
        """What the field is about, of the value that the record has."""
        return value[self.start : self.stop] if isinstance(value, list) else value

    def ends_at(self, length: int) -> bool:
        """Whether a list of that length ends inside the stretch; anything does for other fields."""
        return not self.grows or (self.start < length and (self.stop is None or length <= self.stop))

    def stretches(self, stops: Sequence[int]) -> Iterator[Field]:
        """The stretches of a list whose ends are `stops`, the last of which is open."""
        for start, stop in zip((0, *stops[:-1]), (*stops[:-1], None), strict=True):
            part = dataclasses.replace(self, start=start, stop=stop)
            yield dataclasses.replace(part, before=part.cut(self.before), wanted=part.cut(self.wanted))

    @property
    def grows(self) -> bool:
        """Whether it is a list to which entries are only added."""
        return self.name in _GROWING

    @property
    def rewritable(self) -> bool:
        """Whether a wrong value can be replaced by another."""
        return self.name in _REWRITABLE.get(self.table, ())

    def verdict(self, now: Any) -> Status:
        """SATISFIED, UNSATISFIED if it can still become right, else VIOLATED: in order of badness.

        Args:
          now: its value, see `cut`.
        """
        text = value_text(now)
        if text == value_text(self.wanted):
            return Status.SATISFIED
        if text == value_text(self.before):
            return Status.UNSATISFIED
        if self.grows:
            return Status.UNSATISFIED if _begins(self.wanted, now) else Status.VIOLATED
        return Status.UNSATISFIED if self.rewritable else Status.VIOLATED


def _begins(whole: Any, part: Any) -> bool:
    if not isinstance(whole, list) or not isinstance(part, list):
        return False
    return [value_text(v) for v in whole[: len(part)]] == [value_text(v) for v in part]


def group(field: Field) -> str:
    """The group that a field is judged in."""
    return _GROUPS.get(field.table, {}).get(field.name, field.name)


def fields_of(bench: Bench, table: str, key: str, record: Mapping[str, Any]) -> Iterator[Field]:
    """The fields that a record has or may get; the value it has is the wanted one."""
    original = bench.database[table].get(key, {})
    for name in dict.fromkeys([*original, *record, *_GROUPS.get(table, {})]):
        yield Field(table, key, name, original.get(name, MISSING), record.get(name, MISSING))


def differing(bench: Bench, table: str, key: str, record: Mapping[str, Any]) -> Iterator[Field]:
    """Those that differ from the start."""
    for field in fields_of(bench, table, key, record):
        if field.before is not field.wanted and value_text(field.before) != value_text(field.wanted):
            yield field
