"""Conformance as a gate: what the verifier interface cannot account for gets no credit.

Before training, rollouts of the expert, random ones, edits and mutations are checked on some training tasks
(`envs.conformance`). Every `conformance.every` updates the update's own rollouts are checked, and edits of
them and mutations of their tasks are played. A family that fails is masked, a task type whose aggregator
fails gets no correction; the verdict only grows (VICT section 3.2, Eq. 11; docs/conformance.md). In every
update a group with a rollout whose score is not rebuilt is left out of that update's credit.

All findings are in rows of kind `conformance` in `metrics.jsonl`, from where a resumed run takes them. What
is played depends on the seed and the update alone, so a resumed run finds the same.
"""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
import random
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
from absl import logging

from envs import conformance
from envs.base import Domain, Task
from envs.conformance import Report
from envs.play import (
    EDITED,
    EDITS,
    EXPERT,
    MUTATED,
    POLICY,
    Played,
    PoolEnv,
    edit,
    play_actions,
    play_mutations,
)
from envs.verdict import Finding, Verdict, texts
from vict_jax import processes
from vict_jax.batching import Rollout
from vict_jax.config import ConformanceOptions
from vict_jax.job import Job
from vict_jax.metrics import MetricsWriter, RunError, read_metrics
from vict_jax.shares import Share

ROW = "conformance"
# Between training episodes every slot of the pool is free; one is enough.
_SLOT = 0


def before_training(job: Job, metrics: MetricsWriter) -> Verdict:
    """Check some training tasks, the types in turn, and write the row of update 0.

    Raises:
      RunError: the expert solves no task, or with `conformance.strict` something does not conform.
    """
    began, options = time.perf_counter(), job.config.conformance
    sample = sample_tasks(job.train_tasks, options.tasks)
    report = conformance.check(
        job.domain,
        job.config.env.options,
        sample,
        rollouts=options.rollouts,
        env=PoolEnv(job.pool, _SLOT),
    )
    if not report.share(kind=EXPERT).won:
        lost = f" {len(report.lost)} episodes were lost: {report.lost[0].lost}." if report.lost else ""
        raise RunError(
            f"the expert of {job.domain.name!r} solves none of {len(sample)} training tasks: engine and data "
            f"do not fit together.{lost} Check the options of env and run `{_next_step(job)}`."
        )
    verdict = report.verdict()
    metrics.write(ROW, 0, _row(report, Verdict(), verdict, time.perf_counter() - began))
    _tell(job, report, verdict.findings, "before training")
    return verdict


def sample_tasks(tasks: Sequence[Task], count: int) -> list[Task]:
    """`count` tasks, all if there are fewer: the types take turns, each spread over its own tasks."""
    by_type: dict[str, list[Task]] = {}
    for task in tasks:
        by_type.setdefault(task.type, []).append(task)
    stride = max(1, len(tasks) // count)
    spread = ([task for i in range(stride) for task in some[i::stride]] for some in by_type.values())
    turns = itertools.zip_longest(*spread)
    return list(itertools.islice((task for turn in turns for task in turn if task is not None), count))


def due(options: ConformanceOptions, update: int) -> bool:
    """Whether update 1, 2, ... has a recheck."""
    return options.every > 0 and update % options.every == 0


def recheck(
    job: Job,
    metrics: MetricsWriter,
    known: Verdict,
    groups: Sequence[Sequence[Rollout]],
    update: int,
    share: Share,
) -> Verdict:
    """Check the update's rollouts, edits of them and mutations of their tasks, and write the update's row.

    Called by all processes. Each checks its own groups, those of `share`; the first one plays what is edited
    and mutated, and what it finds holds for all.

    Returns:
      `known` and what was found in addition.

    Raises:
      RunError: with `conformance.strict`, something was found.
    """
    began = time.perf_counter()
    # An aggregator may use JAX, and here it gets NumPy arrays.
    with jax.transfer_guard("allow"):
        reports = processes.gather(conformance.judge_all(job.domain, _own(groups)))
        rng = random.Random(f"conformance/{job.config.seed}/{update}")
        picked = _picked(job, groups, share, rng)

        def finish() -> Verdict:
            departures = conformance.judge_all(job.domain, _departures(job, picked, rng))
            report = _sum([*reports, departures])
            verdict = report.verdict(known)
            metrics.write(ROW, update, _row(report, known, verdict, time.perf_counter() - began))
            _tell(job, report, verdict.findings[len(known.findings) :], f"at update {update}")
            return verdict

        return processes.from_first(finish)


def _sum(reports: Sequence[Report]) -> Report:
    """One report of everything checked."""
    rollouts = tuple(rollout for report in reports for rollout in report.rollouts)
    return Report(reports[0].domain, rollouts, tuple(lost for report in reports for lost in report.lost))


def _picked(
    job: Job, groups: Sequence[Sequence[Rollout]], share: Share, rng: random.Random
) -> list[Sequence[Rollout]]:
    """The groups of an update to edit and mutate, from whichever process has them, without their tokens."""
    numbers = sorted(rng.sample(range(share.total), min(job.config.conformance.recheck_tasks, share.total)))
    own = {
        number: [dataclasses.replace(rollout, sequences=()) for rollout in group]
        for number, group in zip(share.own, groups, strict=True)
        if number in numbers
    }
    everyones = {number: group for some in processes.gather(own) for number, group in some.items()}
    return [everyones[number] for number in numbers]


def _own(groups: Sequence[Sequence[Rollout]]) -> Iterator[Played]:
    for group in groups:
        for rollout in group:
            if rollout.record is not None:
                yield Played(rollout.task, POLICY, "", rollout.actions, rollout.record)


def _departures(job: Job, groups: Sequence[Sequence[Rollout]], rng: random.Random) -> Iterator[Played]:
    """Edits of the best rollouts of some groups, and the mutations of their tasks."""
    options, env = job.config.conformance, PoolEnv(job.pool, _SLOT)
    for group in groups:
        task, candidates = group[0].task, [rollout for rollout in group if rollout.valid.any()]
        rng.shuffle(candidates)
        # Edits of a solved task are the ones that the verifier has most to say about.
        for rollout in sorted(candidates, key=lambda r: -r.score)[: options.rollouts]:
            pairs = zip(rollout.actions, rollout.valid, strict=True)
            accepted = [action for action, valid in pairs if valid]
            for how in EDITS:
                name, actions = edit(accepted, how, rng)
                yield play_actions(env, task, EDITED, name, actions)
        yield from play_mutations(job.domain, job.config.env.options, env, task)


def conforming_groups(domain: Domain, verdict: Verdict, groups: Sequence[Sequence[Rollout]]) -> list[bool]:
    """For each group, whether its task may be corrected in this update.

    It may not if the aggregator fails on its type, or if the score of one of its own rollouts is not
    rebuilt and no family that is masked for its scores explains why.
    """
    with jax.transfer_guard("allow"):
        return [
            group[0].task.type not in verdict.failing_types
            and all(
                conformance.rebuilds(domain, rollout.record, verdict.blamed_families)
                for rollout in group
                if rollout.record is not None
            )
            for group in groups
        ]


def resumed(job: Job, workdir: pathlib.Path) -> Verdict:
    """The verdict that the rows of a run directory add up to.

    Raises:
      RunError: there are findings, and the run goes on with `conformance.strict`.
    """
    rows = [row for row in read_metrics(workdir) if row["kind"] == ROW]
    verdict = Verdict(tuple(Finding.from_json(finding) for row in rows for finding in row["findings"]))
    _enforce(job, verdict.findings, f"in --workdir={workdir}")
    return verdict


def describe(verdict: Verdict) -> str:
    """The verdict in one line."""
    if not verdict.findings:
        return "conforms"
    masked = ", ".join(verdict.masked_families) or "none"
    failing = ", ".join(verdict.failing_types) or "none"
    return f"DOES NOT CONFORM: masked families: {masked}; task types without credit: {failing}"


def _row(report: Report, known: Verdict, verdict: Verdict, seconds: float) -> dict[str, Any]:
    """Figures of a check; `findings` are the new ones."""
    total, edited, mutated = report.share(), report.share(kind=EDITED), report.share(kind=MUTATED)
    departures, agreeing = edited.rollouts + mutated.rollouts, edited.agree + mutated.agree
    return {
        "rollouts": total.rollouts,
        "reconstruction": _share(total.agree - agreeing, total.rollouts - departures),
        "departures": departures,
        "mutation": _share(agreeing, departures),
        "sound": _share(total.sound, total.rollouts),
        "lost": len(report.lost),
        "masked_families": len(verdict.masked_families),
        "failing_types": len(verdict.failing_types),
        "seconds": seconds,
        "findings": [finding.to_json() for finding in verdict.findings[len(known.findings) :]],
    }


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _tell(job: Job, report: Report, new: Sequence[Finding], when: str) -> None:
    """Warn of lost episodes and of what new findings are about; a strict run stops at a finding."""
    if report.lost:
        first = report.lost[0]
        logging.warning(
            "conformance %s: %d episodes were lost to the environment and tell nothing; the first, %s of "
            "task %r: %s",
            when,
            len(report.lost),
            f"{first.kind} {first.name}".strip(),
            first.task.id,
            first.lost,
        )
    _enforce(job, new, when)
    for text in texts(new):
        logging.warning("conformance %s: %s", when, text)


def _enforce(job: Job, findings: Sequence[Finding], when: str) -> None:
    if findings and job.config.conformance.strict:
        raise RunError(
            f"the verifier interface of {job.domain.name!r} does not conform {when}, and conformance.strict "
            f"is set:\n" + "\n".join(texts(findings)) + f"\nNext: `{_next_step(job)}`"
        )


def _next_step(job: Job) -> str:
    return f"python -m vict_jax.audit --env {job.config.env.name}"
