"""What customers want: synthetic goals and those that people wrote, in the original's order.

A goal is a product with one combination of its options and a price limit drawn above its price. The original
draws the limits from an unseeded generator at load and then shuffles with seed 233; here the limits are drawn
after the prices of the catalogue, from its seed, so index and text of a goal are the same in every process.

Splits are ranges of the shuffled list: test 0-499, valid 500-1499, train from 1500 on. They are disjoint
because there is one list with one order. A widely used training set-up takes the same ranges but shuffles
with another seed in each worker; index 7 then is another goal in each of them, and in a simulation all of
its validation goals were training goals of some worker, too. No function here takes a seed for the order.

Disjoint in index is not disjoint in products: a product has a goal for each combination of its options, and
of the 1,000 products two list a value twice, so that one test goal and two of valid have a twin in train.

Source: princeton-nlp/WebShop at 64fa2a5, `goal.py: get_synthetic_goals, get_human_goals`.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import random
from collections.abc import Iterable, Mapping

from envs.webshop.catalogue import Catalogue, Product

ORDER_SEED = 233
SPLITS = {"test": (0, 500), "valid": (500, 1500), "train": (1500, None)}
NO_LIMIT = 1_000_000.0
_LIMITS = range(10, 1000, 10)
_DRAWN_FROM = 4  # limits above the price


@dataclasses.dataclass(frozen=True, slots=True)
class Goal:
    """One goal.

    Attributes:
      product: the product it was made from.
      instruction: the text that the customer sees.
      attributes: what the bought product must have.
      options: (group, value) that must be chosen; the group is "" in a goal that a person wrote.
      price_upper: highest price in dollars, `NO_LIMIT` if there is none.
      weight: chance of being drawn by the original, up to a factor.
    """

    product: Product
    instruction: str
    attributes: tuple[str, ...]
    options: tuple[tuple[str, str], ...]
    price_upper: float
    weight: float


def synthetic_goals(catalogue: Catalogue) -> list[Goal]:
    """A goal for each combination of options of each product that has an instruction."""
    rng = _generator(catalogue)
    goals = []
    for product in catalogue.products:
        if product.instruction is None:
            continue
        limit, limit_text = _limit(product.price, rng)
        names = sorted(product.options)
        for values in itertools.product(*(product.options[name] for name in names)):
            options = tuple(zip(names, values, strict=True))
            wanted = ", and ".join(f"{name}: {value}" for name, value in options)
            text = product.instruction + (f" with {wanted}" if wanted else "") + limit_text
            goals.append(Goal(product, text, product.instruction_attributes, options, limit, 1.0))
    return _in_order(_weighted(goals))


def human_goals(catalogue: Catalogue) -> list[Goal]:
    """A goal for each instruction by a person that has attributes; its options are values without groups."""
    rng = _generator(catalogue)
    goals = []
    for product in catalogue.products:
        for said in product.human:
            if said.attributes:
                limit, limit_text = _limit(product.price, rng)
                options = tuple(("", value) for value in said.options)
                text = said.text.strip(".") + limit_text
                goals.append(Goal(product, text, said.attributes, options, limit, 1.0))
    return _in_order(goals)


def split(name: str, count: int, ranges: Mapping[str, tuple[int, int | None]] = SPLITS) -> range:
    """Indices of a split in a list of `count` goals.

    Raises:
      ValueError: unknown split, or too few goals for it to have any.
    """
    if name not in ranges:
        raise ValueError(f"split {name!r} is not one of {tuple(ranges)}")
    start, stop = ranges[name]
    found = range(start, count if stop is None else min(stop, count))
    if not found:
        raise ValueError(f"split {name!r} starts at goal {start}, and there are {count} goals")
    return found


def _generator(catalogue: Catalogue) -> random.Random:
    rng = random.Random()
    rng.setstate(catalogue.random_state)
    return rng


def _limit(price: float, rng: random.Random) -> tuple[float, str]:
    """A price limit above the price, and how the instruction says so."""
    above = list(itertools.islice((limit for limit in _LIMITS if limit > price), _DRAWN_FROM))
    if len(above) < 2:
        return NO_LIMIT, ""
    limit = float(max(rng.sample(above, 2)))
    return limit, f", and price lower than {limit:.2f} dollars"


def _weighted(goals: Iterable[Goal]) -> list[Goal]:
    """Goals with weight mean over attributes of 1 / (number of goals with the attribute)."""
    goals = list(goals)
    counts = collections.Counter(attribute for goal in goals for attribute in goal.attributes)
    return [
        dataclasses.replace(goal, weight=sum(1 / counts[a] for a in goal.attributes) / len(goal.attributes))
        for goal in goals
    ]


def _in_order(goals: list[Goal]) -> list[Goal]:
    random.Random(ORDER_SEED).shuffle(goals)
    return goals
