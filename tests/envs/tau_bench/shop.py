"""A shop and an airline small enough to follow by hand, and customers for them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from envs.tau_bench.data import Bench, Call, TaskSpec
from envs.tau_bench.session import STOP


def _variant(item_id: str, price: float, color: str, available: bool = True) -> dict[str, Any]:
    return {"item_id": item_id, "options": {"color": color}, "available": available, "price": price}


def _item(item_id: str, price: float, color: str) -> dict[str, Any]:
    return {
        "name": "Mug",
        "product_id": "10",
        "item_id": item_id,
        "price": price,
        "options": {"color": color},
    }


def _order(order_id: str, status: str, items: list[dict[str, Any]], method: str) -> dict[str, Any]:
    amount = round(sum(item["price"] for item in items), 2)
    payment = {"transaction_type": "payment", "amount": amount, "payment_method_id": method}
    return {
        "order_id": order_id,
        "user_id": "ana_1",
        "address": {
            "address1": "1 Elm",
            "address2": "",
            "city": "X",
            "country": "Y",
            "state": "Z",
            "zip": "1",
        },
        "items": items,
        "fulfillments": [],
        "status": status,
        "payment_history": [payment],
    }


def _database() -> dict[str, dict[str, Any]]:
    mugs = [_item("11", 8.5, "red"), _item("11", 8.5, "red"), _item("12", 9.25, "blue")]
    gift_card = {"source": "gift_card", "balance": 20, "id": "gift_card_1"}
    user = {
        "name": {"first_name": "Ana", "last_name": "Sol"},
        "address": {
            "address1": "1 Elm",
            "address2": "",
            "city": "X",
            "country": "Y",
            "state": "Z",
            "zip": "1",
        },
        "email": "Ana@example.com",
        "payment_methods": {"gift_card_1": gift_card, "paypal_1": {"source": "paypal", "id": "paypal_1"}},
        "orders": ["#W1", "#W2"],
    }
    variants = [
        _variant("11", 8.5, "red"),
        _variant("12", 9.25, "blue"),
        _variant("13", 40.1, "gold"),
        _variant("14", 1.0, "grey", available=False),
    ]
    return {
        "orders": {
            "#W1": _order("#W1", "pending", mugs, "gift_card_1"),
            "#W2": _order("#W2", "delivered", copy.deepcopy(mugs), "paypal_1"),
        },
        "products": {
            "10": {"name": "Mug", "product_id": "10", "variants": {v["item_id"]: v for v in variants}}
        },
        "users": {"ana_1": user},
    }


CANCEL = Call("cancel_pending_order", {"order_id": "#W1", "reason": "no longer needed"})
READ = Call("get_order_details", {"order_id": "#W1"})


def retail_bench() -> Bench:
    """One user, two orders. Tasks: cancel and say the total; nothing to be changed; a transfer."""
    tasks = [
        TaskSpec("ana_1", "Cancel #W1.", (READ, CANCEL), ("26.25",)),
        TaskSpec("ana_1", "Ask.", (READ,), ()),
        TaskSpec("ana_1", "Complain.", (CANCEL, Call("transfer_to_human_agents", {"summary": "x"})), ()),
    ]
    return Bench("retail", _database(), {"test": tasks}, "policy", [], [])


def _flight(number: str, origin: str, destination: str, times: tuple[str, str]) -> dict[str, Any]:
    day = {
        "status": "available",
        "available_seats": {"basic_economy": 0, "economy": 2, "business": 9},
        "prices": {"basic_economy": 50, "economy": 100, "business": 300},
    }
    return {
        "flight_number": number,
        "origin": origin,
        "destination": destination,
        "scheduled_departure_time_est": times[0],
        "scheduled_arrival_time_est": times[1],
        "dates": {"2024-05-20": day, "2024-05-21": {**day, "prices": {**day["prices"], "economy": 120}}},
    }


def airline_bench() -> Bench:
    """One user with a certificate and a card; three flights, two of them a connection over night."""
    flights = [
        _flight("F1", "JFK", "SEA", ("08:00:00", "11:00:00")),
        _flight("F2", "JFK", "ORD", ("23:00:00", "01:00:00+1")),
        _flight("F3", "ORD", "SEA", ("05:00:00", "08:00:00")),
    ]
    methods = [
        {"source": "certificate", "amount": 80, "id": "certificate_1"},
        {"source": "credit_card", "id": "credit_card_1"},
    ]
    user = {
        "name": {"first_name": "Ana", "last_name": "Sol"},
        "payment_methods": {method["id"]: method for method in methods},
        "reservations": [],
    }
    tasks = [TaskSpec("ana_1", "Ask.", (Call("list_all_airports", {}),), ())]
    tables = {
        "flights": {f["flight_number"]: f for f in flights},
        "reservations": {},
        "users": {"ana_1": user},
    }
    return Bench("airline", tables, {"test": tasks}, "policy", [], [])


def booking(*payments: tuple[str, float]) -> dict[str, Any]:
    """Arguments that book F1 on 20 May in economy for one, at 100 dollars."""
    return {
        "user_id": "ana_1",
        "origin": "JFK",
        "destination": "SEA",
        "flight_type": "one_way",
        "cabin": "economy",
        "flights": [{"flight_number": "F1", "date": "2024-05-20"}],
        "passengers": [{"first_name": "Ana", "last_name": "Sol", "dob": "1990-01-01"}],
        "payment_methods": [{"payment_id": name, "amount": amount} for name, amount in payments],
        "total_baggages": 0,
        "nonfree_baggages": 0,
        "insurance": "no",
    }


class Scripted:
    """A customer who gives the answers in turn and then says `ok`."""

    def __init__(self, answers: Sequence[str] = ()) -> None:
        self.answers = list(answers)
        self.heard: list[str] = []

    def reset(self, instruction: str) -> str:
        return "Hi"

    def step(self, content: str) -> str:
        self.heard.append(content)
        return self.answers.pop(0) if self.answers else "ok"


class Leaving:
    """A customer who ends the conversation at the first reply."""

    def reset(self, instruction: str) -> str:
        return "Hi"

    def step(self, content: str) -> str:
        return STOP
