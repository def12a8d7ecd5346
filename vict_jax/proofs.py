"""The proof log: every non-zero correction with its evidence, and all that is needed to replay it.

Three files an update, each written whole and renamed, so that a kill leaves none of them in part:

    rollouts/update_000012.npz       the `CreditInputs` of the update, array by array
    rollouts/update_000012.parquet   one row a step: task, observation, action, base, correction, advantage
    proofs/update_000012.parquet     one row a non-zero (rollout, step, atom, relation)

The tables are read by any Parquet reader (`pandas.read_parquet`). Method page, section 7.
"""

from __future__ import annotations

import dataclasses
import io
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from envs.base import VerifierRecord
from vict_jax.batching import Rollout
from vict_jax.metrics import RunError, disk_full_is_clear, write_atomically
from vict_jax.types import CreditInputs, CreditOutput, Proofs, Relation, Status

PROOF_SCHEMA = pa.schema(
    [
        ("update", pa.int32()),
        ("group", pa.int32()),
        ("rollout", pa.int32()),
        ("step", pa.int32()),
        ("task_id", pa.string()),
        ("action_id", pa.int32()),
        ("action", pa.string()),
        ("atom_id", pa.string()),
        ("atom_family", pa.string()),
        ("relation", pa.string()),
        ("variable", pa.string()),
        ("before", pa.string()),
        ("after", pa.string()),
        ("core_id", pa.string()),
        ("marginal", pa.float32()),
        ("marginal_norm", pa.float32()),
        ("weight", pa.float32()),
        ("contribution", pa.float32()),
        ("correction", pa.float32()),
        ("conformance", pa.string()),
    ]
)
STEP_SCHEMA = pa.schema(
    [
        ("update", pa.int32()),
        ("group", pa.int32()),
        ("rollout", pa.int32()),
        ("step", pa.int32()),
        ("task_id", pa.string()),
        ("task_type", pa.string()),
        ("end", pa.string()),
        ("score", pa.float32()),
        ("observation", pa.string()),
        ("action", pa.string()),
        ("valid", pa.bool_()),
        ("base", pa.float32()),
        ("correction", pa.float32()),
        ("advantage", pa.float32()),
    ]
)


def file_stem(update: int) -> str:
    """Name of an update's files, without folder and suffix."""
    return f"update_{update:06d}"


def logged_updates(workdir: pathlib.Path) -> list[int]:
    """Updates whose three files are all there, in order."""
    stems = {p.stem for p in (workdir / "proofs").glob("update_*.parquet")}
    stems &= {p.stem for p in (workdir / "rollouts").glob("update_*.parquet")}
    stems &= {p.stem for p in (workdir / "rollouts").glob("update_*.npz")}
    return sorted(int(stem.removeprefix("update_")) for stem in stems)


def drop_after(workdir: pathlib.Path, update: int) -> None:
    """Remove the files of every update after `update`: a resumed run writes them again."""
    for folder in ("rollouts", "proofs"):
        for path in (workdir / folder).glob("update_*"):
            if int(path.stem.removeprefix("update_")) > update:
                path.unlink()


def write_update(
    workdir: pathlib.Path,
    update: int,
    groups: Sequence[Sequence[Rollout]],
    inputs: CreditInputs,
    output: CreditOutput,
) -> int:
    """Write the three files of one update. All arrays are NumPy. Returns the number of proof rows.

    Raises:
      RunError: the disk is full; nothing of this update is left half written.
    """
    stem = file_stem(update)
    write_atomically(workdir / "rollouts" / f"{stem}.npz", _pack_inputs(inputs))
    _write_table(
        workdir / "rollouts" / f"{stem}.parquet", list(_step_rows(update, groups, output)), STEP_SCHEMA
    )
    rows = list(_proof_rows(update, groups, inputs, output)) if output.proofs is not None else []
    _write_table(workdir / "proofs" / f"{stem}.parquet", rows, PROOF_SCHEMA)
    return len(rows)


def _write_table(path: pathlib.Path, rows: list[dict[str, Any]], schema: pa.Schema) -> None:
    sink = io.BytesIO()
    with disk_full_is_clear(path):
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), sink, compression="zstd")
    write_atomically(path, sink.getvalue())


def _pack_inputs(inputs: CreditInputs) -> bytes:
    arrays = {
        f.name: np.asarray(getattr(inputs, f.name)) for f in dataclasses.fields(inputs) if f.name != "params"
    }
    arrays |= {f"params/{name}": np.asarray(value) for name, value in inputs.params.items()}
    sink = io.BytesIO()
    np.savez_compressed(sink, allow_pickle=False, **arrays)
    return sink.getvalue()


def read_inputs(workdir: pathlib.Path, update: int) -> CreditInputs:
    """The logged `CreditInputs` of an update, as NumPy arrays.

    Raises:
      RunError: the file is missing or damaged.
    """
    path = workdir / "rollouts" / f"{file_stem(update)}.npz"
    try:
        with np.load(path, allow_pickle=False) as arrays:
            params = {
                name.removeprefix("params/"): arrays[name] for name in arrays if name.startswith("params/")
            }
            fields = {name: arrays[name] for name in arrays if not name.startswith("params/")}
    except FileNotFoundError as error:
        raise RunError(f"no logged rollouts at {path}; logged updates: {logged_updates(workdir)}") from error
    except (ValueError, EOFError, OSError) as error:
        raise RunError(f"{path} is damaged: {error}") from error
    return CreditInputs(params=params, **fields)


def _step_rows(
    update: int, groups: Sequence[Sequence[Rollout]], output: CreditOutput
) -> Iterator[dict[str, Any]]:
    for g, group in enumerate(groups):
        for n, rollout in enumerate(group):
            for t, action in enumerate(rollout.actions):
                yield {
                    "update": update,
                    "group": g,
                    "rollout": n,
                    "step": t,
                    "task_id": rollout.task.id,
                    "task_type": rollout.task.type,
                    "end": rollout.end.value,
                    "score": rollout.score,
                    "observation": rollout.observations[t],
                    "action": action,
                    "valid": bool(rollout.valid[t]),
                    "base": output.base[g, n, t],
                    "correction": output.correction[g, n, t],
                    "advantage": output.advantages[g, n, t],
                }


def _proof_rows(
    update: int, groups: Sequence[Sequence[Rollout]], inputs: CreditInputs, output: CreditOutput
) -> Iterator[dict[str, Any]]:
    proofs = output.proofs
    assert proofs is not None
    corrected = np.asarray(output.correction) != 0
    edges = (np.asarray(proofs.contribution) != 0) & corrected[..., None, None]
    for g, n, t, j, r in np.argwhere(edges).tolist():
        rollout = groups[g][n]
        assert rollout.record is not None  # a lost rollout is masked, so it has no correction
        variable, before, after = _evidence(rollout.record, t, j, Relation(r))
        yield {
            "update": update,
            "group": g,
            "rollout": n,
            "step": t,
            "task_id": rollout.task.id,
            "action_id": inputs.action_id[g, n, t],
            "action": rollout.actions[t],
            "atom_id": rollout.record.atoms[j].id,
            "atom_family": rollout.record.atoms[j].family,
            "relation": Relation(r).name.lower(),
            "variable": variable,
            "before": before,
            "after": after,
            "core_id": _core_id(proofs, rollout.record, g, n),
            "marginal": proofs.marginal[g, n, j],
            "marginal_norm": proofs.marginal_norm[g, n, j],
            "weight": proofs.weight[g, n, t, j, r],
            "contribution": proofs.contribution[g, n, t, j, r],
            "correction": output.correction[g, n, t],
            "conformance": "conforming" if inputs.conforming[g] else "masked",
        }


def _core_id(proofs: Proofs, record: VerifierRecord, g: int, n: int) -> str:
    return "+".join(atom.id for atom, inside in zip(record.atoms, proofs.core[g, n], strict=False) if inside)


def _evidence(record: VerifierRecord, t: int, j: int, relation: Relation) -> tuple[str, str, str]:
    """The evidence source of an edge: variables that changed (or the atom itself), before and after."""
    atom = record.atoms[j]
    if relation is Relation.VIOLATE:
        return atom.id, Status(record.status[t, j]).name, Status(record.status[t + 1, j]).name
    if relation is Relation.COMMIT:
        return "commit", Status(record.status[t, j]).name, Status(record.status[t + 1, j]).name
    reveal = relation is Relation.REVEAL
    changed = [
        v
        for v, variable in enumerate(record.variables)
        if variable.id in atom.variables
        and variable.observation == reveal
        and record.evidence[t][v] != record.evidence[t + 1][v]
    ]
    names, before, after = (
        "; ".join(text)
        for text in zip(
            *((record.variables[v].id, record.evidence[t][v], record.evidence[t + 1][v]) for v in changed),
            strict=True,
        )
    )
    return names, before, after


@dataclasses.dataclass(frozen=True)
class Replay:
    """Result of recomputing logged updates: steps compared, and those whose bits differ."""

    updates: int
    steps: int
    proofs: int
    differing: list[str]


def replay(
    workdir: pathlib.Path, updates: Iterable[int], credit: Callable[[CreditInputs], CreditOutput]
) -> Replay:
    """Recompute the corrections of logged updates from their logged trajectories, bit for bit.

    Args:
      workdir: the run.
      updates: which updates.
      credit: the run's credit function, NumPy `CreditInputs` to `CreditOutput` (any array type).
    """
    count = steps = proofs = 0
    differing: list[str] = []
    for update in updates:
        count += 1
        output = credit(read_inputs(workdir, update))
        correction, advantage = np.asarray(output.correction), np.asarray(output.advantages)
        table = pq.read_table(workdir / "rollouts" / f"{file_stem(update)}.parquet").to_pydict()
        index = (np.array(table["group"]), np.array(table["rollout"]), np.array(table["step"]))
        for name, values in (("correction", correction), ("advantage", advantage)):
            logged = np.array(table[name], np.float32)
            wrong = np.flatnonzero(logged.view(np.uint32) != values[index].astype(np.float32).view(np.uint32))
            differing += [
                _difference(update, name, table, row, logged, values[index]) for row in wrong.tolist()
            ]
        steps += len(table["step"])
        proofs += _compare_proofs(workdir, update, output, differing)
    return Replay(updates=count, steps=steps, proofs=proofs, differing=differing)


def _difference(
    update: int, name: str, table: Mapping[str, Any], row: int, logged: np.ndarray, again: np.ndarray
) -> str:
    where = ", ".join(f"{key} {table[key][row]}" for key in ("group", "rollout", "step"))
    return f"update {update}, {where}: {name} logged {logged[row]!r}, replayed {again[row]!r}"


def _compare_proofs(workdir: pathlib.Path, update: int, output: CreditOutput, differing: list[str]) -> int:
    table = pq.read_table(workdir / "proofs" / f"{file_stem(update)}.parquet").to_pydict()
    rows = len(table["step"])
    if output.proofs is None:
        return rows
    contribution = np.asarray(output.proofs.contribution)
    expected = int(((contribution != 0) & (np.asarray(output.correction) != 0)[..., None, None]).sum())
    if expected != rows:
        differing.append(f"update {update}: {rows} logged proofs, {expected} replayed")
        return rows
    relations = np.array([Relation[name.upper()].value for name in table["relation"]], np.int64)
    for row in range(rows):
        g, n, t = table["group"][row], table["rollout"][row], table["step"][row]
        shares = contribution[g, n, t, :, relations[row]].astype(np.float32)
        if not (shares.view(np.uint32) == np.float32(table["contribution"][row]).view(np.uint32)).any():
            differing.append(
                f"update {update}, group {g}, rollout {n}, step {t}: no such share {table['atom_id'][row]}"
            )
    return rows
