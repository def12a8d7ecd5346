"""The ground truth as an episode, and episodes that depart from it in one thing.

Every write is proposed to the customer first, and the last reply says the required outputs. On tasks without
a scripted expert this plays the expert's part in conformance checks; it knows what no policy can know.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from envs.tau_bench import tools
from envs.tau_bench.action import Style, write
from envs.tau_bench.data import Bench, Call, TaskSpec
from envs.tau_bench.session import RESPOND

_ADDRESS = {
    "address1": "1 Elsewhere Road",
    "address2": "",
    "city": "Boise",
    "state": "ID",
    "country": "USA",
    "zip": "83701",
}
_SWAPS = {
    "no longer needed": "ordered by mistake",
    "ordered by mistake": "no longer needed",
    "economy": "business",
    "business": "economy",
    "basic_economy": "economy",
    "yes": "no",
    "no": "yes",
}


def say(content: str) -> Call:
    """A reply to the customer."""
    return Call(RESPOND, {"content": content})


def proposal(call: Call) -> Call:
    """The question whether the customer agrees to a call."""
    return say(f"OK to {write(call, Style.COMPACT)}?")


def writes(bench: Bench, call: Call) -> bool:
    """Whether a tool may change the database."""
    tool = tools.TOOLS[bench.domain].get(call.name)
    return tool is not None and tool.writes


def solution(bench: Bench, task: TaskSpec) -> list[Call]:
    """Reads, proposals and writes of the ground truth, then the end of the conversation."""
    calls = list[Call]()
    for call in task.actions:
        calls += [proposal(call), call] if writes(bench, call) else [call]
    if calls and calls[-1].name in tools.TERMINATING:
        return calls if not task.outputs else [*calls[:-1], say(_done(task))]
    return [*calls, say(_done(task))]


def _done(task: TaskSpec) -> str:
    return " ".join(["Done.", *task.outputs])


def mutations(bench: Bench, task: TaskSpec) -> dict[str, list[Call]]:
    """Name -> calls, each a solution with one mistake, harmless or not."""
    calls = solution(bench, task)
    transfer = Call("transfer_to_human_agents", {"summary": "help"})
    found = {
        "ended at once": [say("Done.")],
        "transferred at once": [transfer],
        "not ended": calls[:-1],
        "transferred at the end": [*calls[:-1], transfer],
    }
    if task.outputs:
        found["outputs not said"] = [*calls[:-1], say("Done.")]
        found["an output said after a number"] = [*calls[:-1], say(f"Done. 1{task.outputs[0]}")]
    for name, extra in _strays(bench, task):
        found[f"also {name}"] = [*calls[:-1], extra, calls[-1]]
    places = [i for i, call in enumerate(calls) if writes(bench, call)]
    for n, i in enumerate(places, start=1):
        found[f"write {n} without confirmation"] = [*calls[: i - 1], *calls[i:]]
        found[f"write {n} left out"] = [*calls[: i - 1], *calls[i + 1 :]]
        found[f"write {n} twice"] = [*calls[: i + 1], *calls[i:]]
        for name, kwargs in _changed(bench, task, calls[i]):
            found[f"write {n}: {name}"] = [*calls[:i], Call(calls[i].name, kwargs), *calls[i + 1 :]]
    if len(places) > 1:
        order = iter([calls[i] for i in reversed(places)])
        found["writes in reverse"] = [next(order) if i in places else call for i, call in enumerate(calls)]
    return found


def _strays(bench: Bench, task: TaskSpec) -> Iterator[tuple[str, Call]]:
    """Writes that nobody asked for."""
    used = {value for call in task.actions for value in call.kwargs.values() if isinstance(value, str)}
    if bench.domain == "retail":
        yield "the user's address", Call("modify_user_address", {"user_id": task.user_id, **_ADDRESS})
        statuses: dict[str, tuple[str, dict[str, Any]]] = {
            "pending": ("cancel_pending_order", {"reason": "no longer needed"}),
            "delivered": ("return_delivered_order_items", {}),
        }
        for status, (name, kwargs) in statuses.items():
            order = _other(bench, "orders", used, lambda r, status=status: r["status"] == status)
            if order and status == "delivered":
                kwargs = {
                    "item_ids": [order["items"][0]["item_id"]],
                    "payment_method_id": order["payment_history"][0]["payment_method_id"],
                }
            if order:
                yield f"another {status} order", Call(name, {"order_id": order["order_id"], **kwargs})
        return
    yield "a certificate", Call("send_certificate", {"user_id": task.user_id, "amount": 100})
    if other := _other(bench, "reservations", used, lambda r: True):
        key = {"reservation_id": other["reservation_id"]}
        yield "another reservation", Call("cancel_reservation", key)


def _other(bench: Bench, table: str, used: set[str], fits: Any) -> Mapping[str, Any] | None:
    return next((r for key, r in bench.database[table].items() if key not in used and fits(r)), None)


def _changed(bench: Bench, task: TaskSpec, call: Call) -> Iterator[tuple[str, dict[str, Any]]]:
    """Names and arguments of a call with one argument changed."""
    for key, value in call.kwargs.items():
        for name, other in _others(bench, task, call, key, value):
            yield f"{key} {name}", {**call.kwargs, key: other}


def _others(bench: Bench, task: TaskSpec, call: Call, key: str, value: Any) -> Iterator[tuple[str, Any]]:
    if key in ("order_id", "reservation_id"):
        table = "orders" if key == "order_id" else "reservations"
        owned = [k for k in bench.database["users"][task.user_id][table] if k != value]
        yield from (("of another record", other) for other in owned[:1])
    elif key in ("payment_method_id", "payment_id"):
        methods = bench.database["users"][task.user_id]["payment_methods"]
        yield from ((f"{other}", other) for other in methods if other != value)
    elif key == "new_item_ids" and value:
        yield from _other_variants(bench, value)
    elif isinstance(value, str):
        yield "changed", _SWAPS.get(value, f"{value} B")
    elif isinstance(value, list):
        yield from _other_lists(value)
    else:
        yield "one more", value + 1
        yield "as a float", float(value)


def _other_variants(bench: Bench, value: Sequence[str]) -> Iterator[tuple[str, Any]]:
    for product in bench.database["products"].values():
        if value[0] not in product["variants"]:
            continue
        for available in (True, False):
            others = [k for k, v in product["variants"].items() if v["available"] is available]
            other = next((k for k in others if k not in value), None)
            if other is not None:
                name = "with a wrong option" if available else "that is unavailable"
                yield name, [other, *value[1:]]
    yield from _other_lists(value)


def _other_lists(value: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    yield "incomplete", list(value[:-1])
    if len(value) > 1:
        yield "reversed", list(reversed(value))
    if value and isinstance(value[-1], dict):
        key = list(value[-1])[-1]
        last = value[-1][key]
        for name, other in (("changed", last + 1 if isinstance(last, int) else f"{last} B"),):
            yield f"with {key} {name}", [*value[:-1], {**value[-1], key: other}]
        yield "with a further key", [*value[:-1], {**value[-1], "note": "x"}]
