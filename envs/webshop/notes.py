"""Which page of the shop an agent is on at each step, followed through its accepted actions."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from envs.base import StepNote
from envs.webshop.native import parse
from envs.webshop.pages import BACK, BUY, NEXT, PREVIOUS, SUBPAGES, Page


@dataclasses.dataclass(frozen=True)
class _Place:
    """A page: its kind, the number of the page of results, and the product."""

    page: Page = Page.INDEX
    number: int = 0
    product: str = ""


def notes(observations: Sequence[str], actions: Sequence[str], valid: Sequence[bool]) -> list[StepNote]:
    """See `Domain.notes`: kind of page, page of the results, product.

    Attributes and options that the goal asks for are in the evidence already.
    """
    place, found = _Place(), list[StepNote]()
    for action, accepted in zip(actions, valid, strict=True):
        found.append(StepNote(context=f"{place.page}, results {place.number}, {place.product}"))
        if accepted:
            place = _after(place, *parse(action))
    return found


def _after(place: _Place, name: str, argument: str) -> _Place:
    """The page after an accepted action. A click on an option stays on the page of its product."""
    if name == "search":
        return _Place(Page.RESULTS, 1)
    if argument == BACK.lower():
        return _Place()
    if argument == BUY.lower():
        return dataclasses.replace(place, page=Page.DONE)
    if argument in SUBPAGES:
        return dataclasses.replace(place, page=Page(argument))
    if argument == PREVIOUS.lower() and place.page in SUBPAGES:
        return dataclasses.replace(place, page=Page.ITEM)
    if argument in (NEXT.lower(), PREVIOUS.lower()):
        turned = {Page.RESULTS: 1 if argument == NEXT.lower() else -1}
        return _Place(Page.RESULTS, place.number + turned.get(place.page, 0))
    if place.page is Page.RESULTS:
        return _Place(Page.ITEM, place.number, argument)
    return place
