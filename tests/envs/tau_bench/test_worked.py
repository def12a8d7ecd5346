"""The two worked tasks of the paper's appendix F on the real data, with the failures of its tables.

Retail: a keyboard and a thermostat are exchanged in one call. Airline: an earlier return on the day of the
outward flight, one more bag, and the smallest gift card that is enough.
"""

from __future__ import annotations

import pathlib

import pytest

from envs.base import Status
from envs.tau_bench import domain, plan
from envs.tau_bench.data import Call
from envs.tau_bench.domain import Options, TauBenchEnv
from tests.envs.tau_bench import playing
from tests.envs.tau_bench.playing import Credited
from vict_jax.types import Relation

ORDER, KEYBOARD, THERMOSTAT = "#W2378156", "1151293680", "4983901480"
CLICKY, GOOGLE = "7706410293", "7747408585"
# Clicky, full size, RGB backlight, as the customer would like best: there is none in stock.
UNAVAILABLE, WHITE = "9025753381", "6342039236"
CARD = "credit_card_9513926"
EXCHANGE, END = 5, 6


def exchange(items: list[str], new: list[str]) -> Call:
    kwargs = {"order_id": ORDER, "item_ids": items, "new_item_ids": new, "payment_method_id": CARD}
    return Call("exchange_delivered_order_items", kwargs)


def rollouts(options: Options, index: int, scripts: dict[str, list[Call]]) -> list[playing.Rollout]:
    task, env = domain.tasks(options, "test")[index], TauBenchEnv(options)
    return [playing.play(env, task, calls) for calls in scripts.values()]


def group(options: Options, index: int, scripts: dict[str, list[Call]]) -> tuple[list[str], Credited]:
    """The names of scripts, and the credit of their group, filled up with the first one."""
    played = rollouts(options, index, scripts)
    for name, rollout in zip(scripts, played, strict=True):
        assert not playing.problems(rollout), name
    full = played + [played[0]] * (playing.GROUP - len(played))
    return list(scripts), playing.credited(full, options)


@pytest.fixture(scope="module")
def retail(shared_dir: pathlib.Path) -> tuple[list[str], Credited]:
    options = Options(data_dir=str(shared_dir / "data" / "tau_bench"), style="json", score="procedure")
    reads = [
        Call("find_user_id_by_name_zip", {"first_name": "Yusuf", "last_name": "Rossi", "zip": "19122"}),
        Call("get_order_details", {"order_id": ORDER}),
        Call("get_product_details", {"product_id": "1656367028"}),
        Call("get_product_details", {"product_id": "4896585277"}),
    ]
    items, new = [KEYBOARD, THERMOSTAT], [CLICKY, GOOGLE]
    asked, done = plan.proposal(exchange(items, new)), plan.say("Done.")
    # Without the question the customer never says yes; a thought takes its place, so that steps match.
    silent = Call("think", {"thought": "surely yes"})
    scripts = {
        "right": [*reads, asked, exchange(items, new), done],
        "no confirmation": [*reads, silent, exchange(items, new), done],
        "unavailable item": [*reads, asked, exchange(items, [UNAVAILABLE, GOOGLE]), done],
        "wrong option": [*reads, asked, exchange(items, [WHITE, GOOGLE]), done],
        "incomplete list": [*reads, asked, exchange([THERMOSTAT], [GOOGLE]), done],
    }
    return group(options, 0, scripts)


def test_retail_scores(retail: tuple[list[str], Credited]) -> None:
    names, credit = retail
    scores = [rollout.score for rollout in credit.rollouts[: len(names)]]
    assert scores == [1, 0, 0, 0, 0]


def test_the_original_score_does_not_see_a_missing_confirmation(
    retail: tuple[list[str], Credited], shared_dir: pathlib.Path
) -> None:
    names, credit = retail
    silent = credit.rollouts[names.index("no confirmation")]
    options = Options(data_dir=str(shared_dir / "data" / "tau_bench"), style="json")
    env = TauBenchEnv(options)
    env.reset(silent.task)
    for action in silent.actions:
        env.step(action)
    record = env.record()
    found = dict(zip([atom.id for atom in record.atoms], record.status[-1], strict=True))
    assert record.score == 1
    assert found["confirmed"] == Status.VIOLATED


def test_the_right_exchange_is_credited(retail: tuple[list[str], Credited]) -> None:
    _, credit = retail
    assert credit.correction(0, EXCHANGE) > 0
    for atom in ("items", "new_items"):
        assert credit.edge(0, EXCHANGE, f"{atom}:{ORDER}", Relation.WRITE)
        assert credit.share(0, EXCHANGE, f"{atom}:{ORDER}") > 0
    # What showed the items and who pays has edges as well, and so has the question.
    assert credit.edge(0, 3, "known:1", Relation.REVEAL)
    assert credit.edge(0, 4, "confirmed", Relation.REVEAL)


def test_a_missing_confirmation_is_blamed_on_the_write(retail: tuple[list[str], Credited]) -> None:
    names, credit = retail
    n = names.index("no confirmation")
    assert credit.edge(n, EXCHANGE, "confirmed", Relation.VIOLATE)
    assert credit.share(n, EXCHANGE, "confirmed") < 0
    # The fields are right nevertheless.
    assert credit.share(n, EXCHANGE, f"new_items:{ORDER}") > 0


def test_a_wrong_option_is_blamed_on_the_exchange(retail: tuple[list[str], Credited]) -> None:
    names, credit = retail
    n = names.index("wrong option")
    assert playing.status(credit.rollouts[n])[f"new_items:{ORDER}"] is Status.VIOLATED
    assert playing.status(credit.rollouts[n])[f"items:{ORDER}"] is Status.SATISFIED
    assert credit.share(n, EXCHANGE, f"new_items:{ORDER}") < 0 < credit.share(n, EXCHANGE, f"items:{ORDER}")


def test_an_incomplete_list_is_blamed_on_the_exchange(retail: tuple[list[str], Credited]) -> None:
    names, credit = retail
    n = names.index("incomplete list")
    for atom in ("items", "new_items"):
        assert credit.share(n, EXCHANGE, f"{atom}:{ORDER}") < 0
    assert credit.correction(n, EXCHANGE) < 0


def test_an_unavailable_item_leaves_the_blame_with_the_end(retail: tuple[list[str], Credited]) -> None:
    """The tool refuses, nothing is written, and the agent ends the conversation as if it had been."""
    names, credit = retail
    n = names.index("unavailable item")
    assert credit.rollouts[n].observations[EXCHANGE + 1].startswith("Error: new item")
    assert credit.correction(n, EXCHANGE) == 0
    assert credit.edge(n, END, f"new_items:{ORDER}", Relation.COMMIT)
    assert credit.share(n, END, f"new_items:{ORDER}") < 0
    assert credit.correction(n, END) < 0


OBUT9V, SMALLEST, TOO_SMALL = "OBUT9V", "gift_card_6276644", "gift_card_7480005"
OUT, BACK = ("HAT078", "HAT118"), ("HAT290", "HAT175")
FLIGHTS_AT, BAGS_AT, AIRLINE_END = 4, 6, 7


@pytest.fixture(scope="module")
def airline(shared_dir: pathlib.Path) -> tuple[list[str], Credited]:
    options = Options(domain="airline", data_dir=str(shared_dir / "data" / "tau_bench"), style="json")
    reads = [
        Call("get_user_details", {"user_id": "sofia_kim_7287"}),
        Call("get_reservation_details", {"reservation_id": OBUT9V}),
        Call("search_onestop_flight", {"origin": "DEN", "destination": "IAH", "date": "2024-05-27"}),
    ]
    right, bags = moved((*OUT, *BACK), SMALLEST), bagged(0)

    def script(flights: Call, bag: Call) -> list[Call]:
        asked = [plan.proposal(right), flights, plan.proposal(bags), bag]
        return [*reads, *asked, plan.say("Done.")]

    scripts = {
        "right": script(right, bags),
        "omitted legs": script(moved(OUT, SMALLEST), bags),
        "too small a card": script(moved((*OUT, *BACK), TOO_SMALL), bags),
        "bag not free": script(right, bagged(1)),
        "another card": script(moved((*OUT, *BACK), "gift_card_7091239"), bags),
    }
    return group(options, 3, scripts)


def moved(flights: tuple[str, ...], card: str) -> Call:
    legs = [{"flight_number": number, "date": "2024-05-27"} for number in flights]
    key = {"reservation_id": OBUT9V, "cabin": "economy"}
    return Call("update_reservation_flights", {**key, "flights": legs, "payment_id": card})


def bagged(nonfree: int) -> Call:
    bags = {"total_baggages": 2, "nonfree_baggages": nonfree}
    key = {"reservation_id": OBUT9V}
    return Call("update_reservation_baggages", {**key, **bags, "payment_id": SMALLEST})


def test_airline_scores(airline: tuple[list[str], Credited]) -> None:
    names, credit = airline
    assert [rollout.score for rollout in credit.rollouts[: len(names)]] == [1, 0, 0, 0, 0]


def test_the_right_calls_are_credited(airline: tuple[list[str], Credited]) -> None:
    _, credit = airline
    assert credit.correction(0, FLIGHTS_AT) > 0
    assert credit.correction(0, BAGS_AT) > 0
    assert credit.share(0, FLIGHTS_AT, f"flights:{OBUT9V}") > 0
    assert credit.share(0, FLIGHTS_AT, "balances:sofia_kim_7287") > 0
    # The search showed the new flights, the profile the gift card.
    assert credit.edge(0, 2, "known:1", Relation.REVEAL)
    assert credit.edge(0, 0, "known:1", Relation.REVEAL)


def test_omitted_legs_are_blamed_on_the_change(airline: tuple[list[str], Credited]) -> None:
    names, credit = airline
    n = names.index("omitted legs")
    assert credit.share(n, FLIGHTS_AT, f"flights:{OBUT9V}") < 0
    assert credit.correction(n, FLIGHTS_AT) < 0 < credit.share(n, BAGS_AT, f"bags:{OBUT9V}")


def test_too_small_a_card_leaves_the_flights_to_the_end(airline: tuple[list[str], Credited]) -> None:
    names, credit = airline
    n = names.index("too small a card")
    assert credit.rollouts[n].observations[FLIGHTS_AT + 1].startswith("Error: gift card balance")
    assert credit.correction(n, FLIGHTS_AT) == 0
    assert credit.share(n, AIRLINE_END, f"flights:{OBUT9V}") < 0
    assert credit.share(n, BAGS_AT, f"bags:{OBUT9V}") > 0


def test_a_bag_that_is_not_free_is_blamed_on_the_bag(airline: tuple[list[str], Credited]) -> None:
    names, credit = airline
    n = names.index("bag not free")
    assert credit.share(n, BAGS_AT, f"bags:{OBUT9V}") < 0 < credit.share(n, FLIGHTS_AT, f"flights:{OBUT9V}")


def test_another_card_is_blamed_for_the_payment_alone(airline: tuple[list[str], Credited]) -> None:
    names, credit = airline
    n = names.index("another card")
    assert credit.share(n, FLIGHTS_AT, f"payments:{OBUT9V}") < 0
    assert credit.share(n, FLIGHTS_AT, f"flights:{OBUT9V}") > 0


def test_the_flights_of_the_paper_are_those_before_the_task(shared_dir: pathlib.Path) -> None:
    """The paper lists HAT078, HAT118, HAT084, HAT266; with this data they are the old flights and score 0."""
    options = Options(domain="airline", data_dir=str(shared_dir / "data" / "tau_bench"), style="json")
    calls = [moved((*OUT, "HAT084", "HAT266"), SMALLEST), bagged(0), plan.say("Done.")]
    (played,) = rollouts(options, 3, {"paper": calls})
    assert played.score == 0
    assert not playing.problems(played)
