"""The graded score of a purchase, with all its parts.

    r = r_type (attribute hits + option hits + price hit) / (attributes + options + 1)

- price hit: the price is not above the limit.
- attribute hit: it resembles an attribute of the product, or is part of its title, bullets or description.
- option hit: it resembles one of the chosen values, whatever their group.
- r_type: 1 if the goal's query, or two parts of its category path, are the product's too, or more than 0.2
  of the title's nouns; else 0.5. Below 0.1 of the nouns it is 0.1, without a common noun 0, in any case.

Texts *resemble* each other if their token set ratio (0 to 100) is above 85.

The mode `original` keeps two known faults, as published scores have them:

1. *Goals that cannot reach 1.* A chosen value is replaced by the first colour word in it (`2005brown` becomes
   `brown`, `rectangular` becomes `tan`), the option of a synthetic goal is not: the right choice does not
   hit. Of the 6,910 synthetic goals of the 1,000 products 458 are affected, 20 of the first 500.
2. *Loose option matching.* By the same replacement `dark blue` passes for `light blue`; and it is enough if
   all words of one text are in the other: `large` passes for `xx-large`, `11` for `11.5`.

The mode `corrected` differs in option hits only: the exact value must be among the chosen ones.

Source: princeton-nlp/WebShop at 64fa2a5, `goal.py`, `normalize.py`; thefuzz 0.19, `token_set_ratio`.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import re
from collections.abc import Container, Iterable, Mapping, Sequence

from envs.webshop.catalogue import Product, clean_value
from envs.webshop.goals import Goal

MODES = ("original", "corrected")
_SIMILAR = 85
_CATEGORY_PARTS = 2
_NO_NOUNS = 0.2
_LATIN_1 = dict.fromkeys(range(128, 256))  # characters that the original drops before it compares

_COLOURS = (
    "alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown burgundy "
    "camel camo caramel champagne charcoal cheetah chestnut chocolate christmas coffee cognac copper coral "
    "cranberry cream crystal dark denim eggplant elephant espresso fuchsia gold granite grape graphite grass "
    "gray green grey heather indigo ivory ivy khaki lavender lemon leopard light lilac lime magenta maroon "
    "mauve merlot midnight mint mocha multicolor mushroom mustard natural navy nude olive orange peach "
    "pewter pink plum purple rainbow red rose royal rust sand sapphire seashell silver skull slate steel "
    "stone stonewash sunflower tan taupe teal tiger turquoise violet walnut wheat white wine yellow"
)
COLOURS = tuple(_COLOURS.split())


@dataclasses.dataclass(frozen=True)
class Reward:
    """The score of a purchase and what it is made of.

    Attributes:
      total: r, from 0 to 1.
      r_type: factor for the type of product: 0, 0.1, 0.5 or 1.
      query_match, category_match: as above.
      title_score: share of the goal's nouns in the title of the product.
      attribute_hits, option_hits: for each attribute and option of the goal.
      price_hit: the price is not above the limit.
    """

    total: float
    r_type: float
    query_match: bool
    category_match: bool
    title_score: float
    attribute_hits: tuple[bool, ...]
    option_hits: tuple[bool, ...]
    price_hit: bool

    def info(self) -> dict[str, float | bool]:
        """The parts under the original's names; `r_option` and `w_option` only if the goal has options."""
        attributes, options = self.attribute_hits, self.option_hits
        parts = len(attributes) + len(options) + 1
        found: dict[str, float | bool] = {
            "r_type": self.r_type,
            "r_att": sum(attributes) / len(attributes),
            "w_att": len(attributes) / parts,
            "query_match": self.query_match,
            "category_match": self.category_match,
            "title_score": self.title_score,
        }
        if options:
            found |= {"r_option": sum(options) / len(options), "w_option": len(options) / parts}
        return found | {"r_price": self.price_hit, "w_price": 1 / parts}


def reward(
    goal: Goal,
    product: Product,
    chosen: Mapping[str, str],
    *,
    price: float | None = None,
    mode: str = "original",
) -> Reward:
    """Score buying `product` with the options `chosen` (group -> value).

    Args:
      goal: what was wanted.
      product: what was bought.
      chosen: values as on the page.
      price: in dollars, instead of the product's own.
      mode: `original` or `corrected`, see above.

    Raises:
      ValueError: unknown mode.
    """
    if mode not in MODES:
        raise ValueError(f"mode={mode!r} is not one of {MODES}")
    query_match = product.query == goal.product.query
    category_match = (
        len(_path(product.product_category) & _path(goal.product.product_category)) >= _CATEGORY_PARTS
    )
    title_score = _title_score(product.nouns, goal.product.nouns)
    r_type = _type_factor(query_match or category_match, title_score)
    attributes = tuple(_attribute_hit(wanted, product) for wanted in goal.attributes)
    hits = _original_option_hits if mode == "original" else _exact_option_hits
    options = hits(goal.options, chosen.values())
    price_hit = (product.price if price is None else price) <= goal.price_upper
    share = (sum(attributes) + sum(options) + price_hit) / (len(attributes) + len(options) + 1)
    return Reward(
        share * r_type, r_type, query_match, category_match, title_score, attributes, options, price_hit
    )


def best(goal: Goal, *, mode: str = "original") -> float:
    """The score of buying the goal's own product with exactly its options."""
    chosen = {group or str(place): value for place, (group, value) in enumerate(goal.options)}
    return reward(goal, goal.product, chosen, mode=mode).total


@functools.lru_cache(maxsize=65536)
def token_set_ratio(a: str, b: str) -> int:
    """Similarity of two texts as sets of words, 0 to 100: the best of three comparisons.

    Compared are the common words alone, and the common words followed by the other words of `a` and of `b`.
    """
    words_a, words_b = set(_words(a)), set(_words(b))
    if not words_a or not words_b:
        return 0
    common = " ".join(sorted(words_a & words_b))
    with_a = f"{common} {' '.join(sorted(words_a - words_b))}".strip()
    with_b = f"{common} {' '.join(sorted(words_b - words_a))}".strip()
    return max(_ratio(common, with_a), _ratio(common, with_b), _ratio(with_a, with_b))


def _words(text: str) -> list[str]:
    return re.sub(r"\W", " ", text.translate(_LATIN_1)).lower().split()


def _ratio(a: str, b: str) -> int:
    if a == b:
        return 100
    return round(100 * difflib.SequenceMatcher(None, a, b).ratio()) if a and b else 0


def _resembles(a: str, b: str) -> bool:
    return token_set_ratio(a, b) > _SIMILAR


def _path(category: str) -> set[str]:
    return {part.strip() for part in category.split("›")}


def _title_score(nouns: Sequence[str], wanted: Sequence[str]) -> float:
    """Share of the wanted nouns, which count with their repeats, that the title has."""
    return len(set(nouns) & set(wanted)) / len(wanted) if wanted else _NO_NOUNS


def _type_factor(kind_match: bool, title_score: float) -> float:
    if title_score == 0:
        return 0.0
    if title_score < 0.1:
        return 0.1
    return 1.0 if kind_match or title_score > 0.2 else 0.5


def _attribute_hit(wanted: str, product: Product) -> bool:
    if any(_resembles(attribute, wanted) for attribute in product.attributes):
        return True
    texts = (product.title, " ".join(product.bullets), product.description)
    return any(wanted in text.lower() for text in texts)


def _first_colour(holder: Container[str], otherwise: str) -> str:
    return next((colour for colour in COLOURS if colour in holder), otherwise)


def _original_option_hits(options: Iterable[tuple[str, str]], chosen: Iterable[str]) -> tuple[bool, ...]:
    values = [_first_colour(value, value) for value in chosen]
    return tuple(any(_resembles(value, _compared(option)) for value in values) for option in options)


def _compared(option: tuple[str, str]) -> str:
    """The text that a goal's option is compared as.

    One of a person is a value like the chosen ones. One of a synthetic goal is a pair: the colour must be a
    whole member of it, and otherwise the pair is compared as Python prints it, so that the group's words
    count.
    """
    group, value = option
    if not group:
        return _first_colour(value, value)
    return _first_colour(option, str(option))


def _exact_option_hits(options: Iterable[tuple[str, str]], chosen: Iterable[str]) -> tuple[bool, ...]:
    values = set(chosen)
    return tuple(clean_value(value) in values for _, value in options)
