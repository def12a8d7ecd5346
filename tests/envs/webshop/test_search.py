"""The ranking of the original, and Lucene's way with words."""

from __future__ import annotations

import pytest

from envs.webshop.analysis import terms
from envs.webshop.porter import stem
from envs.webshop.search import Index, rounded_length


def test_every_golden_query_has_the_originals_order_and_scores(real_shop, golden):
    index = Index({product.asin: product.document() for product in real_shop.catalogue.products})
    rows = golden("golden_search.jsonl")
    assert len(rows) == 150
    for row in rows:
        found = index.search(row["query"], 50)
        assert [asin for asin, _ in found] == [asin for asin, _ in row["hits"]], row["query"]
        assert [score for _, score in found] == pytest.approx([score for _, score in row["hits"]], abs=6e-5)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The Women's dogs' O’Neil's", ["women", "dog", "o’neil"]),
        (
            "3.5mm x-large 1,000.50 U.S.A. jack_knife 4:3 a:b",
            ["3.5mm", "x", "larg", "1,000.50", "u.s.a", "jack_knif"],
        ),
        ("I♥NY ★ Soft™ ❤️", ["i", "♥", "ny", "★", "soft", "™", "❤️"]),
        ("锅巴 ひら カタカナ", ["锅", "巴", "ひ", "ら", "カタカナ"]),
        ("crème brûlée İ", ["crème", "brûlée", "i̇"]),
        ("___ -- [] to be or not", []),
        ("a" * 300, ["a" * 255, "a" * 45]),
    ],
)
def test_terms(text, expected):
    found = terms(text)
    assert found[: len(expected)] == expected
    assert found[len(expected) :] == (["4", "3", "a:b"] if "4:3" in text else [])


# Worked examples of Porter's paper, one or more of each step, and the later changes (bli, logi, short words).
STEMS = """\
caresses caress ponies poni ties ti cats cat feed feed agreed agre plastered plaster bled bled
motoring motor sing sing conflated conflat troubled troubl sized size hopping hop tanned tan
falling fall hissing hiss fizzed fizz failing fail filing file happy happi sky sky relational relat
conditional condit rational ration valenci valenc digitizer digit conformabli conform
radicalli radic differentli differ vileli vile analogousli analog vietnamization vietnam
predication predic operator oper feudalism feudal decisiveness decis hopefulness hope
callousness callous formaliti formal sensitiviti sensit sensibiliti sensibl triplicate triplic
formative form formalize formal electriciti electr electrical electr hopeful hope goodness good
revival reviv allowance allow inference infer airliner airlin adjustable adjust defensible defens
irritant irrit replacement replac adjustment adjust dependent depend adoption adopt communism commun
activate activ effective effect bowdlerize bowdler probate probat rate rate cease ceas
controll control roll roll possibly possibl archaeology archaeolog as as"""


def test_stems():
    words = STEMS.split()
    assert [stem(word) for word in words[::2]] == words[1::2]


def test_lengths_are_rounded_down_to_four_bits():
    assert [rounded_length(n) for n in (0, 23, 24, 39, 40, 41, 55, 56, 59, 1000)] == [
        *(0, 23, 24, 39, 40, 40, 54, 56, 56, 984),
    ]


def test_ties_are_in_the_order_of_the_ids_and_words_count_as_often_as_asked():
    index = Index({"b": "red shirt", "a": "red shirt", "c": "red table", "d": ""})
    assert [name for name, _ in index.search("red", 2)] == ["a", "b"]
    once, twice = index.search("shirt", 1)[0][1], index.search("shirt shirts", 1)[0][1]
    assert twice == pytest.approx(2 * once)
    assert index.search("the of", 5) == index.search("", 5) == index.search("unheard", 5) == []


def test_an_index_of_nothing_finds_nothing():
    assert Index({}).search("red", 5) == []
    assert Index({"a": ""}).search("red", 5) == []


@pytest.mark.parametrize(
    ("piece", "count"),
    [("_", 0), ("a_", 785), ("a.", 785), ("1,", 785), ("\u0301", 0), ("★\u200d", 785), ("a'", 785), ("'", 0)],
)
def test_long_runs_are_read_in_one_go(piece, count):
    """A reading that tries again from each character would not come to an end here."""
    assert len(terms(piece * 100_000)) == count


def test_pieces_of_a_long_word_are_words():
    assert [len(term) for term in terms("x" * 600)] == [255, 255, 90]
