"""One shopping episode as a state machine: actions in, pages and a score out, as the original answers them.

    search[words]   on any page
    click[text]     where the text, in lower case, can be clicked and is not `search`

An action is read up to its last `]`, its name from the start of the text up to the last `[` before that, as
the original's greedy pattern does: a query with `[` in it has no known name. Anything else leaves the page
as it is. The first word of a query may be `<r>` (products at random), `<c>` with a category, or `<q>` with a
query of the catalogue (all products in it).

Departures, each where the original raises, is not reproducible, or goes on after the end:

- `<a> word` and `<c>` alone raise out of the original's step; here they leave the page and `info["error"]`
  says so.
- `<r>` draws from an unseeded generator; here from one that depends on goal and number of the draw.
- The original goes on after a purchase if it is asked to, and would score another one. Here the episode is
  over: the last page stays, with reward 0.

Source: princeton-nlp/WebShop at 64fa2a5, `web_agent_text_env.py: step, SimServer`; `engine.py`.
"""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

from envs.webshop import pages
from envs.webshop.catalogue import Catalogue, Product
from envs.webshop.goals import Goal
from envs.webshop.pages import SUBPAGES, Page, View
from envs.webshop.reward import MODES, Reward, reward
from envs.webshop.search import Index

HITS = 50  # most products that a search finds
_CACHED_PAGES = 4096
_LONGEST_CACHED = 500  # characters of a query
_BACK, _PREVIOUS, _NEXT, _BUY = (text.lower() for text in (pages.BACK, pages.PREVIOUS, pages.NEXT, pages.BUY))
# What a page lets a reader see of each product on it.
_SHOWN = {
    Page.RESULTS: frozenset({"title", "price"}),
    Page.ITEM: frozenset({"title", "price", "options"}),
    **{page: frozenset({str(page)}) for page in SUBPAGES},
}


class QueryError(ValueError):
    """A query that makes the original raise."""


class Available(NamedTuple):
    """What can be done on a page. Searching works on every page; only one has the bar for it."""

    has_search_bar: bool
    clickables: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Purchase:
    """What was bought, with the values chosen by group, and its score."""

    product: Product
    options: dict[str, str]
    reward: Reward


class WebShop:
    """The shop that the sessions of a process share. Nothing in it changes but its memory of pages.

    Attributes:
      catalogue: the products.
      goals: the goals by index.
      reward_mode: `original` or `corrected`, see `envs.webshop.reward`.
      per_page: products on a page of results; the original shows 10.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        goals: Sequence[Goal],
        *,
        reward_mode: str = "original",
        per_page: int = pages.PER_PAGE,
    ) -> None:
        if reward_mode not in MODES:
            raise ValueError(f"reward_mode={reward_mode!r} is not one of {MODES}")
        if per_page < 1:
            raise ValueError(f"per_page={per_page} must be 1 or more")
        self.catalogue, self.goals, self.reward_mode = catalogue, goals, reward_mode
        self.per_page = per_page
        self._index = Index({product.asin: product.document() for product in catalogue.products})
        self._find_cached = functools.lru_cache(_CACHED_PAGES)(self._find)
        self._results_cached = functools.lru_cache(_CACHED_PAGES)(self._results)
        self._item_cached = functools.lru_cache(_CACHED_PAGES)(self._item)

    def search(self, query: str) -> tuple[Product, ...]:
        """The products that a query finds, best first.

        Raises:
          QueryError: a query that makes the original raise.
        """
        return self._find_cached(query) if len(query) <= _LONGEST_CACHED else self._find(query)

    def results(self, query: str, number: int) -> View:
        """Page `number` of what a query finds."""
        cached = len(query) <= _LONGEST_CACHED
        return self._results_cached(query, number) if cached else self._results(query, number)

    def item(self, asin: str) -> View:
        """The page of a product."""
        return self._item_cached(asin)

    def _find(self, query: str) -> tuple[Product, ...]:
        first, _, rest = query.partition(" ")
        if first == "<a>" or query == "<c>":
            raise QueryError(f"the original raises an exception for the query {query[:40]!r}")
        if first == "<c>":
            category = rest.split(" ")[0].strip()
            return tuple(p for p in self.catalogue.products if p.category == category)
        if first == "<q>":
            return tuple(p for p in self.catalogue.products if p.query == rest.strip())
        return tuple(self.catalogue.by_asin[asin] for asin, _ in self._index.search(query, HITS))

    def _results(self, query: str, number: int) -> View:
        return pages.results(self.search(query), number, self.per_page)

    def _item(self, asin: str) -> View:
        return pages.item(self.catalogue.by_asin[asin])


class Session:
    """One episode; `reset` starts the next. Not to be shared between threads.

    Attributes:
      goal_index, goal: what the customer wants.
      page: kind of the current page.
      product: the product whose page, or page of details, is open.
      options: chosen values by group, of that product.
      query, number: the last search and the page of its results.
      seen: id of a product -> what of it was on a page so far, of `title`, `price`, `options`, `description`,
        `features` and `reviews`.
      bought: the purchase that ended the episode.
      steps: number of actions so far.
    """

    def __init__(self, shop: WebShop) -> None:
        self.shop = shop

    def reset(self, goal_index: int) -> str:
        """Start with a goal and return the first page.

        Raises:
          ValueError: no such goal.
        """
        if not 0 <= goal_index < len(self.shop.goals):
            raise ValueError(f"goal_index={goal_index} must be from 0 to {len(self.shop.goals) - 1}")
        self.goal_index, self.goal = goal_index, self.shop.goals[goal_index]
        self.seen: dict[str, set[str]] = {}
        self.bought: Purchase | None = None
        self.steps, self._draws = 0, 0
        self._go_to_index()
        return self.text()

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        """Apply an action, any text.

        Returns:
          The page, the reward (0 but for a purchase), whether the episode is over, and `valid`: whether the
          action was one; `error`: what went wrong where the original raises, "" otherwise.
        """
        name, argument = parse(action)
        self.steps += 1
        valid, error, score = False, "", 0.0
        if self.bought is None and name == "search" and argument:
            error = self._search(argument)
            valid = not error
        elif self.bought is None and name == "click" and argument in self._view.clickables:
            valid = argument != "search"
            if valid:
                self._click(argument)
                score = self.score()
        return self.text(), score, self.bought is not None, {"valid": valid, "error": error}

    def text(self) -> str:
        """The current page."""
        if self.bought is not None:
            return pages.done(self.bought.product.asin, self.bought.options, self.bought.reward.total)
        return pages.with_instruction(self.page, self.goal.instruction, self._view)

    def available_actions(self) -> Available:
        """What can be clicked now, and whether there is a search bar."""
        return Available(self.page is Page.INDEX, self._view.clickables)

    def score(self) -> float:
        """The score of the purchase; 0 before."""
        return self.bought.reward.total if self.bought is not None else 0.0

    def _go_to_index(self) -> None:
        self.query, self.number = "", 0
        self.product: Product | None = None
        self.options: dict[str, str] = {}
        self._show(Page.INDEX, pages.INDEX)

    def _show(self, page: Page, view: View) -> None:
        self.page, self._view = page, view
        for asin in view.products:
            self.seen.setdefault(asin, set()).update(_SHOWN[page])

    def _search(self, query: str) -> str:
        """Show the first results; the error if the original raises."""
        try:
            self._show_results(query, 1)
        except QueryError as error:
            return str(error)
        return ""

    def _show_results(self, query: str, number: int) -> None:
        if query.partition(" ")[0] == "<r>":
            view = pages.results(self._draw(), number, self.shop.per_page)
        else:
            view = self.shop.results(query, number)
        self.query, self.number, self.product, self.options = query, number, None, {}
        self._show(Page.RESULTS, view)

    def _draw(self) -> list[Product]:
        """Products at random, others for each page as in the original."""
        products = self.shop.catalogue.products
        rng = random.Random(f"{self.goal_index} {self._draws}")
        self._draws += 1
        return rng.sample(products, min(HITS, len(products)))

    def _click(self, name: str) -> None:
        """Follow a clickable of the current page."""
        if name == _BUY and self.page is Page.ITEM:
            self._buy()
        elif name == _BACK:
            self._go_to_index()
        elif self.page is Page.RESULTS:
            self._click_in_results(name)
        else:
            self._click_at_product(name)

    def _click_in_results(self, name: str) -> None:
        if name in (_NEXT, _PREVIOUS):
            self._show_results(self.query, self.number + (1 if name == _NEXT else -1))
        else:
            self._open(self._view.targets[name])

    def _click_at_product(self, name: str) -> None:
        product = self._current()
        if name == _PREVIOUS and self.page is Page.ITEM:
            self._show_results(self.query, self.number)
        elif name == _PREVIOUS:
            self._open(product.asin)
        elif name in SUBPAGES:
            self._show(Page(name), pages.subpage(product, Page(name)))
        else:
            self.options[self._view.targets[name]] = name

    def _open(self, asin: str) -> None:
        self.product = self.shop.catalogue.by_asin[asin]
        self._show(Page.ITEM, self.shop.item(asin))

    def _buy(self) -> None:
        product = self._current()
        found = reward(self.goal, product, self.options, mode=self.shop.reward_mode)
        self.bought = Purchase(product, dict(self.options), found)
        self._show(Page.DONE, View("", (), {}))

    def _current(self) -> Product:
        assert self.product is not None, f"page {self.page} without a product"
        return self.product


def parse(action: str) -> tuple[str, str]:
    """Name and argument of an action, the argument in lower case; the whole text and "" without an argument.

    The same as matching `(.+)\\[(.+)\\]` at the start, in linear time.
    """
    line = action.split("\n", 1)[0]
    end = line.rfind("]")
    start = line.rfind("[", 1, max(end - 1, 0))
    if start < 1:
        return action, ""
    return line[:start], line[start + 1 : end].lower()
