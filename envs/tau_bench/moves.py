"""Calls that an agent could think of on a generated task: the `admissible` commands, for random play.

Every tool takes any call, so this is no complete list: reads of the ids that were shown, proposals and writes
made of what was read (right and wrong ones), and the ways to end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from envs.tau_bench.data import Call
from envs.tau_bench.expert import DONE, SORRY, WHO, Memory
from envs.tau_bench.plan import proposal, say
from envs.tau_bench.retail_tasks import REASONS

_NAMED = re.compile(r"(?P<first_name>\w+) (?P<last_name>\w+), zip (?P<zip>\d+)\.")
# Of one kind of write in one state.
_MOST = 6


def moves(domain: str, memory: Memory) -> tuple[Call, ...]:
    """Calls in a fixed order, none twice."""
    found = [WHO, DONE, SORRY, Call("transfer_to_human_agents", {"summary": "help"})]
    records = list(_records(memory))
    found += _retail_reads(memory, records) if domain == "retail" else _airline_reads(memory, records)
    for write in _retail_writes(records) if domain == "retail" else _airline_writes(records):
        found += [proposal(write), write]
    for record in records:
        if history := record.get("payment_history"):
            found.append(say(f"You paid {history[0]['amount']}."))
    unique = {json.dumps([call.name, dict(call.kwargs)]): call for call in found}
    return tuple(unique.values())


def _records(memory: Memory) -> Iterator[dict[str, Any]]:
    """What was read, as JSON."""
    for call, text in memory.past:
        if call.name.startswith("get_") and text.startswith("{"):
            yield json.loads(text)


def _shown(memory: Memory, pattern: str) -> list[str]:
    texts = [memory.opening, *(text for _, text in memory.past)]
    return list(dict.fromkeys(id_ for text in texts for id_ in re.findall(pattern, text)))


def _retail_reads(memory: Memory, records: list[dict[str, Any]]) -> Iterator[Call]:
    for _, text in memory.past:
        if match := _NAMED.fullmatch(text):
            yield Call("find_user_id_by_name_zip", match.groupdict())
    for order_id in _shown(memory, r"#W\d+"):
        yield Call("get_order_details", {"order_id": order_id})
    for user_id in _shown(memory, r"[a-z]+_[a-z]+_\d+"):
        if "card" not in user_id:
            yield Call("get_user_details", {"user_id": user_id})
    for record in records:
        for item in record.get("items", []):
            yield Call("get_product_details", {"product_id": item["product_id"]})


def _retail_writes(records: list[dict[str, Any]]) -> Iterator[Call]:
    users = [record for record in records if "membership" not in record and "email" in record]
    products = {record["product_id"]: record for record in records if "variants" in record}
    for order in (record for record in records if "order_id" in record):
        key = {"order_id": order["order_id"]}
        for reason in REASONS:
            yield Call("cancel_pending_order", {**key, "reason": reason})
        methods = [order["payment_history"][0]["payment_method_id"]]
        methods += [method for user in users for method in user["payment_methods"]]
        ids = [item["item_id"] for item in order["items"]]
        for method in dict.fromkeys(methods):
            pay = {"payment_method_id": method}
            for chosen in (ids[:1], ids[1:], ids):
                yield Call("return_delivered_order_items", {**key, "item_ids": chosen, **pay})
            for item in order["items"]:
                variants = products.get(item["product_id"], {"variants": ()})["variants"]
                for new in list(variants)[:_MOST]:
                    swap = {"item_ids": [item["item_id"]], "new_item_ids": [new]}
                    yield Call("exchange_delivered_order_items", {**key, **swap, **pay})


def _airline_reads(memory: Memory, records: list[dict[str, Any]]) -> Iterator[Call]:
    for user_id in _shown(memory, r"\b[a-z]+_[a-z]+_\d+"):
        if "card" not in user_id:
            yield Call("get_user_details", {"user_id": user_id})
    for code in _shown(memory, r"\b[A-Z]{2}\d\b"):
        yield Call("get_reservation_details", {"reservation_id": code})
    for record in records:
        if "reservation_id" in record:
            route = {key: record[key] for key in ("origin", "destination")}
            for date in _shown(memory, r"2024-05-(?:1[6-9]|2\d)")[:2]:
                yield Call("search_direct_flight", {**route, "date": date})


def _airline_writes(records: list[dict[str, Any]]) -> Iterator[Call]:
    users = [record for record in records if "membership" in record]
    for record in (record for record in records if "reservation_id" in record):
        key = {"reservation_id": record["reservation_id"]}
        yield Call("cancel_reservation", key)
        methods = [method for user in users for method in user["payment_methods"]]
        for method in methods[:_MOST]:
            for nonfree in (0, 1):
                bags = {"total_baggages": record["total_baggages"] + 1, "nonfree_baggages": nonfree}
                yield Call("update_reservation_baggages", {**key, **bags, "payment_id": method})
