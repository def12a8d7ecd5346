"""Agents of a chat endpoint on this machine, which replays the expert in an agent's format."""

from __future__ import annotations

import json
import pathlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from envs.endpoint import Endpoint
from tests.agents.stand_in import StandIn, solutions
from tests.envs.chat_server import Server, completion, running
from vict_jax.agents import sources
from vict_jax.agents.sources import Asked
from vict_jax.agents.usage import Budget, Prices
from vict_jax.metrics import RunError

REFUNDS = {"num_valid": 6}


@pytest.fixture(scope="module")
def known() -> dict[str, list[str]]:
    return solutions("examples.refunds", REFUNDS, "valid", 6)


@pytest.fixture
def server(known: dict[str, list[str]]) -> Iterator[Server]:
    with running(Server()) as server:
        server.reply = StandIn(known)
        yield server


def ask(
    server: Server,
    out: pathlib.Path,
    kind: str = "react",
    *,
    env: str = "examples.refunds",
    options: Mapping[str, Any] = REFUNDS,
    split: str = "valid",
    budget: Budget | None = None,
    endpoint: Mapping[str, Any] | None = None,
    **asked: Any,
) -> tuple[str, dict[str, Any]]:
    """The report, and what `summary.json` has."""
    config = sources.environment_config(env, {**options, "workers": 0}, split)
    where = Endpoint(
        **{"base_url": server.url, "model": "m", "key_variable": "AGENTS_TEST_KEY", "backoff_s": 0.001}
        | dict(endpoint or {})
    )
    report = sources.with_endpoint(Asked(kind=kind, **asked), config, where, budget or Budget(), out)
    return report, json.loads((out / "summary.json").read_text())


def rows(out: pathlib.Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "tasks.jsonl").read_text().splitlines()]


def test_react_solves_what_the_stand_in_knows(
    server: Server, tmp_path: pathlib.Path, known: dict[str, list[str]]
) -> None:
    report, summary = ask(server, tmp_path, budget=Budget(prices=Prices(100, 1000)))
    calls = sum(map(len, known.values()))
    assert summary["trials"]["trial 1"]["per_type"] == {
        "one_thing": [2, 2],
        "three_things": [2, 2],
        "two_things": [2, 2],
    }
    assert summary["usage"]["calls"] == len(server.seen) == calls
    assert (summary["usage"]["prompt_tokens"], summary["usage"]["completion_tokens"]) == (
        10 * calls,
        2 * calls,
    )
    assert summary["cost"] == pytest.approx(calls * (10 * 100 + 2 * 1000) / 1e6)
    assert summary["not_run"] == []
    assert "100.0 % (6/6)" in report
    first = rows(tmp_path)[0]["trials"][0]["transcript"][0]
    assert first["reply"] == "<think>I follow the plan.</think><action>list orders</action>"
    assert (first["action"], first["problem"], first["accepted"]) == ("list orders", "", True)


EVERYWHERE = pytest.mark.parametrize(
    ("env", "options", "split"),
    [
        ("alfworld", {"num_valid": 2}, "valid_unseen"),
        ("search_qa", {"num_valid": 1}, "valid"),
        ("tau_bench", {"num_test": 1}, "test"),
        ("webshop", {"products": 40, "num_valid": 1}, "valid"),
    ],
)


@EVERYWHERE
def test_every_environment_is_told_how_to_act_and_solved(
    server: Server, tmp_path: pathlib.Path, env: str, options: dict[str, Any], split: str
) -> None:
    server.reply = StandIn(solutions(env, options, split, 2), form="<action>{}</action>")
    _, summary = ask(server, tmp_path, "plain", env=env, options=options, split=split, tasks=2)
    assert summary["trials"]["trial 1"]["success"] == 1.0
    assert summary["counts"]["unparsed"] == 0
    instruction = server.seen[0][1]["messages"][0]["content"]
    assert "Reply with exactly one action" in instruction
    assert not instruction.startswith("You act in a text environment")


@EVERYWHERE
def test_every_environment_is_solved_at_the_second_trial_with_a_lesson(
    server: Server, tmp_path: pathlib.Path, env: str, options: dict[str, Any], split: str
) -> None:
    server.reply = StandIn(
        solutions(env, options, split, 1), needs="- I should follow the plan.", gives_up="loiter"
    )
    _, summary = ask(server, tmp_path, "reflexion", env=env, options=options, split=split, tasks=1, trials=2)
    assert [summary["trials"][f"trial {n}"]["success"] for n in (1, 2)] == [0.0, 1.0]
    first, second = rows(tmp_path)[0]["trials"]
    assert (first["end"], first["lesson"]) == ("step_cap", "I should follow the plan.")
    assert (first["unparsed"], second["unparsed"], second["inadmissible"]) == (0, 0, 0)


def test_the_model_is_told_the_whole_trial(server: Server, tmp_path: pathlib.Path) -> None:
    ask(server, tmp_path, tasks=1, list_admissible=False)
    last = server.seen[-1][1]["messages"]
    assert [one["role"] for one in last] == [
        "system",
        *["user", "assistant"] * (len(server.seen) - 1),
        "user",
    ]
    assert last[3]["content"].startswith("There are orders of:")
    assert "Commands" not in last[-1]["content"]


def test_a_reply_that_cannot_be_read_is_a_step_and_nothing_happens(
    server: Server, tmp_path: pathlib.Path
) -> None:
    server.says("I would list the orders.")
    _, summary = ask(server, tmp_path, tasks=1)
    assert server.seen[1][1]["messages"][-1]["content"].startswith("Nothing happens.\nCommands:\nlist orders")
    assert (summary["counts"]["unparsed"], summary["usage"]["unstated"]) == (1, 1)
    step = rows(tmp_path)[0]["trials"][0]["transcript"][0]
    assert step["action"] == "I would list the orders."
    assert "expected the tags" in step["problem"]


def test_a_trial_ends_at_the_step_cap(server: Server, tmp_path: pathlib.Path) -> None:
    server.reply = lambda messages: "no action"
    _, summary = ask(server, tmp_path, tasks=1)
    assert summary["counts"] == {
        "trials": 1,
        "steps": 12,
        "unparsed": 12,
        "inadmissible": 0,
        "shortened": 0,
        "context_ends": 0,
    }
    assert rows(tmp_path)[0]["trials"][0]["end"] == "step_cap"


def test_reflexion_solves_at_the_second_trial_with_its_own_lesson(
    server: Server, tmp_path: pathlib.Path, known: dict[str, list[str]]
) -> None:
    server.reply = StandIn(known, needs="- I should follow the plan.")
    report, summary = ask(server, tmp_path, "reflexion", trials=3, tasks=3)
    assert [summary["trials"][f"trial {n}"]["success"] for n in (1, 2, 3)] == [0.0, 1.0, 1.0]
    assert "reflexion, trial 2" in report
    first, second = rows(tmp_path)[0]["trials"]
    assert (first["end"], first["steps"], first["lesson"]) == ("failure", 1, "I should follow the plan.")
    assert (second["end"], second["lesson"]) == ("success", "")
    solved = sum(map(len, list(known.values())[:3]))
    assert summary["usage"]["calls"] == len(server.seen) == 3 + 3 + solved  # failed trial, lesson, solution
    assert summary["trials"]["trial 2"]["steps_mean"] == pytest.approx((3 + solved) / 3)


def test_reflexion_gives_up_after_its_trials(server: Server, tmp_path: pathlib.Path) -> None:
    server.reply = _hopeless
    _, summary = ask(server, tmp_path, "reflexion", trials=2, tasks=1)
    assert [summary["trials"][f"trial {n}"]["success"] for n in (1, 2)] == [0.0, 0.0]
    assert len(server.seen) == 3  # the last trial has no lesson


def _hopeless(messages: Sequence[Mapping[str, str]]) -> str:
    return "<think>I give up.</think><action>close ticket</action>"


def test_a_budget_stops_it_and_the_next_start_goes_on(
    server: Server, tmp_path: pathlib.Path, known: dict[str, list[str]]
) -> None:
    report, summary = ask(server, tmp_path, budget=Budget(max_calls=9), batch=1)
    assert (
        "stopped: max_calls=9 is reached; 5 of 6 tasks were not run: valid_1, valid_2, valid_3, ..." in report
    )
    assert (summary["stopped"], len(summary["not_run"])) == ("max_calls=9 is reached", 5)
    assert [row.get("unfinished") for row in rows(tmp_path)] == [None, "valid_1"]
    assert summary["usage"]["calls"] == len(server.seen) == 9
    ask(server, tmp_path, budget=Budget(max_calls=9), batch=1)
    assert len(server.seen) == 9  # what was spent before counts
    _, summary = ask(server, tmp_path)
    assert summary["trials"]["trial 1"]["tasks"] == 6
    wasted = 9 - len(next(iter(known.values())))
    assert summary["usage"]["calls"] == len(server.seen) == sum(map(len, known.values())) + wasted


def test_a_cost_that_cannot_be_known_stops_it(server: Server, tmp_path: pathlib.Path) -> None:
    server.plan = [(200, {}, completion("<think></think><action>list orders</action>"))]
    report, _ = ask(server, tmp_path, budget=Budget(max_cost=1, prices=Prices(1, 1)), batch=1)
    assert "the server does not say how many tokens" in report
    assert len(server.seen) == 1


def test_a_failing_endpoint_keeps_what_is_finished(
    server: Server, tmp_path: pathlib.Path, known: dict[str, list[str]]
) -> None:
    first = len(next(iter(known.values())))
    server.plan = [
        (200, {}, completion(StandIn.form.format(action))) for action in next(iter(known.values()))
    ]
    server.plan += [(500, {}, b"down"), (401, {}, b"key expired")]
    with pytest.raises(RunError, match=r"401: key expired(.|\n)*1 finished tasks are kept"):
        ask(server, tmp_path, batch=1)
    assert [row.get("task") for row in rows(tmp_path)] == ["valid_0"]
    before = len(server.seen)
    assert before == first + 2
    _, summary = ask(server, tmp_path)
    assert summary["trials"]["trial 1"]["success"] == 1.0
    assert len(server.seen) - before == sum(map(len, known.values())) - first


def test_retries_are_counted(server: Server, tmp_path: pathlib.Path) -> None:
    server.plan = [(503, {}, b"busy"), (429, {}, b"slow")]
    _, summary = ask(server, tmp_path, tasks=1)
    assert summary["usage"]["retries"] == 2
    assert summary["trials"]["trial 1"]["success"] == 1.0


def test_other_settings_are_refused_and_more_tasks_are_not(server: Server, tmp_path: pathlib.Path) -> None:
    ask(server, tmp_path, tasks=1)
    for changes, message in (
        ({"kind": "plain"}, "agent.kind: 'react' -> 'plain'"),
        ({"temperature": 1.0}, "model.temperature: 0.0 -> 1.0"),
        ({"endpoint": {"model": "n"}}, "model.model: 'm' -> 'n'"),
        ({"options": {"num_valid": 7}}, "env.num_valid: 6 -> 7"),
    ):
        with pytest.raises(RunError, match=message):
            ask(server, tmp_path, **{"tasks": 1, **changes})
    _, summary = ask(server, tmp_path, tasks=2, batch=3)
    assert summary["trials"]["trial 1"]["tasks"] == 2


def test_a_line_that_was_cut_off_is_played_again(server: Server, tmp_path: pathlib.Path) -> None:
    ask(server, tmp_path, tasks=2)
    path = tmp_path / "tasks.jsonl"
    path.write_text(path.read_text()[:-40])
    _, summary = ask(server, tmp_path, tasks=2)
    assert summary["trials"]["trial 1"]["tasks"] == 2
    path.write_text("broken\n" + path.read_text())
    with pytest.raises(RunError, match=r"tasks\.jsonl:1 is not a JSON object"):
        ask(server, tmp_path, tasks=2)


def test_a_conversation_that_is_too_long_is_told_without_its_earlier_turns(
    server: Server, tmp_path: pathlib.Path
) -> None:
    plan = server.reply
    assert plan is not None
    longest = []

    def short_memory(messages: list[dict[str, str]]) -> str:
        longest.append(len(messages))
        return plan(messages)

    server.reply = short_memory
    server.limit = 4
    _, summary = ask(server, tmp_path, tasks=1)
    assert max(longest) == 4
    assert summary["counts"]["shortened"] > 0
    server.limit = 1
    _, summary = ask(server, tmp_path / "full", tasks=1)
    assert summary["counts"]["context_ends"] == 1


def test_seats_do_not_wait_for_a_slow_call(server: Server, tmp_path: pathlib.Path) -> None:
    plan, others = server.reply, threading.Event()
    assert plan is not None
    first: list[str] = []

    def slow(messages: list[dict[str, str]]) -> str:
        task = messages[1]["content"]
        if not first:
            first.append(task)
            assert others.wait(20)  # until another task is over
        reply = plan(messages)
        if task != first[0] and "close ticket" in reply:
            others.set()
        return reply

    server.reply = slow
    _, summary = ask(server, tmp_path, batch=2, tasks=3)
    assert summary["trials"]["trial 1"]["success"] == 1.0
