"""Generated airline tasks: two customers, three reservations, a few flights.

| type | the customer wants | what decides |
|---|---|---|
| `cancel` | a reservation cancelled | it is business, a day old, or insured and the customer ill |
| `deny` | a reservation cancelled | it is not: nothing may change |
| `bags` | one more checked bag | membership and cabin: is it free |
| `flights` | the cheapest flight on another day | price, seats, and the smallest gift card that is enough |
| `total` | to know what was paid | the amount must be said |
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

from envs.tau_bench.data import Bench, Call
from envs.tau_bench.scenario import Scenario, finish, numbers, people

AIRPORTS = ("JFK", "SEA", "DFW", "LAX", "ORD", "MIA", "BOS", "DEN")
CABINS = ("basic_economy", "economy", "business")
MEMBERSHIPS = ("regular", "silver", "gold")
ILL, CHANGED = "I am ill", "my plans changed"
FREE_BAGS = {
    ("regular", "basic_economy"): 0,
    ("regular", "economy"): 1,
    ("regular", "business"): 2,
    ("silver", "basic_economy"): 1,
    ("silver", "economy"): 2,
    ("silver", "business"): 3,
    ("gold", "basic_economy"): 2,
    ("gold", "economy"): 3,
    ("gold", "business"): 3,
}
BAG_PRICE = 50
POLICY = (
    "You help customers of an airline. It is 2024-05-15 15:00:00. Ask for the user id first. A reservation "
    "can be cancelled if it was booked within 24 hours, or in business, or with insurance if the customer is "
    "ill. Bags: regular members have 0, 1, 2 free ones in basic economy, economy, business, silver 1, 2, 3, "
    "gold 2, 3, 3; further ones cost 50 dollars. Basic economy flights cannot be changed. Say what you are "
    "going to do and wait for a yes before you change anything. Refuse what is not possible."
)
_DAYS = tuple(f"2024-05-{day}" for day in range(17, 29))
_OLD, _NEW = "2024-05-10T09:00:00", "2024-05-15T09:00:00"


def airline(task_type: str, rng: random.Random) -> Scenario:
    """A task of one of `AIRLINE_TYPES`."""
    return AIRLINE_TYPES[task_type](_Desk(rng), rng)


class _Desk:
    """A small database and the customer in it."""

    def __init__(self, rng: random.Random) -> None:
        users = people(rng, 2)
        self.rng, self.user_id = rng, users[0]["user_id"]
        self.flights: dict[str, Any] = {}
        self.reservations: dict[str, Any] = {}
        self.users: dict[str, Any] = {}
        self._numbers = iter(numbers(rng, 20))
        letters = rng.sample("ABCDEFGHKLMNPQRSTUVWXYZ", 6)
        codes = [f"{letters[2 * i]}{letters[2 * i + 1]}{rng.randint(2, 9)}" for i in range(3)]
        for user, owned in zip(users, (codes[:2], codes[2:]), strict=True):
            user_id = user.pop("user_id")
            self.users[user_id] = {
                **user,
                "dob": f"19{rng.randint(50, 99)}-0{rng.randint(1, 9)}-{rng.randint(10, 28)}",
                "payment_methods": _methods(rng),
                "saved_passengers": [],
                "membership": rng.choice(MEMBERSHIPS),
                "reservations": list(owned),
            }
            for code in owned:
                self.reservations[code] = self._reservation(code, user_id)
        self.user = self.users[self.user_id]
        self.reservation = self.reservations[codes[0]]

    def fly(self, origin: str, destination: str, day: str, seats: int) -> dict[str, Any]:
        """Add a flight on one day; what a reservation says of it, by cabin."""
        number, start = f"HAT{next(self._numbers)}", self.rng.randint(6, 17)
        economy = self.rng.randint(100, 160)
        prices = {
            "basic_economy": economy - 40,
            "economy": economy,
            "business": economy + self.rng.randint(90, 200),
        }
        self.flights[number] = {
            "flight_number": number,
            "origin": origin,
            "destination": destination,
            "scheduled_departure_time_est": f"{start:02}:00:00",
            "scheduled_arrival_time_est": f"{start + 3:02}:00:00",
            "dates": {
                day: {
                    "status": "available",
                    "available_seats": dict.fromkeys(CABINS, seats),
                    "prices": prices,
                }
            },
        }
        return {
            cabin: {
                "origin": origin,
                "destination": destination,
                "flight_number": number,
                "date": day,
                "price": prices[cabin],
            }
            for cabin in CABINS
        }

    def _reservation(self, code: str, user_id: str) -> dict[str, Any]:
        origin, destination = self.rng.sample(AIRPORTS, 2)
        cabin, user = self.rng.choice(CABINS), self.users[user_id]
        flight = self.fly(origin, destination, self.rng.choice(_DAYS[:6]), 5)[cabin]
        insured = self.rng.random() < 0.4
        method = next(iter(user["payment_methods"]))
        amount = flight["price"] + 30 * insured
        return {
            "reservation_id": code,
            "user_id": user_id,
            "origin": origin,
            "destination": destination,
            "flight_type": "one_way",
            "cabin": cabin,
            "flights": [flight],
            "passengers": [{**user["name"], "dob": user["dob"]}],
            "payment_history": [{"payment_id": method, "amount": amount}],
            "created_at": _OLD,
            "total_baggages": self.rng.randint(0, 2),
            "nonfree_baggages": 0,
            "insurance": "yes" if insured else "no",
        }

    def finish(self, opening: str, *calls: Call, **kwargs: Any) -> Scenario:
        bench = Bench(
            domain="airline",
            database={"flights": self.flights, "reservations": self.reservations, "users": self.users},
            tasks={},
            policy=POLICY,
            rules=[],
            tools=[],
        )
        read = Call("get_reservation_details", {"reservation_id": self.reservation["reservation_id"]})
        return finish(bench, self.user_id, opening, f"{self.user_id}.", [read, *calls], **kwargs)


def _methods(rng: random.Random) -> dict[str, Any]:
    first, second = rng.sample(range(2, 9), 2)
    small, large = rng.randint(10, 50), rng.randint(200, 300)
    amounts = rng.sample([(f"gift_card_{first}", small), (f"gift_card_{second}", large)], 2)
    card = f"credit_card_{rng.randint(1, 9)}"
    return {
        card: {"source": "credit_card", "id": card},
        **{key: {"source": "gift_card", "amount": amount, "id": key} for key, amount in amounts},
    }


def _cancel(desk: _Desk, rng: random.Random) -> Scenario:
    why = rng.choice(("business", "new", "ill"))
    reason = ILL if why == "ill" else rng.choice((ILL, CHANGED))
    desk.reservation["cabin"] = "business" if why == "business" else rng.choice(CABINS[:2])
    desk.reservation["created_at"] = _NEW if why == "new" else _OLD
    desk.reservation["insurance"] = "yes" if why == "ill" else "no"
    opening, call = _wish_to_cancel(desk, reason)
    return desk.finish(opening, call)


def _deny(desk: _Desk, rng: random.Random) -> Scenario:
    insured = rng.random() < 0.5
    desk.reservation["cabin"] = rng.choice(CABINS[:2])
    desk.reservation["created_at"] = _OLD
    desk.reservation["insurance"] = "yes" if insured else "no"
    opening, call = _wish_to_cancel(desk, CHANGED if insured else rng.choice((ILL, CHANGED)))
    return desk.finish(opening, refused=[call])


def _wish_to_cancel(desk: _Desk, reason: str) -> tuple[str, Call]:
    code = desk.reservation["reservation_id"]
    return f"Cancel reservation {code}, {reason}.", Call("cancel_reservation", {"reservation_id": code})


def _bags(desk: _Desk, rng: random.Random) -> Scenario:
    reservation, methods = desk.reservation, desk.user["payment_methods"]
    method = rng.choice([key for key, m in methods.items() if m.get("amount", BAG_PRICE) >= BAG_PRICE])
    free = FREE_BAGS[desk.user["membership"], reservation["cabin"]]
    reservation["nonfree_baggages"] = max(0, reservation["total_baggages"] - free)
    total = reservation["total_baggages"] + 1
    kwargs = {
        "reservation_id": reservation["reservation_id"],
        "total_baggages": total,
        "nonfree_baggages": max(0, total - free),
        "payment_id": method,
    }
    opening = f"Add one checked bag to reservation {reservation['reservation_id']}, paid with {method}."
    look = Call("get_user_details", {"user_id": desk.user_id})
    return desk.finish(opening, look, Call("update_reservation_baggages", kwargs))


def _flights(desk: _Desk, rng: random.Random) -> Scenario:
    reservation = desk.reservation
    reservation["cabin"] = cabin = rng.choice(CABINS[1:])
    code, origin, destination = (reservation[key] for key in ("reservation_id", "origin", "destination"))
    day = rng.choice(_DAYS[6:])
    seats = rng.choice(((4, 7), (4, 7), (0, 5), (5, 0)))
    offers = [desk.fly(origin, destination, day, free)[cabin] for free in seats]
    now = desk.flights[reservation["flights"][0]["flight_number"]]["dates"][reservation["flights"][0]["date"]]
    reservation["flights"][0]["price"] = now["prices"][cabin]
    free = [
        offer
        for offer in offers
        if desk.flights[offer["flight_number"]]["dates"][day]["available_seats"][cabin]
    ]
    if len(free) > 1 and free[0]["price"] == free[1]["price"]:  # so that one is the cheapest
        free[0]["price"] += 5
        desk.flights[free[0]["flight_number"]]["dates"][day]["prices"][cabin] += 5
    best = min(free, key=lambda offer: offer["price"])
    difference = best["price"] - reservation["flights"][0]["price"]
    cards = [m for m in desk.user["payment_methods"].values() if m["source"] == "gift_card"]
    card = min((c for c in cards if c["amount"] >= difference), key=lambda c: c["amount"])
    kwargs = {
        "reservation_id": code,
        "cabin": cabin,
        "flights": [{"flight_number": best["flight_number"], "date": day}],
        "payment_id": card["id"],
    }
    opening = (
        f"Move reservation {code} to the cheapest flight on {day}, paid with the smallest gift card that is "
        "enough."
    )
    reads = [
        Call("search_direct_flight", {"origin": origin, "destination": destination, "date": day}),
        Call("get_user_details", {"user_id": desk.user_id}),
    ]
    return desk.finish(opening, *reads, Call("update_reservation_flights", kwargs))


def _total(desk: _Desk, rng: random.Random) -> Scenario:
    amount = desk.reservation["payment_history"][0]["amount"]
    return desk.finish(
        f"What did I pay for reservation {desk.reservation['reservation_id']}?", outputs=[str(amount)]
    )


AIRLINE_TYPES: Mapping[str, Callable[[_Desk, random.Random], Scenario]] = {
    "cancel": _cancel,
    "deny": _deny,
    "bags": _bags,
    "flights": _flights,
    "total": _total,
}
