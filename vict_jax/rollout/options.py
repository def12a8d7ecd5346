"""Options of prompts, replies and rollouts."""

from __future__ import annotations

import dataclasses
import enum
import math

from vict_jax.rollout.parser import ReplyFormat


class ContextKind(enum.Enum):
    """What the model sees at each step.

    WINDOW: instruction, recent history, current observation, admissible commands; one sequence a step.
    APPEND: everything so far; one growing sequence a rollout.
    """

    WINDOW = "window"
    APPEND = "append"


class TemplateKind(enum.Enum):
    """How a prompt is written: PLAIN is a bare transcript for tiny models, CHAT the tokenizer's template."""

    PLAIN = "plain"
    CHAT = "chat"


class InvalidReply(enum.Enum):
    """What a reply without an action does. In every case it is a step, recorded as invalid.

    NOOP: the environment is not asked; the next observation says that nothing happens.
    PASS: the raw text goes to the environment.
    END: the rollout ends.
    """

    NOOP = "noop"
    PASS = "pass"
    END = "end"


class InstructionRole(enum.Enum):
    """Who says the instruction in a chat.

    SYSTEM: a system message. USER: the first lines of the first user message, which leaves the template its
    own system message, or none.
    """

    SYSTEM = "system"
    USER = "user"


class Thinking(enum.Enum):
    """The `enable_thinking` switch of a chat template (Qwen3's); DEFAULT does not set it."""

    DEFAULT = "default"
    ON = "on"
    OFF = "off"


class Trained(enum.Enum):
    """Which tokens of a reply are trained.

    REPLY: all that were sampled.
    ACTION: those inside the action tags (TRCA, arXiv 2608.16156), in the formats TAGS and ACTION. A reply
      without an action is trained whole, since nothing else would teach the form.
    """

    REPLY = "reply"
    ACTION = "action"


class Overflow(enum.Enum):
    """What an APPEND context does when the next prompt and reply do not fit into `max_context`.

    END: the rollout ends. SHORTEN: a new sequence begins with the first observation, a mark, and the most
    recent steps, see `vict_jax.rollout.context.AppendContext`.
    """

    END = "end"
    SHORTEN = "shorten"


@dataclasses.dataclass(frozen=True)
class RolloutOptions:
    """How rollouts are made. Enumerated options are given by the value of their enumeration.

    Attributes:
      context: a `ContextKind`. template: a `TemplateKind`. reply: a `ReplyFormat`.
      instruction: put before everything else; the reply format is added to it under CHAT.
      instruction_role: an `InstructionRole`, of CHAT. thinking: a `Thinking`, of CHAT.
      few_shot: this many steps of the expert on training tasks come first, as earlier turns.
      history: WINDOW: at most this many past steps are shown.
      list_admissible: show the admissible commands with the current observation.
      max_context: tokens of one sequence, reply included; also the row length in training.
      overflow: an `Overflow`, of APPEND; a WINDOW always drops its oldest steps.
      max_new_tokens: tokens of one reply, stop token included.
      stop_strings: ASCII texts that end a reply, beside the model's end tokens; the reply keeps them.
      temperature: of sampling; 0 is greedy.
      top_k: sample among the k most probable tokens; 0 is off. top_p: among the fewest most probable tokens
        whose probabilities add up to p; 1 is off. Stored log-probabilities are those of the whole
        distribution in any case, see `vict_jax.rollout.sampler`.
      allow_trailing: accept text after `</action>`.
      trained: a `Trained`, of what the policy says; the expert's replies are trained whole in any case.
      invalid: an `InvalidReply`.
      format_penalty: taken off the reward of each reply without an action (`vict_jax.shaping`); the score is
        never touched.
      rows: rollouts in play at once, the next one takes the place of one that is over; results do not
        depend on it.
      lanes: 1, or 2: half of the rows take their step in the environments while the model speaks in the other
        half. Results do not depend on it. Worth it where environments are slow: each half is sampled alone.
    """

    context: str = "window"
    template: str = "plain"
    reply: str = "line"
    instruction: str = ""
    instruction_role: str = "system"
    thinking: str = "default"
    few_shot: int = 0
    history: int = 4
    list_admissible: bool = True
    max_context: int = 512
    overflow: str = "end"
    max_new_tokens: int = 16
    stop_strings: tuple[str, ...] = ()
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    allow_trailing: bool = False
    trained: str = "reply"
    invalid: str = "noop"
    format_penalty: float = 0.0
    rows: int = 128
    lanes: int = 1

    def __post_init__(self) -> None:
        for name, kind in (
            ("context", ContextKind),
            ("template", TemplateKind),
            ("reply", ReplyFormat),
            ("trained", Trained),
            ("invalid", InvalidReply),
            ("instruction_role", InstructionRole),
            ("thinking", Thinking),
            ("overflow", Overflow),
        ):
            allowed = [member.value for member in kind]
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}={getattr(self, name)!r} is not one of {allowed}")
        tagged = (ReplyFormat.TAGS.value, ReplyFormat.ACTION.value)
        if Trained(self.trained) is Trained.ACTION and self.reply not in tagged:
            raise ValueError(f"trained={self.trained!r} needs a reply in one of {tagged}, got {self.reply!r}")
        for name, least in (
            ("history", 0),
            ("max_new_tokens", 1),
            ("rows", 1),
            ("few_shot", 0),
            ("top_k", 0),
        ):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if self.lanes not in (1, 2) or self.rows % self.lanes:
            raise ValueError(
                f"lanes={self.lanes} must be 1 or 2, and divide rows={self.rows} (rollout.rows, eval.batch)"
            )
        if self.max_context <= self.max_new_tokens:
            raise ValueError(
                f"max_context={self.max_context} leaves no room for a prompt beside "
                f"max_new_tokens={self.max_new_tokens}"
            )
        for name in ("temperature", "format_penalty"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be 0 or a positive number, got {getattr(self, name)}")
        chat = TemplateKind(self.template) is TemplateKind.CHAT
        for name, plain in (("instruction_role", "system"), ("thinking", "default")):
            if not chat and getattr(self, name) != plain:
                raise ValueError(
                    f"{name}={getattr(self, name)!r} needs template='chat', got {self.template!r}"
                )
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1 (off), got {self.top_p}")
        for text in self.stop_strings:
            if not text or not text.isascii():
                raise ValueError(f"stop_strings must be non-empty ASCII texts, got {text!r}")
