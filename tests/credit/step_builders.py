"""Batches for the step-level methods: from lists of states and actions, and at random."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.credit import builders
from vict_jax.credit.methods import STEP_METHODS
from vict_jax.credit.options import VictOptions
from vict_jax.types import CreditInputs, CreditOutput, Kind

NAMES = tuple(STEP_METHODS)
# Groups, rollouts, steps, atoms and variables of every batch that is run: one shape, compiled once.
SHAPE = (7, 7, 9, 6, 6)
WORDS = 10  # and so states 0 to 9 in what is built by hand
# Items of a rubric built by hand.
KINDS = np.array([Kind.EVIDENCE, Kind.EVIDENCE, Kind.EXECUTION, Kind.INVALIDITY, Kind.NONE], np.int8)


def played(
    rollouts: Sequence[tuple[float, Sequence[int]]],
    *,
    actions: Sequence[Sequence[int]] | None = None,
    terms: dict[int, Sequence[float]] | None = None,
    fired: Sequence[tuple[int, int, int]] = (),
    hindsight: Sequence[Sequence[float]] | None = None,
) -> CreditInputs:
    """One task group with one atom that holds in rollouts of score 1.

    Args:
      rollouts: score, and the observation before each action and after the last one.
      actions: of each rollout; all the same if left out.
      terms: vector of the words of each observation; no two observations share a word if left out.
      fired: (rollout, step, item of `KINDS`). Contexts are observations.
      hindsight: log-probability of each step of each rollout; 0 if left out.
    """
    of_rollout = [
        builders.rollout(
            score,
            [builders.S if score >= 1 else builders.U],
            steps=len(states) - 1,
            writes=[(len(states) - 2, 0)],
        )
        for score, states in rollouts
    ]
    inputs = builders.group(of_rollout, weight=[1.0])
    n, t = inputs.commits.shape[1:]
    state, action = np.zeros((1, n, t + 1), np.int32), np.zeros((1, n, t), np.int32)
    for i, (_, states) in enumerate(rollouts):
        state[0, i, : len(states)] = states
        if actions is not None:
            action[0, i, : len(actions[i])] = actions[i]
    vectors = np.eye(WORDS, dtype=np.float32)[state[..., :-1]]
    for name, vector in (terms or {}).items():
        vectors[state[..., :-1] == name] = np.pad(vector, (0, WORDS - len(vector)))
    rubric, logp = np.zeros((1, n, t, len(KINDS)), bool), np.zeros((1, n, t), np.float32)
    for place in fired:
        rubric[0][place] = True
    for i, row in enumerate(hindsight or ()):
        logp[0, i, : len(row)] = row
    return dataclasses.replace(
        inputs,
        state_id=state,
        action_id=action,
        cluster_id=state[..., :-1],
        state_terms=vectors,
        rubric=rubric,
        rubric_kind=KINDS[None],
        context_id=state[..., :-1],
        hindsight_logp=logp,
    )


def random_steps(seed: int, *, groups: int = 6, rollouts: int = 5, steps: int = 6) -> CreditInputs:
    """A batch with few states and actions, so that steps meet; scores and penalties are from few values.

    Some groups have one real rollout, some rollouts are lost.
    """
    rng = np.random.default_rng(seed)
    inputs = builders.random_inputs(seed, groups=groups, rollouts=rollouts, steps=steps, exact_params=True)
    shape = (groups, rollouts, steps)
    states = rng.integers(2, 7, (groups, 1, 1))
    state = (rng.integers(0, 100, (groups, rollouts, steps + 1)) % states + 1).astype(np.int32)
    words = rng.random((8, WORDS)) * (rng.random((8, WORDS)) < 0.3)
    words /= np.maximum(np.linalg.norm(words, axis=-1, keepdims=True), 1e-9)
    score = rng.choice([0.0, 0.0, 0.5, 1.0], shape[:2])
    score[0], score[1] = 0.0, 1.0  # all fail, all succeed
    changes: dict[str, Any] = {
        "score": np.where(inputs.rollout_mask, score, np.nan).astype(np.float32),
        "penalty": rng.choice([0.0, 0.0, 0.0, 0.0625], shape).astype(np.float32),
        "state_id": state,
        "action_id": rng.integers(1, 3, shape).astype(np.int32),
        "cluster_id": (state[..., :-1] // 2).astype(np.int32),
        "state_terms": words[state[..., :-1]].astype(np.float32),
        "rubric": rng.random((*shape, len(KINDS))) < 0.3,
        "rubric_kind": rng.choice(list(Kind), (groups, len(KINDS))).astype(np.int8),
        "context_id": (state[..., :-1] % 3 + 1).astype(np.int32),
        "hindsight_logp": np.log(rng.random(shape)).astype(np.float32) * 4,
    }
    return dataclasses.replace(inputs, **changes)


def fill(inputs: CreditInputs, seed: int = 0) -> CreditInputs:
    """A batch padded with NaN and garbage to `SHAPE`."""
    g, n, t = inputs.commits.shape
    m, v = inputs.binds.shape[1:]
    return builders.pad(
        inputs,
        groups=SHAPE[0] - g,
        rollouts=SHAPE[1] - n,
        steps=SHAPE[2] - t,
        atoms=SHAPE[3] - m,
        variables=SHAPE[4] - v,
        seed=seed,
    )


def run(
    inputs: CreditInputs, options: VictOptions = builders.DEFAULT, methods: Sequence[str] = NAMES
) -> dict[str, CreditOutput]:
    """Methods in one compiled call on a padded batch, none of which breaks its claim, cut to size."""
    outputs = builders.run_many(fill(inputs), tuple(methods), options=options)
    return {name: builders.crop(output, inputs) for name, output in outputs.items()}
