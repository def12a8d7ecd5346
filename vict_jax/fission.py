"""Recovery rollouts: the policy goes on from its own errors, several times, and the attempts are compared.

Of each rollout that failed, the first error that it went on from is taken down together with the steps that
led to it, and waits in a buffer. In every update so many errors leave it; each becomes a group of its own:
the environment is brought to the error by the same actions, the policy is told what was wrong, and N'
rollouts go on from there under the present policy. An outcome estimator normalises them within their group;
the replayed steps are in the record, but none of their tokens is trained.

Source: Fission-GRPO (arXiv 2601.15625), whose code is not published: abstract, README of its repository, and
second-hand descriptions. It takes the diagnosis from a fine-tuned error simulator; here it is worked out from
what the environment answered. Our readings are on the page of credit methods (docs/credit_methods.md).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx

from envs.base import Domain, Task
from vict_jax.batching import EndReason, Rollout
from vict_jax.corrections import ANY, CorrectionBuffer, Error, ErrorKind, Feedback, FissionOptions
from vict_jax.job import Job, policy
from vict_jax.rollout.collector import Collected, Progress, collect, open_session
from vict_jax.rollout.episode import FULL_SCORE, Marks
from vict_jax.rollout.prefix import prefix_of

_FIXED = "Error: that was a mistake. Try again."
# Characters of an action that a diagnosis repeats.
_MOST = 80


@dataclasses.dataclass(frozen=True)
class Recovered:
    """What becomes of an update's rollouts.

    Attributes:
      played: the groups to train on: those of the update, then one for each error that was recovered from,
        its N' rollouts first and `EndReason.ABSENT` ones up to the size of the others. Counts and seconds
        are those of the update's own.
      corrections: the errors that wait now.
      figures: for the metrics.
    """

    played: Collected
    corrections: CorrectionBuffer
    figures: dict[str, Any]


def recover(
    job: Job,
    params: nnx.State,
    update: int,
    key: jax.Array,
    played: Collected,
    corrections: CorrectionBuffer,
    progress: Progress | None = None,
) -> Recovered:
    """Find the errors of an update's rollouts, and play recoveries of some that wait.

    Args:
      params: of the policy that goes on from the errors.
      key: of this update, as `resampling.roll_out` has it; recoveries have numbers of their own behind all
        rollouts that it may play.
      progress: told how many recoveries are over, and of how many.
    """
    options = job.config.fission
    found = find_errors(played.groups, played.marks, domain=job.domain, options=options, update=update)
    chosen, corrections = corrections.add(found, options).take(update, options)
    figures = {"fission/errors": len(found), "fission/waiting": len(corrections.errors)}
    if not chosen:
        return Recovered(played, corrections, {**figures, "fission/rollouts": 0})
    more = _play(job, params, key, chosen, progress)
    figures |= recovery_figures(more, chosen, first=len(played.groups))
    return Recovered(behind(played, more, size=job.config.train.rollouts), corrections, figures)


def find_errors(
    groups: Sequence[Sequence[Rollout]],
    marks: Sequence[Sequence[Marks]],
    *,
    domain: Domain,
    options: FissionOptions,
    update: int,
) -> list[Error]:
    """The first error of each rollout that failed, where the rollout went on behind it; each error once."""
    found: dict[tuple[str, tuple[str, ...]], Error] = {}
    for rollout, mark in (pair for one in zip(groups, marks, strict=True) for pair in zip(*one, strict=True)):
        if rollout.lost or rollout.score >= FULL_SCORE:
            continue
        for step, kind in enumerate(error_kinds(rollout, mark, domain)[:-1]):
            if kind is not None and options.error in (ANY, kind.value):
                told = remark(rollout, mark, step, kind, options)
                error = Error(rollout.task.id, update, prefix_of(rollout, mark, step + 1, told))
                found.setdefault((error.task, error.actions), error)
                break
    return list(found.values())


def error_kinds(rollout: Rollout, marks: Marks, domain: Domain) -> list[ErrorKind | None]:
    """What kind of error each step of a rollout is, None if it is none."""
    steps = len(rollout.actions)
    notes = domain.notes(rollout.observations[:steps], rollout.actions, rollout.valid.tolist())
    refused = ~rollout.valid | np.array([note.refused for note in notes], bool)
    return [
        ErrorKind.UNPARSED if marks.unparsed[t] else ErrorKind.REFUSED if refused[t] else None
        for t in range(steps)
    ]


def remark(rollout: Rollout, marks: Marks, step: int, kind: ErrorKind, options: FissionOptions) -> str:
    """What the policy is told behind an error, on one line."""
    if Feedback(options.feedback) is Feedback.FIXED:
        return _FIXED
    if kind is ErrorKind.UNPARSED:
        return f"Error: the last reply was not an action: {marks.reasons[step]}. Try again."
    action = " ".join(rollout.actions[step].split())
    shown = action if len(action) <= _MOST else f"{action[:_MOST]}..."
    return f"Error: '{shown}' was refused. Try something else."


def _play(
    job: Job, params: nnx.State, key: jax.Array, errors: Sequence[Error], progress: Progress | None
) -> Collected:
    """N' recoveries of each error."""
    config, tasks = job.config, {task.id: task for task in job.train_tasks}
    return collect(
        job.pool,
        open_session(*policy(job, params), job.codec, config.rollout, job.mesh, job.examples),
        job.codec,
        [tasks[error.task] for error in errors],
        rollouts=config.fission.branches,
        key=key,
        options=config.rollout,
        max_steps=job.max_steps,
        examples=job.examples,
        first=(config.train.groups + config.train.resample_groups) * config.train.rollouts,
        prefixes=[error.prefix for error in errors],
        progress=progress,
    )


def behind(played: Collected, more: Collected, *, size: int) -> Collected:
    """`played` with the groups of `more` behind its own, each filled up to `size` rollouts."""
    filled = [[*group, *[absent(group[0].task)] * (size - len(group))] for group in more.groups]
    marks = [[*some, *[_UNMARKED] * (size - len(some))] for some in more.marks]
    return dataclasses.replace(played, groups=[*played.groups, *filled], marks=[*played.marks, *marks])


def absent(task: Task) -> Rollout:
    """A rollout that was not played."""
    nothing = np.zeros(0, bool)
    return Rollout(
        task=task,
        sequences=(),
        actions=(),
        observations=(),
        taken=nothing,
        valid=nothing,
        record=None,
        score=0.0,
        end=EndReason.ABSENT,
    )


_UNMARKED = Marks(
    truncated=np.zeros(0, bool),
    unparsed=np.zeros(0, bool),
    reasons=(),
    replies=(),
    shortened=0,
    prompt_tokens=0,
    sampled_tokens=0,
    fault="",
)


def recovery_figures(more: Collected, errors: Sequence[Error], *, first: int) -> dict[str, Any]:
    """Figures of recoveries, and where each error came from: `first` is the number of the first group."""
    rollouts = [rollout for group in more.groups for rollout in group]
    return {
        "fission/rollouts": len(rollouts),
        "fission/recovered": float(np.mean([rollout.end is EndReason.SUCCESS for rollout in rollouts])),
        "fission/score": float(np.mean([rollout.score for rollout in rollouts])),
        "fission/lost": sum(rollout.lost for rollout in rollouts),
        "fission/sampled_tokens": more.counts.sampled_tokens,
        "fission/groups": [
            {
                "group": first + k,
                "task_id": error.task,
                "made_in": error.update,
                "replayed": len(error.prefix.past),
                "told": error.prefix.remark,
            }
            for k, error in enumerate(errors)
        ],
    }
