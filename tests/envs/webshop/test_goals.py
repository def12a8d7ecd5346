"""Goals in the original's order, and splits that do not overlap."""

from __future__ import annotations

import json

import pytest

from envs.webshop import catalogue, goals
from envs.webshop.raw import load_raw


def as_original(goal: goals.Goal) -> dict:
    product = goal.product
    return {
        "asin": product.asin,
        "category": product.category,
        "query": product.query,
        "name": product.title,
        "product_category": product.product_category,
        "instruction_text": goal.instruction,
        "attributes": list(goal.attributes),
        "price_upper": goal.price_upper,
        "goal_options": dict(goal.options),
        "weight": goal.weight,
    }


def test_the_golden_goals_are_at_their_indices(real_shop, webshop_dir, golden):
    rows = json.loads((webshop_dir / "golden_goals_sample.json").read_text())
    assert (len(rows), len(real_shop.goals)) == (600, 6910)
    assert [as_original(real_shop.goals[row["index"]]) | {"index": row["index"]} for row in rows] == rows
    for row in golden("golden_traces.jsonl") + golden("golden_rewards.jsonl"):
        assert as_original(real_shop.goals[row["goal_index"]]) == row["goal"]


def test_goals_by_people(webshop_dir, raw_shop):
    found = goals.human_goals(catalogue.build(load_raw(webshop_dir)))
    assert len(found) == 13
    assert all(group == "" for goal in found for group, _ in goal.options)
    (goal,) = goals.human_goals(catalogue.build(raw_shop))  # the one without attributes is skipped
    assert (goal.instruction, goal.options, goal.price_upper) == (
        "i want blue",
        (("", "blue"),),
        goals.NO_LIMIT,
    )


def test_one_goal_for_each_combination(small_shop):
    texts = sorted(goal.instruction.split(", and price")[0] for goal in small_shop.goals)
    assert texts == [
        "Find me long sleeve shirts with pack: 1, and size: 2",
        "Find me long sleeve shirts with pack: 2, and size: 2",
        "Find me machine wash shirts with color: dark blue",
        "Find me machine wash shirts with color: light blue",
        "Find me machine wash shirts with color: red | white",
    ]


def test_limits_are_above_the_price(real_shop, small_shop):
    for goal in [*real_shop.goals, *small_shop.goals]:
        if goal.price_upper == goals.NO_LIMIT:
            assert "price lower" not in goal.instruction
        else:
            # The larger of two of the first four multiples of ten above the price.
            assert 10 < goal.price_upper - goal.product.price <= 40 or goal.product.price < 0
            assert goal.instruction.endswith(f", and price lower than {goal.price_upper:.2f} dollars")


def test_splits_are_disjoint_and_cover_all_goals(real_shop):
    ranges = [goals.split(name, len(real_shop.goals)) for name in ("test", "valid", "train")]
    indices = [index for found in ranges for index in found]
    assert indices == list(range(len(real_shop.goals)))
    assert [len(found) for found in ranges] == [500, 1000, 5410]


def test_every_process_has_the_same_order(webshop_dir, real_shop):
    again = goals.synthetic_goals(catalogue.build(load_raw(webshop_dir)))
    assert again == real_shop.goals


@pytest.mark.parametrize(
    ("name", "count", "message"), [("dev", 9, "not one of"), ("train", 1500, "there are 1500")]
)
def test_impossible_splits(name, count, message):
    with pytest.raises(ValueError, match=message):
        goals.split(name, count)
