"""What a run says of itself before it starts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.run.small import small_config
from vict_jax import header
from vict_jax.config import from_config_dict


@pytest.mark.parametrize(
    ("section", "values", "part", "told"),
    [
        (
            "credit",
            {"method": "grpo"},
            header.credit,
            "base grpo (mean and std (ddof=1) of the group, each rollout",
        ),
        (
            "credit",
            {"method": "rloo"},
            header.credit,
            "base rloo (mean of the group's other rollouts, each",
        ),
        ("credit", {"method": "vict", "scale": "mad"}, header.credit, "scale mad, center"),
        ("credit", {"method": "gigpo"}, header.credit, "step-level (mode mean_std, omega 1.0, gamma 0.95"),
        ("credit", {"method": "trca"}, header.credit, "10.0 paid in proportion to the score; outcome"),
        ("credit", {"method": "gigpo_similar+vict"}, header.credit, "each rollout counted once; core"),
        ("credit", {"method": "salt", "base": "rloo"}, header.credit, "step-level on base rloo (mean of"),
        ("ppo", {"ratio_level": "sequence"}, header.loss, "of the sequence ratio"),
        ("ppo", {"aggregation": "token_mean"}, header.loss, "token_mean"),
        ("ppo", {"kl_coefficient": 0.0}, header.loss, "no KL"),
        ("ppo", {"kl_in": "reward", "kl_coefficient": 0.1}, header.reward, "less KL k3 x 0.1 of each token"),
    ],
)
def test_field_report_05_normalisation_and_loss_are_named(
    section: str, values: dict[str, Any], part: Any, told: str
) -> None:
    config = small_config().unlock()
    config[section].update(values)
    assert told in part(from_config_dict(config))
