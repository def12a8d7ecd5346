"""The shopper: what it reads in instructions and pages, and that it buys well on both shops."""

from __future__ import annotations

import math

import pytest

from envs.webshop import domain, expert, reward
from envs.webshop.domain import Options, WebShopEnv


@pytest.mark.parametrize(
    ("instruction", "what", "options", "price"),
    [
        (
            "Find me machine wash shirts with long sleeve with color: dark blue, and size: x-large, and "
            "price lower than 40.00 dollars",
            "machine wash shirts with long sleeve",
            {"color": "dark blue", "size": "x-large"},
            40.0,
        ),
        ("Find me lotions with aloe for dry skin", "lotions with aloe for dry skin", {}, math.inf),
        (
            "i need a woody deodorant, and price lower than 70.00 dollars",
            "i need a woody deodorant",
            {},
            70.0,
        ),
    ],
)
def test_reading_an_instruction(instruction, what, options, price) -> None:
    wish = expert.understand(instruction)
    assert (wish.what, wish.options, wish.price) == (what, options, price)


def test_reading_pages() -> None:
    listed = expert.Screen(
        (
            "Back to Search",
            "Page 2 (Total results: 12)",
            "< Prev",
            "Next >",
            "B01",
            "Red Cup",
            "$4.0 to $6.5",
        ),
        ("back to search", "< prev", "next >", "b01"),
    )
    assert listed.listed() == [expert.Listed("b01", "Red Cup", 4.0, 2)]
    item = expert.Screen(
        (
            "Back to Search",
            "< Prev",
            "color",
            "red",
            "blue",
            "size",
            "10",
            "Red Cup",
            "Price: $4.0",
            "Buy Now",
        ),
        ("back to search", "< prev", "buy now", "red", "blue", "10"),
    )
    assert item.groups() == {"color": ["red", "blue"], "size": ["10"]}


def results(options: Options, split: str, count: int) -> tuple[float, float, float]:
    """Share of tasks that the expert wins, that can be won, and its mean score."""
    tasks = domain.tasks(options, split)
    tasks = tasks[:: max(1, len(tasks) // count)][:count]
    env, scores = WebShopEnv(options), []
    for task in tasks:
        env.reset(task)
        while not (result := env.step(env.expert_action())).done:
            assert result.info["valid"]
        scores.append(env.record().score)
    best = [reward.best(domain.shop(options).goals[t.seed], mode=options.reward) for t in tasks]
    won, possible = (sum(score >= 1 for score in some) / len(tasks) for some in (scores, best))
    return won, possible, sum(scores) / len(scores)


@pytest.mark.parametrize("kind", ["synthetic", "human"])
def test_it_buys_what_is_asked_for_in_the_generated_shop(kind) -> None:
    won, possible, score = results(Options(goals=kind), "valid", 150)
    assert won >= possible - 0.05
    assert score > 0.98


def test_with_short_titles_that_say_all_it_needs_few_steps() -> None:
    options = Options(
        products=200, long_titles=0.0, title_attributes=3, per_page=4, layout="lines", max_steps=8
    )
    assert results(options, "valid", 100)[0] >= 0.97


def test_it_buys_well_in_the_real_shop(webshop_dir) -> None:
    won, possible, score = results(Options(data_dir=str(webshop_dir)), "test", 100)
    assert 0.55 < won <= possible
    assert score > 0.8


def test_it_goes_on_from_wherever_it_was_taken() -> None:
    options = Options(products=120)
    env, task = WebShopEnv(options), domain.tasks(options, "train")[3]
    for detour in (
        ["search[xyzzy]", "click[next >]"],
        ["search[cup]", "click[next >]", "click[next >]", "click[back to search]"],
        ["nothing", "search[<r>]", "click[next >]", "click[< prev]"],
    ):
        env.reset(task)
        for action in detour:
            env.step(action)
        while not env.step(env.expert_action()).done:
            pass
        assert env.record().score >= 0.5
