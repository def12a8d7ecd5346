"""The conformance gate in training: what only the policy finds is masked, logged once, kept, or stops it."""

from __future__ import annotations

import collections
import dataclasses
import logging
import os
import pathlib
import shutil
import subprocess
import sys
from typing import Any

import pytest

from envs.base import Task
from tests.run.planted import get_config
from tests.run.results import ROOT, Killed, comparable
from vict_jax import metrics, train
from vict_jax.config import ConformanceOptions, from_config_dict
from vict_jax.gate import due, sample_tasks

CONFIG = from_config_dict(get_config())
STRICT = dataclasses.replace(CONFIG.conformance, strict=True)


def rows_of(workdir: pathlib.Path, kind: str) -> dict[int, dict[str, Any]]:
    return {row["update"]: row for row in metrics.read_metrics(workdir) if row["kind"] == kind}


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    messages = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    return [message for message in messages if message.startswith("conformance")]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """An uninterrupted run."""
    workdir = tmp_path_factory.mktemp("gate") / "whole"
    train.train(CONFIG, workdir)
    return workdir


def test_what_only_the_policy_finds_is_masked_from_the_recheck_on(whole: pathlib.Path) -> None:
    checks, updates = rows_of(whole, "conformance"), rows_of(whole, "train")
    assert sorted(checks) == [0, 2]
    assert (checks[0]["reconstruction"], checks[0]["mutation"], checks[0]["findings"]) == (1.0, 1.0, [])
    found = {(finding["kind"], finding["name"]) for finding in checks[2]["findings"]}
    assert found == {("score", "placed"), ("record", "placed")}
    assert (checks[2]["masked_families"], checks[2]["failing_types"]) == (1, 0)
    assert checks[2]["reconstruction"] < 1
    assert checks[2]["mutation"] == 1.0
    for finding in checks[2]["findings"]:
        assert finding["example"]["kind"] == "policy"
    # Before the family is masked, its groups are left out; then only its atoms are.
    assert updates[1]["nonconforming_groups"] > 0
    assert [updates[u]["nonconforming_groups"] for u in (2, 3)] == [0, 0]
    assert [updates[u]["seconds/gate"] > 1e-3 for u in (1, 2, 3)] == [False, True, False]


def test_a_verdict_survives_a_kill_and_a_strict_run_stops(
    whole: pathlib.Path,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    workdir, strict, learned = tmp_path / "run", tmp_path / "strict", train.learn

    def learn(*args: Any) -> Any:
        update = args[-1]
        if update == 2:  # update 1 is saved, the recheck of update 2 is over but not saved
            shutil.copytree(workdir, strict)
        if update == 3:
            raise Killed
        return learned(*args)

    with monkeypatch.context() as patch:
        patch.setattr(train, "learn", learn)
        with pytest.raises(Killed):
            train.train(CONFIG, workdir)
    (warning,) = warnings_of(caplog)
    assert warning.startswith("conformance at update 2: family 'placed' is masked")
    assert warning.count("smallest rollout that shows it: task 'train/") == 2
    caplog.clear()
    capsys.readouterr()
    train.train(CONFIG, workdir)
    assert "verifier     DOES NOT CONFORM: masked families: placed" in capsys.readouterr().out
    assert warnings_of(caplog) == []
    assert comparable(workdir) == comparable(whole)

    stopped = strict_run(strict)
    assert stopped.returncode == 1, stopped.stderr
    message = stopped.stderr[stopped.stderr.index("error: the verifier interface of 'planted'") :]
    assert message.startswith(
        "error: the verifier interface of 'planted' does not conform at update 2, and conformance.strict is "
        "set:\nfamily 'placed' is masked, its atoms get no credit\n  why: "
    )
    assert "\n  smallest rollout that shows it: task 'train/" in message
    assert "\nNext: `python -m vict_jax.audit --env tests.envs.planted`" in message
    assert "Traceback" not in stopped.stderr
    assert rows_of(strict, "train").keys() == {1}
    with pytest.raises(metrics.RunError, match=r"(?s)conform in --workdir=.*family 'placed' is masked"):
        train.train(dataclasses.replace(CONFIG, conformance=STRICT), workdir)


def strict_run(workdir: pathlib.Path) -> subprocess.CompletedProcess[str]:
    """Continue a run by the real command, under `conformance.strict`."""
    command = [sys.executable, "-m", "launch.local", "--config=tests/run/planted.py"]
    return subprocess.run(
        [*command, f"--workdir={workdir}", "--config.conformance.strict=True"],
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=600,
    )


def test_options() -> None:
    options = ConformanceOptions(every=3)
    assert [update for update in range(1, 10) if due(options, update)] == [3, 6, 9]
    assert not due(ConformanceOptions(every=0), 10)
    with pytest.raises(ValueError, match=r"conformance\.tasks=0 is not allowed: 1 or more"):
        ConformanceOptions(tasks=0)
    with pytest.raises(ValueError, match=r"conformance\.every=-1 is not allowed: 0 or more"):
        ConformanceOptions(every=-1)


def test_tasks_before_training_are_of_every_type_whatever_their_number() -> None:
    """With types that take turns, a fixed stride would meet few of them, or one."""
    for count in (512, 2880, 4096):
        tasks = [Task(str(i), "abcdef"[i % 6], "train", i, "") for i in range(count)]
        chosen = sample_tasks(tasks, 24)
        assert collections.Counter(task.type for task in chosen) == dict.fromkeys("abcdef", 4)
        assert len({task.id for task in chosen}) == 24
        assert max(task.seed for task in chosen) > count / 2
    assert sample_tasks(tasks[:5], 24) == tasks[:5]
    few = [*tasks[:12:6], *(task for task in tasks if task.type == "b")]
    assert [task.type for task in sample_tasks(few, 24)].count("a") == 2
    assert len(sample_tasks(few, 24)) == 24
