"""A model of ours as the one who answers conversations."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import numpy as np

from vict_jax.agents.conversation import Conversation
from vict_jax.agents.model import FULL, Reply, Request
from vict_jax.agents.usage import Usage
from vict_jax.rollout.collector import Sampler
from vict_jax.rollout.sampler import row_keys
from vict_jax.rollout.session import Sample
from vict_jax.rollout.template import Template


class OwnModel:
    """A sampler with a template; implements `Model`. Every seat asks in every round until it is given up.

    A reply depends on the conversation and the numbers in its request alone, not on what is asked beside.

    Args:
      session: made with the options of the template.
      seats: conversations at a time.
      key: PRNG key of the evaluation.
    """

    def __init__(self, session: Sampler, template: Template, *, seats: int, key: jax.Array) -> None:
        self._session, self._template, self._key = session, template, key
        self._asked: dict[int, Request] = {}
        self._held: dict[int, list[int]] = {seat: [] for seat in range(seats)}  # ids of a seat's row
        session.start(seats)

    def ask(self, requests: Mapping[int, Request]) -> None:
        """See `Model`."""
        self._asked |= requests

    def answers(self) -> dict[int, Reply]:
        """See `Model`."""
        asked, self._asked = self._asked, {}
        self._give_up(set(self._held) - set(asked))
        prompts = {seat: self._fit(request.conversation) for seat, request in asked.items()}
        fitting = {seat: prompt for seat, prompt in prompts.items() if prompt is not None}
        replies = dict.fromkeys(asked, FULL)
        if fitting:
            keys = row_keys(
                self._key,
                np.array([asked[seat].task for seat in fitting]),
                np.array([asked[seat].call for seat in fitting]),
            )
            new = [np.array(self._new(seat, ids), np.int32) for seat, (ids, _) in fitting.items()]
            samples = self._session.extend(list(fitting), new, keys)
            for (seat, (ids, shortened)), sample in zip(fitting.items(), samples, strict=True):
                self._held[seat] = [*ids, *sample.ids.tolist()]
                replies[seat] = self._reply(len(ids), sample, shortened)
        return replies

    def stop(self) -> dict[int, Reply]:
        """See `Model`; nothing is ever on its way."""
        return {}

    def _give_up(self, seats: set[int]) -> None:
        self._session.release(sorted(seats))
        for seat in seats:
            del self._held[seat]

    def _fit(self, conversation: Conversation) -> tuple[list[int], bool] | None:
        """The ids of the most turns that leave room for a reply, and whether that is less than all."""
        options, turns = self._template.options, len(conversation.turns)
        for kept in range(turns, -1, -1):
            ids = self._ids(conversation.last(kept))
            if len(ids) + options.max_new_tokens <= options.max_context:
                return ids, kept < turns
        return None

    def _ids(self, conversation: Conversation) -> list[int]:
        template = self._template
        ids = list(template.opening)
        for turn in conversation.turns:
            reply = list(turn.ids)
            ids += [*template.turn(turn.said), *reply, *template.close(np.array(reply, np.int32))]
        return [*ids, *template.turn(conversation.said)]

    def _new(self, seat: int, ids: list[int]) -> list[int]:
        """What of a prompt the seat's row does not hold: what is behind its last sampled token, or all."""
        held = self._held[seat]
        if held and ids[: len(held)] == held:
            return ids[len(held) - 1 :]
        self._session.restart([seat])
        return ids

    def _reply(self, prompt: int, sample: Sample, shortened: bool) -> Reply:
        codec, ids = self._template.codec, sample.ids.tolist()
        text = codec.decode(ids[:-1] if ids[-1] in codec.stop_ids else ids)
        usage = Usage(calls=1, prompt_tokens=prompt, completion_tokens=len(ids))
        return Reply(text, tuple(ids), sample.stopped, usage, shortened=shortened)
