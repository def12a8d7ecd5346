"""Real conversations of a language model, and what credit makes of them."""

from __future__ import annotations

import gzip
import json
import pathlib

import numpy as np
import pytest

from benchmarks import tau_bench_logged
from envs.tau_bench import logged
from tests.envs.tau_bench import golden
from vict_jax.audit.explain import explain

LOG = "gpt-4o-airline.json.gz"


def test_all_conversations_are_rebuilt_and_credited(
    shared_dir: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = golden.folder(shared_dir)
    arguments = ["--data-dir", str(folder), "--log", str(folder / LOG)]
    arguments += ["--workdir", str(tmp_path), "--json", str(tmp_path / "figures.json")]
    assert tau_bench_logged.main(arguments) == 0
    assert "recorded reward comes out again: 200 of 200" in capsys.readouterr().out
    found = json.loads((tmp_path / "figures.json").read_text())
    assert found["counts"] == {"conversations": 200, "again": 200, "rebuilt": 200, "unsound": 0}
    figures = found["figures"]
    assert figures["reconstruction"]["value"] == figures["eligibility"]["value"] == 1
    assert figures["proof_coverage"]["value"] > 0.9
    assert 0.2 < figures["trigger"]["value"] < 0.6
    # Five downgrades in a row, of which one attempt of four got all of them.
    text = explain(tmp_path, 0, "2/2")
    assert "score 1, ended by success after 18 steps" in text
    assert "flights:JG7FMM" in text


def test_a_log_can_be_plain(shared_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    rows = json.loads(gzip.decompress((golden.folder(shared_dir) / LOG).read_bytes()))
    path = tmp_path / "log.json"
    path.write_text(json.dumps([rows[60], rows[10]]))
    found = logged.read(path)
    assert [(c.index, c.trial) for c in found] == sorted(
        (row["task_id"], row["trial"]) for row in (rows[60], rows[10])
    )
    assert all(np.isin(c.reward, (0, 1)) for c in found)


@pytest.mark.parametrize("text", ["{}x", "[1]", '[{"task_id": 1}]'])
def test_another_file_is_no_log(text: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "log.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"log\.json is no log of conversations"):
        logged.read(path)
