"""The 16 retail tools.

Each is a function of the database and the JSON arguments. Arguments of any type may come; what Python then
raises is part of the answers, so the order of the checks is that of the original, and nothing is checked
that it does not check.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from envs.tau_bench.common import CALCULATE, THINK, TRANSFER
from envs.tau_bench.database import Database
from envs.tau_bench.tool import Tool

_REASONS = ("no longer needed", "ordered by mistake")


def find_user_id_by_email(database: Database, email: Any) -> str:
    """Id of the user with this address, in any case of letters."""
    for user_id, user in database["users"].items():
        if user["email"].lower() == email.lower():
            return user_id
    return "Error: user not found"


def find_user_id_by_name_zip(database: Database, first_name: Any, last_name: Any, zip: Any) -> str:
    """Id of the first user with this name, in any case of letters, and zip code."""
    for user_id, user in database["users"].items():
        if (
            user["name"]["first_name"].lower() == first_name.lower()
            and user["name"]["last_name"].lower() == last_name.lower()
            and user["address"]["zip"] == zip
        ):
            return user_id
    return "Error: user not found"


def get_order_details(database: Database, order_id: Any) -> str:
    """The order as JSON."""
    if order_id not in database["orders"]:
        return "Error: order not found"
    return json.dumps(database["orders"][order_id])


def get_product_details(database: Database, product_id: Any) -> str:
    """The product with its variants as JSON."""
    if product_id not in database["products"]:
        return "Error: product not found"
    return json.dumps(database["products"][product_id])


def get_user_details(database: Database, user_id: Any) -> str:
    """The user's profile as JSON."""
    if user_id not in database["users"]:
        return "Error: user not found"
    return json.dumps(database["users"][user_id])


def list_all_product_types(database: Database) -> str:
    """Product ids by name, sorted, as JSON."""
    ids = {product["name"]: product["product_id"] for _, product in database["products"].items()}
    return json.dumps(dict(sorted(ids.items())))


def cancel_pending_order(database: Database, order_id: Any, reason: Any) -> str:
    """Cancel a pending order and refund its payments; to gift cards at once."""
    refusal = _refuse_order(database, order_id, "pending", "cancelled")
    if refusal:
        return refusal
    if reason not in _REASONS:
        return "Error: invalid reason"
    order = database["orders"].edit(order_id)
    refunds = []
    for payment in order["payment_history"]:
        method = payment["payment_method_id"]
        refunds.append(_transaction("refund", payment["amount"], method))
        if "gift_card" in method:
            _add_balance(database, order["user_id"], method, payment["amount"])
    order["status"] = "cancelled"
    order["cancel_reason"] = reason
    order["payment_history"].extend(refunds)
    return json.dumps(order)


def modify_pending_order_address(
    database: Database,
    order_id: Any,
    address1: Any,
    address2: Any,
    city: Any,
    state: Any,
    country: Any,
    zip: Any,
) -> str:
    """Replace the address of a pending order."""
    refusal = _refuse_order(database, order_id, "pending", "modified")
    if refusal:
        return refusal
    order = database["orders"].edit(order_id)
    order["address"] = _address(address1, address2, city, state, country, zip)
    return json.dumps(order)


def modify_pending_order_payment(database: Database, order_id: Any, payment_method_id: Any) -> str:
    """Pay a pending order by another method and refund the first payment."""
    refusal = _refuse_order(database, order_id, "pending", "modified")
    if refusal:
        return refusal
    order = database["orders"][order_id]
    methods = database["users"][order["user_id"]]["payment_methods"]
    if payment_method_id not in methods:
        return "Error: payment method not found"
    history = order["payment_history"]
    if len(history) > 1 or history[0]["transaction_type"] != "payment":
        return "Error: there should be exactly one payment for a pending order"
    former, amount = history[0]["payment_method_id"], history[0]["amount"]
    if former == payment_method_id:
        return "Error: the new payment method should be different from the current one"
    method = methods[payment_method_id]
    if method["source"] == "gift_card" and method["balance"] < amount:
        return "Error: insufficient gift card balance to pay for the order"
    order = database["orders"].edit(order_id)
    order["payment_history"].append(_transaction("payment", amount, payment_method_id))
    order["payment_history"].append(_transaction("refund", amount, former))
    if method["source"] == "gift_card":
        _add_balance(database, order["user_id"], payment_method_id, -amount)
    if "gift_card" in former:
        _add_balance(database, order["user_id"], former, amount)
    return json.dumps(order)


def modify_pending_order_items(
    database: Database, order_id: Any, item_ids: Any, new_item_ids: Any, payment_method_id: Any
) -> str:
    """Replace items of a pending order by variants of the same products; can be done once."""
    refusal = _refuse_order(database, order_id, "pending", "modified")
    if refusal:
        return refusal
    refusal, difference = _replacement(database, order_id, item_ids, new_item_ids)
    if refusal:
        return refusal
    refusal = _refuse_payment(database, order_id, payment_method_id, difference, "new item")
    if refusal:
        return refusal
    order = database["orders"].edit(order_id)
    kind = "payment" if difference > 0 else "refund"
    order["payment_history"].append(_transaction(kind, abs(difference), payment_method_id))
    methods = database["users"][order["user_id"]]["payment_methods"]
    if methods[payment_method_id]["source"] == "gift_card":
        _add_balance(database, order["user_id"], payment_method_id, -difference)
    for item_id, new_item_id in zip(item_ids, new_item_ids, strict=True):
        item = _first_item(order, item_id)
        variant = database["products"][item["product_id"]]["variants"][new_item_id]
        item["item_id"] = new_item_id
        item["price"] = variant["price"]
        item["options"] = dict(variant["options"])
    order["status"] = "pending (item modified)"
    return json.dumps(order)


def modify_user_address(
    database: Database,
    user_id: Any,
    address1: Any,
    address2: Any,
    city: Any,
    state: Any,
    country: Any,
    zip: Any,
) -> str:
    """Replace a user's default address."""
    if user_id not in database["users"]:
        return "Error: user not found"
    user = database["users"].edit(user_id)
    user["address"] = _address(address1, address2, city, state, country, zip)
    return json.dumps(user)


def return_delivered_order_items(
    database: Database, order_id: Any, item_ids: Any, payment_method_id: Any
) -> str:
    """Ask for the return of items of a delivered order; refunds go to its payment or a gift card."""
    refusal = _refuse_order(database, order_id, "delivered", "returned")
    if refusal:
        return refusal
    order = database["orders"][order_id]
    if payment_method_id not in database["users"][order["user_id"]]["payment_methods"]:
        return "Error: payment method not found"
    original = order["payment_history"][0]["payment_method_id"]
    if "gift_card" not in payment_method_id and payment_method_id != original:
        return "Error: payment method should be either the original payment method or a gift card"
    present = [item["item_id"] for item in order["items"]]
    for item_id in item_ids:
        if item_ids.count(item_id) > present.count(item_id):
            return "Error: some item not found"
    order = database["orders"].edit(order_id)
    order["status"] = "return requested"
    order["return_items"] = sorted(item_ids)
    order["return_payment_method_id"] = payment_method_id
    return json.dumps(order)


def exchange_delivered_order_items(
    database: Database, order_id: Any, item_ids: Any, new_item_ids: Any, payment_method_id: Any
) -> str:
    """Ask for the exchange of items of a delivered order for variants of the same products."""
    refusal = _refuse_order(database, order_id, "delivered", "exchanged")
    if refusal:
        return refusal
    refusal, difference = _replacement(database, order_id, item_ids, new_item_ids)
    if refusal:
        return refusal
    difference = round(difference, 2)
    refusal = _refuse_payment(database, order_id, payment_method_id, difference, "price difference")
    if refusal:
        return refusal
    order = database["orders"].edit(order_id)
    order["status"] = "exchange requested"
    order["exchange_items"] = sorted(item_ids)
    order["exchange_new_items"] = sorted(new_item_ids)
    order["exchange_payment_method_id"] = payment_method_id
    order["exchange_price_difference"] = difference
    return json.dumps(order)


def _refuse_order(database: Database, order_id: Any, status: str, action: str) -> str:
    """Why the order cannot be acted on, or ""."""
    if order_id not in database["orders"]:
        return "Error: order not found"
    if database["orders"][order_id]["status"] != status:
        return f"Error: non-{status} order cannot be {action}"
    return ""


def _replacement(
    database: Database, order_id: str, item_ids: Any, new_item_ids: Any
) -> tuple[str, int | float]:
    """Why the items cannot be replaced, or "", and the difference of prices in dollars, not rounded."""
    order = database["orders"][order_id]
    present = [item["item_id"] for item in order["items"]]
    for item_id in item_ids:
        if item_ids.count(item_id) > present.count(item_id):
            return f"Error: {item_id} not found", 0
    if len(item_ids) != len(new_item_ids):
        return "Error: the number of items to be exchanged should match", 0
    difference: int | float = 0
    for item_id, new_item_id in zip(item_ids, new_item_ids, strict=True):
        item = _first_item(order, item_id)
        variants = database["products"][item["product_id"]]["variants"]
        if not (new_item_id in variants and variants[new_item_id]["available"]):
            return f"Error: new item {new_item_id} not found or available", 0
        difference += variants[new_item_id]["price"] - item["price"]
    return "", difference


def _refuse_payment(database: Database, order_id: str, method_id: Any, amount: float, purpose: str) -> str:
    """Why the user's method cannot pay the amount (dollars), or ""."""
    methods = database["users"][database["orders"][order_id]["user_id"]]["payment_methods"]
    if method_id not in methods:
        return "Error: payment method not found"
    method = methods[method_id]
    if method["source"] == "gift_card" and method["balance"] < amount:
        return f"Error: insufficient gift card balance to pay for the {purpose}"
    return ""


def _first_item(order: Mapping[str, Any], item_id: Any) -> dict[str, Any]:
    return next(item for item in order["items"] if item["item_id"] == item_id)


def _transaction(kind: str, amount: float, method_id: str) -> dict[str, Any]:
    return {"transaction_type": kind, "amount": amount, "payment_method_id": method_id}


def _add_balance(database: Database, user_id: str, method_id: str, amount: float) -> None:
    method = database["users"].edit(user_id)["payment_methods"][method_id]
    method["balance"] = round(method["balance"] + amount, 2)


def _address(address1: Any, address2: Any, city: Any, state: Any, country: Any, zip: Any) -> dict[str, Any]:
    return {
        "address1": address1,
        "address2": address2,
        "city": city,
        "state": state,
        "country": country,
        "zip": zip,
    }


TOOLS: Mapping[str, Tool] = {
    tool.name: tool
    for tool in (
        CALCULATE,
        Tool("cancel_pending_order", cancel_pending_order, writes=True),
        Tool("exchange_delivered_order_items", exchange_delivered_order_items, writes=True),
        Tool("find_user_id_by_email", find_user_id_by_email),
        Tool("find_user_id_by_name_zip", find_user_id_by_name_zip),
        Tool("get_order_details", get_order_details),
        Tool("get_product_details", get_product_details),
        Tool("get_user_details", get_user_details),
        Tool("list_all_product_types", list_all_product_types),
        Tool("modify_pending_order_address", modify_pending_order_address, writes=True),
        Tool("modify_pending_order_items", modify_pending_order_items, writes=True),
        Tool("modify_pending_order_payment", modify_pending_order_payment, writes=True),
        Tool("modify_user_address", modify_user_address, writes=True),
        Tool("return_delivered_order_items", return_delivered_order_items, writes=True),
        THINK,
        TRANSFER,
    )
}
