"""The reply parser: strict, and never an action that is not there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vict_jax.rollout.parser import ParsedReply, ReplyFormat, format_reply, parse_reply

TAGS, ACTION, LINE, RAW = ReplyFormat


@pytest.mark.parametrize(
    "text",
    [
        "<think>a drawer</think><action>go to drawer 1</action>",
        "  <think></think>\n<action> go to drawer 1\n</action>\n",
        "<think>two\nlines, 1 < 2</think> <action>go to drawer 1</action>",
    ],
)
def test_tags_accepts(text):
    assert parse_reply(text, TAGS, stopped=True) == ParsedReply("go to drawer 1", True, "")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "found none"),
        ("go to drawer 1", "found none"),
        ("<action>look</action>", "found <action></action>"),
        ("<think>x</think><action></action>", "empty action"),
        ("<think>x</think><action> \n </action>", "empty action"),
        ("<think>x</think></action><action>look", "expected the tags"),
        ("</action><action>look", "expected the tags"),
        ("<think>x</think><action>look</action><action>inventory</action>", "expected the tags"),
        ("<think>x</think><action>look</action><think>x</think><action>look</action>", "expected the tags"),
        ("<think>x</think><action><action>look</action></action>", "expected the tags"),
        ("<think>x<action>look</action></think>", "expected the tags"),
        ("<action>look</action><think>x</think>", "expected the tags"),
        ("<think>x</think><action>look", "expected the tags"),
        ("<think>x</think><action>look</action> done", "text after"),
        ("well <think>x</think><action>look</action>", "outside"),
        ("<think>x</think> so <action>look</action>", "outside"),
        ("<think>x</think><action>look\ninventory</action>", "more than one line"),
        ("<think>x<|im_start|></think><action>look</action>", "control token <|im_start|>"),
        ("<THINK>x</THINK><ACTION>look</ACTION>", "found none"),
    ],
)
def test_field_report_25_tags_refuses(text, reason):
    parsed = parse_reply(text, TAGS, stopped=True)
    assert (parsed.valid, parsed.action) == (False, "")
    assert reason in parsed.reason


def test_text_after_the_action_is_an_option_but_a_second_action_never_is():
    reply = "<think>x</think><action>look</action>"
    assert parse_reply(reply + " done", TAGS, stopped=True, allow_trailing=True).action == "look"
    assert not parse_reply(reply + "<action>go</action>", TAGS, stopped=True, allow_trailing=True).valid


def test_a_complete_block_counts_even_if_the_reply_was_cut_off():
    assert parse_reply("<think>x</think><action>look</action>", TAGS, stopped=False).valid
    assert not parse_reply("<think>x</think><action>loo", TAGS, stopped=False).valid


def test_line():
    assert parse_reply(" go to drawer 1\n", LINE, stopped=True) == ParsedReply("go to drawer 1", True, "")
    for text, reason in [
        ("", "empty"),
        (" \n", "empty"),
        ("look\ninventory", "more than one line"),
        ("look\r\ninventory", "more than one line"),
        ("<action>look</action>", "tag <action>"),
        ("look<|pad|>", "control token"),
    ]:
        parsed = parse_reply(text, LINE, stopped=True)
        assert not parsed.valid
        assert parsed.action == ""
        assert reason in parsed.reason
    assert parse_reply("go to draw", LINE, stopped=False).reason == "cut off before its end"


def test_raw_is_the_whole_reply_with_the_tags_of_another_protocol():
    reply = "<think> two\nlines </think>\n<search> who </search>"
    for stopped in (True, False):
        assert parse_reply(f" {reply}\n", RAW, stopped=stopped) == ParsedReply(reply, True, "")
    assert format_reply(reply, RAW) == reply
    assert parse_reply(" \n", RAW, stopped=True).reason == "empty action"
    assert "control token" in parse_reply("<search> a<|im_end|> </search>", RAW, stopped=True).reason


PIECES = ["<think>", "</think>", "<action>", "</action>", "look", "\n", " ", "<|im_end|>", "x"]


@given(
    st.lists(st.sampled_from(PIECES), max_size=9).map("".join), st.sampled_from(ReplyFormat), st.booleans()
)
def test_a_valid_reply_has_exactly_one_nonempty_line_of_action(text, reply_format, trailing):
    parsed = parse_reply(text, reply_format, stopped=True, allow_trailing=trailing)
    assert parsed.valid == (parsed.reason == "") == (parsed.action != "")
    if parsed.valid and reply_format is RAW:
        assert parsed.action == text.strip()
    elif parsed.valid:
        assert len(parsed.action.splitlines()) == 1
        assert parsed.action.strip() == parsed.action
        assert "<" not in parsed.action
        assert text.count("<action>") == (1 if reply_format is TAGS else 0)


@pytest.mark.parametrize("reply_format", ReplyFormat)
@pytest.mark.parametrize("action", ["look", "put mug 1 in/on desk 2", "click[é]", "a  b"])
def test_what_is_formatted_parses_back(reply_format, action):
    reply = format_reply(action, reply_format, thought="")
    assert parse_reply(reply, reply_format, stopped=True) == ParsedReply(action, True, "")


@pytest.mark.parametrize("action", ["", " look", "look\nlook", "<action>look", "a<|im_end|>"])
def test_what_cannot_be_said_is_refused(action):
    with pytest.raises(ValueError, match="cannot be said"):
        format_reply(action, TAGS)
    with pytest.raises(ValueError, match="cannot be said"):
        format_reply(action, LINE)


@pytest.mark.parametrize(
    ("text", "action", "reason"),
    [
        ("<action>look</action>", "look", ""),
        (" <action> look\n</action>\n", "look", ""),
        ("look", "", "expected the tags <action></action> once each, found none"),
        ("<think>x</think><action>look</action>", "", "once each, found <think></think>"),
        ("I <action>look</action>", "", "text outside the blocks"),
        ("<action>look</action> now", "", "text after </action>"),
        ("<action></action>", "", "empty action"),
    ],
)
def test_action_alone(text, action, reason):
    parsed = parse_reply(text, ACTION, stopped=False)
    assert (parsed.action, parsed.valid) == (action, not reason)
    assert reason in parsed.reason
    assert format_reply("look", ACTION) == "<action>look</action>"
