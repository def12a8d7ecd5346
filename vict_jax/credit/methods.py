"""The table of credit methods that a config can name, and what each claims."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping

from vict_jax.credit import controls
from vict_jax.credit.gae import gae
from vict_jax.credit.options import VictOptions
from vict_jax.credit.rules import VICT, Rule
from vict_jax.credit.vict import correct_outcome, outcome_only
from vict_jax.types import Aggregate, CreditInputs, CreditOutput


class Claim(enum.Enum):
    """What a method says of its corrections, and is held to in every update (`assign.assign_many`)."""

    OUTCOME = "outcome"  # there are none
    PROOF = "proof"  # each has its proof (Eq. 8)
    CONTROL = "control"  # they stand on real steps and are finite, no more


@dataclasses.dataclass(frozen=True)
class CreditMethod:
    """A pure function `(inputs, aggregate, options) -> CreditOutput`.

    Attributes:
      rule: corrects the outcome advantage; None for a method without corrections.
      base: outcome advantage in place of `options.base`; only without a rule.
      estimator: `(inputs, options) -> CreditOutput`, in place of an outcome advantage; only without a rule.
      needs: fields of `CreditInputs` that a model makes ("value"); the training loop fills these in.
    """

    rule: Rule | None
    base: str | None = None
    estimator: Callable[[CreditInputs, VictOptions], CreditOutput] | None = None
    needs: frozenset[str] = frozenset()

    @property
    def claim(self) -> Claim:
        """What is checked."""
        if self.rule is None:
            return Claim.OUTCOME
        return Claim.PROOF if self.rule.proved else Claim.CONTROL

    def __call__(self, inputs: CreditInputs, aggregate: Aggregate, options: VictOptions) -> CreditOutput:
        """Credit of one update batch. Raises ValueError where `inputs` has wrong shapes or types."""
        return run_methods({"": self}, inputs, aggregate, options)[""]


METHODS: Mapping[str, CreditMethod] = {
    "vict": CreditMethod(VICT),
    "outcome_only": CreditMethod(None),
    "grpo": CreditMethod(None, base="grpo"),
    "rloo": CreditMethod(None, base="rloo"),
    "dr_grpo": CreditMethod(None, base="dr_grpo"),
    "grpo_rows": CreditMethod(None, base="grpo_rows"),
    "reinforce_pp": CreditMethod(None, base="reinforce_pp"),
    "reinforce_pp_rows": CreditMethod(None, base="reinforce_pp_rows"),
    "reinforce_pp_baseline": CreditMethod(None, base="reinforce_pp_baseline"),
    "gae": CreditMethod(None, estimator=gae, needs=frozenset({"value"})),
    "dense": CreditMethod(controls.DENSE),
    "no_core": CreditMethod(controls.NO_CORE),
    "no_proof": CreditMethod(controls.NO_PROOF),
    "commit_only": CreditMethod(controls.COMMIT_ONLY),
    "temporal_nearest": CreditMethod(controls.TEMPORAL_NEAREST),
    "random_edges": CreditMethod(controls.RANDOM_EDGES),
}


def run_methods(
    methods: Mapping[str, CreditMethod], inputs: CreditInputs, aggregate: Aggregate, options: VictOptions
) -> dict[str, CreditOutput]:
    """Several methods on one batch; what their rules have in common is computed once.

    Raises:
      ValueError: a field of `inputs` has a wrong shape or type.
    """
    rules = {name: method.rule for name, method in methods.items() if method.rule is not None}
    corrected = correct_outcome(list(rules.values()), inputs, aggregate, options) if rules else []
    outputs = dict(zip(rules, corrected, strict=True))
    for name, method in methods.items():
        if method.estimator is not None:
            outputs[name] = method.estimator(inputs, options)
        elif method.rule is None:
            base = method.base or options.base
            outputs[name] = outcome_only(inputs, dataclasses.replace(options, base=base))
    return {name: outputs[name] for name in methods}
