"""What agents are told and how their replies are read; no model, no environment."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from envs.base import Observation
from vict_jax.agents import agent as prompts
from vict_jax.agents.agent import Agent, AgentKind, Said, Step
from vict_jax.agents.conversation import Conversation, Turn, messages
from vict_jax.agents.model import Reply
from vict_jax.agents.usage import Budget, Prices, Usage, describe_usage
from vict_jax.batching import EndReason
from vict_jax.rollout.options import RolloutOptions
from vict_jax.rollout.parser import ParsedReply


def make(kind: AgentKind = AgentKind.REACT, **changes: Any) -> Agent:
    reply = prompts.default_reply(kind)
    stops = prompts.stop_strings(reply)
    return Agent(
        kind,
        RolloutOptions(template="chat", reply=reply, instruction="Do it.", stop_strings=stops),
        **changes,
    )


def step(text: str, reply: str) -> Step:
    said = Said(reply, (), ParsedReply("go", True, ""), "go")
    return Step(Observation(text, ("go", "stop")), said, accepted=True)


def said(text: str, *, stopped: bool = True) -> Reply:
    return Reply(text, (), stopped, Usage(calls=1))


NOW = Observation("now", ("left", "right"))
STEPS = [step("task", "r0"), step("one", "r1"), step("two", "r2")]


def test_all_turns_are_told_and_only_the_present_one_lists_commands() -> None:
    told = messages(prompts.system_text(make()), prompts.ask_to_act(make(), [], STEPS, NOW))
    assert told[0]["role"] == "system"
    assert told[0]["content"].startswith("Do it.\nReply with your reasoning")
    assert [(one["role"], one["content"]) for one in told[1:]] == [
        ("user", "task"),
        ("assistant", "r0"),
        ("user", "one"),
        ("assistant", "r1"),
        ("user", "two"),
        ("assistant", "r2"),
        ("user", "now\nCommands:\nleft\nright"),
    ]


def test_a_history_keeps_the_task_and_marks_what_is_left_out() -> None:
    conversation = prompts.ask_to_act(make(history=1), [], STEPS, NOW)
    assert [one["content"] for one in messages("", conversation)[1:]] == [
        "task\n...\ntwo",
        "r2",
        "now\nCommands:\nleft\nright",
    ]
    assert prompts.ask_to_act(make(history=3), [], STEPS, NOW) == prompts.ask_to_act(make(), [], STEPS, NOW)


def test_without_any_turn_the_task_and_the_present_stay() -> None:
    bare = Conversation((Turn(("task\n",), "r"),), ("now\n",)).last(0)
    assert bare == Conversation((), ("task\n", "...\n", "now\n"))


def test_the_newest_lessons_come_before_the_task() -> None:
    agent = make(AgentKind.REFLEXION, trials=9, memory=2)
    first = messages("", prompts.ask_to_act(agent, ["a", "b", "c"], [], NOW))[1]["content"]
    assert "- b\n- c\n" in first
    assert "- a" not in first
    assert first.index("- c") < first.index("now")


def test_a_reflection_says_how_the_trial_ended_and_lists_no_commands() -> None:
    agent = make(AgentKind.REFLEXION, trials=2)
    asked = messages("", prompts.ask_to_reflect(agent, [], STEPS, NOW, EndReason.STEP_CAP))[-1]["content"]
    assert asked.startswith("now\n")
    assert "no steps are left" in asked
    assert "Commands" not in asked
    assert prompts.read_lesson("<think>hm</think>\nLook first. ") == "Look first."


@pytest.mark.parametrize(
    ("kind", "text", "stopped", "action", "valid"),
    [
        (AgentKind.REACT, "<think>so</think><action>go</action>", True, "go", True),
        (AgentKind.REACT, "<think>so</think><action>go</action>\nObservation: made up", True, "go", True),
        (AgentKind.REACT, "<think>so</think><action>go</action> and on", False, "go", True),
        (AgentKind.REACT, "<action>go</action>", True, "<action>go</action>", False),
        (AgentKind.REACT, "go", True, "go", False),
        (AgentKind.PLAIN, "<action>go</action>", True, "go", True),
        (AgentKind.PLAIN, "", True, "", False),
    ],
)
def test_replies_are_read_as_in_training(
    kind: AgentKind, text: str, stopped: bool, action: str, valid: bool
) -> None:
    found = prompts.read_action(make(kind), said(text, stopped=stopped))
    assert (found.action, found.parsed.valid) == (action, valid)
    assert "made up" not in found.text


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        (AgentKind.REACT, {"trials": 2}, "does not learn from a trial"),
        (AgentKind.REFLEXION, {"trials": 0}, "trials=0"),
        (AgentKind.REFLEXION, {"memory": 0}, "memory=0"),
        (AgentKind.PLAIN, {"history": -1}, "history=-1"),
    ],
)
def test_a_wrong_agent_is_refused(kind: AgentKind, changes: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(kind, **changes)


def test_react_needs_room_for_a_thought() -> None:
    options = dataclasses.replace(make().options, reply="line")
    with pytest.raises(ValueError, match="has no thought"):
        Agent(AgentKind.REACT, options)


def test_cost_is_stated_only_if_it_is_known() -> None:
    usage = Usage(calls=3, retries=1, prompt_tokens=2_000_000, completion_tokens=500_000)
    prices = Prices(1.5, 4.0)
    assert prices.cost(usage) == 5.0
    assert "cost 5.0000 at 1.5 and 4 per million" in describe_usage(usage, prices)
    assert "no prices given" in describe_usage(usage, None)
    assert "at least 2,000,000" in describe_usage(usage + Usage(calls=1, unstated=1), prices)
    assert "cost not known" in describe_usage(usage + Usage(calls=1, unstated=1), prices)


def test_a_budget_is_reached_exactly() -> None:
    prices = Prices(1.0, 0.0)
    budget = Budget(max_cost=1.0, prices=prices)
    assert not budget.reached(Usage(prompt_tokens=999_999))
    assert budget.reached(Usage(prompt_tokens=1_000_000)) == "max_cost=1 is reached (1.0000)"
    assert "does not say how many tokens" in budget.reached(Usage(unstated=1))
    assert Budget(max_calls=2).reached(Usage(calls=2)) == "max_calls=2 is reached"
    assert not Budget(max_calls=2).reached(Usage(calls=2, cached=1))
    assert not Budget().reached(Usage(calls=10**6))
    with pytest.raises(ValueError, match="needs price_prompt"):
        Budget(max_cost=1.0)
    with pytest.raises(ValueError, match="max_calls=0"):
        Budget(max_calls=0)
    with pytest.raises(ValueError, match="max_cost=nan must be above 0"):
        Budget(max_cost=float("nan"), prices=prices)
    with pytest.raises(ValueError, match="price_prompt=-1"):
        Prices(-1, 0)
