"""The graded reward, with its parts and its known faults."""

from __future__ import annotations

import dataclasses

import pytest

from envs.webshop import catalogue, goals
from envs.webshop.reward import COLOURS, Reward, best, reward, token_set_ratio


def test_every_golden_purchase_has_the_originals_score_and_parts(real_shop, golden):
    rows = golden("golden_rewards.jsonl")
    assert len(rows) == 1000
    for row in rows:
        bought = real_shop.catalogue.by_asin[row["asin"]]
        found = reward(real_shop.goals[row["goal_index"]], bought, row["options"], price=row["price"])
        assert (found.total, found.info()) == (row["reward"], row["info"])


def test_goals_that_cannot_reach_one_can_in_the_corrected_mode(real_shop):
    original = [best(goal) < 1 for goal in real_shop.goals]
    assert (sum(original), sum(original[:500])) == (458, 20)
    assert all(best(goal, mode="corrected") == 1 for goal in real_shop.goals)


@pytest.fixture
def shirt(small_shop) -> goals.Goal:
    return next(goal for goal in small_shop.goals if ("color", "light blue") in goal.options)


def hit(goal, value: str, mode: str) -> bool:
    return reward(goal, goal.product, {"color": value}, mode=mode).option_hits == (True,)


@pytest.mark.parametrize(
    ("wanted", "chosen", "original", "corrected"),
    [
        ("light blue", "light blue", True, True),
        ("light blue", "dark blue", True, False),
        ("xx-large", "large", True, False),
        ("11.5", "11", True, False),
        ("2005brown", "2005brown", False, True),
        ("rectangular", "rectangular", False, True),
        ("brown", "2005brown", True, False),
        ("red", "green", False, False),
    ],
)
def test_options_of_synthetic_goals(shirt, wanted, chosen, original, corrected):
    goal = dataclasses.replace(shirt, options=(("color", wanted),))
    assert hit(goal, chosen, "original") == original
    assert hit(goal, chosen, "corrected") == corrected


def test_options_of_people_are_replaced_by_colours_on_both_sides(shirt):
    goal = dataclasses.replace(shirt, options=(("", "2005brown"),))
    assert hit(goal, "2005brown", "original")
    assert hit(goal, "darkbrown", "original")
    assert not hit(goal, "darkbrown", "corrected")
    assert hit(dataclasses.replace(shirt, options=(("", "Red/White"),)), "red | white", "corrected")


def test_parts(shirt, small_shop):
    other = small_shop.catalogue.by_asin["B000000002"]
    found = reward(shirt, other, {"size": "2"})
    assert found == Reward(
        total=pytest.approx(2 / 3),
        r_type=1.0,
        query_match=True,
        category_match=True,
        title_score=1.0,
        attribute_hits=(True,),  # machine washable resembles machine wash
        option_hits=(False,),
        price_hit=True,
    )
    assert set(found.info()) >= {"r_option", "w_option"}
    assert not reward(shirt, other, {}, price=shirt.price_upper + 1).price_hit


@pytest.mark.parametrize(
    ("nouns", "wanted", "query", "expected"),
    [
        (("oak",), ("shirt",), "shirts", 0.0),  # overrides the query
        (("shirt",), ("shirt",) + ("x",) * 10, "shirts", 0.1),
        (("shirt",), ("shirt",) * 5, "tables", 0.5),  # repeats of the goal count
        (("shirt",), ("shirt",) * 5, "shirts", 1.0),
        (("shirt",), ("shirt",) * 4, "tables", 1.0),
        ((), (), "tables", 0.5),
    ],
)
def test_factor_of_the_type(shirt, nouns, wanted, query, expected):
    goal = dataclasses.replace(shirt, product=dataclasses.replace(shirt.product, nouns=wanted))
    bought = dataclasses.replace(shirt.product, nouns=nouns, query=query, product_category="Home › Oak")
    assert reward(goal, bought, {}).r_type == expected


def test_an_attribute_may_stand_in_a_text(shirt):
    plain = dataclasses.replace(shirt.product, attributes=("x",))
    for changes in (
        {"title": "A Machine Wash shirt"},
        {"bullets": ("machine", "wash")},
        {"description": "MACHINE WASH"},
    ):
        assert reward(shirt, dataclasses.replace(plain, **changes), {}).attribute_hits == (True,)
    assert reward(shirt, plain, {}).attribute_hits == (False,)


def test_token_set_ratio():
    assert token_set_ratio("fuzzy wuzzy was a bear", "Fuzzy, fuzzy was a bear!") == 100
    assert token_set_ratio("abcd", "abce") == 75
    assert token_set_ratio("", "a") == token_set_ratio("--", "a") == token_set_ratio("é", "e") == 0


def test_colours_are_in_the_order_in_which_they_are_tried():
    assert len(COLOURS) == 102
    assert list(COLOURS) == sorted(COLOURS)


def test_modes_are_named(shirt):
    with pytest.raises(ValueError, match="mode='fixed' is not one of"):
        reward(shirt, shirt.product, {}, mode="fixed")


def test_a_catalogue_may_have_goals_of_both_kinds(raw_shop):
    (goal,) = goals.human_goals(catalogue.build(raw_shop))
    assert best(goal) == 1
