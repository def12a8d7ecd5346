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
from vict_jax import processes
from vict_jax.batching import EndReason, Rollout
from vict_jax.corrections import ANY, CorrectionBuffer, Error, ErrorKind, Feedback, FissionOptions
from vict_jax.job import Job, player, sampling_policy
from vict_jax.rollout.collector import Collected, Progress
from vict_jax.rollout.episode import FULL_SCORE, Marks
from vict_jax.rollout.prefix import prefix_of

_TOLD = {Feedback.NONE: "", Feedback.FIXED: "Error: that was a mistake. Try again."}
# Characters of an action that a diagnosis repeats.
_MOST = 80


@dataclasses.dataclass(frozen=True)
class Recovered:
    """What becomes of an update's rollouts.

    Attributes:
      played: the groups to train on, of this process: its own of the update, then one for each error that it
        recovered from, its N' rollouts first and `EndReason.ABSENT` ones up to the size of the others.
        Counts and seconds are those of the update's own.
      numbers: of these groups in the update; those of recoveries come behind all others.
      corrections: the errors that wait now, of all processes.
      figures: for the metrics, of all processes; empty if it is off.
    """

    played: Collected
    numbers: tuple[int, ...]
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
    """Find the errors of an update's rollouts, and play recoveries of some that wait; nothing if it is off.

    Called by all processes, with the same `corrections`. The errors that are recovered from are shared out
    among them.

    Args:
      params: of the policy that goes on from the errors.
      key: of this update, as `resampling.roll_out` has it; recoveries have numbers of their own behind all
        rollouts that it may play.
      played: this process's groups, those of `processes.share`.
      progress: told how many recoveries are over, and of how many.
    """
    config, options = job.config, job.config.fission
    share = processes.share(config.train.groups)
    if not options.branches:
        return Recovered(played, tuple(share), corrections, {})
    own = find_errors(played.groups, played.marks, domain=job.domain, options=options, update=update)
    found = [error for some in processes.gather(own) for error in some]
    chosen, corrections = corrections.add(found, options).take(update, options)
    of_errors = processes.share(len(chosen))
    groups, marks = _play(job, params, key, chosen, of_errors, progress) if chosen else ([], [])
    figures = {
        "fission/errors": len(found),
        "fission/waiting": len(corrections.errors),
        **recovery_figures(groups, chosen, first=config.train.groups),
    }
    return Recovered(
        behind(played, groups, marks, size=config.train.rollouts),
        (*share, *(config.train.groups + k for k in of_errors)),
        corrections,
        figures,
    )


def find_errors(
    groups: Sequence[Sequence[Rollout]],
    marks: Sequence[Sequence[Marks]],
    *,
    domain: Domain,
    options: FissionOptions,
    update: int,
) -> list[Error]:
    """The first error of each rollout that failed, where the rollout went on behind it."""

    def first(rollout: Rollout, mark: Marks) -> list[Error]:
        if rollout.lost or rollout.score >= FULL_SCORE:
            return []
        for step, kind in enumerate(error_kinds(rollout, mark, domain)[:-1]):
            if kind is not None and options.error in (ANY, kind.value):
                told = remark(rollout, mark, step, kind, options)
                return [Error(rollout.task.id, update, prefix_of(rollout, mark, step + 1, told))]
        return []

    return [
        error
        for group, some in zip(groups, marks, strict=True)
        for rollout, mark in zip(group, some, strict=True)
        for error in first(rollout, mark)
    ]


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
    """What the policy is told behind an error, on one line; "" for nothing."""
    feedback = Feedback(options.feedback)
    if feedback in _TOLD:
        return _TOLD[feedback]
    if kind is ErrorKind.UNPARSED:
        return f"Error: the last reply was not an action: {marks.reasons[step]}. Try again."
    action = " ".join(rollout.actions[step].split())
    shown = action if len(action) <= _MOST else f"{action[:_MOST]}..."
    return f"Error: '{shown}' was refused. Try something else."


def _play(
    job: Job,
    params: nnx.State,
    key: jax.Array,
    errors: Sequence[Error],
    own: range,
    progress: Progress | None,
) -> tuple[list[list[Rollout]], list[list[Marks]]]:
    """N' recoveries of each of the errors `own`, and their marks; called by all processes."""
    model = sampling_policy(job, params)
    if not own:
        return [], []
    config, tasks = job.config, {task.id: task for task in job.train_tasks}
    chosen, branches = errors[own.start : own.stop], config.fission.branches
    # Numbers of rollouts that the update may have played already.
    before = (config.train.groups + config.train.resample_groups) * config.train.rollouts
    more = player(job, model, config.rollout)(
        [tasks[error.task] for error in chosen],
        rollouts=branches,
        key=key,
        first=before + own.start * branches,
        prefixes=[error.prefix for error in chosen],
        progress=progress,
    )
    return more.groups, more.marks


def behind(
    played: Collected, groups: Sequence[Sequence[Rollout]], marks: Sequence[Sequence[Marks]], *, size: int
) -> Collected:
    """`played` with further groups behind its own, each filled up to `size` rollouts."""
    filled = [[*group, *[absent(group[0].task)] * (size - len(group))] for group in groups]
    marked = [[*some, *[_UNMARKED] * (size - len(some))] for some in marks]
    return dataclasses.replace(played, groups=[*played.groups, *filled], marks=[*played.marks, *marked])


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


def recovery_figures(
    groups: Sequence[Sequence[Rollout]], errors: Sequence[Error], *, first: int
) -> dict[str, Any]:
    """Figures of the recoveries of all processes, and where each error came from; called by all of them.

    Args:
      groups: recoveries of this process. errors: all that were recovered from. first: number of the first
        group of recoveries.
    """
    own = [(one.end is EndReason.SUCCESS, one.score, one.lost) for group in groups for one in group]
    played = [one for some in processes.gather(own) for one in some]
    figures: dict[str, Any] = {"fission/rollouts": len(played)}
    if not played:
        return figures
    solved, scores, lost = zip(*played, strict=True)
    return figures | {
        "fission/recovered": sum(solved) / len(played),
        "fission/score": sum(scores) / len(played),
        "fission/lost": sum(lost),
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
