"""Customers: who the agent talks to: a scripted one, a logged one, or a language model.

The scripted customer is deterministic and needs no model. It says what it wants, identifies itself when
asked, agrees with `yes` to a proposal that states one of its wishes in full and nothing else of the same
kind, answers `no` to any other proposal, and believes the agent that says it is done or cannot help: then
it ends the conversation. It never sees the database, so an agent that says so too early has ended it.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Iterable, Sequence
from typing import Any

from envs.endpoint import Endpoint, EndpointError, Sleep, complete
from envs.tau_bench.data import Call
from envs.tau_bench.session import STOP

YES, NO = "yes", "no"
GREETING = "Hi! How can I help you today?"
_ROLE = """You play a customer who talks to the agent of a company. What you want:

{instruction}

- Write one short message at a time, as the customer would.
- Tell only what is needed now, not everything at once.
- If you are asked for something that is not told above, say that you do not know it; never make it up.
- Say it in your own words and keep the character that is described.
- When all that you want is done, or cannot be done, answer with ###STOP### and nothing else. While you still
  have to confirm something, confirm it and do not stop."""
_TOKEN = re.compile(r"#?\w+(?:[.@+-]\w+)*")
_WHO = re.compile(r"\b(who|name|zip|e-?mail|user id|identif\w*|verif\w*|authenticat\w*)\b", re.IGNORECASE)
_AGREES = re.compile(
    r"\b(yes|yeah|yep|yup|sure|confirm\w*|correct|go ahead|proceed|please do|agreed?|ok|okay|absolutely)\b",
    re.IGNORECASE,
)
_REFUSES = re.compile(r"^\W*no\b|\b(do not|don't|not) (want|proceed|agree|confirm|go)\b", re.IGNORECASE)


def agrees(message: str) -> bool:
    """Whether a customer's message is an explicit yes."""
    return bool(_AGREES.search(message)) and not _REFUSES.search(message)


def tokens(text: str) -> set[str]:
    """Words, numbers and ids of a text, in lower case."""
    return {token.lower() for token in _TOKEN.findall(text)}


@dataclasses.dataclass(frozen=True)
class Script:
    """What a scripted customer knows.

    Attributes:
      identity: its answer to who it is; empty if its first message says so.
      wishes: calls that it agrees to, each once; the ground truth's or, where its wish must be refused,
        others.
    """

    identity: str
    wishes: tuple[Call, ...]


class ScriptedCustomer:
    """Follows a script, see the module; implements `session.Customer`. It says the instruction first."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._opening = ""
        self._agreed: set[int] = set()
        self._reminders = 0

    def reset(self, instruction: str) -> str:
        """See `Customer.reset`."""
        self._opening, self._agreed, self._reminders = instruction, set(), 0
        return instruction

    def step(self, content: str) -> str:
        """See `Customer.step`."""
        said = tokens(content)
        for i, wish in enumerate(self._script.wishes):
            if states(said, wish):
                self._agreed.add(i)
                return YES
        asks = content.rstrip().endswith("?")
        if asks and any(_mentions_ids(said, wish) for wish in self._script.wishes):
            return NO
        if asks and self._script.identity and _WHO.search(content):
            return self._script.identity
        if asks and len(self._agreed) < len(self._script.wishes) and not self._reminders:
            self._reminders += 1
            return self._opening
        return STOP


class LoggedCustomer:
    """Says the messages of a logged conversation in their order, then ends it.

    Args:
      messages: the first is the opening.
    """

    def __init__(self, messages: Sequence[str]) -> None:
        self._messages = tuple(messages)
        self._next = 0

    def reset(self, instruction: str) -> str:
        """See `Customer.reset`; what the log has first is said, whatever the instruction."""
        self._next = 0
        return self.step(instruction)

    def step(self, content: str) -> str:
        """See `Customer.step`; the content is not read."""
        self._next += 1
        return self._messages[self._next - 1] if self._next <= len(self._messages) else STOP


class CustomerError(Exception):
    """The endpoint gave no answer. An environment that raises it loses the episode, nothing else."""


class EndpointCustomer:
    """A language model, one conversation after another; implements `session.Customer`.

    Args:
      endpoint: where the model is.
      sleep: waits between attempts (seconds).
    """

    def __init__(self, endpoint: Endpoint, sleep: Sleep = time.sleep) -> None:
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
        try:
            answer = complete(self._endpoint, self._messages, sleep=self._sleep).text
        except EndpointError as error:
            raise CustomerError(str(error)) from error
        if not answer:
            raise CustomerError("the customer's answer has no text")
        self._messages.append({"role": "assistant", "content": answer})
        return answer


def states(said: set[str], wish: Call) -> bool:
    """Whether words contain every value of a call, and no other id of the kinds that it has."""
    wanted = _values(wish)
    ids = {value for value in wanted if _is_id(value)}
    kinds = {_kind(value) for value in ids}
    others = {token for token in said - wanted if _is_id(token) and _kind(token) in kinds}
    return wanted <= said and not others


def _mentions_ids(said: set[str], wish: Call) -> bool:
    """Whether words contain an id of a kind that a call has: then they propose something."""
    kinds = {_kind(value) for value in _values(wish) if _is_id(value)}
    return any(_is_id(token) and _kind(token) in kinds for token in said)


def _values(call: Call) -> set[str]:
    return {token for leaf in _leaves(call.kwargs.values()) for token in tokens(str(leaf))}


def _leaves(values: Iterable[Any]) -> Iterable[Any]:
    for value in values:
        if isinstance(value, dict):
            yield from _leaves(value.values())
        elif isinstance(value, list):
            yield from _leaves(value)
        else:
            yield value


def _is_id(token: str) -> bool:
    """Ids are written with a digit, and are no small numbers."""
    return any(c.isdigit() for c in token) and (len(token) > 1 or not token.isdigit())


def _kind(token: str) -> str:
    """Ids of one kind look alike: `#w12` and `#w7`, `gift_card_3` and `gift_card_88`."""
    if token.isdigit():
        return f"number{len(token)}"
    if "_" in token or token.startswith("#"):
        return re.sub(r"\d+", "0", token)
    if re.fullmatch(r"\d+-\d+-\d+", token):
        return "date"
    return f"code{len(token)}"
