"""Context builders: from observations to prompt ids, and from sampled ids to training sequences.

Both builders have one interface (`Context`) and work on ids. Text is encoded once, piece by piece; what
the model was given is what it is trained on, since a training sequence is put together from the very
lists that were sampled from. Only sampled tokens are marked as trained, by position, never by id.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from envs.base import Observation
from vict_jax.batching import TokenSequence
from vict_jax.rollout.options import ContextKind, Overflow
from vict_jax.rollout.template import OMITTED, Piece, Template, situation, window


@dataclasses.dataclass(frozen=True)
class Reply:
    """A sampled (or demonstrated) reply.

    Attributes:
      ids: i32[n], as sampled, the stop token included.
      logp: f32[n], their log-probabilities under the policy that sampled them.
      text: what later prompts of a WINDOW say was done.
      trained: bool[n], the tokens that are trained; None: all.
    """

    ids: np.ndarray
    logp: np.ndarray
    text: str
    trained: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class Prompt:
    """Ids to feed before the next reply.

    Attributes:
      ids: for an empty row if `fresh`; else what is new, behind what the row's cache has, beginning with
        the last sampled token, which no cache has yet.
    """

    ids: list[int]
    fresh: bool


class Context(Protocol):
    """The conversation of one rollout. Calls alternate: `prompt`, `add_reply`, `add_observation`.

    Attributes:
      shortened: prompts so far that had to leave out history which the options ask for.
    """

    shortened: int

    def prompt(self) -> Prompt | None:
        """The next prompt; None if prompt and reply would exceed `max_context`."""
        ...

    def add_reply(self, reply: Reply) -> None:
        """Take down the reply to the last prompt."""
        ...

    def recall(self, reply: Reply) -> None:
        """Take down a reply that another policy gave here: context only. In the place of `prompt` and
        `add_reply`, before the first of them."""
        ...

    def add_observation(self, observation: Observation) -> None:
        """Take down what the environment said."""
        ...

    def sequences(self) -> tuple[TokenSequence, ...]:
        """Training sequences of the replies so far: each reply is trained in exactly one, where it was
        sampled."""
        ...


@dataclasses.dataclass(frozen=True)
class _Turn:
    """A piece of a sequence: ids that were fed, and the reply to them, trained or only remembered."""

    fed: list[int]
    reply: Reply
    step: int
    trained: bool = True

    def __len__(self) -> int:
        return len(self.fed) + len(self.reply.ids)


def _sequence(turns: Sequence[_Turn]) -> TokenSequence:
    """Join turns into one sequence."""
    ids: list[np.ndarray] = []
    trained, logp, step = [], [], []
    for turn in turns:
        fed, reply = len(turn.fed), turn.reply
        sampled = len(reply.ids)
        chosen = np.ones(sampled, bool) if reply.trained is None else reply.trained
        chosen = chosen & turn.trained
        ids += [np.asarray(turn.fed, np.int32), np.asarray(reply.ids, np.int32)]
        trained += [np.zeros(fed, bool), chosen]
        logp += [np.zeros(fed, np.float32), np.where(chosen, reply.logp, 0).astype(np.float32)]
        step.append(np.full(fed + sampled, turn.step, np.int32))
    return TokenSequence(*map(np.concatenate, (ids, trained, logp, step)))


class AppendContext:
    """One growing sequence: opening, then per turn what is new and the reply as it was sampled.

    A sequence that is full ends the rollout or, with `overflow="shorten"`, is left behind: a new one begins
    with the first observation, a mark for what is left out, and the most recent steps that fit into half
    the room behind these (so that it can grow again before the next time). Its earlier replies are context
    only.
    """

    def __init__(self, template: Template, first: Observation) -> None:
        self.shortened = 0
        self._template, self._first = template, first
        self._full: list[list[_Turn]] = []  # the turns of sequences left behind
        self._turns: list[_Turn] = []  # of the present sequence
        self._situations: list[list[Piece]] = [situation(first, template.options)]
        self._new = [*template.opening, *template.turn(self._situations[0])]
        self._started = False  # the row's cache has the present sequence

    def prompt(self) -> Prompt | None:
        """See `Context`."""
        options = self._template.options
        room = options.max_context - options.max_new_tokens
        if sum(map(len, self._turns)) + len(self._new) > room and not (
            Overflow(options.overflow) is Overflow.SHORTEN and self._shorten(room)
        ):
            return None
        self.shortened += bool(self._full)
        if self._started:
            return Prompt([int(self._turns[-1].reply.ids[-1]), *self._new], fresh=False)
        self._started = True
        seen = [i for turn in self._turns for i in (*turn.fed, *turn.reply.ids.tolist())]
        return Prompt(seen + self._new, fresh=True)

    def add_reply(self, reply: Reply) -> None:
        """See `Context`."""
        self._add(reply, trained=True)

    def recall(self, reply: Reply) -> None:
        """See `Context`."""
        self._add(reply, trained=False)

    def _add(self, reply: Reply, *, trained: bool) -> None:
        self._turns.append(_Turn(self._new, reply, len(self._situations) - 1, trained))
        self._new = self._template.close(reply.ids)

    def add_observation(self, observation: Observation) -> None:
        """See `Context`."""
        self._situations.append(situation(observation, self._template.options))
        self._new = self._new + self._template.turn(self._situations[-1])

    def sequences(self) -> tuple[TokenSequence, ...]:
        """See `Context`."""
        trained = [turns for turns in [*self._full, self._turns] if any(turn.trained for turn in turns)]
        return tuple(map(_sequence, trained))

    def _shorten(self, room: int) -> bool:
        """Begin a new sequence of at most `room` tokens; False if not even the present step fits."""
        opening, always = self._template.opening, [f"{self._first.text}\n", OMITTED]
        half = (room + len(opening) + len(self._template.turn(always))) // 2
        for start in range(1, len(self._turns) + 1):
            kept = [dataclasses.replace(turn, trained=False) for turn in self._turns[start:]]
            step = kept[0].step if kept else len(self._situations) - 1
            head = [*opening, *self._template.turn([*always, *self._situations[step]])]
            new = self._new if kept else head
            if kept:
                kept[0] = dataclasses.replace(kept[0], fed=head)
            if sum(map(len, kept)) + len(new) <= (half if kept else room):
                self._full.append(self._turns)
                self._turns, self._new, self._started = kept, new, False
                return True
        return False


class WindowContext:
    """One sequence a step: first observation, the last steps, the current observation, the commands."""

    def __init__(self, template: Template, first: Observation) -> None:
        self.shortened = 0
        self._template = template
        self._observations = [first]
        self._actions: list[str] = []
        self._prompt: list[int] = []
        self._turns: list[_Turn] = []

    def prompt(self) -> Prompt | None:
        """See `Context`. Too long a history loses its oldest steps."""
        options = self._template.options
        wanted = min(options.history, len(self._actions))
        for history in range(wanted, -1, -1):
            told = window(self._observations, self._actions, history, options)
            self._prompt = [*self._template.opening, *self._template.turn(told)]
            if len(self._prompt) + options.max_new_tokens <= options.max_context:
                self.shortened += history < wanted
                return Prompt(self._prompt, fresh=True)
        return None

    def add_reply(self, reply: Reply) -> None:
        """See `Context`."""
        self._turns.append(_Turn(self._prompt, reply, len(self._actions)))
        self._actions.append(reply.text)

    def recall(self, reply: Reply) -> None:
        """See `Context`."""
        self._actions.append(reply.text)

    def add_observation(self, observation: Observation) -> None:
        """See `Context`."""
        self._observations.append(observation)

    def sequences(self) -> tuple[TokenSequence, ...]:
        """See `Context`."""
        return tuple(_sequence([turn]) for turn in self._turns)


def start_context(template: Template, first: Observation) -> Context:
    """The context of a rollout whose first observation is `first`, as `template.options.context` says."""
    if ContextKind(template.options.context) is ContextKind.APPEND:
        return AppendContext(template, first)
    return WindowContext(template, first)
