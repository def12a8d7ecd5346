"""Who answers conversations: the interface, and a chat endpoint behind it."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import threading
from collections.abc import Mapping
from typing import Protocol

from envs.endpoint import Completion, ContextFullError, Endpoint, EndpointError, complete
from vict_jax.agents.conversation import Conversation, messages
from vict_jax.agents.usage import Usage


@dataclasses.dataclass(frozen=True)
class Request:
    """A conversation to be answered.

    Attributes:
      task: number of the task. call: number of the request within the task; both seed sampling.
    """

    task: int
    call: int
    conversation: Conversation


@dataclasses.dataclass(frozen=True)
class Reply:
    """An answer.

    Attributes:
      ids: as sampled, the end token included; empty if the model does not say.
      stopped: the model ended it; it was not cut off.
      full: the conversation is too long for the model even without its earlier turns; there is no text.
      shortened: earlier turns were left out to fit.
    """

    text: str
    ids: tuple[int, ...]
    stopped: bool
    usage: Usage
    full: bool = False
    shortened: bool = False


FULL = Reply("", (), stopped=False, usage=Usage(), full=True)


class Model(Protocol):
    """Answers conversations, each under the number of its seat."""

    def ask(self, requests: Mapping[int, Request]) -> None:
        """Have more conversations answered."""
        ...

    def answers(self) -> dict[int, Reply]:
        """Some of the answers that are due, at least one. Raises EndpointError."""
        ...

    def stop(self) -> dict[int, Reply]:
        """Ask nothing more; the answers that were on their way."""
        ...


class EndpointModel:
    """A chat endpoint; implements `Model`.

    Args:
      instruction: the system message.
      concurrency: requests at a time.
    """

    def __init__(self, endpoint: Endpoint, instruction: str, *, concurrency: int) -> None:
        if concurrency < 1:
            raise ValueError(f"concurrency={concurrency} must be 1 or more")
        self._endpoint, self._instruction = endpoint, instruction
        self._threads = concurrent.futures.ThreadPoolExecutor(concurrency, "endpoint")
        self._stopping = threading.Event()
        self._due: dict[concurrent.futures.Future[Reply], int] = {}

    def ask(self, requests: Mapping[int, Request]) -> None:
        """See `Model`."""
        for seat, request in requests.items():
            self._due[self._threads.submit(self._answer, request.conversation)] = seat

    def answers(self) -> dict[int, Reply]:
        """See `Model`."""
        over, _ = concurrent.futures.wait(self._due, return_when=concurrent.futures.FIRST_COMPLETED)
        for future in over:
            if error := future.exception():
                del self._due[future]
                raise error
        return {self._due.pop(future): future.result() for future in over}

    def stop(self) -> dict[int, Reply]:
        """See `Model`; waits for requests that were sent, not for further attempts."""
        self._stopping.set()
        self._threads.shutdown(cancel_futures=True)
        ended = {future: seat for future, seat in self._due.items() if not future.cancelled()}
        self._due = {}
        return {seat: future.result() for future, seat in ended.items() if future.exception() is None}

    def _answer(self, conversation: Conversation) -> Reply:
        """The answer to a conversation, or to half its turns if they are too many, and so on."""
        kept = len(conversation.turns)
        while True:
            told = messages(self._instruction, conversation.last(kept))
            try:
                completion = complete(self._endpoint, told, sleep=self._wait)
            except ContextFullError:
                if not kept:
                    return FULL
                kept //= 2
            else:
                return _reply(completion, shortened=kept < len(conversation.turns))

    def _wait(self, seconds: float) -> None:
        if self._stopping.wait(seconds):
            raise EndpointError("stopped while it waited for another attempt")


def _reply(completion: Completion, *, shortened: bool) -> Reply:
    stated = completion.prompt_tokens is not None and completion.completion_tokens is not None
    counted = completion if not completion.cached else None
    usage = Usage(
        calls=1,
        retries=completion.retries,
        cached=completion.cached,
        prompt_tokens=(counted.prompt_tokens or 0) if counted else 0,
        completion_tokens=(counted.completion_tokens or 0) if counted else 0,
        unstated=int(not stated and not completion.cached),
    )
    return Reply(completion.text, (), completion.stopped, usage, shortened=shortened)
