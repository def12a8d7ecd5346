"""Actions as text: from what a policy says to a tool call or a reply, and back.

Two forms are read, on one line each, whichever an agent is shown:

* the benchmark's own, a JSON object: `{"name": "get_order_details", "arguments": {"order_id": "#W12"}}`;
* a short one for small models, the arguments by position and separated by `; `, lists by `,` and the fields
  of objects in lists by `:`. It takes the tool's name, too, or that of its class in the original, which is
  one word and so may be one token: `ExchangeDeliveredOrderItems #W12; 31, 44; 47, 40; paypal_3`.

A reply to the customer is the call `respond` with the argument `content`, or `say` and the content. Text in
neither form is a `Malformed`; which names and arguments a tool takes is left to the tool.
"""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Mapping, Sequence
from typing import Any

from envs.tau_bench.data import Call
from envs.tau_bench.session import RESPOND

SAY = "say"


class Style(enum.Enum):
    """Which form of actions and observations an agent is shown. JSON: the benchmark's. COMPACT: short."""

    JSON = "json"
    COMPACT = "compact"


# Parameters of each tool in the order of its schema: text, number, list of texts, or list of objects with
# the fields named in brackets.
_ADDRESS = "address1 address2 city state country zip"
_FLIGHTS, _PASSENGERS = "flights[flight_number,date]", "passengers[first_name,last_name,dob]"
_SIGNATURES = {
    "calculate": "expression",
    "think": "thought",
    "transfer_to_human_agents": "summary",
    "get_user_details": "user_id",
    "cancel_pending_order": "order_id reason",
    "exchange_delivered_order_items": "order_id item_ids* new_item_ids* payment_method_id",
    "find_user_id_by_email": "email",
    "find_user_id_by_name_zip": "first_name last_name zip",
    "get_order_details": "order_id",
    "get_product_details": "product_id",
    "list_all_product_types": "",
    "modify_pending_order_address": f"order_id {_ADDRESS}",
    "modify_pending_order_items": "order_id item_ids* new_item_ids* payment_method_id",
    "modify_pending_order_payment": "order_id payment_method_id",
    "modify_user_address": f"user_id {_ADDRESS}",
    "return_delivered_order_items": "order_id item_ids* payment_method_id",
    "book_reservation": f"user_id origin destination flight_type cabin {_FLIGHTS} {_PASSENGERS} "
    "payment_methods[payment_id,amount#] total_baggages# nonfree_baggages# insurance",
    "cancel_reservation": "reservation_id",
    "get_reservation_details": "reservation_id",
    "list_all_airports": "",
    "search_direct_flight": "origin destination date",
    "search_onestop_flight": "origin destination date",
    "send_certificate": "user_id amount#",
    "update_reservation_baggages": "reservation_id total_baggages# nonfree_baggages# payment_id",
    "update_reservation_flights": f"reservation_id cabin {_FLIGHTS} payment_id",
    "update_reservation_passengers": f"reservation_id {_PASSENGERS}",
    RESPOND: "content",
}


def class_name(tool: str) -> str:
    """The name of a tool's class in the original."""
    return "".join(word.capitalize() for word in tool.split("_"))


_BY_CLASS = {class_name(name): name for name in _SIGNATURES if name != RESPOND} | {SAY: RESPOND}


@dataclasses.dataclass(frozen=True)
class Malformed:
    """Why a text is no action; shown to the agent."""

    reason: str


def parameters(name: str) -> tuple[str, ...]:
    """The parameters of a tool with their kinds, as in `_SIGNATURES`."""
    return tuple(_SIGNATURES[name].split())


def parse(text: str) -> Call | Malformed:
    """Read one action; any text may come."""
    text = text.strip()
    if text.startswith("{"):
        return _parse_json(text)
    name, _, rest = text.partition(" ")
    name = _BY_CLASS.get(name, name)
    if name not in _SIGNATURES:
        return Malformed(f"{name[:40]!r} is neither a tool nor '{SAY}'")
    return _parse_compact(name, rest.strip())


def _parse_json(text: str) -> Call | Malformed:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        return Malformed(f"no JSON object on one line: {str(error)[:80]}")
    if not isinstance(value.get("name"), str) or not isinstance(value.get("arguments"), dict):
        return Malformed('expected {"name": <text>, "arguments": <object>}')
    return Call(value["name"], value["arguments"])


def _parse_compact(name: str, rest: str) -> Call | Malformed:
    wanted = parameters(name)
    if not wanted:
        return Call(name, {}) if not rest else Malformed(f"{name} takes no arguments")
    parts = [part.strip() for part in rest.split(";", len(wanted) - 1)]
    if len(parts) < len(wanted):
        return Malformed(f"{name} takes {len(wanted)} arguments separated by ';', got {len(parts)}")
    kwargs = {}
    for parameter, part in zip(wanted, parts, strict=True):
        key, value = _read(parameter, part)
        if isinstance(value, Malformed):
            return Malformed(f"{name}: {value.reason}")
        kwargs[key] = value
    return Call(name, kwargs)


def _read(parameter: str, text: str) -> tuple[str, Any]:
    """Name and value of one argument; the value may be a `Malformed`."""
    if parameter.endswith("#"):
        return parameter[:-1], _number(text)
    if parameter.endswith("*"):
        return parameter[:-1], [part.strip() for part in text.split(",")] if text else []
    key, bracket, fields = parameter.partition("[")
    if bracket:
        return key, _objects(text, fields.removesuffix("]").split(","))
    return key, text


def _number(text: str) -> int | float | Malformed:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return Malformed(f"{text[:40]!r} is no number")


def _objects(text: str, fields: Sequence[str]) -> list[dict[str, Any]] | Malformed:
    found = []
    for part in text.split(",") if text else []:
        values = part.strip().split(":")
        if len(values) != len(fields):
            return Malformed(f"{part[:40]!r} is not {':'.join(field.rstrip('#') for field in fields)}")
        pairs = [_read(field, value) for field, value in zip(fields, values, strict=True)]
        for _, value in pairs:
            if isinstance(value, Malformed):
                return value
        found.append(dict(pairs))
    return found


def write(call: Call, style: Style = Style.JSON) -> str:
    """The text of a call, on one line; `parse` gives the same call back.

    A call that the short form cannot express (a list element with a comma, a value of another kind) is
    written as JSON in either style.
    """
    if style is Style.COMPACT and call.name in _SIGNATURES:
        text = _compact(call)
        read = parse(text)
        if isinstance(read, Call) and read.name == call.name and _same(read.kwargs, call.kwargs):
            return text
    return json.dumps({"name": call.name, "arguments": dict(call.kwargs)})


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _compact(call: Call) -> str:
    values = "; ".join(_plain(value) for value in call.kwargs.values())
    return f"{SAY if call.name == RESPOND else class_name(call.name)} {values}".strip()


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_plain(item) for item in value)
    if isinstance(value, dict):
        return ":".join(_plain(item) for item in value.values())
    return str(value)
