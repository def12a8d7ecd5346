"""Atoms, evidence and commits by hand, on the recorded results of the original, and on the real tasks."""

from __future__ import annotations

import ast
import inspect
import itertools
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from envs import conformance
from envs.base import ScoreRole, Status, Task
from envs.tau_bench import conduct, evidence, fields, plan, verifier
from envs.tau_bench.customer import LoggedCustomer, Script, ScriptedCustomer
from envs.tau_bench.data import Call, TaskSpec
from envs.tau_bench.domain import DOMAIN, Options, TauBenchEnv
from envs.tau_bench.plan import say
from envs.tau_bench.session import STOP
from tests.envs.tau_bench import golden, playing, shop
from tests.envs.tau_bench.playing import Rollout, status

WHO = Call("find_user_id_by_name_zip", {"first_name": "Ana", "last_name": "Sol", "zip": "1"})
DONE = say("Done.")
HOME = {"address1": "1 Elm", "address2": "", "city": "X", "country": "Y", "state": "Z", "zip": "1"}
AWAY = {**HOME, "address1": "2 Oak"}
SAT, UNSAT, VIOLATED, UNKNOWN = Status.SATISFIED, Status.UNSATISFIED, Status.VIOLATED, Status.UNKNOWN


def retail(actions: Sequence[Call], calls: Sequence[Call], outputs: tuple[str, ...] = ()) -> Rollout:
    """Play calls against a ground truth in the shop made by hand; the customer agrees to its writes."""
    spec = TaskSpec("ana_1", "Hello.", tuple(actions), outputs)
    bench = shop.retail_bench()
    wishes = tuple(call for call in actions if plan.writes(bench, call))
    rollout = playing.play_spec(bench, spec, ScriptedCustomer(Script("", wishes)), calls)
    assert not playing.problems(rollout)
    return rollout


def trace(rollout: Rollout, atom: str) -> list[Status]:
    assert rollout.record is not None
    j = [a.id for a in rollout.record.atoms].index(atom)
    return [Status(code) for code in rollout.record.status[:, j]]


def values(rollout: Rollout, variable: str) -> list[str]:
    assert rollout.record is not None
    v = [variable.id for variable in rollout.record.variables].index(variable)
    return [row[v] for row in rollout.record.evidence]


def committed(rollout: Rollout, step: int) -> set[str]:
    assert rollout.record is not None
    atoms = [atom.id for atom in rollout.record.atoms]
    return {id_ for id_, inside in zip(atoms, rollout.record.scope[step], strict=True) if inside}


def address(order: str, parts: dict[str, str]) -> Call:
    return Call("modify_pending_order_address", {"order_id": order, **parts})


def test_a_cancelled_order_step_by_step() -> None:
    calls = [WHO, shop.READ, plan.proposal(shop.CANCEL), shop.CANCEL, DONE]
    rollout = retail([shop.READ, shop.CANCEL], calls)
    assert rollout.score == 1
    assert trace(rollout, "status:#W1") == [UNSAT] * 4 + [SAT] * 2
    assert trace(rollout, "reason:#W1") == [UNSAT] * 4 + [SAT] * 2
    assert trace(rollout, "balances:ana_1") == [UNSAT] * 4 + [SAT] * 2
    assert trace(rollout, "known:1") == [UNKNOWN] * 2 + [SAT] * 4
    assert trace(rollout, "unchanged:orders") == [SAT] * 6
    assert trace(rollout, "ended") == [UNSAT] * 5 + [SAT]
    assert values(rollout, "seen identity") == ["", *["known"] * 5]
    assert values(rollout, "seen record 1") == ["", "", *["read"] * 4]
    assert values(rollout, "seen consent 1") == ["", "", "", *["given"] * 3]
    written = {"status:#W1", "reason:#W1", "payments:#W1", "balances:ana_1"}
    assert committed(rollout, 3) == written | {"identified", "confirmed"}
    assert committed(rollout, 4) == {"unchanged:orders", "unchanged:users", "ended"}
    assert [committed(rollout, t) for t in range(3)] == [set()] * 3


def test_inaction_leaves_nothing_but_the_frame() -> None:
    rollout = retail([shop.READ], [DONE])
    assert rollout.score == 1
    assert rollout.record is not None
    scored = [atom.id for atom in rollout.record.atoms if atom.role is ScoreRole.SCORED]
    assert scored == ["unchanged:orders", "unchanged:users", "ended"]
    assert committed(rollout, 0) == set(scored)


def test_an_unwanted_write_violates_the_frame() -> None:
    rollout = retail([shop.READ], [shop.CANCEL, DONE])
    assert rollout.score == 0
    assert status(rollout)["unchanged:orders"] is VIOLATED
    # A balance can be spent again.
    assert status(rollout)["unchanged:users"] is UNSAT
    assert committed(rollout, 1) == {"ended", "unchanged:users"}
    for atom in ("identified", "confirmed"):
        assert trace(rollout, atom) == [SAT, VIOLATED, VIOLATED]


def test_what_can_be_put_right_is_no_violation() -> None:
    wish = address("#W1", AWAY)
    rollout = retail([wish], [address("#W1", {**HOME, "zip": "9"}), wish, DONE])
    assert rollout.score == 1
    assert trace(rollout, "address:#W1") == [UNSAT, UNSAT, SAT, SAT]
    back = retail([shop.READ], [wish, address("#W1", HOME), DONE])
    assert back.score == 1
    assert trace(back, "unchanged:orders") == [SAT, UNSAT, SAT, SAT]


def test_a_payment_history_that_went_elsewhere_is_violated() -> None:
    pay = Call("modify_pending_order_payment", {"order_id": "#W1", "payment_method_id": "paypal_1"})
    rollout = retail([pay, shop.CANCEL], [pay, shop.CANCEL, DONE])
    assert rollout.score == 1
    assert trace(rollout, "payments:#W1") == [UNSAT, SAT, SAT, SAT]
    assert trace(rollout, "payments 2:#W1") == [UNSAT, UNSAT, SAT, SAT]
    other = retail([pay, shop.CANCEL], [shop.CANCEL, DONE])
    assert trace(other, "payments:#W1") == [UNSAT, VIOLATED, VIOLATED]


def test_a_list_that_two_calls_add_to_is_two_atoms() -> None:
    pay = Call("modify_pending_order_payment", {"order_id": "#W1", "payment_method_id": "paypal_1"})
    half = retail([pay, shop.CANCEL], [shop.READ, pay, DONE])
    assert trace(half, "payments:#W1") == [UNSAT, UNSAT, SAT, SAT]
    assert trace(half, "payments 2:#W1") == [UNSAT] * 4
    assert half.record is not None
    requires = {atom.id: atom.requires for atom in half.record.atoms}
    assert requires["payments:#W1"] == ("known:1",)
    assert requires["payments 2:#W1"] == ("known:2",)
    # The first call is not to blame for what the second should have added; the end is.
    assert "payments 2:#W1" not in committed(half, 1)
    assert "payments 2:#W1" in committed(half, 2)


def test_a_group_is_judged_whole() -> None:
    swap = {"order_id": "#W2", "item_ids": ["12"], "payment_method_id": "paypal_1"}
    exchange = Call("exchange_delivered_order_items", {**swap, "new_item_ids": ["13"]})
    rollout = retail([exchange], [Call("return_delivered_order_items", swap), DONE])
    found = status(rollout)
    assert found["items:#W2"] is VIOLATED
    assert found["status:#W2"] is VIOLATED
    # A return is no stray change, but the wrong one of these fields.
    assert found["unchanged:orders"] is SAT
    # It closed the order: what was not even written is final as well.
    assert "new_items:#W2" in committed(rollout, 0)


def test_a_read_counts_until_the_record_is_written() -> None:
    wish = address("#W1", AWAY)
    late = retail([wish], [address("#W1", {**HOME, "zip": "9"}), shop.READ, DONE])
    assert values(late, "seen record 1") == [""] * 4
    assert status(late)["known:1"] is UNKNOWN
    unread = retail([wish], [wish, shop.READ, DONE])
    assert values(unread, "seen record 1") == ["", *["used"] * 3]


def test_a_failed_read_shows_nothing() -> None:
    wrong = Call("get_order_details", {"order_id": "#W9"})
    thought = Call("think", {"thought": "#W1"})
    rollout = retail([shop.CANCEL], [wrong, thought, DONE])
    assert values(rollout, "seen record 1") == [""] * 4


def test_new_items_and_the_payment_must_be_shown() -> None:
    swap = {"order_id": "#W2", "item_ids": ["12"], "new_item_ids": ["13"], "payment_method_id": "paypal_1"}
    reads = [
        Call("get_user_details", {"user_id": "ana_1"}),
        Call("get_product_details", {"product_id": "10"}),
        Call("get_order_details", {"order_id": "#W2"}),
    ]
    rollout = retail([Call("exchange_delivered_order_items", swap)], [*reads, DONE])
    assert values(rollout, "seen payment 1") == ["", "shown", "shown", "shown", "shown"]
    assert values(rollout, "seen options 1") == ["", "", "shown", "shown", "shown"]
    assert values(rollout, "seen record 1") == ["", "", "", "read", "read"]
    assert trace(rollout, "known:1") == [UNKNOWN] * 3 + [SAT] * 2


def test_outputs_are_said_or_not() -> None:
    rollout = retail([], [say("It is 1,23"), say("Done: 4")], ("123", "4"))
    assert rollout.score == 0  # the customer ended the conversation after the first reply
    assert status(rollout)["said:1"] is SAT
    assert status(rollout)["said:2"] is UNSAT
    assert committed(rollout, 0) == {"said:2", "unchanged:orders", "unchanged:users", "ended"}


def test_a_reply_without_text_cannot_be_graded() -> None:
    rollout = retail([], [Call("respond", {}), say("5")], ("5",))
    assert rollout.score == 0
    assert trace(rollout, "said:1") == [UNSAT, VIOLATED, VIOLATED]


def test_an_unended_conversation_scores_nothing() -> None:
    rollout = retail([shop.CANCEL], [shop.CANCEL])
    assert rollout.score == 0
    assert {id_ for id_, s in status(rollout).items() if s is not SAT} == {"ended", "identified", "confirmed"}


def test_an_airline_customer_is_identified_by_its_words() -> None:
    spec = TaskSpec("ana_1", "", (Call("send_certificate", {"user_id": "ana_1", "amount": 50}),), ())
    customer = LoggedCustomer(["Hello.", "I am ana_1.", "yes"])
    calls = [say("Who?"), say("A certificate of 50 for ana_1?"), *spec.actions, DONE]
    rollout = playing.play_spec(shop.airline_bench(), spec, customer, calls)
    assert not playing.problems(rollout)
    assert rollout.score == 1
    assert values(rollout, "seen identity") == ["", "known", "known", "known", "known"]
    assert status(rollout)["confirmed"] is SAT


FLIGHT = {"origin": "JFK", "destination": "SEA", "flight_number": "F1", "date": "2024-05-20"}
RESERVATION = {
    "user_id": "ana",
    "cabin": "economy",
    "origin": "JFK",
    "flights": [FLIGHT],
    "passengers": [{}],
    "created_at": "2024-05-01T00:00:00",
    "insurance": "no",
    "total_baggages": 1,
}


@pytest.mark.parametrize(
    ("name", "kwargs", "changes", "reason"),
    [
        ("cancel_reservation", {}, {}, "neither booked"),
        ("cancel_reservation", {}, {"cabin": "business"}, ""),
        ("cancel_reservation", {}, {"insurance": "yes"}, ""),
        ("cancel_reservation", {}, {"created_at": "2024-05-14T15:00:00"}, ""),
        ("cancel_reservation", {}, {"created_at": "2024-05-14T14:59:59"}, "neither booked"),
        ("cancel_reservation", {}, {"flights": [{**FLIGHT, "date": "2024-05-02"}]}, "flown"),
        ("cancel_reservation", {}, {"flights": [{**FLIGHT, "date": "2024-05-03"}]}, ""),
        ("update_reservation_baggages", {"total_baggages": 0, "nonfree_baggages": 0}, {}, "removed"),
        ("update_reservation_baggages", {"total_baggages": 2, "nonfree_baggages": 0}, {}, ""),
        ("update_reservation_baggages", {"total_baggages": 3, "nonfree_baggages": 0}, {}, "1 bags"),
        ("update_reservation_baggages", {"total_baggages": "x", "nonfree_baggages": 0}, {}, ""),
        ("update_reservation_flights", {"flights": [FLIGHT]}, {"cabin": "basic_economy"}, ""),
        (
            "update_reservation_flights",
            {"flights": [{**FLIGHT, "date": "2024-05-21"}]},
            {"cabin": "basic_economy"},
            "basic economy",
        ),
        ("update_reservation_flights", {"flights": [{**FLIGHT, "flight_number": "F2"}]}, {}, "origin"),
        ("send_certificate", {"user_id": "ana", "amount": 50}, {}, ""),
        ("update_reservation_passengers", {"passengers": []}, {}, ""),
    ],
)
def test_rules_of_the_airline(
    name: str, kwargs: dict[str, Any], changes: dict[str, Any], reason: str
) -> None:
    flights = {
        "F1": {
            "origin": "JFK",
            "dates": {"2024-05-02": {"status": "landed"}, "2024-05-03": {"status": "cancelled"}},
        },
        "F2": {"origin": "BOS", "dates": {}},
    }
    tables: dict[str, dict[str, Any]] = {
        "reservations": {"R": {**RESERVATION, **changes}},
        "flights": flights,
        "users": {"ana": {"membership": "silver", "reservations": ["R"]}},
    }
    call = Call(name, {"reservation_id": "R", **kwargs})
    found = conduct.forbidden(call, lambda table, key: tables[table].get(key))
    assert reason in found
    assert bool(found) == bool(reason)


def test_a_booking_is_held_to_its_limits() -> None:
    user = {"membership": "regular", "reservations": []}
    passengers = [{}] * 6
    base = {"user_id": "ana", "cabin": "economy", "total_baggages": 1, "nonfree_baggages": 0}

    def found(**kwargs: Any) -> str:
        call = Call("book_reservation", {**base, "passengers": [{}], "payment_methods": [], **kwargs})
        return conduct.forbidden(call, lambda table, _: user if table == "users" else None)

    assert found() == ""
    assert "passengers" in found(passengers=passengers)
    assert "certificate" in found(payment_methods=[{"payment_id": "certificate_1"}] * 2)
    assert "1 bags" in found(total_baggages=2)


def test_a_regular_member_gets_no_certificate() -> None:
    tables: dict[str, Any] = {
        "users": {"membership": "regular", "reservations": ["R"]},
        "reservations": dict(RESERVATION),
    }
    call = Call("send_certificate", {"user_id": "ana", "amount": 100})
    assert conduct.forbidden(call, lambda table, _: tables[table]) != ""
    tables["reservations"]["insurance"] = "yes"
    assert conduct.forbidden(call, lambda table, _: tables[table]) == ""


def test_the_interface_does_not_use_the_score() -> None:
    """Agreement of the two means something only if none of their code is shared."""
    for module in (verifier, evidence, fields, conduct):
        tree = ast.parse(inspect.getsource(module))
        imported = {alias.name for node in ast.walk(tree) for alias in getattr(node, "names", [])}
        assert not imported & {"scoring", "canonical", "equal", "differences"}, module.__name__


def test_a_score_that_is_none_is_refused() -> None:
    bench = shop.retail_bench()
    with pytest.raises(ValueError, match="score='strict'"):
        verifier.specify(bench, bench.tasks["test"][0], "strict")


def test_values_are_equal_as_in_the_original() -> None:
    same = [({}, []), ({"a": 1}, [["a", 1]]), ({"a": 1, "b": 2}, {"b": 2, "a": 1})]
    other = [
        (1, 1.0),
        (1, True),
        ("1", 1),
        ([1, 2], [2, 1]),
        (None, "None"),
        ([["a"]], ["a"]),
        ("é", "\\xe9"),
    ]
    for one, two in same:
        assert evidence.value_text(one) == evidence.value_text(two)
    for one, two in other:
        assert evidence.value_text(one) != evidence.value_text(two)


def _play(
    row: dict[str, Any], actions: list[dict[str, Any]], answers: list[str], env: TauBenchEnv
) -> Rollout:
    bench = golden_benches[row["domain"]]
    spec = bench.tasks[row["split"]][row["index"]]
    calls = [Call(action["name"], action["kwargs"]) for action in actions]
    start = (bench, spec, LoggedCustomer(["Hello.", *answers]))
    return playing.play(env, Task("t", "t", "test", 0, ""), calls, start)


golden_benches: dict[str, Any] = {}


@pytest.fixture(scope="module")
def envs(shared_dir: pathlib.Path) -> dict[str, TauBenchEnv]:
    golden_benches.update(golden.benches(shared_dir))
    return {
        domain: TauBenchEnv(Options(domain=domain, style="json", max_steps=99)) for domain in golden_benches
    }


def test_recorded_episodes_are_rebuilt(shared_dir: pathlib.Path, envs: dict[str, TauBenchEnv]) -> None:
    for row in itertools.islice(golden.rows(shared_dir, "episodes"), 0, None, 3):
        steps = zip(row["actions"], row["observations"], strict=True)
        answers = [text for action, text in steps if action["name"] == "respond"]
        rollout = _play(row, row["actions"], answers, envs[row["domain"]])
        assert rollout.score == row["reward"], row["id"]
        assert not playing.problems(rollout), row["id"]


def test_recorded_single_calls_are_rebuilt(shared_dir: pathlib.Path, envs: dict[str, TauBenchEnv]) -> None:
    """Good and bad calls of every tool, some failing half way, each with the end after it."""
    for n, row in enumerate(itertools.islice(golden.rows(shared_dir, "tool_calls"), 0, None, 5)):
        before = [] if row["state"] == "fresh" else row["state"]
        end = {"name": "respond", "kwargs": {"content": "x"}}
        task = {**row, "split": "test", "index": n % 50}
        rollout = _play(task, [*before, row, end], [STOP], envs[row["domain"]])
        assert not playing.problems(rollout), row["id"]


@pytest.mark.parametrize(
    ("domain", "mean", "scored"), [("retail", (10.5, 12), (7, 8.5)), ("airline", (9.5, 11.2), (5.5, 7))]
)
def test_the_atoms_of_real_tasks(
    domain: str, mean: tuple[float, float], scored: tuple[float, float], shared_dir: pathlib.Path
) -> None:
    bench = golden.benches(shared_dir)[domain]
    for split, tasks in bench.tasks.items():
        specs = [verifier.specify(bench, task) for task in tasks]
        assert max(len(spec.atoms) for spec in specs) <= DOMAIN.max_atoms
        assert max(len(spec.variables) for spec in specs) <= DOMAIN.max_variables
        if split == "test":
            assert mean[0] < np.mean([len(spec.atoms) for spec in specs]) < mean[1]
            assert scored[0] < np.mean([spec.required.sum() for spec in specs]) < scored[1]


@pytest.mark.parametrize(("domain", "stride"), [("retail", 16), ("airline", 8)])
def test_real_tasks_conform(domain: str, stride: int, shared_dir: pathlib.Path) -> None:
    """The ground truth, edits and mutations of it; the whole list is the audit's (docs/tau_bench.md)."""
    options = Options(domain=domain, data_dir=str(golden.folder(shared_dir)))
    report = conformance.check(DOMAIN, options, DOMAIN.tasks(options, "test")[::stride], rollouts=2)
    assert report.conforming, report.to_json()["failures"][:3]
    assert report.share(kind="expert").won == report.share(kind="expert").rollouts
