"""A run that starts from a checkpoint directory, and the directory that a run is exported to."""

from __future__ import annotations

import pathlib
import shutil

import jax
import numpy as np
import pytest
from flax import nnx

from launch import cli, export
from tests.run.small import small_config
from vict_jax import run_state, train
from vict_jax.config import RunConfig, default_config, from_config_dict
from vict_jax.job import new_params, open_job
from vict_jax.metrics import RunError
from vict_jax.models import hf


def tiny(**model: object) -> RunConfig:
    config = small_config().unlock()
    if "path" in model:
        config.model = {**train_default_model(), **model}
    config.warm_start.tasks = 0
    config.train.update(updates=1, rollouts=2, groups=1, eval_every=1)
    config.conformance.tasks = 2
    config.eval.update(tasks=2, batch=2)
    return from_config_dict(config)


def train_default_model() -> dict[str, object]:
    return default_config("alfworld").model.to_dict()


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[pathlib.Path, dict[str, np.ndarray]]:
    """A directory exported from a run of one update, and the parameters that it was made from."""
    folder = tmp_path_factory.mktemp("exported")
    config = tiny()
    train.train(config, folder / "run")
    with open_job(config, folder / "run") as job:
        update, params = run_state.load_params(job, folder / "run", None)
        assert update == 1
        export.export_model(job, params, folder / "model", None)
        return folder / "model", named(params)


def named(params: nnx.State) -> dict[str, np.ndarray]:
    paths, _ = jax.tree_util.tree_flatten_with_path(params)
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in paths}


def test_a_run_starts_from_the_exported_directory_and_refuses_another_one(
    exported: tuple[pathlib.Path, dict[str, np.ndarray]], tmp_path: pathlib.Path
) -> None:
    source, expected = exported
    model = shutil.copytree(source, tmp_path / "model")
    config = tiny(path=str(model))
    train.train(config, tmp_path / "run")
    with open_job(config, tmp_path / "run") as job:
        _, start = run_state.load_params(job, tmp_path / "run", 0)
        assert job.codec.stop_ids == tuple(hf.load_generation_config(model)["eos_token_id"])
    assert named(start).keys() == expected.keys()
    for name, value in named(start).items():
        np.testing.assert_array_equal(value, expected[name])
    (model / "tokenizer_config.json").write_text((source / "tokenizer_config.json").read_text() + " ")
    with pytest.raises(RunError, match=r"model tokenizer_config\.json"), open_job(config, tmp_path / "run"):
        pass


def test_adapters_on_a_directory_leave_it_alone_and_are_merged_on_export(
    exported: tuple[pathlib.Path, dict[str, np.ndarray]], tmp_path: pathlib.Path
) -> None:
    source, expected = exported
    (tmp_path / "run").mkdir()
    config = tiny(path=str(source), lora_rank=2, lora_targets=("q_proj",))
    with open_job(config, tmp_path / "run") as job:
        assert job.frozen is not None
        for name, value in named(job.frozen).items():
            np.testing.assert_array_equal(value, expected[name])
        adapters = jax.tree.map(lambda x: x + 0.5, new_params(job))
        export.export_model(job, adapters, tmp_path / "merged", None)
        _, merged = hf.load(tmp_path / "merged", job.mesh)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "merged" / name).read_bytes() == (source / name).read_bytes()
    changed = {name for name, value in named(merged).items() if not np.array_equal(value, expected[name])}
    assert len(changed) == 1
    assert "'q'" in changed.pop()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"num_layers": 7}, r"model\.num_layers=7 is not allowed: with model\.path="),
        ({"lora_rank": -1}, r"model\.lora_rank=-1"),
    ],
)
def test_sizes_come_from_the_directory_alone(model: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny(path="somewhere", **model)


def test_a_context_beyond_the_models_positions_is_refused(
    exported: tuple[pathlib.Path, dict[str, np.ndarray]], tmp_path: pathlib.Path
) -> None:
    config = small_config().unlock()
    config.model = {**train_default_model(), "path": str(exported[0])}
    config.rollout.max_context = 10_000
    (tmp_path / "run").mkdir()
    with (
        pytest.raises(ValueError, match=r"rollout\.max_context=10000 is above the 512 positions"),
        open_job(from_config_dict(config), tmp_path / "run"),
    ):
        pass


def test_the_outcome_of_the_hindsight_pass_needs_positions_beyond_the_context(
    exported: tuple[pathlib.Path, dict[str, np.ndarray]], tmp_path: pathlib.Path
) -> None:
    config = small_config().unlock()
    config.credit.method = "hcapo"
    with open_job(from_config_dict(config), tmp_path) as job:
        assert job.model.max_positions == config.rollout.max_context + 128
    config.model = {**train_default_model(), "path": str(exported[0])}
    (tmp_path / "run").mkdir()
    message = r"max_context=512 leaves no room for credit\.hcapo\.outcome_tokens=128 below the 512 positions"
    with pytest.raises(ValueError, match=message), open_job(from_config_dict(config), tmp_path / "run"):
        pass


def test_a_missing_directory_is_named(tmp_path: pathlib.Path) -> None:
    with (
        pytest.raises(FileNotFoundError, match="nowhere"),
        open_job(tiny(path=str(tmp_path / "nowhere")), tmp_path / "run"),
    ):
        pass


@pytest.mark.parametrize("sizes", [["2", "1"], ["1", "1", "x"], ["0", "1", "1"], ["-1", "-1", "1"]])
def test_what_is_no_mesh_is_refused(sizes: list[str]) -> None:
    with pytest.raises(ValueError, match=r"mesh|the mesh"):
        cli.on_mesh(from_config_dict(small_config()), sizes)


def test_a_run_is_exported_from_another_mesh() -> None:
    config = from_config_dict(small_config())
    assert cli.on_mesh(config, None) == config
    assert cli.on_mesh(config, ["1", "-1", "2"]).mesh.shape(8) == (1, 4, 2)
