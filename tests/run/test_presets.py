"""Published methods as presets: what they say, a real update of each, runs with critic and resampling."""

from __future__ import annotations

import dataclasses
import importlib
import os
import pathlib
from collections.abc import Iterator

import jax
import numpy as np
import pytest

from launch.export import export_model
from tests.run.results import final_state
from tests.run.small import small_config
from vict_jax import header, metrics, train
from vict_jax.batching import to_host
from vict_jax.config import RunConfig, from_config_dict
from vict_jax.job import Job, fold, new_params, open_job, policy, with_value_head
from vict_jax.learner.microbatch import init_state
from vict_jax.learner.optimizer import leaf_names, make_optimizer
from vict_jax.learner.update import compile_ppo
from vict_jax.presets import PRESETS, preset
from vict_jax.resampling import Sampled, roll_out
from vict_jax.run_state import load_params, restore
from vict_jax.scoring import score_rollouts
from vict_jax.shaping import RewardOptions
from vict_jax.shares import share_of
from vict_jax.work import finish


def config_of(name: str, **train_options: int) -> RunConfig:
    """The small run without a warm start, in which only the length of a reply tells rollouts apart."""
    config = small_config().unlock()
    config.warm_start.tasks = 0
    config.train.update(updates=1, groups=2, rollouts=4, eval_every=9, checkpoint_every=1, **train_options)
    config.eval.tasks = 1
    config.conformance.update(rollouts=0, every=0)
    preset(config, name)
    config.reward.update(overlong_of="reply", overlong_buffer=24)
    return from_config_dict(config)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    with open_job(config_of("grpo"), tmp_path_factory.mktemp("presets")) as job:
        yield job


@pytest.fixture(scope="module")
def sampled(job: Job) -> Sampled:
    return roll_out(job, new_params(job), 1, fold(job.keys.rollout, 1))


def test_presets_say_what_they_are() -> None:
    told = {name: config_of(name) for name in PRESETS}
    credit = {name: header.credit(config) for name, config in told.items()}
    loss = {name: header.loss(config) for name, config in told.items()}
    assert "std (ddof=1) of the group" in credit["grpo"]
    assert loss["grpo"].endswith("KL k3 x 0.01 as a loss, not importance-weighted, applied to dead groups")
    assert (credit["dr_grpo"][:13], "constant, no KL" in loss["dr_grpo"]) == ("dr_grpo: base", True)
    assert "PPO clip 0.2/0.28 of the token ratio, token_mean, no KL" in loss["dapo"]
    assert "replaced, up to 4 an update" in header.resampling(told["dapo"])
    assert (credit["fission"], loss["fission"]) == (credit["grpo"], loss["grpo"])
    assert "4 recoveries from each of 1 errors, lifo" in header.fission(told["fission"])
    assert "clip 0.0003/0.0004 of the sequence ratio" in loss["gspo"]
    assert "KL in the reward" in loss["rloo"]
    assert "less KL k1 x 0.01 of each token" in header.reward(told["reinforce_pp"])
    assert "KL k2 x 0.01 as a loss" in loss["reinforce_pp_baseline"]
    assert credit["ppo"] == (
        "gae: discount 1.0, lambda 0.95, whitened over the batch, each rollout counted once; "
        "value head, loss x 0.5 clipped at 0.2"
    )
    assert "less up to 1.0 for a reply of more than 0 of 24 tokens" in header.reward(told["dapo"])


def test_a_preset_leaves_nothing_of_another_behind() -> None:
    for name in PRESETS:
        config, other = small_config().unlock(), small_config().unlock()
        for before in PRESETS:
            preset(other, before)
        preset(config, name)
        preset(other, name)
        for key in ("ppo", "train", "fission"):
            same = {k: v for k, v in other[key].items() if k not in ("value_coefficient", "value_clip")}
            assert {k: config[key][k] for k in same} == same, name
        assert (config.credit.method, config.reward.overlong_buffer) == (
            other.credit.method,
            other.reward.overlong_buffer,
        )


@pytest.mark.parametrize("path", ["quickstart", "webshop_quick", "search_qa_quick", "tau_bench_quick"])
def test_quick_configs_take_a_preset_after_a_colon(path: str) -> None:
    get_config = importlib.import_module(f"configs.{path}").get_config
    assert (get_config().credit.method, get_config().ppo.clip_high) == ("vict", 0.2)
    config = from_config_dict(get_config("dapo"))
    assert (config.credit.method, config.ppo.clip_high) == ("grpo", 0.28)
    assert config.train.resample_groups == 2 * config.train.groups


@pytest.mark.parametrize("path", ["webshop_quick", "webshop_real"])
def test_step_methods_have_the_settings_of_their_papers_in_the_shop(path: str) -> None:
    config = from_config_dict(importlib.import_module(f"configs.{path}").get_config())
    options = config.credit.options
    assert (options.gigpo.mode, options.hgpo.mode, options.graphgpo.gamma) == ("mean", "mean", 0.2)
    assert not options.steps.success_only


def test_an_unknown_preset_is_refused() -> None:
    with pytest.raises(ValueError, match=r"preset 'dpao' is unknown: allowed are \['dapo', "):
        preset(small_config(), "dpao")


# A compilation each; the losses of the others differ from these in numbers, and `ppo` is run below.
IN_EVERY_RUN = ("dapo", "gspo", "reinforce_pp_baseline")
ALL = os.environ.get("VICT_ALL_PRESETS")


@pytest.mark.parametrize("name", PRESETS)
def test_one_update_of_each_on_the_same_rollouts(name: str, job: Job, sampled: Sampled) -> None:
    """Finite and moving: what is scored, credited and learnt from is all that the method asks for."""
    if name not in IN_EVERY_RUN and not ALL:
        pytest.skip("set VICT_ALL_PRESETS=1 to take an update of every preset")
    config = config_of(name)
    job = dataclasses.replace(job, config=config)
    optimizer = make_optimizer(config.optimizer, total_steps=1)
    params = with_value_head(job, new_params(job))
    before, names = to_host(params), leaf_names(params)
    learner = compile_ppo(
        job.graphdef, params, optimizer, options=config.ppo, temperature=1.0, mesh=job.mesh, frozen=None
    )
    state = init_state(params, optimizer)
    reference = policy(job, new_params(job)) if config.ppo.kl_coefficient else None
    share = share_of(range(config.train.groups))
    scored = score_rollouts(job, learner, state.params, reference, sampled.played, share)
    _, output = train.credit(job, sampled.played, scored, 1, train.Verdict(), share)
    assert np.isfinite(output.advantages).all()
    assert (output.advantages != 0).any()
    state, row = finish(train.learn(job, learner, state, scored, output, 1))
    after = to_host(state.params)
    for leaf, old, new in zip(names, jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        assert np.isfinite(new).all(), leaf
        assert (new != old).any(), leaf
    assert np.isfinite(list(row.values())).all()
    assert ("value_loss" in row) == (name == "ppo")
    assert ("kl_loss" in row) == (name in ("grpo", "reinforce_pp_baseline"))
    assert ("kl_penalty" in scored.figures) == (name in ("rloo", "reinforce_pp", "ppo"))


def test_a_run_with_a_critic_keeps_its_head_and_exports_the_policy(tmp_path: pathlib.Path) -> None:
    """One update of `ppo` by `train`: metrics, checkpoint, restored state, exported model."""
    config = config_of("ppo")
    train.train(config, tmp_path / "run")
    row = [r for r in metrics.read_metrics(tmp_path / "run") if r["kind"] == "train"][-1]
    for name in ("value_loss", "value_clip_fraction", "explained_variance", "value_mean", "kl_penalty"):
        assert np.isfinite(row[name]), name
    assert row["value_loss"] > 0
    saved = final_state(tmp_path / "run", config)
    heads = {name: value for name, value in saved.items() if name.startswith("learner.params.value_head")}
    assert sorted(heads) == ["learner.params.value_head.bias.value", "learner.params.value_head.weight.value"]
    assert all((value != 0).any() for value in heads.values())  # it began at 0
    with open_job(config, tmp_path / "run") as job:
        restored = restore(job, make_optimizer(config.optimizer, total_steps=1), tmp_path / "run")
        assert restored is not None
        state = to_host(restored.learner)
        names = leaf_names(restored.learner)
        for name, value in zip(names, jax.tree.leaves(state), strict=True):
            kept = saved.get(f"learner.{name}", saved.get(f"learner.{name}.value"))
            np.testing.assert_array_equal(value, kept, err_msg=name)
        for update in (0, 1):
            _, params = load_params(job, tmp_path / "run", update)
            assert leaf_names(params) == leaf_names(new_params(job))
        export_model(job, params, tmp_path / "model", None)
    assert b"value_head" not in (tmp_path / "model" / "model.safetensors").read_bytes()


def test_resampling_with_the_real_sampler(job: Job) -> None:
    """Without a penalty every group is flat: all that may be drawn is drawn, again the same."""
    config = dataclasses.replace(
        job.config,
        reward=RewardOptions(),
        train=dataclasses.replace(job.config.train, resample_groups=3),
    )
    job = dataclasses.replace(job, config=config)
    key = fold(job.keys.rollout, 1)
    first, again = (roll_out(job, new_params(job), 1, key) for _ in range(2))
    assert first.counts == {"groups_dropped": 3, "groups_flat": 2}
    assert first.played.counts.rollouts == (2 + 3) * 4
    texts = [
        [[rollout.actions for rollout in group] for group in [*one.played.groups, *one.dropped]]
        for one in (first, again)
    ]
    assert texts[0] == texts[1]
    flat = [actions for group in texts[0] for actions in group]
    assert len(set(flat)) == len(flat)  # every rollout is sampled with a key of its own
    row = train.rollout_figures(first)
    assert (row["count/groups_dropped"], row["count/rollouts"]) == (3, 20)
