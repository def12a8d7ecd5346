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
    """How a prompt is written: PLAIN is a bare transcript for tiny models, CHAT has ChatML turns."""

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


@dataclasses.dataclass(frozen=True)
class RolloutOptions:
    """How rollouts are made. Enumerated options are given by the value of their enumeration.

    Attributes:
      context: a `ContextKind`. template: a `TemplateKind`. reply: a `ReplyFormat`.
      instruction: put before everything else; the reply format is added to it under CHAT.
      history: WINDOW: at most this many past steps are shown.
      list_admissible: show the admissible commands with the current observation.
      max_context: tokens of one sequence, reply included; also the row length in training.
      max_new_tokens: tokens of one reply, stop token included.
      temperature: of sampling; 0 is greedy.
      allow_trailing: accept text after `</action>`.
      invalid: an `InvalidReply`.
      format_penalty: subtracted for each invalid reply from `Marks.penalty`; the score is never touched.
      rows: rollouts in play at once; results do not depend on it.
    """

    context: str = "window"
    template: str = "plain"
    reply: str = "line"
    instruction: str = ""
    history: int = 4
    list_admissible: bool = True
    max_context: int = 512
    max_new_tokens: int = 16
    temperature: float = 1.0
    allow_trailing: bool = False
    invalid: str = "noop"
    format_penalty: float = 0.0
    rows: int = 128

    def __post_init__(self) -> None:
        for name, kind in (
            ("context", ContextKind),
            ("template", TemplateKind),
            ("reply", ReplyFormat),
            ("invalid", InvalidReply),
        ):
            allowed = [member.value for member in kind]
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}={getattr(self, name)!r} is not one of {allowed}")
        for name, least in (("history", 0), ("max_new_tokens", 1), ("rows", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if self.max_context <= self.max_new_tokens:
            raise ValueError(
                f"max_context={self.max_context} leaves no room for a prompt beside "
                f"max_new_tokens={self.max_new_tokens}"
            )
        for name in ("temperature", "format_penalty"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be 0 or a positive number, got {getattr(self, name)}")
