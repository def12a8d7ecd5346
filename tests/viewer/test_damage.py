"""Logs that are damaged or half written: what is readable is shown, the rest is named with the reason."""

from __future__ import annotations

import json
import random
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from vict_jax.viewer.viewing import Viewing

FILES = {
    "arrays": "rollouts/update_000002.npz",
    "steps": "rollouts/update_000002.parquet",
    "atoms": "atoms/update_000002.parquet",
    "proofs": "proofs/update_000002.parquet",
}


@pytest.fixture
def copied(logged, tmp_path):
    """A copy that may be damaged. Update 2 is replaced by a second update 1, whose texts are short."""
    workdir = tmp_path / "run"
    shutil.copytree(logged[0], workdir)
    for path in FILES.values():
        shutil.copy(workdir / path.replace("000002", "000001"), workdir / path)
    return workdir


def replaced(table, name, values):
    """The table with other values in a column."""
    field = table.schema.field(name)
    return table.set_column(table.schema.get_field_index(name), field, pa.array(values, field.type))


def remove(path):
    path.unlink()


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path):
    path.write_bytes(b"")


def overwrite(path):
    path.write_bytes(b"<html>" * 200)


def replace_by_folder(path):
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("damage", [remove, cut, empty, overwrite, replace_by_folder])
@pytest.mark.parametrize("kind", list(FILES))
def test_one_file_less(copied, kind, damage):
    whole = Viewing(copied).rollout(2, 0, 1)
    damage(copied / FILES[kind])
    viewing = Viewing(copied)
    found = viewing.overview()
    assert {problem["file"] for problem in found["problems"]} == {FILES[kind]}
    assert all(problem["update"] == 2 and problem["why"].startswith("is ") for problem in found["problems"])
    assert len(found["rows"]["update"]) == 24
    shown = viewing.rollout(2, 0, 1)
    assert [problem["file"] for problem in shown["problems"]] == [FILES[kind]]
    unchanged = {
        "arrays": ("steps", "atoms", "edges", "sentences", "score"),
        "steps": ("atoms", "edges", "core", "abstains", "task", "score"),
        "atoms": ("steps", "edges", "score"),
        "proofs": ("steps", "atoms", "status", "score"),
    }[kind]
    for name in unchanged:
        assert shown[name] == whole[name]
    assert viewing.rollout(1, 0, 1)["problems"] == []
    assert len(viewing.group(2, 0)["rollouts"]) == 6
    missed = viewing.search("go to", 2)
    assert (missed["found"] == []) == (kind == "steps") == bool(missed["problems"])


def test_without_arrays_and_steps_the_rest_still_says_where_it_is(copied):
    for kind in ("arrays", "steps", "proofs"):
        (copied / FILES[kind]).unlink()
    shown = Viewing(copied).rollout(2, 0, 1)
    assert (shown["steps"], shown["status"], shown["score"]) == ([], None, None)
    assert shown["outcome"] == "unknown"
    assert len(shown["atoms"]) > 2


@pytest.mark.parametrize("kind", ["steps", "atoms", "proofs"])
def test_a_table_of_another_version(copied, kind):
    path = copied / FILES[kind]
    table = pq.read_table(path)
    pq.write_table(table.drop_columns(["group"]), path)
    (problem,) = Viewing(copied).overview()["problems"]
    assert problem["why"] == "is of another version of the log: it has no column ['group']"


@pytest.mark.parametrize("value", [-1, 2**31 - 1, None])
def test_a_place_that_no_log_has(copied, value):
    path = copied / FILES["steps"]
    table = pq.read_table(path)
    pq.write_table(replaced(table, "group", [value, *table["group"].to_pylist()[1:]]), path)
    (problem,) = Viewing(copied).overview()["problems"]
    assert problem["why"] == "is damaged: a group that is no number from 0 to 999999"


def test_numbers_that_are_not_finite_are_not_sent(copied):
    path = copied / FILES["steps"]
    table = pq.read_table(path)
    pq.write_table(replaced(table, "base", [float("nan")] * len(table)), path)
    viewing = Viewing(copied)
    assert json.dumps(viewing.overview(), allow_nan=False)
    assert viewing.rollout(2, 0, 0)["base"] is None


def test_arrays_of_another_shape_have_no_statuses(copied):
    path = copied / FILES["arrays"]
    arrays = dict(np.load(path))
    arrays["status"] = arrays["status"][:, :, :2]
    np.savez(path, **arrays)
    shown = Viewing(copied).rollout(2, 0, 1)
    assert shown["status"] is None
    assert shown["steps"]


@pytest.mark.parametrize(
    "text", [None, "", "{", "[]", '{"credit": {}}', '{"credit": {"method": "a", "eps_q": "b"}}']
)
def test_a_config_that_is_not_readable(copied, text):
    path = copied / "config.json"
    path.unlink()
    if text is not None:
        path.write_text(text)
    viewing = Viewing(copied)
    found = viewing.overview()
    assert [problem["file"] for problem in found["problems"]] == ["config.json"]
    assert found["method"] is None
    assert viewing.rollout(1, 0, 0)["side"] is None


@pytest.mark.parametrize("kind", list(FILES))
def test_flipped_bytes_never_raise(copied, kind):
    """Whatever a byte does to a file, the answer is a record and a list of what is not readable."""
    path = copied / FILES[kind]
    whole, rng = path.read_bytes(), random.Random(kind)
    for _ in range(12):
        damaged = bytearray(whole)
        for _ in range(rng.choice((1, 3))):
            damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        viewing = Viewing(copied)
        json.dumps(viewing.overview(), allow_nan=False)
        json.dumps([viewing.rollout(2, 0, 1), viewing.group(2, 1)], allow_nan=False)
