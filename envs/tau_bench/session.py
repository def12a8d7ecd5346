"""One conversation: tools on a private view of the database, replies to the customer, and the score.

The loop is the original's `Env.step`: one action at a time, either a reply (`respond`), which the customer
answers, or a tool call. The customer's stop word or the transfer tool ends the conversation.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, Protocol

from envs.tau_bench import scoring, tools
from envs.tau_bench.data import RESPOND, Bench, Call, TaskSpec
from envs.tau_bench.database import Change, Database

STOP = "###STOP###"
_AFTER_END = "Error: the conversation has ended"


class Customer(Protocol):
    """The other side of the conversation."""

    def reset(self, instruction: str) -> str:
        """Start over with a task's instruction; the first message."""
        ...

    def step(self, content: str) -> str:
        """The answer to the agent's reply; it contains `STOP` when the customer ends the conversation."""
        ...


@dataclasses.dataclass(frozen=True)
class StepOutcome:
    """The answer to one action.

    Attributes:
      text: the customer's message or the tool's answer, as the original's observation.
      done: the conversation is over.
      source: `user` for the customer, else the name that was called.
      error: what the original would have raised out of its step; empty otherwise.
    """

    text: str
    done: bool
    source: str
    error: str = ""


@dataclasses.dataclass(frozen=True)
class Step:
    """One action of the trace: the call, its answer, and the leaves of the database it changed."""

    call: Call
    outcome: StepOutcome
    diff: tuple[Change, ...]


class Session:
    """A conversation about one task after another. Costs the changed records, not a copy of the database.

    Args:
      bench: the domain; shared, never changed.
      customer: who answers the replies.
    """

    def __init__(self, bench: Bench, customer: Customer) -> None:
        self.bench = bench
        self._customer = customer
        self._task: TaskSpec | None = None
        self._database = Database(bench.domain, bench.database)
        self._trace: list[Step] = []
        # The actions that the original would have seen: all but those that are no calls at all.
        self._calls: list[Call] = []
        self._final: scoring.Score | None = None

    @property
    def task(self) -> TaskSpec:
        """The present task. Raises ValueError before the first `reset`."""
        if self._task is None:
            raise ValueError("no task was started: call reset(task) first")
        return self._task

    @property
    def database(self) -> Database:
        """The present state; read only for everybody but the tools."""
        return self._database

    @property
    def trace(self) -> tuple[Step, ...]:
        """The actions so far; those after the end are not part of it."""
        return tuple(self._trace)

    @property
    def done(self) -> bool:
        """Whether the conversation is over."""
        return self._final is not None

    def reset(self, task: TaskSpec) -> str:
        """Start `task` on a fresh database; the customer's first message."""
        self._task = task
        self._database = Database(self.bench.domain, self.bench.database)
        self._trace = []
        self._calls = []
        self._final = None
        return self._customer.reset(task.instruction)

    def step(self, name: str, kwargs: Mapping[str, Any]) -> StepOutcome:
        """Apply one action. Bad names, arguments and contents are answered, not refused.

        After the end nothing happens any more: the answer says so and the score stays.
        """
        task = self.task
        call, refusal = tools.read_call(name, kwargs)
        if self.done:
            return StepOutcome(_AFTER_END, True, call.name)
        if refusal:
            outcome = StepOutcome(f"Error: {refusal}", False, call.name, refusal)
        else:
            self._calls.append(call)
            outcome = self._respond(call) if call.name == RESPOND else self._use(call)
        self._trace.append(Step(call, outcome, self._database.take_changes()))
        if outcome.done:
            self._final = scoring.score(self.bench, task, self._database.records(), self._calls, True)
        return outcome

    def score(self) -> scoring.Score:
        """The score of the conversation; before its end 0 by rule, with the parts as they stand."""
        if self._final is not None:
            return self._final
        return scoring.score(self.bench, self.task, self._database.records(), self._calls, False)

    def _use(self, call: Call) -> StepOutcome:
        result = tools.call_tool(self._database, call)
        return StepOutcome(result.text, result.terminates, call.name, result.error)

    def _respond(self, call: Call) -> StepOutcome:
        if "content" not in call.kwargs:
            return StepOutcome("Error: 'content'", False, "user", "KeyError: 'content'")
        content = call.kwargs["content"]
        said = content if isinstance(content, str) else json.dumps(content)
        answer = self._customer.step("" if content is None else said)
        return StepOutcome(answer, STOP in answer, "user")
