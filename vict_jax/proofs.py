"""The proof log: every non-zero correction with its evidence, and all that is needed to replay it.

Four files an update, each written whole and renamed, so that a kill leaves none of them in part:

    rollouts/update_000012.npz       the `CreditInputs` of the update, array by array
    rollouts/update_000012.parquet   one row a step: task, observation, action, base, correction, advantage
    atoms/update_000012.parquet      one row a rollout and atom: status, core, marginal, why it got nothing
    proofs/update_000012.parquet     one row a non-zero (rollout, step, atom, relation)

The tables are read by any Parquet reader (`pandas.read_parquet`). Method page, section 7.
`vict_jax.audit` replays and explains them.
"""

from __future__ import annotations

import dataclasses
import io
import pathlib
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from envs.base import VerifierRecord
from vict_jax import processes
from vict_jax.batching import Rollout, atom_states
from vict_jax.credit.diagnostics import Cause
from vict_jax.credit.inputs import OPTIONAL
from vict_jax.metrics import RunError, write_atomically
from vict_jax.proof_files import (
    ATOM_SCHEMA,
    FOLDERS,
    PROOF_SCHEMA,
    STEP_SCHEMA,
    file_stem,
    logged_updates,
)
from vict_jax.shares import Share, part
from vict_jax.types import CreditInputs, CreditOutput, Relation, Status

_FROM_PROOFS = ("core", "marginal", "marginal_norm", "cause", "rollout_cause")
_PROOF_TEXTS = (
    "task_id",
    "action",
    "atom_id",
    "atom_family",
    "relation",
    "variable",
    "before",
    "after",
    "core_id",
)


def cause_text(cause: Cause) -> str:
    """A cause as the log writes it; empty for none."""
    return "" if cause is Cause.NONE else cause.name.lower()


def drop_after(workdir: pathlib.Path, update: int) -> None:
    """Remove the files of every update after `update`: a resumed run writes them again."""
    for folder in FOLDERS:
        for path in (workdir / folder).glob("update_*"):
            if int(path.stem.removeprefix("update_")) > update:
                path.unlink()


def write_update(
    workdir: pathlib.Path,
    update: int,
    groups: Sequence[Sequence[Rollout]],
    inputs: CreditInputs,
    output: CreditOutput,
    *,
    masked_families: Collection[str],
    share: Share | None = None,
) -> int:
    """Write the four files of one update. All arrays are NumPy. Returns the number of proof rows.

    In a run of several processes all call it, each makes the rows of its own groups, and the first one puts
    them together and writes: the files are those of a run of one process.

    Args:
      groups: the rollouts that `inputs` was made of; with `share` only those of this process.
      masked_families: as `credit_inputs` had them.
      share: which of the groups in `inputs` and `output` are in `groups`; None: all.

    Raises:
      RunError: the disk is full; nothing of this update is left half written.
    """
    numbers = np.arange(len(groups)) if share is None else np.array(share.own)
    mine, credited = (inputs, output) if share is None else part((inputs, output), share)
    tables = {
        folder: _table(update, numbers, columns, schema)
        for folder, columns, schema in (
            ("rollouts", _step_columns(groups, credited), STEP_SCHEMA),
            ("atoms", _atom_columns(groups, mine, credited, masked_families), ATOM_SCHEMA),
            ("proofs", _proof_columns(groups, mine, credited), PROOF_SCHEMA),
        )
    }
    everyones = processes.gather({folder: _parquet(table) for folder, table in tables.items()})
    if processes.is_first():
        write_atomically(workdir / "rollouts" / f"{file_stem(update)}.npz", _pack_inputs(inputs))
        for folder in tables:
            data = _together([parts[folder] for parts in everyones])
            write_atomically(workdir / folder / f"{file_stem(update)}.parquet", data)
    return sum(processes.gather(len(tables["proofs"])))


def _table(update: int, numbers: np.ndarray, columns: Mapping[str, Any], schema: pa.Schema) -> pa.Table:
    """Columns as a table; `numbers` are those of the groups in the update."""
    group = np.asarray(columns["group"], np.int64)
    placed = {**columns, "update": np.full(len(group), update), "group": numbers[group]}
    return pa.Table.from_arrays([pa.array(placed[field.name], field.type) for field in schema], schema=schema)


def _parquet(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()


def _together(parts: Sequence[bytes]) -> bytes:
    """One file of those of all processes, by the number of the group."""
    if len(parts) == 1:
        return parts[0]
    table = pa.concat_tables([pq.read_table(io.BytesIO(data)) for data in parts])
    order = np.argsort(table["group"].to_numpy(), kind="stable")
    return _parquet(table.take(order).combine_chunks())


def _pack_inputs(inputs: CreditInputs) -> bytes:
    fields = {f.name: getattr(inputs, f.name) for f in dataclasses.fields(inputs) if f.name != "params"}
    arrays = {name: np.asarray(value) for name, value in fields.items() if value is not None}
    arrays |= {f"params/{name}": np.asarray(value) for name, value in inputs.params.items()}
    sink = io.BytesIO()
    np.savez_compressed(sink, allow_pickle=False, **arrays)
    return sink.getvalue()


def _missing(workdir: pathlib.Path, path: pathlib.Path) -> RunError:
    known = logged_updates(workdir)
    there = f"updates {known[0]} to {known[-1]} ({len(known)} of them) are" if known else "none is"
    return RunError(f"no logged update at {path}; {there} logged in {workdir}")


def read_inputs(workdir: pathlib.Path, update: int) -> CreditInputs:
    """The logged `CreditInputs` of an update, as NumPy arrays.

    Raises:
      RunError: the file is missing, damaged, or of another version.
    """
    path = workdir / "rollouts" / f"{file_stem(update)}.npz"
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
            params = {
                name.removeprefix("params/"): arrays[name] for name in arrays if name.startswith("params/")
            }
            fields = {name: arrays[name] for name in arrays if not name.startswith("params/")}
    except FileNotFoundError as error:
        raise _missing(workdir, path) from error
    except (ValueError, EOFError, OSError, zipfile.BadZipFile) as error:
        raise RunError(f"{path} is damaged: {error}") from error
    known = {f.name for f in dataclasses.fields(CreditInputs) if f.name != "params"}
    if wrong := (set(fields) ^ known) - (set(OPTIONAL) - set(fields)):
        raise RunError(f"{path} is of another version of the log: it differs in {sorted(wrong)}")
    return CreditInputs(params=params, **fields)


def read_table(
    workdir: pathlib.Path, folder: str, update: int, columns: Sequence[str] | None = None
) -> dict[str, list[Any]]:
    """Columns of a logged table: `folder` is `rollouts`, `atoms` or `proofs`; all columns if None.

    Raises:
      RunError: the file is missing, damaged, or of another version.
    """
    path = workdir / folder / f"{file_stem(update)}.parquet"
    try:
        return pq.read_table(path, columns=columns).to_pydict()
    except FileNotFoundError as error:
        raise _missing(workdir, path) from error
    except (pa.ArrowException, OSError) as error:
        raise RunError(f"{path} is damaged: {error}") from error


def _places(lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(group, rollout, index) of `lengths[group, rollout]` rows of each rollout, in that order."""
    g, n, i = np.nonzero(np.arange(lengths.max(initial=0)) < lengths[..., None])
    return g, n, i


def _step_columns(groups: Sequence[Sequence[Rollout]], output: CreditOutput) -> dict[str, Any]:
    lengths = np.array([[len(rollout.actions) for rollout in group] for group in groups])
    g, n, t = _places(lengths)
    rollouts = [rollout for group in groups for rollout in group]

    def each(values: Sequence[Any]) -> np.ndarray:
        return np.repeat(np.array(values, object), lengths.ravel())

    return {
        "group": g,
        "rollout": n,
        "step": t,
        "task_id": each([rollout.task.id for rollout in rollouts]),
        "task_type": each([rollout.task.type for rollout in rollouts]),
        "end": each([rollout.end.value for rollout in rollouts]),
        "score": each([rollout.score for rollout in rollouts]),
        "observation": [
            text for rollout in rollouts for text in rollout.observations[: len(rollout.actions)]
        ],
        "action": [text for rollout in rollouts for text in rollout.actions],
        "taken": np.concatenate([rollout.taken for rollout in rollouts]),
        "valid": np.concatenate([rollout.valid for rollout in rollouts]),
        "base": output.base[g, n, t],
        "correction": output.correction[g, n, t],
        "advantage": output.advantages[g, n, t],
    }


def _atom_columns(
    groups: Sequence[Sequence[Rollout]],
    inputs: CreditInputs,
    output: CreditOutput,
    masked_families: Collection[str],
) -> dict[str, Any]:
    records = [rollout.record for group in groups for rollout in group if rollout.record is not None]
    counts = [[len(r.record.atoms) if r.record is not None else 0 for r in group] for group in groups]
    g, n, j = _places(np.array(counts))
    proofs = output.proofs
    columns = {
        "group": g,
        "rollout": n,
        "task_id": [groups[i][k].task.id for i, k in zip(g.tolist(), n.tolist(), strict=True)],
        "atom_id": [atom.id for record in records for atom in record.atoms],
        "atom_family": [atom.family for record in records for atom in record.atoms],
        "status": [Status(code).name.lower() for record in records for code in record.status[-1].tolist()],
        "unusable": list(_unusable(groups, inputs, masked_families)),
    }
    if proofs is None:
        return columns | {name: [None] * len(g) for name in _FROM_PROOFS}
    causes = np.array([cause_text(cause) for cause in Cause], object)
    return columns | {
        "core": proofs.core[g, n, j],
        "marginal": proofs.marginal[g, n, j],
        "marginal_norm": proofs.marginal_norm[g, n, j],
        "cause": causes[proofs.atom_cause[g, n, j]],
        "rollout_cause": causes[proofs.cause[g, n]],
    }


def _unusable(
    groups: Sequence[Sequence[Rollout]], inputs: CreditInputs, masked_families: Collection[str]
) -> Iterator[str]:
    """Why each atom was switched off, rollout by rollout; empty where it was not."""
    for group, flags in zip(groups, inputs.usable, strict=True):
        for rollout, usable in zip(group, flags, strict=True):
            atoms = 0 if rollout.record is None else len(rollout.record.atoms)
            if usable[:atoms].all():  # closing the requirements again would cost more than all the rest
                yield from [""] * atoms
            else:
                yield from atom_states(rollout, masked_families)


def proof_edges(output: CreditOutput) -> np.ndarray:
    """(group, rollout, step, atom, relation) of each row of the proof table, int64[rows, 5], in its order."""
    if output.proofs is None:
        return np.zeros((0, 5), np.int64)
    corrected = np.asarray(output.correction) != 0
    return np.argwhere((np.asarray(output.proofs.contribution) != 0) & corrected[..., None, None])


def _proof_columns(
    groups: Sequence[Sequence[Rollout]], inputs: CreditInputs, output: CreditOutput
) -> dict[str, Any]:
    edges = proof_edges(output)
    if output.proofs is None:
        return {field.name: [] for field in PROOF_SCHEMA}
    g, n, t, j, r = edges.T
    proofs = output.proofs
    columns: dict[str, Any] = {
        "group": g,
        "rollout": n,
        "step": t,
        "action_id": inputs.action_id[g, n, t],
        "marginal": proofs.marginal[g, n, j],
        "marginal_norm": proofs.marginal_norm[g, n, j],
        "weight": proofs.weight[g, n, t, j, r],
        "contribution": proofs.contribution[g, n, t, j, r],
        "correction": output.correction[g, n, t],
        "conformance": np.where(inputs.conforming[g], "conforming", "masked"),
    }
    texts = [
        _proof_texts(groups[g][n], t, j, Relation(r), np.asarray(proofs.core[g, n]))
        for g, n, t, j, r in edges.tolist()
    ]
    return columns | {name: [text[name] for text in texts] for name in _PROOF_TEXTS}


def _proof_texts(rollout: Rollout, t: int, j: int, relation: Relation, core: np.ndarray) -> dict[str, str]:
    record = rollout.record
    assert record is not None  # a lost rollout is masked, so it has no correction
    variable, before, after = evidence_source(record, t, j, relation)
    return {
        "task_id": rollout.task.id,
        "action": rollout.actions[t],
        "atom_id": record.atoms[j].id,
        "atom_family": record.atoms[j].family,
        "relation": relation.name.lower(),
        "variable": variable,
        "before": before,
        "after": after,
        "core_id": "+".join(
            atom.id for atom, inside in zip(record.atoms, core.tolist(), strict=False) if inside
        ),
    }


def evidence_source(record: VerifierRecord, t: int, j: int, relation: Relation) -> tuple[str, str, str]:
    """What an edge of action t to atom j rests on: names, values before and values after.

    Writes and reveals name the bound variables that changed, separated by "; "; a commit names itself and
    a violation its atom, with the atom's status.
    """
    atom = record.atoms[j]
    if relation in (Relation.VIOLATE, Relation.COMMIT):
        name = atom.id if relation is Relation.VIOLATE else "commit"
        return name, Status(record.status[t, j]).name, Status(record.status[t + 1, j]).name
    reveal = relation is Relation.REVEAL
    before, after = record.evidence[t], record.evidence[t + 1]
    changed = [
        v
        for v, variable in enumerate(record.variables)
        if variable.id in atom.variables
        and variable.observation == reveal
        and before[v] != after[v]
        and not (reveal and any(row[v] for row in record.evidence[: t + 1]))
    ]
    names = (record.variables[v].id for v in changed)
    return "; ".join(names), "; ".join(before[v] for v in changed), "; ".join(after[v] for v in changed)
