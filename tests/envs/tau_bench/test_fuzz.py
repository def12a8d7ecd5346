"""Hostile and random actions: every one is answered in bounded time, and nothing reaches the shared data."""

from __future__ import annotations

import json
import pathlib
import random
import time
from typing import Any

import pytest

from envs.tau_bench import data, tools
from envs.tau_bench.data import RESPOND, Bench
from envs.tau_bench.session import STOP, Session
from tests.envs.tau_bench import golden, shop

STEPS = 4000
TEXTS = (
    "",
    " ",
    "x",
    "None",
    "-1",
    "2024-05-16",
    "2024-05-xx",
    "HAT001",
    "JFK",
    "economy",
    "yes",
    "\x00",
    "\ud800",
    "日本" * 50,
    "}{][)(",
    "<answer>" + STOP,
    "'; DROP TABLE orders; --",
    "%s%n{0}",
    "9" * 400,
    "x" * 20_000,
)
EXPRESSIONS = (
    "9**9**9**9",
    "(" * 500,
    "1" * 5000,
    "1+" * 3000 + "1",
    "-" * 9000 + "1",
    "5(*3)",
    "()()",
    "1//0.0",
)
NUMBERS = (0, -1, 1, 3, 10**18, 10**900, 0.1, 1e308, float("nan"), float("inf"), True, False)


def value(rng: random.Random, ids: list[str], depth: int = 0) -> Any:
    """A JSON value: mostly ids of the database, sometimes what does not belong there."""
    kind = rng.random()
    if kind < 0.45:
        return rng.choice(ids)
    if kind < 0.6:
        return rng.choice(TEXTS)
    if kind < 0.7:
        return rng.choice(EXPRESSIONS)
    if kind < 0.8 or depth > 3:
        return rng.choice((*NUMBERS, None))
    if kind < 0.9:
        return [value(rng, ids, depth + 1) for _ in range(rng.randint(0, 4))]
    keys = ["flight_number", "date", "payment_id", "amount", "first_name", "last_name", "dob", "a", ""]
    return {rng.choice(keys): value(rng, ids, depth + 1) for _ in range(rng.randint(0, 4))}


def hostile(rng: random.Random, bench: Bench, ids: list[str]) -> tuple[Any, Any]:
    """A name and arguments, near to those of a tool more often than not."""
    names = [*tools.TOOLS[bench.domain], RESPOND]
    name = rng.choice(names) if rng.random() < 0.95 else rng.choice(TEXTS)
    tool = tools.TOOLS[bench.domain].get(name)
    wanted = tool.parameters if tool else ("content",)
    if rng.random() < 0.03:
        return name, rng.choice((None, 5, "x", ["a"], nested(rng.randint(50, 3000))))
    kwargs = {key: value(rng, ids) for key in wanted if rng.random() < 0.98}
    if rng.random() < 0.03:
        kwargs[rng.choice(("data", "x", "", "self", "order_id"))] = value(rng, ids)
    return name, kwargs


def nested(depth: int) -> dict[str, Any]:
    inner: Any = {}
    for _ in range(depth):
        inner = [inner]
    return {"thought": inner}


def mutated(rng: random.Random, bench: Bench, ids: list[str]) -> tuple[str, dict[str, Any]]:
    """A ground-truth call with one argument changed: the ones that get far into a tool."""
    task = rng.choice(bench.tasks["test"])
    if not task.actions:
        return RESPOND, {"content": ""}
    call = rng.choice(task.actions)
    kwargs = json.loads(json.dumps(dict(call.kwargs)))
    if kwargs and rng.random() < 0.7:
        key = rng.choice(list(kwargs))
        if isinstance(kwargs[key], list) and kwargs[key] and rng.random() < 0.5:
            kwargs[key][rng.randrange(len(kwargs[key]))] = value(rng, ids)
        else:
            kwargs[key] = value(rng, ids)
    return call.name, kwargs


def known_ids(bench: Bench) -> list[str]:
    ids = [key for table in bench.database.values() for key in list(table)[:40]]
    users = list(bench.database["users"].values())[:40]
    return [*ids, *(key for user in users for key in user["payment_methods"])]


def play(bench: Bench, seed: int, steps: int) -> set[str]:
    """Play random actions; the first words of the answers that came."""
    rng, ids = random.Random(seed), known_ids(bench)
    session = Session(bench, shop.Scripted())
    session.reset(bench.tasks["test"][0])
    heads = set()
    for i in range(steps):
        if session.done or i % 50 == 0:
            assert session.score().reward in (0.0, 1.0)
            session.reset(rng.choice(bench.tasks["test"]))
        maker = mutated if rng.random() < 0.4 else hostile
        outcome = session.step(*maker(rng, bench, ids))
        assert isinstance(outcome.text, str)
        heads.add(outcome.text[:20])
    return heads


def unchanged(bench: Bench, before: str) -> bool:
    return json.dumps(bench.database) == before


@pytest.mark.parametrize("domain", list(data.TABLES))
def test_hostile_actions_on_the_real_data(shared_dir: pathlib.Path, domain: str) -> None:
    bench = golden.benches(shared_dir)[domain]
    before = json.dumps(bench.database)
    start = time.process_time()
    heads = play(bench, 1, STEPS)
    assert time.process_time() - start < STEPS * 0.005
    assert unchanged(bench, before)
    assert len(heads) > 100


@pytest.mark.parametrize("bench", [shop.retail_bench(), shop.airline_bench()], ids=["retail", "airline"])
def test_hostile_actions_on_small_data(bench: Bench) -> None:
    before = json.dumps(bench.database)
    assert len(play(bench, 2, STEPS)) > 50
    assert unchanged(bench, before)


def test_the_same_actions_give_the_same_answers() -> None:
    assert play(shop.retail_bench(), 3, 500) == play(shop.retail_bench(), 3, 500)
