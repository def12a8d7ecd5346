"""The viewer's server: this machine only, read only, and only to pages that it served itself.

Other hosts cannot connect, since it listens on the loopback address. A page of another site that the user has
open cannot read it either: requests with another `Host` (DNS rebinding) or from another site are refused.
"""

from __future__ import annotations

import http.server
import json
import logging
import pathlib
import sys
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Any

from vict_jax.viewer.methods import UnavailableError
from vict_jax.viewer.page import page
from vict_jax.viewer.viewing import UnknownPlaceError, Viewing

LOOPBACK = "127.0.0.1"
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
}
# Of the `Sec-Fetch-Site` header: the page itself, or an address typed by the user.
_OWN_SITES = ("same-origin", "none")

Query = Mapping[str, str]


class BadRequestError(Exception):
    """A request lacks a value, or has one that is not allowed."""


def _number(query: Query, name: str) -> int:
    text = query.get(name, "")
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise BadRequestError(f"{name}={text!r} must be a number, 0 or more")
    return int(text)


def _rollout(query: Query) -> tuple[int, int, int]:
    return _number(query, "update"), _number(query, "group"), _number(query, "rollout")


def _advantages(viewing: Viewing, query: Query) -> Any:
    return viewing.advantages(*_rollout(query), query.get("methods", "").split(","))


def _search(viewing: Viewing, query: Query) -> Any:
    update = _number(query, "update") if "update" in query else None
    return viewing.search(query.get("text", ""), update)


ANSWERS: Mapping[str, Callable[[Viewing, Query], Any]] = {
    "/api/index": lambda viewing, query: viewing.overview(),
    "/api/rollout": lambda viewing, query: viewing.rollout(*_rollout(query)),
    "/api/group": lambda viewing, query: viewing.group(_number(query, "update"), _number(query, "group")),
    "/api/search": _search,
    "/api/methods": lambda viewing, query: viewing.methods(_number(query, "update")),
    "/api/advantages": _advantages,
    "/api/observed": lambda viewing, query: viewing.observed(*_rollout(query)),
}


class Server(http.server.ThreadingHTTPServer):
    """Serves one run directory. `html` is the page."""

    daemon_threads = True

    def __init__(self, viewing: Viewing, port: int):
        super().__init__((LOOPBACK, port), Handler)
        self.viewing = viewing
        self.html = page(f"Credit viewer: {viewing.workdir}").encode()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A page that is closed or moves on before its answer is there is no error."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{LOOPBACK}:{self.server_port}/"

    def own_hosts(self) -> set[str]:
        """What the `Host` header of a request may be."""
        return {f"{name}:{self.server_port}" for name in (LOOPBACK, "localhost")}


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers GET and HEAD; everything else is refused by the base class."""

    server: Server
    server_version, sys_version = "vict_viewer", ""
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer a request."""
        if refusal := self._refusal():
            self._send_json(403, {"error": refusal})
            return
        parts = urllib.parse.urlsplit(self.path)
        if parts.path == "/":
            self._send(200, "text/html; charset=utf-8", self.server.html)
        elif parts.path in ANSWERS:
            self._answer(ANSWERS[parts.path], dict(urllib.parse.parse_qsl(parts.query)))
        else:
            self._send_json(404, {"error": f"there is nothing at {parts.path}"})

    do_HEAD = do_GET

    def _refusal(self) -> str:
        """Why the request is not answered; empty if it is."""
        host = self.headers.get("Host", "")
        if host not in self.server.own_hosts():
            return f"this server answers to {self.server.url} only, not to {host!r}"
        site = self.headers.get("Sec-Fetch-Site", "none")
        if site not in _OWN_SITES and self.headers.get("Sec-Fetch-Mode") != "navigate":
            return "pages of other sites may not read this server"
        return ""

    def _answer(self, answer: Callable[[Viewing, Query], Any], query: Query) -> None:
        try:
            value = answer(self.server.viewing, query)
        except BadRequestError as error:
            self._send_json(400, {"error": str(error)})
        except UnknownPlaceError as error:
            self._send_json(404, {"error": str(error)})
        except UnavailableError as error:
            self._send_json(200, {"error": str(error)})  # an answer, too: it cannot be computed
        else:
            self._send_json(200, value)

    def _send_json(self, status: int, value: Any) -> None:
        # ASCII, so that lone surrogates survive; NaN has been replaced before.
        self._send(status, "application/json", json.dumps(value, allow_nan=False).encode("ascii"))

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are of no interest to the user; `logging` has them at level DEBUG."""
        logging.getLogger(__name__).debug(format, *args)


def open_server(workdir: pathlib.Path, port: int) -> Server:
    """A server that is listening, on a free port if `port` is 0; the caller runs and closes it.

    Raises:
      ValueError: the port is taken or not allowed.
    """
    try:
        return Server(Viewing(workdir), port)
    except (OSError, OverflowError) as error:
        raise ValueError(f"--port={port} cannot be used: {error}; name another one, or 0 for any") from error
