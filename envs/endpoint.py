"""A language model behind an OpenAI-compatible endpoint: one call, its retries, its failures in words.

Any server with `POST {base_url}/chat/completions` will do: a provider's, or a local one of vLLM, SGLang or
llama.cpp. Answers are kept in a cache directory, if there is one, under a hash of the whole request: a
conversation that repeats costs nothing and goes the same way. The key is read from the environment at each
call; it is neither stored nor shown, also where a server repeats it in an error.
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
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_RETRIED = (408, 409, 425, 429)  # and what is the server's own fault, 500 and above
_LONGEST_WAIT_S = 60.0
_SHOWN = 300  # characters of a server's answer in a message
# What servers say (OpenAI's code, vLLM's and llama.cpp's texts) when a conversation is longer than they take.
_TOO_LONG = ("context_length_exceeded", "maximum context length", "exceeds the available context")

Sleep = Callable[[float], object]


class EndpointError(Exception):
    """The endpoint gave no answer; the message says why and what to do."""


class ContextFullError(EndpointError):
    """The conversation is longer than the model takes."""


@dataclasses.dataclass(frozen=True)
class Endpoint:
    """Where the model is, and how patient to be.

    Attributes:
      base_url: up to and without `/chat/completions`.
      model: the name that the server knows.
      key_variable: environment variable with the key; without it no key is sent.
      temperature: of sampling.
      timeout_s: seconds without a byte after which a request has failed.
      retries: further attempts after a failure that may pass.
      backoff_s: wait before the first of them; doubled each time, unless the server says how long.
      cache_dir: folder of answers; "": none are kept.
      max_tokens: of an answer; 0: the server's own limit.
      request: further fields of every request, a JSON object as text; null leaves a field out. Such as
        `{"max_tokens": null, "max_completion_tokens": 512}`.
    """

    base_url: str
    model: str
    key_variable: str = "OPENAI_API_KEY"
    temperature: float = 0.0
    timeout_s: float = 30.0
    retries: int = 4
    backoff_s: float = 1.0
    cache_dir: str = ""
    max_tokens: int = 0
    request: str = "{}"

    def __post_init__(self) -> None:
        if not self.base_url.startswith(("http://", "https://")):
            raise ValueError(f"base_url={self.base_url!r} must start with http:// or https://")
        if not self.model:
            raise ValueError("model='' must name the model that the server is asked for")
        for name in ("temperature", "retries", "backoff_s", "max_tokens"):
            if vars(self)[name] < 0:
                raise ValueError(f"{name}={vars(self)[name]} must not be negative")
        if self.timeout_s <= 0:
            raise ValueError(f"timeout_s={self.timeout_s} must be above 0")
        try:
            further = json.loads(self.request)
        except json.JSONDecodeError as error:
            raise ValueError(f"request={self.request!r} is not JSON: {error}") from error
        if not isinstance(further, dict) or "messages" in further:
            raise ValueError(f"request={self.request!r} must be a JSON object without 'messages'")


@dataclasses.dataclass(frozen=True)
class Completion:
    """An answer.

    Attributes:
      text: what the model said; "" if it said nothing that is text (it was filtered, or called a tool).
      prompt_tokens, completion_tokens: as the server counts them; None if it does not say.
      stopped: the model ended it; it was not cut off at a limit of tokens.
      retries: attempts that failed before. cached: it was kept from before, and nothing was asked.
    """

    text: str
    prompt_tokens: int | None
    completion_tokens: int | None
    stopped: bool
    retries: int
    cached: bool


def complete(
    endpoint: Endpoint, messages: Sequence[Mapping[str, str]], *, sleep: Sleep = time.sleep
) -> Completion:
    """The model's answer to a conversation.

    Args:
      messages: `role` and `content` of each.
      sleep: waits between attempts (seconds); what it raises ends the call.

    Raises:
      ContextFullError: the conversation is too long for the model.
      EndpointError: there is no answer, after all attempts that are allowed.
    """
    body = _body(endpoint, messages)
    kept = _kept(endpoint, body)
    if kept is not None and kept.is_file():
        return _completion(kept.read_bytes(), retries=0, cached=True)
    answer, retries = _ask(endpoint, body, sleep)
    completion = _completion(answer, retries=retries, cached=False)
    if kept is not None and completion.text:
        _write(kept, answer)
    return completion


def _body(endpoint: Endpoint, messages: Sequence[Mapping[str, str]]) -> bytes:
    """The request. Equal ones are equal to the byte, since answers are kept under their hash."""
    fields = {"model": endpoint.model, "messages": list(messages), "temperature": endpoint.temperature}
    fields |= {"max_tokens": endpoint.max_tokens or None} | json.loads(endpoint.request)
    given = {name: value for name, value in fields.items() if value is not None}
    return json.dumps(given, sort_keys=True).encode()


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the key to another server: it is an error that names the new address."""

    def redirect_request(self, *_: Any) -> None:
        """Never follow."""
        return


_OPENER = urllib.request.build_opener(_NoRedirect)


def _kept(endpoint: Endpoint, body: bytes) -> pathlib.Path | None:
    if not endpoint.cache_dir:
        return None
    name = hashlib.sha256(endpoint.base_url.encode() + b"\n" + body).hexdigest()
    return pathlib.Path(endpoint.cache_dir) / name[:2] / f"{name}.json"


def _ask(endpoint: Endpoint, body: bytes, sleep: Sleep) -> tuple[bytes, int]:
    """The server's answer and the attempts that failed before it."""
    wait = endpoint.backoff_s
    for attempt in range(endpoint.retries + 1):
        if attempt:
            sleep(min(wait, _LONGEST_WAIT_S))
            wait *= 2
        try:
            return _send(endpoint, body), attempt
        except urllib.error.HTTPError as error:
            with error:
                said = _hide_key(endpoint, error.read().decode(errors="replace"))
            if error.code not in _RETRIED and error.code < 500:
                raise _refusal(endpoint, error, said) from None
            reason = f"HTTP {error.code}: {said[:_SHOWN]}"
            wait = _seconds(error.headers.get("Retry-After"), wait)
        except (OSError, http.client.HTTPException) as error:
            reason = f"{type(error).__name__}: {error}"
    raise EndpointError(
        f"{endpoint.base_url} gave no answer in {endpoint.retries + 1} attempts: {reason}. Is the server up, "
        "and is the address right? More attempts and time: retries, timeout_s."
    )


def _send(endpoint: Endpoint, body: bytes) -> bytes:
    headers = {"Content-Type": "application/json"}
    if key := _key(endpoint):
        headers["Authorization"] = f"Bearer {key}"
    url = f"{endpoint.base_url.rstrip('/')}/chat/completions"
    request = urllib.request.Request(url, body, headers)
    with _OPENER.open(request, timeout=endpoint.timeout_s) as response:
        return bytes(response.read())


def _key(endpoint: Endpoint) -> str:
    """The key, "" for none. The library would show one that a header cannot hold in its own error."""
    key = os.environ.get(endpoint.key_variable, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise EndpointError(
            f"the key in the environment variable {endpoint.key_variable} has characters that no key has"
        )
    return key


def _hide_key(endpoint: Endpoint, text: str) -> str:
    key = _key(endpoint)
    return text.replace(key, "[key]") if key else text


def _refusal(endpoint: Endpoint, error: urllib.error.HTTPError, said: str) -> EndpointError:
    """A failure that another attempt would not change, with the next step."""
    reason = f"{endpoint.base_url} refuses: HTTP {error.code}: {said[:_SHOWN]}"
    if error.code in (400, 413) and any(mark in said for mark in _TOO_LONG):
        return ContextFullError(f"{reason}. The conversation is too long for {endpoint.model!r}.")
    if error.code in (401, 403):
        given = "was sent" if _key(endpoint) else "is not set, so no key was sent"
        return EndpointError(
            f"{reason}. The key in the environment variable {endpoint.key_variable} {given}."
        )
    if error.code in (404, 405):
        return EndpointError(
            f"{reason}. Is {endpoint.model!r} a model of this server (GET /models lists them), and the "
            "address the one before /chat/completions, often with /v1 at its end?"
        )
    if 300 <= error.code < 400:
        return EndpointError(f"{reason}. It has moved to {error.headers.get('Location')}; give that address.")
    return EndpointError(f"{reason}. Fields of the request can be changed or left out by `request`.")


def _seconds(text: str | None, otherwise: float) -> float:
    """The wait that a server asks for; a date, which it may also send, is not read."""
    return float(text) if text is not None and text.isdecimal() else otherwise


def _completion(body: bytes, *, retries: int, cached: bool) -> Completion:
    try:
        answer: Any = json.loads(body)
        choice = answer["choices"][0]
        text = choice["message"]["content"]
    except (ValueError, LookupError, TypeError) as error:
        raise EndpointError(
            f"the endpoint's answer is no chat completion: {body[:_SHOWN]!r}. Is the address that of an "
            "OpenAI-compatible server?"
        ) from error
    usage = answer.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    return Completion(
        text=text if isinstance(text, str) else "",
        prompt_tokens=_count(usage.get("prompt_tokens")),
        completion_tokens=_count(usage.get("completion_tokens")),
        stopped=choice.get("finish_reason") != "length",
        retries=retries,
        cached=cached,
    )


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _write(path: pathlib.Path, answer: bytes) -> None:
    """Whole or not at all: several workers may keep the same answer."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}.{time.monotonic_ns()}.part")
    part.write_bytes(answer)
    part.replace(path)
