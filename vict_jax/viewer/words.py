"""Sentences about credit, made from the log, for a reader who has not seen the method before."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vict_jax.viewer.index import SWITCHED_OFF

Row = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Why:
    """Why credit was withheld, and what to do or to look at next."""

    why: str
    next: str


_AUDIT = "python -m vict_jax.audit"
# By the names of `vict_jax.credit.diagnostics.Cause`, in lower case, as the log writes them.
ROLLOUT_CAUSES: Mapping[str, Why] = {
    "conformance": Why(
        "The verifier interface of this task failed its conformance check (or none of its atoms passed), so "
        "nothing that it says is used.",
        f"Run {_AUDIT} --env NAME on the task to see which check failed (docs/conformance.md).",
    ),
    "inconsistent_record": Why(
        "At the end an atom was satisfied although one that it requires was not: the record contradicts the "
        "task's requirements.",
        "Compare the last statuses with the atoms' requirements; an atom that others require has to stay "
        "satisfied once reached (docs/method.md, reading 2).",
    ),
    "near_tie": Why(
        "Its score is as good as the average of its group (base advantage about 0), so there is no success "
        "or failure to explain.",
        "Look at the group side by side: if all scores are equal the task is too easy or too hard for now; "
        "more rollouts in a group or other tasks make differences.",
    ),
    "no_core": Why(
        "No set of atoms moves the verifier's score by as much as this rollout differs from its group.",
        "Look at which atoms are switched off; a lower credit.gamma_rho lets smaller effects count.",
    ),
    "budget": Why(
        "The core ran into its budget before its effect was large enough.",
        "Raise credit.budget above the number of atoms that decide this task.",
    ),
    "uncertainty_band": Why(
        "The effect of the core lies so near to the threshold that the tolerance of the verifier's score "
        "(eta) could decide.",
        "Nothing is wrong; a smaller eta needs a verifier that rebuilds the score more exactly.",
    ),
    "zero_marginal": Why(
        "Nothing in its core is worth a part of the score.",
        "Look at the atoms: those that matter may be switched off or unknown.",
    ),
    "unknown_evidence": Why(
        "The evidence of its core never came to light in this rollout.",
        "The agent never got to where the evidence shows: look at how far it came before it ended.",
    ),
    "no_proof_support": Why(
        "No action touched the evidence of its core, so nobody can be shown to have made the difference.",
        "Look at a successful rollout of the group for the step that is missing here.",
    ),
    "too_few_supported": Why(
        "Fewer than two rollouts of the group acted on the same core atom, so there is nothing to measure "
        "it against.",
        "Look at the group side by side; larger groups (train.rollouts) make comparisons more likely.",
    ),
    "zero_scale": Why(
        "All rollouts of the group that acted on its core atoms have the same marginal there: they differ "
        "elsewhere, in actions that no atom sees.",
        "Look at the group side by side: credit flows once some rollouts act on an atom and lose it. "
        "credit.scale and credit.center set how they are compared.",
    ),
}
ATOM_CAUSES: Mapping[str, Why] = {
    **{name: Why(f"The whole rollout abstains. {why.why}", why.next) for name, why in ROLLOUT_CAUSES.items()},
    "no_core": Why(
        "It is not in the core: the score would be the same without it, or the rollout has no core.",
        "Look at the atoms of the core; this one did not decide the score.",
    ),
    "budget": Why(
        "It stayed out of the core because the budget was used up.",
        "Raise credit.budget to let more atoms in.",
    ),
    "zero_marginal": Why(
        "It is in the core only because another atom requires it; alone it is worth nothing.",
        "Look at the atom that requires it.",
    ),
    "unknown_evidence": Why(
        "Whether it holds was never found out in this rollout, so it is neither praised nor blamed.",
        "The agent never got to where the evidence shows.",
    ),
    "no_proof_support": Why(
        "No action of this rollout touched its evidence, so nobody can be shown to have made or missed it.",
        "Look at a rollout of the group that did touch it.",
    ),
    "too_few_supported": Why(
        "Fewer than two rollouts of the group acted on it, so there is nothing to measure it against.",
        "Look at the group side by side; larger groups make comparisons more likely.",
    ),
    "zero_scale": Why(
        "Every rollout of the group that acted on it has the same marginal, so none stands out.",
        "Look at the group side by side.",
    ),
    SWITCHED_OFF: Why(
        "It was switched off in this rollout before credit looked at it.",
        "A masked family failed its conformance check (docs/conformance.md); a cycle or disjunction means "
        "that the requirements are ambiguous (docs/method.md, requirements as Horn rules).",
    ),
}
_NOT_KNOWN = "Look the name up in docs/method.md (why credit was withheld)."
LOST = Why(
    "The rollout was lost to an error or a time-out of its environment: nothing is known about its score, so "
    "it takes no part in credit or training.",
    "Look at the log of the run for the error; frequent losses show in the metric of lost rollouts.",
)


def why_rollout(cause: str) -> dict[str, str]:
    """Why a rollout got nothing."""
    return _named(cause, ROLLOUT_CAUSES)


def why_atom(atom: Row) -> dict[str, str] | None:
    """Why an atom got nothing; None if it was credited, or measured and found ordinary."""
    if atom["unusable"]:
        why = _named(SWITCHED_OFF, ATOM_CAUSES)
        return {**why, "why": f"{why['why']} Reason: {atom['unusable']}."}
    return _named(atom["cause"], ATOM_CAUSES) if atom["cause"] else None


def _named(cause: str, table: Mapping[str, Why]) -> dict[str, str]:
    known = table.get(cause, Why(f"The log says {cause!r}.", _NOT_KNOWN))
    return {"cause": cause, **dataclasses.asdict(known)}


def labels() -> dict[str, dict[str, str]]:
    """The short explanation of every cause, of rollouts and of atoms."""
    return {
        "rollout": {name: why.why for name, why in ROLLOUT_CAUSES.items()},
        "atom": {name: why.why for name, why in ATOM_CAUSES.items()},
    }


# --- why a step got what it got -------------------------------------------------------------------


def shortened(text: str, most: int = 80) -> str:
    """At most `most` characters, an ellipsis in place of the rest."""
    return text if len(text) <= most else text[: most - 1] + "…"


def number(value: float) -> str:
    """With its sign and two digits after the point, more for a small one."""
    text = f"{value:+.2f}" if abs(value) >= 0.01 or not value else f"{value:+.1g}"
    return text.replace("-", "\N{MINUS SIGN}")


def _changes(edge: Row) -> str:
    """`variable (before → after)` of every variable of an edge."""
    names, befores, afters = (str(edge[key] or "").split("; ") for key in ("variable", "before", "after"))
    if not len(names) == len(befores) == len(afters):  # a value has "; " in it itself
        names, befores, afters = ([str(edge[key] or "")] for key in ("variable", "before", "after"))
    pieces = [
        f"{shortened(name)} ({shortened(before) or 'nothing yet'} → {shortened(after) or 'nothing'})"
        for name, before, after in zip(names, befores, afters, strict=True)
    ]
    return ", ".join(pieces)


def _deed(edge: Row) -> str:
    """What a step did to the evidence of an atom."""
    relation, change = edge["relation"], _changes(edge)
    if relation == "write":
        return f"wrote the evidence {change}"
    if relation == "reveal":
        return f"was the first to show the evidence {change}"
    if relation == "commit":
        return f"committed it ({edge['before']} → {edge['after']})"
    if relation == "violate":
        return f"broke it for good ({edge['before']} → {edge['after']})"
    return f"has the relation {relation} to it: {change}"


_ENDS = {
    "satisfied": "held at the end",
    "unsatisfied": "did not hold at the end",
    "violated": "was violated at the end",
    "unknown": "was unknown at the end",
}


def _about_atom(name: str, edges: Sequence[Row], atoms: Mapping[str, Row]) -> str:
    """What the step did to one atom, and what the atom is worth."""
    touching = [edge for edge in edges if edge["relation"] in ("write", "reveal")]
    others = [edge for edge in edges if edge["relation"] not in ("write", "reveal")]
    atom = shortened(name)
    deeds = [f"{' and '.join(map(_deed, touching))} that atom {atom} checks"] if touching else []
    deeds += [
        _deed(edge).replace(" it ", f" atom {atom} ", 1) if not touching else _deed(edge) for edge in others
    ]
    row = atoms.get(name)
    ended = "" if row is None else f", {_ENDS.get(row['status'], row['status'])}"
    core = "is in the core" if row is None or row["core"] else "is not in the core"
    worth = (
        f"{atom} {core}{ended} (marginal {number(edges[0]['marginal'])}, "
        f"against its group {number(edges[0]['marginal_norm'])})"
    )
    return f"it {' and '.join(deeds)}; {worth}"


def step_sentence(step: Row, edges: Sequence[Row], atoms: Mapping[str, Row], *, failed: bool) -> str:
    """Why a step got its correction.

    Args:
      step: a row of the step table with a correction other than 0. edges: the rows of the proof table of the
        rollout. atoms: rows of the atom table of the rollout, by id. failed: the rollout did not succeed.
    """
    correction = step["correction"]
    title = f"Step {step['step']} “{shortened(step['action'] or '')}” gets {number(correction)}"
    by_atom: dict[str, list[Row]] = {}
    for edge in edges:
        if edge["step"] == step["step"]:
            by_atom.setdefault(edge["atom_id"], []).append(edge)
    shares = {name: sum(edge["contribution"] for edge in some) for name, some in by_atom.items()}
    order = sorted(by_atom, key=lambda name: -abs(shares[name]))
    along = [name for name in order if shares[name] * correction > 0]
    against = [name for name in order if name not in along]
    if not along:
        return f"{title}, but the proof log has no row that says why."
    text = f"{title}: {'; also '.join(_about_atom(name, by_atom[name], atoms) for name in along)}."
    if against:
        others = "; also ".join(_about_atom(name, by_atom[name], atoms) for name in against)
        text += f" The other way counts: {others}."
    sharing = {edge["step"] for edge in edges if edge["atom_id"] == along[0]}
    if len(sharing) > 1:
        text += f" The {len(sharing)} steps that touched {shortened(along[0])} share what it is worth."
    return text + (_in_a_failure(step, along[0], atoms) if failed and correction > 0 else "")


def _in_a_failure(step: Row, name: str, atoms: Mapping[str, Row]) -> str:
    held = name in atoms and atoms[name]["status"] == "satisfied"
    yet = (
        f"{shortened(name)} held at its end" if held else f"on {shortened(name)} it did better than its group"
    )
    if step["base"] >= 0:  # a partial score may fail and still be the better one of its group
        share = "is praised more than"
    else:
        share = "is praised, unlike" if step["advantage"] > 0 else "is blamed less than"
    return (
        f" The rollout failed, yet {yet}, so this step {share} the rest of it: "
        f"{number(step['advantage'])} instead of {number(step['base'])}."
    )


def sentences(
    steps: Sequence[Row], edges: Sequence[Row], atoms: Sequence[Row], *, failed: bool
) -> Iterator[dict[str, Any]]:
    """A sentence for each step with a correction, in order."""
    of = {atom["atom_id"]: atom for atom in atoms}
    for step in steps:
        if step["correction"]:
            yield {"step": step["step"], "text": step_sentence(step, edges, of, failed=failed)}
