"""Question files in every format, their splits, corpora, and the messages for what cannot be read."""

from __future__ import annotations

import json
import zlib

import pyarrow
import pyarrow.parquet
import pytest

from envs.search_qa import data
from envs.search_qa.data import Question

ROWS = {
    "nq_open.jsonl": ({"question": "q", "answer": ["a", "b"]}, "nq", ("a", "b"), ()),
    "triviaqa_dev.jsonl": (
        {"Question": "q", "Answer": {"Value": "a", "Aliases": ["a", "b"]}, "QuestionId": "tc_1"},
        "triviaqa",
        ("a", "b"),
        (),
    ),
    "trivia_rc.jsonl": (
        {"question": "q", "answer": {"value": "a", "aliases": ["b"]}, "question_id": "tc_1"},
        "triviaqa",
        ("a", "b"),
        (),
    ),
    "popqa.jsonl": ({"id": 7, "question": "q", "possible_answers": '["a", "b"]'}, "popqa", ("a", "b"), ()),
    "hotpot_dev_distractor_v1.json": (
        {"_id": "x", "question": "q", "answer": "a", "type": "bridge", "context": [["S", ["s"]]]}
        | {"supporting_facts": [["S", 0], ["S", 1], ["T", 0]]},
        "hotpotqa",
        ("a",),
        ("S", "T"),
    ),
    "2wiki.json": (
        {"_id": "x", "question": "q", "answer": "a", "supporting_facts": [["S", 0], ["T", 0]]},
        "2wikimultihopqa",
        ("a",),
        ("S", "T"),
    ),
    "musique_ans_v1.0_dev.jsonl": (
        {"id": "2hop", "question": "q", "answer": "a", "answer_aliases": ["b"]}
        | {"paragraphs": [{"title": "S", "is_supporting": True}, {"title": "N", "is_supporting": False}]},
        "musique",
        ("a", "b"),
        ("S",),
    ),
    "bamboogle.json": ({"Question": "q", "Answer": "a"}, "bamboogle", ("a",), ()),
    "hotpotqa.jsonl": (
        {"id": "train_0", "question": "q", "golden_answers": ["a"]}
        | {"metadata": {"type": "bridge", "supporting_facts": {"title": ["S", "T"], "sent_id": [0, 1]}}},
        "hotpotqa",
        ("a",),
        ("S", "T"),
    ),
    "mixed.jsonl": (
        {"data_source": "nq", "prompt": [{"role": "user", "content": "Answer. Question: q\n"}]}
        | {"reward_model": {"style": "rule", "ground_truth": {"target": ["a", "b"]}}, "id": "test_0"},
        "nq",
        ("a", "b"),
        (),
    ),
}


def write(path, *rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".json":
        path.write_text(json.dumps(rows))
    elif path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
    else:
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


@pytest.mark.parametrize("name", ROWS)
def test_each_format_is_recognised(tmp_path, name):
    row, dataset, answers, facts = ROWS[name]
    (question,) = data.read_questions(write(tmp_path / name, row))
    assert (question.text, question.dataset) == ("q", dataset)
    assert (question.answers, question.facts) == (answers, facts)
    assert Question.from_json(question.to_json()) == question


@pytest.mark.parametrize("name", ["mixed.jsonl", "hotpotqa.jsonl"])
def test_parquet_gives_the_same(tmp_path, name):
    row = ROWS[name][0]
    plain = data.read_questions(write(tmp_path / name, row))
    assert data.read_questions(write((tmp_path / name).with_suffix(".parquet"), row)) == plain


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "nq.jsonl",
            '{"question": "q"}',
            r"nq.jsonl, row 1: .* \['question'\] has no known format",
        ),
        ("nq.jsonl", '{"question": "q", "answer": ["a"]}\n{"quest', "nq.jsonl, line 2: not JSON"),
        ("nq.jsonl", "[1]", "row 1: expected an object, got"),
        (
            "nq.jsonl",
            '{"question": "q", "golden_answers": []}',
            r"the golden answers \(\), expected texts",
        ),
        ("nq.jsonl", '{"question": " ", "golden_answers": ["a"]}', "has no text"),
        ("quiz.jsonl", '{"question": "q", "golden_answers": ["a"]}', "neither a row nor the name says which"),
        ("popqa.jsonl", '{"question": "q", "possible_answers": "[a"}', "popqa.jsonl, row 1"),
        ("nq.parquet", "PK", "nq.parquet is not a Parquet file"),
        (
            "2wiki.jsonl",
            json.dumps({"question": "q", "golden_answers": ["a"], "supporting_titles": list("abcdefg")}),
            "has 7 supporting titles, above the most, 6",
        ),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        data.read_questions(tmp_path / name)


def test_flashrag_layout_gives_the_splits(tmp_path):
    rows = [{"id": f"x_{i}", "question": f"q {i}", "golden_answers": ["a"]} for i in range(6)]
    write(tmp_path / "nq" / "train.jsonl", *rows[:4])
    write(tmp_path / "nq" / "test.jsonl", *rows[4:])
    write(tmp_path / "bamboogle" / "test.jsonl", rows[0])
    write(tmp_path / "corpus.jsonl", {"id": "0", "contents": "T\ntext"})
    splits = data.load_questions(str(tmp_path))
    assert list(splits["train"]) == [f"nq/train/x_{i}" for i in range(4)]
    assert set(splits["valid"]) == {"nq/test/x_4", "nq/test/x_5", "bamboogle/test/x_0"}


def test_a_question_in_two_files_is_in_one_split_with_its_facts(tmp_path):
    plain = [{"id": str(i), "question": f"Is it {i}?", "golden_answers": ["a"]} for i in range(100)]
    write(tmp_path / "hotpotqa_all.jsonl", *plain)
    write(tmp_path / "hotpotqa_few.jsonl", *(row | {"supporting_titles": ["S"]} for row in plain[:10]))
    splits = data.load_questions(str(tmp_path))
    texts = {split: {q.text for q in questions.values()} for split, questions in splits.items()}
    assert len(texts["train"]) + len(texts["valid"]) == 100
    assert not texts["train"] & texts["valid"]
    assert all(len(texts[split]) > 9 for split in data.SPLITS)
    found = [q for questions in splits.values() for q in questions.values() if q.facts]
    assert {q.text for q in found} == {row["question"] for row in plain[:10]}
    assert all(zlib.crc32(text.lower().rstrip("?").encode()) % 5 == 0 for text in texts["valid"])


def test_folders_that_cannot_be_used(tmp_path):
    with pytest.raises(FileNotFoundError, match="is not a folder"):
        data.question_files(tmp_path / "none")
    with pytest.raises(FileNotFoundError, match="has no question file"):
        data.question_files(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"has no corpus\*.jsonl"):
        data.corpus_files(tmp_path)
    write(
        tmp_path / "nq.jsonl",
        *[{"id": "1", "question": q, "golden_answers": ["a"]} for q in ("x", "yy", "z")],
    )
    with pytest.raises(ValueError, match="two questions have the id '1'"):
        data.load_questions(str(tmp_path))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"id": "0"}, "a passage needs id and contents"),
        ({"id": "0", "contents": "no text"}, "contents must be a title"),
        ({"id": "0", "contents": '""\ntext'}, "contents must be a title"),
    ],
)
def test_passages_that_cannot_be_used(tmp_path, row, message):
    with pytest.raises(ValueError, match=message):
        list(data.read_passages(write(tmp_path / "corpus.jsonl", row)))


def test_real_data(shared_dir):
    splits = data.load_questions(str(shared_dir / "data" / "searchqa"))
    counts = {}
    for questions in splits.values():
        for question in questions.values():
            counts[question.dataset] = counts.get(question.dataset, 0) + 1
    # 500 of the NQ questions stand in both files, and 58 of HotpotQA's stand in two or three.
    assert counts == {
        "nq": 3610,
        "triviaqa": 400,
        "popqa": 500,
        "hotpotqa": 1771,
        "2wikimultihopqa": 220,
        "musique": 220,
        "bamboogle": 125,
    }
    assert sum(bool(q.facts) for questions in splits.values() for q in questions.values()) == 100
