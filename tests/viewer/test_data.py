"""The index and the records against the Parquet files, read here by other code."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.audit.logged import SIZE
from tests.viewer.planted import HOSTILE_UPDATE
from tests.viewer.test_damage import replaced
from vict_jax.viewer import index, log, record
from vict_jax.viewer.viewing import UnknownPlaceError, Viewing


def parquet(workdir, folder, update):
    return pq.read_table(workdir / folder / f"update_{update:06d}.parquet").to_pylist()


def of_rollout(rows, g, n):
    return [row for row in rows if (row["group"], row["rollout"]) == (g, n)]


def test_the_index_has_every_rollout_with_its_figures(logged):
    workdir, updates = logged
    found = index.to_json(index.refresh(workdir, {}))
    assert found["updates"] == list(updates)
    assert found["problems"] == []
    rows, texts = found["rows"], found["texts"]
    for i, (update, g, n) in enumerate((u, g, n) for u in updates for g in range(2) for n in range(SIZE)):
        steps = of_rollout(parquet(workdir, "rollouts", update), g, n)
        atoms = of_rollout(parquet(workdir, "atoms", update), g, n)
        corrections = [step["correction"] for step in steps]
        assert (rows["update"][i], rows["group"][i], rows["rollout"][i]) == (update, g, n)
        assert rows["steps"][i] == len(steps) > 0
        assert rows["raised"][i] == sum(c > 0 for c in corrections)
        assert rows["lowered"][i] == sum(c < 0 for c in corrections)
        assert rows["best"][i] == max(0, *corrections)
        assert rows["worst"][i] == min(0, *corrections)
        for name in ("score", "base"):
            assert rows[name][i] == steps[0][name]
        for name, column in (("task", "task_id"), ("type", "task_type"), ("end", "end")):
            assert texts[rows[name][i]] == steps[0][column]
        causes = {atom["cause"] for atom in atoms} - {""}
        assert {texts[code] for code in rows["atom_causes"][i]} == causes
        assert (None if rows["cause"][i] is None else texts[rows["cause"][i]]) == (
            atoms[0]["rollout_cause"] if atoms else None
        )


def test_only_changed_updates_are_read_again(logged, tmp_path):
    workdir = tmp_path / "run"
    shutil.copytree(logged[0], workdir)
    first = index.refresh(workdir, {})
    again = index.refresh(workdir, first)
    assert all(again[update] is first[update] for update in first)
    for folder in ("rollouts", "atoms", "proofs"):
        for path in (workdir / folder).glob("update_000001.*"):
            shutil.copy(path, path.with_name(path.name.replace("000001", "000003")))
    (workdir / "atoms" / "update_000002.parquet").unlink()
    third = index.refresh(workdir, again)
    assert list(third) == [1, 2, 3]
    assert third[1] is first[1]
    assert third[2] is not first[2]
    assert [problem.why for problem in third[2].problems] == ["is missing"]


def test_a_record_is_what_the_files_say(logged, viewing):
    workdir, updates = logged
    for update, content in updates.items():
        arrays = np.load(workdir / "rollouts" / f"update_{update:06d}.npz")
        tables = {folder: parquet(workdir, folder, update) for folder in ("rollouts", "atoms", "proofs")}
        for g in range(2):
            for n in range(SIZE):
                found = viewing.rollout(update, g, n)
                rollout = content.groups[g][n]
                steps, atoms, edges = (of_rollout(tables[folder], g, n) for folder in tables)
                assert found["steps"] == [{key: row[key] for key in found["steps"][0]} for row in steps]
                assert [step["action"] for step in found["steps"]] == list(rollout.actions)
                assert found["outcome"] == (
                    "lost" if rollout.lost else "success" if rollout.score else "failed"
                )
                assert len(found["edges"]) == len(edges)
                for shown, row in zip(found["edges"], edges, strict=True):
                    assert shown.items() <= row.items()
                assert [atom["atom_id"] for atom in found["atoms"]] == [atom["atom_id"] for atom in atoms]
                assert found["core"] == [atom["atom_id"] for atom in atoms if atom["core"]]
                assert found["status"] == arrays["status"][g, n, : len(steps) + 1, : len(atoms)].tolist()
                assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_every_correction_has_a_sentence_and_a_good_step_of_a_failure_says_why(logged, viewing):
    explained = 0
    for update, content in logged[1].items():
        correction = content.output.correction
        for g in range(2):
            for n in range(SIZE):
                found = viewing.rollout(update, g, n)
                texts = {one["step"]: one["text"] for one in found["sentences"]}
                assert set(texts) == set(np.flatnonzero(correction[g, n]).tolist())
                for t, text in texts.items():
                    edges = [edge for edge in found["edges"] if edge["step"] == t]
                    assert text.startswith(f"Step {t} “{content.groups[g][n].actions[t][:79]}")
                    assert any(f"atom {edge['atom_id'][:79]}" in text for edge in edges)
                    praised = correction[g, n, t] > 0 and found["outcome"] == "failed"
                    assert ("The rollout failed, yet" in text) == praised
                    explained += praised
    assert explained > 3


def test_a_group_is_its_rollouts(logged, viewing):
    for update in logged[1]:
        for g in range(2):
            group = viewing.group(update, g)
            assert len(group["rollouts"]) == SIZE
            for n, column in enumerate(group["rollouts"]):
                alone = viewing.rollout(update, g, n)
                assert [s["advantage"] for s in column["steps"]] == [s["advantage"] for s in alone["steps"]]
                assert [column["atoms"][a["atom_id"]]["marginal"] for a in alone["atoms"]] == [
                    a["marginal"] for a in alone["atoms"]
                ]
                for name in ("outcome", "score", "base", "abstains"):
                    assert column[name] == alone[name]


@pytest.mark.parametrize(
    "text", ["desklamp", "DESKLAMP", "<img", "\x1b[31m", "spam spam", "no such text", "pick_"]
)
@pytest.mark.parametrize("update", [None, 1])
def test_search_finds_tasks_actions_and_observations(logged, viewing, text, update):
    viewing.overview()
    expected = set()
    for u in logged[1] if update is None else [update]:
        for row in parquet(logged[0], "rollouts", u):
            texts = (row[name] for name in ("task_id", "task_type", "action", "observation"))
            if any(text.lower() in value.lower() for value in texts):
                expected.add((u, row["group"], row["rollout"]))
    assert viewing.search(text, update) == {"found": sorted(expected), "problems": []}


def test_places_that_are_not_there_are_named(viewing):
    with pytest.raises(UnknownPlaceError, match="there is no update 9"):
        viewing.rollout(9, 0, 0)
    with pytest.raises(UnknownPlaceError, match=f"no rollout 2/0 in update 1: it has 2 groups of {SIZE}"):
        viewing.group(1, 2)
    with pytest.raises(UnknownPlaceError, match=f"no rollout 0/{SIZE}"):
        viewing.rollout(1, 0, SIZE)


def test_an_empty_directory_and_other_files_are_no_updates(tmp_path):
    for name in ("update_x.parquet", "update_000001.parquet.tmp", "other.parquet"):
        (tmp_path / "rollouts").mkdir(exist_ok=True)
        (tmp_path / "rollouts" / name).write_bytes(b"")
    viewing = Viewing(tmp_path)
    found = viewing.overview()
    assert found["updates"] == []
    assert found["rows"]["update"] == []
    assert [problem["file"] for problem in found["problems"]] == ["config.json"]


def test_a_method_without_proofs_says_so(logged, tmp_path):
    workdir = tmp_path / "run"
    shutil.copytree(logged[0], workdir)
    config = json.loads((workdir / "config.json").read_text())
    config["credit"]["method"] = "grpo"
    (workdir / "config.json").write_text(json.dumps(config))
    path = workdir / "atoms" / "update_000001.parquet"
    table = pq.read_table(path)
    for name in ("core", "marginal", "marginal_norm", "cause", "rollout_cause"):
        table = replaced(table, name, [None] * len(table))
    pq.write_table(table, path)
    found = Viewing(workdir).rollout(1, 0, 1)
    assert (found["proved"], found["method"], found["abstains"]) == (False, "grpo", None)


def test_outcomes():
    assert [record.outcome(end, score) for end, score in (("success", 1.0), ("step_cap", 0.4))] == [
        "success",
        "failed",
    ]
    assert record.outcome("env_timeout", 0.0) == "lost"
    assert [record.outcome("", score) for score in (None, 0.2, 1.0)] == ["unknown", "failed", "success"]


def test_sizes_of_hostile_texts_are_those_of_the_log(logged, viewing):
    found = viewing.rollout(HOSTILE_UPDATE, 1, 0)
    assert max(len(step["observation"]) for step in found["steps"]) > 100_000
    assert log.found_updates(logged[0]) == [1, 2]
