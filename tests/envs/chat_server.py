"""A chat endpoint on this machine that says what a test has written down."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any


class Server(http.server.ThreadingHTTPServer):
    """Answers with what `plan` holds, one entry a request: (status, headers, body); then with `reply`.

    Attributes:
      reply: from the messages of a request to what the model says; its answers state 10 and 2 tokens.
      limit: messages that the model takes; 0 for any number.
      seen: (headers and path, fields) of every request.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.plan: list[tuple[int, dict[str, str], bytes]] = []
        self.reply: Callable[[list[dict[str, str]]], str] | None = None
        self.limit = 0
        self.seen: list[tuple[dict[str, str], Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def says(self, *texts: str, usage: dict[str, int] | None = None) -> None:
        self.plan += [(200, {}, completion(text, usage)) for text in texts]


def completion(text: str, usage: dict[str, int] | None = None) -> bytes:
    """The body of an answer; without `usage` it states no token counts."""
    answer = {"choices": [{"message": {"content": text}, "finish_reason": "stop"}]}
    return json.dumps(answer if usage is None else answer | {"usage": usage}).encode()


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append(({**self.headers, "path": self.path}, body))
        if 0 < self.server.limit < len(body["messages"]):
            status, headers, answer = 400, {}, b'{"error": {"code": "context_length_exceeded"}}'
        elif self.server.plan or self.server.reply is None:
            status, headers, answer = self.server.plan.pop(0)
        else:
            usage = {"prompt_tokens": 10, "completion_tokens": 2}
            status, headers, answer = 200, {}, completion(self.server.reply(body["messages"]), usage)
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(answer))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextlib.contextmanager
def running(server: Server) -> Iterator[Server]:
    """Serve in a thread until the end."""
    with server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()
