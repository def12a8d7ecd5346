"""A customer played by a language model behind an OpenAI-compatible endpoint.

Any server with `POST {base_url}/chat/completions` will do: a provider's, or a local one of vLLM, SGLang or
llama.cpp. The agent's replies are sent as the `user` of the chat and the customer's answers are its
`assistant`; tool calls and their answers are never sent. Answers are kept in a cache directory, if there is
one, under a hash of the whole request: a conversation that repeats costs nothing and goes the same way.
"""

from __future__ import annotations

import dataclasses
import hashlib
import http.client
import json
import os
import pathlib
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

GREETING = "Hi! How can I help you today?"
_ROLE = """You play a customer who talks to the agent of a company. What you want:

{instruction}

- Write one short message at a time, as the customer would.
- Tell only what is needed now, not everything at once.
- If you are asked for something that is not told above, say that you do not know it; never make it up.
- Say it in your own words and keep the character that is described.
- When all that you want is done, or cannot be done, answer with ###STOP### and nothing else. While you still
  have to confirm something, confirm it and do not stop."""
_RETRIED = (408, 409, 429, 500, 502, 503, 504)
_LONGEST_WAIT_S = 60.0


class CustomerError(Exception):
    """The endpoint gave no answer. An environment that raises it loses the episode, nothing else."""


@dataclasses.dataclass(frozen=True)
class Endpoint:
    """Where the model is, and how patient to be.

    Attributes:
      base_url: up to and without `/chat/completions`.
      model: the name that the server knows.
      key_variable: environment variable with the key; without it no key is sent.
      temperature: of the customer.
      timeout_s: of one request. retries: further attempts after a failure that may pass.
      backoff_s: wait before the first of them; doubled each time, unless the server says how long.
      cache_dir: folder of answers; "": none are kept.
    """

    base_url: str
    model: str
    key_variable: str = "OPENAI_API_KEY"
    temperature: float = 0.0
    timeout_s: float = 30.0
    retries: int = 4
    backoff_s: float = 1.0
    cache_dir: str = ""

    def __post_init__(self) -> None:
        if not self.base_url.startswith(("http://", "https://")):
            raise ValueError(f"base_url={self.base_url!r} must start with http:// or https://")
        if not self.model:
            raise ValueError("model='' must name the customer's model")
        for name in ("temperature", "retries", "backoff_s"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)} must not be negative")
        if self.timeout_s <= 0:
            raise ValueError(f"timeout_s={self.timeout_s} must be above 0")


class EndpointCustomer:
    """One conversation after another; implements `session.Customer`.

    Args:
      endpoint: where the model is.
      sleep: waits between attempts (seconds).
    """

    def __init__(self, endpoint: Endpoint, sleep: Callable[[float], object] = time.sleep) -> None:
        self._endpoint = endpoint
        self._sleep = sleep
        self._messages: list[dict[str, str]] = []

    def reset(self, instruction: str) -> str:
        """See `Customer.reset`. Raises CustomerError."""
        self._messages = [{"role": "system", "content": _ROLE.format(instruction=instruction)}]
        return self.step(GREETING)

    def step(self, content: str) -> str:
        """See `Customer.step`. Raises CustomerError."""
        self._messages.append({"role": "user", "content": content})
        answer = self._complete()
        self._messages.append({"role": "assistant", "content": answer})
        return answer

    def _complete(self) -> str:
        endpoint = self._endpoint
        request = {
            "model": endpoint.model,
            "messages": self._messages,
            "temperature": endpoint.temperature,
        }
        body = json.dumps(request, sort_keys=True).encode()
        kept = self._kept(body)
        if kept is not None and kept.is_file():
            return str(json.loads(kept.read_text(encoding="utf-8"))["answer"])
        answer = _answer(self._ask(body))
        if kept is not None:
            _write(kept, {"answer": answer})
        return answer

    def _kept(self, body: bytes) -> pathlib.Path | None:
        if not self._endpoint.cache_dir:
            return None
        name = hashlib.sha256(self._endpoint.base_url.encode() + b"\n" + body).hexdigest()
        return pathlib.Path(self._endpoint.cache_dir) / name[:2] / f"{name}.json"

    def _ask(self, body: bytes) -> bytes:
        """The server's answer, after as many attempts as are allowed."""
        wait = self._endpoint.backoff_s
        for left in range(self._endpoint.retries, -1, -1):
            try:
                return self._send(body)
            except urllib.error.HTTPError as error:
                with error:
                    reason = f"HTTP {error.code}: {error.read(200).decode(errors='replace')}"
                if error.code not in _RETRIED:
                    raise CustomerError(f"{self._endpoint.base_url} refuses: {reason}") from error
                wait = _seconds(error.headers.get("Retry-After"), wait)
            except (OSError, http.client.HTTPException) as error:
                reason = f"{type(error).__name__}: {error}"
            if left:
                self._sleep(min(wait, _LONGEST_WAIT_S))
                wait *= 2
        attempts = self._endpoint.retries + 1
        raise CustomerError(f"{self._endpoint.base_url} gave no answer in {attempts} attempts: {reason}")

    def _send(self, body: bytes) -> bytes:
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(self._endpoint.key_variable):
            headers["Authorization"] = f"Bearer {key}"
        url = f"{self._endpoint.base_url.rstrip('/')}/chat/completions"
        request = urllib.request.Request(url, body, headers)
        with urllib.request.urlopen(request, timeout=self._endpoint.timeout_s) as response:
            return bytes(response.read())


def _seconds(text: str | None, otherwise: float) -> float:
    """The wait that a server asks for; a date, which it may also send, is not read."""
    return float(text) if text is not None and text.isdecimal() else otherwise


def _answer(body: bytes) -> str:
    try:
        message: Any = json.loads(body)["choices"][0]["message"]["content"]
    except (ValueError, LookupError, TypeError) as error:
        raise CustomerError(f"the endpoint's answer is no chat completion: {body[:200]!r}") from error
    if not isinstance(message, str):
        raise CustomerError(f"the endpoint's answer has no text: {body[:200]!r}")
    return message


def _write(path: pathlib.Path, value: Any) -> None:
    """Whole or not at all: several workers may keep the same answer."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}.part")
    part.write_text(json.dumps(value), encoding="utf-8")
    part.replace(path)
