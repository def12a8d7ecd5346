"""The command line: one whole evaluation, with a key that must not show up anywhere."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

from tests.agents.stand_in import StandIn, solutions
from tests.envs.chat_server import Server, running

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_the_command_evaluates_and_keeps_the_key_to_itself(tmp_path: pathlib.Path) -> None:
    server = Server()
    server.reply = StandIn(solutions("examples.refunds", {"num_valid": 2}, "valid", 2))
    command = [
        *(sys.executable, "-m", "launch.evaluate", "--agent=reflexion", "--env=examples.refunds"),
        *(f"--endpoint={server.url}", "--endpoint_model=stand/in", "--key_variable=AGENTS_TEST_KEY"),
        *("--env_option=num_valid=2", "--env_option=workers=0", "--trials=2", "--max_cost=1"),
        *("--price_prompt=1", "--price_completion=2", f"--out={tmp_path / 'out'}"),
    ]
    with running(server):
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, "AGENTS_TEST_KEY": "sk-secret"},
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert done.returncode == 0, done.stderr
    assert server.seen[0][0]["Authorization"] == "Bearer sk-secret"
    assert server.seen[0][1]["model"] == "stand/in"
    assert "reflexion, trial 2" in done.stdout
    assert "100.0 % (2/2)" in done.stdout
    assert "cost 0.0001 at 1 and 2 per million" in done.stdout
    written = [path.read_text() for path in (tmp_path / "out").iterdir()]
    assert len(written) == 4  # settings, tasks, summary, lock
    assert not any("sk-secret" in text for text in (done.stdout, done.stderr, *written))
