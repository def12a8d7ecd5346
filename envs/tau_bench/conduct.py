"""What the agent's policy asks of a call that writes, as far as the trace and the database decide it.

The original score sees none of this. `followed` is for the score that demands the first two rules: know who
the customer is, and have a yes before anything is changed. Source: the policies of tau-bench (arXiv
2406.12045) for retail and airline; rules that depend on what a customer meant (a reason of health, a
complaint) are left out.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from envs.tau_bench.customer import agrees, tokens
from envs.tau_bench.data import Call
from envs.tau_bench.session import RESPOND, Step

# The record of a table in the database before a call, None if there is none.
Records = Callable[[str, str], Any]

NOW = datetime.datetime(2024, 5, 15, 15, 0)
_DAY = datetime.timedelta(hours=24)
_FREE_BAGS = {
    "regular": {"basic_economy": 0, "economy": 1, "business": 2},
    "silver": {"basic_economy": 1, "economy": 2, "business": 3},
    "gold": {"basic_economy": 2, "economy": 3, "business": 3},
}
_MOST_PAYMENTS = {"certificate": 1, "credit_card": 1, "gift_card": 3}
_MOST_PASSENGERS = 5


def forbidden(call: Call, records: Records) -> str:
    """Why the policy forbids a call that changed the database; "" if it does not, or cannot be decided.

    Args:
      call: with arguments that the tool took.
      records: the database before the call.
    """
    rule = _RULES.get(call.name)
    if rule is None:
        return ""
    try:
        return rule(call.kwargs, records)
    except (TypeError, LookupError, AttributeError):
        # Some calls with arguments of the wrong kind write before they fail, or even succeed.
        return ""


def _cancel(kwargs: Mapping[str, Any], records: Records) -> str:
    reservation = records("reservations", kwargs["reservation_id"])
    statuses = [_flight_status(flight, records) for flight in reservation["flights"]]
    if any(status in ("landed", "flying") for status in statuses):
        return "a segment was flown"
    booked = datetime.datetime.fromisoformat(reservation["created_at"])
    covered = (
        NOW - booked <= _DAY
        or "cancelled" in statuses
        or reservation["cabin"] == "business"
        or reservation["insurance"] == "yes"
    )
    return "" if covered else "neither booked within a day, cancelled, business nor insured"


def _flight_status(flight: Mapping[str, Any], records: Records) -> str:
    known = records("flights", flight["flight_number"])
    return known["dates"].get(flight["date"], {}).get("status", "") if known else ""


def _flights(kwargs: Mapping[str, Any], records: Records) -> str:
    reservation = records("reservations", kwargs["reservation_id"])
    before, after = (
        [(flight["flight_number"], flight["date"]) for flight in flights]
        for flights in (reservation["flights"], kwargs["flights"])
    )
    if before != after and reservation["cabin"] == "basic_economy":
        return "basic economy flights cannot be changed"
    first = records("flights", after[0][0]) if after else None
    if first is None or first["origin"] != reservation["origin"]:
        return "the origin cannot be changed"
    return ""


def _bags(kwargs: Mapping[str, Any], records: Records) -> str:
    reservation = records("reservations", kwargs["reservation_id"])
    if kwargs["total_baggages"] < reservation["total_baggages"]:
        return "bags cannot be removed"
    free = _free_bags(reservation["user_id"], reservation["cabin"], reservation["passengers"], records)
    return _unpaid_bags(kwargs, free)


def _book(kwargs: Mapping[str, Any], records: Records) -> str:
    if len(kwargs["passengers"]) > _MOST_PASSENGERS:
        return f"more than {_MOST_PASSENGERS} passengers"
    methods = [payment["payment_id"] for payment in kwargs["payment_methods"]]
    for kind, most in _MOST_PAYMENTS.items():
        if sum(method.startswith(kind) for method in methods) > most:
            return f"more than {most} of {kind}"
    free = _free_bags(kwargs["user_id"], kwargs["cabin"], kwargs["passengers"], records)
    return _unpaid_bags(kwargs, free)


def _free_bags(user: str, cabin: str, passengers: Sequence[Any], records: Records) -> int:
    membership = records("users", user)["membership"]
    return _FREE_BAGS.get(membership, {}).get(cabin, 0) * len(passengers)


def _unpaid_bags(kwargs: Mapping[str, Any], free: int) -> str:
    least = max(0, kwargs["total_baggages"] - free)
    return f"{least} bags are not free" if kwargs["nonfree_baggages"] < least else ""


def _certificate(kwargs: Mapping[str, Any], records: Records) -> str:
    user = records("users", kwargs["user_id"])
    owned = [records("reservations", key) for key in user["reservations"]]
    covered = any(r and (r["insurance"] == "yes" or r["cabin"] == "business") for r in owned)
    return "" if covered or user["membership"] != "regular" else "a regular member without insurance"


_RULES: Mapping[str, Callable[[Mapping[str, Any], Records], str]] = {
    "cancel_reservation": _cancel,
    "update_reservation_flights": _flights,
    "update_reservation_baggages": _bags,
    "book_reservation": _book,
    "send_certificate": _certificate,
}


def followed(
    domain: str, opening: str, trace: Sequence[Step], database: Mapping[str, Mapping[str, Any]]
) -> bool:
    """Whether each call that changed the database was of an identified customer and had a yes before it.

    The yes is the customer's last message, in answer to a reply. A retail customer is identified by a
    `find_user_id_by_...` call, an airline's by saying the user id, or by `get_user_details`.

    Args:
      opening: the customer's first message. database: the initial one.
    """
    heard, last, found = tokens(opening), "", set[str]()
    for step in trace:
        if step.call.name == RESPOND:
            last = step.outcome.text
            heard |= tokens(last)
        elif step.diff:
            owners = {_owner(path, new, database) for path, _, new in step.diff} - {""}
            said = {owner for owner in owners if domain == "airline" and owner.lower() in heard}
            if not agrees(last) or owners - said - found:
                return False
        elif step.call.name.startswith("find_user_id_by"):
            found.add(step.outcome.text)
        elif step.call.name == "get_user_details" and domain == "airline":
            found |= {key for key in step.call.kwargs.values() if isinstance(key, str)}
    return True


def _owner(path: Sequence[Any], new: Any, database: Mapping[str, Mapping[str, Any]]) -> str:
    """The user whose data a changed leaf belongs to; "" for a leaf of a new record that does not say it."""
    table, key = path[0], path[1]
    if table == "users":
        return str(key)
    if key in database[table]:
        return str(database[table][key]["user_id"])
    return str(new) if path[2:] == ("user_id",) else ""
