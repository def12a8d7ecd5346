"""Random and hostile actions: never an exception, always a page that can be gone on from."""

from __future__ import annotations

import random

import pytest

from envs.webshop.native import Session
from envs.webshop.pages import SEP, Page

HOSTILE = (
    *(
        "",
        " ",
        "\n",
        "[",
        "]",
        "[]",
        "[[]]",
        "]x[",
        "search[",
        "search]",
        "search[]]",
        "click[[x]]",
        "search[\n]",
    ),
    *("search[\x00]", "search[\ud800]", "click[\ud800]", "search[İ ẞ ﬁ]", "search[" + "́" * 5000 + "]"),
    *(
        "search[" + "[" * 20_000 + "]",
        "[" * 20_000,
        "]" * 20_000,
        "search[" + "a" * 100_000 + "]",
        "click[" * 9_000,
    ),
    *(
        "search[" + "shirt " * 9_000 + "]",
        "search[<r>]",
        "search[<a> x]",
        "search[<c>]",
        "search[<q>]",
        "search[<c> ]",
    ),
    *(
        "search[<script>alert(1)</script>]",
        "search['; DROP TABLE goals; --]",
        '{"action": "search"}',
        "search[{{7*7}}]",
    ),
    *(
        "<action>click[buy now]</action>",
        "click[Buy Now",
        "click[buy now]\nclick[< prev]",
        "search[[SEP] Buy Now [SEP]]",
    ),
)


def random_action(session: Session, rng: random.Random) -> str:
    kind = rng.random()
    clickables = session.available_actions().clickables
    if kind < 0.6 and clickables:
        text = rng.choice(clickables)
        return f"click[{text.upper() if rng.random() < 0.2 else text}]"
    if kind < 0.8:
        words = rng.sample(session.goal.instruction.split(), 3)
        return f"search[{' '.join(words)}]"
    if kind < 0.9:
        return rng.choice(HOSTILE)
    return "".join(
        chr(rng.choice((91, 93, 10, 32, rng.randrange(33, 0x3000)))) for _ in range(rng.randrange(30))
    )


def test_every_hostile_action_from_every_kind_of_page(small_shop):
    ways = {
        Page.INDEX: [],
        Page.RESULTS: ["search[shirt]"],
        Page.ITEM: ["search[shirt]", "click[b000000001]"],
        Page.FEATURES: ["search[shirt]", "click[b000000001]", "click[features]"],
        Page.DONE: ["search[shirt]", "click[b000000001]", "click[buy now]"],
    }
    session = Session(small_shop)
    for page, way in ways.items():
        for action in HOSTILE:
            session.reset(0)
            for step in way:
                session.step(step)
            assert session.page is page
            before = session.text()
            text, _, done, info = session.step(action)
            assert text == session.text()
            bought = page is Page.ITEM and "buy now]\n" in action
            assert done == (page is Page.DONE or bought)
            assert info["valid"] or text == before


@pytest.mark.parametrize("seed", range(3))
def test_random_play_keeps_its_promises(real_shop, seed):
    rng = random.Random(seed)
    session = Session(real_shop)
    done = True
    for _ in range(1500):
        if done:
            opening = session.reset(rng.randrange(len(real_shop.goals)))
            assert opening.startswith(
                "WebShop" + SEP + "Instruction:" + SEP + session.goal.instruction.strip()
            )
        before, seen = session.text(), {asin: set(facts) for asin, facts in session.seen.items()}
        text, score, done, info = session.step(random_action(session, rng))
        assert text == session.text()
        assert info["valid"] or (text, score) == (before, 0.0)
        assert done == (session.bought is not None) == (session.page is Page.DONE)
        assert 0 <= score <= 1
        assert all(facts <= session.seen[asin] for asin, facts in seen.items())  # what was seen stays seen
        if session.product is not None:
            for group, value in session.options.items():
                assert value in session.product.options[group]
