"""How far an agent is with its question at each step: its last tool, its searches, its last query."""

from __future__ import annotations

from collections.abc import Sequence

from envs.base import StepNote
from envs.search_qa.protocol import SEARCH, read_reply
from envs.search_qa.verifier import canonical


def notes(observations: Sequence[str], actions: Sequence[str], valid: Sequence[bool]) -> list[StepNote]:
    """See `Domain.notes`: the last tool, the number of searches, whether the last query was a new one.

    Which evidence was found, and whether an answer was given, is in the evidence variables already.
    """
    tool, queries, state, found = "none", list[str](), "no query", list[StepNote]()
    for action in actions:
        found.append(StepNote(context=f"after {tool}, {len(queries)} searches, {state}"))
        reply = read_reply(action)
        tool = reply.kind or "no tool"
        if reply.kind == SEARCH:
            query = canonical(reply.content)
            state = "query repeated" if query in queries else "new query"
            queries.append(query)
    return found
