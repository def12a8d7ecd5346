"""Where an agent stands at each step of a household game, read off what it was shown."""

from __future__ import annotations

import re
from collections.abc import Sequence

from envs.base import StepNote

_ARRIVED = re.compile(r"You arrive at (\w+ \d+)\.")
_TAKEN = re.compile(r"You pick up the (\w+ \d+) from ")
_LEFT = re.compile(r"You (?:put|move) the \w+ \d+ (?:in/on|to) ")
_MOVED_LID = re.compile(r"You (open|close) the (\w+ \d+)\.")


def notes(observations: Sequence[str], actions: Sequence[str], valid: Sequence[bool]) -> list[StepNote]:
    """See `Domain.notes`: the place, whether it was left open, and what is held.

    What the goal is about (its object, where that is, what was done to it) is in the evidence already.
    """
    place, held, opened, found = "the middle of the room", "nothing", set[str](), list[StepNote]()
    for text in observations:
        if arrived := _ARRIVED.match(text):
            place = arrived.group(1)
        elif taken := _TAKEN.match(text):
            held = taken.group(1)
        elif _LEFT.match(text):
            held = "nothing"
        elif moved := _MOVED_LID.match(text):
            (opened.add if moved.group(1) == "open" else opened.discard)(moved.group(2))
        lid = "open" if place in opened else "as found"
        found.append(StepNote(context=f"at {place}, {lid}, holding {held}"))
    return found
