"""`python -m benchmarks.credit --methods=...`: time of every credit method, its growth, the host's part."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from envs.alfworld.domain import DOMAIN, Options
from vict_jax import observations, rubric
from vict_jax.audit.fresh import noisy_groups
from vict_jax.batching import credit_inputs
from vict_jax.credit.methods import STEP_METHODS, credit_method, method_names, needs
from vict_jax.credit.options import VictOptions
from vict_jax.types import CreditInputs, Kind

GROUPS, GROUP, STEPS = 16, 8, 50
RUBRIC = 12  # items
# Groups, rollouts of a group, steps: the batch that shares are taken of, and how it grows.
SIZES = (
    (GROUPS, GROUP, STEPS),
    (4 * GROUPS, GROUP, STEPS),
    (GROUPS, 2 * GROUP, STEPS),
    (GROUPS, GROUP, 2 * STEPS),
)


@dataclasses.dataclass(frozen=True)
class Cost:
    """Of one method: milliseconds of the kernels at each of `SIZES`, the fastest of the repetitions; CPU
    milliseconds of the fields made of rollouts at the first; and both as a share of an update.

    What a model makes (`gae`, `hcapo`) is not in it.
    """

    method: str
    kernels: tuple[float, ...]
    host: float
    share: float


def chosen(text: str) -> tuple[str, ...]:
    """Method names of the command line. `all`: every one, and VICT on every step method that takes it.

    Raises:
      ValueError: one is unknown or refused.
    """
    options = VictOptions()
    if text == "all":
        steps = {name: method.steps for name, method in STEP_METHODS.items()}
        on_top = [name for name, of in steps.items() if of is not None and not of.no_outcome(options)]
        return (*method_names(), *(f"{name}+vict" for name in on_top))
    names = tuple(text.split(","))
    for name in names:
        credit_method(name, options)
    return names


def with_fields(inputs: CreditInputs, options: VictOptions, seed: int = 0) -> CreditInputs:
    """A made-up batch with all that some methods need.

    Each state has a sentence of 30 of 200 words, each task a rubric of `RUBRIC` items.
    """
    rng = np.random.default_rng(seed)
    words = np.array([f"word{i}" for i in range(200)])
    sentence = [" ".join(rng.choice(words, 30)) for _ in range(int(inputs.state_id.max()) + 1)]
    real = inputs.step_mask & inputs.rollout_mask[..., None]
    texts = [
        [[sentence[i] for i in state[mask]] for state, mask in zip(states, masks, strict=True)]
        for states, masks in zip(inputs.state_id[..., :-1], real, strict=True)
    ]
    inputs = observations.add_needed(inputs, texts, needs=observations.FIELDS, options=options)
    shape = inputs.commits.shape
    kinds = rng.choice([Kind.EVIDENCE, Kind.EXECUTION, Kind.INVALIDITY], (shape[0], RUBRIC))
    made: dict[str, Any] = {
        "rubric": rng.random((*shape, RUBRIC)) < 0.1,
        "rubric_kind": kinds.astype(np.int8),
        "context_id": (inputs.state_id[..., :-1] // 5).astype(np.int32),
        "hindsight_logp": np.log(rng.random(shape)).astype(np.float32),
    }
    return dataclasses.replace(inputs, **made)


@functools.cache
def played() -> tuple[CreditInputs, list[Any], list[Any]]:
    """A batch of household rollouts, its texts and its steps."""
    options = Options(max_steps=STEPS)
    tasks = list(itertools.islice(DOMAIN.tasks(options, "train"), GROUPS))
    groups = noisy_groups(DOMAIN, options, tasks, group_size=GROUP, seed=0)
    inputs = credit_inputs(
        groups, domain=DOMAIN, max_steps=STEPS, group_size=GROUP, conforming=[True] * GROUPS
    )
    return inputs, observations.texts_of(groups), rubric.played_of(groups)


def host_milliseconds(method: str, options: VictOptions) -> float:
    """CPU milliseconds that a method's fields made of rollouts take, first seen; 0 if it has none."""
    wanted = needs([method], options) & (observations.FIELDS | rubric.FIELDS)
    if not wanted:
        return 0.0
    inputs, texts, steps = played()
    # Nothing is remembered of texts that differ.
    unseen = [[[f"{method} {text}" for text in rollout] for rollout in group] for group in texts]
    began = time.process_time()
    observations.add_needed(inputs, unseen, needs=wanted, options=options)
    rubric.add_needed(inputs, steps, needs=wanted, domain=DOMAIN)
    return 1e3 * (time.process_time() - began)


def fastest(work: Callable[[CreditInputs], Any], inputs: CreditInputs, repeats: int) -> float:
    """Milliseconds of the fastest of some calls of a jitted function, after one that compiles it."""
    on_device = jax.block_until_ready(jax.device_put(inputs))
    times = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        jax.block_until_ready(work(on_device))
        times.append(time.perf_counter() - began)
    return 1e3 * min(times[1:])


def costs(
    methods: Sequence[str],
    kernel: Callable[[str], Callable[[CreditInputs], Any]],
    batch: Callable[..., CreditInputs],
    *,
    repeats: int,
    update_seconds: float,
) -> list[Cost]:
    """The cost of each method, printed as it is found.

    Args:
      kernel: a method's name -> its kernels, jitted.
      batch: made-up rollouts, `batch(rollouts, steps=..., group=...)`.
      update_seconds: of the update that the shares are taken of.
    """
    options = VictOptions()
    sizes = "".join(f"{f'{g} x {n} x {t}':>14}" for g, n, t in SIZES)
    print(f"{'milliseconds':24}{sizes}{'host':>9}{'of an update':>14}")
    batches = [with_fields(batch(g * n, steps=t, group=n), options) for g, n, t in SIZES]
    found = []
    for method in methods:
        kernels = tuple(fastest(kernel(method), inputs, repeats) for inputs in batches)
        host = host_milliseconds(method, options)
        share = (kernels[0] + host) / (1e3 * update_seconds)
        found.append(Cost(method, kernels, host, share))
        row = "".join(f"{value:>14.2f}" for value in kernels)
        print(f"{method:24}{row}{host:>9.1f}{100 * share:>12.2f} %", flush=True)
    return found
