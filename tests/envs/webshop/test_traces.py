"""Sessions answer as the original does, step by step."""

from __future__ import annotations

import random
import re

import pytest

from envs.webshop.native import Session, WebShop, parse
from envs.webshop.pages import Page, done


def test_every_golden_step_is_answered_as_by_the_original(real_shop, golden):
    session = Session(real_shop)
    rows = golden("golden_traces.jsonl")
    assert len(rows) == 40
    for row in rows:
        for step in row["steps"]:
            if step["action"] is None:
                answer = (session.reset(row["goal_index"]), 0, False)
            else:
                answer = session.step(step["action"])[:3]
            assert answer == (step["obs"], step["reward"], step["done"])
            available = session.available_actions()
            assert available._asdict() | {"clickables": list(available.clickables)} == step["available"]
        assert (row["info"] is None) == (session.bought is None)
        assert session.bought is None or session.bought.reward.info() == row["info"]


def test_logged_episodes_of_a_real_server(real_shop, webshop_dir, golden):
    """Prices differ there, so texts are compared without the instruction, and scores as they are."""
    scores = []
    for row in golden("agentgym_llm_trajs_4.jsonl"):
        pages = [said["value"] for said in row["conversations"][2:] if said["from"] == "human"]
        actions = [said["value"] for said in row["conversations"][2:] if said["from"] == "gpt"]
        wanted = pages[0].split(" [SEP] ")[2].split(", and price")[0]
        goal = next(
            i for i, g in enumerate(real_shop.goals) if g.instruction.split(", and price")[0] == wanted
        )
        session = Session(real_shop)
        session.reset(goal)
        for action, page in zip(actions, pages[1:], strict=False):
            argument = re.search(r'"(?:keywords|item)": "(.*)"', action).group(1)
            text = session.step(f"{'search' if 'keywords' in action else 'click'}[{argument}]")[0]
            assert text.split(" [SEP] ")[2:] == page.split(" [SEP] ")[2:]
        scores.append(session.bought.reward.total)
    assert scores == [1.0, 1.0, 1.0, 0.8]


@pytest.fixture
def session(small_shop) -> Session:
    found = Session(small_shop)
    found.reset(0)
    return found


def walk(session: Session, *actions: str):
    """Plays actions that must all be accepted; the last answer."""
    answers = [session.step(action) for action in actions]
    assert [answer[3]["valid"] for answer in answers] == [True] * len(answers)
    return answers[-1]


def test_seen_and_chosen_and_bought(session):
    walk(session, "search[shirt]")
    assert session.seen == {"B000000001": {"title", "price"}, "B000000002": {"title", "price"}}
    walk(session, "click[B000000002]", "click[2]", "click[1]", "click[Features]", "click[< Prev]")
    assert session.seen["B000000002"] == {"title", "price", "options", "features"}
    # The value 2 is in both groups; as a key it belongs to the later one.
    assert session.options == {"size": "2", "pack": "1"}
    text, score, over, _ = walk(session, "click[Buy Now]")
    assert over
    assert score == session.score() == session.bought.reward.total > 0
    assert '[SEP] {"pack": "1", "size": "2"} [SEP]' in text
    assert (session.page, session.bought.product.asin) == (Page.DONE, "B000000002")


def test_what_clears_the_options(session):
    walk(session, "search[shirt]", "click[b000000001]", "click[light blue]")
    walk(session, "click[description]", "click[< prev]")
    assert session.options == {"color": "light blue"}
    walk(session, "click[< prev]")
    assert (session.page, session.options, session.product) == (Page.RESULTS, {}, None)
    walk(session, "click[b000000001]", "click[light blue]", "search[table]")
    assert session.options == {}
    walk(session, "click[b000000003]", "click[back to search]")
    assert (session.page, session.product, session.query) == (Page.INDEX, None, "")


def test_the_end_is_the_end(session):
    walk(session, "search[shirt]", "click[b000000001]", "click[buy now]")
    text, score = session.text(), session.score()
    for action in ("search[shirt]", "click[b000000002]", "click[light blue]", "click[buy now]"):
        assert session.step(action) == (text, 0.0, True, {"valid": False, "error": ""})
    assert session.score() == score
    assert session.available_actions() == (False, ())


@pytest.mark.parametrize(
    "action",
    ["", "click[search]", "click[buy now]", "search", "search[]", "Search[a]", "search[a[b]", "find[a]"],
)
def test_what_is_no_action_leaves_the_page(session, action):
    before = session.text()
    assert session.step(action) == (before, 0.0, False, {"valid": False, "error": ""})


@pytest.mark.parametrize("action", ["search[<a> machine wash]", "search[<c>]", "search[<a>]"])
def test_what_makes_the_original_raise_is_recorded(session, action):
    before = session.text()
    text, score, over, info = session.step(action)
    assert (text, score, over, info["valid"]) == (before, 0.0, False, False)
    assert "original raises" in info["error"]


def test_lists_of_a_category_and_a_query(session):
    assert "Total results: 2" in walk(session, "search[<c> fashion and more]")[0]
    assert "Total results: 1" in walk(session, "search[<q> tables]")[0]
    assert "Total results: 0" in walk(session, "search[<q>]")[0]


def test_random_lists_repeat_with_the_episode(session, real_shop):
    sessions = [Session(real_shop), Session(real_shop)]
    texts = []
    for each in sessions:
        each.reset(3)
        texts.append(
            [walk(each, "search[<r>]")[0], walk(each, "click[next >]")[0], walk(each, "click[< prev]")[0]]
        )
    assert texts[0] == texts[1]
    assert texts[0][0] != texts[0][2]
    assert "Total results: 3" in walk(session, "search[<r> x]")[0]


def test_pages_past_the_end_are_empty(session):
    assert walk(session, "search[shirt]", *["click[next >]"] * 3)[0].endswith(
        "Page 4 (Total results: 2) [SEP] < Prev [SEP] Next >"
    )
    assert walk(session, *["click[< prev]"] * 3)[0].count("B00000000") == 2
    assert session.step("click[< prev]")[3]["valid"] is False


def test_names_and_arguments_are_the_originals_pattern():
    pattern, rng = re.compile(r"(.+)\[(.+)\]"), random.Random(0)
    for _ in range(20_000):
        action = "".join(rng.choice("aB[]\n\r\u2028 ") for _ in range(rng.randint(0, 9)))
        match = pattern.match(action)
        expected = (match.group(1), match.group(2).lower()) if match else (action, "")
        assert parse(action) == expected


def test_sessions_of_a_shop_do_not_disturb_each_other(real_shop, golden):
    rows = golden("golden_traces.jsonl")[:8]
    sessions = [Session(real_shop) for _ in rows]
    for session, row in zip(sessions, rows, strict=True):
        session.reset(row["goal_index"])
    for number in range(1, max(len(row["steps"]) for row in rows)):
        for session, row in zip(sessions, rows, strict=True):
            if number < len(row["steps"]):
                assert session.step(row["steps"][number]["action"])[0] == row["steps"][number]["obs"]


def test_wrong_arguments(small_shop, session):
    with pytest.raises(ValueError, match="goal_index=5 must be from 0 to 4"):
        session.reset(5)
    with pytest.raises(ValueError, match="reward_mode='fixed'"):
        WebShop(small_shop.catalogue, small_shop.goals, reward_mode="fixed")


def test_the_corrected_mode_is_by_name(small_shop):
    goal = next(i for i, g in enumerate(small_shop.goals) if ("color", "light blue") in g.options)
    scores = []
    for mode in ("original", "corrected"):
        session = Session(WebShop(small_shop.catalogue, small_shop.goals, reward_mode=mode))
        session.reset(goal)
        scores.append(
            walk(session, "search[shirt]", "click[b000000001]", "click[dark blue]", "click[buy now]")[1]
        )
    assert scores == [1.0, pytest.approx(2 / 3)]


def test_pages_keep_markup_as_text(session):
    walk(session, "search[long]")
    assert "[SEP] Long <b>Shirt</b> [SEP] $5.0 to $9.99" in session.text()
    # The last page is the only one with JSON, whose filter escapes what HTML could misread.
    options = '{"a": "<b> \\u0026 women\\u0027s", "b": "1"}'.replace("<", "\\u003c").replace(">", "\\u003e")
    assert options in done("B000000001", {"b": "1", "a": "<b> & women's"}, 1.0)
