"""Generated tasks: the benchmark's format, solvable, and decided by what the docs say."""

from __future__ import annotations

import json
import pathlib

import pytest

from envs.tau_bench import data, generator, plan, verifier
from envs.tau_bench.airline_tasks import CHANGED, ILL
from envs.tau_bench.domain import DOMAIN
from envs.tau_bench.scenario import Scenario
from tests.envs.tau_bench import golden

SEEDS = range(25)
KINDS = [(domain, type_) for domain, types in generator.TYPES.items() for type_ in types]


def scenarios(domain: str, task_type: str) -> list[Scenario]:
    return [generator.generate(domain, task_type, seed) for seed in SEEDS]


def written(scenario: Scenario) -> list[data.Call]:
    return [call for call in scenario.task.actions if plan.writes(scenario.bench, call)]


@pytest.mark.parametrize(("domain", "task_type"), KINDS)
def test_the_ground_truth_changes_what_the_type_says(domain: str, task_type: str) -> None:
    for scenario in scenarios(domain, task_type):
        spec = verifier.specify(scenario.bench, scenario.task)
        assert bool(spec.fields) == (task_type not in ("deny", "total"))
        assert bool(scenario.task.outputs) == (task_type == "total")
        assert len(spec.atoms) <= DOMAIN.max_atoms
        assert len(spec.variables) <= DOMAIN.max_variables


@pytest.mark.parametrize(("domain", "task_type"), KINDS)
def test_a_seed_is_a_task(domain: str, task_type: str) -> None:
    one = generator.generate(domain, task_type, 3)
    generator.generate.cache_clear()
    again, other = generator.generate(domain, task_type, 3), generator.generate(domain, task_type, 4)
    assert one.task.instruction == again.task.instruction
    assert [call.kwargs for call in one.task.actions] == [call.kwargs for call in again.task.actions]
    assert one.bench.database == again.bench.database != other.bench.database
    assert one.script.identity == again.script.identity


@pytest.mark.parametrize(("domain", "task_type"), KINDS)
def test_the_database_is_as_in_the_benchmark(domain: str, task_type: str, shared_dir: pathlib.Path) -> None:
    """Every record has the fields, of the same kinds, that some record of the real data has."""
    real = golden.benches(shared_dir)[domain].database
    for table, records in generator.generate(domain, task_type, 0).bench.database.items():
        some = next(iter(real[table].values()))
        for record in records.values():
            assert {name: _kind(value) for name, value in record.items()} == {
                name: _kind(some[name]) for name in some
            }
    json.dumps(generator.generate(domain, task_type, 0).bench.database)


def _kind(value: object) -> str:
    return type(value).__name__


def test_an_exchange_wants_what_is_available() -> None:
    seconds = 0
    for scenario in scenarios("retail", "exchange"):
        call = written(scenario)[-1]
        (new,) = call.kwargs["new_item_ids"]
        variants = {
            k: v for p in scenario.bench.database["products"].values() for k, v in p["variants"].items()
        }
        assert variants[new]["available"]
        first, second = scenario.task.instruction.split(" for a ")[1].split(" one, or else ")
        color = variants[new]["options"]["color"]
        assert color in (first, second.split(",")[0])
        seconds += color != first
    assert 0 < seconds < len(SEEDS)


def test_a_refusal_is_due_where_the_policy_says() -> None:
    reasons = set()
    for scenario in scenarios("airline", "deny"):
        (wish,) = scenario.script.wishes
        record = scenario.bench.database["reservations"][wish.kwargs["reservation_id"]]
        ill = ILL in scenario.task.instruction
        assert ill != (CHANGED in scenario.task.instruction)
        assert record["cabin"] != "business"
        assert not (record["insurance"] == "yes" and ill)
        reasons.add((record["insurance"], ill))
    assert reasons == {("yes", False), ("no", False), ("no", True)}


def test_the_flight_is_the_cheapest_with_the_smallest_card() -> None:
    for scenario in scenarios("airline", "flights"):
        kwargs = written(scenario)[-1].kwargs
        tables, cabin = scenario.bench.database, kwargs["cabin"]
        record = tables["reservations"][kwargs["reservation_id"]]
        (leg,) = kwargs["flights"]
        open_ = [
            flight["dates"][leg["date"]]["prices"][cabin]
            for flight in tables["flights"].values()
            if flight["origin"] == record["origin"] and flight["destination"] == record["destination"]
            if leg["date"] in flight["dates"] and flight["dates"][leg["date"]]["available_seats"][cabin]
        ]
        price = tables["flights"][leg["flight_number"]]["dates"][leg["date"]]["prices"][cabin]
        assert price == min(open_)
        assert open_.count(price) == 1
        due = price - record["flights"][0]["price"]
        methods = tables["users"][scenario.task.user_id]["payment_methods"].values()
        enough = [m["amount"] for m in methods if m["source"] == "gift_card" and m["amount"] >= due]
        assert min(enough) == next(m["amount"] for m in methods if m["id"] == kwargs["payment_id"])


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(ValueError, match="'bags' of domain 'retail'"):
        generator.generate("retail", "bags", 0)
