"""Products as the original's loader leaves them."""

from __future__ import annotations

import dataclasses
import json

import pytest

from envs.webshop import catalogue, raw


def with_first(data: raw.RawData, **changes) -> raw.RawData:
    return dataclasses.replace(data, products=[{**data.products[0], **changes}, *data.products[1:]])


def test_prices_are_the_originals_with_the_seed_pinned(real_shop, webshop_dir):
    expected = json.loads((webshop_dir / "product_prices_seed233.json").read_text())
    assert {product.asin: product.price for product in real_shop.catalogue.products} == expected
    assert real_shop.catalogue.size == 1000


def test_cleaning(raw_shop):
    shirt, long_shirt, table = catalogue.build(raw_shop).products
    assert shirt.options == {"color": ("light blue", "red | white", "dark blue")}
    assert shirt.query == "shirts"
    assert (shirt.price_tag, shirt.price) == ("$1005.5", 1005.5)
    assert long_shirt.price_tag == "$5.0 to $9.99"
    assert 5 <= long_shirt.price <= 9.99
    assert table.attributes == catalogue.NO_ATTRIBUTES
    assert shirt.document() == "soft shirt  soft color: light blue, red | white, dark blue"


def test_only_the_drawn_prices_depend_on_the_seed(raw_shop):
    one, other = catalogue.build(raw_shop, seed=1), catalogue.build(raw_shop, seed=2)
    assert [p.price for p in one.products[::2]] == [p.price for p in other.products[::2]]
    assert one.products[1].price != other.products[1].price
    assert one.digest() == other.digest()


def test_the_digest_sees_every_text(raw_shop):
    digest = catalogue.build(raw_shop).digest()
    for changes in ({"name": "Soft shirt"}, {"small_description": "Soft"}, {"pricing": "$10.01"}):
        changed = catalogue.build(with_first(raw_shop, **changes)).digest()
        assert (changed == digest) == ("small_description" in changes)  # a text is a list of one


@pytest.mark.parametrize(("asin", "kept"), [("nan", False), ("B0000000001", False), ("B000000002", True)])
def test_unusable_and_repeated_products_are_skipped(raw_shop, asin, kept):
    found = catalogue.build(with_first(raw_shop, asin=asin)).products
    assert len(found) == 2
    assert (found[0].title == "Soft Shirt") == kept


@pytest.mark.parametrize("pricing", [None, ""])
def test_no_price_is_a_hundred(raw_shop, pricing):
    product = catalogue.build(with_first(raw_shop, pricing=pricing)).products[0]
    assert (product.price_tag, product.price) == ("$100.0", 100.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pricing": "free"}, "pricing='free' of product B000000001"),
        ({"pricing": "$1.2.3"}, "pricing='\\$1.2.3'"),
        ({"name": None}, "product B000000001 has name=None"),
        ({"asin": None}, "product 0 has no asin"),
        ({"asin": "B000000009"}, "title nouns of 1 products are missing"),
        ({"customization_options": {"size": [{}]}}, "customization_options of product B000000001"),
    ],
)
def test_faults_are_named(raw_shop, changes, message):
    with pytest.raises(ValueError, match=message):
        catalogue.build(with_first(raw_shop, **changes))


def test_titles_without_nouns_are_refused(raw_shop):
    with pytest.raises(ValueError, match="--write-nouns"):
        catalogue.build(dataclasses.replace(raw_shop, title_nouns=None))
