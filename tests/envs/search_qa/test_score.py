"""The benchmark's scores, and the verifier's own reading of the same texts."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.search_qa import score, verifier
from envs.search_qa.protocol import TAGS

TEXTS = st.text(st.sampled_from("aAthenTHE \t\n.,'\"-_–’éİß1٣´ "), max_size=24)
PIECES = st.lists(st.sampled_from([*TAGS, " ", "who", "<answer"]), max_size=12).map("".join)
SEARCH = "<think> a </think> <search> q </search>\n\n<information>Doc</information>\n\n"
ANSWER = "<think> b </think>\n<answer> x </answer>"


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Beatles!", "beatles"),
        ("A.N. Other", "other"),
        ("an apple a day", "apple day"),
        ("theatre", "theatre"),
        ("1,000 Miles", "1000 miles"),
        ("Côte d'Ivoire", "côte divoire"),
        ("the–end", "–end"),
        ("the_end", "theend"),
        ("the", ""),
        ("", ""),
    ],
)
def test_normalisation(text, normal):
    assert score.normalise(text) == verifier.canonical(text) == normal


@settings(max_examples=500, deadline=None)
@given(TEXTS)
def test_the_verifier_compares_texts_alike_by_other_code(text):
    assert verifier.canonical(text) == score.normalise(text)


def test_any_golden_answer_counts_and_nothing_less():
    golden = ("Mark Twain", "Samuel Clemens", "Twain, Mark")
    assert score.exact_match("  the MARK twain. ", golden)
    assert score.exact_match("twain mark", golden)
    assert not score.exact_match("Mark Twain or so", golden)
    assert score.substring_match("It was Mark Twain, or so.", golden)
    assert not score.substring_match("Mark", golden)


@settings(max_examples=300, deadline=None)
@given(PIECES)
def test_the_last_complete_answer_is_the_one_of_the_regular_expression(text):
    found = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
    assert score.extract_answer(text) == (found[-1].strip() if found else None)


@settings(max_examples=300, deadline=None)
@given(st.lists(PIECES, max_size=4))
def test_the_verifier_finds_the_same_answer_piece_by_piece(pieces):
    answer, pending = None, ""
    for piece in pieces:
        given_, pending = verifier._scan(pending + piece)
        answer = answer if given_ is None else given_
    assert answer == score.extract_answer("".join(pieces))


def test_hostile_texts_take_linear_time():
    begin = time.process_time()
    for text in ("<answer>" * 200_000, "<answer>x</answer>" * 200_000, "<think>" * 200_000):
        score.score_em(text, ("x",))
        score.score_format(text, ("x",))
        verifier._scan(text)
    assert time.process_time() - begin < 5


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        (ANSWER, True),
        (SEARCH + ANSWER, True),
        (SEARCH * 3 + ANSWER + "\n", True),
        ("", False),
        (SEARCH, False),
        (SEARCH + SEARCH, False),
        ("<answer> x </answer>", False),
        ("so " + ANSWER, False),
        (ANSWER + " so", False),
        (SEARCH + "so" + ANSWER, False),
        (ANSWER + ANSWER, False),
        ("<think> <think> </think> <answer> x </answer>", False),
        ("<think> a </think> <think> b </think> <answer> x </answer>", False),
        ("<think> a <search> q </search> </think> <answer> x </answer>", False),
        ("<think> a </think> <search> q </search>" + ANSWER, False),
        (SEARCH + "<answer> x </answer>", False),
        ("<think> b </think> <answer> x", False),
    ],
)
def test_format(text, valid):
    assert score.is_valid_format(text) == valid


@pytest.mark.parametrize(
    ("text", "em", "graded"),
    [
        (SEARCH + ANSWER, 1.0, 1.0),
        ("<answer> x </answer>", 1.0, 0.8),
        (SEARCH + ANSWER.replace("x", "y"), 0.0, 0.2),
        ("<answer> y </answer>", 0.0, 0.1),
        (SEARCH, 0.0, 0.0),
        ("x", 0.0, 0.0),
    ],
)
def test_scores(text, em, graded):
    assert score.score_em(text, ("X",)) == em
    assert score.score_format(text, ("X",)) == graded
