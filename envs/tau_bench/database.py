"""A database that many sessions share: every session sees the base and its own changed records.

Records that a session did not touch are the base's own objects. A write replaces the record by a changed
copy, once for each call, so that no record is ever changed after the call that wrote it: a snapshot is the
small mapping of changed records, and the changes of a call are the differences of a few records.
"""

from __future__ import annotations

import enum
import hashlib
import itertools
import pickle
from collections.abc import Iterator, Mapping
from typing import Any


class Absent(enum.Enum):
    """The value of a path that a record does not have."""

    ABSENT = "<absent>"

    def __str__(self) -> str:
        return self.value


ABSENT = Absent.ABSENT
Path = tuple[str | int, ...]
# (path, old value, new value); the path begins with table and record id, list positions are numbers.
Change = tuple[Path, Any, Any]
# (table, record id) -> record
Records = Mapping[tuple[str, str], Any]


class Table:
    """One table of a `Database`. Records that it returns are for reading, but those of `edit`."""

    def __init__(self, name: str, base: Mapping[str, Any]) -> None:
        self.name = name
        self._base = base
        self.changed: dict[str, Any] = {}
        self.before: dict[str, Any] = {}

    def __contains__(self, key: Any) -> bool:
        return key in self.changed or key in self._base

    def __getitem__(self, key: Any) -> Any:
        return self.changed[key] if key in self.changed else self._base[key]

    def items(self) -> Iterator[tuple[str, Any]]:
        """(id, record) in the order of the base, then the added ones."""
        for key, record in self._base.items():
            yield key, self.changed.get(key, record)
        for key, record in self.changed.items():
            if key not in self._base:
                yield key, record

    def edit(self, key: str) -> Any:
        """The session's own copy of a record, to be changed during the present call."""
        if key not in self.before:
            record = self[key]
            self.before[key] = record
            self.changed[key] = copy_record(record)
        return self.changed[key]

    def put(self, key: str, record: Any) -> None:
        """Add or replace a whole record."""
        if key not in self.before:
            self.before[key] = self.changed.get(key, self._base.get(key, ABSENT))
        self.changed[key] = record


class Database:
    """Copy-on-write view of a base database of one domain; makes of the base only references.

    Args:
      domain: whose tools work on it.
      base: table -> id -> record; never changed.
    """

    def __init__(self, domain: str, base: Mapping[str, Mapping[str, Any]]) -> None:
        self.domain = domain
        self._tables = {name: Table(name, records) for name, records in base.items()}

    def __getitem__(self, table: str) -> Table:
        return self._tables[table]

    def records(self) -> Records:
        """The records that differ from the base by identity: a snapshot, as they never change again."""
        return {(name, key): record for name, t in self._tables.items() for key, record in t.changed.items()}

    def take_changes(self) -> tuple[Change, ...]:
        """What was written since the last call of this method, leaf by leaf; the next call starts anew."""
        changes: list[Change] = []
        for name, table in self._tables.items():
            for key, before in table.before.items():
                changes.extend(leaf_changes(before, table[key], (name, key)))
            table.before.clear()
        return tuple(changes)

    def digest(self, texts: Mapping[str, Mapping[str, str]]) -> str:
        """SHA-256 as the original's, of the text of the whole database as nested tuples.

        Args:
          texts: `record_texts` of the base.
        """
        tables = []
        for name in sorted(self._tables):
            own = {key: _pair_text(key, record) for key, record in self._tables[name].changed.items()}
            merged = {**texts[name], **own}
            tables.append(f"({name!r}, {_tuple_text([merged[key] for key in sorted(merged)])})")
        return hashlib.sha256(_tuple_text(tables).encode()).hexdigest()


def record_texts(base: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """Text of each record of a base, for `Database.digest`."""
    return {
        name: {key: _pair_text(key, record) for key, record in table.items()} for name, table in base.items()
    }


def _pair_text(key: str, record: Any) -> str:
    return f"({key!r}, {canonical(record)})"


def _tuple_text(parts: list[str]) -> str:
    return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"


def copy_record(record: Any) -> Any:
    """A deep copy of JSON values."""
    return pickle.loads(pickle.dumps(record, pickle.HIGHEST_PROTOCOL))


def canonical(value: Any) -> str:
    """The text by which the original compares databases.

    Key order is ignored and list order is not; leaves compare by `repr`, so 100 and 100.0 differ. A mapping
    cannot be told from a list of its pairs, nor `{}` from `[]`.
    """
    return repr(_nested(value))


def _nested(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple((key, _nested(item)) for key, item in sorted(value.items()))
    if isinstance(value, list):
        return tuple(_nested(item) for item in value)
    return value


def leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """(path, scalar) of every leaf, in document order; an empty list or mapping is a leaf itself."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from leaves(item, (*path, key))
    elif isinstance(value, list) and value:
        for i, item in enumerate(value):
            yield from leaves(item, (*path, i))
    else:
        yield path, value


def leaf_changes(before: Any, after: Any, path: Path = ()) -> Iterator[Change]:
    """Leaves that differ, with `ABSENT` for no value, in document order of `before`, then what is new.

    Two mappings and two lists are compared entry by entry; what appears or vanishes is told leaf by leaf; a
    value that changes its kind is one change. Scalars differ if their `repr` does (1, 1.0, True).
    """
    if isinstance(before, dict) and isinstance(after, dict):
        for key in {**before, **after}:
            yield from leaf_changes(before.get(key, ABSENT), after.get(key, ABSENT), (*path, key))
    elif isinstance(before, list) and isinstance(after, list):
        for i, (old, new) in enumerate(itertools.zip_longest(before, after, fillvalue=ABSENT)):
            yield from leaf_changes(old, new, (*path, i))
    elif before is ABSENT:
        yield from ((at, ABSENT, value) for at, value in leaves(after, path))
    elif after is ABSENT:
        yield from ((at, value, ABSENT) for at, value in leaves(before, path))
    elif repr(before) != repr(after):
        yield path, before, after


def equal(base: Mapping[str, Mapping[str, Any]], left: Records, right: Records) -> bool:
    """Whether two states over one base have the same digest, from the changed records alone."""
    for table, key in {**left, **right}:
        original = base[table].get(key, ABSENT)
        one, other = left.get((table, key), original), right.get((table, key), original)
        if (one is ABSENT) != (other is ABSENT):
            return False
        if one is not other and canonical(one) != canonical(other):
            return False
    return True
