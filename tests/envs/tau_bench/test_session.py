"""Sessions: private views of a shared database, traces, and grading that nothing afterwards can change."""

from __future__ import annotations

import copy
import json
import pathlib
import time
import tracemalloc
from typing import Any

import pytest

from envs.tau_bench import data, scoring
from envs.tau_bench.data import RESPOND, Bench
from envs.tau_bench.database import (
    ABSENT,
    Database,
    canonical,
    equal,
    leaf_changes,
    record_texts,
)
from envs.tau_bench.session import STOP, Session
from tests.envs.tau_bench import golden, shop


@pytest.fixture
def bench() -> Bench:
    return shop.retail_bench()


def start(bench: Bench, answers: list[str], task: int = 0) -> tuple[Session, shop.Scripted]:
    customer = shop.Scripted(answers)
    session = Session(bench, customer)
    assert session.reset(bench.tasks["test"][task]) == "Hi"
    return session, customer


def say(session: Session, content: Any) -> Any:
    return session.step(RESPOND, {"content": content})


def test_a_served_customer_scores_one(bench: Bench) -> None:
    session, customer = start(bench, ["go on", f"Thanks. {STOP}"])
    assert session.step(shop.READ.name, shop.READ.kwargs).source == "get_order_details"
    assert say(session, "Cancel?").text == "go on"
    session.step(shop.CANCEL.name, shop.CANCEL.kwargs)
    assert say(session, "Done, 26.25 dollars.").done
    assert customer.heard == ["Cancel?", "Done, 26.25 dollars."]
    assert session.score() == scoring.Score(1.0, True, True, {"26.25": True})


def test_parts_of_the_score_are_told_apart(bench: Bench) -> None:
    session, _ = start(bench, [STOP])
    session.step(shop.CANCEL.name, shop.CANCEL.kwargs)
    say(session, "Done.")
    assert session.score() == scoring.Score(0.0, True, True, {"26.25": False})
    session, _ = start(bench, [STOP])
    say(session, "26.25")
    assert session.score() == scoring.Score(0.0, True, False, {"26.25": True})


def test_outputs_ignore_case_and_commas_of_replies(bench: Bench) -> None:
    calls = [data.Call(RESPOND, {"content": "Total: 1,234.5 IN ALL"})]
    assert scoring.outputs_said(["1234.5", "In all"], calls) == ({"1234.5": True, "In all": True}, "")


def test_an_unfinished_conversation_scores_zero(bench: Bench) -> None:
    session, _ = start(bench, [], task=1)
    assert say(session, "Hello").text == "ok"
    assert session.score() == scoring.Score(0.0, False, True, {})


def test_a_transfer_ends_even_with_wrong_arguments(bench: Bench) -> None:
    session, _ = start(bench, [], task=2)
    outcome = session.step("transfer_to_human_agents", {"reason": "x"})
    assert outcome.done
    assert outcome.text.startswith("Error: TransferToHumanAgents.invoke() got an unexpected keyword")
    assert session.score().reward == 0.0


def test_after_the_end_nothing_counts(bench: Bench) -> None:
    session, customer = start(bench, [STOP])
    say(session, "Bye.")
    score, trace, records = session.score(), session.trace, session.database.records()
    assert score.reward == 0.0
    assert session.step(shop.CANCEL.name, shop.CANCEL.kwargs).done
    assert say(session, "26.25").text == "Error: the conversation has ended"
    assert (session.score(), session.trace, session.database.records()) == (score, trace, records)
    assert customer.heard == ["Bye."]


def test_sessions_do_not_see_each_other(bench: Bench) -> None:
    untouched = copy.deepcopy(bench.database)
    one, _ = start(bench, [STOP])
    other, _ = start(bench, [STOP])
    one.step(shop.CANCEL.name, shop.CANCEL.kwargs)
    assert json.loads(other.step(shop.READ.name, shop.READ.kwargs).text)["status"] == "pending"
    assert bench.database == untouched
    one.reset(bench.tasks["test"][0])
    assert not one.database.records()
    assert one.trace == ()


def test_arguments_are_the_sessions_own(bench: Bench) -> None:
    session, _ = start(bench, [])
    kwargs = {"order_id": "#W2", "item_ids": ["12"], "payment_method_id": "paypal_1"}
    session.step("return_delivered_order_items", kwargs)
    kwargs["item_ids"].append("11")  # type: ignore[union-attr]
    assert session.database["orders"]["#W2"]["return_items"] == ["12"]
    assert session.trace[0].call.kwargs["item_ids"] == ["12"]


def test_the_trace_holds_what_each_call_changed(bench: Bench) -> None:
    session, _ = start(bench, [])
    session.step(shop.READ.name, shop.READ.kwargs)
    session.step(shop.CANCEL.name, shop.CANCEL.kwargs)
    session.step(shop.CANCEL.name, shop.CANCEL.kwargs)
    read, cancel, again = session.trace
    assert read.diff == again.diff == ()
    assert set(cancel.diff) == {
        (("orders", "#W1", "status"), "pending", "cancelled"),
        (("orders", "#W1", "cancel_reason"), ABSENT, "no longer needed"),
        (("orders", "#W1", "payment_history", 1, "transaction_type"), ABSENT, "refund"),
        (("orders", "#W1", "payment_history", 1, "amount"), ABSENT, 26.25),
        (("orders", "#W1", "payment_history", 1, "payment_method_id"), ABSENT, "gift_card_1"),
        (("users", "ana_1", "payment_methods", "gift_card_1", "balance"), 20, 46.25),
    }


def test_a_snapshot_outlives_later_writes(bench: Bench) -> None:
    session, _ = start(bench, [])
    session.step(shop.CANCEL.name, shop.CANCEL.kwargs)
    before = session.database.records()
    kept = copy.deepcopy(dict(before))
    address = {"address1": "2 Oak", "address2": "", "city": "X", "state": "Z", "country": "Y", "zip": "2"}
    session.step("modify_user_address", {"user_id": "ana_1", **address})
    assert dict(before) == kept
    changed = golden.differences(bench, before, session.database.records())
    assert changed == (
        (("users", "ana_1", "address", "address1"), "1 Elm", "2 Oak"),
        (("users", "ana_1", "address", "zip"), "1", "2"),
    )


@pytest.mark.parametrize(
    ("name", "kwargs", "error"),
    [
        (RESPOND, {}, "KeyError: 'content'"),
        (RESPOND, ["x"], "the arguments must be an object, not list"),
        ("think", None, "the arguments must be an object, not NoneType"),
        (RESPOND, "{", "the arguments must be an object, not str"),
        ("think", {1: 2}, "the keys of an object must be texts"),
        ("think", {"thought": {1, 2}}, "set is no JSON value"),
        ("think", {"thought": 10**1100}, "an integer has 3655 bits, allowed are 3322"),
        (5, {}, "the name of a tool must be a text, not int"),
    ],
)
def test_what_the_original_raises_is_recorded(bench: Bench, name: Any, kwargs: Any, error: str) -> None:
    session, customer = start(bench, [STOP], task=1)
    outcome = session.step(name, kwargs)
    assert (outcome.error, outcome.done) == (error, False)
    assert outcome.text.startswith("Error: ")
    assert customer.heard == []
    assert len(session.trace) == 1
    say(session, "Bye.")
    assert session.score().reward == 1.0


def test_a_reply_without_text_leaves_a_task_with_outputs_ungraded(bench: Bench) -> None:
    session, customer = start(bench, ["", STOP])
    session.step(shop.CANCEL.name, shop.CANCEL.kwargs)
    say(session, None)
    say(session, "26.25")
    assert customer.heard == ["", "26.25"]
    score = session.score()
    assert (score.reward, score.finished, score.database) == (0.0, True, True)
    assert score.error == "AttributeError: 'NoneType' object has no attribute 'lower'"


def test_a_reply_that_was_never_read_does_not_count(bench: Bench) -> None:
    session, _ = start(bench, [STOP])
    session.step(shop.CANCEL.name, shop.CANCEL.kwargs)
    assert session.step(RESPOND, None).error
    say(session, "26.25")
    assert session.score() == scoring.Score(1.0, True, True, {"26.25": True})


def test_equality_is_that_of_the_original() -> None:
    base = {"t": {"a": {"x": 1, "y": [1, 2]}, "b": {"x": {}}}}
    same = [
        {("t", "a"): {"y": [1, 2], "x": 1}},
        {("t", "b"): {"x": []}},
        {("t", "b"): [["x", {}]]},
    ]
    other = [
        {("t", "a"): {"x": 1.0, "y": [1, 2]}},
        {("t", "a"): {"x": True, "y": [1, 2]}},
        {("t", "a"): {"x": 1, "y": [2, 1]}},
        {("t", "c"): {}},
    ]
    texts = record_texts(base)
    for records, expected in [*((r, True) for r in same), *((r, False) for r in other)]:
        database = Database("retail", base)
        for (table, key), record in records.items():
            database[table].put(key, record)
        assert equal(base, database.records(), {}) is expected
        assert (database.digest(texts) == Database("retail", base).digest(texts)) is expected
    assert canonical({"b": 1, "a": [{}]}) == "(('a', ((),)), ('b', 1))"


def test_leaf_changes_tell_kinds_apart() -> None:
    before, after = {"a": [1, 2], "b": {"c": 1}, "d": 1}, {"a": [1], "b": [], "d": True, "e": {"f": {}}}
    assert list(leaf_changes(before, after)) == [
        (("a", 1), 2, ABSENT),
        (("b",), {"c": 1}, []),
        (("d",), 1, True),
        (("e", "f"), ABSENT, {}),
    ]


def test_a_session_needs_a_task_and_a_bench_its_tables(bench: Bench) -> None:
    with pytest.raises(ValueError, match="call reset"):
        Session(bench, shop.Leaving()).step("think", {})
    with pytest.raises(ValueError, match="'telecom', allowed are"):
        data.load("nowhere", "telecom")
    with pytest.raises(ValueError, match=r"has tables \['orders'\], expected"):
        Bench("retail", {"orders": {}}, {}, "", [], [])


def test_loading_names_what_is_missing(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match="has no retail_tasks_<split>"):
        data.load(str(tmp_path), "retail")
    (tmp_path / "retail_tasks_test.json").write_text('[{"user_id": "x"}]')
    with pytest.raises(ValueError, match=r"retail_tasks_test.json 0 lacks \['instruction'"):
        data.load(str(tmp_path), "retail")
    (tmp_path / "retail_tasks_test.json").write_text("[]")
    with pytest.raises(ValueError, match=r"retail_wiki\.md is missing"):
        data.load(str(tmp_path), "retail")
    (tmp_path / "retail_wiki.md").write_text("")
    with pytest.raises(ValueError, match=r"retail_orders\.json is missing"):
        data.load(str(tmp_path), "retail")


def test_many_sessions_share_one_database(shared_dir: pathlib.Path) -> None:
    benches = golden.benches(shared_dir)
    for domain, bench in benches.items():
        tasks = bench.tasks["test"][:32]
        sessions = [Session(bench, shop.Leaving()) for _ in tasks]
        tracemalloc.start()
        began = time.process_time()
        for session, task in zip(sessions, tasks, strict=True):
            session.reset(task)
            for call in task.actions:
                session.step(call.name, call.kwargs)
        spent = time.process_time() - began
        size, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        # The original: 6.1 or 13.1 MiB for each copy, and 16 or 64 ms to load it.
        assert size / len(tasks) < 200_000, domain
        assert spent / len(tasks) < 0.010, domain
