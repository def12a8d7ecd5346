"""The scripted customer by hand, and a language model's over a local server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from envs.endpoint import Endpoint
from envs.tau_bench.customer import (
    GREETING,
    CustomerError,
    EndpointCustomer,
    LoggedCustomer,
    Script,
    ScriptedCustomer,
    agrees,
)
from envs.tau_bench.data import Call
from envs.tau_bench.plan import proposal
from envs.tau_bench.session import STOP
from tests.envs.chat_server import Server, running

CANCEL = Call("cancel_pending_order", {"order_id": "#W12", "reason": "no longer needed"})
EXCHANGE = Call(
    "exchange_delivered_order_items",
    {"order_id": "#W34", "item_ids": ["31"], "new_item_ids": ["47"], "payment_method_id": "paypal_3"},
)
OPENING = "Cancel #W12 and exchange the lamp of #W34."


def said(call: Call) -> str:
    return str(proposal(call).kwargs["content"])


@pytest.fixture
def customer() -> ScriptedCustomer:
    customer = ScriptedCustomer(Script("Ann Li, zip 941.", (CANCEL, EXCHANGE)))
    assert customer.reset(OPENING) == OPENING
    return customer


def test_it_answers_who_it_is(customer: ScriptedCustomer) -> None:
    for question in ("Who are you?", "May I have your name and zip code?", "Please verify your e-mail?"):
        assert customer.step(question) == "Ann Li, zip 941."


def test_it_agrees_to_each_wish_and_no_other(customer: ScriptedCustomer) -> None:
    assert customer.step(said(CANCEL)) == "yes"
    assert customer.step("So order #W34: item 31 for 47, paid with paypal_3?") == "yes"
    for wrong in (
        Call(CANCEL.name, {"order_id": "#W34", "reason": "no longer needed"}),
        Call(EXCHANGE.name, {**EXCHANGE.kwargs, "new_item_ids": ["48"]}),
        Call(EXCHANGE.name, {**EXCHANGE.kwargs, "item_ids": ["31", "32"], "new_item_ids": ["47", "48"]}),
        Call(EXCHANGE.name, {**EXCHANGE.kwargs, "payment_method_id": "paypal_4"}),
    ):
        assert customer.step(said(wrong)) == "no"


def test_it_believes_the_agent_and_stops(customer: ScriptedCustomer) -> None:
    assert customer.step("Done.") == STOP


def test_it_reminds_once_before_it_gives_up(customer: ScriptedCustomer) -> None:
    assert customer.step("Is there anything else?") == OPENING
    assert customer.step("Is there anything else?") == STOP
    customer.reset(OPENING)
    assert customer.step("Is there anything else?") == OPENING


def test_a_satisfied_customer_wants_nothing_else(customer: ScriptedCustomer) -> None:
    customer.step(said(CANCEL))
    customer.step(said(EXCHANGE))
    assert customer.step("Is there anything else?") == STOP


@pytest.mark.parametrize("text", ["yes", "Yes, please proceed.", "Sure!", "That is correct, go ahead"])
def test_a_yes(text: str) -> None:
    assert agrees(text)


@pytest.mark.parametrize("text", ["no", "No, that's not correct", "I don't want that, ok?", "Which flight?"])
def test_no_yes(text: str) -> None:
    assert not agrees(text)


def test_a_logged_customer_says_its_lines() -> None:
    customer = LoggedCustomer(["hello", "yes"])
    assert [customer.reset("x"), customer.step("a"), customer.step("b")] == ["hello", "yes", STOP]
    assert customer.reset("x") == "hello"


@pytest.fixture
def server() -> Iterator[Server]:
    with running(Server()) as server:
        yield server


def connect(server: Server, **changes: Any) -> EndpointCustomer:
    url = f"http://127.0.0.1:{server.server_port}/v1"
    endpoint = Endpoint(**{"base_url": url, "model": "m", "key_variable": "TAU_TEST_KEY", **changes})
    return EndpointCustomer(endpoint)


def test_a_conversation_with_roles_turned_round(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAU_TEST_KEY", "secret")
    server.says("Hello", f"Thanks {STOP}")
    customer = connect(server, temperature=0.5)
    assert customer.reset("You want a lamp.") == "Hello"
    assert customer.step("Here it is.") == f"Thanks {STOP}"
    headers, body = server.seen[-1]
    assert headers["path"] == "/v1/chat/completions"
    assert headers["Authorization"] == "Bearer secret"
    assert (body["model"], body["temperature"]) == ("m", 0.5)
    assert [message["role"] for message in body["messages"]] == ["system", "user", "assistant", "user"]
    assert "You want a lamp." in body["messages"][0]["content"]
    assert [message["content"] for message in body["messages"][1:]] == [GREETING, "Hello", "Here it is."]


def test_an_endpoint_that_fails_is_the_customers_failure(server: Server) -> None:
    server.plan = [(401, {}, b"no such key")]
    with pytest.raises(CustomerError, match="401: no such key"):
        connect(server).reset("x")


def test_an_answer_without_text_is_an_error(server: Server) -> None:
    server.plan = [(200, {}, b'{"choices": [{"message": {"content": null}}]}')]
    with pytest.raises(CustomerError, match="no text"):
        connect(server).reset("x")
