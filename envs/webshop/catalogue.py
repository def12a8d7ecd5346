"""Products as the original's loader leaves them, and what each costs.

Skipped are products without a usable id (`nan`, or more than ten characters) and repeats. A price may be a
range; the price that the score compares is then drawn from it. The original draws when it loads, from an
unseeded generator, so its goals differ from process to process; here the seed is part of the catalogue.

Source: princeton-nlp/WebShop at 64fa2a5, `engine.py: load_products, generate_product_prices`.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

from envs.webshop.raw import RawData

NO_PRICE = 100.0
NO_ATTRIBUTES = ("DUMMY_ATTR",)
WRITE_NOUNS = "`python -m envs.webshop.importer --data-dir DIR --write-nouns`"
_LONGEST_ASIN = 10
_TEXTS = ("name", "full_description", "category", "query", "product_category")


@dataclasses.dataclass(frozen=True, slots=True)
class Instruction:
    """What a person asked for: the text, the attributes and the option values it means."""

    text: str
    attributes: tuple[str, ...]
    options: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Product:
    """One product.

    Attributes:
      asin: its id.
      title, description, bullets: texts of its pages.
      price_tag: the price as it is shown, `$7.5` or `$4.98 to $7.99`.
      price: the price that is compared with a goal's limit, in dollars.
      category, query, product_category: of the shop; `product_category` is a path with ` › ` between parts.
      options: group -> values, both lower-case, in the order of the page.
      attributes: hidden attributes that the score compares; on no page.
      nouns: nouns of the title, lower-case, with repeats.
      instruction, instruction_attributes: of its synthetic goals; None and () where it has none.
      human: its instructions by people.
    """

    asin: str
    title: str
    description: str
    bullets: tuple[str, ...]
    price_tag: str
    price: float
    category: str
    query: str
    product_category: str
    options: Mapping[str, tuple[str, ...]]
    attributes: tuple[str, ...]
    nouns: tuple[str, ...]
    instruction: str | None
    instruction_attributes: tuple[str, ...]
    human: tuple[Instruction, ...]

    def document(self) -> str:
        """The text that the search finds it by."""
        groups = (f"{name}: {', '.join(values)}" for name, values in self.options.items())
        return " ".join((self.title, self.description, *self.bullets[:1], ", and ".join(groups))).lower()


@dataclasses.dataclass(frozen=True)
class Catalogue:
    """All products, never changed.

    Attributes:
      products: in file order.
      seed: of the drawn prices.
      random_state: state of the generator after the prices; the goals' price limits are drawn from there on.
    """

    products: tuple[Product, ...]
    seed: int
    random_state: Any = dataclasses.field(repr=False)

    @property
    def size(self) -> int:
        """Number of products. Part of every score: with fewer products the search is easier."""
        return len(self.products)

    @functools.cached_property
    def by_asin(self) -> Mapping[str, Product]:
        """Products by id."""
        return {product.asin: product for product in self.products}

    def digest(self) -> str:
        """SHA-256 over the products without nouns and drawn prices, whatever else the files hold."""
        digest = hashlib.sha256()
        for product in self.products:
            fields = dataclasses.asdict(product)
            del fields["nouns"], fields["price"]
            digest.update(json.dumps(fields, ensure_ascii=True, sort_keys=False).encode())
        return digest.hexdigest()


def build(raw: RawData, *, seed: int = 233) -> Catalogue:
    """Clean the products and draw the prices of those that have a range.

    Raises:
      ValueError: a product that lacks a field or has another kind of value, a price without a number, or
        titles without nouns.
    """
    rng = random.Random(seed)
    nouns = _known_nouns(raw)
    products = []
    for entry in usable(raw.products):
        tag, prices = _price(entry["asin"], entry.get("pricing"))
        price = rng.uniform(*prices) if len(prices) == 2 else prices[0]
        products.append(_product(entry, raw, nouns, tag, price))
    if not products:
        raise ValueError(f"of {len(raw.products)} products none has a usable asin")
    return Catalogue(tuple(products), seed, rng.getstate())


def usable(products: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """The entries that become products.

    Raises:
      ValueError: an entry without an id.
    """
    seen = set()
    for place, entry in enumerate(products):
        if not isinstance(entry, Mapping) or not isinstance(entry.get("asin"), str):
            raise ValueError(f"product {place} has no asin; is this WebShop's items_shuffle file?")
        asin = entry["asin"]
        if asin != "nan" and len(asin) <= _LONGEST_ASIN and asin not in seen:
            seen.add(asin)
            yield entry


def _known_nouns(raw: RawData) -> Mapping[str, Sequence[str]]:
    if raw.title_nouns is None:
        raise ValueError(
            "the score compares nouns of titles, and there is no title_nouns*.json beside the data; write it "
            f"once with {WRITE_NOUNS} (needs spaCy)"
        )
    missing = [entry["asin"] for entry in usable(raw.products) if entry["asin"] not in raw.title_nouns]
    if missing:
        raise ValueError(
            f"title nouns of {len(missing)} products are missing, the first is {missing[0]!r}; "
            f"write them anew with {WRITE_NOUNS}"
        )
    return raw.title_nouns


def _price(asin: str, pricing: str | None) -> tuple[str, tuple[float, ...]]:
    """The text of a price and its one or two numbers."""
    if not pricing:
        return f"${NO_PRICE}", (NO_PRICE,)
    try:
        numbers = tuple(float(Decimal(re.sub(r"[^\d.]", "", part))) for part in pricing.split("$")[1:])[:2]
    except InvalidOperation:
        numbers = ()
    if not numbers:
        raise ValueError(f"pricing={pricing!r} of product {asin} must be like '$7.50' or '$4.98 - $7.99'")
    return " to ".join(f"${number}" for number in numbers), numbers


def clean_value(value: str) -> str:
    """An option value as it stands on the page."""
    return value.strip().replace("/", " | ").lower()


def _options(asin: str, groups: Any) -> dict[str, tuple[str, ...]]:
    try:
        return {
            name.lower(): tuple(clean_value(content["value"]) for content in contents)
            for name, contents in (groups or {}).items()
            if contents is not None
        }
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"customization_options of product {asin} cannot be read: {error!r}") from error


def _product(
    entry: Mapping[str, Any], raw: RawData, nouns: Mapping[str, Sequence[str]], tag: str, price: float
) -> Product:
    asin = entry["asin"]
    for key in _TEXTS:
        if not isinstance(entry.get(key), str):
            raise ValueError(f"product {asin} has {key}={entry.get(key)!r}, expected a text")
    bullets = entry.get("small_description", "")
    known = raw.attributes.get(asin, {})
    return Product(
        asin=asin,
        title=entry["name"],
        description=entry["full_description"],
        bullets=tuple(bullets) if isinstance(bullets, list) else (bullets,),
        price_tag=tag,
        price=price,
        category=entry["category"],
        query=entry["query"].lower().strip(),
        product_category=entry["product_category"],
        options=_options(asin, entry.get("customization_options")),
        attributes=tuple(known.get("attributes", NO_ATTRIBUTES)),
        nouns=tuple(nouns[asin]),
        instruction=known.get("instruction"),
        instruction_attributes=tuple(known.get("instruction_attributes") or ()),
        human=tuple(
            Instruction(
                said["instruction"], tuple(said["instruction_attributes"]), tuple(said["instruction_options"])
            )
            for said in raw.human.get(asin, ())
        ),
    )
