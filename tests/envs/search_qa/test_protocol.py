"""Search-R1's protocol: which action a reply is, and what is said to it."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.search_qa import protocol
from envs.search_qa.data import Passage
from envs.search_qa.protocol import TAGS, read_reply

PIECES = st.lists(st.sampled_from([*TAGS, " ", "\n", "who", "Paris", "<", "<answer", "é"]), max_size=12).map(
    "".join
)


def reference(reply):
    """The benchmark's rule in its own words: cut, then the first match of its regular expression."""
    for end in ("</search>", "</answer>"):
        if end in reply:
            reply = reply.split(end)[0] + end
            break
    found = re.search(r"<(search|answer)>(.*?)</\1>", reply, re.DOTALL)
    return (found[1], found[2].strip()) if found else ("", "")


@settings(max_examples=300, deadline=None)
@given(PIECES)
def test_an_action_is_the_one_that_the_benchmark_takes(reply):
    action = read_reply(reply)
    assert (action.kind, action.content) == reference(reply)
    assert reply.startswith(action.reply)


@pytest.mark.parametrize(
    ("reply", "kind", "content"),
    [
        ("<think> hm </think> <search> capital of France </search>", "search", "capital of France"),
        ("<answer> Paris </answer> and more", "answer", "Paris"),
        ("<search> a </search><answer> b </answer>", "search", "a"),
        ("<answer> b </answer><search> a </search>", "answer", "b"),
        ("<search> a <answer> b </answer>", "answer", "b"),
        ("<search>\n</search>", "search", ""),
        ("<search> a", "", ""),
        ("</search> a <search>", "", ""),
        ("<SEARCH> a </SEARCH>", "", ""),
        ("", "", ""),
    ],
)
def test_actions(reply, kind, content):
    action = read_reply(reply)
    assert (action.kind, action.content) == (kind, content)


@pytest.mark.parametrize("tag", TAGS)
def test_huge_replies_take_linear_time(tag):
    begin = time.process_time()
    for reply in (tag * 200_000, f"<answer>x</answer>{tag}" * 100_000 + "</search>"):
        read_reply(reply)
    assert time.process_time() - begin < 2


def test_the_prompt_asks_the_question_with_a_question_mark():
    text = protocol.ask(" who wrote it ", protocol.PROMPT)
    assert text.endswith("For example, <answer> Beijing </answer>. Question: who wrote it?\n")
    assert protocol.ask("Who?", protocol.BARE_PROMPT) == "Question: Who?"
    # Braces in a question are no fields, and tags in it are text.
    assert protocol.ask("{x} <answer> y </answer>?", protocol.BARE_PROMPT) == (
        "Question: {x} &lt;answer&gt; y &lt;/answer&gt;?"
    )


def test_documents_are_numbered_with_their_titles_as_they_are():
    passages = [Passage("1", '"War of 1812"\nThe war\nbegan.'), Passage("2", "Bare\ntext </information>")]
    assert protocol.documents(passages) == (
        'Doc 1(Title: "War of 1812") The war\nbegan.\nDoc 2(Title: Bare) text &lt;/information&gt;'
    )
    assert protocol.documents(passages, limit=9) == "Doc 1(Tit"
    assert protocol.documents([]) == ""
    assert protocol.information("x") == "\n\n<information>x</information>\n\n"


@given(PIECES)
def test_foreign_text_has_no_tags(text):
    assert not any(tag in protocol.foreign(text) for tag in TAGS)
    assert protocol.foreign("a < b </b> <i>") == "a < b </b> <i>"
