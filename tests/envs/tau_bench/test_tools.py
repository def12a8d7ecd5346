"""Single calls against the original's recorded answers, and what the records do not tell."""

from __future__ import annotations

import collections
import json
import pathlib
import random
import time
from collections.abc import Callable

import pytest

from envs.tau_bench import tools
from envs.tau_bench.calculate import calculate
from envs.tau_bench.data import Bench
from envs.tau_bench.database import Database, canonical
from tests.envs.tau_bench import golden, shop


@pytest.fixture
def database() -> Database:
    bench = shop.retail_bench()
    return Database(bench.domain, bench.database)


def same_texts(bench: Bench, database: Database) -> bool:
    """Whether every changed record has the text of the original's comparison."""
    for (table, key), record in database.records().items():
        if key not in bench.database[table] or canonical(bench.database[table][key]) != canonical(record):
            return False
    return True


def test_single_calls_answer_and_write_as_recorded(shared_dir: pathlib.Path) -> None:
    benches = golden.benches(shared_dir)
    wrong: collections.Counter[str] = collections.Counter()
    seen: collections.Counter[str] = collections.Counter()
    for row in golden.rows(shared_dir, "tool_calls"):
        bench = benches[row["domain"]]
        database = Database(bench.domain, bench.database)
        for before in () if row["state"] == "fresh" else row["state"]:
            tools.invoke(database, before["name"], before["kwargs"])
        database.take_changes()
        call, refusal = tools.read_call(row["name"], row["kwargs"])
        result = tools.call_tool(database, call)
        changes = golden.written(database.take_changes())
        raised = row.get("raises_from_step")
        agree = (
            not refusal
            and (result.error.startswith(raised) if raised else result.text == row["observation"])
            and bool(result.error) == bool(raised)
            and changes == golden.written(row["db_diff"])
            and (row["state"] != "fresh" or same_texts(bench, database) != row["db_changed"])
        )
        seen[row["domain"]] += 1
        if not agree:
            wrong[f"{row['id']} {row['name']}"] += 1
    assert not wrong
    assert seen == {"retail": 2388, "airline": 2373}


def test_schemas_and_tools_agree(shared_dir: pathlib.Path) -> None:
    for domain, bench in golden.benches(shared_dir).items():
        schemas = [schema["function"] for schema in bench.tools]
        assert [schema["name"] for schema in schemas] == list(tools.TOOLS[domain])
        for schema in schemas:
            wanted = tools.TOOLS[domain][schema["name"]].parameters
            assert list(schema["parameters"]["properties"]) == list(wanted)


def test_messages_about_arguments_are_pythons(database: Database) -> None:
    name = "modify_pending_order_payment"
    assert tools.invoke(database, name, {}) == (
        "Error: ModifyPendingOrderPayment.invoke() missing 2 required positional arguments: "
        "'order_id' and 'payment_method_id'"
    )
    assert tools.invoke(database, name, {"order_id": "#W1", "x": 1}) == (
        "Error: ModifyPendingOrderPayment.invoke() got an unexpected keyword argument 'x'"
    )
    assert tools.invoke(database, "fly", {}) == "Unknown action fly"
    assert not database.records()


def test_cancelling_refunds_a_gift_card_once(database: Database) -> None:
    text = tools.invoke(database, shop.CANCEL.name, shop.CANCEL.kwargs)
    assert json.loads(text)["status"] == "cancelled"
    assert database["users"]["ana_1"]["payment_methods"]["gift_card_1"]["balance"] == 46.25
    again = tools.invoke(database, shop.CANCEL.name, shop.CANCEL.kwargs)
    assert again == "Error: non-pending order cannot be cancelled"


def test_exchange_wants_as_many_items_as_the_order_has(database: Database) -> None:
    kwargs = {"order_id": "#W2", "item_ids": ["11", "11", "11"], "new_item_ids": ["12", "12", "12"]}
    kwargs["payment_method_id"] = "gift_card_1"
    assert tools.invoke(database, "exchange_delivered_order_items", kwargs) == "Error: 11 not found"
    two = {**kwargs, "item_ids": ["11", "11"], "new_item_ids": ["13", "13"]}
    assert "insufficient gift card balance" in tools.invoke(database, "exchange_delivered_order_items", two)
    grey = {**two, "new_item_ids": ["12", "14"]}
    assert "14 not found or available" in tools.invoke(database, "exchange_delivered_order_items", grey)
    fair = {**two, "new_item_ids": ["12", "12"]}
    order = json.loads(tools.invoke(database, "exchange_delivered_order_items", fair))
    assert order["exchange_price_difference"] == 1.5


def test_modified_items_may_change_once(database: Database) -> None:
    kwargs = {
        "order_id": "#W1",
        "item_ids": ["11", "12"],
        "new_item_ids": ["12", "11"],
        "payment_method_id": "paypal_1",
    }
    order = json.loads(tools.invoke(database, "modify_pending_order_items", kwargs))
    # One after the other: the first mug becomes blue, and is the first blue one for the second exchange.
    assert [item["options"]["color"] for item in order["items"]] == ["red", "red", "blue"]
    assert "non-pending" in tools.invoke(database, "modify_pending_order_items", kwargs)


@pytest.fixture
def airline() -> Database:
    bench = shop.airline_bench()
    return Database(bench.domain, bench.database)


def test_a_booking_uses_up_a_certificate(airline: Database) -> None:
    text = tools.invoke(
        airline, "book_reservation", shop.booking(("certificate_1", 70), ("credit_card_1", 30))
    )
    assert json.loads(text)["flights"][0]["price"] == 100
    assert list(airline["users"]["ana_1"]["payment_methods"]) == ["credit_card_1"]
    assert airline["users"]["ana_1"]["reservations"] == ["HATHAT"]
    short = tools.invoke(airline, "book_reservation", shop.booking(("credit_card_1", 99.0)))
    assert short == "Error: payment amount does not add up, total price is 100, but paid 99.0"


def test_a_booking_that_fails_half_way_leaves_what_it_wrote(airline: Database) -> None:
    twice = shop.booking(("certificate_1", 50), ("certificate_1", 50))
    assert tools.invoke(airline, "book_reservation", twice) == "Error: 'certificate_1'"
    assert [change[0][:4] for change in airline.take_changes()] == [
        ("users", "ana_1", "payment_methods", "certificate_1")
    ] * 3
    assert "HATHAT" not in airline["reservations"]


def test_a_change_of_cabin_is_paid_and_not_written(airline: Database) -> None:
    tools.invoke(airline, "book_reservation", shop.booking(("credit_card_1", 100)))
    kwargs = {
        "reservation_id": "HATHAT",
        "cabin": "business",
        "flights": [{"flight_number": "F1", "date": "2024-05-20"}],
        "payment_id": "credit_card_1",
    }
    changed = json.loads(tools.invoke(airline, "update_reservation_flights", kwargs))
    assert (changed["cabin"], changed["payment_history"][1]["amount"]) == ("economy", 200)


def test_the_fourth_certificate_is_answered_by_nothing(airline: Database) -> None:
    call, _ = tools.read_call("send_certificate", {"user_id": "ana_1", "amount": 5})
    results = [tools.call_tool(airline, call) for _ in range(4)]
    assert [bool(result.error) for result in results] == [False, False, False, True]
    assert results[2].text == "Certificate certificate_3221324 added to user ana_1 with amount 5."


def test_a_night_connection_has_the_prices_of_its_first_day(airline: Database) -> None:
    kwargs = {"origin": "JFK", "destination": "SEA", "date": "2024-05-20"}
    [[first, second]] = json.loads(tools.invoke(airline, "search_onestop_flight", kwargs))
    assert (first["date"], second["date"]) == ("2024-05-20", "2024-05-21")
    assert second["prices"]["economy"] == 100
    bad = tools.invoke(airline, "search_onestop_flight", {**kwargs, "date": "May"})
    assert bad == "Error: invalid literal for int() with base 10: 'ay'"


@pytest.mark.parametrize(
    ("expression", "answer"),
    [
        ("2 + 3 * 4", "14.0"),
        ("2**-1//1", "0.0"),
        ("(-8)**0.5*2", "float() argument must be a string or a real number, not 'complex'"),
        ("5(3)", "'int' object is not callable"),
        ("5(**3)", "5 argument after ** must be a mapping, not int"),
        ("5(*3)", "5 argument after * must be an iterable, not int"),
        ("()*3", "float() argument must be a string or a real number, not 'tuple'"),
        ("...+1", "unsupported operand type(s) for +: 'ellipsis' and 'int'"),
        ("9**9**9", "int too large to convert to float"),
        ("9**9**9**9**9", "int too large to convert to float"),
        ("2**40000//2**39999", "2.0"),
        ("0*9**9**9", "int too large to convert to float"),
        ("1**9**9", "1.0"),
        ("(-1)**(10**40)", "1.0"),
        ("2**-(10**30)", "0.0"),
        ("1+" * 4000 + "1", "maximum recursion depth exceeded during compilation"),
        ("(" * 300 + "1" + ")" * 300, "too many nested parentheses (<string>, line 1)"),
        ("1" * 5000, "Exceeds the limit (4300 digits)"),
        ("1+" * 20_000 + "1", "expression has 40001 characters"),
    ],
)
def test_calculator_is_pythons_and_bounded(database: Database, expression: str, answer: str) -> None:
    start = time.process_time()
    text = tools.invoke(database, "calculate", {"expression": expression})
    assert text.removeprefix("Error: ").startswith(answer)
    assert time.process_time() - start < 1.0


def test_calculator_spends_a_bounded_amount_of_work() -> None:
    start = time.process_time()
    with pytest.raises(OverflowError):
        calculate("*".join(["2**40000//3**20000"] * 300))
    assert time.process_time() - start < 2.0


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@pytest.mark.parametrize("seed", range(20))
def test_calculator_agrees_with_python(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(20):
        text = "".join(rng.choice("0123456789.+-*/() ") for _ in range(rng.randint(1, 12)))
        if "**" in text:
            continue
        assert answer_of(calculate, text) == answer_of(python, text)


def python(text: str) -> str:
    return str(round(float(eval(text, {"__builtins__": None}, {})), 2))


def answer_of(function: Callable[[str], str], text: str) -> str:
    try:
        return function(text)
    except (ArithmeticError, SyntaxError, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
