"""Generated tasks of both domains: a small database and a task in the benchmark's format, from a seed."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Mapping

from envs.tau_bench.airline_tasks import AIRLINE_TYPES, airline
from envs.tau_bench.retail_tasks import RETAIL_TYPES, retail
from envs.tau_bench.scenario import Scenario

TYPES: Mapping[str, tuple[str, ...]] = {"retail": tuple(RETAIL_TYPES), "airline": tuple(AIRLINE_TYPES)}
_MAKERS: Mapping[str, Callable[[str, random.Random], Scenario]] = {"retail": retail, "airline": airline}


@functools.lru_cache(maxsize=128)
def generate(domain: str, task_type: str, seed: int) -> Scenario:
    """The task of a seed. Cached, as the rollouts of a group all play the same one.

    Raises:
      ValueError: the domain has no such type.
    """
    if task_type not in TYPES.get(domain, ()):
        raise ValueError(f"task type {task_type!r} of domain {domain!r} is not one of {TYPES}")
    return _MAKERS[domain](task_type, random.Random(f"{domain}/{task_type}/{seed}"))
