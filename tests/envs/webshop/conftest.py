"""The real shop of 1,000 products, and a small one made by hand for what must be tested without it."""

from __future__ import annotations

import json
import pathlib

import pytest

from envs.webshop import catalogue, goals
from envs.webshop.native import WebShop
from envs.webshop.raw import RawData, load_raw


@pytest.fixture(scope="session")
def webshop_dir(shared_dir: pathlib.Path) -> pathlib.Path:
    return shared_dir / "data" / "webshop"


@pytest.fixture(scope="session")
def golden(webshop_dir):
    """Reads the rows of a golden file."""
    return lambda name: [json.loads(line) for line in (webshop_dir / name).read_text().splitlines()]


@pytest.fixture(scope="session")
def real_shop(webshop_dir) -> WebShop:
    products = catalogue.build(load_raw(webshop_dir))
    return WebShop(products, goals.synthetic_goals(products))


def product(asin: str, name: str, **changes) -> dict:
    """An entry of items_shuffle."""
    entry = {
        "asin": asin,
        "name": name,
        "full_description": "",
        "small_description": ["Soft"],
        "pricing": "$10.00",
        "category": "fashion",
        "query": " Shirts",
        "product_category": "Clothing › Men › Shirts",
        "customization_options": None,
    }
    return entry | changes


@pytest.fixture
def raw_shop() -> RawData:
    """Three products: one with options that overlap and a price range, one plain, one of another kind."""
    colours = {
        "Color": [{"value": " Light Blue "}, {"value": "Red/White"}, {"value": "dark blue"}],
        "SIZE": None,
    }
    shared_value = {"Pack": [{"value": "1"}, {"value": "2"}], "Size": [{"value": "2"}]}
    products = [
        product("B000000001", "Soft Shirt", customization_options=colours, pricing="$1,005.50"),
        product("B000000002", "Long <b>Shirt</b>", customization_options=shared_value, pricing="$5 - $9.99"),
        product("B000000003", "Oak Table", category="garden", query="tables", product_category="Home › Oak"),
    ]
    attributes = {
        "B000000001": {
            "attributes": ["machine wash"],
            "instruction": "Find me machine wash shirts",
            "instruction_attributes": ["machine wash"],
        },
        "B000000002": {
            "attributes": ["long sleeve", "machine washable"],
            "instruction": "Find me long sleeve shirts",
            "instruction_attributes": ["long sleeve"],
        },
    }
    asked = [
        {
            "instruction": "i want blue.",
            "instruction_attributes": ["machine wash"],
            "instruction_options": ["blue"],
        },
        {"instruction": "anything", "instruction_attributes": [], "instruction_options": []},
    ]
    nouns = {"B000000001": ["shirt"], "B000000002": ["shirt", "shirt"], "B000000003": ["oak", "table"]}
    return RawData(products, attributes, {"B000000001": asked}, nouns)


@pytest.fixture
def small_shop(raw_shop) -> WebShop:
    products = catalogue.build(raw_shop)
    return WebShop(products, goals.synthetic_goals(products))
