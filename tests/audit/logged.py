"""A logged run without a model: groups of the noisy expert in the household, credited and written."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Sequence

import numpy as np

from envs.alfworld.domain import DOMAIN
from tests.run.small import small_config
from vict_jax import proofs
from vict_jax.audit.fresh import noisy_groups
from vict_jax.audit.source import Setting, credit
from vict_jax.batching import EndReason, Rollout, credit_inputs
from vict_jax.config import RunConfig, from_config_dict, to_plain
from vict_jax.rollout.episode import spread_record
from vict_jax.types import CreditInputs, CreditOutput

STEPS, SIZE = 20, 6
ODD_ACTION = "go\x1b[31m to\n" + "very " * 20 + "far"


def make_config(method: str = "vict") -> RunConfig:
    """The small run with long enough episodes and a credit rule that corrects something."""
    config = small_config().unlock()
    config.env.max_steps = STEPS
    config.credit.update(method=method, center="mean")
    return from_config_dict(config)


def make_setting(config: RunConfig) -> Setting:
    return Setting(DOMAIN, config.env.options, config.credit.method, config.credit.options)


def play_groups(config: RunConfig, first: int, groups: int = 2) -> list[list[Rollout]]:
    """Groups of the noisy expert; the first rollout has a step that the environment never saw, the last of
    the second group is lost."""
    tasks = DOMAIN.tasks(config.env.options, "train")[first : first + groups]
    played = noisy_groups(DOMAIN, config.env.options, tasks, group_size=SIZE, seed=2)
    short = min(range(SIZE), key=lambda n: len(played[0][n].actions))
    played[0][short] = with_unseen_step(played[0][short])
    played[-1][-1] = lose(played[-1][-1])
    return played


def with_unseen_step(rollout: Rollout, at: int = 1) -> Rollout:
    """The rollout with a reply in it that did not parse."""
    taken = np.insert(rollout.taken, at, False)
    assert rollout.record is not None
    observations = rollout.observations
    return dataclasses.replace(
        rollout,
        actions=(*rollout.actions[:at], ODD_ACTION, *rollout.actions[at:]),
        observations=(*observations[: at + 1], "Nothing happens.", *observations[at + 1 :]),
        taken=taken,
        valid=np.insert(rollout.valid, at, False),
        record=spread_record(rollout.record, taken),
    )


def lose(rollout: Rollout) -> Rollout:
    """The rollout as if its environment had failed at the end."""
    return dataclasses.replace(
        rollout,
        observations=rollout.observations[:-1],
        record=None,
        score=0.0,
        end=EndReason.ENV_ERROR,
    )


def inputs_of(groups: Sequence[Sequence[Rollout]], masked: Sequence[str] = ()) -> CreditInputs:
    return credit_inputs(
        groups,
        domain=DOMAIN,
        max_steps=STEPS,
        group_size=SIZE,
        conforming=[True] * len(groups),
        masked_families=masked,
    )


@dataclasses.dataclass(frozen=True)
class Update:
    """One logged update as it was before it was written."""

    groups: list[list[Rollout]]
    inputs: CreditInputs
    output: CreditOutput


def log_run(workdir: pathlib.Path, config: RunConfig, updates: int = 2) -> dict[int, Update]:
    """Write a run directory: config, metrics, and the log of updates 1, 2, ..."""
    for folder in ("rollouts", "atoms", "proofs"):
        (workdir / folder).mkdir(parents=True)
    (workdir / "config.json").write_text(json.dumps(to_plain(config)))
    rows, logged = [{"kind": "conformance", "update": 0, "departures": 40, "mutation": 0.95}], {}
    for update in range(1, updates + 1):
        groups = play_groups(config, first=2 * update + 2)
        inputs = inputs_of(groups)
        output, violations = credit(make_setting(config), inputs)
        assert violations == 0
        proofs.write_update(workdir, update, groups, inputs, output, masked_families=())
        rows.append(
            {"kind": "train", "update": update, "seconds/credit": 0.5 * update, "seconds/sample": 10.0}
        )
        logged[update] = Update(groups, inputs, output)
    (workdir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return logged
