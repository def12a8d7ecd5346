"""The agents: what a model is told and asked, and how its reply is read. All functions are pure.

* plain: acts, without a word of reasoning.
* react: a thought and an action in every reply (ReAct, arXiv 2210.03629, section 2).
* reflexion: the same, with several trials a task (arXiv 2303.11366, algorithm 1). After one that failed the
  model writes what it should do differently, and reads it at the start of the next. Whether a trial
  succeeded is the environment's own verdict; nothing else of it is told.

Replies have the formats of training (`vict_jax.rollout.parser`), so one reader judges all policies.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence

from envs.base import Observation
from vict_jax.agents.conversation import Conversation, Turn
from vict_jax.agents.model import Reply
from vict_jax.batching import EndReason
from vict_jax.rollout.options import RolloutOptions
from vict_jax.rollout.parser import ParsedReply, ReplyFormat, parse_reply, reply_text
from vict_jax.rollout.template import Piece, instruction, situation
from vict_jax.rollout.tokenizer import END_ACTION, END_THINK

_LESSONS = "What you learned from earlier trials of this very task, which failed:\n"
_REFLECT = (
    "The trial is over and the task is not solved: {how}. Do not act now. In a few sentences, say what went "
    "wrong and what you will do differently in the next trial of the same task, from its beginning."
)
_HOW = {
    EndReason.STEP_CAP: "no steps are left",
    EndReason.FAILURE: "it ended without success",
    EndReason.CONTEXT: "the conversation became too long",
}


class AgentKind(enum.Enum):
    """See the module."""

    PLAIN = "plain"
    REACT = "react"
    REFLEXION = "reflexion"


# Formats of replies that have room for a thought.
_WITH_THOUGHT = (ReplyFormat.TAGS, ReplyFormat.RAW)


@dataclasses.dataclass(frozen=True)
class Agent:
    """How a model is made an agent.

    Attributes:
      options: of prompts and replies; `invalid` says what a reply without an action does, as in training.
      trials: attempts at a task, of a Reflexion agent.
      memory: the newest lessons it is told, at most (the paper's bound is 1 to 3).
      history: past steps it is told; 0 for all.
    """

    kind: AgentKind
    options: RolloutOptions
    trials: int = 1
    memory: int = 3
    history: int = 0

    def __post_init__(self) -> None:
        reflects = self.kind is AgentKind.REFLEXION
        if self.trials < 1 or (self.trials > 1 and not reflects):
            allowed = "1 or more" if reflects else f"1: agent={self.kind.value} does not learn from a trial"
            raise ValueError(f"trials={self.trials} must be {allowed}")
        if self.memory < 1 or self.history < 0:
            raise ValueError(
                f"memory={self.memory} must be 1 or more and history={self.history} 0 (all) or more"
            )
        if self.kind is not AgentKind.PLAIN and ReplyFormat(self.options.reply) not in _WITH_THOUGHT:
            raise ValueError(
                f"reply={self.options.reply!r} has no thought, which agent={self.kind.value} needs: "
                f"{' or '.join(repr(one.value) for one in _WITH_THOUGHT)}"
            )


def default_reply(kind: AgentKind) -> str:
    """The format of an agent's replies."""
    return (ReplyFormat.ACTION if kind is AgentKind.PLAIN else ReplyFormat.TAGS).value


def stop_strings(reply: str) -> tuple[str, ...]:
    """What ends a reply: a model that goes on behind its action would make the next observation up."""
    return (END_ACTION,) if ReplyFormat(reply) in (ReplyFormat.TAGS, ReplyFormat.ACTION) else ()


@dataclasses.dataclass(frozen=True)
class Said:
    """A reply that asked for an action.

    Attributes:
      text: what counts of the model's words. ids: as they were sampled, if that is known.
      parsed: how it was read. action: what it says to do, or the text where it says nothing valid.
    """

    text: str
    ids: tuple[int, ...]
    parsed: ParsedReply
    action: str


@dataclasses.dataclass(frozen=True)
class Step:
    """A step that was taken: what the agent saw and said, and whether the environment took the action."""

    observation: Observation
    said: Said
    accepted: bool


def system_text(agent: Agent) -> str:
    """What the model is told before everything: the task, how to act, the format of a reply."""
    return instruction(agent.options)


def ask_to_act(
    agent: Agent, lessons: Sequence[str], steps: Sequence[Step], observation: Observation
) -> Conversation:
    """The conversation whose next reply is an action."""
    return _conversation(agent, lessons, steps, observation, ())


def ask_to_reflect(
    agent: Agent, lessons: Sequence[str], steps: Sequence[Step], observation: Observation, end: EndReason
) -> Conversation:
    """The conversation whose next reply is the lesson of a failed trial."""
    return _conversation(agent, lessons, steps, observation, (_REFLECT.format(how=_HOW[end]),))


def read_action(agent: Agent, reply: Reply) -> Said:
    """What a reply says to do, or why it says nothing."""
    options = agent.options
    reply_format = ReplyFormat(options.reply)
    text = reply_text(reply.text, reply_format, options.stop_strings)
    ended = reply.stopped or text != reply.text  # cut off behind the action it had already given
    parsed = parse_reply(text, reply_format, stopped=ended, allow_trailing=options.allow_trailing)
    return Said(text, reply.ids, parsed, parsed.action if parsed.valid else text.strip())


def read_lesson(text: str) -> str:
    """What of a reflection is remembered: the text behind the model's own reasoning, if it shows any."""
    return text.rpartition(END_THINK)[2].strip()


def _conversation(
    agent: Agent,
    lessons: Sequence[str],
    steps: Sequence[Step],
    observation: Observation,
    question: tuple[str, ...],
) -> Conversation:
    """All turns so far; only the present one lists commands, and only if there is no other question."""
    asked = [f"{observation.text}\n", *question] if question else situation(observation, agent.options)
    told: list[tuple[Piece, ...]] = [*((f"{step.observation.text}\n",) for step in steps), tuple(asked)]
    if known := lessons[-agent.memory :]:
        listed = "".join(f"- {lesson}\n" for lesson in known)
        told[0] = (f"{_LESSONS}{listed}\n", *told[0])
    *earlier, present = told
    turns = [Turn(one, step.said.text, step.said.ids) for one, step in zip(earlier, steps, strict=True)]
    conversation = Conversation(tuple(turns), present)
    return conversation.last(agent.history) if agent.history else conversation
