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

BUY, BACK, PREVIOUS, NEXT, FEATURES = "buy now", "back to search", "< prev", "next >", "features"
_SUBPAGES = ("description", "features", "reviews")
_PRICE = re.compile(r",? and price lower than ([\d.]+) dollars")
_FIRST_OPTION = re.compile(r" with ((?:(?! with )[^:,])+: .*)$")
_NEXT_OPTION = re.compile(r", and (?=[^:,]+: )")
_POLITE = re.compile(r"^find me ", re.IGNORECASE)
_MONEY = re.compile(r"\$(\d[\d,]*\.?\d*)")
_WORD = re.compile(r"[a-z]+|\d+(?:\.\d+)?")
_BRACKETS = re.compile(r"[\[\]]")  # one would end a query
_CLICK = re.compile(r"click\[(.+)\]")
_SMALL_WORDS = frozenset(
    _WORD.findall(
        "a am an and are be can could find for have i if in is it like looking m me my need of or please "
        "possible s should show some that the they to want which with would you"
    )
)
_MOST_PAGES = 3
# Of the words asked for, the share that a product may lack without being left for another one.
_TOLERATED = 0.1
# Steps to look at another product and return to this one, without reading more of either.
_DETOUR = 4


@dataclasses.dataclass(frozen=True)
class Wish:
    """What an instruction asks for.

    Attributes:
      what: the instruction without politeness, options and price.
      options: group -> value, where the instruction names groups.
      price: the most it may cost; infinity without a limit.
      words: all words and numbers of the instruction without the price.
      needed: stems of the words that a product's pages should have.
    """

    what: str
    options: Mapping[str, str]
    price: float
    words: frozenset[str]
    needed: frozenset[str]

    @property
    def searches(self) -> tuple[str, str]:
        """Two searches, with the options and without them."""
        texts = (" ".join([self.what, *self.options.values()]), self.what)
        first, second = (_BRACKETS.sub(" ", text).strip() for text in texts)
        return f"search[{first}]", f"search[{second}]"


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
class Impression:
    """What a shopper knows of a product that it has opened.

    Attributes:
      options_missing: how many of the options asked for it does not have, and 1 more if it costs too much.
      words_missing: words asked for that were on none of its pages so far.
      read: its subpages that were read.
    """

    options_missing: int
    words_missing: frozenset[str]
    read: set[str] = dataclasses.field(default_factory=set)

    @property
    def doubts(self) -> tuple[int, int]:
        """The less the better."""
        return self.options_missing, len(self.words_missing)


@dataclasses.dataclass
class Memory:
    """What a shopper has seen and done.

    Attributes:
      wish: what is asked for.
      steps_left: actions until the shop closes.
      page: on the screen now.
      listed: products seen in lists, in order. tried: what it knows of those opened.
      current: the product on the screen, or whose subpage is. chosen: its options, by group.
      searches: how many searches of its own there were. own: the list comes from one of them. furthest: page
        of the list.
    """

    wish: Wish
    steps_left: int
    page: Screen
    listed: dict[str, Listed] = dataclasses.field(default_factory=dict)
    tried: dict[str, Impression] = dataclasses.field(default_factory=dict)
    current: str = ""
    chosen: dict[str, str] = dataclasses.field(default_factory=dict)
    searches: int = 0
    own: bool = False
    furthest: int = 0

    @property
    def best(self) -> str:
        """The product with the fewest doubts, "" if none was opened."""
        return min(self.tried, key=lambda asin: self.tried[asin].doubts, default="")


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
        needed=_stems(_POLITE.sub("", what)),
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
        if not click:
            memory.own, memory.furthest = action in memory.wish.searches, 0
            memory.searches += memory.own
        memory.furthest = max(memory.furthest, page.number)
        memory.listed |= {one.asin: one for one in page.listed() if one.asin not in memory.listed}
        memory.current, memory.chosen = "", {}
    elif page.is_item and before.is_list and clicked in before.clickables:
        memory.current = clicked
        if clicked not in memory.tried:
            missing = memory.wish.needed - _stems(" ".join(page.pieces))
            memory.tried[clicked] = Impression(_options_missing(memory.wish, page), missing)
    elif page.is_item and before.is_item:
        groups = [name for name, values in page.groups().items() if clicked in values]
        memory.chosen |= dict.fromkeys(groups[-1:], clicked)
    elif before.is_item and clicked in _SUBPAGES and PREVIOUS in page.clickables:
        known = memory.tried[memory.current]
        known.words_missing -= _stems(" ".join(page.pieces))
        known.read.add(clicked)
    elif not page.is_item and PREVIOUS not in page.clickables:
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
    """With all words at first, without options when that did not help."""
    return memory.wish.searches[min(memory.searches, 1)]


def _at_list(memory: Memory) -> str:
    """Open the next product that was not tried, or the best of those that were; leave a list of others."""
    if not memory.own:
        return f"click[{BACK}]"
    here, wish = memory.page.listed(), memory.wish
    fresh = [one for one in here if one.asin not in memory.tried and one.price <= wish.price]
    enough = memory.steps_left > len(wish.options) + 2
    if fresh and enough:
        return f"click[{fresh[0].asin}]"
    number = memory.page.number
    doubtful = not memory.best or _doubtful(wish, memory.tried[memory.best])
    if here and enough and doubtful and number == memory.furthest < _MOST_PAGES:
        return f"click[{NEXT}]"
    best = memory.best or (here[0].asin if here else "")
    if best in memory.page.clickables:
        return f"click[{best}]"
    return f"click[{BACK}]" if number == 1 else f"click[{PREVIOUS}]"


def _at_item(memory: Memory) -> str:
    """Read more of a product in doubt, leave one that does not suit; else choose the options and buy."""
    groups = memory.page.groups()
    wanted = {name: value for name, values in groups.items() if (value := _choice(memory.wish, name, values))}
    pending = [value for name, value in wanted.items() if memory.chosen.get(name) != value]
    known, to_buy = memory.tried[memory.current], len(pending) + 1
    doubtful = _doubtful(memory.wish, known)
    if doubtful and not known.options_missing and not known.read and memory.steps_left >= to_buy + 2:
        return f"click[{FEATURES}]"
    untried = (one for one in memory.listed.values() if one.asin not in memory.tried)
    others = any(one.price <= memory.wish.price for one in untried)
    if doubtful and others and memory.steps_left >= _DETOUR + to_buy:
        return f"click[{PREVIOUS}]"
    if known.doubts > memory.tried[memory.best].doubts and memory.steps_left >= 2 + to_buy:
        return f"click[{PREVIOUS}]"
    if pending and memory.steps_left > 1:
        return f"click[{pending[0]}]"
    return f"click[{BUY}]"


def _doubtful(wish: Wish, known: Impression) -> bool:
    """Whether another product may suit better."""
    return bool(known.options_missing) or len(known.words_missing) > _TOLERATED * len(wish.needed)


def _options_missing(wish: Wish, page: Screen) -> int:
    values = {value for some in page.groups().values() for value in some}
    prices = [float(m.group(1).replace(",", "")) for p in page.pieces if (m := _MONEY.search(p))]
    too_much = bool(prices) and min(prices) > wish.price
    return sum(value not in values for value in wish.options.values()) + too_much


def _choice(wish: Wish, name: str, values: Sequence[str]) -> str:
    """The value of a group that is asked for, "" if none is."""
    if wish.options:
        asked = [wish.options[name]] if name in wish.options else list(wish.options.values())
        return next((value for value in asked if value in values), "")
    said = [value for value in values if _words(value) and _words(value) <= wish.words]
    return max(said, key=lambda value: len(_words(value)), default="")


def _stems(text: str) -> frozenset[str]:
    """Words of a text that say something, without the s of a plural."""
    return frozenset(word.removesuffix("s") for word in _words(text) - _SMALL_WORDS)


def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text.lower()))
