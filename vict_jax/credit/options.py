"""Options of the credit methods, one dataclass for all of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from vict_jax.credit.base import BASES
from vict_jax.credit.cores import CORES, MARGINALS
from vict_jax.credit.correction import CENTERS, SCALES
from vict_jax.credit.step_options import (
    GigpoOptions,
    GraphGpoOptions,
    HcapoOptions,
    HgpoOptions,
    ProxmoOptions,
    RewardFlowOptions,
    StepOptions,
    TrcaOptions,
)
from vict_jax.required import require


@dataclasses.dataclass(frozen=True)
class VictOptions:
    """Options of the credit methods; (paper) marks values the paper gives.

    Attributes:
      base: outcome advantage, a key of `base.BASES`.
      core: `complete` or `greedy` (paper), see `cores`.
      marginals: `contextual` (signed) or `literal` (paper), see `cores`.
      scale, center: statistics of the group normalisation, keys of `correction.SCALES` and `CENTERS`.
      gamma_rho: factor of the core threshold rho.
      eps_q: |A_base| up to this is a tie.
      budget: B, the most atoms (complete) or additions (greedy) of a core (paper: 8).
      gamma_lambda: size of the median correction relative to the median |A_base| (paper: 0.5).
      smoothing: added to an atom's total edge weight.
      clip_quantile: quantile of |A_base| that bounds A_vict (paper: 0.95).
      eps: added to standard deviations, scales and medians that are divided by.
      discount: gamma, of returns-to-go and of `gae`. Outcome estimators of a group do not discount.
      gae_lambda: lambda of `gae`. whiten: divide its advantages by their spread over the batch.
      proximity_decay: of the control `no_proof`, the weight an action loses with each step of distance.
      seed: of the control `random_edges`.
      steps: what the step-level methods have in common; gigpo, ...: each method's own.
    """

    base: str = "grpo"
    core: str = "complete"
    marginals: str = "contextual"
    scale: str = "std"
    center: str = "median"
    gamma_rho: float = 1.0
    eps_q: float = 0.05
    budget: int = 8
    gamma_lambda: float = 0.5
    smoothing: float = 1e-6
    clip_quantile: float = 0.95
    eps: float = 1e-6
    discount: float = 1.0
    gae_lambda: float = 0.95
    whiten: bool = True
    proximity_decay: float = 0.9
    seed: int = 0
    steps: StepOptions = dataclasses.field(default=StepOptions())
    gigpo: GigpoOptions = dataclasses.field(default=GigpoOptions())
    hgpo: HgpoOptions = dataclasses.field(default=HgpoOptions())
    graphgpo: GraphGpoOptions = dataclasses.field(default=GraphGpoOptions())
    rewardflow: RewardFlowOptions = dataclasses.field(default=RewardFlowOptions())
    proxmo: ProxmoOptions = dataclasses.field(default=ProxmoOptions())
    trca: TrcaOptions = dataclasses.field(default=TrcaOptions())
    hcapo: HcapoOptions = dataclasses.field(default=HcapoOptions())

    def __post_init__(self) -> None:
        tables: dict[str, Collection[str]] = {
            "base": BASES,
            "core": CORES,
            "marginals": MARGINALS,
            "scale": SCALES,
            "center": CENTERS,
        }
        for name, table in tables.items():
            value = getattr(self, name)
            require(value in table, name, value, f"one of {sorted(table)}")
        for name in ("gamma_rho", "eps_q", "gamma_lambda", "smoothing"):
            value = getattr(self, name)
            require(0 <= value < float("inf"), name, value, "a finite number, 0 or more")
        require(0 < self.eps < float("inf"), "eps", self.eps, "a finite number above 0")
        require(0 <= self.clip_quantile <= 1, "clip_quantile", self.clip_quantile, "within [0, 1]")
        for name in ("discount", "gae_lambda"):
            require(0 <= getattr(self, name) <= 1, name, getattr(self, name), "within [0, 1]")
        require(self.budget >= 1, "budget", self.budget, "1 or more")
        require(0 < self.proximity_decay <= 1, "proximity_decay", self.proximity_decay, "above 0, at most 1")
        require(0 <= self.seed < 2**31, "seed", self.seed, "within [0, 2**31)")
