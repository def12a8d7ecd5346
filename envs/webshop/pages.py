"""The pages of the shop in the original's simple text mode: pieces joined by ` [SEP] `.

Every page but the last is the instruction and a part that does not depend on it; that part is a `View`, so
that sessions can share it. The original makes HTML from templates and strips it again with an HTML parser,
three times a step; what is left of that is that pieces are stripped and that an empty text leaves no piece,
but in features.

| page | after the instruction | can be clicked |
|---|---|---|
| index | Search | search (does nothing) |
| results | Back to Search, Page N (Total results: T), < Prev if N > 1, Next >, products | buttons, ids |
| item | Back to Search, < Prev, options, title, price, rating, links, Buy Now | buttons, values |
| description, features, reviews | Back to Search, < Prev, the text | buttons |
| done | (no instruction) what was bought, and the score | nothing |

The original's page of hidden attributes, off by default, is not here.
Source: princeton-nlp/WebShop at 64fa2a5, `templates/`, `web_agent_text_env.py: convert_html_to_text`.
"""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Iterator, Mapping, Sequence

from envs.webshop.catalogue import Product

SEP = " [SEP] "
PER_PAGE = 10
BACK, PREVIOUS, NEXT, BUY = "Back to Search", "< Prev", "Next >", "Buy Now"


class Page(enum.StrEnum):
    """Kind of page."""

    INDEX = "index"
    RESULTS = "results"
    ITEM = "item"
    DESCRIPTION = "description"
    FEATURES = "features"
    REVIEWS = "reviews"
    DONE = "done"


SUBPAGES = (Page.DESCRIPTION, Page.FEATURES, Page.REVIEWS)


@dataclasses.dataclass(frozen=True, slots=True)
class View:
    """What a page has beside the instruction.

    Attributes:
      text: the pieces after the instruction, joined.
      clickables: what can be clicked, lower-case, in the original's order: buttons, products, option values.
      targets: clickable -> id of the product behind it, or group of the option value. A value that two groups
        have belongs to the later one.
      products: ids of the products that it shows.
    """

    text: str
    clickables: tuple[str, ...]
    targets: Mapping[str, str]
    products: tuple[str, ...] = ()


INDEX = View("Search", ("search",), {})


def with_instruction(page: Page, instruction: str, view: View) -> str:
    """The whole text of a page."""
    opening = ["WebShop"] if page is Page.INDEX else []
    return SEP.join([*opening, "Instruction:", *_pieces(instruction), view.text])


def results(found: Sequence[Product], number: int, per_page: int = PER_PAGE) -> View:
    """Page `number` (from 1) of the products found; empty past the last."""
    shown = found[(number - 1) * per_page : number * per_page]
    buttons = [BACK, *([PREVIOUS] if number > 1 else []), NEXT]
    head = [BACK, f"Page {number} (Total results: {len(found)})", *buttons[1:]]
    listed = [piece for product in shown for piece in _listed(product)]
    targets = {product.asin.lower(): product.asin for product in shown}
    asins = tuple(product.asin for product in shown)
    return View(SEP.join(head + listed), _clickables(buttons, targets), targets, asins)


def item(product: Product) -> View:
    """The page of a product; it does not show which options are chosen."""
    links = [page.capitalize() for page in SUBPAGES]
    groups = [piece for name, values in product.options.items() for piece in _pieces(name, *values)]
    facts = [*_pieces(product.title), f"Price: {product.price_tag}", "Rating: N.A."]
    targets = {value: name for name, values in product.options.items() for value in values}
    clickables = _clickables([BACK, PREVIOUS, *links, BUY], targets)
    return View(
        SEP.join([BACK, PREVIOUS, *groups, *facts, *links, BUY]), clickables, targets, (product.asin,)
    )


def subpage(product: Product, page: Page) -> View:
    """The description, features or reviews of a product; there never are reviews."""
    if page is Page.FEATURES:
        body = [bullet.strip() for bullet in product.bullets]
    else:
        body = list(_pieces(product.description)) if page is Page.DESCRIPTION else []
    text = SEP.join([BACK, PREVIOUS, *body])
    return View(text, _clickables([BACK, PREVIOUS], {}), {}, (product.asin,))


def done(asin: str, chosen: Mapping[str, str], score: float) -> str:
    """The page after the purchase, with the original's spelling."""
    # Flask's filter for JSON sorts the keys and escapes what HTML could misread.
    options = json.dumps(chosen, sort_keys=True)
    for character in "<>&'":
        options = options.replace(character, f"\\u{ord(character):04x}")
    bought = ["asin", asin, "options", options, "attrs", "None", "category", "None", "query", "None"]
    target = [
        "asin",
        "options",
        "attrs",
        "price upper",
        "instuction text",
        "category",
        "product category",
        "query",
    ]
    return SEP.join(
        (
            *("Thank you for shopping with us!", "Your code:", "None", "(Paste it in your MTurk interface.)"),
            *("Purchased", *bought, "product category", "None", "Target", *target, "Goal", "None"),
            *("Reward", "Your score (min 0.0, max 1.0)", str(score), "Reward Details", "None"),
        )
    )


def _listed(product: Product) -> Iterator[str]:
    yield from _pieces(product.asin, product.title, product.price_tag)


def _pieces(*texts: str) -> Iterator[str]:
    return (text.strip() for text in texts if text not in ("", "\n"))


def _clickables(buttons: Sequence[str], targets: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys([*(button.lower() for button in buttons), *targets]))
