"""The replay notices one changed bit in any logged figure, and rows that are missing or invented."""

from __future__ import annotations

import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from vict_jax import proofs
from vict_jax.audit.replay import compare, replay


@pytest.fixture
def copied(run, tmp_path):
    shutil.copytree(run[0], tmp_path / "run")
    return tmp_path / "run"


def rewrite(workdir, folder, change):
    """Replace the table of update 1 by `change(table)`."""
    path = workdir / folder / "update_000001.parquet"
    pq.write_table(change(pq.read_table(path)), path)


def with_column(table, name, values):
    index = table.schema.get_field_index(name)
    return table.set_column(
        index, table.schema.field(index), pa.array(values, table.schema.field(index).type)
    )


def next_float(table, name):
    values = table[name].to_numpy().copy()
    values[0] = np.nextafter(values[0], np.float32(9))
    return with_column(table, name, values)


def test_the_log_replays(run):
    workdir, logged = run
    outputs = {np.asarray(update.inputs.score).tobytes(): update.output for update in logged.values()}
    result = replay(workdir, [1, 2], lambda inputs: outputs[inputs.score.tobytes()])
    assert result.differing == ()
    assert (result.updates, result.steps) == (
        2,
        sum(len(r.actions) for update in logged.values() for group in update.groups for r in group),
    )
    assert result.proofs > 0
    assert "0 differences" in result.text(5)


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("rollouts", "base"),
        ("rollouts", "correction"),
        ("rollouts", "advantage"),
        ("atoms", "marginal"),
        ("atoms", "marginal_norm"),
        ("proofs", "marginal"),
        ("proofs", "marginal_norm"),
        ("proofs", "weight"),
        ("proofs", "contribution"),
        ("proofs", "correction"),
    ],
)
def test_one_bit_is_noticed(run, copied, folder, name):
    rewrite(copied, folder, lambda table: next_float(table, name))
    (text,) = compare(copied, 1, run[1][1].output).differing
    assert text.startswith("update 1, group 0, rollout ")
    assert f": {name} logged " in text


@pytest.mark.parametrize(
    ("name", "value"), [("core", None), ("cause", "budget"), ("rollout_cause", "budget")]
)
def test_other_words_about_atoms_are_noticed(run, copied, name, value):
    def change(table):
        values = table[name].to_pylist()
        values[0] = not values[0] if name == "core" else value
        return with_column(table, name, values)

    rewrite(copied, "atoms", change)
    (text,) = compare(copied, 1, run[1][1].output).differing
    assert f": {name} logged " in text


@pytest.mark.parametrize("change", ["missing", "relation", "atom_id"])
def test_missing_and_invented_proofs_are_noticed(run, copied, change):
    def edit(table):
        if change == "missing":
            return table.slice(1)
        values = table[change].to_pylist()
        values[0] = "reveal" if change == "relation" else "invented"
        return with_column(table, change, values)

    rewrite(copied, "proofs", edit)
    (text,) = compare(copied, 1, run[1][1].output).differing
    assert "update 1, proofs: " in text
    assert proofs.logged_updates(copied) == [1, 2]
