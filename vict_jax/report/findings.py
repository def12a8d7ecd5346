"""Warnings, each with what to do next. The thresholds are rules of thumb of docs/report.md, not standards."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from envs.verdict import Finding, texts
from vict_jax.report.diagnostics import last_quarter, ratio
from vict_jax.report.groups import points
from vict_jax.report.read import Record
from vict_jax.report.tables import chance, number, percent

PROBLEM, LOOK = "problem", "check"

DEAD_GROUPS = 0.5
CLIP_FRACTION = 0.2
KL_BEHAVIOUR = 0.02
LOG_RATIO = 0.1
ENTROPY_LEFT = 0.1
_MOST_NAMES = 6


@dataclasses.dataclass(frozen=True)
class Warned:
    """A warning. `level`: PROBLEM, something is wrong; LOOK, something may be. `next`: what to do."""

    level: str
    title: str
    text: str
    next: str


@dataclasses.dataclass(frozen=True)
class _Rate:
    """A share of the rollouts or steps to look at when it lies above `most` in the last quarter."""

    title: str
    parts: tuple[str, ...]
    whole: str
    most: float
    next: str


_RATES = (
    _Rate(
        "Replies are cut off",
        ("count/truncated",),
        "count/steps",
        0.01,
        "Raise rollout.max_new_tokens (now {rollout.max_new_tokens}); a reply that is cut off rarely holds "
        "an action.",
    ),
    _Rate(
        "Rollouts end because the context is full",
        ("count/context_ends",),
        "count/rollouts",
        0.05,
        "Raise rollout.max_context (now {rollout.max_context}), or set rollout.overflow=shorten "
        "(now {rollout.overflow}).",
    ),
    _Rate(
        "Replies hold no action",
        ("count/unparsed",),
        "count/steps",
        0.02,
        "Read some with `python -m vict_jax.audit --explain {workdir}`; a longer warm start or "
        "rollout.format_penalty (now {rollout.format_penalty}) teaches the form.",
    ),
    _Rate(
        "The environment refuses actions",
        ("count/inadmissible",),
        "count/steps",
        0.1,
        "List the allowed actions in the prompt (rollout.list_admissible, now "
        "{rollout.list_admissible}), or train longer: refusals usually fall with success.",
    ),
    _Rate(
        "Prompts show less than the options ask for",
        ("count/shortened",),
        "count/steps",
        0.05,
        "Raise rollout.max_context (now {rollout.max_context}) or show less (rollout.history, now "
        "{rollout.history}).",
    ),
)


def warnings(record: Record) -> list[Warned]:
    """All warnings of a run, problems first."""
    found = [
        *_unreadable(record),
        *_missing_updates(record),
        *_conformance(record),
        *_invariant(record),
        *_not_finite(record),
        *_lost(record),
        *_dead_groups(record),
        *_nothing_corrected(record),
        *_rates(record),
        *_policy(record),
        *_fallen(record),
    ]
    return sorted(found, key=lambda one: one.level != PROBLEM)


@dataclasses.dataclass(frozen=True)
class Shared:
    """A warning of one or several runs: each run's directory with its own text, and what to do."""

    level: str
    title: str
    runs: Sequence[tuple[str, str]]
    next: str


def shared(records: Sequence[Record]) -> list[Shared]:
    """The warnings of all runs, those of one title together, problems first."""
    found: dict[tuple[str, str], list[tuple[str, Warned]]] = {}
    for record in records:
        for one in warnings(record):
            found.setdefault((one.level, one.title), []).append((str(record.path), one))
    merged = [
        Shared(level, title, [(path, one.text) for path, one in some], some[0][1].next)
        for (level, title), some in found.items()
    ]
    return sorted(merged, key=lambda one: one.level != PROBLEM)


def _told(record: Record, text: str) -> str:
    """`text` with `{section.key}` replaced by the config's values and `{workdir}` by the directory."""
    text = text.replace("{workdir}", str(record.path))
    for section, values in record.config.items():
        if isinstance(values, Mapping):
            for key, value in values.items():
                text = text.replace(f"{{{section}.{key}}}", str(value))
    return text


def _audit(record: Record) -> str:
    name = record.setting("env", "name")
    return f"python -m vict_jax.audit --env {name}" if name else "python -m vict_jax.audit --env NAME"


def _unreadable(record: Record) -> Iterator[Warned]:
    for text in record.problems:
        yield Warned(
            PROBLEM,
            "Not all of the directory can be read",
            text,
            "The rest of this report holds for what was read. Restore the file from a copy, or start the "
            "same command again: it continues from the last checkpoint and writes later updates anew.",
        )
    for text in record.notes:
        yield Warned(
            LOOK,
            "Something is half written",
            text,
            "If the run is still going, make the report again later; if not, the command that started it "
            "continues it.",
        )


def _missing_updates(record: Record) -> Iterator[Warned]:
    there = {row["update"] for row in record.of_kind("train")}
    missing = sorted(set(range(1, record.updates + 1)) - there)
    if missing:
        yield Warned(
            PROBLEM,
            "Updates are missing",
            f"There is no training row of {_list('update', missing)}; curves and means leave them out.",
            "They are lost with the damaged lines; the run itself is not affected.",
        )


def _list(word: str, numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:_MOST_NAMES]))
    more = f" and {len(numbers) - _MOST_NAMES} more" if len(numbers) > _MOST_NAMES else ""
    return f"{word}{'s' if len(numbers) > 1 else ''} {shown}{more}"


def _conformance(record: Record) -> Iterator[Warned]:
    """What the checks of the verifier interface found, word for word, and groups left out because of it."""
    for row in record.of_kind("conformance"):
        for text in _finding_texts(row.get("findings", ())):
            title, _, evidence = text.partition("\n")
            yield Warned(
                PROBLEM,
                f"Verifier interface, update {row['update']}: {title}",
                evidence,
                f"Mend the verifier's atoms or aggregator; `{_audit(record)}` shows every failure, "
                "docs/conformance.md the rules.",
            )
    left_out = sum(points(record.of_kind("train"), "nonconforming_groups").values())
    if left_out:
        yield Warned(
            LOOK,
            "Groups without credit",
            f"In {left_out:.0f} groups the atoms did not rebuild the score, so nothing was corrected.",
            f"`{_audit(record)}` shows on which tasks.",
        )


def _finding_texts(findings: Sequence[Mapping[str, Any]]) -> list[str]:
    try:
        return texts([Finding.from_json(finding) for finding in findings])
    except (KeyError, TypeError, ValueError) as error:
        return [f"{len(findings)} findings of another version of the log\n{type(error).__name__}: {error}"]


def _invariant(record: Record) -> Iterator[Warned]:
    rows = record.of_kind("train")
    if below := [u for u, value in points(rows, "eligibility").items() if value < 1]:
        yield Warned(
            PROBLEM,
            "Corrections without a proof",
            f"Not every correction of {_list('update', below)} is one that Eq. 8 allows.",
            f"This is a bug: run `python -m vict_jax.audit --workdir={record.path}` and report it.",
        )
    below = [u for u, value in points(rows, "reconstruction").items() if value < 1]
    if below:
        yield Warned(
            LOOK,
            "Scores that the atoms do not rebuild",
            f"In {_list('update', below)} some score differs from the aggregator's by more than eta.",
            f"`{_audit(record)}` shows which.",
        )


def _not_finite(record: Record) -> Iterator[Warned]:
    names = {name for row in record.of_kind("train") for name, value in row.items() if value is None}
    if names:
        shown = ", ".join(sorted(names)[:_MOST_NAMES])
        yield Warned(
            PROBLEM,
            "Figures that are not finite",
            f"{shown} had no finite value in some update.",
            _told(
                record,
                "Lower optimizer.learning_rate (now {optimizer.learning_rate}), or look for infinite scores.",
            ),
        )


def _lost(record: Record) -> Iterator[Warned]:
    rows = record.of_kind("train")
    errors, late = (sum(points(rows, f"count/env_{what}").values()) for what in ("errors", "timeouts"))
    if errors or late:
        yield Warned(
            PROBLEM,
            "Rollouts are lost to the environment",
            f"{errors:.0f} failed and {late:.0f} ran out of time in training; lost rollouts teach nothing.",
            _told(
                record,
                f"`{_audit(record)}` plays the environment by itself; a slow one needs a higher "
                "env.timeout_s (now {env.timeout_s}).",
            ),
        )
    lost = sum(points(record.of_kind("eval"), "lost").values())
    if lost:
        yield Warned(
            PROBLEM,
            "Validation tasks are lost to the environment",
            f"{lost:.0f} of all evaluated tasks failed in the environment and count as not solved.",
            f"`{_audit(record)}` plays the environment by itself.",
        )


def _dead_groups(record: Record) -> Iterator[Warned]:
    run = points(record.of_kind("train"), "dead_groups")
    if run and last_quarter(run) > DEAD_GROUPS:
        success = last_quarter(points(record.of_kind("train"), "success"))
        kind = "too easy" if success > 0.5 else "too hard"
        yield Warned(
            LOOK,
            "Dead groups",
            f"In the last quarter {percent(last_quarter(run))} of the groups have rollouts of one score "
            f"only, and teach nothing; at {percent(success)} success most tasks are {kind} for the policy.",
            _told(
                record,
                "Replace them (train.resample_groups, now {train.resample_groups}), take other tasks, or "
                "sample more rollouts of each (train.rollouts, now {train.rollouts}).",
            ),
        )


def _nothing_corrected(record: Record) -> Iterator[Warned]:
    run = points(record.of_kind("train"), "trigger")
    if run and last_quarter(run) == 0:
        yield Warned(
            LOOK,
            "Nothing is corrected",
            "No rollout of the last quarter of the updates got a correction: the base advantage is all.",
            "The table of causes below says why; docs/method.md explains each.",
        )


def _rates(record: Record) -> Iterator[Warned]:
    for rate in _RATES:
        run = ratio(record, rate.parts, rate.whole)
        if run and last_quarter(run) > rate.most:
            of = rate.whole.removeprefix("count/")
            yield Warned(
                LOOK,
                rate.title,
                f"{percent(last_quarter(run))} of the {of} in the last quarter of the updates (usual: below "
                f"{percent(rate.most)}).",
                _told(record, rate.next),
            )


def _policy(record: Record) -> Iterator[Warned]:
    rows = record.of_kind("train")
    rate = _told(record, "optimizer.learning_rate (now {optimizer.learning_rate})")
    clipped, moved = points(rows, "clip_fraction"), points(rows, "kl_behaviour")
    if clipped and (value := float(np.median(list(clipped.values())))) > CLIP_FRACTION:
        yield Warned(
            LOOK,
            "Much is clipped",
            f"In the median update {percent(value)} of the tokens lie at the clip bound (usual: below "
            f"{percent(CLIP_FRACTION)}), so they teach nothing.",
            f"Lower {rate}, or make fewer optimizer steps an update (ppo.epochs, ppo.minibatches).",
        )
    if moved and (value := float(np.median(list(moved.values())))) > KL_BEHAVIOUR:
        yield Warned(
            LOOK,
            "The policy moves far in an update",
            f"The KL to the sampling policy is {number(value)} nats a token in the median update (usual: "
            f"below {KL_BEHAVIOUR}).",
            f"Lower {rate}, or raise ppo.kl_coefficient.",
        )
    # With one optimizer step an update both are measured before anything has moved.
    steps = max(points(rows, "optimizer_steps").values(), default=0.0)
    if moved and clipped and steps > 1 and not any(clipped.values()) and max(moved.values()) < 1e-7:
        yield Warned(
            LOOK,
            "The policy does not move",
            "Nothing was ever clipped, and the KL to the sampling policy is 0 to seven digits.",
            f"Raise {rate}.",
        )
    first = points(rows, "first_log_ratio_max")
    if first and max(first.values()) > LOG_RATIO:
        worst = max(first, key=lambda update: first[update])
        yield Warned(
            LOOK,
            "Sampler and learner disagree",
            f"Before the first optimizer step of update {worst} some token's log-probability differs by "
            f"{number(first[worst])} between the two; on equal weights it should be near 0.",
            "Compare model.dtype and the attention kernels of both; ppo.max_sequence_ratio leaves such "
            "tokens out.",
        )
    entropy = list(points(rows, "entropy").values())
    part = len(entropy) // 4
    if part >= 2 and np.mean(entropy[-part:]) < ENTROPY_LEFT * np.mean(entropy[:part]):
        yield Warned(
            LOOK,
            "The policy hardly explores any more",
            f"Its entropy fell from {number(float(np.mean(entropy[:part])))} to "
            f"{number(float(np.mean(entropy[-part:])))} nats a token between the first and last quarter.",
            "Groups die when all rollouts are alike: raise rollout.temperature or lower the learning rate.",
        )


def _fallen(record: Record) -> Iterator[Warned]:
    rows = record.of_kind("eval")
    if len(rows) < 2:
        return
    top, last = max(rows, key=lambda row: row["success"]), rows[-1]
    noise = float(np.hypot(chance(top["success"], top["tasks"]), chance(last["success"], last["tasks"])))
    if top["success"] - last["success"] > noise:
        kept = "is kept" if top["update"] in record.checkpoints else "is not kept (train.keep_checkpoints)"
        yield Warned(
            LOOK,
            "Validation has fallen from its best",
            f"{percent(last['success'])} at update {last['update']} after {percent(top['success'])} at "
            f"update {top['update']}, more than chance explains.",
            f"Use the earlier policy: its checkpoint {kept}.",
        )
