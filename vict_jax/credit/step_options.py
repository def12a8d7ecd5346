"""Options of the step-level methods, a small dataclass each; (paper) marks values of a paper or its code.

They are the sections `credit.steps`, `credit.gigpo`, ... of a config. What each paper uses in which
environment is on the page of credit methods (docs/credit_methods.md).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

from vict_jax.required import require

# Divide by the standard deviation of the group, or only subtract its mean.
MODES = ("mean_std", "mean")


def _number(section: str, options: Any, names: Collection[str], low: float, high: float) -> None:
    for name in names:
        value = getattr(options, name)
        bound = f"within [{low:g}, {high:g}]" if high < float("inf") else f"a finite number, {low:g} or more"
        require(low <= value <= high and value < float("inf"), f"{section}.{name}", value, bound)


def _mode(section: str, mode: str) -> None:
    require(mode in MODES, f"{section}.mode", mode, f"one of {list(MODES)}")


@dataclasses.dataclass(frozen=True)
class StepOptions:
    """What the step-level methods have in common.

    Attributes:
      pay: reward of a score of 1 (paper: 10 for a success).
      success_only: a rollout is paid for a full score only (paper), not in proportion to its score. The same
        where the score is 0 or 1.
      rows: the statistics of the outcome part count a rollout once for each of its steps (the papers' code).
    """

    pay: float = 10.0
    success_only: bool = False
    rows: bool = False

    def __post_init__(self) -> None:
        require(0 < self.pay < float("inf"), "steps.pay", self.pay, "a finite number above 0")


@dataclasses.dataclass(frozen=True)
class GigpoOptions:
    """GiGPO (arXiv 2505.10978).

    Attributes:
      mode: of both parts (paper: `mean_std` in ALFWorld, `mean` in WebShop).
      omega: weight of the step part (paper). gamma: discount of step returns (paper).
      similarity: of `gigpo_similar`: an observation this similar to the first of a cluster joins it (paper).
    """

    mode: str = "mean_std"
    omega: float = 1.0
    gamma: float = 0.95
    similarity: float = 0.95

    def __post_init__(self) -> None:
        _mode("gigpo", self.mode)
        _number("gigpo", self, ("omega",), 0, float("inf"))
        _number("gigpo", self, ("gamma", "similarity"), 0, 1)


@dataclasses.dataclass(frozen=True)
class HgpoOptions:
    """HGPO (arXiv 2602.22817).

    Attributes:
      mode: of the groups of every level (paper: `mean_std` in ALFWorld, `mean` in WebShop).
      gamma: discount of step returns (paper).
      history: K, the most earlier observations that members of a group share (paper: 2 or 4).
      alpha: a group of steps that share k observations, the current one included, weighs (k + 1) ** alpha
        (paper).
      base_group: the task group, by its outcome advantage, is a level of its own with weight 1 (paper: no).
    """

    mode: str = "mean_std"
    gamma: float = 0.95
    history: int = 2
    alpha: float = 1.0
    base_group: bool = False

    def __post_init__(self) -> None:
        _mode("hgpo", self.mode)
        _number("hgpo", self, ("gamma",), 0, 1)
        _number("hgpo", self, ("alpha",), 0, float("inf"))
        require(self.history >= 0, "hgpo.history", self.history, "0 or more")


@dataclasses.dataclass(frozen=True)
class GraphGpoOptions:
    """GraphGPO (arXiv 2605.26684).

    Attributes:
      mode: of both parts (paper). omega: weight of the step part (paper).
      gamma: what a step return loses with each step that the next state is from the goal (paper: 0.10 in
        ALFWorld, 0.20 in WebShop).
    """

    mode: str = "mean_std"
    omega: float = 1.0
    gamma: float = 0.1

    def __post_init__(self) -> None:
        _mode("graphgpo", self.mode)
        _number("graphgpo", self, ("omega",), 0, float("inf"))
        _number("graphgpo", self, ("gamma",), 0, 1)


@dataclasses.dataclass(frozen=True)
class RewardFlowOptions:
    """RewardFlow (arXiv 2603.18859).

    Attributes:
      mode: of both parts (its code). omega: weight of the step part (its code).
      gamma: what the value of a state loses with each step that it is from the goal (its code).
    """

    mode: str = "mean"
    omega: float = 1.0
    gamma: float = 0.9

    def __post_init__(self) -> None:
        _mode("rewardflow", self.mode)
        _number("rewardflow", self, ("omega",), 0, float("inf"))
        _number("rewardflow", self, ("gamma",), 0, 1)


@dataclasses.dataclass(frozen=True)
class ProxmoOptions:
    """ProxMO (arXiv 2602.19225).

    Attributes:
      omega: weight of the step part (its code). gamma: discount of step returns (its code).
      temperature: of the softmax over similarities (its code).
      modulation: beta, the outcome part is scaled by 1 +- beta / 2 at most (paper).
      steepness: of the modulation in the success rate (paper).
      terms: most words that the vectors of a group tell apart (its code: 1024 for all groups of a batch).
    """

    omega: float = 1.0
    gamma: float = 0.95
    temperature: float = 0.1
    modulation: float = 0.1
    steepness: float = 4.0
    terms: int = 512

    def __post_init__(self) -> None:
        _number("proxmo", self, ("omega", "steepness"), 0, float("inf"))
        _number("proxmo", self, ("gamma",), 0, 1)
        _number("proxmo", self, ("modulation",), 0, 2)
        require(
            0 < self.temperature < float("inf"),
            "proxmo.temperature",
            self.temperature,
            "a finite number above 0",
        )
        require(self.terms >= 1, "proxmo.terms", self.terms, "1 or more")


@dataclasses.dataclass(frozen=True)
class TrcaOptions:
    """TRCA (arXiv 2608.16156).

    Attributes:
      mode: of both parts. omega: weight of the step part (paper).
      gamma: discount of step returns (paper).
      breakthrough: lambda, the share of the breakthrough reward; the rest is the foundational one (paper).
      evidence, execution, invalidity: budgets b of the categories; the paper does not tell its own.
    """

    mode: str = "mean_std"
    omega: float = 1.0
    gamma: float = 0.95
    breakthrough: float = 0.8
    evidence: float = 1.0
    execution: float = 1.0
    invalidity: float = -1.0

    def __post_init__(self) -> None:
        _mode("trca", self.mode)
        _number("trca", self, ("omega", "evidence", "execution"), 0, float("inf"))
        _number("trca", self, ("gamma", "breakthrough"), 0, 1)
        allowed = "a finite number, 0 or less"
        require(-float("inf") < self.invalidity <= 0, "trca.invalidity", self.invalidity, allowed)


@dataclasses.dataclass(frozen=True)
class HcapoOptions:
    """HCAPO (arXiv 2603.08754).

    Attributes:
      omega: weight of the micro part (paper). gamma: discount of the return (paper).
      temperature: of the hindsight score, exp(mean log-probability / temperature) (paper).
      rho_low, rho_high: bounds of the ratio rho (paper).
      smoothing: share of the next step's Q in each step's (paper: 0.5 as an option).
      outcome_tokens: most tokens of the outcome in the prompt of the hindsight pass, whose rows are longer by
        as many; a multiple of 128 suits the attention kernels of accelerators.
    """

    omega: float = 1.0
    gamma: float = 0.95
    temperature: float = 5.0
    rho_low: float = 0.8
    rho_high: float = 1.2
    smoothing: float = 0.0
    outcome_tokens: int = 128

    def __post_init__(self) -> None:
        _number("hcapo", self, ("omega",), 0, float("inf"))
        _number("hcapo", self, ("gamma", "smoothing"), 0, 1)
        _number("hcapo", self, ("rho_low",), 0, 1)
        _number("hcapo", self, ("rho_high",), 1, float("inf"))
        ok = 0 < self.temperature < float("inf")
        require(ok, "hcapo.temperature", self.temperature, "a finite number above 0")
        require(self.outcome_tokens >= 1, "hcapo.outcome_tokens", self.outcome_tokens, "1 or more")
