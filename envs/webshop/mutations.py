"""Purchases that depart from a solution in one thing that the score has to notice, and harmless detours."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence

from envs.webshop.catalogue import Catalogue, Product, clean_value
from envs.webshop.goals import Goal

_BUY = ["click[buy now]"]
_LEAVE = "click[< prev]"


def mutations(catalogue: Catalogue, goal: Goal, seed: str) -> dict[str, Sequence[str]]:
    """Name -> actions for one goal; `seed` chooses among products and values."""
    rng, product = random.Random(seed), goal.product
    there, right = _visit(product), _clicks(goal, product)
    found: dict[str, Sequence[str]] = {
        "not bought": there + right,
        "bought at once": there + _BUY,
        "bought from the list": [*there[:1], *_BUY],
        "the goal's product and options": there + right + _BUY,
        "left and opened again": [*there, *right, _LEAVE, *there[1:], *_BUY],
        "details read": [*there, "click[features]", _LEAVE, *right, "click[description]", _LEAVE, *_BUY],
        "searched again": [*there, *right, *there, *right, *_BUY],
    }
    for k, click in enumerate(right):
        found[f"option {k + 1} left out"] = there + right[:k] + right[k + 1 :] + _BUY
        for other in _other_values(product, click, rng):
            found[f"option {k + 1} changed"] = [*there, *right[:k], other, *right[k + 1 :], *_BUY]
            found[f"option {k + 1} changed and corrected"] = [*there, other, *right, *_BUY]
            found[f"option {k + 1} changed afterwards"] = [*there, *right, other, *_BUY]
    for name, wrong in _other_products(catalogue, goal, rng):
        found[name] = _visit(wrong) + _clicks(goal, wrong) + _BUY
    return found


def _visit(product: Product) -> list[str]:
    """Find a product by its title and open it."""
    words = re.sub(r"[\[\]<>\n]", " ", product.title)
    return [f"search[{' '.join(words.split())}]", f"click[{product.asin.lower()}]"]


def _clicks(goal: Goal, product: Product) -> list[str]:
    """Choose what the goal asks for, as far as a product has it."""
    values = {value for some in product.options.values() for value in some}
    wanted = dict.fromkeys(clean_value(value) for _, value in goal.options)
    return [f"click[{value}]" for value in wanted if value in values]


def _other_values(product: Product, click: str, rng: random.Random) -> list[str]:
    """A click on another value of the same group; none if there is no other."""
    chosen = click.removeprefix("click[").removesuffix("]")
    group = next(values for values in product.options.values() if chosen in values)
    others = [f"click[{value}]" for value in dict.fromkeys(group) if value != chosen]
    return [rng.choice(others)] if others else []


def _other_products(catalogue: Catalogue, goal: Goal, rng: random.Random) -> Iterator[tuple[str, Product]]:
    """Products that are wrong in one way, as far as there are any."""
    same = [p for p in catalogue.products if p.query == goal.product.query and p is not goal.product]
    kinds: Mapping[str, Sequence[Product]] = {
        "another one of the kind": same,
        "one that costs too much": [p for p in same if p.price > goal.price_upper],
        "one with fewer attributes": [p for p in same if not _has_all(p, goal)],
        "one of the department": [
            p
            for p in catalogue.products
            if p.category == goal.product.category and p.query != goal.product.query
        ],
        "anything else": [p for p in catalogue.products if p.category != goal.product.category],
        "one with a word of the title": [
            p
            for p in catalogue.products
            if p.query != goal.product.query and set(p.nouns) & set(goal.product.nouns)
        ],
    }
    for name, products in kinds.items():
        if products:
            yield name, rng.choice(products)


def _has_all(product: Product, goal: Goal) -> bool:
    return set(goal.attributes) <= set(product.attributes)
