"""A run that trains adapters: what is saved, exact continuation, and which reference it has."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import jax
import numpy as np
import pytest

from tests.run.results import Killed, comparable
from tests.run.small import small_config
from vict_jax import run_state, train
from vict_jax.config import RunConfig, from_config_dict
from vict_jax.job import Job, new_params, open_job, policy, reference_policy
from vict_jax.models import decoder, lora


def make_config(**warm_start: int) -> RunConfig:
    config = small_config().unlock()
    config.model.update(lora_rank=2, lora_alpha=4.0, lora_targets=("q_proj", "v_proj", "down_proj"))
    config.train.update(updates=2, rollouts=3, eval_every=2)
    config.conformance.tasks = 2
    config.eval.update(tasks=2, batch=2)
    config.warm_start.update({"tasks": 4, "epochs": 2, **warm_start})
    config.optimizer.learning_rate = 1e-2
    return from_config_dict(config)


def leaves(workdir: pathlib.Path, kind: str) -> dict[str, Any]:
    """Names and shapes of the newest checkpoint's arrays."""
    newest = max((workdir / "checkpoints" / kind).glob("step_*"))
    return json.loads((newest / "manifest.json").read_text())["leaves"]


def trained_of(job: Job, workdir: pathlib.Path, update: int | None) -> dict[str, np.ndarray]:
    _, params = run_state.load_params(job, workdir, update)
    paths, _ = jax.tree_util.tree_flatten_with_path(params)
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in paths}


def test_field_report_38_a_killed_run_of_adapters_continues_exactly(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config, whole, killed = make_config(), tmp_path / "whole", tmp_path / "killed"
    train.train(config, whole)
    assert "M of them trained (LoRA of rank 2)" in capsys.readouterr().out
    names = {f"layers.{name}_lora_{side}" for name in ("q", "v", "down") for side in "ab"}
    assert {name.removesuffix(".value") for name in leaves(whole, "reference")} == names
    assert not any("embed" in name or name.endswith("layers.q") for name in leaves(whole, "state"))

    original, calls = train.run_update, 0

    def run_update(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise Killed
        return original(*args)

    with monkeypatch.context() as patch:
        patch.setattr(train, "run_update", run_update)
        with pytest.raises(Killed):
            train.train(config, killed)
    train.train(config, killed)
    assert comparable(killed) == comparable(whole)
    first = next(row for row in comparable(whole) if row["kind"] == "train")
    assert first["first_log_ratio_max"] < 1e-4  # sampler and learner have the same adapters

    with open_job(config, whole) as job:
        after, before = trained_of(job, whole, None), trained_of(job, whole, 0)
        assert all(np.abs(after[name] - before[name]).max() > 0 for name in before)
        for name, value in trained_of(job, killed, None).items():
            np.testing.assert_array_equal(value, after[name], err_msg=name)
        # After a warm start the reference has its adapters; the base is shared with the policy.
        start = run_state.load_params(job, whole, 0)[1]
        graphdef, params = reference_policy(job, start)
        assert graphdef == job.graphdef
        assert params["layers"]["q_lora_b"][...].any()
        assert params["embed"][...] is policy(job, start)[1]["embed"][...]


def test_without_a_warm_start_the_reference_is_the_base(tmp_path: pathlib.Path) -> None:
    config = make_config(tasks=0)
    with open_job(config, tmp_path) as job:
        params = new_params(job)
        graphdef, reference = reference_policy(job, params)
        assert reference is job.frozen
        assert graphdef == decoder.structure(lora.without_adapters(job.model))
