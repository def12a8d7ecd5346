"""The expert on generated tasks: decides from the conversation alone, and goes on from any point of it.

It asks who the customer is, reads what it needs, proposes, writes after a yes, and ends. What it has to do it
takes from the customer's first message, by the forms of `retail_tasks` and `airline_tasks`.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from envs.tau_bench.airline_tasks import FREE_BAGS, ILL
from envs.tau_bench.customer import YES
from envs.tau_bench.data import Call
from envs.tau_bench.plan import proposal, say
from envs.tau_bench.session import RESPOND

WHO, DONE, SORRY = say("Who are you?"), say("Done."), say("Sorry, that is not possible.")
_TODAY = "2024-05-15"
_FORMS = {
    "cancel": r"Cancel (?:order|reservation) (?P<id>\S+), (?P<reason>.+)\.",
    "address": r"Send order (?P<id>\S+) to (?P<address1>[^,]+), (?P<city>[^,]+), (?P<state>\w+) "
    r"(?P<zip>\d+)\.",
    "exchange": r"Exchange the (?P<item>\w+) of order (?P<id>\S+) for a (?P<first>\w+) one, or else "
    r"(?P<second>\w+), paid (?P<how>.+)\.",
    "return": r"Return the (?P<items>.+) of order (?P<id>\S+), refund (?P<how>.+)\.",
    "total": r"What did I pay for (?:order|reservation) (?P<id>\S+)\?",
    "bags": r"Add one checked bag to reservation (?P<id>\S+), paid with (?P<method>\w+)\.",
    "flights": r"Move reservation (?P<id>\S+) to the cheapest flight on (?P<date>\S+), paid with .+\.",
}


@dataclasses.dataclass
class Memory:
    """What the agent has seen: the customer's first message, and its calls with their answers."""

    opening: str
    past: list[tuple[Call, str]] = dataclasses.field(default_factory=list)

    def answer(self, call: Call) -> str | None:
        """The last answer to a call that is no error, None if there is none."""
        for past, text in reversed(self.past):
            if past.name == call.name and past.kwargs == call.kwargs and not text.startswith("Error"):
                return text
        return None

    def tried(self, call: Call) -> bool:
        """Whether a call was made."""
        return any(past.name == call.name and past.kwargs == call.kwargs for past, _ in self.past)


class _MissingError(Exception):
    """A decision needs the answer to a call that was not made yet: it comes next."""

    def __init__(self, call: Call) -> None:
        super().__init__(call.name)
        self.call = call


def decide(domain: str, memory: Memory) -> Call:
    """The next call of the expert.

    Raises:
      ValueError: the customer's first message has none of the forms.
    """
    kind, wish = _understand(memory.opening)
    try:
        return (_retail if domain == "retail" else _airline)(kind, wish, memory)
    except _MissingError as missing:
        return missing.call


def _understand(opening: str) -> tuple[str, Mapping[str, str]]:
    for kind, form in _FORMS.items():
        if match := re.fullmatch(form, opening):
            return kind, match.groupdict()
    raise ValueError(f"the expert does not understand the customer: {opening!r}")


def _read(memory: Memory, name: str, **kwargs: Any) -> Any:
    """The JSON of a read; `_MissingError` if it has not been made, or failed."""
    call = Call(name, kwargs)
    text = memory.answer(call)
    if text is None:
        raise _MissingError(SORRY if memory.tried(call) else call)
    return json.loads(text)


def _customer(memory: Memory, form: str) -> Mapping[str, str]:
    """Who the customer is."""
    for past, text in memory.past:
        if past.name == RESPOND and (match := re.fullmatch(form, text)):
            return match.groupdict()
    raise _MissingError(WHO)


def _settle(memory: Memory, call: Call, asked: Call | None = None) -> Call:
    """Propose a write, by the call itself or in words, make it after a yes, then end."""
    if memory.tried(call):
        return DONE
    asked = proposal(call) if asked is None else asked
    return call if memory.answer(asked) == YES else asked


def _retail(kind: str, wish: Mapping[str, str], memory: Memory) -> Call:
    name = _customer(memory, r"(?P<first_name>\w+) (?P<last_name>\w+), zip (?P<zip>\d+)\.")
    find = Call("find_user_id_by_name_zip", name)
    user_id = memory.answer(find)
    if user_id is None:
        return SORRY if memory.tried(find) else find
    order = _read(memory, "get_order_details", order_id=wish["id"])
    if kind == "total":
        return say(f"You paid {order['payment_history'][0]['amount']}.")
    key = {"order_id": wish["id"]}
    write: Callable[..., Call | None] = {
        "cancel": _cancel_order,
        "address": _address,
        "exchange": _exchange,
        "return": _return,
    }[kind]
    call = write(wish, key, order, user_id, memory)
    return SORRY if call is None else _settle(memory, call, _in_words(call, order))


def _in_words(call: Call, order: Any) -> Call | None:
    """A proposal that names the items beside their ids; None for calls without items."""
    if "item_ids" not in call.kwargs:
        return None
    names = {item["item_id"]: item["name"] for item in order["items"]}
    items = " and ".join(f"{names[id_]} item {id_}" for id_ in call.kwargs["item_ids"])
    method, order_id = call.kwargs["payment_method_id"], call.kwargs["order_id"]
    if "new_item_ids" in call.kwargs:
        (new,) = call.kwargs["new_item_ids"]
        return say(f"OK to exchange {items} for item {new}, order {order_id}, paid with {method}?")
    return say(f"OK to return {items}, order {order_id}, refund to {method}?")


def _cancel_order(wish: Any, key: Any, order: Any, user_id: str, memory: Memory) -> Call | None:
    call = Call("cancel_pending_order", {**key, "reason": wish["reason"]})
    return call if order["status"] == "pending" or memory.tried(call) else None


def _address(wish: Any, key: Any, order: Any, user_id: str, memory: Memory) -> Call:
    parts = {"address1": wish["address1"], "address2": "", "city": wish["city"], "state": wish["state"]}
    return Call("modify_pending_order_address", {**key, **parts, "country": "USA", "zip": wish["zip"]})


def _exchange(wish: Any, key: Any, order: Any, user_id: str, memory: Memory) -> Call | None:
    item = next(item for item in order["items"] if item["name"] == wish["item"])
    method = _method(wish["how"], order, user_id, memory)
    variants = _read(memory, "get_product_details", product_id=item["product_id"])["variants"].values()
    for color in (wish["first"], wish["second"]):
        for variant in variants:
            if variant["options"]["color"] == color and variant["available"]:
                items = {"item_ids": [item["item_id"]], "new_item_ids": [variant["item_id"]]}
                return Call("exchange_delivered_order_items", {**key, **items, "payment_method_id": method})
    return None


def _return(wish: Any, key: Any, order: Any, user_id: str, memory: Memory) -> Call:
    names = wish["items"].split(" and the ")
    ids = [item["item_id"] for name in names for item in order["items"] if item["name"] == name]
    method = _method(wish["how"], order, user_id, memory)
    return Call("return_delivered_order_items", {**key, "item_ids": ids, "payment_method_id": method})


def _method(how: str, order: Any, user_id: str, memory: Memory) -> str:
    if how == "as before":
        return str(order["payment_history"][0]["payment_method_id"])
    methods = _read(memory, "get_user_details", user_id=user_id)["payment_methods"]
    return next(method for method in methods if method.startswith("gift_card"))


def _airline(kind: str, wish: Mapping[str, str], memory: Memory) -> Call:
    user_id = _customer(memory, r"(?P<id>\w+_\w+)\.")["id"]
    reservation = _read(memory, "get_reservation_details", reservation_id=wish["id"])
    if kind == "total":
        return say(f"You paid {reservation['payment_history'][0]['amount']}.")
    if kind == "cancel":
        call = Call("cancel_reservation", {"reservation_id": wish["id"]})
        return _settle(memory, call) if _cancellable(reservation, wish["reason"]) else SORRY
    if kind == "bags":
        return _settle(memory, _bags(wish, reservation, user_id, memory))
    flights = _flights(wish, reservation, user_id, memory)
    return SORRY if flights is None else _settle(memory, flights)


def _cancellable(reservation: Any, reason: str) -> bool:
    recent = reservation["created_at"].startswith(_TODAY)
    insured = reservation["insurance"] == "yes" and reason == ILL
    return recent or insured or reservation["cabin"] == "business"


def _bags(wish: Any, reservation: Any, user_id: str, memory: Memory) -> Call:
    user = _read(memory, "get_user_details", user_id=user_id)
    free = FREE_BAGS[user["membership"], reservation["cabin"]] * len(reservation["passengers"])
    total = reservation["total_baggages"] + 1
    bags = {"total_baggages": total, "nonfree_baggages": max(0, total - free)}
    key = {"reservation_id": wish["id"]}
    return Call("update_reservation_baggages", {**key, **bags, "payment_id": wish["method"]})


def _flights(wish: Any, reservation: Any, user_id: str, memory: Memory) -> Call | None:
    cabin, date = reservation["cabin"], wish["date"]
    route = {key: reservation[key] for key in ("origin", "destination")}
    offers = _read(memory, "search_direct_flight", **route, date=date)
    free = [offer for offer in offers if offer["available_seats"][cabin] >= len(reservation["passengers"])]
    methods = _read(memory, "get_user_details", user_id=user_id)["payment_methods"].values()
    if not free:
        return None
    best = min(free, key=lambda offer: offer["prices"][cabin])
    former = sum(flight["price"] for flight in reservation["flights"])
    difference = (best["prices"][cabin] - former) * len(reservation["passengers"])
    cards = [m for m in methods if m["source"] == "gift_card" and m["amount"] >= difference]
    if not cards:
        return None
    kwargs = {
        "reservation_id": wish["id"],
        "cabin": cabin,
        "flights": [{"flight_number": best["flight_number"], "date": date}],
        "payment_id": min(cards, key=lambda card: card["amount"])["id"],
    }
    return Call("update_reservation_flights", kwargs)
