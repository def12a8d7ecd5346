"""What credit will find in an environment's records: the score rebuilt, sound atoms, edges to them."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from envs import conformance, verdict
from envs.base import Domain, ScoreRole, Status, VerifierRecord, no_mutations
from envs.closure import may_require, requirement_closure
from envs.play import EXPERT
from vict_jax.audit.contract import record_problems
from vict_jax.audit.findings import Finding, Level, Section, call, judged, problems, share
from vict_jax.audit.watch import Episode
from vict_jax.batching import EndReason, Rollout, credit_inputs
from vict_jax.credit.witness import witness_edges
from vict_jax.types import Relation

_ROUNDING = 1e-5
_RECORD_ADVICE = "see 'Atoms' and 'Evidence' in docs/your_environment.md, and correct the atom"


def check_conformance(domain: Domain, episodes: Sequence[Episode]) -> Section:
    """F(z_T) = V on every episode, and enough different episodes to mean it (VICT section 3.2, Eq. 3)."""
    report = call("aggregate", conformance.judge_all, domain, [episode.played for episode in episodes])
    findings = [
        Finding(Level.FAIL, _text(finding), _score_advice(finding.example))
        for finding in report.verdict().findings
        if finding.kind is not verdict.Kind.RECORD
    ]
    total, expert = report.share(), report.share(kind=EXPERT)
    if not findings:
        text = f"F over the atoms rebuilds the score of {share(total.agree, total.rollouts)} episodes"
        findings.append(Finding(Level.PASS, text))
    level = Level.PASS if expert.won == expert.rollouts else Level.WARN if expert.won else Level.FAIL
    advice = "" if level is Level.PASS else "the expert should end with score 1; play its actions on one task"
    findings.append(Finding(level, f"the expert wins {share(expert.won, expert.rollouts)} tasks", advice))
    findings += _variety(domain, report)
    kinds = dict.fromkeys(r.kind for r in report.rollouts)
    counts = {kind: report.share(kind=kind).rollouts for kind in kinds}
    agree = {kind: report.share(kind=kind).agree / counts[kind] for kind in kinds}
    return Section("conformance", tuple(findings), {"episodes": counts, "score rebuilt": agree})


def _text(finding: verdict.Finding) -> str:
    return f"{finding.consequence}\n{finding.evidence()}"


def _score_advice(example: verdict.Rollout) -> str:
    if abs(example.rebuilt - example.score) < _ROUNDING:
        return "the difference is one of rounding in float32: give the record an eta of 1e-6"
    where = f"the statuses of one of {', '.join(example.blamed)} are wrong at the end, or aggregate() is"
    if not example.blamed:
        where = "an atom is missing, or aggregate() is wrong"
    return f"play these actions and compare the environment's own score with the atoms: {where}"


def _variety(domain: Domain, report: conformance.Report) -> Iterator[Finding]:
    if domain.mutations is no_mutations or not any(r.kind == "mutated" for r in report.rollouts):
        yield Finding(
            Level.WARN,
            "the domain has no mutations of its own",
            "write mutations(options, task): solutions with one mistake that the score has to notice; random "
            "edits rarely make the mistakes that matter",
        )
    scores = Counter(round(r.score, 6) for r in report.rollouts)
    if len(scores) < 2:
        yield Finding(
            Level.WARN,
            f"every episode has the score {next(iter(scores))}",
            "nothing was tested: give the environment an expert that wins, and mutations that lose",
        )


def check_eligibility(domain: Domain, episodes: Sequence[Episode]) -> Section:
    """Every record is one that credit can use, and its statuses mean what envs.base says."""
    records = [episode.record for episode in episodes]
    report = call("aggregate", conformance.judge_all, domain, [episode.played for episode in episodes])
    findings = [
        Finding(Level.FAIL, _text(finding), _RECORD_ADVICE)
        for finding in report.verdict().findings
        if finding.kind is verdict.Kind.RECORD
    ]
    if not findings:
        findings.append(Finding(Level.PASS, "requirements, writes, violations and commits are consistent"))
    shaped = (
        text for e in episodes for text in record_problems(domain, e.record, steps=len(e.played.actions))
    )
    findings += [
        judged(
            "records have the promised shapes, and those of one task the same atoms",
            problems(text for texts in (shaped, _disagreements(episodes)) for text in texts),
            "atoms, variables, eta and params belong to the task: let no rollout change them",
        ),
        judged(
            "an atom is UNKNOWN only while evidence is missing, and known only with evidence",
            _unknown(records),
            'UNKNOWN means that a variable of the atom, or of one that it requires, is still ""; what can be '
            "read and is not so is UNSATISFIED",
        ),
        judged(
            "every support atom is required by another",
            _idle(records),
            "let an atom require it, or leave it out",
            Level.WARN,
        ),
        judged(
            "no closure is ambiguous",
            _ambiguous(records),
            "an atom whose trace does not settle its alternatives gets no credit there; give the ways "
            "premises that no rollout fulfils together",
            Level.WARN,
        ),
        judged(
            "scores are from 0 to 1",
            (f"an episode has the score {r.score}" for r in records if not 0 <= r.score <= 1),
            "scale the score: success is counted from 1 on",
            Level.WARN,
        ),
    ]
    return Section("eligibility", tuple(findings))


def _disagreements(episodes: Sequence[Episode]) -> Iterator[str]:
    first: dict[str, VerifierRecord] = {}
    for episode in episodes:
        task, record = episode.played.task.id, episode.record
        known = first.setdefault(task, record)
        for name in ("atoms", "variables", "eta"):
            if vars(record)[name] != vars(known)[name]:
                yield f"two rollouts of task {task!r} have different {name}"
        if record.params.keys() == known.params.keys() and any(
            not np.array_equal(value, known.params[key]) for key, value in record.params.items()
        ):
            yield f"two rollouts of task {task!r} have different params"


def _unknown(records: Sequence[VerifierRecord]) -> Iterator[str]:
    for record in records:
        available = np.array(record.evidence, object).reshape(len(record.evidence), -1) != ""
        binds = np.array([[v.id in atom.variables for v in record.variables] for atom in record.atoms], bool)
        reads = (may_require(record.atoms).astype(int) @ binds.astype(int)) > 0
        for j, atom in enumerate(record.atoms):
            unknown = record.status[:, j] == Status.UNKNOWN
            if atom.terminal_only:
                unknown = unknown & (np.arange(len(unknown)) == len(unknown) - 1)
            if (unknown & available[:, reads[j]].all(axis=1)).any():
                yield f"{atom.id} is UNKNOWN while everything that it reads is available"
            known = record.status[:, j] != Status.UNKNOWN
            if atom.variables and (known & ~available[:, binds[j]].any(axis=1)).any():
                yield f"{atom.id} is known while nothing that it reads is available"


def _idle(records: Sequence[VerifierRecord]) -> Iterator[str]:
    for record in records:
        required = may_require(record.atoms) & ~np.eye(len(record.atoms), dtype=bool)
        for j, atom in enumerate(record.atoms):
            if atom.role is ScoreRole.SUPPORT and not required[:, j].any():
                yield f"{atom.id} has the role SUPPORT, but no atom requires it"


def _ambiguous(records: Sequence[VerifierRecord]) -> Iterator[str]:
    for record in records:
        for atom, reason in zip(
            record.atoms, requirement_closure(record.atoms, record.status).unsettled, strict=True
        ):
            if reason:
                yield f"{atom.id}: {reason}"


@dataclasses.dataclass
class _Family:
    """Of the atoms of a family: one is scored, one ever held, all always held, an action touched one."""

    scored: bool = False
    held: bool = False
    always: bool = True
    touched: bool = False


def check_coverage(domain: Domain, options: Any, episodes: Sequence[Episode]) -> Section:
    """Which atoms ever hold and are ever touched by an action (Eq. 4), and through which relations."""
    edges = _edges(domain, options, episodes)
    families = _families(episodes, edges)
    findings = [
        judged(
            f"each of {len(families)} families of atoms holds in some episode",
            (
                f"no atom of family {name!r} ever holds"
                for name, family in families.items()
                if not family.held
            ),
            "the predicate is never true, or no episode gets there: let the expert solve such a task",
        ),
        judged(
            "each scored family is touched by some action",
            (
                f"no action ever has an edge to family {name!r}"
                for name, family in families.items()
                if family.scored and not family.touched
            ),
            "no credit can reach it: bind it to a variable that changes when an action decides it, or put "
            "it into the scope of a commit",
        ),
        judged(
            "each scored family fails in some episode",
            (
                f"family {name!r} holds in every state of every episode"
                for name, family in families.items()
                if family.scored and family.always
            ),
            "it decides nothing, or no episode breaks it: add a mutation that does",
            Level.WARN,
        ),
        judged(
            "commands that are admissible are taken",
            _refused(episodes),
            "list a command as admissible only where step takes it, or leave the list empty",
            Level.WARN,
        ),
    ]
    return Section("coverage", tuple(findings), _coverage_figures(episodes, edges, families))


def _families(episodes: Sequence[Episode], edges: np.ndarray) -> dict[str, _Family]:
    families: dict[str, _Family] = defaultdict(_Family)
    for episode, found in zip(episodes, edges, strict=True):
        holds = episode.record.status == Status.SATISFIED
        for j, atom in enumerate(episode.record.atoms):
            family = families[atom.family]
            family.scored |= atom.role is ScoreRole.SCORED
            family.held |= bool(holds[:, j].any())
            family.always &= bool(holds[:, j].all())
            family.touched |= bool(found[:, j].any())
    return dict(families)


def _coverage_figures(
    episodes: Sequence[Episode], edges: np.ndarray, families: Mapping[str, _Family]
) -> dict[str, Any]:
    proofs = [
        bool(found[:, j].any())
        for episode, found in zip(episodes, edges, strict=True)
        if episode.played.kind == EXPERT
        for j, atom in enumerate(episode.record.atoms)
        if atom.role is ScoreRole.SCORED
    ]
    seen = [bool(observation.admissible) for episode in episodes for observation in episode.observations]
    return {
        "families that ever hold": share(sum(f.held for f in families.values()), len(families)),
        "families that an action ever touches": share(
            sum(f.touched for f in families.values()), len(families)
        ),
        "edges by relation": {r.name.lower(): int(edges[..., r].sum()) for r in Relation},
        "scored atoms of expert episodes with an edge": share(sum(proofs), len(proofs)),
        "observations with admissible commands": share(sum(seen), len(seen)),
    }


def _edges(domain: Domain, options: Any, episodes: Sequence[Episode]) -> np.ndarray:
    """bool[E, T, M, R]: the edges of E episodes that credit sees where no atom is masked."""
    inputs = call(
        "padding the records",
        credit_inputs,
        [[_rollout(episode)] for episode in episodes],
        domain=domain,
        max_steps=domain.max_steps(options),
        group_size=1,
        conforming=[True] * len(episodes),
    )
    witness = functools.partial(witness_edges, usable=jnp.ones(domain.max_atoms, bool))
    per_episode = {name: vars(inputs)[name][:, 0] for name in ("evidence", "status", "commits", "scope")}
    per_task = ("binds", "observation_var", "irreversible", "terminal_only")
    arrays = {**per_episode, **{name: vars(inputs)[name] for name in per_task}}
    arrays["step_mask"] = inputs.step_mask[:, 0]
    return np.asarray(jax.jit(jax.vmap(lambda fields: witness(**fields)))(arrays))


def _rollout(episode: Episode) -> Rollout:
    steps = len(episode.played.actions)
    return Rollout(
        task=episode.played.task,
        sequences=(),
        actions=episode.played.actions,
        observations=tuple(observation.text for observation in episode.observations),
        taken=np.ones(steps, bool),
        valid=np.array(episode.valid, bool),
        record=episode.record,
        score=episode.record.score,
        end=EndReason.SUCCESS if episode.record.score >= 1 else EndReason.FAILURE,
    )


def _refused(episodes: Sequence[Episode]) -> Iterator[str]:
    for episode in episodes:
        for seen, action, valid in zip(
            episode.observations, episode.played.actions, episode.valid, strict=False
        ):
            if action in seen.admissible and not valid:
                yield f"task {episode.played.task.id!r}: {action!r} is listed as admissible, but is not taken"
