"""The score of a conversation: 1 if the database is as after the ground truth and all outputs were said.

Source: tau-bench (arXiv 2406.12045), section 3. Databases are compared whole, see `database.canonical`; an
output counts as said if it is contained in any reply, lower-cased and without commas. Grading reads a
snapshot and changes nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from envs.tau_bench import database, tools
from envs.tau_bench.data import RESPOND, Bench, Call, TaskSpec


@dataclasses.dataclass(frozen=True)
class Score:
    """The score and its parts.

    Attributes:
      reward: 1.0 or 0.0; 1.0 only if finished, the database matches and every output was said.
      finished: the conversation ended by the stop word or a transfer.
      database: the database equals that after the ground truth.
      outputs: required output -> said or not.
      error: what the original's grading raises, which leaves no reward; counted as 0.
    """

    reward: float
    finished: bool
    database: bool
    outputs: Mapping[str, bool]
    error: str = ""


def ground_truth(bench: Bench, task: TaskSpec) -> database.Database:
    """The database after the task's ground-truth calls; those that end a conversation are left out."""
    state = database.Database(bench.domain, bench.database)
    for call in task.actions:
        if call.name not in tools.TERMINATING:
            tools.invoke(state, call.name, call.kwargs)
    return state


def outputs_said(outputs: Sequence[str], calls: Sequence[Call]) -> tuple[dict[str, bool], str]:
    """Required output -> whether a reply contains it, and the original's exception ("" if none).

    Replies are read in order until one contains the output, so one without text matters only before that.
    """
    said = {}
    for output in outputs:
        said[output] = False
        for call in calls:
            if call.name != RESPOND:
                continue
            if "content" not in call.kwargs:
                return said, "KeyError: 'content'"
            content = call.kwargs["content"]
            if not isinstance(content, str):
                return said, f"AttributeError: {type(content).__name__!r} object has no attribute 'lower'"
            if output.lower() in content.lower().replace(",", ""):
                said[output] = True
                break
    return said, ""


def score(
    bench: Bench, task: TaskSpec, records: database.Records, calls: Sequence[Call], finished: bool
) -> Score:
    """Grade a conversation from its changed records (`Database.records`) and its calls."""
    truth = ground_truth(bench, task).records()
    same = database.equal(bench.database, records, truth)
    outputs, error = outputs_said(task.outputs, calls)
    reward = float(finished and same and all(outputs.values()) and not error)
    return Score(reward, finished, same, outputs, error)
