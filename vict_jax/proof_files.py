"""Names and columns of the files of the proof log, for its writer (`vict_jax.proofs`) and for readers.

Nothing here needs JAX, so that a reader starts fast.
"""

from __future__ import annotations

import pathlib

import pyarrow as pa

# Where a row belongs; the first columns of every table.
_PLACE = [("update", pa.int32()), ("group", pa.int32()), ("rollout", pa.int32())]
PROOF_SCHEMA = pa.schema(
    [
        *_PLACE,
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
        *_PLACE,
        ("step", pa.int32()),
        ("task_id", pa.string()),
        ("task_type", pa.string()),
        ("end", pa.string()),
        ("score", pa.float32()),
        ("observation", pa.string()),
        ("action", pa.string()),
        ("taken", pa.bool_()),
        ("valid", pa.bool_()),
        ("base", pa.float32()),
        ("correction", pa.float32()),
        ("advantage", pa.float32()),
    ]
)
# `unusable` says why the atom was switched off, `cause` and `rollout_cause` why credit was withheld; empty
# where nothing was. The last five are null for methods without proofs.
ATOM_SCHEMA = pa.schema(
    [
        *_PLACE,
        ("task_id", pa.string()),
        ("atom_id", pa.string()),
        ("atom_family", pa.string()),
        ("status", pa.string()),
        ("unusable", pa.string()),
        ("core", pa.bool_()),
        ("marginal", pa.float32()),
        ("marginal_norm", pa.float32()),
        ("cause", pa.string()),
        ("rollout_cause", pa.string()),
    ]
)
# Every kind of file, by folder and suffix.
KINDS = (("rollouts", ".npz"), ("rollouts", ".parquet"), ("atoms", ".parquet"), ("proofs", ".parquet"))
FOLDERS = ("rollouts", "atoms", "proofs")


def file_stem(update: int) -> str:
    """Name of an update's files, without folder and suffix."""
    return f"update_{update:06d}"


def logged_updates(workdir: pathlib.Path) -> list[int]:
    """Updates whose four files are all there, in order."""
    stems = [{p.stem for p in (workdir / folder).glob(f"update_*{suffix}")} for folder, suffix in KINDS]
    return sorted(int(stem.removeprefix("update_")) for stem in set.intersection(*stems))
