"""A shop from a seed, in the format of the original's files, with nothing to download.

Products are drawn from `envs.webshop.wares`, kinds taking turns. What the shop shows is what there is: every
attribute of a product is in its title or one of its bullet points. The attributes that a synthetic goal asks
for are in the text that the search reads (title and first bullet point), but for one product in ten, where
the last of them is in a later bullet point only.

Ids are the beginnings of brand and noun with a number (`tar-tea-3`), lower-case, so that a list and a click
name a product by the same text. Each part has few values, so that a small model can learn to copy it. A range
price comes from options of different prices, as in the original.
"""

from __future__ import annotations

import collections
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from envs.webshop import wares
from envs.webshop.raw import RawData

_CODE, _MOST_OF_ONE = 3, 99  # an id has at most ten characters: twice three letters and two digits
MIN_PRODUCTS, MAX_PRODUCTS = len(wares.KINDS), _MOST_OF_ONE * len(wares.KINDS) * len(wares.BRANDS)
LONG_TITLES = 0.3
MOST_ASKED = 3  # attributes of a synthetic goal
_RANGE_PRICES = 0.3  # of products with options
_HIDDEN = 0.1  # of products: an attribute that the search cannot find
_JOINED = 0.01  # of colours
_SHADES = 0.2
_WITHOUT_INSTRUCTION = 0.2
_PEOPLE_SAY = (
    "i am looking for {kind} that are {attributes}{options}",
    "i need {attributes} {kind}{options}.",
    "can you find me {kind}? they should be {attributes}{options}",
    "please show me {kind}{options}, {attributes} if possible.",
)


def generate(
    *, products: int, seed: int, long_titles: float = LONG_TITLES, title_attributes: int = 1
) -> RawData:
    """Draw a catalogue; the same arguments give the same one.

    Args:
      products: how many, from `MIN_PRODUCTS` (one of each kind) to `MAX_PRODUCTS`.
      seed: of all choices.
      long_titles: share of products with a title of eight words or more, as most are in the original. Only
        these can match a wrong product in part: see the levels of `envs.webshop.verifier`.
      title_attributes: how many attributes a title names, those first that a goal may ask for. With
        `MOST_ASKED` lists show all that is needed to choose.

    Raises:
      ValueError: an argument is out of range.
    """
    if not MIN_PRODUCTS <= products <= MAX_PRODUCTS:
        raise ValueError(f"products={products} must be from {MIN_PRODUCTS} to {MAX_PRODUCTS}")
    if not 0 <= long_titles <= 1:
        raise ValueError(f"long_titles={long_titles} must be from 0 to 1")
    if not 1 <= title_attributes <= MOST_ASKED:
        raise ValueError(f"title_attributes={title_attributes} must be from 1 to {MOST_ASKED}")
    rng = random.Random(f"webshop/{products}/{seed}")
    made = [
        _product(kind, brand, asin, rng, long_titles, title_attributes)
        for kind, brand, asin in _named(products, rng)
    ]
    rng.shuffle(made)
    return RawData(
        products=[entry for entry, *_ in made],
        attributes={entry["asin"]: attributes for entry, attributes, *_ in made},
        human={entry["asin"]: human for entry, _, human, _ in made if human},
        title_nouns={entry["asin"]: nouns for entry, *_, nouns in made},
    )


def _named(products: int, rng: random.Random) -> Iterator[tuple[wares.Kind, str, str]]:
    """Kind, brand and id of each product; the kinds take turns, and those of a kind are by brands in turn."""
    of_each = -(-products // len(wares.KINDS))
    brands = [[wares.BRANDS[i % len(wares.BRANDS)] for i in range(of_each)] for _ in wares.KINDS]
    for of_kind in brands:
        rng.shuffle(of_kind)
    counts: collections.Counter[str] = collections.Counter()
    for i in range(products):
        turn, which = divmod(i, len(wares.KINDS))
        kind, brand = wares.KINDS[which], brands[which][turn]
        code = f"{_code(brand)}-{_code(kind.nouns[-1])}"
        counts[code] += 1
        yield kind, brand, f"{code}-{counts[code]}"


def _code(word: str) -> str:
    return re.sub(r"\W", "", word).lower()[:_CODE]


def _product(
    kind: wares.Kind, brand: str, asin: str, rng: random.Random, long_titles: float, title_attributes: int
) -> tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]], list[str]]:
    """A product, its attributes and synthetic instruction, what people ask for, the nouns of its title."""
    attributes = rng.sample(kind.attributes, rng.randint(3, 5))
    place = rng.choice(wares.PLACES)
    title, nouns = _title(kind, brand, attributes[:title_attributes], rng, long_titles)
    options = {name: _values(name, values, rng) for name, values in kind.groups}
    pricing, extra = _pricing(kind, options, rng)
    asked = attributes[: rng.choice((2, 2, MOST_ASKED))]
    found_by_search = asked[1:-1] if rng.random() < _HIDDEN else asked[1:]
    thing = " ".join(kind.nouns).lower()
    rest = [attribute for attribute in attributes[1:] if attribute not in found_by_search]
    entry = {
        "name": title,
        "full_description": f"{brand} made this {thing} with the {place} in mind.",
        "images": [f"images/{asin}.png"],
        "product_category": " › ".join(kind.path),
        "average_rating": "",
        "small_description": [
            _opening_bullet(kind.query, brand, found_by_search),
            *(_bullet(a, thing, rng) for a in rest),
        ],
        "customization_options": _customization(options, extra, asin) if options else "",
        "asin": asin,
        "category": kind.category,
        "query": kind.query,
        "page": 1,
        "pricing": pricing,
    }
    synthetic: dict[str, Any] = {"attributes": sorted(attributes)}
    if rng.random() >= _WITHOUT_INSTRUCTION:
        synthetic |= {"instruction": _instruction(kind, asked), "instruction_attributes": sorted(asked)}
    return entry, synthetic, [_human(kind, asin, attributes, options, rng)], nouns


def _title(
    kind: wares.Kind, brand: str, attributes: Sequence[str], rng: random.Random, long_titles: float
) -> tuple[str, list[str]]:
    """A title, and its nouns as they follow each other."""
    words = [brand, *" ".join(attributes).title().split(), *kind.nouns]
    nouns = [brand, *kind.nouns]
    if rng.random() < long_titles:
        places, people = rng.sample(wares.PLACES, 5), rng.sample(wares.PEOPLE, 3)
        more = [word.title() for word in (*places, *people)]
        words, nouns = [*words, "for", *more], [*nouns, *more]
    return " ".join(words), [noun.lower() for noun in nouns]


def _values(name: str, values: Sequence[str], rng: random.Random) -> list[str]:
    """The values of a group that a product comes in, in the order of the group."""
    if name != "color":
        chosen = rng.sample(range(len(values)), rng.randint(2, min(4, len(values))))
        return [values[i] for i in sorted(chosen)]
    found = list[str]()
    for plain in rng.sample(values, rng.randint(2, 4)):
        chance = rng.random()
        joined, shade = rng.choice(wares.JOINED), rng.choice(wares.SHADES)
        found.append(joined if chance < _JOINED else shade if chance < _JOINED + _SHADES else plain)
    return list(dict.fromkeys(found))


def _pricing(
    kind: wares.Kind, options: Mapping[str, Sequence[str]], rng: random.Random
) -> tuple[str, dict[str, float]]:
    """The price as the files write it, and the price of each value of the last group, if they differ."""
    low, high = kind.prices
    price = round(low + (high - low) * rng.random() ** 2, 2)
    if not options or rng.random() >= _RANGE_PRICES:
        return f"${price}", {}
    *_, (_, values) = options.items()
    prices = {value: round(price * (1 + 0.15 * i), 2) for i, value in enumerate(values)}
    return f"${price}${max(prices.values())}", prices


def _customization(
    options: Mapping[str, Sequence[str]], prices: Mapping[str, float], asin: str
) -> dict[str, Any]:
    """Option groups with the keys of the original's entries."""
    return {
        name.title(): [
            {
                "is_selected": i == 0,
                "is_available": True,
                "url": None,
                "value": value.title(),
                "price_string": f"${prices[value]}" if value in prices else "",
                "price": prices.get(value, 0),
                "image": None,
                "asin": asin,
            }
            for i, value in enumerate(values)
        ]
        for name, values in options.items()
    }


def _opening_bullet(query: str, brand: str, attributes: Sequence[str]) -> str:
    says = f", {' and '.join(attributes)}" if attributes else ""
    return f"{query.capitalize()} by {brand}{says}"


def _bullet(attribute: str, thing: str, rng: random.Random) -> str:
    reason = rng.choice(("chosen by our customers", "as every {} of ours", "a {} to keep"))
    return f"{attribute.capitalize()}: {reason.format(thing)}"


def _instruction(kind: wares.Kind, asked: Sequence[str]) -> str:
    """A synthetic instruction in the original's form, without options and price."""
    before, after = asked[:1], asked[1:]
    return f"Find me {', '.join(before)} {kind.query} with {', '.join(after)}"


def _human(
    kind: wares.Kind,
    asin: str,
    attributes: Sequence[str],
    options: Mapping[str, Sequence[str]],
    rng: random.Random,
) -> dict[str, Any]:
    """An instruction as a person might write it, with the keys of the original's entries."""
    asked, chosen = list(attributes[:2]), {name: rng.choice(values) for name, values in options.items()}
    wanted = f" in {' and '.join(chosen.values())}" if chosen else ""
    text = rng.choice(_PEOPLE_SAY)
    return {
        "asin": asin,
        "instruction": text.format(kind=kind.query, attributes=" and ".join(asked), options=wanted),
        "attributes": list(attributes),
        "options": [f"{name}: {value}" for name, value in chosen.items()],
        "instruction_attributes": asked,
        "instruction_options": list(chosen.values()),
        "assignment_id": f"generated-{asin}",
        "worker_id": "generated",
    }
