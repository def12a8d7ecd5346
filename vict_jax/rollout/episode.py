"""The book-keeping of one rollout while it is played, and what remains of it afterwards."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from absl import logging

from envs.base import Observation, StepResult, Task, VerifierRecord
from envs.worker import Fault, FaultKind
from vict_jax.batching import EndReason, Rollout
from vict_jax.rollout.context import Context
from vict_jax.rollout.parser import ParsedReply

# The score of a solved task; scores are in [0, 1].
FULL_SCORE = 1.0
# What follows a reply that the environment does not see.
NOTHING_HAPPENS = "Nothing happens."

# Lost rollouts that are told one by one; the metrics count them all.
_WARNINGS = 5

_FAULT_END = {FaultKind.ERROR: EndReason.ENV_ERROR, FaultKind.TIMEOUT: EndReason.ENV_TIMEOUT}


@dataclasses.dataclass(frozen=True)
class Marks:
    """What is known about one rollout of T actions beside the `Rollout` itself.

    Attributes:
      truncated: bool[T], the reply was cut off at `max_new_tokens` (kept and trained as it is).
      unparsed: bool[T], the reply had no action.
      reasons: T texts, why not; "" where it had one.
      replies: T lists of ids, as they were sampled.
      shortened: steps whose prompt left out history to fit.
      prompt_tokens: tokens fed to the model. sampled_tokens: tokens it returned.
      fault: the message of the environment's failure, "" if there was none.
    """

    truncated: np.ndarray
    unparsed: np.ndarray
    reasons: tuple[str, ...]
    replies: tuple[tuple[int, ...], ...]
    shortened: int
    prompt_tokens: int
    sampled_tokens: int
    fault: str


@dataclasses.dataclass(frozen=True)
class Counts:
    """Sums over a collection. `inadmissible`: parsed, but refused by the environment.

    `shared_tokens`: those of `prompt_tokens` that the sampler copied instead of computing them.
    `compiled`: programs that the sampler has used so far.
    """

    rollouts: int
    steps: int
    env_errors: int
    env_timeouts: int
    context_ends: int
    truncated: int
    unparsed: int
    inadmissible: int
    shortened: int
    prompt_tokens: int
    shared_tokens: int
    sampled_tokens: int
    compiled: int


@dataclasses.dataclass
class Episode:
    """A rollout in the making.

    Attributes:
      index: its place in the whole collection. slot: its place in the pool.
      context: its prompts and replies.
      observations: so far; one more than `actions`, except after a fault.
      actions: what each reply said to do, or its text where it said nothing valid.
      parsed, taken, accepted, truncated, replies: per action, how it was read, whether the environment saw
        it, whether it was accepted, whether the reply was cut off, its ids.
      over: it takes no further step.
      end: why it ended; None where the score will tell.
      fault: the message of an environment's failure.
    """

    index: int
    slot: int
    task: Task
    context: Context
    observations: list[Observation]
    actions: list[str] = dataclasses.field(default_factory=list)
    parsed: list[ParsedReply] = dataclasses.field(default_factory=list)
    taken: list[bool] = dataclasses.field(default_factory=list)
    accepted: list[bool] = dataclasses.field(default_factory=list)
    truncated: list[bool] = dataclasses.field(default_factory=list)
    replies: list[tuple[int, ...]] = dataclasses.field(default_factory=list)
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    over: bool = False
    end: EndReason | None = None
    fault: str = ""

    @property
    def lost(self) -> bool:
        """Whether its environment failed."""
        return self.end in _FAULT_END.values()

    def lose(self, fault: Fault) -> None:
        """End it because its environment failed, with a warning for the first few of a process."""
        self.over, self.end, self.fault = True, _FAULT_END[fault.kind], fault.message
        logging.log_first_n(
            logging.WARNING,
            "a rollout of task %r is lost (%s): %s",
            _WARNINGS,
            self.task.id,
            fault.kind.value,
            fault.message,
        )

    def reply(self, action: str, parsed: ParsedReply, *, truncated: bool, ids: Sequence[int]) -> None:
        """Take down a reply with these ids."""
        self.actions.append(action)
        self.parsed.append(parsed)
        self.truncated.append(truncated)
        self.replies.append(tuple(ids))

    def unseen(self, *, done: bool) -> StepResult:
        """The answer to a reply that the environment does not see."""
        admissible = self.observations[-1].admissible
        return StepResult(Observation(NOTHING_HAPPENS, admissible), done, {"valid": False})

    def observe(self, result: StepResult | Fault, *, taken: bool, max_steps: int, remark: str = "") -> None:
        """Take down the answer to the last action, and end if that was the last.

        Args:
          remark: what the context is told on a line behind the answer; it is no part of the observation.
        """
        self.taken.append(taken)
        if isinstance(result, Fault):
            self.accepted.append(False)
            self.lose(result)
            return
        self.accepted.append(bool(result.info["valid"]))
        self.observations.append(result.observation)
        self.over = result.done or len(self.actions) >= max_steps
        if not self.over:
            text = f"{result.observation.text}\n{remark}" if remark else result.observation.text
            self.context.add_observation(dataclasses.replace(result.observation, text=text))

    def finish(self, record: VerifierRecord | Fault | None, max_steps: int) -> tuple[Rollout, Marks]:
        """The finished rollout; `record` is the pool's answer, None if it was lost before."""
        if isinstance(record, Fault):
            self.lose(record)
            record = None
        taken = np.array(self.taken, bool)
        if record is not None:
            record = spread_record(record, taken)
        steps = len(self.actions)
        readable = np.array([parsed.valid for parsed in self.parsed], bool)
        accepted = np.array(self.accepted, bool)
        texts = [observation.text for observation in self.observations]
        rollout = Rollout(
            task=self.task,
            sequences=self.context.sequences(),
            actions=tuple(self.actions),
            observations=tuple(texts[: steps + (record is not None)]),
            taken=taken,
            valid=readable & accepted,
            record=record,
            score=record.score if record else 0.0,
            end=self._reason(record, max_steps),
        )
        marks = Marks(
            truncated=np.array(self.truncated, bool),
            unparsed=~readable,
            reasons=tuple(parsed.reason for parsed in self.parsed),
            replies=tuple(self.replies),
            shortened=self.context.shortened,
            prompt_tokens=self.prompt_tokens,
            sampled_tokens=self.sampled_tokens,
            fault=self.fault,
        )
        return rollout, marks

    def _reason(self, record: VerifierRecord | None, max_steps: int) -> EndReason:
        if self.end is not None:
            return self.end
        if record is not None and record.score >= FULL_SCORE:
            return EndReason.SUCCESS
        return EndReason.STEP_CAP if len(self.actions) >= max_steps else EndReason.FAILURE


def spread_record(record: VerifierRecord, taken: np.ndarray) -> VerifierRecord:
    """Insert the steps that the environment did not see into its record: nothing changes in them.

    Args:
      record: of the K steps the environment saw.
      taken: bool[T], which of the T steps they are.

    Raises:
      ValueError: the record has another number of steps than `taken` says.
    """
    if len(record.commits) != taken.sum():
        raise ValueError(f"the record has {len(record.commits)} steps, but {taken.sum()} actions were taken")
    if taken.all():
        return record
    state = np.concatenate([[0], np.cumsum(taken)])
    commits = np.zeros(len(taken), bool)
    scope = np.zeros((len(taken), len(record.atoms)), bool)
    commits[taken], scope[taken] = record.commits, record.scope
    return dataclasses.replace(
        record,
        status=record.status[state],
        evidence=tuple(record.evidence[k] for k in state),
        commits=commits,
        scope=scope,
    )


def count(finished: Sequence[tuple[Rollout, Marks]], *, shared_tokens: int, compiled: int) -> Counts:
    """Sum finished rollouts up; the sampler's own counts are given."""
    ends = [rollout.end for rollout, _ in finished]
    refused = [~r.valid & ~marks.unparsed for r, marks in finished if not r.lost]
    return Counts(
        rollouts=len(finished),
        steps=sum(len(rollout.actions) for rollout, _ in finished),
        env_errors=ends.count(EndReason.ENV_ERROR),
        env_timeouts=ends.count(EndReason.ENV_TIMEOUT),
        context_ends=ends.count(EndReason.CONTEXT),
        truncated=sum(int(marks.truncated.sum()) for _, marks in finished),
        unparsed=sum(int(marks.unparsed.sum()) for _, marks in finished),
        inadmissible=sum(int(steps.sum()) for steps in refused),
        shortened=sum(marks.shortened for _, marks in finished),
        prompt_tokens=sum(marks.prompt_tokens for _, marks in finished),
        shared_tokens=shared_tokens,
        sampled_tokens=sum(marks.sampled_tokens for _, marks in finished),
        compiled=compiled,
    )
