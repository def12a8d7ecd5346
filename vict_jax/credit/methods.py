"""The credit methods that a config can name, and what each claims.

A name is a key of `METHODS` or of `STEP_METHODS`, or `<name>+vict`: VICT's corrections on top of that method
(Eq. 10). Those that have no outcome part, or correct already, are refused.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Collection, Mapping

from vict_jax.credit import controls
from vict_jax.credit.gae import gae
from vict_jax.credit.inputs import check_inputs
from vict_jax.credit.options import VictOptions
from vict_jax.credit.rules import VICT, Rule
from vict_jax.credit.step_anchor import GIGPO, GIGPO_SIMILAR, HGPO, SALT
from vict_jax.credit.step_graph import GRAPHGPO, REWARDFLOW
from vict_jax.credit.step_hindsight import HCAPO
from vict_jax.credit.step_method import StepCredit, StepMethod, step_diagnostics
from vict_jax.credit.step_proximity import PROXMO
from vict_jax.credit.step_rubric import TRCA
from vict_jax.credit.vict import apply_rules, correct_outcome, outcome_only, uncorrected
from vict_jax.types import Aggregate, CreditInputs, CreditOutput


class Claim(enum.Enum):
    """What a method says of its corrections, and is held to in every update (`assign.assign_many`)."""

    OUTCOME = "outcome"  # there are none
    STEPS = "steps"  # there are none, and its advantages are finite and stand on real steps
    PROOF = "proof"  # each has its proof (Eq. 8)
    CONTROL = "control"  # they stand on real steps and are finite, no more


@dataclasses.dataclass(frozen=True)
class CreditMethod:
    """A pure function `(inputs, aggregate, options) -> CreditOutput`.

    Attributes:
      rule: corrects the outcome advantage; None for a method without corrections.
      base: outcome advantage in place of `options.base`.
      estimator: `(inputs, options) -> CreditOutput`, in place of an outcome advantage; only without a rule.
      needs: fields of `CreditInputs` that a model makes ("value", "hindsight_logp"), or the host from the
        rollouts (`observations`, `rubric`); the training loop fills these in.
      steps: a step-level method, in place of an outcome advantage.
    """

    rule: Rule | None
    base: str | None = None
    estimator: Callable[[CreditInputs, VictOptions], CreditOutput] | None = None
    needs: frozenset[str] = frozenset()
    steps: StepMethod | None = None

    @property
    def claim(self) -> Claim:
        """What is checked."""
        if self.rule is None:
            return Claim.OUTCOME if self.steps is None else Claim.STEPS
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


STEP_METHODS: Mapping[str, CreditMethod] = {
    name: CreditMethod(None, steps=steps, needs=steps.needs)
    for name, steps in {
        "gigpo": GIGPO,
        "gigpo_similar": GIGPO_SIMILAR,
        "hgpo": HGPO,
        "salt": SALT,
        "graphgpo": GRAPHGPO,
        "rewardflow": REWARDFLOW,
        "proxmo": PROXMO,
        "trca": TRCA,
        "hcapo": HCAPO,
    }.items()
}
# What may be put on top of a method, after a plus sign.
_ON_TOP = "vict"


def method_names() -> list[str]:
    """Every name but those with a plus sign."""
    return sorted({*METHODS, *STEP_METHODS})


def _alone(method: CreditMethod, options: VictOptions) -> str:
    """Why VICT cannot go on top of a method; empty if it can."""
    if method.rule is not None:
        return "it corrects an outcome advantage itself"
    if method.estimator is not None:
        return "its advantage comes from a critic, so none of it is the outcome of a rollout among its group"
    return method.steps.no_outcome(options) if method.steps is not None else ""


def composable(name: str, options: VictOptions) -> bool:
    """Whether VICT may go on top of a method, a name without a plus sign."""
    return not _alone({**METHODS, **STEP_METHODS}[name], options)


def credit_method(name: str, options: VictOptions) -> CreditMethod:
    """The method of a name.

    Raises:
      ValueError: there is no such method, or VICT cannot go on top of it.
    """
    first, plus, second = name.partition("+")
    known = {**METHODS, **STEP_METHODS}
    if first not in known or (plus and second != _ON_TOP):
        allowed = f"{method_names()}, and one of them followed by '+{_ON_TOP}'"
        raise ValueError(f"credit method {name!r} is unknown: allowed are {allowed}")
    if not plus:
        return known[first]
    if why := _alone(known[first], options):
        raise ValueError(f"credit method {name!r} is refused: {first} cannot be composed (Eq. 10), {why}")
    return dataclasses.replace(known[first], rule=VICT)


def needs(names: Collection[str], options: VictOptions) -> frozenset[str]:
    """Fields of `CreditInputs` that some of the methods need; ValueError as `credit_method`."""
    return frozenset().union(*(credit_method(name, options).needs for name in names))


def run_methods(
    methods: Mapping[str, CreditMethod], inputs: CreditInputs, aggregate: Aggregate, options: VictOptions
) -> dict[str, CreditOutput]:
    """Several methods on one batch; what they have in common is computed once.

    Raises:
      ValueError: a field of `inputs` has a wrong shape or type, or is missing.
    """
    check_inputs(inputs)
    _check_needs(methods, inputs)
    steps = {m.steps: m.steps.credit(inputs, options) for m in methods.values() if m.steps is not None}
    outputs: dict[str, CreditOutput] = {}
    for name, method in methods.items():
        if method.rule is not None:
            continue
        if method.estimator is not None:
            outputs[name] = method.estimator(inputs, options)
        elif method.steps is not None:
            credit = steps[method.steps]
            outputs[name] = uncorrected(inputs, credit.advantages, step_diagnostics(inputs, credit))
        else:
            outputs[name] = outcome_only(inputs, _with_base(options, method))
    for under in dict.fromkeys((m.base, m.steps) for m in methods.values() if m.rule is not None):
        some = {n: m for n, m in methods.items() if m.rule is not None and (m.base, m.steps) == under}
        corrected = _correct(some, inputs, aggregate, options, None if under[1] is None else steps[under[1]])
        outputs |= dict(zip(some, corrected, strict=True))
    return {name: outputs[name] for name in methods}


def _check_needs(methods: Mapping[str, CreditMethod], inputs: CreditInputs) -> None:
    for name, method in methods.items():
        for field in sorted(method.needs):
            if getattr(inputs, field) is None:
                raise ValueError(f"credit method {name!r} needs CreditInputs.{field}, which is None")


def _with_base(options: VictOptions, method: CreditMethod) -> VictOptions:
    return dataclasses.replace(options, base=method.base or options.base)


def _correct(
    methods: Mapping[str, CreditMethod],
    inputs: CreditInputs,
    aggregate: Aggregate,
    options: VictOptions,
    credit: StepCredit | None,
) -> list[CreditOutput]:
    """Methods with a rule and the same advantages before it: those of `credit`, or else of their base."""
    rules = [method.rule for method in methods.values() if method.rule is not None]
    if credit is None:
        first = next(iter(methods.values()))
        return correct_outcome(rules, inputs, aggregate, _with_base(options, first))
    outputs = apply_rules(
        rules,
        inputs,
        aggregate,
        options,
        step_advantages=credit.advantages,
        outcome=credit.outcome,
        scale=credit.scale,
    )
    figures = step_diagnostics(inputs, credit)
    return [dataclasses.replace(o, diagnostics={**o.diagnostics, **figures}) for o in outputs]
