"""A shopper who reads the instruction and the pages, and nothing else.

It searches for what the instruction says, opens the products of the list in the order in which their titles
and prices suit, takes the first one that comes with every option asked for, chooses the options and buys. A
product that turns out not to suit is left again; when there are no steps left to look further, the best one
seen so far is bought.

Its memory holds what a policy was shown: the texts of the pages, their buttons, and its own actions.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence

BUY, BACK, PREVIOUS, NEXT = "buy now", "back to search", "< prev", "next >"
_SUBPAGES = ("description", "features", "reviews", "attributes")
_PRICE = re.compile(r",? and price lower than ([\d.]+) dollars")
_FIRST_OPTION = re.compile(r" with ((?:(?! with )[^:,])+: .*)$")
_NEXT_OPTION = re.compile(r", and (?=[^:,]+: )")
_POLITE = re.compile(r"^find me ", re.IGNORECASE)
_MONEY = re.compile(r"\$(\d[\d,]*\.?\d*)")
_WORD = re.compile(r"[a-z]+|\d+(?:\.\d+)?")
_CLICK = re.compile(r"click\[(.+)\]")
_MOST_PAGES = 3
# A detour to another product: back to the list, open it.
_DETOUR = 2


@dataclasses.dataclass(frozen=True)
class Wish:
    """What an instruction asks for.

    Attributes:
      what: the instruction without politeness, options and price.
      options: group -> value, where the instruction names groups.
      price: the most it may cost; infinity without a limit.
      words: all words and numbers of the instruction without the price.
    """

    what: str
    options: Mapping[str, str]
    price: float
    words: frozenset[str]

    @property
    def query(self) -> str:
        """What to search for first. Brackets would end a query."""
        return re.sub(r"[\[\]]", " ", " ".join([self.what, *self.options.values()])).strip()


@dataclasses.dataclass(frozen=True)
class Listed:
    """A product of a list: its id in a click, title, lowest price, and the number of the page."""

    asin: str
    title: str
    price: float
    page: int


@dataclasses.dataclass(frozen=True)
class Screen:
    """What is on the screen, without the instruction: texts in order, and what can be clicked."""

    pieces: tuple[str, ...]
    clickables: tuple[str, ...]

    @property
    def is_list(self) -> bool:
        """A page of search results."""
        return NEXT in self.clickables

    @property
    def is_item(self) -> bool:
        """The page of a product."""
        return BUY in self.clickables

    @property
    def number(self) -> int:
        """The number of a list's page."""
        found = next(m for piece in self.pieces if (m := re.match(r"Page (\d+) ", piece)))
        return int(found.group(1))

    def listed(self) -> list[Listed]:
        """The products of a list."""
        buttons, found = {BACK, PREVIOUS, NEXT}, []
        for i, piece in enumerate(self.pieces[:-2]):
            if piece.lower() in self.clickables and piece.lower() not in buttons:
                price = _MONEY.search(self.pieces[i + 2])
                low = float(price.group(1).replace(",", "")) if price else 0.0
                found.append(Listed(piece.lower(), self.pieces[i + 1], low, self.number))
        return found

    def groups(self) -> dict[str, list[str]]:
        """The option groups of a product's page."""
        buttons = {BACK, PREVIOUS, BUY, *_SUBPAGES}
        found: dict[str, list[str]] = {}
        name = ""
        for piece in self.pieces:
            text = piece.lower()
            if text in buttons:
                continue
            if text not in self.clickables:
                name = text
            elif name:
                found.setdefault(name, []).append(text)
        return found


@dataclasses.dataclass
class Memory:
    """What a shopper has seen and done.

    Attributes:
      wish: what is asked for.
      steps_left: actions until the shop closes.
      page: on the screen now.
      listed: products seen in lists, in order. tried: those opened, and how many wishes each leaves open.
      current: the product on the screen, or whose subpage is. chosen: its options, by group.
      searches: how many searches there were.
    """

    wish: Wish
    steps_left: int
    page: Screen
    listed: dict[str, Listed] = dataclasses.field(default_factory=dict)
    tried: dict[str, int] = dataclasses.field(default_factory=dict)
    current: str = ""
    chosen: dict[str, str] = dataclasses.field(default_factory=dict)
    searches: int = 0


def understand(instruction: str) -> Wish:
    """Read an instruction, synthetic or written by people."""
    limit = _PRICE.search(instruction)
    text = _PRICE.sub("", instruction).strip()
    what, options = text, {}
    if named := _FIRST_OPTION.search(text):
        what = text[: named.start()]
        for part in _NEXT_OPTION.split(named.group(1)):
            name, _, value = part.partition(": ")
            options[name.strip()] = value.strip()
    return Wish(
        what=_POLITE.sub("", what),
        options=options,
        price=float(limit.group(1)) if limit else float("inf"),
        words=_words(text),
    )


def begin(instruction: str, page: Screen, steps: int) -> Memory:
    """A shopper who has just read the instruction; `steps` actions may follow."""
    return Memory(understand(instruction), steps, page)


def notice(memory: Memory, action: str, page: Screen) -> None:
    """Remember an action and the page that it led to."""
    before, memory.page = memory.page, page
    memory.steps_left -= 1
    click = _CLICK.match(action)
    clicked = click.group(1).lower() if click else ""
    if page.is_list:
        memory.listed |= {one.asin: one for one in page.listed() if one.asin not in memory.listed}
        memory.current, memory.chosen = "", {}
        memory.searches += not click
    elif page.is_item and before.is_list and clicked in before.clickables:
        memory.current = clicked
        memory.tried[clicked] = _open_wishes(memory.wish, page)
    elif page.is_item and before.is_item:
        groups = [name for name, values in page.groups().items() if clicked in values]
        memory.chosen |= dict.fromkeys(groups[-1:], clicked)
    elif not page.is_item and not before.is_item:
        memory.current, memory.chosen = "", {}


def decide(memory: Memory) -> str:
    """The next action."""
    page = memory.page
    if page.is_item:
        return _at_item(memory)
    if page.is_list:
        return _at_list(memory)
    if PREVIOUS in page.clickables:
        return f"click[{PREVIOUS}]"
    return _search(memory)


def _search(memory: Memory) -> str:
    """All words at first, only what is asked for later, since many words may find other things."""
    return f"search[{memory.wish.query if memory.searches == 0 else memory.wish.what or memory.wish.query}]"


def _at_list(memory: Memory) -> str:
    """Open the most promising product that was not tried, or the best of those that were."""
    here, wish = memory.page.listed(), memory.wish
    fresh = [one for one in here if one.asin not in memory.tried and one.price <= wish.price]
    enough = memory.steps_left > len(wish.options) + 2
    if fresh and enough:
        return f"click[{max(fresh, key=lambda one: _promise(wish, one.title)).asin}]"
    number = memory.page.number
    if here and enough and not memory.tried and number < _MOST_PAGES:
        return f"click[{NEXT}]"
    best = min(memory.tried, key=lambda asin: memory.tried[asin], default=None)
    if best is None:
        best = here[0].asin if here else None
    if best is not None and best in memory.page.clickables:
        return f"click[{best}]"
    return f"click[{BACK}]" if number == 1 else f"click[{PREVIOUS}]"


def _at_item(memory: Memory) -> str:
    """Leave a product that does not suit; else choose what is not chosen yet, then buy."""
    groups = memory.page.groups()
    wanted = {name: value for name, values in groups.items() if (value := _choice(memory.wish, name, values))}
    pending = [value for name, value in wanted.items() if memory.chosen.get(name) != value]
    open_wishes = _open_wishes(memory.wish, memory.page)
    best = min(memory.tried.values(), default=open_wishes)
    others = [one for one in memory.listed.values() if one.asin not in memory.tried]
    can_look_on = memory.steps_left >= 2 * _DETOUR + len(pending) + 1
    if open_wishes and ((others and can_look_on) or (open_wishes > best and can_look_on)):
        return f"click[{PREVIOUS}]"
    if pending and memory.steps_left > 1:
        return f"click[{pending[0]}]"
    return f"click[{BUY}]"


def _open_wishes(wish: Wish, page: Screen) -> int:
    """How many of the options asked for a product does not come with; 1 more if it costs too much."""
    values = {value for some in page.groups().values() for value in some}
    prices = [float(m.group(1).replace(",", "")) for p in page.pieces if (m := _MONEY.search(p))]
    too_much = bool(prices) and min(prices) > wish.price
    return sum(value not in values for value in wish.options.values()) + too_much


def _promise(wish: Wish, title: str) -> int:
    """How many of the words asked for a title has; of equals, the first of the list is opened."""
    return len(wish.words & _words(title))


def _choice(wish: Wish, name: str, values: Sequence[str]) -> str:
    """The value of a group that is asked for, "" if none is."""
    if wish.options:
        asked = [wish.options[name]] if name in wish.options else list(wish.options.values())
        return next((value for value in asked if value in values), "")
    said = [value for value in values if _words(value) and _words(value) <= wish.words]
    return max(said, key=lambda value: len(_words(value)), default="")


def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text.lower()))
