"""Actions as text, in both forms, and observations in few words."""

from __future__ import annotations

import json
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from envs.tau_bench import tools
from envs.tau_bench.action import Malformed, Style, parameters, parse, write
from envs.tau_bench.data import Call
from envs.tau_bench.view import show


@pytest.mark.parametrize(
    ("text", "name", "kwargs"),
    [
        ("say Hello; there", "respond", {"content": "Hello; there"}),
        ("list_all_airports", "list_all_airports", {}),
        ("GetOrderDetails #W12", "get_order_details", {"order_id": "#W12"}),
        ("get_order_details  #W12 ", "get_order_details", {"order_id": "#W12"}),
        (
            "return_delivered_order_items #W1; 31,44; paypal_3",
            "return_delivered_order_items",
            {"order_id": "#W1", "item_ids": ["31", "44"], "payment_method_id": "paypal_3"},
        ),
        (
            "update_reservation_flights AB1; economy; HAT1:2024-05-20; gift_card_1",
            "update_reservation_flights",
            {
                "reservation_id": "AB1",
                "cabin": "economy",
                "flights": [{"flight_number": "HAT1", "date": "2024-05-20"}],
                "payment_id": "gift_card_1",
            },
        ),
        ("send_certificate ann_1; 50.5", "send_certificate", {"user_id": "ann_1", "amount": 50.5}),
        ('{"name": "x", "arguments": {"y": [1]}}', "x", {"y": [1]}),
    ],
)
def test_it_is_read(text: str, name: str, kwargs: dict[str, Any]) -> None:
    call = parse(text)
    assert isinstance(call, Call)
    assert (call.name, call.kwargs) == (name, kwargs)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        "{",
        "{}",
        '{"name": "x"}',
        '{"name": 1, "arguments": {}}',
        '{"name": "x", "arguments": []}',
        "list_all_airports now",
        "cancel_pending_order #W1",
        "send_certificate ann_1; much",
        "update_reservation_passengers AB1; Ann:Li",
        "[" * 5000,
        '{"a":' * 5000,
    ],
)
def test_anything_else_says_why_not(text: str) -> None:
    found = parse(text)
    assert isinstance(found, Malformed)
    assert found.reason


@hypothesis.given(st.text(max_size=40))
def test_any_text_is_an_action_or_not(text: str) -> None:
    for prefix in ("", "say ", "{", "book_reservation ", '{"name": "think", "arguments": '):
        assert isinstance(parse(prefix + text), Call | Malformed)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@hypothesis.given(
    st.sampled_from(sorted({name for known in tools.TOOLS.values() for name in known} | {"respond", "x"})),
    st.lists(_JSON, max_size=11),
    st.sampled_from(list(Style)),
)
def test_what_is_written_is_read_again(name: str, values: list[Any], style: Style) -> None:
    known = [part.rstrip("*#").partition("[")[0] for part in parameters(name)] if name != "x" else []
    kwargs = dict(zip([*known, *"abcdefghijk"], values, strict=False))
    text = write(Call(name, kwargs), style)
    read = parse(text)
    assert isinstance(read, Call)
    assert len(text.splitlines()) <= 1
    assert json.dumps([read.name, read.kwargs], sort_keys=True) == json.dumps([name, kwargs], sort_keys=True)


def test_every_tool_has_its_parameters() -> None:
    for known in tools.TOOLS.values():
        for name, tool in known.items():
            found = tuple(part.rstrip("*#").partition("[")[0] for part in parameters(name))
            assert found == tool.parameters, name


def test_few_words() -> None:
    record = {
        "order_id": "#W1",
        "address": {"zip": "1"},
        "items": [{"id": "3", "new": True}],
        "left": "",
        "by": {"7": {"id": "7"}},
    }
    shown = show(json.dumps(record), wrote=False, style=Style.COMPACT)
    assert shown == "order #W1 items [(id 3 new yes)] by [(id 7)]"
    assert show(json.dumps(record), wrote=True, style=Style.COMPACT) == "ok"
    assert show("Error: {x", wrote=True, style=Style.COMPACT) == "Error: {x"
    assert show("{no json", wrote=False, style=Style.COMPACT) == "{no json"
    assert show("a\ud800", wrote=False, style=Style.JSON) == "a\\ud800"
