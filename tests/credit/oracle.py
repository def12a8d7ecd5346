"""The credit method written a second time: plain loops and Python sets in float64, slow and obvious.

Nothing here is shared with the kernels but the option and code names. Each function follows one formula
of the method page; an assignment is a set of satisfied atoms. The stages that controls replace are
arguments of `credit`; theirs are in `control_oracle`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from vict_jax.credit.diagnostics import Cause
from vict_jax.credit.options import VictOptions
from vict_jax.types import CreditInputs, Relation, Status

Score = Callable[[set[int]], float]


# --- base advantages ------------------------------------------------------------------------------


def base_advantages(scores: list[float], base: str, eps: float) -> tuple[list[float], float]:
    n = len(scores)
    mean = sum(scores) / n if n else 0.0
    variance = sum((r - mean) ** 2 for r in scores) / (n - 1) if n > 1 else 0.0
    scale = 1.0 if base in ("rloo", "dr_grpo") else math.sqrt(variance) + eps
    if n < 2 or len(set(scores)) == 1:
        return [0.0] * n, scale
    if base == "rloo":
        return [r - (sum(scores) - r) / (n - 1) for r in scores], 1.0
    return [(r - mean) / scale for r in scores], scale


# --- Eq. 4 and 12 ---------------------------------------------------------------------------------


def edges_of_atom(group: CreditInputs, i: int, j: int) -> list[tuple[int, Relation]]:
    steps = int(np.sum(group.step_mask[i]))
    found: list[tuple[int, Relation]] = []
    if not group.usable[i, j]:
        return found
    evidence = group.evidence[i]
    bound = [v for v in range(evidence.shape[1]) if group.binds[j, v]]
    for t in range(steps):
        if any(not group.observation_var[v] and evidence[t, v] != evidence[t + 1, v] for v in bound):
            found.append((t, Relation.WRITE))
        for v in bound:
            never_before = all(evidence[s, v] == 0 for s in range(t + 1))
            if group.observation_var[v] and never_before and evidence[t + 1, v] != 0:
                found.append((t, Relation.REVEAL))
                break
        if group.commits[i, t] and group.scope[i, t, j]:
            found.append((t, Relation.COMMIT))
        was, now = group.status[i, t, j], group.status[i, t + 1, j]
        if group.irreversible[j] and now == Status.VIOLATED and was != Status.VIOLATED:
            found.append((t, Relation.VIOLATE))
    if group.terminal_only[j]:
        writes = [edge for edge in found if edge[1] == Relation.WRITE]
        commits = [edge for edge in found if edge[1] == Relation.COMMIT]
        return writes[-1:] or commits[-1:]
    return found


Edge = tuple[int, int, float]  # action, kind, weight


def proof_edges(group: CreditInputs, i: int, j: int, options: VictOptions) -> list[Edge]:
    edges = edges_of_atom(group, i, j)
    reveals = sum(1 for _, r in edges if r == Relation.REVEAL)
    return [(t, int(r), 1.0 / reveals if r == Relation.REVEAL else 1.0) for t, r in edges]


# --- Eq. 6 and 13 ---------------------------------------------------------------------------------


class Verifier:
    """Edits of one rollout's terminal assignment and their effects."""

    def __init__(self, group: CreditInputs, i: int, satisfied: set[int], aggregate: Any, q: int):
        self.atoms = group.usable.shape[-1]
        self.group, self.i, self.satisfied, self.aggregate, self.q = group, i, satisfied, aggregate, q
        self.usable = [j for j in range(self.atoms) if group.usable[i, j]]
        self.requires = {
            j: {k for k in range(self.atoms) if group.requires[i, j, k]} for j in range(self.atoms)
        }

    def score(self, satisfied: set[int]) -> float:
        flags = np.array([j in satisfied for j in range(self.atoms)])
        return float(self.aggregate(flags, self.group.params))

    def closure(self, atoms: set[int]) -> set[int]:
        return set().union(*(self.requires[j] for j in atoms)) if atoms else set()

    def remove(self, satisfied: set[int], atoms: set[int]) -> set[int]:
        return {k for k in satisfied if not (self.requires[k] & atoms)}

    def repair(self, satisfied: set[int], atoms: set[int]) -> set[int]:
        return satisfied | self.closure(atoms)

    def delta(self, atoms: set[int]) -> float:
        if self.q > 0:
            return self.score(self.satisfied) - self.score(self.remove(self.satisfied, atoms))
        return self.score(self.repair(self.satisfied, atoms)) - self.score(self.satisfied)

    def world(self) -> set[int]:
        return self.satisfied if self.q > 0 else self.repair(self.satisfied, set(self.usable))

    def single(self, j: int) -> float:
        return self.score(self.world()) - self.score(self.remove(self.world(), {j}))

    def complete(self, eta: float, budget: int) -> tuple[set[int], float, bool]:
        candidates = [j for j in self.usable if self.single(j) > 2 * eta]
        best = sorted(candidates, key=lambda j: (-self.single(j), j))[:budget]
        core = self.closure(set(best))
        delta = self.delta(core) if self.q > 0 else self.score(self.world()) - self.score(self.satisfied)
        return core, delta, len(candidates) > budget

    def greedy(self, rho: float, budget: int) -> tuple[set[int], float, bool]:
        core: set[int] = set()
        for _ in range(budget):
            rest = [j for j in self.usable if j not in core]
            if self.delta(core) >= rho or not rest:
                break
            core = max((core | self.requires[j] for j in rest), key=self.delta)  # max keeps the first
        reached = self.delta(core) >= rho
        hit = not reached and any(j not in core for j in self.usable)
        if reached:
            for j in reversed(range(self.atoms)):
                if j in core:
                    smaller = core - {j}
                    if self.closure(smaller) == smaller and self.delta(smaller) >= rho:
                        core = smaller
        return core, self.delta(core), hit

    def marginal(self, j: int, core: set[int], marginals: str) -> float:
        if marginals == "contextual":
            return self.single(j) if j in self.satisfied else -self.single(j)
        return self.delta(core) - self.delta(core - {j}) if j in core else 0.0


Core = tuple[set[int], float, bool]  # atoms, Delta, whether the budget was hit


def core_atoms(verifier: Verifier, rho: float, options: VictOptions) -> Core:
    if options.core == "complete":
        return verifier.complete(float(verifier.group.eta), options.budget)
    return verifier.greedy(rho, options.budget)


def core_marginal(verifier: Verifier, j: int, core: set[int], options: VictOptions) -> float:
    return verifier.marginal(j, core, options.marginals)


# --- Eq. 16 ---------------------------------------------------------------------------------------


def spread_of(values: list[float], scale: str) -> float:
    x = np.array(values)
    if scale == "std":
        return float(np.std(x, ddof=1))
    if scale == "mad":
        return float(np.median(np.abs(x - np.median(x))))
    if scale == "iqr":
        return float(np.quantile(x, 0.75) - np.quantile(x, 0.25))
    return float(np.mean(np.abs(x - np.mean(x))))


# --- the whole ------------------------------------------------------------------------------------


def gate(verifier: Verifier, group: CreditInputs) -> Cause:
    satisfied, usable = verifier.satisfied, set(verifier.usable)
    if not group.conforming or not usable:
        return Cause.CONFORMANCE
    if any((verifier.requires[j] & usable) - satisfied for j in satisfied & usable):
        return Cause.INCONSISTENT_RECORD
    if verifier.q == 0:
        return Cause.NEAR_TIE
    return Cause.NONE


def core_refusal(group: CreditInputs, core: set[int], delta: float, hit: bool, rho: float) -> Cause:
    eta = float(group.eta)
    if core and eta > 0 and abs(delta - rho) <= 2 * eta:
        return Cause.UNCERTAINTY_BAND
    if not core or delta < rho:
        return Cause.BUDGET if hit else Cause.NO_CORE
    return Cause.NONE


def group_view(inputs: CreditInputs, g: int) -> CreditInputs:
    fields = {
        name: np.asarray(value)[g]
        for name, value in vars(inputs).items()
        if name != "params" and value is not None
    }
    return CreditInputs(**fields, params={k: np.asarray(x)[g] for k, x in inputs.params.items()})


def credit(
    inputs: CreditInputs,
    aggregate: Any,
    options: VictOptions,
    *,
    edges_of: Callable[[CreditInputs, int, int, VictOptions], list[Edge]] = proof_edges,
    core_of: Callable[[Verifier, float, VictOptions], Core] = core_atoms,
    marginal_of: Callable[[Verifier, int, set[int], VictOptions], float] = core_marginal,
    refusal_of: Callable[[CreditInputs, set[int], float, bool, float], Cause] = core_refusal,
    place: Callable[[CreditInputs, np.ndarray, dict[int, Cause], VictOptions], np.ndarray] | None = None,
) -> dict[str, Any]:
    """Everything `vict` returns, as float64 arrays by name; `inputs` has no padded atoms."""
    g_count, n_count, t_count, m_count = inputs.scope.shape
    shape = (g_count, n_count, t_count, m_count, len(Relation))
    out: dict[str, Any] = {
        "witness": np.zeros(shape, bool),
        "weight": np.zeros(shape),
        "contribution": np.zeros(shape),
        "marginal": np.zeros((*shape[:2], m_count)),
        "marginal_norm": np.zeros((*shape[:2], m_count)),
        "core": np.zeros((*shape[:2], m_count), bool),
        "cause": np.zeros(shape[:2], int),
        "atom_cause": np.zeros((*shape[:2], m_count), int),
        "base": np.zeros(shape[:3]),
    }
    a_vict = np.zeros(shape[:3])
    counts: Counter[str] = Counter()
    for g in range(g_count):
        group = group_view(inputs, g)
        real = [i for i in range(n_count) if group.rollout_mask[i]]
        advantages, scale = base_advantages([float(group.score[i]) for i in real], options.base, options.eps)
        edges, hits, potentials, gates = {}, {}, {}, {}
        for i, advantage in zip(real, advantages, strict=True):
            steps = int(np.sum(group.step_mask[i]))
            out["base"][g, i, :steps] = advantage
            q = int(np.sign(advantage)) if abs(advantage) > options.eps_q else 0
            rho = options.gamma_rho * scale * abs(advantage)
            satisfied = {j for j in range(m_count) if group.status[i, steps, j] == Status.SATISFIED}
            verifier = Verifier(group, i, satisfied, aggregate, q)
            core, delta, hits[i] = core_of(verifier, rho, options)
            gates[i] = gate(verifier, group)
            cause = gates[i] or refusal_of(group, core, delta, hits[i], rho)
            out["cause"][g, i] = cause
            counts["reconstructed"] += abs(verifier.score(satisfied) - float(group.score[i])) <= group.eta
            for j in range(m_count):
                edges[i, j] = edges_of(group, i, j, options)
                for t, kind, weight in edges[i, j]:
                    out["witness"][g, i, t, j, kind] = True
                    out["weight"][g, i, t, j, kind] = weight
                potentials[i, j] = marginal_of(verifier, j, core, options)
                if cause == Cause.NONE and j in core:
                    out["core"][g, i, j] = True
                    if group.usable[i, j] and group.status[i, steps, j] != Status.UNKNOWN:
                        out["marginal"][g, i, j] = potentials[i, j]
        for j in range(m_count):
            supported = [i for i in real if out["core"][g, i, j] and group.usable[i, j] and edges[i, j]]
            values = [out["marginal"][g, i, j] for i in supported]
            spread = spread_of(values, options.scale) if len(values) >= 2 else 0.0
            for i in supported:
                if spread > options.eps and out["marginal"][g, i, j] != 0:
                    middle = np.median(values) if options.center == "median" else np.mean(values)
                    dhat = (out["marginal"][g, i, j] - middle) / (spread + options.eps)
                    out["marginal_norm"][g, i, j] = dhat
                    total = sum(weight for _, _, weight in edges[i, j])
                    for t, kind, weight in edges[i, j]:
                        share = dhat * weight / (total + options.smoothing)
                        out["contribution"][g, i, t, j, kind] = share
                        a_vict[g, i, t] += share
            for i in real:
                in_core = bool(out["core"][g, i, j])
                if not group.usable[i, j] or not (in_core or potentials[i, j] != 0):
                    continue
                steps = int(np.sum(group.step_mask[i]))
                stopped = Cause(out["cause"][g, i])
                if stopped != Cause.NONE:
                    reason = stopped
                elif not in_core:
                    reason = Cause.BUDGET if hits[i] else Cause.NO_CORE
                elif potentials[i, j] == 0:
                    reason = Cause.ZERO_MARGINAL
                elif group.status[i, steps, j] == Status.UNKNOWN:
                    reason = Cause.UNKNOWN_EVIDENCE
                elif not edges[i, j]:
                    reason = Cause.NO_PROOF_SUPPORT
                elif len(supported) < 2:
                    reason = Cause.TOO_FEW_SUPPORTED
                else:
                    reason = Cause.NONE if spread > options.eps else Cause.ZERO_SCALE
                out["atom_cause"][g, i, j] = reason
        for i in real:
            carrying = np.flatnonzero(out["core"][g, i] & group.usable[i])
            reasons = [out["atom_cause"][g, i, j] for j in carrying]
            if out["cause"][g, i] == Cause.NONE and out["core"][g, i].any() and Cause.NONE not in reasons:
                out["cause"][g, i] = max(reasons, default=Cause.NO_CORE)
        if place is not None:
            a_vict[g] = place(
                group, np.where(np.abs(a_vict[g]) > options.eps, a_vict[g], 0.0), gates, options
            )
    _finish(out, a_vict, options)
    _figures(out, inputs, counts)
    return out


def _finish(out: dict[str, Any], a_vict: np.ndarray, options: VictOptions) -> None:
    """lambda, c and the final advantage (Eq. 7, 9)."""
    a_vict = np.where(np.abs(a_vict) > options.eps, a_vict, 0.0)
    base_sizes = [abs(a) for a in out["base"].ravel() if abs(a) > options.eps]
    credit_sizes = [abs(a) for a in a_vict.ravel() if a != 0]
    out["clip"] = np.quantile(base_sizes, options.clip_quantile) if base_sizes else 0.0
    out["lambda_"] = 0.0
    if base_sizes and credit_sizes:
        out["lambda_"] = (
            options.gamma_lambda * np.median(base_sizes) / (np.median(credit_sizes) + options.eps)
        )
    out["correction"] = out["lambda_"] * np.clip(a_vict, -out["clip"], out["clip"])
    out["advantages"] = out["base"] + out["correction"]


def _figures(out: dict[str, Any], inputs: CreditInputs, counts: Counter[str]) -> None:
    """Appendix E, counted one rollout, atom and action at a time."""
    real = list(zip(*np.nonzero(inputs.rollout_mask), strict=True))
    sizes = [int(out["core"][at].sum()) for at in real if out["core"][at].any()]
    for at in real:
        counts["steps"] += int(inputs.step_mask[at].sum())
        counts["corrected"] += int((out["correction"][at] != 0).sum())
        counts["triggered"] += bool((out["correction"][at] != 0).any())
        counts["abstained"] += out["cause"][at] != Cause.NONE
        counts[f"cause {out['cause'][at]}"] += 1
        for j in range(out["core"].shape[-1]):
            if out["marginal"][at][j] != 0:
                counts["marginals"] += 1
                counts["covered"] += bool(out["witness"][at][:, j].any())
            if inputs.usable[at][j]:
                counts["atoms"] += 1
                counts[f"atom cause {out['atom_cause'][at][j]}"] += 1
    rollouts = max(len(real), 1)
    out["figures"] = {
        "reconstruction": counts["reconstructed"] / rollouts,
        "proof_coverage": counts["covered"] / max(counts["marginals"], 1),
        "abstention": counts["abstained"] / rollouts,
        "trigger": counts["triggered"] / rollouts,
        "sparsity": counts["corrected"] / max(counts["steps"], 1),
        "core_size_mean": np.mean(sizes) if sizes else 0.0,
        "core_size_std": np.std(sizes, ddof=1) if len(sizes) > 1 else 0.0,
        "usable_atoms": counts["atoms"] / rollouts,
        "eligibility": 1.0,
        "lambda": out["lambda_"],
        "clip": out["clip"],
    }
    for cause in Cause:
        if cause != Cause.NONE:
            name = cause.name.lower()
            out["figures"][f"abstention/{name}"] = counts[f"cause {cause.value}"] / rollouts
            out["figures"][f"atom_abstention/{name}"] = counts[f"atom cause {cause.value}"] / max(
                counts["atoms"], 1
            )
