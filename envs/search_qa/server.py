"""Search-R1's retrieval protocol over HTTP, answered with BM25: one index for many processes.

    python -m envs.search_qa.server --data-dir DIR [--port 8000]

Then: `--config.env.retriever=http --config.env.retriever_url=http://127.0.0.1:8000/retrieve`.
"""

from __future__ import annotations

import argparse
import http.server
import json
import pathlib
from collections.abc import Sequence
from typing import Any

from envs.search_qa.data import corpus_files, read_passages
from envs.search_qa.retrieval import Bm25Retriever, Retriever, answer_request

PATH = "/retrieve"
_MAX_BODY = 1 << 20


class _Handler(http.server.BaseHTTPRequestHandler):
    """Answers POST to `PATH`; the retriever is the server's."""

    server: RetrievalServer

    def do_POST(self) -> None:
        """One request."""
        length = int(self.headers.get("Content-Length") or 0)
        if self.path != PATH or length > _MAX_BODY:
            self._reply(
                404 if self.path != PATH else 413, {"detail": f"POST at most {_MAX_BODY} bytes to {PATH}"}
            )
            return
        try:
            body = json.loads(self.rfile.read(length))
            answer = answer_request(self.server.retriever, body, self.server.count)
        except ValueError as error:
            self._reply(422, {"detail": str(error)})
            return
        self._reply(200, answer)

    def _reply(self, status: int, content: Any) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Searches are not logged."""


class RetrievalServer(http.server.ThreadingHTTPServer):
    """Serves a retriever. `count`: passages a query gets if the request does not say."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], retriever: Retriever, count: int = 3) -> None:
        super().__init__(address, _Handler)
        self.retriever, self.count = retriever, count


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="BM25 behind Search-R1's retrieval protocol.")
    parser.add_argument("--data-dir", required=True, type=pathlib.Path, help="folder with corpus*.jsonl")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args(arguments)
    passages = [p for path in corpus_files(options.data_dir) for p in read_passages(path)]
    with RetrievalServer((options.host, options.port), Bm25Retriever(passages)) as server:
        print(
            f"{len(passages)} passages at http://{options.host}:{server.server_address[1]}{PATH}", flush=True
        )
        server.serve_forever()


if __name__ == "__main__":
    main()
