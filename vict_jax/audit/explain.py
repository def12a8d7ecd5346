"""`--explain DIR --update U --rollout R`: one logged rollout, step by step, with all that credit says."""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from vict_jax import proofs
from vict_jax.audit.text import printable, signed, table
from vict_jax.credit.witness import witness_edges
from vict_jax.metrics import RunError, read_json
from vict_jax.types import CreditInputs, Relation

# Widths that keep every line within 110 columns.
_LINE, _ACTION, _ATOM = 110, 36, 18

Row = Mapping[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments that choose the rollout."""
    group = parser.add_argument_group("explaining a rollout")
    group.add_argument("--update", type=int, metavar="U", help="with --explain: which update")
    group.add_argument(
        "--rollout", metavar="R", help="with --explain: which rollout of it, counted from 0, or GROUP/ROLLOUT"
    )


def check_arguments(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """End the program with a message if --explain lacks its companions, or is asked for JSON."""
    if args.explain is not None and (args.update is None or args.rollout is None):
        parser.error("--explain DIR needs --update U and --rollout R")
    if args.explain is not None and args.json is not None:
        parser.error("--explain prints text only; the same values are in the tables under DIR")


def main(args: argparse.Namespace) -> int:
    """Print the rollout; returns the exit code.

    Raises:
      RunError: there is no such run, update or rollout, or its method gives no proofs.
    """
    print(explain(args.explain, args.update, args.rollout))
    return 0


def explain(workdir: pathlib.Path, update: int, rollout: str) -> str:
    """The text of the command; see `main`."""
    config = workdir / "config.json"
    if not config.is_file():
        raise RunError(f"--explain {workdir} holds no run (no config.json in it)")
    inputs = proofs.read_inputs(workdir, update)
    groups, size = inputs.score.shape
    g, n = find_rollout(rollout, groups, size, f"update {update}")
    steps, atoms, edges = (
        _rows(proofs.read_table(workdir, folder, update), g, n) for folder in ("rollouts", "atoms", "proofs")
    )
    credit = read_json(config)["credit"]
    if any(atom["core"] is None for atom in atoms):
        raise RunError(f"credit method {credit['method']!r} gives no proofs; there is nothing to explain")
    title = f"update {update}, rollout {g * size + n} ({g}/{n}: group {g}, rollout {n} of {size})"
    if not steps:
        return f"{title}\nno action was taken"
    touched = {(t, atoms[j]["atom_id"], relation) for t, j, relation in witnessed(inputs, g, n)}
    touched |= {(edge["step"], edge["atom_id"], edge["relation"]) for edge in edges}
    facts = _facts(steps, atoms, credit["eps_q"])
    return "\n".join([title, *facts, "", _atom_table(atoms), "", _step_table(steps, atoms, sorted(touched))])


def find_rollout(text: str, groups: int, size: int, where: str) -> tuple[int, int]:
    """Group and place of a rollout, from its number or `GROUP/ROLLOUT`.

    Args:
      where: what has the rollouts, for the message.

    Raises:
      RunError: there is none.
    """
    pieces = text.split("/")
    what = f"{where} has rollouts 0 to {groups * size - 1}, or 0/0 to {groups - 1}/{size - 1}"
    if len(pieces) > 2 or not all(piece.isascii() and piece.isdigit() for piece in pieces):
        raise RunError(f"--rollout {text!r} is not a number or GROUP/ROLLOUT; {what}")
    g, n = divmod(int(text), size) if len(pieces) == 1 else (int(pieces[0]), int(pieces[1]))
    if g >= groups or n >= size:
        raise RunError(f"there is no rollout {text}: {what}")
    return g, n


def _rows(columns: Mapping[str, list[Any]], g: int, n: int) -> list[Row]:
    chosen = [
        i for i, place in enumerate(zip(columns["group"], columns["rollout"], strict=True)) if place == (g, n)
    ]
    return [{name: values[i] for name, values in columns.items()} for i in chosen]


def witnessed(inputs: CreditInputs, g: int, n: int) -> Iterator[tuple[int, int, str]]:
    """(step, atom, relation) of every edge of a rollout, credited or not."""
    one = {
        name: jnp.asarray(getattr(inputs, name)[g])
        for name in ("binds", "observation_var", "irreversible", "terminal_only")
    }
    edges = witness_edges(
        *(jnp.asarray(getattr(inputs, name)[g, n]) for name in ("evidence", "status", "commits", "scope")),
        usable=jnp.asarray(inputs.usable[g, n]),
        step_mask=jnp.asarray(inputs.step_mask[g, n]),
        **one,
    )
    for t, j, r in np.argwhere(np.asarray(edges)).tolist():
        yield t, j, Relation(r).name.lower()


def _facts(steps: list[Row], atoms: list[Row], eps_q: float) -> Iterator[str]:
    first = steps[0]
    yield printable(f"task {first['task_id']} ({first['task_type']})", _LINE)
    yield f"score {first['score']:g}, ended by {first['end']} after {len(steps)} steps"
    base = first["base"]
    q = ("-1" if base < 0 else "+1") if abs(base) > eps_q else "0"
    core = " + ".join(atom["atom_id"] for atom in atoms if atom["core"])
    yield printable(f"base advantage {base:+.3f}, q = {q}, core: {core or 'none accepted'}", _LINE)
    cause = atoms[0]["rollout_cause"] if atoms else "lost"
    yield f"abstains: {cause}" if cause else "does not abstain"


def _atom_table(atoms: list[Row]) -> str:
    rows = [
        [
            printable(atom["atom_id"], _ATOM),
            atom["status"],
            "yes" if atom["core"] else "no",
            f"{atom['marginal']:+.3f}",
            f"{atom['marginal_norm']:+.3f}",
            printable(f"off: {atom['unusable']}" if atom["unusable"] else atom["cause"], 40),
        ]
        for atom in atoms
    ]
    return table(["atom", "status", "in core", "marginal", "normalised", "why nothing"], rows, align="lllrrl")


def _step_table(steps: list[Row], atoms: list[Row], touched: list[tuple[int, str, str]]) -> str:
    marginals = {atom["atom_id"]: signed(atom["marginal"]) for atom in atoms}
    rows = []
    for t, step in enumerate(steps):
        action = step["action"] if step["taken"] else f"(not seen) {step['action']}"
        figures = [signed(step["base"]), signed(step["correction"]), f"{step['advantage']:+.3f}"]
        edges = [
            [printable(name, _ATOM), relation, marginals[name]] for s, name, relation in touched if s == t
        ]
        rows.append([str(t), printable(action, _ACTION), *(edges[0] if edges else [""] * 3), *figures])
        rows += [["", "", *edge, "", "", ""] for edge in edges[1:]]
    title = ["step", "action", "atom touched", "relation", "marginal", "base", "correction", "final"]
    return table(title, rows, align="rlllrrrr")
