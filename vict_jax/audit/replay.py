"""Replay of a proof log: all that credit gave out, recomputed from the logged trajectories, bit for bit."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from vict_jax import proofs
from vict_jax.credit.diagnostics import Cause
from vict_jax.types import CreditInputs, CreditOutput, Relation

_STEP_FLOATS = ("base", "correction", "advantage")


@dataclasses.dataclass(frozen=True)
class Replay:
    """Updates, steps, atoms and proofs compared, and one text for each value that differs."""

    updates: int = 0
    steps: int = 0
    atoms: int = 0
    proofs: int = 0
    differing: tuple[str, ...] = ()

    def __add__(self, other: Replay) -> Replay:
        names = [field.name for field in dataclasses.fields(self)]
        return Replay(**{name: getattr(self, name) + getattr(other, name) for name in names})

    def to_json(self) -> dict[str, Any]:
        """As plain JSON types."""
        return dataclasses.asdict(self)

    def text(self, most: int) -> str:
        """What was compared and the first `most` differences."""
        counts = f"{self.updates} updates, {self.steps} steps, {self.atoms} atoms, {self.proofs} proofs"
        lines = [f"Replay of {counts}: {len(self.differing)} differences, bit for bit"]
        return "\n".join([*lines, *(f"DIFFERS {line}" for line in self.differing[:most])])


def replay(
    workdir: pathlib.Path, updates: Iterable[int], credit: Callable[[CreditInputs], CreditOutput]
) -> Replay:
    """Recompute logged updates and compare.

    Args:
      workdir: the run. updates: which of its updates.
      credit: the run's credit function, NumPy `CreditInputs` to NumPy `CreditOutput`.

    Raises:
      RunError: a file is missing or damaged.
    """
    result = Replay()
    for update in updates:
        result += compare(workdir, update, credit(proofs.read_inputs(workdir, update)))
    return result


def compare(workdir: pathlib.Path, update: int, output: CreditOutput) -> Replay:
    """Compare the logged tables of one update with its credit, computed anew."""
    steps = proofs.read_table(workdir, "rollouts", update, ["group", "rollout", "step", *_STEP_FLOATS])
    atoms = proofs.read_table(workdir, "atoms", update)
    edges = proofs.read_table(workdir, "proofs", update)
    found = [
        *_compare_steps(steps, output),
        *_compare_atoms(atoms, output),
        *_compare_proofs(edges, _atom_names(atoms), output),
    ]
    return Replay(
        updates=1,
        steps=len(steps["step"]),
        atoms=len(atoms["atom_id"]),
        proofs=len(edges["step"]),
        differing=tuple(f"update {update}, {text}" for text in found),
    )


def _differing_bits(table: Mapping[str, list[Any]], name: str, again: np.ndarray) -> Iterator[str]:
    logged = np.array(table[name], np.float32)
    wrong = np.flatnonzero(logged.view(np.uint32) != again.astype(np.float32).view(np.uint32))
    keys = [key for key in ("group", "rollout", "step", "atom_id") if key in table]
    for row in wrong.tolist():
        where = ", ".join(f"{key} {table[key][row]}" for key in keys)
        yield f"{where}: {name} logged {logged[row]}, replayed {again[row]}"


def _compare_steps(table: Mapping[str, list[Any]], output: CreditOutput) -> Iterator[str]:
    index = tuple(np.array(table[key], np.int64) for key in ("group", "rollout", "step"))
    values = {"base": output.base, "correction": output.correction, "advantage": output.advantages}
    for name in _STEP_FLOATS:
        yield from _differing_bits(table, name, np.asarray(values[name])[index])


def _atom_names(table: Mapping[str, list[Any]]) -> dict[tuple[int, int], list[str]]:
    """Names of the atoms of each (group, rollout), in their order in the arrays."""
    names: dict[tuple[int, int], list[str]] = {}
    for g, n, name in zip(table["group"], table["rollout"], table["atom_id"], strict=True):
        names.setdefault((g, n), []).append(name)
    return names


def _compare_atoms(table: Mapping[str, list[Any]], output: CreditOutput) -> Iterator[str]:
    names = _atom_names(table)
    if output.proofs is None:
        if any(value is not None for value in table["core"]):
            yield "atoms: a core is logged, but the method gives no proofs"
        return
    index = np.array([(g, n, j) for (g, n), atoms in names.items() for j in range(len(atoms))])
    g, n, j = index.reshape(-1, 3).T
    for name in ("marginal", "marginal_norm"):
        yield from _differing_bits(table, name, np.asarray(getattr(output.proofs, name))[g, n, j])
    again = {
        "core": np.asarray(output.proofs.core)[g, n, j].tolist(),
        "cause": [proofs.cause_text(Cause(code)) for code in np.asarray(output.proofs.atom_cause)[g, n, j]],
        "rollout_cause": [proofs.cause_text(Cause(code)) for code in np.asarray(output.proofs.cause)[g, n]],
    }
    for name, values in again.items():
        for row, (logged, value) in enumerate(zip(table[name], values, strict=True)):
            if logged != value:
                where = f"group {g[row]}, rollout {n[row]}, atom {table['atom_id'][row]}"
                yield f"{where}: {name} logged {logged!r}, replayed {value!r}"


def _compare_proofs(
    table: Mapping[str, list[Any]], names: Mapping[tuple[int, int], list[str]], output: CreditOutput
) -> Iterator[str]:
    edges = proofs.proof_edges(output)
    again = [(g, n, t, names[g, n][j], Relation(r).name.lower()) for g, n, t, j, r in edges.tolist()]
    keys = ("group", "rollout", "step", "atom_id", "relation")
    logged = list(zip(*(table[key] for key in keys), strict=True))
    if logged != again:
        odd = sorted(set(logged) ^ set(again))
        yield f"proofs: {len(logged)} logged, {len(again)} replayed; not in both: {odd[:3] or 'none'}"
        return
    if output.proofs is None:
        return
    g, n, t, j, r = edges.T
    values = {
        "marginal": np.asarray(output.proofs.marginal)[g, n, j],
        "marginal_norm": np.asarray(output.proofs.marginal_norm)[g, n, j],
        "weight": np.asarray(output.proofs.weight)[g, n, t, j, r],
        "contribution": np.asarray(output.proofs.contribution)[g, n, t, j, r],
        "correction": np.asarray(output.correction)[g, n, t],
    }
    for name, value in values.items():
        yield from _differing_bits(table, name, value)
