"""What a conversation has shown: the observation variables of the verifier, and what its writes rested on.

The ground truth says what to write; a `Need` lists what an agent had to see to write it. Reads count while
the fields are untouched; an agent that wrote rightly without a read is taken to have known.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from envs.tau_bench import tools
from envs.tau_bench.customer import agrees, tokens
from envs.tau_bench.data import Bench, Call, TaskSpec
from envs.tau_bench.database import Database
from envs.tau_bench.session import RESPOND, Step

OBSERVED = "seen "
IDENTITY = f"{OBSERVED}identity"
USED = "used"
_READS = ("find_", "get_", "list_", "search_")
Records = Mapping[tuple[str, str], Any]
# (table, record id, field)
Place = tuple[str, str, str]


class Missing(enum.Enum):
    """The value of a field that a record does not have."""

    MISSING = "absent"


MISSING = Missing.MISSING


def value_text(value: Any) -> str:
    """A text that is equal for values that the original score takes for equal.

    Key order does not count, leaves count as Python writes them, and a mapping is as the list of its pairs.
    """
    if isinstance(value, Missing):
        return value.value
    if isinstance(value, dict):
        pairs = (f"({key!a} {value_text(item)})" for key, item in sorted(value.items()))
        return f"({' '.join(pairs)})"
    if isinstance(value, list):
        return f"({' '.join(map(value_text, value))})"
    return ascii(value)


@dataclasses.dataclass(frozen=True)
class Truth:
    """The ground truth, replayed.

    Attributes:
      records: those that differ from the base at the end.
      writes: for each call, the fields it changed, and the lengths that those have then which are lists.
    """

    records: Records
    writes: tuple[Mapping[Place, int], ...]


def replay(bench: Bench, task: TaskSpec) -> Truth:
    """Run the ground-truth calls on the initial database; the one that ends the conversation is left out."""
    database, writes = Database(bench.domain, bench.database), []
    for call in task.actions:
        if call.name not in tools.TERMINATING:
            tools.call_tool(database, call)
        changes = database.take_changes()
        # Of a record that is empty as a whole there is no field to name.
        places = {(str(p[0]), str(p[1]), str(p[2])) for p, _, _ in changes if len(p) > 2}
        records = database.records()
        values = {place: records[place[:2]].get(place[2]) for place in places}
        writes.append({p: len(v) if isinstance(v, list) else 0 for p, v in values.items()})
    return Truth(database.records(), tuple(writes))


@dataclasses.dataclass(frozen=True)
class Need:
    """What a ground-truth write rests on.

    Attributes:
      number: counted from 1. call: its index among the ground-truth calls.
      shown: variable -> ids that must have been shown; the record's own id must have been read.
      record: id of the record that the call is about.
    """

    number: int
    call: int
    record: str
    shown: Mapping[str, frozenset[str]]

    @property
    def atom(self) -> str:
        """Id of the atom."""
        return f"known:{self.number}"

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables of the atom."""
        return (self.read, *self.shown)

    @property
    def read(self) -> str:
        """The variable that says that the record was read."""
        return f"{OBSERVED}record {self.number}"

    @property
    def consent(self) -> str:
        """The variable that says that the customer agreed."""
        return f"{OBSERVED}consent {self.number}"


def needs(bench: Bench, task: TaskSpec, truth: Truth) -> tuple[Need, ...]:
    """What the writes of the ground truth rest on that change the final state."""
    found: list[Need] = []
    for i, (call, places) in enumerate(zip(task.actions, truth.writes, strict=True)):
        if any(_differs(bench, truth.records, place) for place in places):
            found.append(_need(bench, len(found) + 1, i, call))
    return tuple(found)


def _differs(bench: Bench, records: Records, place: Place) -> bool:
    table, key, name = place
    now, before = records.get((table, key), {}), bench.database[table].get(key, {})
    return value_text(now.get(name, MISSING)) != value_text(before.get(name, MISSING))


def _need(bench: Bench, number: int, index: int, call: Call) -> Need:
    kwargs = call.kwargs
    record = next(kwargs[key] for key in ("order_id", "reservation_id", "user_id") if key in kwargs)
    known = bench.database.get("reservations", {}).get(record, {}).get("flights", [])
    old = {flight["flight_number"] for flight in known}
    options = {*kwargs.get("new_item_ids", []), *(f["flight_number"] for f in kwargs.get("flights", []))}
    payments = {kwargs[key] for key in ("payment_method_id", "payment_id") if key in kwargs}
    payments |= {payment["payment_id"] for payment in kwargs.get("payment_methods", [])}
    shown = {"options": options - old, "payment": payments}
    return Need(
        number=number,
        call=index,
        record=record,
        shown={
            f"{OBSERVED}{what} {number}": frozenset(id_.lower() for id_ in ids)
            for what, ids in shown.items()
            if ids
        },
    )


@dataclasses.dataclass(frozen=True)
class Facts:
    """What has been shown and done so far.

    Attributes:
      read: ids of records that were read. shown: words of the customer's messages and of what was read.
      users: ids of users who were identified.
      agreed: the customer's last message, after a reply of the agent, is a yes.
      unidentified, unconfirmed, forbidden: names of the calls that changed the database that way.
      cabins: reservation -> the cabin it was moved to; the tool leaves the record's own as it was.
      seen: observation variable -> text; those not in it are not available yet.
    """

    read: frozenset[str] = frozenset()
    shown: frozenset[str] = frozenset()
    users: frozenset[str] = frozenset()
    agreed: bool = False
    unidentified: tuple[str, ...] = ()
    unconfirmed: tuple[str, ...] = ()
    forbidden: tuple[str, ...] = ()
    cabins: Mapping[str, str] = dataclasses.field(default_factory=dict)
    seen: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Write:
    """A change of the database: whose data, and why the agent's policy forbids it ("" if it does not)."""

    owners: frozenset[str]
    forbidden: str


def heard(facts: Facts, message: str, user_id: str, domain: str) -> Facts:
    """After a message of the customer. An airline's customer is identified by saying the user id."""
    words = tokens(message)
    users = facts.users | {user_id} if domain == "airline" and user_id.lower() in words else facts.users
    return dataclasses.replace(facts, shown=facts.shown | words, users=users)


def update(facts: Facts, step: Step, write: Write | None, user_id: str, domain: str) -> Facts:
    """After an action; see `learn` for what follows from it."""
    call, answer = step.call, step.outcome.text
    if call.name == RESPOND and step.outcome.source == "user":
        return dataclasses.replace(heard(facts, answer, user_id, domain), agreed=agrees(answer))
    if write is not None:
        return _after_write(facts, call, write)
    if not call.name.startswith(_READS) or answer.startswith(("Error", "Unknown action")):
        return facts
    users = facts.users
    if call.name.startswith("find_user_id_by"):
        users = users | {answer}
    if call.name == "get_user_details" and domain == "airline":
        users = users | {str(call.kwargs["user_id"])}
    return dataclasses.replace(
        facts,
        read=facts.read | {value for value in call.kwargs.values() if isinstance(value, str)},
        shown=facts.shown | tokens(answer),
        users=users,
    )


def _after_write(facts: Facts, call: Call, write: Write) -> Facts:
    name, moved = call.name, {}
    if name == "update_reservation_flights":
        moved = {str(call.kwargs["reservation_id"]): str(call.kwargs["cabin"])}
    return dataclasses.replace(
        facts,
        cabins={**facts.cabins, **moved},
        unidentified=(*facts.unidentified, *([name] if write.owners - facts.users else [])),
        unconfirmed=(*facts.unconfirmed, *([] if facts.agreed else [name])),
        forbidden=(*facts.forbidden, *([f"{name}: {write.forbidden}"] if write.forbidden else [])),
    )


def learn(
    facts: Facts,
    wanted: Sequence[Need],
    *,
    user_id: str,
    proposal: str,
    frozen: Collection[str],
    used: Collection[str],
) -> Facts:
    """Fill in the observation variables.

    Args:
      proposal: the agent's reply that the customer just agreed to, "" if there is none.
      frozen: `known` atoms whose fields were written; what is shown after that comes too late.
      used: `known` atoms of which some field is right.
    """
    seen = dict(facts.seen)
    if user_id in facts.users:
        seen.setdefault(IDENTITY, "known")
    named = {need.number for need in wanted if need.record.lower() in tokens(proposal)}
    for need in wanted:
        if need.atom in used:
            for variable in need.variables:
                seen.setdefault(variable, USED)
        if need.atom in frozen:
            continue
        if proposal and (need.number in named or not named):
            seen.setdefault(need.consent, "given")
        if need.record in facts.read:
            seen.setdefault(need.read, "read")
        for variable, ids in need.shown.items():
            if ids <= facts.shown:
                seen.setdefault(variable, "shown")
    return dataclasses.replace(facts, seen=seen)
