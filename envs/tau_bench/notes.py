"""What an agent did last at each step of a conversation, and which of its calls a tool refused."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from envs.base import StepNote
from envs.tau_bench.action import Malformed, parse

# What the answer of a tool that could not do what it was asked begins with.
_ERROR = "Error"


def notes(observations: Sequence[str], actions: Sequence[str], valid: Sequence[bool]) -> list[StepNote]:
    """See `Domain.notes`: the last tool and whether it answered with an error; `refused` is such an answer.

    What is known, said and written is in the evidence already.
    """
    before, found = "the opening", list[StepNote]()
    for action, answer in itertools.zip_longest(actions, observations[1:], fillvalue=""):
        call, failed = parse(action), answer.startswith(_ERROR)
        found.append(StepNote(context=f"after {before}", refused=failed))
        name = "no tool" if isinstance(call, Malformed) else call.name
        before = f"{name}, which failed" if failed else name
    return found
