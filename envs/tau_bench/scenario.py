"""What a generated task consists of, and what both domains draw from."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from typing import Any

from envs.tau_bench.customer import Script
from envs.tau_bench.data import Bench, Call, TaskSpec

FIRST_NAMES = (
    "Ann",
    "Ben",
    "Carla",
    "David",
    "Emma",
    "Felix",
    "Grace",
    "Hugo",
    "Iris",
    "Jonas",
    "Lena",
    "Marc",
)
LAST_NAMES = ("Adams", "Brown", "Costa", "Diaz", "Evans", "Fischer", "Garcia", "Huber", "Ito", "Jones")
_STREETS = ("Oak", "Elm", "Lake", "Hill", "Park", "Mill")
_CITIES = (("Austin", "TX"), ("Boston", "MA"), ("Chicago", "IL"), ("Denver", "CO"), ("Seattle", "WA"))


@dataclasses.dataclass(frozen=True, eq=False)
class Scenario:
    """A generated task with a small database of its own.

    Attributes:
      bench: the data; its task lists are empty.
      task: the task; its instruction is what the scripted customer says first.
      script: for the scripted customer.
    """

    bench: Bench
    task: TaskSpec
    script: Script


def address(rng: random.Random) -> dict[str, str]:
    """A short address in the benchmark's fields."""
    city, state = rng.choice(_CITIES)
    return {
        "address1": f"{rng.randint(2, 30)} {rng.choice(_STREETS)} Street",
        "address2": "",
        "city": city,
        "country": "USA",
        "state": state,
        "zip": str(rng.randrange(210, 1000, 20)),
    }


def people(rng: random.Random, count: int) -> list[dict[str, Any]]:
    """Users with different names: id, and the fields that both domains have."""
    firsts, lasts = rng.sample(FIRST_NAMES, count), rng.sample(LAST_NAMES, count)
    return [
        {
            "user_id": f"{first}_{last}_{rng.randint(2, 30)}".lower(),
            "name": {"first_name": first, "last_name": last},
            "address": address(rng),
            "email": f"{first}.{last}@example.com".lower(),
        }
        for first, last in zip(firsts, lasts, strict=True)
    ]


def numbers(rng: random.Random, count: int) -> list[str]:
    """Different two-digit ids; not many of them, so that each can be a token of a small vocabulary."""
    return [str(n) for n in rng.sample(range(10, 60), count)]


def finish(
    bench: Bench,
    user_id: str,
    opening: str,
    identity: str,
    calls: Sequence[Call],
    *,
    outputs: Sequence[str] = (),
    refused: Sequence[Call] = (),
) -> Scenario:
    """The scenario of a task.

    Args:
      calls: reads and writes of the ground truth; the customer agrees to every call among them.
      refused: calls that the customer wants but must not get.
    """
    task = TaskSpec(user_id, opening, tuple(calls), tuple(outputs))
    reads = ("find_", "get_", "search_", "list_", "transfer_")
    wishes = tuple(call for call in calls if not call.name.startswith(reads))
    return Scenario(bench, task, Script(identity, (*wishes, *refused)))
