"""Conversations played for tests, as rollouts, and the credit of a group of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from envs import conformance
from envs.base import Status, Task
from envs.play import MUTATED
from envs.tau_bench.action import write
from envs.tau_bench.data import Bench, Call, TaskSpec
from envs.tau_bench.domain import DOMAIN, Options, TauBenchEnv
from envs.tau_bench.session import Customer
from vict_jax.audit.source import Setting, credit
from vict_jax.batching import EndReason, Rollout, credit_inputs
from vict_jax.credit.options import VictOptions
from vict_jax.types import CreditOutput, Relation

STEPS, GROUP = 30, 8


def play(env: TauBenchEnv, task: Task, calls: Sequence[Call], start: Any = None) -> Rollout:
    """Play calls until the conversation ends.

    Args:
      start: bench, task and customer in place of what `task` stands for.
    """
    seen = env.reset(task) if start is None else env.begin(*start)
    texts, valid, actions = [seen.text], list[bool](), list[str]()
    for call in calls:
        actions.append(write(call))
        result = env.step(actions[-1])
        texts.append(result.observation.text)
        valid.append(bool(result.info["valid"]))
        if result.done:
            break
    record = env.record()
    return Rollout(
        task=task,
        sequences=(),
        actions=tuple(actions),
        observations=tuple(texts),
        taken=np.ones(len(actions), bool),
        valid=np.array(valid, bool),
        record=record,
        score=record.score,
        end=EndReason.SUCCESS if record.score else EndReason.FAILURE,
    )


def play_spec(bench: Bench, spec: TaskSpec, customer: Customer, calls: Sequence[Call]) -> Rollout:
    """Play a task that no data directory holds."""
    env = TauBenchEnv(Options(domain=bench.domain))
    return play(env, Task("t", "t", "train", 0, ""), calls, (bench, spec, customer))


def problems(rollout: Rollout) -> list[str]:
    """What is wrong with a rollout's record: its score is not rebuilt, or it is unsound."""
    assert rollout.record is not None
    judged = conformance.judge(DOMAIN, rollout.record, rollout.task, MUTATED)
    wrong = [] if judged.agrees else [f"F = {judged.rebuilt}, V = {judged.score}"]
    return wrong + [str(fault) for fault in judged.faults]


def status(rollout: Rollout) -> dict[str, Status]:
    """Atom id -> status at the end."""
    assert rollout.record is not None
    ids = (atom.id for atom in rollout.record.atoms)
    return {id_: Status(code) for id_, code in zip(ids, rollout.record.status[-1], strict=True)}


@dataclasses.dataclass(frozen=True)
class Credited:
    """A group and its credit."""

    rollouts: Sequence[Rollout]
    output: CreditOutput

    def share(self, rollout: int, step: int, atom: str) -> float:
        """What an atom gives to an action before scaling, over all relations."""
        proofs, record = self.output.proofs, self.rollouts[rollout].record
        assert proofs is not None
        assert record is not None
        j = [a.id for a in record.atoms].index(atom)
        return float(np.sum(proofs.contribution[0, rollout, step, j]))

    def edge(self, rollout: int, step: int, atom: str, relation: Relation) -> bool:
        """Whether an action has an edge to an atom."""
        proofs, record = self.output.proofs, self.rollouts[rollout].record
        assert proofs is not None
        assert record is not None
        j = [a.id for a in record.atoms].index(atom)
        return bool(proofs.witness[0, rollout, step, j, relation])

    def correction(self, rollout: int, step: int) -> float:
        """The correction of an action."""
        return float(self.output.correction[0, rollout, step])


def credited(rollouts: Sequence[Rollout], options: Options) -> Credited:
    """VICT's credit of a group of `GROUP` rollouts; its own invariant holds."""
    inputs = credit_inputs(
        [rollouts], domain=DOMAIN, max_steps=STEPS, group_size=GROUP, conforming=[True], masked_families=()
    )
    setting = Setting(DOMAIN, options, "vict", VictOptions(center="mean", budget=16))
    output, violations = credit(setting, inputs)
    assert violations == 0
    return Credited(rollouts, output)
