"""Published methods as settings of a config: what each paper fixes of estimator, loss, KL and sampling.

    config = default_config("alfworld")
    preset(config, "dapo")

A preset sets every key in which the methods of this table differ, so that any of them can be put on any
config; sizes, learning rates and environments stay as they are. Sources are on the page of credit methods
(docs/credit_methods.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import ml_collections

Settings = dict[str, Any]  # by dotted key

# PPO's loss with one clip range and no KL, from which each entry departs.
_PLAIN: Mapping[str, Any] = {
    "ppo.clip_low": 0.2,
    "ppo.clip_high": 0.2,
    "ppo.dual_clip": 0.0,
    "ppo.ratio_level": "token",
    "ppo.aggregation": "rollout_mean",
    "ppo.constant_divisor": 0.0,
    "ppo.kl_coefficient": 0.0,
    "ppo.kl_estimator": "k3",
    "ppo.kl_in": "loss",
    "ppo.kl_importance_weight": True,
    "ppo.count_dead_groups": True,
    "train.resample_groups": 0,
    "fission.branches": 0,
    "fission.recoveries": 2,
    "fission.order": "lifo",
    "fission.feedback": "diagnosis",
    "reward.overlong_buffer": 0,
}


def _kl(coefficient: float, estimator: str, place: str) -> Settings:
    return {"ppo.kl_coefficient": coefficient, "ppo.kl_estimator": estimator, "ppo.kl_in": place}


def _grpo(_: ml_collections.ConfigDict) -> Settings:
    """Mean over a rollout's tokens, k3 as a loss without importance weight (arXiv 2402.03300)."""
    return {"credit.method": "grpo", **_kl(0.01, "k3", "loss"), "ppo.kl_importance_weight": False}


def _fission(config: ml_collections.ConfigDict) -> Settings:
    """GRPO and, for every four groups, one of recoveries, newest errors first (arXiv 2601.15625).

    A model that is made from scratch has never seen text like a diagnosis, so it is not told any.
    """
    return {
        **_grpo(config),
        "fission.branches": config.train.rollouts,
        "fission.recoveries": max(1, config.train.groups // 4),
        "fission.order": "lifo",
        "fission.feedback": "diagnosis" if config.model.path else "none",
    }


def _dr_grpo(config: ml_collections.ConfigDict) -> Settings:
    """No division by the std, none by a length (arXiv 2503.20783): tokens over what they could be at most."""
    rollouts = config.train.groups * config.train.rollouts / config.ppo.minibatches
    return {
        "credit.method": "dr_grpo",
        "ppo.aggregation": "constant",
        "ppo.constant_divisor": float(rollouts * config.rollout.max_context),
    }


def _rloo(_: ml_collections.ConfigDict) -> Settings:
    """Sequence log-probabilities, so sums over tokens; KL in the reward (arXiv 2402.14740)."""
    return {
        "credit.method": "rloo",
        "ppo.aggregation": "sequence_mean_of_sums",
        **_kl(0.01, "k1", "reward"),
    }


def _dapo(config: ml_collections.ConfigDict) -> Settings:
    """Clip-higher, dynamic sampling, token mean, soft overlong penalty, no KL (arXiv 2503.14476).

    The buffer is a fifth of the context, as 4096 of 20480 tokens there.
    """
    return {
        "credit.method": "grpo",
        "ppo.clip_high": 0.28,
        "ppo.aggregation": "token_mean",
        "ppo.count_dead_groups": False,
        "train.resample_groups": 2 * config.train.groups,
        "reward.overlong_of": "context",
        "reward.overlong_buffer": config.rollout.max_context // 5,
        "reward.overlong_weight": 1.0,
    }


def _gspo(_: ml_collections.ConfigDict) -> Settings:
    """Ratio of the sequence, clipped at 3e-4 and 4e-4 (arXiv 2507.18071)."""
    return {
        "credit.method": "grpo",
        "ppo.ratio_level": "sequence",
        "ppo.clip_low": 3e-4,
        "ppo.clip_high": 4e-4,
        "ppo.aggregation": "sequence_mean_of_means",
    }


def _reinforce_pp(_: ml_collections.ConfigDict) -> Settings:
    """Return-to-go with the KL k1 in the reward, whitened over the batch (arXiv 2501.03262)."""
    return {"credit.method": "reinforce_pp", "ppo.aggregation": "token_mean", **_kl(0.01, "k1", "reward")}


def _reinforce_pp_baseline(_: ml_collections.ConfigDict) -> Settings:
    """Group mean first, the KL k2 as a loss (ibid.)."""
    return {
        "credit.method": "reinforce_pp_baseline",
        "ppo.aggregation": "token_mean",
        **_kl(0.01, "k2", "loss"),
    }


def _ppo(_: ml_collections.ConfigDict) -> Settings:
    """Critic and GAE with the KL k1 in the reward (arXiv 1707.06347, 2203.02155)."""
    return {
        "credit.method": "gae",
        "credit.discount": 1.0,
        "credit.gae_lambda": 0.95,
        "credit.whiten": True,
        "ppo.aggregation": "token_mean",
        "ppo.value_coefficient": 0.5,
        "ppo.value_clip": 0.2,
        **_kl(0.01, "k1", "reward"),
    }


PRESETS: Mapping[str, Callable[[ml_collections.ConfigDict], Settings]] = {
    "grpo": _grpo,
    "fission": _fission,
    "dr_grpo": _dr_grpo,
    "rloo": _rloo,
    "dapo": _dapo,
    "gspo": _gspo,
    "reinforce_pp": _reinforce_pp,
    "reinforce_pp_baseline": _reinforce_pp_baseline,
    "ppo": _ppo,
}


def preset(config: ml_collections.ConfigDict, name: str) -> ml_collections.ConfigDict:
    """Change `config` in place into the published method `name`, and return it.

    What depends on other values (a buffer on the context, a divisor on the batch) is worked out from those
    that the config has now.

    Raises:
      ValueError: there is no such preset.
    """
    if name not in PRESETS:
        raise ValueError(f"preset {name!r} is unknown: allowed are {sorted(PRESETS)}")
    for dotted, value in {**_PLAIN, **PRESETS[name](config)}.items():
        section, key = dotted.split(".")
        config[section][key] = value
    return config
