"""The 14 airline tools.

Each is a function of the database and the JSON arguments. Arguments of any type may come; what Python then
raises is part of the answers, so the order of the checks is that of the original, and nothing is checked
that it does not check. A call that fails half-way leaves what it wrote, as there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from envs.tau_bench.common import CALCULATE, THINK, TRANSFER
from envs.tau_bench.database import Database, copy_record
from envs.tau_bench.tool import Tool

# Ids of new records are fixed; the last one is taken again when they are used up.
_NEW_RESERVATIONS = ("HATHAT", "HATHAU", "HATHAV")
_NEW_CERTIFICATES = ("certificate_3221322", "certificate_3221323", "certificate_3221324")
_NOW = "2024-05-15T15:00:00"
# Dollars.
_INSURANCE_PRICE = 30
_BAGGAGE_PRICE = 50
_CITIES = {
    "SFO": "San Francisco",
    "JFK": "New York",
    "LAX": "Los Angeles",
    "ORD": "Chicago",
    "DFW": "Dallas",
    "DEN": "Denver",
    "SEA": "Seattle",
    "ATL": "Atlanta",
    "MIA": "Miami",
    "BOS": "Boston",
    "PHX": "Phoenix",
    "IAH": "Houston",
    "LAS": "Las Vegas",
    "MCO": "Orlando",
    "EWR": "Newark",
    "CLT": "Charlotte",
    "MSP": "Minneapolis",
    "DTW": "Detroit",
    "PHL": "Philadelphia",
    "LGA": "LaGuardia",
}


def get_reservation_details(database: Database, reservation_id: Any) -> str:
    """The reservation as JSON."""
    if reservation_id not in database["reservations"]:
        return "Error: user not found"
    return json.dumps(database["reservations"][reservation_id])


def get_user_details(database: Database, user_id: Any) -> str:
    """The user's profile as JSON."""
    if user_id not in database["users"]:
        return "Error: user not found"
    return json.dumps(database["users"][user_id])


def list_all_airports(database: Database) -> str:
    """City by airport code as JSON; the same whatever flights there are."""
    return json.dumps(_CITIES)


def search_direct_flight(database: Database, origin: Any, destination: Any, date: Any) -> str:
    """Flights between two airports with seats and prices on a day, as JSON."""
    found = []
    for _, flight in database["flights"].items():
        if flight["origin"] == origin and flight["destination"] == destination and _open(flight, date):
            found.append(_offer(flight, date))
    return json.dumps(found)


def search_onestop_flight(database: Database, origin: Any, destination: Any, date: Any) -> str:
    """Pairs of flights with one stop, the second after the first has landed, as JSON."""
    flights = [flight for _, flight in database["flights"].items()]
    found = []
    for first in flights:
        if first["origin"] != origin:
            continue
        for second in flights:
            if second["destination"] != destination or second["origin"] != first["destination"]:
                continue
            arrival = first["scheduled_arrival_time_est"]
            # Arrival on the next day reads "02:30:00+1". All flights are in May 2024.
            next_date = f"2024-05-{int(date[-2:]) + 1}" if "+1" in arrival else date
            if arrival > second["scheduled_departure_time_est"]:
                continue
            if _open(first, date) and _open(second, next_date):
                # A fault of the original: seats and prices of the second flight are those of the first's day.
                onward = {**_offer(second, date), "date": next_date}
                found.append([{**_offer(first, date), "date": date}, onward])
    return json.dumps(found)


def book_reservation(
    database: Database,
    user_id: Any,
    origin: Any,
    destination: Any,
    flight_type: Any,
    cabin: Any,
    flights: Any,
    passengers: Any,
    payment_methods: Any,
    total_baggages: Any,
    nonfree_baggages: Any,
    insurance: Any,
) -> str:
    """Book flights for passengers and take the payments, which must add up exactly."""
    if user_id not in database["users"]:
        return "Error: user not found"
    reservation_id = _new_reservation_id(database)
    booked, price = copy_record(flights), 0
    for flight in booked:
        refusal = _refuse_flight(database, flight, cabin, passengers)
        if refusal:
            return refusal
        flight.update(_priced(database, flight, cabin))
        price += flight["price"] * len(passengers)
    if insurance == "yes":
        price += _INSURANCE_PRICE * len(passengers)
    price += _BAGGAGE_PRICE * nonfree_baggages
    refusal = _refuse_payments(database, user_id, payment_methods, price)
    if refusal:
        return refusal
    reservation = {
        "reservation_id": reservation_id,
        "user_id": user_id,
        "origin": origin,
        "destination": destination,
        "flight_type": flight_type,
        "cabin": cabin,
        "flights": booked,
        "passengers": passengers,
        "payment_history": payment_methods,
        "created_at": _NOW,
        "total_baggages": total_baggages,
        "nonfree_baggages": nonfree_baggages,
        "insurance": insurance,
    }
    user = database["users"].edit(user_id)
    for payment in payment_methods:
        method = user["payment_methods"][payment["payment_id"]]
        if method["source"] == "gift_card":
            method["amount"] -= payment["amount"]
        elif method["source"] == "certificate":
            del user["payment_methods"][payment["payment_id"]]
    database["reservations"].put(reservation_id, reservation)
    user["reservations"].append(reservation_id)
    return json.dumps(reservation)


def cancel_reservation(database: Database, reservation_id: Any) -> str:
    """Cancel a reservation and refund every entry of its payment history, refunds included."""
    if reservation_id not in database["reservations"]:
        return "Error: reservation not found"
    reservation = database["reservations"].edit(reservation_id)
    history = reservation["payment_history"]
    history.extend([{"payment_id": entry["payment_id"], "amount": -entry["amount"]} for entry in history])
    reservation["status"] = "cancelled"
    return json.dumps(reservation)


def send_certificate(database: Database, user_id: Any, amount: Any) -> str | None:
    """Give a certificate (dollars) to a user; None once three have been sent to them."""
    if user_id not in database["users"]:
        return "Error: user not found"
    for certificate in _NEW_CERTIFICATES:
        if certificate not in database["users"][user_id]["payment_methods"]:
            methods = database["users"].edit(user_id)["payment_methods"]
            methods[certificate] = {"source": "certificate", "amount": amount, "id": certificate}
            return f"Certificate {certificate} added to user {user_id} with amount {amount}."
    return None


def update_reservation_baggages(
    database: Database, reservation_id: Any, total_baggages: Any, nonfree_baggages: Any, payment_id: Any
) -> str:
    """Change the number of bags and pay for those that are not free and not paid for."""
    if reservation_id not in database["reservations"]:
        return "Error: reservation not found"
    former = database["reservations"][reservation_id]
    price = _BAGGAGE_PRICE * max(0, nonfree_baggages - former["nonfree_baggages"])
    refusal = _refuse_update(database, former["user_id"], payment_id, price)
    if refusal:
        return refusal
    reservation = database["reservations"].edit(reservation_id)
    reservation["total_baggages"] = total_baggages
    reservation["nonfree_baggages"] = nonfree_baggages
    _pay_update(database, reservation, payment_id, price)
    return json.dumps(reservation)


def update_reservation_flights(
    database: Database, reservation_id: Any, cabin: Any, flights: Any, payment_id: Any
) -> str:
    """Replace the flights and pay the difference of prices; the record keeps its former cabin."""
    if reservation_id not in database["reservations"]:
        return "Error: reservation not found"
    former = database["reservations"][reservation_id]
    passengers = former["passengers"]
    booked, price = copy_record(flights), 0
    for flight in booked:
        kept = _kept(former, flight, cabin)
        refusal = "" if kept else _refuse_flight(database, flight, cabin, passengers)
        if refusal:
            return refusal
        flight.update(kept or _priced(database, flight, cabin))
        price += flight["price"] * len(passengers)
    price -= sum(flight["price"] for flight in former["flights"]) * len(passengers)
    refusal = _refuse_update(database, former["user_id"], payment_id, price)
    if refusal:
        return refusal
    reservation = database["reservations"].edit(reservation_id)
    _pay_update(database, reservation, payment_id, price)
    reservation["flights"] = booked
    return json.dumps(reservation)


def update_reservation_passengers(database: Database, reservation_id: Any, passengers: Any) -> str:
    """Replace the passengers by as many others."""
    if reservation_id not in database["reservations"]:
        return "Error: reservation not found"
    if len(passengers) != len(database["reservations"][reservation_id]["passengers"]):
        return "Error: number of passengers does not match"
    reservation = database["reservations"].edit(reservation_id)
    reservation["passengers"] = passengers
    return json.dumps(reservation)


def _open(flight: Mapping[str, Any], date: Any) -> bool:
    return date in flight["dates"] and flight["dates"][date]["status"] == "available"


def _offer(flight: Mapping[str, Any], date: str) -> dict[str, Any]:
    """A flight with its status, seats and prices of one day."""
    return {**{key: value for key, value in flight.items() if key != "dates"}, **flight["dates"][date]}


def _new_reservation_id(database: Database) -> str:
    for reservation_id in _NEW_RESERVATIONS[:-1]:
        if reservation_id not in database["reservations"]:
            return reservation_id
    return _NEW_RESERVATIONS[-1]


def _refuse_flight(database: Database, flight: Any, cabin: Any, passengers: Any) -> str:
    """Why the flight cannot be booked in this cabin for the passengers, or ""."""
    number = flight["flight_number"]
    if number not in database["flights"]:
        return f"Error: flight {number} not found"
    dates, date = database["flights"][number]["dates"], flight["date"]
    if date not in dates:
        return f"Error: flight {number} not found on date {date}"
    if dates[date]["status"] != "available":
        return f"Error: flight {number} not available on date {date}"
    if dates[date]["available_seats"][cabin] < len(passengers):
        return f"Error: not enough seats on flight {number}"
    return ""


def _priced(database: Database, flight: Mapping[str, Any], cabin: str) -> dict[str, Any]:
    """The price of one seat (dollars) and the airports of the agent's flight."""
    data = database["flights"][flight["flight_number"]]
    price = data["dates"][flight["date"]]["prices"][cabin]
    return {"price": price, "origin": data["origin"], "destination": data["destination"]}


def _kept(reservation: Mapping[str, Any], flight: Any, cabin: Any) -> dict[str, Any]:
    """As `_priced`, at the former price if the reservation has this flight in this cabin; else empty."""
    for former in reservation["flights"]:
        if (
            former["flight_number"] == flight["flight_number"]
            and former["date"] == flight["date"]
            and cabin == reservation["cabin"]
        ):
            return {key: former[key] for key in ("price", "origin", "destination")}
    return {}


def _refuse_payments(database: Database, user_id: str, payments: Any, price: Any) -> str:
    """Why the payments of a booking do not do, or ""."""
    methods = database["users"][user_id]["payment_methods"]
    for payment in payments:
        payment_id, amount = payment["payment_id"], payment["amount"]
        if payment_id not in methods:
            return f"Error: payment method {payment_id} not found"
        if (
            methods[payment_id]["source"] in ("gift_card", "certificate")
            and methods[payment_id]["amount"] < amount
        ):
            return f"Error: not enough balance in payment method {payment_id}"
    paid = sum(payment["amount"] for payment in payments)
    if paid != price:
        return f"Error: payment amount does not add up, total price is {price}, but paid {paid}"
    return ""


def _refuse_update(database: Database, user_id: str, payment_id: Any, price: Any) -> str:
    """Why the user's method cannot pay for a change of a reservation, or ""."""
    methods = database["users"][user_id]["payment_methods"]
    if payment_id not in methods:
        return "Error: payment method not found"
    if methods[payment_id]["source"] == "certificate":
        return "Error: certificate cannot be used to update reservation"
    if methods[payment_id]["source"] == "gift_card" and methods[payment_id]["amount"] < price:
        return "Error: gift card balance is not enough"
    return ""


def _pay_update(database: Database, reservation: dict[str, Any], payment_id: str, price: Any) -> None:
    """Enter the price (dollars, negative for a refund) and take it from a gift card; nothing if it is 0."""
    if price == 0:
        return
    reservation["payment_history"].append({"payment_id": payment_id, "amount": price})
    if database["users"][reservation["user_id"]]["payment_methods"][payment_id]["source"] == "gift_card":
        database["users"].edit(reservation["user_id"])["payment_methods"][payment_id]["amount"] -= price


TOOLS: Mapping[str, Tool] = {
    tool.name: tool
    for tool in (
        Tool("book_reservation", book_reservation, writes=True),
        CALCULATE,
        Tool("cancel_reservation", cancel_reservation, writes=True),
        Tool("get_reservation_details", get_reservation_details),
        Tool("get_user_details", get_user_details),
        Tool("list_all_airports", list_all_airports),
        Tool("search_direct_flight", search_direct_flight),
        Tool("search_onestop_flight", search_onestop_flight),
        Tool("send_certificate", send_certificate, writes=True),
        THINK,
        TRANSFER,
        Tool("update_reservation_baggages", update_reservation_baggages, writes=True),
        Tool("update_reservation_flights", update_reservation_flights, writes=True),
        Tool("update_reservation_passengers", update_reservation_passengers, writes=True),
    )
}
