"""The proof log: what its four files say, that they are whole or absent, and that damage is named."""

from __future__ import annotations

import dataclasses
import pathlib
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest

from envs.base import Atom, Variable, VerifierRecord
from tests.audit.logged import ODD_ACTION, inputs_of, log_run, make_config, make_setting
from vict_jax import proofs
from vict_jax.audit.source import credit
from vict_jax.credit.diagnostics import Cause
from vict_jax.metrics import RunError
from vict_jax.types import Relation, Status

FILES = ("rollouts/{}.npz", "rollouts/{}.parquet", "atoms/{}.parquet", "proofs/{}.parquet")


def path_of(workdir, kind, update):
    return workdir / kind.format(proofs.file_stem(update))


@pytest.fixture
def copied(run, tmp_path):
    shutil.copytree(run[0], tmp_path / "run")
    return tmp_path / "run"


def test_tables_are_plain_parquet_with_the_whole_schema(run):
    """Any reader sees the fields of the proof log; nothing of this package is needed."""
    table = pq.read_table(run[0] / "proofs" / "update_000001.parquet")
    needed = "update group rollout step action_id action atom_id relation variable before after core_id"
    needed += " marginal weight correction conformance"
    assert set(needed.split()) <= set(table.column_names)
    assert table.num_rows > 0
    assert not any(column.null_count for column in table.columns)
    for folder, schema in (("rollouts", proofs.STEP_SCHEMA), ("atoms", proofs.ATOM_SCHEMA)):
        assert pq.read_schema(run[0] / folder / "update_000001.parquet").equals(schema)


def test_one_row_a_proof_with_its_evidence(run):
    workdir, logged = run
    seen = set()
    for update, (groups, output) in {u: (x.groups, x.output) for u, x in logged.items()}.items():
        rows = pq.read_table(workdir / "proofs" / f"{proofs.file_stem(update)}.parquet").to_pylist()
        expected = (output.proofs.contribution != 0) & (output.correction != 0)[..., None, None]
        assert len(rows) == expected.sum()
        for row in rows:
            g, n, t = row["group"], row["rollout"], row["step"]
            rollout = groups[g][n]
            j = [atom.id for atom in rollout.record.atoms].index(row["atom_id"])
            r = Relation[row["relation"].upper()]
            assert row["action"] == rollout.actions[t]
            assert row["contribution"] == output.proofs.contribution[g, n, t, j, r]
            assert row["correction"] == output.correction[g, n, t] != 0
            assert row["atom_id"] in row["core_id"].split("+")
            if r in (Relation.WRITE, Relation.REVEAL):
                names = row["variable"].split("; ")
                assert set(names) <= set(rollout.record.atoms[j].variables)
                assert row["before"] != row["after"]
            seen.add(r)
    assert seen == {Relation.WRITE, Relation.COMMIT}


def test_shares_of_a_step_add_up_to_its_correction(run):
    workdir, logged = run
    table = pq.read_table(workdir / "proofs" / "update_000001.parquet").to_pydict()
    output = logged[1].output
    sums: dict[tuple[int, ...], float] = {}
    for key, share in zip(
        zip(table["group"], table["rollout"], table["step"], strict=True), table["contribution"], strict=True
    ):
        sums[key] = sums.get(key, 0.0) + share
    assert set(sums) == set(map(tuple, np.argwhere(output.correction != 0).tolist()))
    for key, total in sums.items():
        clipped = np.clip(total, -output.clip, output.clip)
        assert output.correction[key] == pytest.approx(output.lambda_ * clipped, rel=1e-5)


def test_one_row_a_step_also_where_the_environment_saw_nothing(run):
    workdir, logged = run
    table = pq.read_table(workdir / "rollouts" / "update_000001.parquet").to_pydict()
    rollouts = [rollout for group in logged[1].groups for rollout in group]
    assert table["action"] == [action for rollout in rollouts for action in rollout.actions]
    assert table["task_id"] == [rollout.task.id for rollout in rollouts for _ in rollout.actions]
    unseen = table["taken"].index(False)
    assert table["action"][unseen] == ODD_ACTION
    assert table["taken"].count(False) == 1
    assert not table["valid"][unseen]
    assert table["correction"][unseen] == 0


def test_one_row_an_atom_of_every_rollout_that_was_not_lost(run):
    workdir, logged = run
    table = pq.read_table(workdir / "atoms" / "update_000001.parquet").to_pylist()
    output, groups = logged[1].output, logged[1].groups
    expected = [
        (g, n, j)
        for g, group in enumerate(groups)
        for n, rollout in enumerate(group)
        if not rollout.lost
        for j in range(len(rollout.record.atoms))
    ]
    assert len(table) == len(expected)
    for row, (g, n, j) in zip(table, expected, strict=True):
        record = groups[g][n].record
        assert (row["group"], row["rollout"], row["atom_id"]) == (g, n, record.atoms[j].id)
        assert row["status"] == Status(record.status[-1, j]).name.lower()
        assert row["core"] == output.proofs.core[g, n, j]
        assert row["marginal"] == output.proofs.marginal[g, n, j]
        cause = Cause(output.proofs.atom_cause[g, n, j])
        assert row["cause"] == ("" if cause is Cause.NONE else cause.name.lower())
        assert row["unusable"] == ""
    assert {"", "zero_scale"} <= {row["rollout_cause"] for row in table}


def test_masked_atoms_say_so(run, config, tmp_path):
    groups = run[1][1].groups
    family = groups[0][0].record.atoms[0].family
    inputs = inputs_of(groups, [family])
    output, _ = credit(make_setting(config), inputs)
    for folder in ("rollouts", "atoms", "proofs"):
        (tmp_path / folder).mkdir()
    proofs.write_update(tmp_path, 1, groups, inputs, output, masked_families=[family])
    table = proofs.read_table(tmp_path, "atoms", 1)
    assert set(table["unusable"]) == {"", "masked family"}
    for name, why, marginal in zip(table["atom_family"], table["unusable"], table["marginal"], strict=True):
        assert why == ("masked family" if name == family else "")
        assert why == "" or marginal == 0


def test_methods_without_proofs_leave_nulls_and_no_rows(tmp_path):
    log_run(tmp_path / "run", make_config("grpo"), updates=1)
    assert pq.read_table(tmp_path / "run" / "proofs" / "update_000001.parquet").num_rows == 0
    atoms = pq.read_table(tmp_path / "run" / "atoms" / "update_000001.parquet")
    for name in ("core", "marginal", "marginal_norm", "cause", "rollout_cause"):
        assert atoms[name].null_count == atoms.num_rows > 0
    assert atoms["status"].null_count == 0


@pytest.mark.parametrize("kind", FILES)
def test_an_update_counts_only_with_all_its_files(copied, kind):
    assert proofs.logged_updates(copied) == [1, 2]
    path_of(copied, kind, 1).unlink()
    assert proofs.logged_updates(copied) == [2]


def test_resuming_drops_every_file_after_the_checkpoint(copied):
    proofs.drop_after(copied, 1)
    left = sorted(str(path.relative_to(copied)) for path in copied.rglob("update_*"))
    assert left == sorted(kind.format("update_000001") for kind in FILES)


@pytest.mark.parametrize("failing", range(4))
def test_a_crash_leaves_whole_files_or_none(run, tmp_path, monkeypatch, failing):
    """Whichever of the four writes is cut off, the update is not there, and writing it again completes it."""
    written = run[1][1]
    for folder in ("rollouts", "atoms", "proofs"):
        (tmp_path / folder).mkdir()
    calls, original = 0, pathlib.Path.replace

    def replace(self, target):
        nonlocal calls
        calls += 1
        if calls == failing + 1:
            raise KeyboardInterrupt
        return original(self, target)

    def write():
        return proofs.write_update(
            tmp_path, 1, written.groups, written.inputs, written.output, masked_families=()
        )

    with monkeypatch.context() as patch:
        patch.setattr(pathlib.Path, "replace", replace)
        with pytest.raises(KeyboardInterrupt):
            write()
    assert proofs.logged_updates(tmp_path) == []
    assert len(list(tmp_path.rglob("update_*"))) == failing
    assert not list(tmp_path.rglob("*partial"))
    write()
    assert proofs.logged_updates(tmp_path) == [1]
    for kind in FILES:
        assert path_of(tmp_path, kind, 1).read_bytes() == path_of(run[0], kind, 1).read_bytes()


def test_read_inputs_gives_back_what_was_written(run):
    again = proofs.read_inputs(run[0], 2)
    for field in dataclasses.fields(again):
        if field.name != "params":
            np.testing.assert_array_equal(getattr(again, field.name), getattr(run[1][2].inputs, field.name))
    assert set(again.params) == {"required"}


def test_missing_and_damaged_files_are_named(copied):
    with pytest.raises(RunError, match=r"no logged update at .*7.npz; updates 1 to 2 \(2 of them\) are"):
        proofs.read_inputs(copied, 7)
    with pytest.raises(RunError, match=r"no logged update at .*atoms.*7.parquet"):
        proofs.read_table(copied, "atoms", 7)
    for kind in FILES:
        path = path_of(copied, kind, 1)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        read = proofs.read_inputs if path.suffix == ".npz" else proofs.read_table
        folder = () if path.suffix == ".npz" else (path.parent.name,)
        with pytest.raises(RunError, match=f"{path.name} is damaged"):
            read(copied, *folder, 1)


def test_a_log_of_another_version_is_refused(copied):
    path = path_of(copied, FILES[0], 1)
    with np.load(path) as arrays:
        kept = {name: arrays[name] for name in arrays if name != "usable"}
    np.savez(path, **kept)
    with pytest.raises(RunError, match=r"another version of the log: it differs in \['usable'\]"):
        proofs.read_inputs(copied, 1)


def test_a_reveal_names_only_what_was_never_seen_before():
    """A variable that was seen, lost and seen again, or has another value now, is not revealed."""
    names = ("new", "again", "other", "state")
    atom = Atom("found", "find", names)
    variables = tuple(Variable(name, observation=name != "state") for name in names)
    rows = (("", "a", "b", "x"), ("", "", "b", "x"), ("n", "a", "c", "y"))
    record = VerifierRecord(
        atoms=(atom,),
        variables=variables,
        status=np.array([[0], [0], [1]], np.int8),
        evidence=rows,
        commits=np.zeros(2, bool),
        scope=np.zeros((2, 1), bool),
        params={},
        eta=0.0,
        score=1.0,
    )
    assert proofs.evidence_source(record, 1, 0, Relation.REVEAL) == ("new", "", "n")
    assert proofs.evidence_source(record, 1, 0, Relation.WRITE) == ("state", "x", "y")
    assert proofs.evidence_source(record, 1, 0, Relation.COMMIT) == ("commit", "UNKNOWN", "SATISFIED")
    assert proofs.evidence_source(record, 1, 0, Relation.VIOLATE) == ("found", "UNKNOWN", "SATISFIED")
