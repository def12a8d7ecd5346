"""The run directory: one owner, one config, no half-written file, no row twice."""

from __future__ import annotations

import errno
import json
import pathlib
import signal

import pytest

from vict_jax import metrics


def test_reopening_with_the_same_config_works(tmp_path: pathlib.Path) -> None:
    for _ in range(2):
        with metrics.RunDir.open(tmp_path / "run", {"a": 1}):
            pass
    assert json.loads((tmp_path / "run" / "config.json").read_text()) == {"a": 1}


def test_another_config_is_refused_by_name(tmp_path: pathlib.Path) -> None:
    with metrics.RunDir.open(tmp_path, {"train": {"groups": 2}, "seed": 0}):
        pass
    with pytest.raises(metrics.RunError, match=r"another config:\n  train.groups: 2 -> 3\nUse the same"):
        metrics.RunDir.open(tmp_path, {"train": {"groups": 3}, "seed": 0})
    assert json.loads((tmp_path / "config.json").read_text())["train"] == {"groups": 2}


def test_two_runs_in_one_directory_are_refused(tmp_path: pathlib.Path) -> None:
    with (
        metrics.RunDir.open(tmp_path, {}),
        pytest.raises(metrics.RunError, match="another process is running"),
    ):
        metrics.RunDir.open(tmp_path, {})


def test_workdir_that_is_a_file(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(metrics.RunError, match="is a file"):
        metrics.RunDir.open(tmp_path / "file", {})


def test_damaged_config_is_named(tmp_path: pathlib.Path) -> None:
    (tmp_path / "config.json").write_text('{"a": ')
    with pytest.raises(metrics.RunError, match=r"config\.json is damaged"):
        metrics.RunDir.open(tmp_path, {"a": 1})


def test_field_report_39_rows_after_the_checkpoint_are_dropped(tmp_path: pathlib.Path) -> None:
    with metrics.MetricsWriter(tmp_path, None) as writer:
        writer.write("eval", 0, {"success": 0.1})
        for update in (1, 2, 3):
            writer.write("train", update, {"loss": float(update)})
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"kind": "train", "upd')  # killed in the middle of a line
    with metrics.MetricsWriter(tmp_path, 2) as writer:
        writer.write("train", 3, {"loss": 30.0})
    rows = metrics.read_metrics(tmp_path)
    assert [(row["kind"], row["update"]) for row in rows] == [
        ("eval", 0),
        ("train", 1),
        ("train", 2),
        ("train", 3),
    ]
    assert rows[-1]["loss"] == 30.0


def test_ctrl_c_waits_for_a_whole_row(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the queue of TensorBoard's writer it would make `close` wait for ever."""
    with metrics.MetricsWriter(tmp_path, None) as writer:
        add = writer._events.add_scalar

        def interrupted(*arguments: object) -> None:
            signal.raise_signal(signal.SIGINT)
            add(*arguments)
            added.append(arguments)

        added: list[tuple[object, ...]] = []
        monkeypatch.setattr(writer._events, "add_scalar", interrupted)
        with pytest.raises(KeyboardInterrupt):
            writer.write("train", 1, {"loss": 1.0})
        assert added == [("train/loss", 1.0, 1)]
    assert [row["loss"] for row in metrics.read_metrics(tmp_path)] == [1.0]


def test_a_damaged_line_in_the_middle_is_not_skipped(tmp_path: pathlib.Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"kind": \n{"kind": "train", "update": 1}\n')
    with pytest.raises(metrics.RunError, match=r"metrics\.jsonl:1 is not"):
        metrics.read_metrics(tmp_path)


def test_values_that_are_not_finite_become_null(tmp_path: pathlib.Path) -> None:
    with metrics.MetricsWriter(tmp_path, None) as writer:
        writer.write("train", 1, {"loss": float("nan"), "ratio": float("inf"), "n": 3})
    assert metrics.read_metrics(tmp_path) == [
        {"kind": "train", "update": 1, "loss": None, "ratio": None, "n": 3}
    ]


def test_full_disk_is_one_clear_error_and_keeps_the_old_file(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "summary.json"
    metrics.write_json(path, {"old": True})

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(metrics.os, "fsync", full)
    with pytest.raises(metrics.RunError, match=r"no space left while writing .*summary\.json.*is kept"):
        metrics.write_json(path, {"new": True})
    assert json.loads(path.read_text()) == {"old": True}
    assert [p.name for p in tmp_path.iterdir()] == ["summary.json"]


def test_rows_that_a_checkpoint_had_must_be_there(tmp_path: pathlib.Path) -> None:
    with metrics.MetricsWriter(tmp_path, None) as writer:
        writer.write("eval", 0, {"success": 0.1})
        writer.write("train", 1, {"loss": 1.0})
        assert writer.rows == 2
    with metrics.MetricsWriter(tmp_path, 1, expected=2) as writer:
        assert writer.rows == 2
    (tmp_path / "metrics.jsonl").write_text('{"kind": "train", "update": 1}\n')
    with pytest.raises(metrics.RunError, match="has 1 rows up to update 1, and had 2 when its checkpoint"):
        metrics.MetricsWriter(tmp_path, 1, expected=2)


def test_a_change_that_is_allowed_is_noted(tmp_path: pathlib.Path) -> None:
    old = {"train": {"groups": 2}, "seed": 0}
    new = {"train": {"groups": 3}, "seed": 1}
    with metrics.RunDir.open(tmp_path, old):
        pass
    metrics.write_json(tmp_path / "run.json", {"tasks": {}})
    with pytest.raises(metrics.RunError, match=r"seed: 0 -> 1\n.*--allow_changed=seed,train\.groups"):
        metrics.RunDir.open(tmp_path, new, ("train.groups",))
    assert json.loads((tmp_path / "config.json").read_text()) == old
    with metrics.RunDir.open(tmp_path, new, ("train.groups", "seed")):
        pass
    with metrics.RunDir.open(tmp_path, new):  # allowed once, it is the config of the run
        pass
    run = json.loads((tmp_path / "run.json").read_text())
    assert run["tasks"] == {}
    assert [noted["what"] for noted in run["changed"]] == [["seed: 0 -> 1", "train.groups: 2 -> 3"]]
