"""A conversation between an environment and a model, before it is written as messages or as ids."""

from __future__ import annotations

import dataclasses

from vict_jax.rollout.template import OMITTED, Piece, message_text


@dataclasses.dataclass(frozen=True)
class Turn:
    """What the environment said, and the reply to it; `ids`, if known, are those it was sampled as."""

    said: tuple[Piece, ...]
    reply: str
    ids: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Conversation:
    """Earlier turns, and what is said now. The first thing said holds the task."""

    turns: tuple[Turn, ...]
    said: tuple[Piece, ...]

    def last(self, count: int) -> Conversation:
        """The last `count` turns behind the first thing said and a mark for what is left out."""
        left_out = len(self.turns) - count
        if left_out <= 0:
            return self
        mark = (*self.turns[0].said, OMITTED)
        if not count:
            return Conversation((), (*mark, *self.said))
        first, *rest = self.turns[left_out:]
        return Conversation((dataclasses.replace(first, said=(*mark, *first.said)), *rest), self.said)


def messages(instruction: str, conversation: Conversation) -> list[dict[str, str]]:
    """A conversation as a chat: `system`, then `user` and `assistant` in turn, `user` last."""
    told = [{"role": "system", "content": instruction}]
    for turn in conversation.turns:
        told.append({"role": "user", "content": message_text(turn.said)})
        told.append({"role": "assistant", "content": turn.reply})
    return [*told, {"role": "user", "content": message_text(conversation.said)}]
