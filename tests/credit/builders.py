"""Small ways to build `CreditInputs`: from a few numbers, and at random with garbage in the padding."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vict_jax.credit.assign import assign_many
from vict_jax.credit.methods import METHODS
from vict_jax.credit.options import VictOptions
from vict_jax.types import CreditInputs, CreditOutput, Proofs, Status

S, U, V, UNKNOWN = Status.SATISFIED, Status.UNSATISFIED, Status.VIOLATED, Status.UNKNOWN


# --- aggregators: each ignores padded atoms, whose parameters are 0 -------------------------------


def conjunctive(satisfied: Any, params: Mapping[str, Any]) -> Any:
    """1 if every atom with weight holds."""
    return (satisfied | (params["weight"] == 0)).all()


def disjunctive(satisfied: Any, params: Mapping[str, Any]) -> Any:
    """1 if some atom with weight holds."""
    return (satisfied & (params["weight"] != 0)).any()


def weighted_sum(satisfied: Any, params: Mapping[str, Any]) -> Any:
    return (satisfied * params["weight"]).sum()


def multiplicative(satisfied: Any, params: Mapping[str, Any]) -> Any:
    """A gate (the product's type) times the weighted rest, as WebShop scores."""
    gate = (satisfied | ~params["gate"]).all()
    return gate * (satisfied * params["weight"] * ~params["gate"]).sum()


AGGREGATES = {f.__name__: f for f in (conjunctive, disjunctive, weighted_sum, multiplicative)}


DEFAULT = VictOptions()


@functools.cache
def jitted(
    method: str = "vict", aggregate: str = "conjunctive", options: VictOptions = DEFAULT
) -> Callable[[CreditInputs], CreditOutput]:
    """A credit method as the training loop runs it; one compilation per shape in a test process."""
    return jax.jit(lambda inputs: METHODS[method](inputs, AGGREGATES[aggregate], options))


CONTROLS = ("dense", "no_core", "no_proof", "commit_only", "temporal_nearest", "random_edges")


def run_many(
    inputs: CreditInputs,
    methods: tuple[str, ...] = ("vict", *CONTROLS),
    aggregate: str = "conjunctive",
    options: VictOptions = DEFAULT,
) -> dict[str, CreditOutput]:
    """Several methods in one compiled call, none of which breaks its claim."""
    outputs, violations = assign_many(
        inputs, methods=methods, aggregate=AGGREGATES[aggregate], options=options
    )
    assert int(violations) == 0
    return outputs


# --- by hand --------------------------------------------------------------------------------------


def rollout(
    score: float,
    final: Sequence[int],
    *,
    steps: int,
    writes: Sequence[tuple[int, int]] = (),
    reveals: Sequence[tuple[int, int]] = (),
    commits: Mapping[int, Sequence[int]] | None = None,
    mentions: Sequence[tuple[int, int]] = (),
    status: Mapping[int, Sequence[int]] | None = None,
) -> dict[str, Any]:
    """One rollout whose atom j binds state variable 2j and observation variable 2j + 1.

    Args:
      score: V. final: terminal status of each atom; before it every atom is UNSATISFIED.
      steps: T_i.
      writes, reveals: (t, j), action t changes the state variable, or reveals the observation, of atom j.
      commits: t -> atoms that action t finalises.
      mentions: (t, j), the text of action t mentions atom j.
      status: index t -> whole status row, where the default will not do.
    """
    atoms = len(final)
    evidence = np.zeros((steps + 1, 2 * atoms), np.int32)
    evidence[:, ::2] = 1
    for t, j in writes:
        evidence[t + 1 :, 2 * j] += 1
    for t, j in reveals:
        evidence[t + 1 :, 2 * j + 1] = 7
    table = np.full((steps + 1, atoms), U, np.int8)
    table[steps] = final
    for t, row in (status or {}).items():
        table[t] = row
    scope = np.zeros((steps, atoms), bool)
    for t, scoped in (commits or {}).items():
        scope[t, list(scoped)] = True
    mentioned = np.zeros((steps, atoms), bool)
    for t, j in mentions:
        mentioned[t, j] = True
    return {
        "score": np.float32(score),
        "status": table,
        "evidence": evidence,
        "commits": scope.any(1),
        "scope": scope,
        "mentions": mentioned,
        "step_mask": np.ones(steps, bool),
    }


def group(
    rollouts: Sequence[dict[str, Any]],
    *,
    weight: Sequence[float],
    gate: Sequence[bool] | None = None,
    requires: Mapping[int, Sequence[int]] | None = None,
    usable: Sequence[bool] | None = None,
    irreversible: Sequence[bool] | None = None,
    terminal_only: Sequence[bool] | None = None,
    conforming: bool = True,
    eta: float = 0.0,
) -> CreditInputs:
    """One task group from `rollout`s of any lengths. `requires`: atom -> all atoms it requires."""
    atoms = len(weight)
    steps = max(len(r["step_mask"]) for r in rollouts)

    def padded(name: str, length: int) -> np.ndarray:
        return np.stack(
            [np.pad(r[name], [(0, length - len(r[name]))] + [(0, 0)] * (r[name].ndim - 1)) for r in rollouts]
        )

    closure = np.eye(atoms, dtype=bool)
    for j, required in (requires or {}).items():
        closure[j, list(required)] = True
    binds = np.zeros((atoms, 2 * atoms), bool)
    binds[np.arange(atoms), 2 * np.arange(atoms)] = True
    binds[np.arange(atoms), 2 * np.arange(atoms) + 1] = True

    def flags(values: Sequence[bool] | None, default: bool) -> np.ndarray:
        return np.array([default] * atoms if values is None else values, bool)

    one = CreditInputs(
        score=np.array([r["score"] for r in rollouts], np.float32),
        status=padded("status", steps + 1),
        evidence=padded("evidence", steps + 1),
        commits=padded("commits", steps),
        scope=padded("scope", steps),
        binds=binds,
        observation_var=np.arange(2 * atoms) % 2 == 1,
        requires=np.stack([closure] * len(rollouts)),
        usable=np.stack([flags(usable, True)] * len(rollouts)),
        mentions=padded("mentions", steps),
        irreversible=flags(irreversible, False),
        terminal_only=flags(terminal_only, False),
        conforming=np.array(conforming),
        eta=np.float32(eta),
        params={"weight": np.array(weight, np.float32), "gate": flags(gate, False)},
        step_mask=padded("step_mask", steps),
        rollout_mask=np.ones(len(rollouts), bool),
        state_id=np.zeros((len(rollouts), steps + 1), np.int32),
        action_id=np.zeros((len(rollouts), steps), np.int32),
        penalty=np.zeros((len(rollouts), steps), np.float32),
        value=np.zeros((len(rollouts), steps), np.float32),
    )
    return jax.tree.map(lambda x: jnp.asarray(x)[None], one)


def batch(groups: Sequence[CreditInputs]) -> CreditInputs:
    """Groups of equal shapes as one batch."""
    return jax.tree.map(lambda *xs: jnp.concatenate(xs), *groups)


# --- at random ------------------------------------------------------------------------------------


def random_inputs(
    seed: int,
    *,
    groups: int = 3,
    rollouts: int = 5,
    steps: int = 6,
    atoms: int = 4,
    variables: int = 5,
    aggregate: str = "conjunctive",
    exact_params: bool = False,
) -> CreditInputs:
    """A batch with everything the kernels must cope with, NumPy arrays, no padded atom.

    Scores come from the aggregator's value or are drawn from few values, so ties, dead groups and near
    ties occur; some groups do not conform, some have one real rollout, no usable atom, or eta > 0.
    """
    rng = np.random.default_rng(seed)
    g, n, t, m, v = groups, rollouts, steps, atoms, variables
    status = rng.choice([S, U, V, UNKNOWN], size=(g, n, t + 1, m), p=[0.55, 0.25, 0.1, 0.1]).astype(np.int8)
    evidence = rng.choice([0, 0, 3, 4], size=(g, n, t + 1, v)).astype(np.int32)
    still = rng.random((g, n, t, v)) < 0.6
    for step in range(t):
        evidence[:, :, step + 1] = np.where(still[:, :, step], evidence[:, :, step], evidence[:, :, step + 1])
    task = np.tril(rng.random((g, 1, m, m)) < 0.2, -1)
    way = np.tril(rng.random((g, n, m, m)) < 0.05, -1)  # a choice that each trace settles for itself
    order = task | way | np.eye(m, dtype=bool)
    for k in range(m):
        order |= order[..., k : k + 1] & order[..., k : k + 1, :]
    permutation = rng.permutation(m)
    order = order[..., permutation, :][..., permutation]
    length = rng.integers(1, t + 1, (g, n))
    commits = rng.random((g, n, t)) < 0.2
    usable = (rng.random((g, 1, m)) < 0.9) & (rng.random((g, n, m)) < 0.95)
    usable[rng.random(g) < 0.1] = False
    weight = rng.choice([0.125, 0.25, 0.5, 1.0], (g, m)) if exact_params else rng.random((g, m))
    inputs = CreditInputs(
        score=rng.choice([0.0, 0.25, 1.0, 1.0], (g, n)).astype(np.float32),
        status=status,
        evidence=evidence,
        commits=commits,
        scope=(rng.random((g, n, t, m)) < 0.4) & commits[..., None],
        binds=rng.random((g, m, v)) < 0.4,
        observation_var=rng.random((g, v)) < 0.5,
        requires=order,
        usable=usable,
        mentions=rng.random((g, n, t, m)) < 0.3,
        irreversible=rng.random((g, m)) < 0.4,
        terminal_only=rng.random((g, m)) < 0.25,
        conforming=rng.random(g) < 0.9,
        eta=rng.choice([0.0, 0.0, 0.035], g).astype(np.float32),
        params={"weight": weight.astype(np.float32), "gate": rng.random((g, m)) < 0.3},
        step_mask=np.arange(t) < length[..., None],
        rollout_mask=(rng.random((g, n)) < 0.9) & ((rng.random((g, 1)) < 0.9) | (np.arange(n) == 0)),
        state_id=np.zeros((g, n, t + 1), np.int32),
        action_id=rng.integers(1, 2**31, (g, n, t)).astype(np.int32),
        penalty=np.zeros((g, n, t), np.float32),
        value=np.zeros((g, n, t), np.float32),
    )
    last = np.take_along_axis(status, length[..., None, None], axis=2)[:, :, 0]
    _make_mostly_consistent(rng, status, length, last, order)
    by_value = rng.random((g, 1)) < 0.6
    score = np.where(by_value, _values(inputs, aggregate, last == S), inputs.score)
    score = np.where(inputs.rollout_mask, score, np.nan)
    return dataclasses.replace(inputs, score=score.astype(np.float32))


def _values(inputs: CreditInputs, aggregate: str, satisfied: np.ndarray) -> np.ndarray:
    """F(z_T) of every rollout, [G, N]."""
    return np.array(
        [
            [AGGREGATES[aggregate](held, {k: x[i] for k, x in inputs.params.items()}) for held in group]
            for i, group in enumerate(satisfied)
        ],
        np.float32,
    )


def _make_mostly_consistent(
    rng: np.random.Generator, status: np.ndarray, length: np.ndarray, last: np.ndarray, order: np.ndarray
) -> None:
    """In most rollouts, turn satisfied atoms with an unsatisfied requirement UNSATISFIED, in place."""
    g, n, _ = last.shape
    for i in range(g):
        for j in range(n):
            if rng.random() < 0.9:
                held = last[i, j] == S
                broken = held & (order[i, j] & ~held).any(axis=1)
                last[i, j, broken] = U
            status[i, j, length[i, j]] = last[i, j]


def pad(
    inputs: CreditInputs,
    *,
    groups: int = 0,
    rollouts: int = 0,
    steps: int = 0,
    atoms: int = 0,
    variables: int = 0,
    seed: int = 0,
) -> CreditInputs:
    """Append padding full of NaN and garbage; only the masks, `usable` and `requires` are as promised."""
    rng = np.random.default_rng(seed)
    more = {"g": groups, "n": rollouts, "t": steps, "s": steps, "m": atoms, "v": variables, "d": 0, "j": 0}
    axes = {
        "score": "gn",
        "status": "gnsm",
        "evidence": "gnsv",
        "commits": "gnt",
        "scope": "gntm",
        "binds": "gmv",
        "observation_var": "gv",
        "requires": "gnmm",
        "usable": "gnm",
        "mentions": "gntm",
        "irreversible": "gm",
        "terminal_only": "gm",
        "conforming": "g",
        "eta": "g",
        "step_mask": "gnt",
        "rollout_mask": "gn",
        "state_id": "gns",
        "action_id": "gnt",
        "penalty": "gnt",
        "value": "gnt",
        "cluster_id": "gnt",
        "state_terms": "gntd",
        "rubric": "gntj",
        "rubric_kind": "gj",
        "context_id": "gnt",
        "hindsight_logp": "gnt",
    }
    axes = {name: of for name, of in axes.items() if getattr(inputs, name) is not None}

    def extend(array: Any, names: str, *, promised: bool = False) -> np.ndarray:
        array = np.asarray(array)
        shape = tuple(size + more[axis] for size, axis in zip(array.shape, names, strict=True))
        if promised:
            out = np.zeros(shape, array.dtype)
        elif array.dtype == bool:
            out = rng.random(shape) < 0.5
        elif array.dtype == np.float32:
            out = np.full(shape, np.nan, np.float32)
        else:
            out = rng.integers(0, 5, shape).astype(array.dtype)
        out[tuple(slice(size) for size in array.shape)] = array
        return out

    fields = {name: extend(getattr(inputs, name), names) for name, names in axes.items()}
    for name in ("step_mask", "rollout_mask"):
        fields[name] = extend(getattr(inputs, name), axes[name], promised=True)
    g, m, v = np.asarray(inputs.binds).shape
    fields["binds"][:g, :m, v:] = False
    fields["usable"][..., m:] = False
    fields["requires"][..., np.arange(m, m + atoms), np.arange(m, m + atoms)] = False
    params = {name: extend(value, "gm") for name, value in inputs.params.items()}
    for value in params.values():  # 0 on padded atoms by contract; anything in padded groups
        value[:g, m:] = 0
    return CreditInputs(**fields, params=params)


def crop(output: CreditOutput, like: CreditInputs) -> CreditOutput:
    """The part of the output for padded inputs that belongs to the unpadded inputs `like`."""
    g, n, t = np.asarray(like.commits).shape
    m = np.asarray(like.usable).shape[-1]
    proofs = output.proofs
    if proofs is not None:
        edge = ("witness", "weight", "contribution")
        atom = ("marginal", "marginal_norm", "core", "atom_cause")
        fields = {name: getattr(proofs, name)[:g, :n, :t, :m] for name in edge}
        fields |= {name: getattr(proofs, name)[:g, :n, :m] for name in atom}
        proofs = Proofs(**fields, cause=proofs.cause[:g, :n])
    steps = {name: getattr(output, name)[:g, :n, :t] for name in ("advantages", "base", "correction")}
    return dataclasses.replace(output, proofs=proofs, **steps)
