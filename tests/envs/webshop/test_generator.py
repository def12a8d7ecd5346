"""The generated shop: the same for the same seed, in the original's format, and honest about its products."""

from __future__ import annotations

import json

import pytest

from envs.webshop import catalogue, generator, goals, reward, wares


@pytest.fixture(scope="module")
def raw():
    return generator.generate(products=600, seed=3)


@pytest.fixture(scope="module")
def products(raw):
    return catalogue.build(raw)


def test_a_seed_gives_one_shop_and_another_seed_another(raw) -> None:
    assert generator.generate(products=600, seed=3) == raw
    assert generator.generate(products=600, seed=4) != raw
    assert json.loads(json.dumps(raw.products)) == raw.products  # plain JSON values, as in the files


def test_all_kinds_are_there_and_ids_are_unique(products) -> None:
    assert products.size == 600
    assert len(products.by_asin) == 600
    assert all(asin == asin.lower() and len(asin) <= 10 for asin in products.by_asin)
    assert {p.query for p in products.products} == {kind.query for kind in wares.KINDS}


def test_the_files_have_the_keys_of_the_originals(raw, webshop_dir) -> None:
    original = json.loads((webshop_dir / "items_shuffle_1000.json").read_text())
    assert {key for entry in raw.products for key in entry} == set(original[0])
    groups = [e["customization_options"] for e in original if e["customization_options"]]
    keys = {key for some in groups for values in some.values() for value in values or () for key in value}
    ours = [e["customization_options"] for e in raw.products if e["customization_options"]]
    assert {key for some in ours for values in some.values() for value in values for key in value} <= keys
    human = json.loads((webshop_dir / "items_human_ins_1000.json").read_text())
    theirs = {key for said in human.values() for one in said for key in one}
    assert {key for said in raw.human.values() for one in said for key in one} == theirs


def test_every_attribute_is_on_a_page(products) -> None:
    for product in products.products:
        texts = " ".join((product.title, *product.bullets)).lower()
        assert all(attribute in texts for attribute in product.attributes)


def test_titles_hold_their_nouns_in_order(products) -> None:
    for product in products.products:
        words = iter(product.title.lower().split())
        assert all(noun in words for noun in product.nouns)


def test_titles_name_as_many_attributes_as_wanted() -> None:
    shown = catalogue.build(generator.generate(products=90, seed=0, long_titles=0.0, title_attributes=3))
    for product in shown.products:
        if product.instruction:
            assert all(wanted in product.title.lower() for wanted in product.instruction_attributes)


def test_a_range_price_comes_from_options(raw, products) -> None:
    ranges = [e for e in raw.products if e["pricing"].count("$") == 2]
    assert ranges
    for entry in ranges:
        low, high = (float(part) for part in entry["pricing"].split("$")[1:])
        values = [v for some in entry["customization_options"].values() for v in some if v["price"]]
        assert {low, high} <= {value["price"] for value in values}
        assert low <= products.by_asin[entry["asin"]].price <= high


def test_few_goals_cannot_be_reached_and_all_can_with_the_corrected_score(products) -> None:
    everything = goals.synthetic_goals(products) + goals.human_goals(products)
    unreachable = [goal for goal in everything if reward.best(goal) < 1]
    assert 0 < len(unreachable) < 0.03 * len(everything)
    for goal in unreachable:
        assert {value for _, value in goal.options} & set(wares.JOINED)
    assert all(reward.best(goal, mode="corrected") == 1 for goal in everything)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"products": 29}, "products=29 must be from 30 to 59400"),
        ({"long_titles": 1.5}, "long_titles=1.5"),
        ({"title_attributes": 0}, "title_attributes=0 must be from 1 to 3"),
    ],
)
def test_arguments_out_of_range(values, message) -> None:
    with pytest.raises(ValueError, match=message):
        generator.generate(**{"products": 30, "seed": 0, **values})
