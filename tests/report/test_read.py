"""A damaged or half-written directory is read as far as it can be, and says what it cannot."""

from __future__ import annotations

import json

import pytest

from tests.report.synthetic import UPDATES, rows, write, write_run
from vict_jax.metrics import RunError
from vict_jax.report.read import flat, read


@pytest.fixture
def workdir(tmp_path):
    return write_run(tmp_path / "run")


def test_a_whole_run_is_read_without_a_problem(workdir):
    record = read(workdir)
    assert (list(record.problems), list(record.notes)) == ([], [])
    assert record.updates == UPDATES
    assert [row["update"] for row in record.of_kind("eval")] == [0, 6, 12, 18, 24]
    assert list(record.checkpoints) == [18, 24]
    assert record.setting("train", "updates") == UPDATES
    assert record.of_kind("nothing") == ()


def test_no_run_is_an_error(tmp_path):
    with pytest.raises(RunError, match="is no directory"):
        read(tmp_path / "absent")
    with pytest.raises(RunError, match="holds no run"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "config.json cannot be read"),
        ('{"seed": 0, "env"', "config.json cannot be read"),
        ("[1, 2]", "holds a list, not an object"),
        ("\x00" * 100, "config.json cannot be read"),
        ("[" * 100_000, "nested too deeply"),
    ],
    ids=("empty", "cut", "list", "zeros", "deep"),
)
def test_a_damaged_config_is_said_and_the_rest_is_there(workdir, text, said):
    (workdir / "config.json").write_text(text)
    record = read(workdir)
    assert record.config == {}
    assert len(record.problems) == 1
    assert said in record.problems[0]
    assert record.updates == UPDATES


def test_missing_files_are_named(workdir):
    for name in ("config.json", "run.json"):
        (workdir / name).unlink()
    assert [text.split(":")[0] for text in read(workdir).problems] == [
        "config.json is missing",
        "run.json is missing",
    ]
    (workdir / "config.json").write_text("{}")
    (workdir / "metrics.jsonl").unlink()
    assert any("metrics.jsonl cannot be read" in text for text in read(workdir).problems)


def test_damaged_lines_are_counted_and_left_out(workdir):
    path = workdir / "metrics.jsonl"
    lines = path.read_bytes().split(b"\n")
    lines[4], lines[6], lines[8] = b"\x00" * 40, b"[1]", b'{"kind": "train", "upd'
    path.write_bytes(b"\n".join(lines))
    record = read(workdir)
    assert record.problems == ["metrics.jsonl: lines 5, 7, 9 are damaged and left out."]
    assert len(record.of_kind("train")) == UPDATES - 2
    assert [row["update"] for row in record.of_kind("eval")] == [0, 12, 18, 24]


def test_a_last_line_that_is_cut_off_is_a_note(workdir):
    path = workdir / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-30])
    record = read(workdir)
    assert (list(record.problems), record.notes) == ([], ["The last line of metrics.jsonl is cut off."])
    assert [row["update"] for row in record.of_kind("eval")] == [0, 6, 12, 18]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"success": "much"}, "is left out: train row, success is 'much'"),
        ({"success": None}, "is left out: train row, success is 'None'"),
        ({"update": -1}, "is left out: train row, update is '-1'"),
        ({"update": True}, "is left out: train row, update is 'True'"),
        ({"entropy": [1]}, "train row, entropy is '[1]': left out"),
        ({"entropy": 10**400}, "left out"),
    ],
)
def test_values_of_the_wrong_kind_are_named(tmp_path, change, said):
    some = rows()
    some[2] = some[2] | change
    record = read(write(tmp_path / "run", some, {"seed": 0}))
    assert len(record.problems) == 1
    assert record.problems[0].startswith("metrics.jsonl:3")
    assert said in record.problems[0]
    assert len(record.of_kind("train")) == UPDATES - ("left out: train" in record.problems[0])


def test_not_a_number_is_not_a_number(tmp_path):
    some = rows()
    some[2] = some[2] | {"entropy": float("nan"), "clip": float("inf")}
    record = read(write(tmp_path / "run", some, {"seed": 0}))
    assert "clip is 'inf', entropy is 'nan'" in record.problems[0]
    assert "clip" not in record.of_kind("train")[0]


def test_the_proof_log_is_looked_through(workdir):
    for folder in ("rollouts", "atoms", "proofs"):
        (workdir / folder).mkdir()
    for update in (1, 2, 3):
        for folder in ("rollouts", "atoms", "proofs"):
            (workdir / folder / f"update_{update:06d}.parquet").write_bytes(b"PAR1....PAR1")
        (workdir / "rollouts" / f"update_{update:06d}.npz").write_bytes(b"PK\x05\x06" + 18 * b"\x00")
    (workdir / "rollouts" / "update_old.parquet").write_bytes(b"")
    assert list(read(workdir).logged) == [1, 2, 3]
    (workdir / "proofs" / "update_000003.parquet").unlink()  # not written yet
    record = read(workdir)
    assert list(record.logged) == [1, 2]
    assert (record.problems, record.notes) == ([], ["The proof log of update 3 is not complete."])
    (workdir / "atoms" / "update_000001.parquet").write_bytes(b"PAR1..")
    record = read(workdir)
    assert list(record.logged) == [2]
    assert record.problems == [
        "Damaged files of the proof log: atoms/update_000001.parquet.",
        "The proof log of updates 1, 3 is not complete.",
    ]


def test_evaluations_made_afterwards(workdir):
    folder = workdir / "evaluations"
    folder.mkdir()
    good = {"split": "valid", "update": 6, "temperature": 0.4, "success": 0.5, "score": 0.5, "tasks": 8}
    (folder / "good.json").write_text(json.dumps(good | {"per_type": {"heat": [4, 8]}}))
    (folder / "bad.json").write_text(json.dumps(good | {"per_type": {"heat": [4]}}))
    (folder / "cut.json").write_text(json.dumps(good)[:20])
    record = read(workdir)
    assert list(record.evaluations) == ["good.json"]
    assert [text.split(" ")[0] for text in record.problems] == ["evaluations/bad.json", "cut.json"]


def test_flat():
    assert flat({"a": {"b": 1, "c": {"d": []}}, "e": {}}) == {"a.b": 1, "a.c.d": [], "e": {}}
