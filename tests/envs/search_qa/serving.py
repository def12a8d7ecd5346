"""A local HTTP server for the time of a test."""

from __future__ import annotations

import contextlib
import threading

from envs.search_qa.server import PATH


@contextlib.contextmanager
def running(httpd):
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{httpd.server_address[1]}{PATH}"
    finally:
        httpd.shutdown()
        thread.join()
        httpd.server_close()
