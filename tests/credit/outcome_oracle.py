"""Outcome estimators and GAE a second time: plain loops in float64 over the real rollouts only."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from vict_jax.types import CreditInputs

Rewards = dict[tuple[int, int], list[float]]  # (group, rollout) -> reward of each step


def rewards(inputs: CreditInputs) -> Rewards:
    found: Rewards = {}
    for g, n in np.argwhere(np.asarray(inputs.rollout_mask)).tolist():
        steps = int(np.sum(inputs.step_mask[g, n]))
        found[g, n] = [-float(inputs.penalty[g, n, t]) for t in range(steps)]
        found[g, n][-1] += float(inputs.score[g, n])
    return found


def to_go(reward: list[float], discount: float) -> list[float]:
    return [sum(discount ** (k - t) * reward[k] for k in range(t, len(reward))) for t in range(len(reward))]


def mean_std(values: list[float], weights: list[float]) -> tuple[float, float]:
    total = sum(weights)
    if not total:
        return 0.0, 0.0
    mean = sum(v * w for v, w in zip(values, weights, strict=True)) / total
    square = sum(w * (v - mean) ** 2 for v, w in zip(values, weights, strict=True))
    return mean, math.sqrt(square / max(total - 1, 1))


def whiten(steps: dict[tuple[int, int], list[float]], *, rows: bool, eps: float) -> Any:
    values = [x for some in steps.values() for x in some]
    weights = [1.0 if rows else 1.0 / len(some) for some in steps.values() for _ in some]
    mean, std = mean_std(values, weights)
    if len(set(values)) < 2:
        return {at: [0.0] * len(some) for at, some in steps.items()}
    return {at: [(x - mean) / (std + eps) for x in some] for at, some in steps.items()}


def _of_group(base: str, totals: list[float], lengths: list[int], eps: float) -> list[float]:
    n = len(totals)
    if len(set(totals)) < 2:
        return [0.0] * n
    if base == "rloo":
        return [r - (sum(totals) - r) / (n - 1) for r in totals]
    weights = [float(k) for k in lengths] if base == "grpo_rows" else [1.0] * n
    mean, std = mean_std(totals, weights)
    scale = std + eps if base.startswith("grpo") else 1.0
    return [(r - mean) / scale for r in totals]


def advantages(inputs: CreditInputs, base: str, *, discount: float, eps: float) -> np.ndarray:
    """f64[G, N, T], 0 on padding."""
    reward = rewards(inputs)
    out = np.zeros(np.asarray(inputs.step_mask).shape)
    if base in ("reinforce_pp", "reinforce_pp_rows"):
        steps = {at: to_go(some, discount) for at, some in reward.items()}
        found = whiten(steps, rows=base.endswith("_rows"), eps=eps)
    else:
        found = {}
        name = "dr_grpo" if base == "reinforce_pp_baseline" else base
        for g in range(len(out)):
            members = [at for at in reward if at[0] == g]
            lengths = [len(reward[at]) for at in members]
            values = _of_group(name, [sum(reward[at]) for at in members], lengths, eps)
            found |= {at: [v] * k for at, v, k in zip(members, values, lengths, strict=True)}
        if base == "reinforce_pp_baseline":
            _, std = mean_std([some[0] for some in found.values()], [1.0] * len(found))
            found = {at: [x / (std + eps) for x in some] for at, some in found.items()}
    for (g, n), some in found.items():
        out[g, n, : len(some)] = some
    return out


def gae(inputs: CreditInputs, *, discount: float, gae_lambda: float) -> tuple[np.ndarray, np.ndarray]:
    """Advantages before whitening and lambda-returns, f64[G, N, T]: the sum over k-step errors, Eq. 16."""
    out, target = (np.zeros(np.asarray(inputs.step_mask).shape) for _ in range(2))
    for (g, n), reward in rewards(inputs).items():
        steps = len(reward)
        value = [float(v) for v in inputs.value[g, n, :steps]] + [0.0]
        delta = [reward[t] + discount * value[t + 1] - value[t] for t in range(steps)]
        for t in range(steps):
            out[g, n, t] = sum((discount * gae_lambda) ** (k - t) * delta[k] for k in range(t, steps))
            target[g, n, t] = out[g, n, t] + value[t]
    return out, target
