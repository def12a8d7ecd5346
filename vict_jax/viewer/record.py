"""One rollout and one group in full, from whatever of the log is readable."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from envs.base import Status
from vict_jax.viewer import log, words
from vict_jax.viewer.index import attempt, finite

Row = dict[str, Any]

_ARRAYS = ("score", "status", "rollout_mask")
_LOST = ("env_error", "env_timeout")
_SUCCESS = "success"


@dataclasses.dataclass(frozen=True)
class UpdateLog:
    """The files of one update; None for those that are not readable.

    Attributes:
      arrays: some of those of `CreditInputs`, see there for shapes.
    """

    update: int
    steps: pa.Table | None
    atoms: pa.Table | None
    proofs: pa.Table | None
    arrays: Mapping[str, np.ndarray] | None
    problems: tuple[log.Problem, ...]


def read_update(workdir: pathlib.Path, update: int) -> UpdateLog:
    """Read what can be read of an update."""
    problems: list[log.Problem] = []
    tables = {
        folder: attempt(
            functools.partial(log.read_table, workdir, folder, update),
            problems,
            update,
            log.table_path(folder, update),
        )
        for folder in log.SCHEMAS
    }
    arrays = attempt(
        functools.partial(log.read_arrays, workdir, update, _ARRAYS),
        problems,
        update,
        log.arrays_path(update),
    )
    return UpdateLog(update, tables["rollouts"], tables["atoms"], tables["proofs"], arrays, tuple(problems))


def rows_of(table: pa.Table | None, g: int, n: int | None = None) -> list[Row]:
    """Rows of a rollout, or of a whole group if `n` is None; none of a table that is not readable."""
    if table is None or not table.num_rows:
        return []
    chosen = table["group"].to_numpy() == g
    if n is not None:
        chosen &= table["rollout"].to_numpy() == n
    rows = table.take(np.flatnonzero(chosen)).to_pylist()
    return [{name: finite(value) for name, value in row.items()} for row in rows]


def outcome(end: str, score: float | None) -> str:
    """`success`, `failed`, `lost`, or `unknown` where the log does not say."""
    if end:
        return "lost" if end in _LOST else ("success" if end == _SUCCESS else "failed")
    if score is None:
        return "unknown"
    return "success" if score >= 1 else "failed"


def _statuses(update: UpdateLog, g: int, n: int, steps: int, atoms: int) -> list[list[int]] | None:
    """Codes int[T+1][M] of a rollout; None if they are not readable."""
    if update.arrays is None:
        return None
    status = update.arrays["status"]
    inside = status.ndim == 4 and g < status.shape[0] and n < status.shape[1]
    if not inside or steps >= status.shape[2] or atoms > status.shape[3]:
        return None
    chosen = status[g, n, : steps + 1, :atoms]
    known = ((chosen >= 0) & (chosen < len(Status))).all()
    return chosen.tolist() if known else None


def _logged_score(update: UpdateLog, g: int, n: int) -> float | None:
    if update.arrays is None or update.arrays["score"].ndim != 2:
        return None
    score, real = update.arrays["score"], update.arrays["rollout_mask"]
    inside = real.shape == score.shape and g < score.shape[0] and n < score.shape[1]
    return finite(float(score[g, n])) if inside and real[g, n] else None


def _side(base: float | None, eps_q: float | None) -> int | None:
    if base is None or eps_q is None:
        return None
    return 0 if abs(base) <= eps_q else int(np.sign(base))


def rollout_record(update: UpdateLog, g: int, n: int, settings: Mapping[str, Any] | None) -> dict[str, Any]:
    """Everything that is logged of a rollout, and what it says in words.

    Args:
      settings: as `log.read_settings` gives them; None if they are not readable.
    """
    steps = rows_of(update.steps, g, n)
    atoms = rows_of(update.atoms, g, n)
    edges = rows_of(update.proofs, g, n)
    first = steps[0] if steps else {}
    end = first.get("end") or ""
    score = first["score"] if steps else _logged_score(update, g, n)
    kind = outcome(end, score)
    proved = any(atom["core"] is not None for atom in atoms)
    cause = next((atom["rollout_cause"] for atom in atoms if atom["rollout_cause"]), "")
    base = first.get("base")
    return {
        "update": update.update,
        "group": g,
        "rollout": n,
        "task": (first or (atoms[0] if atoms else {})).get("task_id") or "",
        "type": first.get("task_type") or "",
        "end": end,
        "score": score,
        "outcome": kind,
        "base": base,
        "side": _side(base, None if settings is None else settings["eps_q"]),
        "method": None if settings is None else settings["method"],
        "proved": proved,
        "core": [atom["atom_id"] for atom in atoms if atom["core"]],
        "abstains": _abstention(kind, cause),
        "sentences": list(words.sentences(steps, edges, atoms, failed=kind == "failed")),
        "steps": [_without(row, _PLACE) for row in steps],
        "status": _statuses(update, g, n, len(steps), len(atoms)),
        "atoms": [{**_without(row, _PLACE), "why": words.why_atom(row)} for row in atoms],
        "edges": [_without(row, _PLACE) for row in edges],
        "problems": [dataclasses.asdict(problem) for problem in update.problems],
    }


_PLACE = ("update", "group", "rollout", "task_id", "task_type", "end", "score")


def _without(row: Mapping[str, Any], names: Sequence[str]) -> Row:
    return {name: value for name, value in row.items() if name not in names}


def _abstention(kind: str, cause: str) -> dict[str, str] | None:
    if kind == "lost":
        return {"cause": "lost", **dataclasses.asdict(words.LOST)}
    return words.why_rollout(cause) if cause else None


def group_record(update: UpdateLog, g: int, size: int) -> dict[str, Any]:
    """The rollouts of a group side by side: each one's outcome, atoms and advantages, without texts."""
    steps, atoms = rows_of(update.steps, g), rows_of(update.atoms, g)
    rollouts = []
    for n in range(size):
        own = [row for row in steps if row["rollout"] == n]
        theirs = [row for row in atoms if row["rollout"] == n]
        end = own[0]["end"] if own else ""
        score = own[0]["score"] if own else _logged_score(update, g, n)
        kind = outcome(end or "", score)
        cause = next((row["rollout_cause"] for row in theirs if row["rollout_cause"]), "")
        rollouts.append(
            {
                "rollout": n,
                "end": end,
                "score": score,
                "outcome": kind,
                "base": own[0]["base"] if own else None,
                "abstains": _abstention(kind, cause),
                "steps": [
                    {
                        **{key: row[key] for key in ("step", "taken", "base", "correction", "advantage")},
                        "action": words.shortened(row["action"] or "", 120),
                    }
                    for row in own
                ],
                "atoms": {
                    row["atom_id"]: {
                        key: row[key] for key in ("status", "core", "marginal", "marginal_norm", "cause")
                    }
                    for row in theirs
                },
            }
        )
    return {
        "update": update.update,
        "group": g,
        "task": steps[0]["task_id"] if steps else "",
        "type": steps[0]["task_type"] if steps else "",
        "atoms": list(dict.fromkeys(row["atom_id"] for row in atoms)),
        "rollouts": rollouts,
        "problems": [dataclasses.asdict(problem) for problem in update.problems],
    }
