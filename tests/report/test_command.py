"""The command: what it prints, where it writes, how it fails."""

from __future__ import annotations

import pathlib
import subprocess
import sys

from tests.report.parsed import Page
from tests.report.synthetic import write_run

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_the_command_writes_a_comparison_of_a_whole_and_a_damaged_run(tmp_path):
    whole, damaged = write_run(tmp_path / "whole"), write_run(tmp_path / "damaged", 1)
    (damaged / "config.json").write_text('{"seed"')
    out = tmp_path / "both.html"
    command = [sys.executable, "-m", "launch.report", f"--workdir={whole}", f"--workdir={damaged}"]
    done = subprocess.run([*command, f"--out={out}"], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, f"written to {out}\n"), done.stderr
    page = Page(out.read_text())
    assert "config.json cannot be read" in page.text
    assert [row[0] for row in page.tables["members"][1:]] == ["A", "B"]
    assert not (whole / "report.html").exists()
