"""Tasks played by an agent: a number of seats, each with one task, until all are over or a limit is reached.

A seat asks for a reply, acts, and asks again as soon as it has its answer; it does not wait for the others.
So a slow call of an endpoint holds up its own task only, and a model of ours, which answers all seats
together, keeps its batch full.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Sequence

from envs.base import Observation, StepResult, Task
from envs.pool import EnvPool
from envs.worker import Fault, FaultKind
from vict_jax.agents import agent as prompts
from vict_jax.agents.agent import Agent, Said, Step
from vict_jax.agents.model import Model, Reply, Request
from vict_jax.agents.results import TaskResult, Trial
from vict_jax.agents.usage import Budget, Usage
from vict_jax.batching import EndReason
from vict_jax.rollout.collector import Progress
from vict_jax.rollout.episode import FULL_SCORE, NOTHING_HAPPENS
from vict_jax.rollout.options import InvalidReply

_FAULT_END = {FaultKind.ERROR: EndReason.ENV_ERROR, FaultKind.TIMEOUT: EndReason.ENV_TIMEOUT}


@dataclasses.dataclass
class Seat:
    """A task in play.

    Attributes:
      slot: of the pool. number: of the task.
      observation: what its present trial is at. steps: of that trial. shortened: of its prompts.
      end: why that trial is over; None while it goes on.
      trials: that are over. lessons: what was learned from them.
      calls: replies so far. over: no further trial follows.
    """

    slot: int
    number: int
    task: Task
    observation: Observation = dataclasses.field(default_factory=lambda: Observation(""))
    steps: list[Step] = dataclasses.field(default_factory=list)
    shortened: int = 0
    end: EndReason | None = None
    trials: list[Trial] = dataclasses.field(default_factory=list)
    lessons: list[str] = dataclasses.field(default_factory=list)
    calls: int = 0
    usage: Usage = dataclasses.field(default_factory=Usage)
    over: bool = False

    def lose(self, fault: Fault) -> None:
        """Its environment failed."""
        self.end = _FAULT_END[fault.kind]
        self.trials.append(_trial(self, 0.0, fault.message))
        self.over = True


@dataclasses.dataclass(frozen=True)
class Game:
    """What is the same for all tasks.

    Attributes:
      finished: told of every task that is over. unfinished: of a task that was given up, its id and what
        its calls took. progress: (tasks over, tasks), after every round.
    """

    pool: EnvPool
    agent: Agent
    max_steps: int
    finished: Callable[[TaskResult], None]
    unfinished: Callable[[str, Usage], None]
    progress: Progress | None = None


def play(
    game: Game, model: Model, tasks: Sequence[tuple[int, Task]], *, seats: int, budget: Budget, used: Usage
) -> str:
    """Play (number, task) pairs.

    Args:
      seats: tasks in play at a time.
      used: before these tasks; it counts for the budget.

    Returns:
      Why it stopped before the last task, "" if it did not.

    Raises:
      EndpointError: the model gives no answer. What was finished before has been told.
      RuntimeError: environment workers cannot be kept alive.
    """
    waiting, free = collections.deque(tasks), list(range(min(seats, len(tasks))))
    playing: dict[int, Seat] = {}
    ready: list[Seat] = []
    try:
        while True:
            ready += _fill(game, waiting, free, playing)
            if game.progress:
                game.progress(len(tasks) - len(waiting) - len(playing), len(tasks))
            if not playing:
                return ""
            if reason := budget.reached(used):
                return reason
            model.ask({seat.slot: _request(game.agent, seat) for seat in ready})
            replies = model.answers()
            answered = [playing[slot] for slot in replies]
            for seat, reply in zip(answered, replies.values(), strict=True):
                _count(seat, reply)
                used += reply.usage
            _move(game, answered, list(replies.values()))
            ready = [seat for seat in answered if not seat.over]
    finally:
        for slot, reply in model.stop().items():
            _count(playing[slot], reply)
        for seat in playing.values():
            game.unfinished(seat.task.id, seat.usage)


def _fill(
    game: Game, waiting: collections.deque[tuple[int, Task]], free: list[int], playing: dict[int, Seat]
) -> list[Seat]:
    """Take leave of tasks that are over, and give their seats to the next; the seats that were taken."""
    taken: list[Seat] = []
    while True:
        for seat in [seat for seat in playing.values() if seat.over]:
            game.finished(TaskResult(seat.task.id, seat.task.type, tuple(seat.trials), seat.usage))
            free.append(playing.pop(seat.slot).slot)
        begun = [Seat(free.pop(0), *waiting.popleft()) for _ in range(min(len(free), len(waiting)))]
        if not begun:
            return taken
        playing |= {seat.slot: seat for seat in begun}
        _begin(game.pool, begun)
        taken += [seat for seat in begun if not seat.over]


def _begin(pool: EnvPool, seats: Sequence[Seat]) -> None:
    """Start a trial."""
    answers = pool.reset({seat.slot: seat.task for seat in seats})
    for seat in seats:
        answer = answers[seat.slot]
        seat.steps, seat.shortened, seat.end = [], 0, None
        if isinstance(answer, Fault):
            seat.lose(answer)
        else:
            seat.observation = answer


def _request(agent: Agent, seat: Seat) -> Request:
    """For an action, or for the lesson of a trial that is over."""
    told = agent, seat.lessons, seat.steps, seat.observation
    asked = prompts.ask_to_act(*told) if seat.end is None else prompts.ask_to_reflect(*told, seat.end)
    return Request(seat.number, seat.calls, asked)


def _count(seat: Seat, reply: Reply) -> None:
    seat.calls += 1
    seat.usage += reply.usage
    seat.shortened += reply.shortened


def _move(game: Game, seats: Sequence[Seat], replies: Sequence[Reply]) -> None:
    """Do what was replied: act, or begin the next trial with a lesson."""
    answered = list(zip(seats, replies, strict=True))
    reflecting = [(seat, reply) for seat, reply in answered if seat.end is not None]
    acting = [(seat, reply) for seat, reply in answered if seat.end is None]
    for seat, reply in reflecting:
        lesson = prompts.read_lesson(reply.text)
        seat.trials[-1] = dataclasses.replace(seat.trials[-1], lesson=lesson)
        seat.lessons += [lesson] if lesson else []
    _begin(game.pool, [seat for seat, _ in reflecting])
    for seat, _ in [one for one in acting if one[1].full]:
        seat.end = EndReason.CONTEXT
    _act(game, [(seat, prompts.read_action(game.agent, reply)) for seat, reply in acting if not reply.full])
    _end(game, [seat for seat, _ in acting if seat.end is not None and not seat.over])


def _act(game: Game, said: Sequence[tuple[Seat, Said]]) -> None:
    """Apply actions, and say what happens to replies without one, as in training."""
    treatment = InvalidReply(game.agent.options.invalid)
    asked = {
        seat.slot: one.action for seat, one in said if one.parsed.valid or treatment is InvalidReply.PASS
    }
    results = game.pool.step(asked)
    for seat, one in said:
        nothing = StepResult(
            Observation(NOTHING_HAPPENS, seat.observation.admissible),
            treatment is InvalidReply.END,
            {"valid": False},
        )
        result = results.get(seat.slot, nothing)
        accepted = not isinstance(result, Fault) and bool(result.info["valid"])
        seat.steps.append(Step(seat.observation, one, accepted and one.parsed.valid))
        if isinstance(result, Fault):
            seat.lose(result)
            continue
        seat.observation = result.observation
        if result.done or len(seat.steps) >= game.max_steps:
            seat.end = EndReason.STEP_CAP if len(seat.steps) >= game.max_steps else EndReason.FAILURE


def _end(game: Game, seats: Sequence[Seat]) -> None:
    """Take down trials that are over, and whether another follows."""
    records = game.pool.record([seat.slot for seat in seats])
    for seat in seats:
        record = records[seat.slot]
        if isinstance(record, Fault):
            seat.lose(record)
            continue
        if record.score >= FULL_SCORE and seat.end is not EndReason.CONTEXT:
            seat.end = EndReason.SUCCESS
        seat.trials.append(_trial(seat, record.score, ""))
        seat.over = seat.end is EndReason.SUCCESS or len(seat.trials) >= game.agent.trials


def _trial(seat: Seat, score: float, fault: str) -> Trial:
    assert seat.end is not None
    unparsed = sum(not step.said.parsed.valid for step in seat.steps)
    refused = sum(not step.accepted for step in seat.steps) - unparsed
    return Trial(
        end=seat.end.value,
        score=score,
        steps=len(seat.steps),
        unparsed=unparsed,
        inadmissible=refused,
        shortened=seat.shortened,
        fault=fault,
        transcript=tuple(
            {
                "observation": step.observation.text,
                "reply": step.said.text,
                "action": step.said.action,
                "problem": step.said.parsed.reason,
                "accepted": step.accepted,
            }
            for step in seat.steps
        ),
        last=seat.observation.text,
    )
