"""Whole conversations against the original's recorded scores, and 200 of a real model."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from envs.tau_bench import scoring
from envs.tau_bench.data import RESPOND, Bench
from envs.tau_bench.database import Database, record_texts
from envs.tau_bench.messages import read_log, read_message
from envs.tau_bench.session import Session
from tests.envs.tau_bench import golden, shop

# The original grades these after a step beyond the end changed its task; here nothing happens after the end.
CORRUPTED = "after done the booked reservation is cancelled, reset, the ground truth again"
CAP = 30


def play(
    session: Session, customer: shop.Scripted, actions: list[dict[str, Any]], answers: list[str]
) -> list[str]:
    """The texts that a conversation gives; `answers` has the customer's at the places of replies."""
    customer.answers = [
        text for action, text in zip(actions, answers, strict=True) if action["name"] == RESPOND
    ]
    return [session.step(action["name"], action["kwargs"]).text for action in actions]


def apart(bench: Bench, row: dict[str, Any], database: Database) -> int:
    """Number of leaves that differ between the ground truth's database and the agent's."""
    task = bench.tasks[row["split"]][row["index"]]
    truth = scoring.ground_truth(bench, task).records()
    return len(golden.differences(bench, truth, database.records()))


def test_episodes_score_as_recorded(shared_dir: pathlib.Path) -> None:
    benches = golden.benches(shared_dir)
    wrong, digests = [], {}
    for row in golden.rows(shared_dir, "episodes"):
        bench = benches[row["domain"]]
        customer = shop.Scripted()
        session = Session(bench, customer)
        session.reset(bench.tasks[row["split"]][row["index"]])
        texts = play(session, customer, row["actions"], row["observations"])
        score = session.score()
        if "r_actions" in row:
            digests[row["domain"], row["split"], row["index"]] = row["gt_data_hash"]
            parts = score.database == bool(row["r_actions"])
        else:
            parts = dict(score.outputs) == row["outputs_found"]
        agree = texts == row["observations"] and score.reward == row["reward"] and session.done and parts
        if not agree or apart(bench, row, session.database) != row["agent_vs_gt"]["n"]:
            wrong.append(row["id"])
    assert not wrong
    check_digests(benches, digests)


def check_digests(benches: dict[str, Bench], digests: dict[tuple[str, str, int], str]) -> None:
    assert len(digests) == 228
    texts = {domain: record_texts(bench.database) for domain, bench in benches.items()}
    for domain, split, index in digests:
        bench = benches[domain]
        truth = scoring.ground_truth(bench, bench.tasks[split][index])
        assert truth.digest(texts[domain]) == digests[domain, split, index], (domain, split, index)


def test_every_ground_truth_scores_one_and_saying_nothing_as_counted(shared_dir: pathlib.Path) -> None:
    passed: dict[tuple[str, str], int] = {}
    for domain, bench in golden.benches(shared_dir).items():
        session = Session(bench, shop.Leaving())
        for split, tasks in bench.tasks.items():
            for task in tasks:
                session.reset(task)
                for call in task.actions:
                    session.step(call.name, call.kwargs)
                if not session.done:
                    session.step(RESPOND, {"content": " ".join(task.outputs)})
                assert session.score().reward == 1.0, (domain, split, task.instruction)
                session.reset(task)
                session.step(RESPOND, {"content": "Bye."})
                passed[domain, split] = passed.get((domain, split), 0) + int(session.score().reward)
    # Tasks that an agent passes by doing nothing, of 500, 20, 115 and 50.
    expected = {("retail", "train"): 5, ("retail", "dev"): 1, ("retail", "test"): 7, ("airline", "test"): 19}
    assert passed == expected


def test_ends_are_as_recorded(shared_dir: pathlib.Path) -> None:
    benches = golden.benches(shared_dir)
    kinds = {"answered": 0, "raised": 0, "after": 0}
    for row in golden.rows(shared_dir, "ends"):
        if row["driver"] != "env.step":
            continue
        bench = benches[row["domain"]]
        customer = shop.Scripted()
        session = Session(bench, customer)
        session.reset(bench.tasks[row["split"]][row["index"]])
        for step in row["steps"]:
            kinds[check_step(session, customer, step, row)] += 1
        if not any(step.get("done") for step in row["steps"][:-1]):
            # Grading leaves the original's database in the state of the ground truth.
            graded = "reward_info" in row["steps"][-1]
            assert graded or apart(bench, row, session.database) == row["after"]["db_vs_gt"], row["id"]
    assert kinds == {"answered": 325, "raised": 21, "after": 37}


def check_step(session: Session, customer: shop.Scripted, step: dict[str, Any], row: dict[str, Any]) -> str:
    """Hold one recorded step to ours; says which kind of step it was."""
    where = (row["id"], row["case"])
    if step.get("op") == "reset":
        assert session.reset(session.task) == step["observation"], where
        return "answered"
    customer.answers = [step.get("user_reply", "ok")]
    if session.done:
        before = session.score(), session.database.records()
        outcome = session.step(step["name"], step["kwargs"])
        assert outcome.done
        assert (session.score(), session.database.records()) == before, where
        return "after"
    outcome = session.step(step["name"], step["kwargs"])
    if "raises" in step:
        error = session.score().error if outcome.done else outcome.error
        assert error.startswith(step["raises"]), where
        assert session.score().reward == 0.0, where
        return "raised"
    expected = (step["observation"], step["done"], step["source"])
    assert (outcome.text, outcome.done, outcome.source) == expected, where
    reward = 1.0 if row["case"] == CORRUPTED and step is row["steps"][-1] else step["reward"]
    assert session.score().reward == reward, where
    return "answered"


def test_agent_loop_takes_messages_as_recorded(shared_dir: pathlib.Path) -> None:
    benches = golden.benches(shared_dir)
    played = 0
    for row in golden.rows(shared_dir, "ends"):
        if row["driver"] == "env.step":
            continue
        bench = benches[row["domain"]]
        session = Session(bench, shop.Scripted(row["user_replies"]))
        session.reset(bench.tasks[row["split"]][row["index"]])
        cap = CAP if row["max_num_steps"] is None else row["max_num_steps"]
        outcomes = []
        for message in row["model_messages"][:cap]:
            outcomes.append(session.step(*read_message(message)))
            if session.done or outcomes[-1].error:
                break
        result = row["result"]
        if "raises" in result:
            assert outcomes[-1].error or session.score().error
            assert session.score().reward == 0.0
            assert not session.database.records()
        else:
            assert len(outcomes) == result["model_calls"], row["id"]
            assert session.done == result["graded"], row["id"]
            assert session.score().reward == result["reward"], row["id"]
            assert not outcomes or outcomes[-1].text == result["last_content"], row["id"]
            assert not outcomes or outcomes[-1].source == result["source"], row["id"]
        played += 1
    assert played == 56


def test_logged_conversations_score_as_logged(shared_dir: pathlib.Path) -> None:
    bench = golden.benches(shared_dir)["airline"]
    rewards: list[float] = []
    tool_texts = finished = 0
    for episode in golden.logged(shared_dir):
        said, calls = read_log(episode["traj"])
        customer = shop.Scripted(said[1:])
        session = Session(bench, customer)
        session.reset(bench.tasks["test"][episode["task_id"]])
        texts = [session.step(call.name, call.kwargs).text for call in calls]
        answers = [message for message in episode["traj"][3:] if message["role"] != "assistant"]
        for call, text, answer in zip(calls, texts, answers, strict=True):
            if call.name != RESPOND:
                # The logs are older than a renaming in the data.
                assert text.replace('"state"', '"province"') == answer["content"].replace(
                    '"state"', '"province"'
                )
                tool_texts += 1
        assert session.score().reward == episode["reward"]
        rewards.append(session.score().reward)
        finished += session.done
    assert (len(rewards), sum(rewards), finished, tool_texts) == (200, 84.0, 195, 1164)


def test_an_action_of_a_log_that_is_no_json_is_named() -> None:
    call = {"function": {"name": "think", "arguments": "{"}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    assert read_message(message) == ("think", "{")
    with pytest.raises(ValueError, match="logged call of 'think'"):
        read_log([{"role": "system", "content": ""}, {"role": "user", "content": "Hi"}, message])
