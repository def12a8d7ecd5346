"""The step-level methods written a second time: plain loops and dicts in float64, one group at a time.

Nothing here is shared with the kernels but option names. A step is a pair (rollout, t).
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Hashable
from typing import Any

import jax
import numpy as np

from vict_jax.credit.options import VictOptions
from vict_jax.credit.step_options import StepOptions
from vict_jax.types import CreditInputs, Kind

Step = tuple[int, int]
Values = dict[Step, float]


class Group:
    """One task group as lists: real rollouts, their lengths, scores and identifiers."""

    def __init__(self, inputs: CreditInputs, options: VictOptions):
        self.rollouts = [n for n in range(len(inputs.score)) if inputs.rollout_mask[n]]
        self.length = {n: int(np.sum(inputs.step_mask[n])) for n in self.rollouts}
        self.steps: list[Step] = [(n, t) for n in self.rollouts for t in range(self.length[n])]
        score = {n: float(inputs.score[n]) for n in self.rollouts}
        self.success = {n: score[n] >= 1 for n in self.rollouts}
        self.score = {n: float(self.success[n]) for n in score} if options.steps.success_only else score
        self.penalty = {(n, t): float(inputs.penalty[n, t]) for n, t in self.steps}
        self.total = {
            n: self.score[n] - sum(self.penalty[n, t] for t in range(self.length[n])) for n in score
        }
        self.state = {(n, t): int(inputs.state_id[n, t]) for n in score for t in range(self.length[n] + 1)}
        self.action = {(n, t): int(inputs.action_id[n, t]) for n, t in self.steps}
        self.cluster = {s: int(inputs.cluster_id[s]) for s in self.steps}
        self.terms = {s: np.asarray(inputs.state_terms[s], np.float64) for s in self.steps}
        self.fired = {s: [bool(x) for x in inputs.rubric[s]] for s in self.steps}
        self.kinds = [Kind(int(code)) for code in inputs.rubric_kind]
        self.context = {s: int(inputs.context_id[s]) for s in self.steps}
        self.hindsight = {s: float(inputs.hindsight_logp[s]) for s in self.steps}

    def returns(self, gamma: float, pay: float) -> Values:
        out: Values = {}
        for n in self.rollouts:
            later = 0.0
            for t in reversed(range(self.length[n])):
                reward = self.score[n] if t == self.length[n] - 1 else 0.0
                later = reward - self.penalty[n, t] + gamma * later
                out[n, t] = pay * later
        return out


def spread(values: list[float], ddof: int) -> tuple[float, float]:
    mean = sum(values) / len(values)
    return mean, math.sqrt(sum((v - mean) ** 2 for v in values) / max(len(values) - ddof, 1))


def episode(group: Group, mode: str, options: VictOptions) -> dict[int, float]:
    """A^E of each rollout."""
    counted = [
        group.total[n] for n in group.rollouts for _ in range(group.length[n] if options.steps.rows else 1)
    ]
    if len(set(group.total.values())) < 2:
        return dict.fromkeys(group.rollouts, 0.0)
    mean, std = spread(counted, 1)
    if mode == "mean":
        return {n: options.steps.pay * (group.total[n] - mean) for n in group.rollouts}
    return {n: (group.total[n] - mean) / (std + options.eps) for n in group.rollouts}


def within(
    values: Values, key: Callable[[Step], Hashable], mode: str, eps: float, ddof: int = 1
) -> tuple[Values, set[Step]]:
    """Advantages among the steps of one key, and the steps that had something to compare with."""
    members: dict[Hashable, list[Step]] = defaultdict(list)
    for step in values:
        members[key(step)].append(step)
    out, compared = dict.fromkeys(values, 0.0), set()
    for steps in members.values():
        row = [values[s] for s in steps]
        if max(row) - min(row) < 1e-12:
            continue
        mean, std = spread(row, ddof)
        for s in steps:
            out[s] = (values[s] - mean) / (std + eps if mode == "mean_std" else 1.0)
            compared.add(s)
    return out, compared


def gigpo(group: Group, options: VictOptions, *, similar: bool = False) -> Values:
    o = options.gigpo
    states: dict[Step, int] = group.cluster if similar else group.state
    returns = group.returns(o.gamma, options.steps.pay)
    steps, _ = within(returns, lambda s: states[s], o.mode, options.eps)
    outcome = episode(group, o.mode, options)
    return {s: outcome[s[0]] + o.omega * steps[s] for s in group.steps}


def hgpo(group: Group, options: VictOptions) -> Values:
    o = options.hgpo
    returns = group.returns(o.gamma, options.steps.pay)
    found: dict[Step, list[tuple[float, float]]] = defaultdict(list)
    if o.base_group and len(set(group.total.values())) > 1:
        outcome = episode(group, o.mode, options)
        for s in group.steps:
            found[s].append((1.0, outcome[s[0]]))
    for k in range(1, o.history + 2):
        having = {(n, t): returns[n, t] for n, t in group.steps if t + 1 >= k}
        steps, compared = within(
            having,
            lambda s, k=k: tuple(group.state[s[0], t] for t in range(s[1] - k + 1, s[1] + 1)),
            o.mode,
            options.eps,
            ddof=0,
        )
        for s in compared:
            found[s].append(((k + 1) ** o.alpha, steps[s]))
    return {
        s: sum(w * a for w, a in found[s]) / sum(w for w, _ in found[s]) if found[s] else 0.0
        for s in group.steps
    }


def salt(group: Group, options: VictOptions) -> Values:
    """With base `grpo` or `dr_grpo`."""
    outcome = episode(group, {"grpo": "mean_std", "dr_grpo": "mean"}[options.base], options)
    who: dict[Hashable, set[int]] = defaultdict(set)

    def edge(s: Step) -> Hashable:
        return group.state[s], group.action[s], group.state[s[0], s[1] + 1]

    for s in group.steps:
        who[edge(s)].add(s[0])
    return {s: sum(outcome[n] for n in who[edge(s)]) / len(who[edge(s)]) for s in group.steps}


GOAL = "goal"


def graph_distances(group: Group) -> dict[Hashable, float]:
    """Shortest ways to the goal by breadth-first search against the edges."""
    into: dict[Hashable, set[Hashable]] = defaultdict(set)
    for n, t in group.steps:
        into[after(group, (n, t))].add(group.state[n, t])
    found: dict[Hashable, float] = {GOAL: 0}
    frontier: list[Hashable] = [GOAL]
    while frontier:
        reached = []
        for node in frontier:
            for source in into[node] - set(found):
                found[source] = found[node] + 1
                reached.append(source)
        frontier = reached
    return found


def after(group: Group, step: Step) -> Hashable:
    n, t = step
    return GOAL if group.success[n] and t == group.length[n] - 1 else group.state[n, t + 1]


def graphgpo(group: Group, options: VictOptions) -> Values:
    o, distance = options.graphgpo, graph_distances(group)
    unreachable = max(distance.values()) + 1
    value = {
        s: options.steps.pay * o.gamma ** distance.get(after(group, s), unreachable) for s in group.steps
    }
    steps, _ = within(value, lambda s: group.state[s], o.mode, options.eps)
    outcome = episode(group, o.mode, options)
    return {s: outcome[s[0]] + o.omega * steps[s] for s in group.steps}


def rewardflow(group: Group, options: VictOptions) -> Values:
    """Values by repeated sweeps of V(s) = gamma max V(s'), not by distances."""
    o = options.rewardflow
    value: dict[Hashable, float] = defaultdict(float, {GOAL: options.steps.pay})
    for _ in range(len(group.steps) + 1):
        for s in group.steps:
            value[group.state[s]] = max(value[group.state[s]], o.gamma * value[after(group, s)])
    gain = {s: value[after(group, s)] - value[group.state[s]] for s in group.steps}
    steps, _ = within(gain, lambda s: group.state[s], o.mode, options.eps)
    outcome = episode(group, o.mode, options)
    return {s: outcome[s[0]] + o.omega * steps[s] for s in group.steps}


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def proxmo(group: Group, options: VictOptions) -> Values:
    o = options.proxmo
    returns, outcome = group.returns(o.gamma, options.steps.pay), episode(group, "mean", options)
    rate = sum(group.success.values()) / max(len(group.rollouts), 1)
    out: Values = {}
    for s in group.steps:
        x = 1 - rate if group.success[s[0]] else rate
        f = (sigmoid(x**o.steepness) - 0.5) / (sigmoid(1.0) - 0.5) / 2
        weight = 1 + o.modulation * (f if group.success[s[0]] else -f)
        near = {
            other: math.exp(float(group.terms[s] @ group.terms[other]) / o.temperature)
            for other in group.steps
        }
        baseline = sum(near[other] * returns[other] for other in near) / sum(near.values())
        out[s] = weight * outcome[s[0]] + o.omega * (returns[s] - baseline)
    return out


def rubric_reward(group: Group, options: VictOptions) -> Values:
    """r of each step, by the potential of coverage as the paper defines it."""
    o = options.trca
    budget = {
        Kind.NONE: 0.0,
        Kind.EVIDENCE: o.evidence,
        Kind.EXECUTION: o.execution,
        Kind.INVALIDITY: o.invalidity,
    }
    pay = [budget[kind] / group.kinds.count(kind) for kind in group.kinds]
    good = [kind in (Kind.EVIDENCE, Kind.EXECUTION) for kind in group.kinds]
    out: Values = {}
    for n in group.rollouts:
        before = 0.0
        for t in range(group.length[n]):
            covered = [any(group.fired[n, u][j] for u in range(t + 1)) for j in range(len(pay))]
            potential = sum(p for p, c, g in zip(pay, covered, good, strict=True) if c and g)
            foundational = sum(p for p, fired in zip(pay, group.fired[n, t], strict=True) if fired)
            out[n, t] = (1 - o.breakthrough) * foundational + o.breakthrough * (potential - before)
            before = potential
    return out


def trca(group: Group, options: VictOptions) -> Values:
    o, reward = options.trca, rubric_reward(group, options)
    returns = group.returns(o.gamma, options.steps.pay)
    for n, t in group.steps:
        returns[n, t] += sum(o.gamma ** (k - t) * reward[n, k] for k in range(t, group.length[n]))
    steps, _ = within(returns, lambda s: group.context[s], o.mode, options.eps)
    outcome = episode(group, o.mode, options)
    return {s: outcome[s[0]] + o.omega * steps[s] for s in group.steps}


def hcapo(group: Group, options: VictOptions) -> Values:
    o, values = options.hcapo, dict[Step, float]()
    for n in group.rollouts:
        score = [math.exp(group.hindsight[n, t] / o.temperature) for t in range(group.length[n])]
        for t in range(group.length[n]):
            rho = min(max(score[t] / (sum(score) / len(score)), o.rho_low), o.rho_high)
            left = group.length[n] - 1 - t
            values[n, t] = rho * o.gamma**left * options.steps.pay * group.total[n]
    smooth = dict(values)
    for n, t in group.steps:
        if t + 1 < group.length[n]:
            smooth[n, t] = (1 - o.smoothing) * values[n, t] + o.smoothing * values[n, t + 1]
    micro, _ = within(smooth, lambda s: "all", "mean_std", options.eps)
    outcome = episode(group, "mean_std", options)
    return {
        s: outcome[s[0]] + o.omega * (max(micro[s], 0.0) if group.success[s[0]] else micro[s])
        for s in group.steps
    }


ORACLES: dict[str, Callable[[Group, VictOptions], Values]] = {
    "gigpo": gigpo,
    "gigpo_similar": lambda group, options: gigpo(group, options, similar=True),
    "hgpo": hgpo,
    "salt": salt,
    "graphgpo": graphgpo,
    "rewardflow": rewardflow,
    "proxmo": proxmo,
    "trca": trca,
    "hcapo": hcapo,
}


def advantages(method: str, inputs: CreditInputs, options: VictOptions) -> np.ndarray:
    """f64[G, N, T] of a batch; 0 on padding."""
    out = np.zeros(inputs.commits.shape)
    if method == "salt":  # it shares the advantages of `options.base`, which knows no pay
        options = dataclasses.replace(options, steps=StepOptions(pay=1.0))
    for g in range(len(out)):
        one: Any = jax.tree.map(lambda x, g=g: np.asarray(x)[g], inputs)
        for (n, t), value in ORACLES[method](Group(one, options), options).items():
            out[g, n, t] = value
    return out
