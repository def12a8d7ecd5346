"""The controls written a second time, in the manner of `oracle`: loops, one stage replaced each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from tests.credit import oracle
from vict_jax.credit.diagnostics import Cause
from vict_jax.credit.options import VictOptions
from vict_jax.types import CreditInputs, Relation, Status


def last_change(group: CreditInputs, i: int, j: int) -> int:
    """The last action that changed the status of atom j, or else the last action."""
    steps = int(np.sum(group.step_mask[i]))
    for t in reversed(range(steps)):
        if group.status[i, t + 1, j] != group.status[i, t, j]:
            return t
    return steps - 1


def proximity_edges(group: CreditInputs, i: int, j: int, options: VictOptions) -> list[oracle.Edge]:
    if not group.usable[i, j]:
        return []
    end = last_change(group, i, j)
    return [(t, 0, options.proximity_decay ** (end - t)) for t in range(end + 1)]


def nearest_edges(group: CreditInputs, i: int, j: int, options: VictOptions) -> list[oracle.Edge]:
    if not group.usable[i, j]:
        return []
    for t in reversed(range(last_change(group, i, j) + 1)):
        read = [v for v in range(group.binds.shape[1]) if group.binds[j, v]]
        touched = any(group.evidence[i, t, v] != group.evidence[i, t + 1, v] for v in read)
        if touched or group.mentions[i, t, j]:
            return [(t, 0, 1.0)]
    return []


def commit_edges(group: CreditInputs, i: int, j: int, options: VictOptions) -> list[oracle.Edge]:
    return [edge for edge in oracle.proof_edges(group, i, j, options) if edge[1] == Relation.COMMIT]


def every_atom(verifier: oracle.Verifier, rho: float, options: VictOptions) -> oracle.Core:
    return set(verifier.usable), 0.0, False


def state_value(verifier: oracle.Verifier, j: int, core: set[int], options: VictOptions) -> float:
    steps = int(np.sum(verifier.group.step_mask[verifier.i]))
    status = verifier.group.status[verifier.i, steps, j]
    values = {Status.SATISFIED: 1.0, Status.UNSATISFIED: -1.0, Status.VIOLATED: -1.0, Status.UNKNOWN: 0.0}
    return values[status] if j in core else 0.0


def never_refused(group: CreditInputs, core: set[int], delta: float, hit: bool, rho: float) -> Cause:
    return Cause.NONE


def progress(
    group: CreditInputs, a_vict: np.ndarray, gates: dict[int, Cause], options: VictOptions
) -> np.ndarray:
    out = np.zeros_like(a_vict)
    for i, cause in gates.items():
        usable = [j for j in range(group.usable.shape[1]) if group.usable[i, j]]
        for t in range(int(np.sum(group.step_mask[i]))):
            if cause == Cause.NONE:
                before, after = (
                    sum(group.status[i, s, j] == Status.SATISFIED for j in usable) for s in (t, t + 1)
                )
                out[i, t] = (after - before) / len(usable)
    return out


def shuffled(
    group: CreditInputs, a_vict: np.ndarray, gates: dict[int, Cause], options: VictOptions
) -> np.ndarray:
    places = [(i, t) for i in gates for t in range(int(np.sum(group.step_mask[i])))]
    checksum = sum(int(group.action_id[at]) * (2 * rank + 1) for rank, at in enumerate(places)) % 2**32
    key = jax.random.fold_in(jax.random.key(options.seed), np.uint32(checksum))
    tickets = [int(jax.random.bits(jax.random.fold_in(key, rank))) for rank in range(len(places))]
    drawn = sorted(range(len(places)), key=lambda rank: (tickets[rank], rank))
    out = np.zeros_like(a_vict)
    for place, source in zip(places, drawn, strict=True):
        out[place] = a_vict[places[source]]
    return out


STAGES: dict[str, dict[str, Callable[..., Any]]] = {
    "dense": {
        "core_of": every_atom,
        "marginal_of": state_value,
        "refusal_of": never_refused,
        "place": progress,
    },
    "no_core": {"core_of": every_atom, "marginal_of": state_value, "refusal_of": never_refused},
    "no_proof": {"edges_of": proximity_edges},
    "commit_only": {"edges_of": commit_edges},
    "temporal_nearest": {"edges_of": nearest_edges},
    "random_edges": {"place": shuffled},
}


def credit(method: str, inputs: CreditInputs, aggregate: Any, options: VictOptions) -> dict[str, Any]:
    """Everything the control returns, and the figures of its own that it reports."""
    out = oracle.credit(inputs, aggregate, options, **STAGES[method])
    if method == "commit_only":
        return out
    proofs = oracle.credit(inputs, aggregate, options)
    allowed = (proofs["witness"] & (proofs["marginal"] != 0)[:, :, None, :, None]).any((-1, -2))
    corrected = out["correction"] != 0
    figures = {name: out["figures"][name] for name in ("trigger", "sparsity", "lambda", "clip")}
    figures["unproved"] = (corrected & ~allowed).sum() / max(corrected.sum(), 1)
    if method != "dense":
        figures["abstention"] = out["figures"]["abstention"]
    return {**out, "figures": figures}
