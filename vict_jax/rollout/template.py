"""How a conversation is written as ids: a bare transcript, or the chat template of the tokenizer.

A prompt is put together from pieces that are encoded once. Nothing that was sampled is ever encoded or
rendered again: a chat template may write earlier turns in another way than they were generated (Qwen3's
drops their reasoning), so the pieces between two turns are taken out of the template by a rule, once, and
checked to be the same at every turn.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol

import jinja2
import numpy as np

from envs.base import Observation
from vict_jax.rollout.options import InstructionRole, RolloutOptions, TemplateKind, Thinking
from vict_jax.rollout.parser import ReplyFormat, format_reply, parse_reply
from vict_jax.rollout.tokenizer import Codec

_DEFAULT_INSTRUCTION = (
    "You act in a text environment. Read the task and the latest observation, then choose the next action."
)
_SHAPES = {
    ReplyFormat.TAGS: "Reply with your reasoning in <think> </think>, then exactly one action in "
    "<action> </action>.",
    ReplyFormat.ACTION: "Reply with exactly one action in <action> </action>.",
    ReplyFormat.LINE: "Reply with the action alone, on one line.",
}
OMITTED = "...\n"
_COMMANDS = "Commands:\n"
_SWITCH = "enable_thinking"


@dataclasses.dataclass(frozen=True)
class PastAction:
    """An action of an earlier step, told in the text of a later prompt."""

    text: str


# A turn of the environment, in pieces: what it says, and what was done in between.
Piece = str | PastAction


@dataclasses.dataclass(frozen=True)
class Example:
    """A solved step that comes before the first turn: what the environment says, and the reply to it."""

    pieces: tuple[Piece, ...]
    reply: str


class Template(Protocol):
    """Pieces of prompts as ids; a prompt is their concatenation.

    Attributes:
      opening: everything before the first text of the environment; the same for every rollout.
      end_id: the token that ends a reply in the conversation.
    """

    codec: Codec
    options: RolloutOptions
    opening: tuple[int, ...]
    end_id: int

    def turn(self, pieces: Sequence[Piece]) -> list[int]:
        """A turn of the environment, up to where the reply begins."""
        ...

    def close(self, ids: np.ndarray) -> list[int]:
        """What comes between a reply with these ids and the next turn.

        A reply that did not end with `end_id` (cut off, or at another end token or a stop string) gets it
        here, as text that is not trained.
        """
        ...


def instruction(options: RolloutOptions) -> str:
    """The instruction of a chat: what to do, and the reply format with an example that parses.

    A RAW reply has the form that the environment asks for in its first observation.
    """
    text = options.instruction or _DEFAULT_INSTRUCTION
    reply_format = ReplyFormat(options.reply)
    if reply_format is ReplyFormat.RAW:
        return text
    example = format_reply("look", reply_format, "I should look around.")
    return f"{text}\n{_SHAPES[reply_format]}\nExample:\n{example}"


def check_prompt(options: RolloutOptions) -> None:
    """Make sure that the reply the prompt asks for is one that the parser takes.

    Raises:
      ValueError: the example in the prompt is not a valid reply; names the reason.
    """
    example = instruction(options).rpartition("Example:\n")[2]
    parsed = parse_reply(example, ReplyFormat(options.reply), stopped=True)
    if not parsed.valid:
        raise ValueError(f"the prompt's own example {example!r} is not a valid reply: {parsed.reason}")


def situation(observation: Observation, options: RolloutOptions) -> list[Piece]:
    """An observation, on lines of its own, and, if the options say so, the commands, one a line."""
    pieces: list[Piece] = [f"{observation.text}\n"]
    if options.list_admissible and observation.admissible:
        pieces.append(_COMMANDS)
        for command in observation.admissible:
            pieces += [command, "\n"]
    return pieces


def window(
    observations: Sequence[Observation], actions: Sequence[str], history: int, options: RolloutOptions
) -> list[Piece]:
    """A step told in one turn: the first observation, the last `history` steps, the situation.

    Args:
      observations: of all steps so far and the present one. actions: one less.
    """
    step = len(actions)
    pieces: list[Piece] = [f"{observations[0].text}\n"] if step else []
    if step > history:
        pieces.append(OMITTED)
    for past in range(step - history, step):
        if past > 0:
            pieces.append(f"{observations[past].text}\n")
        pieces.append(PastAction(actions[past]))
    return pieces + situation(observations[step], options)


def make_template(codec: Codec, options: RolloutOptions, examples: Sequence[Example] = ()) -> Template:
    """The template that `options.template` names.

    Args:
      examples: solved steps that come first.

    Raises:
      ValueError: `ChatTemplate` cannot use the tokenizer's chat template, or instruction and examples fill
        the whole context.
    """
    chat = TemplateKind(options.template) is TemplateKind.CHAT
    template = (ChatTemplate if chat else PlainTemplate)(codec, options, examples)
    opening = len(template.opening)
    if opening + options.max_new_tokens >= options.max_context:
        raise ValueError(
            f"max_context={options.max_context} leaves no room for a prompt beside {opening} tokens of "
            f"instruction and examples and max_new_tokens={options.max_new_tokens}"
        )
    return template


class PlainTemplate:
    """`{instruction}\\n`, then per step `{observation}\\n>{reply}<end>\\n`, each piece encoded by itself.

    So a command that is listed has the ids that it has as a reply, and a past action those of its reply.
    """

    def __init__(self, codec: Codec, options: RolloutOptions, examples: Sequence[Example] = ()) -> None:
        self.codec, self.options, self.end_id = codec, options, codec.end_id
        opening = codec.reply(f"{options.instruction}\n") if options.instruction else []
        for example in examples:
            ids = codec.reply(example.reply)
            opening += [*self.turn(example.pieces), *ids, *self.close(np.array(ids))]
        self.opening = tuple(opening)

    def turn(self, pieces: Sequence[Piece]) -> list[int]:
        """See `Template`."""
        ids: list[int] = []
        for piece in pieces:
            if isinstance(piece, str):
                ids += self.codec.text(piece)
            else:
                said = self.codec.text(piece.text)
                ids += [*self.codec.text(">"), *said, self.end_id, *self.codec.text("\n")]
        return [*ids, *self.codec.text(">")]

    def close(self, ids: np.ndarray) -> list[int]:
        """See `Template`."""
        end = [] if ids[-1] == self.end_id else [self.end_id]
        return [*end, *self.codec.text("\n")]


class ChatTemplate:
    """Turns as the tokenizer's chat template writes them.

    The texts around the messages come from one rendering of a conversation of placeholders. In it the text
    between a user message and the reply (g), and that between a reply and the next user message (c), must
    be the same at every turn, the generation prompt must begin with g (it may go on, as Qwen3's does with
    an empty reasoning block), c must begin with an end token of the model, and the first turn alone must
    render to the same texts. Then what is new at a turn is a clean suffix of what the model has seen.

    Raises:
      ValueError: the tokenizer has no chat template, or one without these properties, or one that refuses
        the roles or does not know the `thinking` switch.
    """

    def __init__(self, codec: Codec, options: RolloutOptions, examples: Sequence[Example] = ()) -> None:
        self.codec, self.options = codec, options
        head, earlier, between, present = _texts_around(codec, options)
        self._earlier, self._present = codec.reply(earlier), codec.reply(present)
        self._between = codec.reply(between)
        if not self._between or self._between[0] not in codec.stop_ids:
            raise ValueError(
                f"the chat template goes on with {between!r} after a reply, which does not begin with an end "
                f"token of the model: {codec.decode(codec.stop_ids)!r}"
            )
        self.end_id = self._between[0]
        self.opening = tuple(self._open(head, examples))

    def turn(self, pieces: Sequence[Piece]) -> list[int]:
        """See `Template`."""
        return [*self.codec.text(message_text(pieces)), *self._present]

    def close(self, ids: np.ndarray) -> list[int]:
        """See `Template`."""
        return self._between[1:] if ids[-1] == self.end_id else self._between

    def _open(self, head: Sequence[str], examples: Sequence[Example]) -> list[int]:
        ids = self.codec.reply(head[0])
        for after in head[1:]:
            ids += self.codec.reply(instruction(self.options)) + self.codec.reply(after)
        if InstructionRole(self.options.instruction_role) is InstructionRole.USER:
            ids += self.codec.reply(f"{instruction(self.options)}\n")
        for example in examples:
            ids += [*self.codec.text(message_text(example.pieces)), *self._earlier]
            ids += [*self.codec.reply(example.reply), *self._between]
        return ids


def message_text(pieces: Sequence[Piece]) -> str:
    """The text of one user message."""
    texts = [piece if isinstance(piece, str) else f"> {piece.text}\n" for piece in pieces]
    return "".join(texts).strip()


def _texts_around(codec: Codec, options: RolloutOptions) -> tuple[list[str], str, str, str]:
    """What the chat template writes around messages, see `ChatTemplate`.

    Returns:
      The texts before the first user message (two, around the system message, if there is one), g, c and
      the generation prompt.
    """
    system = int(InstructionRole(options.instruction_role) is InstructionRole.SYSTEM)
    roles = [*["system"] * system, "user", "assistant", "user", "assistant", "user"]
    texts = _render(codec, roles, options)
    head, (g, c, g_again, c_again, present) = texts[: system + 1], texts[system + 1 :]
    alone = _render(codec, roles[: system + 1], options)
    if (g, c) != (g_again, c_again) or not present.startswith(g) or alone != [*head, present]:
        raise ValueError(
            "the chat template does not write every turn alike, so a reply cannot be followed by a new turn "
            f"without rendering it again: it writes {texts} around {roles}, {alone} around the first alone. "
            "Use context='window' with another template, or template='plain'."
        )
    return head, g, c, present


def _render(codec: Codec, roles: Sequence[str], options: RolloutOptions) -> list[str]:
    """The texts around the contents of messages with these roles, and the generation prompt behind them."""
    if codec.tokenizer.chat_template is None:
        raise ValueError("the tokenizer has no chat template; use template='plain'")
    marks = [f"[[content {i}]]" for i in range(len(roles))]
    messages = [{"role": role, "content": mark} for role, mark in zip(roles, marks, strict=True)]
    try:
        rest = str(
            codec.tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, **_switch(codec, options)
            )
        )
    except jinja2.TemplateError as error:
        raise ValueError(
            f"the chat template refuses the roles {list(roles)}: {error}. "
            "Without a system message: instruction_role='user'."
        ) from error
    texts = []
    for mark in marks:
        before, found, rest = rest.partition(mark)
        if not found or mark in rest:
            raise ValueError(f"the chat template does not write each message once and in order: {roles}")
        texts.append(before)
    return [*texts, rest]


def _switch(codec: Codec, options: RolloutOptions) -> dict[str, Any]:
    thinking = Thinking(options.thinking)
    if thinking is Thinking.DEFAULT:
        return {}
    if _SWITCH not in str(codec.tokenizer.chat_template):
        raise ValueError(f"thinking={options.thinking!r}, but the chat template has no switch {_SWITCH!r}")
    return {_SWITCH: thinking is Thinking.ON}
