"""Greedy and complete cores against the smallest ones that an exhaustive search finds (appendix E).

For every rollout with a side q and at most `MOST_ATOMS` usable atoms all requirement-closed sets of them are
tried; the exhaustive core is the smallest whose effect Delta reaches rho, the one with the lowest indices
among equals. The greedy and the exhaustive core have literal marginals (Eq. 13), the complete core its own
contextual ones, so that each rule is shown as it is used.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vict_jax.audit.source import Batch, Setting, on_device
from vict_jax.audit.text import number, share, table
from vict_jax.batching import to_host
from vict_jax.credit.cores import CORES, MARGINALS, Core, Score, direction, effect, refusal
from vict_jax.credit.diagnostics import Cause
from vict_jax.credit.options import VictOptions
from vict_jax.credit.rules import RolloutView, TaskView, gate, proof_edges, views
from vict_jax.credit.vict import outcome_advantages
from vict_jax.types import Aggregate, CreditInputs, Status, pytree

MOST_ATOMS = 12
_EXHAUSTIVE = "exhaustive"
_MARGINALS = {"greedy": "literal", "complete": "contextual", _EXHAUSTIVE: "literal"}
RULES = ("greedy", "complete")
# Sets tried at once in one rollout: what bounds the memory.
_CHUNK = 256


def all_subsets(atoms: int) -> np.ndarray:
    """bool[2**atoms, atoms]: every subset, small ones first, equal sizes by their lowest indices first.

    Raises:
      ValueError: more than `MOST_ATOMS` atoms.
    """
    if not 1 <= atoms <= MOST_ATOMS:
        raise ValueError(f"atoms={atoms} must be from 1 to {MOST_ATOMS}: there are 2**atoms subsets")
    rows = np.zeros((2**atoms, atoms), bool)
    chosen = (c for size in range(atoms + 1) for c in itertools.combinations(range(atoms), size))
    for row, members in zip(rows, chosen, strict=True):
        row[list(members)] = True
    return rows


def exhaustive_core(
    score: Score,
    satisfied: jax.Array,
    q: jax.Array,
    rho: jax.Array,
    *,
    requires: jax.Array,
    usable: jax.Array,
    subsets: jax.Array,
) -> Core:
    """The smallest closed set with Delta >= rho; without one, no atoms and Delta 0.

    Args: as those of `vict_jax.credit.cores.greedy_core`, and
      subsets: bool[S, K] from `all_subsets`, K at least the number of usable atoms.
    """
    atoms, places = len(usable), subsets.shape[1]
    order = jnp.argsort(~usable, stable=True)[:places]  # the usable atoms, in order

    def weigh(row: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        chosen = jnp.zeros(atoms, bool).at[order].set(row)
        closed = jnp.any(requires & chosen[:, None], axis=0)
        whole = jnp.all((closed & usable) == chosen)
        delta = effect(score, satisfied, q, closed, requires)
        return closed, delta, whole & jnp.any(chosen) & (delta >= rho)

    sets, deltas, reach = jax.lax.map(weigh, subsets, batch_size=_CHUNK)
    size = jnp.where(reach, jnp.sum(sets, axis=-1), atoms + 1)
    best = jnp.argmin(size)  # the first of the smallest
    found = reach[best]
    return Core(
        atoms=sets[best] & found, delta=jnp.where(found, deltas[best], 0.0), budget_hit=jnp.zeros((), bool)
    )


@pytree
class _Compared:
    """Of each rollout: `admitted` bool[], it has a side and a sound record; and by rule `accepted` bool[],
    `size` i32[] and `actions` bool[T], those with an edge to a core atom with a marginal."""

    admitted: jax.Array
    accepted: Mapping[str, jax.Array]
    size: Mapping[str, jax.Array]
    actions: Mapping[str, jax.Array]


def _compare_rollout(
    task: TaskView, rollout: RolloutView, aggregate: Aggregate, options: VictOptions, subsets: jax.Array
) -> _Compared:
    satisfied = rollout.terminal == Status.SATISFIED
    known = rollout.usable & (rollout.terminal != Status.UNKNOWN)

    def score(assignment: jax.Array) -> jax.Array:
        return jnp.asarray(aggregate(assignment, task.params), jnp.float32)

    q, rho = direction(rollout.outcome, rollout.scale, eps_q=options.eps_q, gamma_rho=options.gamma_rho)
    case = {"requires": rollout.requires, "usable": rollout.usable}
    cores = {
        rule: CORES[rule](score, satisfied, q, rho, eta=task.eta, budget=options.budget, **case)
        for rule in RULES
    }
    cores[_EXHAUSTIVE] = exhaustive_core(score, satisfied, q, rho, subsets=subsets, **case)
    linked = jnp.any(proof_edges(task, rollout, options).linked, axis=-1)
    admitted = rollout.real & (gate(task, rollout, options) == Cause.NONE)
    accepted, actions = {}, {}
    for rule, core in cores.items():
        accepted[rule] = admitted & (refusal(core, rho, task.eta) == Cause.NONE)
        marginal = MARGINALS[_MARGINALS[rule]](score, rollout.terminal, q, core.atoms, **case)
        carries = core.atoms & known & (marginal != 0)
        actions[rule] = accepted[rule] & jnp.any(linked & carries, axis=-1)
    sizes = {rule: jnp.sum(core.atoms) for rule, core in cores.items()}
    return _Compared(admitted=admitted, accepted=accepted, size=sizes, actions=actions)


@functools.partial(jax.jit, static_argnames=("aggregate", "options"))
def _compare(
    inputs: CreditInputs, subsets: jax.Array, *, aggregate: Aggregate, options: VictOptions
) -> _Compared:
    """All rollouts, one after the other, with leading axes [G, N]."""
    tasks, rollouts = views(inputs, *outcome_advantages(inputs, options))

    def group(case: tuple[TaskView, RolloutView]) -> _Compared:
        task, members = case
        return jax.lax.map(
            lambda member: _compare_rollout(task, member, aggregate, options, subsets), members
        )

    return jax.lax.map(group, (tasks, rollouts))


@dataclasses.dataclass(frozen=True)
class RuleReport:
    """A rule beside the exhaustive search.

    Attributes:
      accepted: rollouts whose core is accepted. both: those where the search finds one, too.
      minimal: share of `both` whose core is no larger. same_actions: share of `both` with the same
        eligible actions. overlap: mean of common over all eligible actions of either, over `both`.
      mean_size: of the cores of `both`.
    """

    accepted: int
    both: int
    minimal: float | None
    same_actions: float | None
    overlap: float | None
    mean_size: float | None


@dataclasses.dataclass(frozen=True)
class CoreReport:
    """Cores of all audited rollouts.

    Attributes:
      rollouts: those with a side q and a sound, conforming record. skipped: those of them with more than
        `MOST_ATOMS` usable atoms. found: those where the search finds a core; mean_size: of these.
      rules: `greedy` and `complete`.
    """

    rollouts: int
    skipped: int
    found: int
    mean_size: float | None
    rules: Mapping[str, RuleReport]

    def figures(self) -> dict[str, float | None]:
        """Those that the paper reports."""
        greedy = self.rules["greedy"]
        return {"greedy_minimal": greedy.minimal, "greedy_same_actions": greedy.same_actions}

    def to_json(self) -> dict[str, Any]:
        """As plain JSON types."""
        return dataclasses.asdict(self)

    def text(self) -> str:
        """As a table."""
        rows = [
            [
                rule,
                *(str(n) for n in (report.accepted, report.both)),
                *map(share, (report.minimal, report.same_actions, report.overlap)),
                number(report.mean_size),
            ]
            for rule, report in self.rules.items()
        ]
        title = ["core", "accepted", "in both", "minimum size", "same actions", "overlap", "mean size"]
        head = (
            f"{self.rollouts} rollouts with a side; {self.skipped} left out, above {MOST_ATOMS} usable "
            f"atoms; the search finds a core in {self.found}, mean size {number(self.mean_size)}"
        )
        return f"{head}\n{table(title, rows, align='lrrrrrr')}"


def compare_cores(setting: Setting, batches: Sequence[Batch]) -> CoreReport:
    """Compare the rules on all rollouts of `batches`."""
    parts: list[_Compared] = []
    for batch in batches:
        atoms = np.sum(batch.inputs.usable, axis=-1)
        compared = to_host(
            _compare(
                on_device(batch.inputs),
                jnp.asarray(all_subsets(min(max(int(atoms.max()), 1), MOST_ATOMS))),
                aggregate=setting.domain.aggregate,
                options=setting.options,
            )
        )
        parts.append(jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), compared))
    whole: _Compared = jax.tree.map(lambda *xs: np.concatenate(xs), *parts)
    small = np.concatenate([np.sum(batch.inputs.usable, axis=-1).ravel() <= MOST_ATOMS for batch in batches])
    found = np.asarray(whole.accepted[_EXHAUSTIVE] & small)
    least = np.asarray(whole.size[_EXHAUSTIVE])[found]
    return CoreReport(
        rollouts=int(whole.admitted.sum()),
        skipped=int((whole.admitted & ~small).sum()),
        found=int(found.sum()),
        mean_size=_mean(least),
        rules={rule: _rule_report(whole, rule, found, small) for rule in RULES},
    )


def _rule_report(whole: _Compared, rule: str, found: np.ndarray, small: np.ndarray) -> RuleReport:
    both = np.asarray(whole.accepted[rule] & found)
    size, least = (np.asarray(whole.size[name])[both] for name in (rule, _EXHAUSTIVE))
    actions, ideal = (np.asarray(whole.actions[name])[both] for name in (rule, _EXHAUSTIVE))
    common, either = (actions & ideal).sum(axis=-1), (actions | ideal).sum(axis=-1)
    return RuleReport(
        accepted=int((whole.accepted[rule] & small).sum()),
        both=int(both.sum()),
        minimal=_mean(size <= least),
        same_actions=_mean((actions == ideal).all(axis=-1)),
        overlap=_mean(np.where(either > 0, common / np.maximum(either, 1), 1.0)),
        mean_size=_mean(size),
    )


def _mean(values: np.ndarray) -> float | None:
    return float(values.mean()) if len(values) else None
