"""The scripted customer by hand, and a language model's over a local server."""

from __future__ import annotations

import http.server
import json
import pathlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from envs.tau_bench.customer import LoggedCustomer, Script, ScriptedCustomer, agrees
from envs.tau_bench.data import Call
from envs.tau_bench.endpoint import GREETING, CustomerError, Endpoint, EndpointCustomer
from envs.tau_bench.plan import proposal
from envs.tau_bench.session import STOP

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


class Server(http.server.ThreadingHTTPServer):
    """Answers with what `plan` holds, one entry a request: (status, headers, body)."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.plan: list[tuple[int, dict[str, str], bytes]] = []
        self.seen: list[tuple[dict[str, str], Any]] = []

    def says(self, *texts: str) -> None:
        for text in texts:
            body = json.dumps({"choices": [{"message": {"content": text}}]}).encode()
            self.plan.append((200, {}, body))


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append(({**self.headers, "path": self.path}, body))
        status, headers, answer = self.server.plan.pop(0)
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(answer))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def connect(server: Server, waits: list[float] | None = None, **changes: Any) -> EndpointCustomer:
    url = f"http://127.0.0.1:{server.server_port}/v1"
    endpoint = Endpoint(**{"base_url": url, "model": "m", "key_variable": "TAU_TEST_KEY", **changes})
    return EndpointCustomer(endpoint, sleep=(waits if waits is not None else []).append)


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


def test_without_a_key_none_is_sent(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TAU_TEST_KEY", raising=False)
    server.says("Hello")
    connect(server).reset("x")
    assert "Authorization" not in server.seen[0][0]


def test_failures_that_may_pass_are_tried_again_and_waits_double(server: Server) -> None:
    server.plan = [(500, {}, b"down"), (503, {}, b"down"), (429, {"Retry-After": "7"}, b"slow")]
    server.says("Hello")
    waits: list[float] = []
    assert connect(server, waits).reset("x") == "Hello"
    assert waits == [1, 2, 7]


def test_a_refusal_is_not_tried_again(server: Server) -> None:
    server.plan = [(401, {}, b"no such key")]
    with pytest.raises(CustomerError, match="401: no such key"):
        connect(server).reset("x")


def test_it_gives_up(server: Server) -> None:
    server.plan = [(500, {}, b"down")] * 3
    with pytest.raises(CustomerError, match="no answer in 3 attempts: HTTP 500: down"):
        connect(server, retries=2).reset("x")


def test_a_server_that_is_not_there_is_an_error() -> None:
    with Server() as closed:
        port = closed.server_port
    customer = EndpointCustomer(Endpoint(f"http://127.0.0.1:{port}", "m", retries=1), sleep=lambda _: None)
    with pytest.raises(CustomerError, match="no answer in 2 attempts"):
        customer.reset("x")


def test_a_slow_answer_times_out() -> None:
    with Server() as silent:  # listens, and never answers
        endpoint = Endpoint(f"http://127.0.0.1:{silent.server_port}", "m", timeout_s=0.05, retries=0)
        with pytest.raises(CustomerError, match="timed out"):
            EndpointCustomer(endpoint).reset("x")


@pytest.mark.parametrize("body", [b"", b"[]", b'{"choices": []}', b'{"choices": [{"message": {}}]}'])
def test_an_answer_that_is_none_is_an_error(server: Server, body: bytes) -> None:
    server.plan = [(200, {}, body)]
    with pytest.raises(CustomerError, match="no chat completion"):
        connect(server).reset("x")


def test_an_answer_without_text_is_an_error(server: Server) -> None:
    server.plan = [(200, {}, b'{"choices": [{"message": {"content": null}}]}')]
    with pytest.raises(CustomerError, match="no text"):
        connect(server).reset("x")


def test_a_conversation_that_repeats_is_kept(server: Server, tmp_path: pathlib.Path) -> None:
    server.says("Hello", "Bye", "Another")
    for _ in range(2):
        customer = connect(server, cache_dir=str(tmp_path))
        assert [customer.reset("x"), customer.step("y")] == ["Hello", "Bye"]
    assert len(server.seen) == 2
    assert connect(server, cache_dir=str(tmp_path), model="other").reset("x") == "Another"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"base_url": "localhost:80"}, "base_url"),
        ({"model": ""}, "model"),
        ({"retries": -1}, "retries=-1"),
        ({"timeout_s": 0}, "timeout_s=0"),
    ],
)
def test_a_wrong_endpoint_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Endpoint(**{"base_url": "http://x", "model": "m", **changes})
