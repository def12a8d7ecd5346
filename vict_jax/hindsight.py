"""The extra model pass of HCAPO: what the policy thinks of each action once it knows how a success ended.

Every model sequence of a rollout is scored once more with the outcome as the first line of what the
environment says, behind instruction and examples. The tokens are those that were sampled, at the same
temperature, by the same compiled function as the update's. Source: arXiv 2603.08754; which text stands for
the outcome is our reading (docs/credit_methods.md).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from vict_jax.batching import Rollout, TokenSequence, fetch
from vict_jax.config import RunConfig
from vict_jax.credit.methods import needs
from vict_jax.job import Job, policy
from vict_jax.learner import value
from vict_jax.learner.update import PpoLearner, score_batch
from vict_jax.rollout.episode import FULL_SCORE
from vict_jax.rollout.template import make_template
from vict_jax.rollout.tokenizer import Codec
from vict_jax.shares import Share, global_rows
from vict_jax.types import TokenBatch

FIELD = "hindsight_logp"
SOLVED = "This was solved."


def needed(config: RunConfig) -> bool:
    """Whether the credit method needs the pass."""
    return FIELD in needs([config.credit.method], config.credit.options)


def outcome_text(group: Sequence[Rollout], n: int) -> str:
    """The outcome that rollout n of a group is scored under, on one line.

    `SOLVED`, and the last observation of the rollout if it succeeded, or else of the first one of the group
    that did; where that is empty, its last action. In a group without a success nothing follows.
    """
    for rollout in (group[n], *group):
        if not rollout.lost and rollout.score >= FULL_SCORE and rollout.actions:
            said = " ".join(rollout.observations[-1].split()) or " ".join(rollout.actions[-1].split())
            return f"{SOLVED} {said}"
    return SOLVED


def outcome_ids(codec: Codec, text: str, most: int) -> list[int]:
    """Ids of the line, cut to at most `most` tokens, at least the end of the line."""
    end = codec.text("\n")
    return [*codec.text(text)[: max(most - len(end), 0)], *end]


def with_outcome(sequence: TokenSequence, opening: Sequence[int], line: Sequence[int]) -> TokenSequence:
    """The sequence with the line behind its opening.

    Raises:
      ValueError: it does not begin with the opening.
    """
    at = len(opening)
    if sequence.ids[:at].tolist() != list(opening):
        raise ValueError(
            f"sequence of {len(sequence.ids)} tokens does not begin with the {at} of the opening"
        )

    def insert(values: np.ndarray, new: Sequence[int]) -> np.ndarray:
        return np.concatenate([values[:at], np.array(new, values.dtype), values[at:]])

    nothing = [0] * len(line)
    return TokenSequence(
        ids=insert(sequence.ids, line),
        trained=insert(sequence.trained, nothing),
        logp=insert(sequence.logp, nothing),
        step=insert(sequence.step, nothing),
    )


def with_outcomes(
    groups: Sequence[Sequence[Rollout]], codec: Codec, opening: Sequence[int], *, most: int
) -> list[list[Rollout]]:
    """The rollouts with the outcome in their model sequences, of at most `most` tokens each."""

    def changed(group: Sequence[Rollout], n: int) -> Rollout:
        line = outcome_ids(codec, outcome_text(group, n), most)
        sequences = tuple(with_outcome(sequence, opening, line) for sequence in group[n].sequences)
        return dataclasses.replace(group[n], sequences=sequences)

    return [[changed(group, n) for n in range(len(group))] for group in groups]


@functools.partial(jax.jit, static_argnames=("shape",))
def _mean_by_step(batch: TokenBatch, logp: jax.Array, *, shape: tuple[int, int, int]) -> jax.Array:
    count = value.per_step(jnp.ones_like(logp), batch, shape)
    return value.per_step(logp, batch, shape) / jnp.maximum(count, 1.0)


def hindsight_logp(
    job: Job,
    learner: PpoLearner,
    params: nnx.State,
    groups: Sequence[Sequence[Rollout]],
    share: Share,
) -> np.ndarray:
    """Mean log-probability of the trained tokens of each step under the outcome, f32[G, N, T]; 0 on padding.

    Rows are `hcapo.outcome_tokens` longer than `rollout.max_context`, so that nothing is cut.

    Args:
      params: trained parameters, of the policy that sampled the rollouts.
      groups: those of this process, `share`; the result is of all G.
    """
    config, size = job.config, job.config.train.rollouts
    most = config.credit.options.hcapo.outcome_tokens
    opening = make_template(job.codec, config.rollout, job.examples).opening
    batch, _ = global_rows(
        with_outcomes(groups, job.codec, opening, most=most),
        share,
        job.mesh,
        group_size=size,
        row_length=config.rollout.max_context + most,
    )
    logp = score_batch(learner, *policy(job, params), batch, num_rollouts=share.total * size)
    by_step = _mean_by_step(batch, logp, shape=(share.total, size, job.max_steps))
    return np.asarray(fetch(by_step, job.mesh))
