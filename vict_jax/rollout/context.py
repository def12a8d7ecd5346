"""Context builders: from observations to prompt ids, and from sampled ids to training sequences.

Both builders have one interface (`Context`) and work on ids. Text is encoded once, piece by piece; what
the model was given is what it is trained on, since a training sequence is put together from the very
lists that were sampled from. Only sampled tokens are marked as trained, by position, never by id.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np

from envs.base import Observation
from vict_jax.batching import TokenSequence
from vict_jax.rollout.options import ContextKind, RolloutOptions, TemplateKind
from vict_jax.rollout.parser import ReplyFormat, format_reply, parse_reply
from vict_jax.rollout.tokenizer import TURN_END, TURN_START, Codec

_DEFAULT_INSTRUCTION = (
    "You act in a text environment. Read the task and the latest observation, then choose the next action."
)
_OMITTED = "...\n"
_COMMANDS = "Commands:\n"


@dataclasses.dataclass(frozen=True)
class Reply:
    """A sampled (or demonstrated) reply.

    Attributes:
      ids: i32[n], as sampled, the stop token included.
      logp: f32[n], their log-probabilities under the policy that sampled them.
      stopped: it ended with the stop token; False is a truncation.
      text: what later prompts of a WINDOW say was done.
    """

    ids: np.ndarray
    logp: np.ndarray
    stopped: bool
    text: str


class Context(Protocol):
    """The conversation of one rollout. Calls alternate: `prompt`, `add_reply`, `add_observation`.

    Attributes:
      shortened: prompts so far that had to leave out history which the options ask for.
    """

    shortened: int

    def prompt(self) -> list[int] | None:
        """Ids to feed before the next reply; None if prompt and reply would exceed `max_context`.

        WINDOW: the whole prompt, for an empty cache. APPEND: what is new, behind what the cache has; after
        the first turn it starts with the last sampled token, which no cache has yet.
        """
        ...

    def add_reply(self, reply: Reply) -> None:
        """Take down the reply to the last prompt."""
        ...

    def add_observation(self, observation: Observation) -> None:
        """Take down what the environment said."""
        ...

    def sequences(self) -> tuple[TokenSequence, ...]:
        """Training sequences of the replies so far."""
        ...


def instruction(options: RolloutOptions) -> str:
    """The system text of a chat: what to do, and the reply format with an example that parses."""
    text = options.instruction or _DEFAULT_INSTRUCTION
    reply_format = ReplyFormat(options.reply)
    shape = (
        "Reply with your reasoning in <think> </think>, then exactly one action in <action> </action>."
        if reply_format is ReplyFormat.TAGS
        else "Reply with the action alone, on one line."
    )
    return f"{text}\n{shape}\nExample:\n{format_reply('look', reply_format, 'I should look around.')}"


def check_prompt(options: RolloutOptions) -> None:
    """Make sure that the reply the prompt asks for is one that the parser takes.

    Raises:
      ValueError: the example in the prompt is not a valid reply; names the reason.
    """
    example = instruction(options).rpartition("Example:\n")[2]
    parsed = parse_reply(example, ReplyFormat(options.reply), stopped=True)
    if not parsed.valid:
        raise ValueError(f"the prompt's own example {example!r} is not a valid reply: {parsed.reason}")


class Template:
    """Pieces of prompts as ids; a prompt is their concatenation.

    PLAIN: `{first observation}\\n` then per step `>{reply}<|im_end|>\\n{observation}\\n`.
    CHAT: ChatML turns, the instruction as the system turn.
    """

    def __init__(self, codec: Codec, options: RolloutOptions) -> None:
        self.codec, self.options = codec, options
        self._chat = TemplateKind(options.template) is TemplateKind.CHAT
        if self._chat:
            self._turn_start, self._turn_end = codec.control(TURN_START), codec.control(TURN_END)

    def opening(self) -> list[int]:
        """Everything before the first user text."""
        if self._chat:
            return self._turn("system", instruction(self.options))
        return [*self.codec.text(f"{self.options.instruction}\n")] if self.options.instruction else []

    def user_start(self) -> list[int]:
        """Begins what the environment says."""
        return [self._turn_start, *self.codec.text("user\n")] if self._chat else []

    def reply_start(self) -> list[int]:
        """Ends what the environment says; the reply follows."""
        if self._chat:
            newline, role = self.codec.text("\n"), self.codec.text("assistant\n")
            return [self._turn_end, *newline, self._turn_start, *role]
        return [*self.codec.text(">")]

    def reply_end(self) -> list[int]:
        """Comes after the stop token of a reply."""
        return [*self.codec.text("\n")]

    def observation(self, text: str) -> list[int]:
        """One observation, on lines of its own."""
        return [*self.codec.text(f"{text}\n")]

    def past_action(self, text: str) -> list[int]:
        """A past action in a WINDOW, in PLAIN exactly as it stands in the transcript."""
        if self._chat:
            return [*self.codec.text(f"> {text}\n")]
        return [*self.reply_start(), *self.codec.text(text), self.codec.end_id, *self.reply_end()]

    def commands(self, admissible: Iterable[str]) -> list[int]:
        """The admissible commands, one a line, each with the ids it has as a reply."""
        ids = [*self.codec.text(_COMMANDS)]
        for command in admissible:
            ids += self.codec.text(command)
            ids += self.codec.text("\n")
        return ids

    def situation(self, observation: Observation) -> list[int]:
        """The current observation and, if the options say so, the commands."""
        ids = self.observation(observation.text)
        if self.options.list_admissible and observation.admissible:
            ids += self.commands(observation.admissible)
        return ids

    def _turn(self, role: str, text: str) -> list[int]:
        return [
            self._turn_start,
            *self.codec.text(f"{role}\n"),
            *self.codec.text(text),
            self._turn_end,
            *self.codec.text("\n"),
        ]


def _sequence(parts: Sequence[tuple[Sequence[int], Reply | None, int]]) -> TokenSequence:
    """Join (prompt ids, reply, step) parts into one sequence; only replies are trained."""
    ids: list[np.ndarray] = []
    trained, logp, step = [], [], []
    for prompt, reply, index in parts:
        sampled = len(reply.ids) if reply else 0
        ids.append(np.asarray(prompt, np.int32))
        trained += [np.zeros(len(prompt), bool), np.ones(sampled, bool)]
        logp.append(np.zeros(len(prompt), np.float32))
        step.append(np.full(len(prompt) + sampled, index, np.int32))
        if reply:
            ids.append(np.asarray(reply.ids, np.int32))
            logp.append(np.asarray(reply.logp, np.float32))
    return TokenSequence(*map(np.concatenate, (ids, trained, logp, step)))


class AppendContext:
    """One growing sequence: opening, then per turn what is new and the reply as it was sampled."""

    def __init__(self, template: Template, first: Observation) -> None:
        self.shortened = 0
        self._template = template
        self._parts: list[tuple[list[int], Reply]] = []  # (prompt ids of the turn, reply)
        self._length = 0
        situation = template.situation(first)
        self._new = [*template.opening(), *template.user_start(), *situation, *template.reply_start()]

    def prompt(self) -> list[int] | None:
        """See `Context`."""
        options = self._template.options
        if self._length + len(self._new) + options.max_new_tokens > options.max_context:
            return None
        carried = [int(self._parts[-1][1].ids[-1])] if self._parts else []
        return carried + self._new

    def add_reply(self, reply: Reply) -> None:
        """See `Context`. A reply that was cut off is closed by an end token that is not trained."""
        self._parts.append((self._new, reply))
        self._length += len(self._new) + len(reply.ids)
        closing = [] if reply.stopped else [self._template.codec.end_id]
        self._new = closing + self._template.reply_end()

    def add_observation(self, observation: Observation) -> None:
        """See `Context`."""
        template = self._template
        self._new += template.user_start() + template.situation(observation) + template.reply_start()

    def sequences(self) -> tuple[TokenSequence, ...]:
        """See `Context`."""
        if not self._parts:
            return ()
        return (_sequence([(prompt, reply, step) for step, (prompt, reply) in enumerate(self._parts)]),)


class WindowContext:
    """One sequence a step: first observation, the last steps, the current observation, the commands."""

    def __init__(self, template: Template, first: Observation) -> None:
        self.shortened = 0
        self._template = template
        self._head = [*template.opening(), *template.user_start()]
        self._observations = [first]
        self._actions: list[list[int]] = []  # ids of past actions
        self._prompt: list[int] = []
        self._parts: list[tuple[list[int], Reply]] = []

    def prompt(self) -> list[int] | None:
        """See `Context`. Too long a history loses its oldest steps."""
        options, step = self._template.options, len(self._actions)
        wanted = min(options.history, step)
        for history in range(wanted, -1, -1):
            self._prompt = self._build(history)
            if len(self._prompt) + options.max_new_tokens <= options.max_context:
                self.shortened += history < wanted
                return self._prompt
        return None

    def add_reply(self, reply: Reply) -> None:
        """See `Context`."""
        self._parts.append((self._prompt, reply))
        self._actions.append(self._template.past_action(reply.text))

    def add_observation(self, observation: Observation) -> None:
        """See `Context`."""
        self._observations.append(observation)

    def sequences(self) -> tuple[TokenSequence, ...]:
        """See `Context`."""
        return tuple(_sequence([(prompt, reply, step)]) for step, (prompt, reply) in enumerate(self._parts))

    def _build(self, history: int) -> list[int]:
        template, step = self._template, len(self._actions)
        ids = list(self._head)
        if step:
            ids += template.observation(self._observations[0].text)
        if step > history:
            ids += template.codec.text(_OMITTED)
        for past in range(step - history, step):
            if past > 0:
                ids += template.observation(self._observations[past].text)
            ids += self._actions[past]
        return ids + template.situation(self._observations[step]) + template.reply_start()


def start_context(template: Template, first: Observation) -> Context:
    """The context of a rollout whose first observation is `first`, as `template.options.context` says."""
    if ContextKind(template.options.context) is ContextKind.APPEND:
        return AppendContext(template, first)
    return WindowContext(template, first)
