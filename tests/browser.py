"""Pages in the system's Chromium, watched: what they write to the console and what they ask for."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import urllib.parse
from collections.abc import Iterator

import pytest

# Schemes and hosts that stay on the machine.
_INSIDE = ("file", "data", "blob", "about")
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


@contextlib.contextmanager
def launched() -> Iterator:
    """A headless Chromium that cannot resolve any name; skips where it or Playwright is not installed."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("no Chromium on the PATH (on Debian: apt-get install chromium)")
    if importlib.util.find_spec("playwright") is None:
        pytest.skip("Playwright is not installed (pip install 'vict_jax[browser]')")
    from playwright.sync_api import sync_playwright

    arguments = ["--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--disable-dev-shm-usage"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, args=arguments, chromium_sandbox=os.getuid() != 0
        )
        try:
            yield browser
        finally:
            browser.close()


class Watched:
    """A page with a list of what it did wrong: console errors, uncaught errors, requests to the outside.

    `page` is Playwright's; `requests` are the addresses of all that it asked for.
    """

    def __init__(self, browser, **options):
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.wrong: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.wrong.append(f"uncaught: {error}"))
        self.context.on("request", self._request)

    def _console(self, message) -> None:
        if message.type in ("error", "warning"):
            self.wrong.append(f"console {message.type}: {message.text}")

    def _request(self, request) -> None:
        self.requests.append(request.url)
        parts = urllib.parse.urlsplit(request.url)
        if parts.scheme not in _INSIDE and parts.hostname not in _LOOPBACK:
            self.wrong.append(f"request to the outside: {request.url}")

    def close(self) -> None:
        """Close the page and its context."""
        self.context.close()
