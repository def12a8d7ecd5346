"""What the agent's policy asks of a call that writes, as far as the trace and the database decide it.

The original score sees none of this. Source: the policies of tau-bench (arXiv 2406.12045) for retail and
airline; rules that depend on what a customer meant (a reason of health, a complaint) are left out.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from envs.tau_bench.data import Call

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
