"""Run directories with metrics made up: what a report must show is known beforehand."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tests.run.small import small_config
from vict_jax.config import from_config_dict, to_plain
from vict_jax.credit.diagnostics import Cause

UPDATES, EVERY, TASKS = 24, 6, 40
KINDS = ("clean", "heat")
TEXT = (
    "<script>alert('x')</script><img src=x onerror=alert(1)> & \"q\" $x^2$ \x1b[31mred\x1b[0m \u202e \ud800"
)

Row = dict[str, Any]


def config(seed: int = 0, **changes: Any) -> Row:
    """The small run's config as JSON, with changed values by dotted key (`__` for the dot)."""
    changed = small_config().unlock()
    changed.update({"seed": seed})
    changed.train.updates = UPDATES
    plain = to_plain(from_config_dict(changed))
    for key, value in changes.items():
        section, name = key.split("__")
        plain[section][name] = value
    return plain


def train_row(update: int, rng: np.random.Generator, **more: Any) -> Row:
    """A training row with every figure that the report reads, all within what is usual."""
    success = float(rng.integers(0, 33) / 32)
    row: Row = {"kind": "train", "update": update, "success": success, "score": success, "steps_mean": 5.5}
    counts = {"rollouts": 32, "steps": 200, "env_errors": 0, "env_timeouts": 0, "context_ends": 1}
    counts |= {"truncated": 1, "unparsed": 2, "inadmissible": 11, "shortened": 0, "sampled_tokens": 900}
    row |= {f"count/{name}": value for name, value in counts.items()}
    row |= {"reconstruction": 1.0, "eligibility": 1.0, "proof_coverage": 0.9, "abstention": 0.3}
    row |= {"trigger": float(rng.uniform(0.4, 0.7)), "sparsity": 0.1, "dead_groups": 0.25, "budget_hit": 0.0}
    row |= {"usable_atoms": 4.5, "core_size_mean": 4.0, "lambda": 0.8, "clip": 1.5, "credit_share": 0.02}
    row |= {f"{kind}/{c.name.lower()}": 0.0 for c in Cause for kind in ("abstention", "atom_abstention") if c}
    row |= {"abstention/zero_scale": 0.2, "abstention/near_tie": 0.1, "atom_abstention/zero_scale": 0.15}
    row |= {"entropy": 0.5, "kl_reference": 0.01, "kl_behaviour": 1e-3, "clip_fraction": 0.01}
    row |= {"gradient_norm": 0.6, "policy_loss": -0.01, "first_log_ratio_max": 1e-5, "optimizer_steps": 4.0}
    row |= {"seconds/sample": 6.0, "seconds/update": 3.0, "seconds/credit": 0.75, "seconds/log": 0.25}
    row |= {"nonconforming_groups": 0, "proofs": 12}
    return row | more


def eval_row(update: int, solved: Sequence[int], **more: Any) -> Row:
    """An evaluation: of `TASKS` tasks of each of `KINDS`, so many were solved."""
    share = sum(solved) / (TASKS * len(KINDS))
    per_type = {kind: [count, TASKS] for kind, count in zip(KINDS, solved, strict=True)}
    scores = {kind: count / TASKS for kind, count in zip(KINDS, solved, strict=True)}
    row = {"kind": "eval", "update": update, "success": share, "score": share, "per_type": per_type}
    row |= {"score_per_type": scores, "steps_mean": 6.0, "tasks": TASKS * len(KINDS), "about": "", "lost": 0}
    return row | more


def rows(seed: int = 0, updates: int = UPDATES) -> list[Row]:
    """A run's rows, all from `seed`."""
    rng = np.random.default_rng(seed)
    made: list[Row] = [
        {"kind": "conformance", "update": 0, "mutation": 1.0, "departures": 9, "findings": []},
        eval_row(0, (4, 8)),
    ]
    for update in range(1, updates + 1):
        made.append(train_row(update, rng))
        if update % EVERY == 0:
            least = 10 + 5 * update // EVERY  # it rises, by more than the draw
            made.append(eval_row(update, rng.integers(least, least + 4, 2).tolist()))
    return made


def write(workdir: pathlib.Path, some: Sequence[Mapping[str, Any]], plain: Mapping[str, Any]) -> pathlib.Path:
    """A run directory of these rows and this config."""
    workdir.mkdir(parents=True)
    (workdir / "config.json").write_text(json.dumps(plain))
    about = {
        "versions": {"jax": "0.10.2", "python": "3.11.7"},
        "devices": ["cpu:0"],
        "tasks": {"train": {"count": 24, "sha256": "ab" * 32}},
        "data": {"games.zip": "cd" * 32},
    }
    (workdir / "run.json").write_text(json.dumps(about))
    (workdir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in some))
    for update in (18, 24):
        (workdir / "checkpoints" / "state" / f"step_{update:08d}").mkdir(parents=True)
    return workdir


def write_run(workdir: pathlib.Path, seed: int = 0, **changes: Any) -> pathlib.Path:
    """The directory of a whole run."""
    return write(workdir, rows(seed), config(seed, **changes))


def change(workdir: pathlib.Path, kind: str, **values: Any) -> pathlib.Path:
    """Set values (`__` for a slash) in all rows of a kind that are there."""
    path = workdir / "metrics.jsonl"
    some = [json.loads(line) for line in path.read_text().splitlines()]
    named = {name.replace("__", "/"): value for name, value in values.items()}
    changed = [row | named if row["kind"] == kind else row for row in some]
    path.write_text("".join(json.dumps(row) + "\n" for row in changed))
    return workdir
