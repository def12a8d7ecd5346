"""The client of chat endpoints over a local server: retries, refusals, counts, the cache, the key."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from envs.endpoint import Completion, ContextFullError, Endpoint, EndpointError, complete
from tests.envs.chat_server import Server, completion, running

KEY = "ENDPOINT_TEST_KEY"
ASKED = [{"role": "user", "content": "x"}]


@pytest.fixture
def server() -> Iterator[Server]:
    with running(Server()) as server:
        yield server


def ask(server: Server, waits: list[float] | None = None, **changes: Any) -> Completion:
    endpoint = Endpoint(**{"base_url": server.url, "model": "m", "key_variable": KEY, **changes})
    return complete(endpoint, ASKED, sleep=(waits if waits is not None else []).append)


def test_counts_are_those_of_the_server_or_unknown(server: Server) -> None:
    server.says("a", usage={"prompt_tokens": 7, "completion_tokens": 3})
    server.says("b")
    assert ask(server) == Completion("a", 7, 3, stopped=True, retries=0, cached=False)
    assert ask(server) == Completion("b", None, None, stopped=True, retries=0, cached=False)


def test_fields_of_the_request_are_added_changed_and_left_out(server: Server) -> None:
    server.says("a")
    ask(server, request='{"max_tokens": 5, "temperature": null}')
    assert server.seen[0][1] == {"model": "m", "messages": ASKED, "max_tokens": 5}


def test_an_answer_that_was_cut_off(server: Server) -> None:
    body = {"choices": [{"message": {"content": "a"}, "finish_reason": "length"}]}
    server.plan = [(200, {}, json.dumps(body).encode())]
    assert not ask(server).stopped


def test_without_a_key_none_is_sent(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY, raising=False)
    server.says("Hello")
    ask(server)
    assert "Authorization" not in server.seen[0][0]


def test_failures_that_may_pass_are_tried_again_and_waits_double(server: Server) -> None:
    server.plan = [(500, {}, b"down"), (529, {}, b"full"), (429, {"Retry-After": "7"}, b"slow")]
    server.says("Hello")
    waits: list[float] = []
    assert ask(server, waits).retries == 3
    assert waits == [1, 2, 7]


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "left out by `request`"),
        (401, f"variable {KEY} was sent"),
        (404, "Is 'm' a model of this server"),
        (302, "has moved to http://other/"),
        (307, "has moved to http://other/"),
    ],
)
def test_a_refusal_says_what_to_do_and_not_the_key(
    server: Server, monkeypatch: pytest.MonkeyPatch, status: int, message: str
) -> None:
    monkeypatch.setenv(KEY, "sk-secret")
    server.plan = [(status, {"Location": "http://other/"}, b"wrong: sk-secret")]
    with pytest.raises(EndpointError, match=message) as raised:
        ask(server)
    assert f"HTTP {status}: wrong: [key]" in str(raised.value)
    assert len(server.seen) == 1


def test_a_missing_key_is_named(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY, raising=False)
    server.plan = [(401, {}, b"who are you")]
    with pytest.raises(EndpointError, match=f"{KEY} is not set, so no key was sent"):
        ask(server)


def test_a_key_that_no_header_can_hold_is_not_shown(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, "sk-se\ncret")
    with pytest.raises(EndpointError, match="has characters that no key has") as raised:
        ask(server)
    assert "cret" not in str(raised.value)


@pytest.mark.parametrize(
    "said", [b'{"error": {"code": "context_length_exceeded"}}', b"This model's maximum context length is 8"]
)
def test_a_conversation_that_is_too_long(server: Server, said: bytes) -> None:
    server.plan = [(400, {}, said)]
    with pytest.raises(ContextFullError, match="too long for 'm'"):
        ask(server)


def test_it_gives_up(server: Server) -> None:
    server.plan = [(500, {}, b"down")] * 3
    with pytest.raises(EndpointError, match="no answer in 3 attempts: HTTP 500: down"):
        ask(server, retries=2)


def test_a_server_that_is_not_there_is_an_error() -> None:
    with Server() as closed:
        url = closed.url
    with pytest.raises(EndpointError, match="no answer in 2 attempts"):
        complete(Endpoint(url, "m", retries=1), ASKED, sleep=lambda _: None)


def test_a_slow_answer_times_out() -> None:
    with Server() as silent:  # listens, and never answers
        endpoint = Endpoint(silent.url, "m", timeout_s=0.05, retries=0)
        with pytest.raises(EndpointError, match="timed out"):
            complete(endpoint, ASKED)


@pytest.mark.parametrize("body", [b"", b"[]", b'{"choices": []}', b'{"choices": [{"message": {}}]}'])
def test_an_answer_that_is_none_is_an_error(server: Server, body: bytes) -> None:
    server.plan = [(200, {}, body)]
    with pytest.raises(EndpointError, match="no chat completion"):
        ask(server)


def test_an_answer_is_kept_unless_it_says_nothing(server: Server, tmp_path: pathlib.Path) -> None:
    silent = b'{"choices": [{"message": {"content": null}}]}'
    server.plan = [(200, {}, silent), (200, {}, completion("a")), (200, {}, completion("b"))]
    kept = {"cache_dir": str(tmp_path)}
    assert [ask(server, **kept).text for _ in range(3)] == ["", "a", "a"]
    assert ask(server, **kept, model="other").text == "b"
    assert len(server.seen) == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"base_url": "localhost:80"}, "base_url"),
        ({"model": ""}, "model"),
        ({"retries": -1}, "retries=-1"),
        ({"timeout_s": 0}, "timeout_s=0"),
        ({"request": "{"}, "not JSON"),
        ({"request": '{"messages": []}'}, "without 'messages'"),
    ],
)
def test_a_wrong_endpoint_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Endpoint(**{"base_url": "http://x", "model": "m", **changes})
