"""The hindsight pass of HCAPO: the outcome's text, its place in the prompt, and an update with it."""

from __future__ import annotations

import dataclasses
import math
import pathlib

import numpy as np
import pytest

from envs.lookup import environment
from examples import refunds
from tests.audit.logged import lose
from tests.run.small import small_config
from vict_jax import hindsight, metrics, proofs, train
from vict_jax.audit.fresh import noisy_groups
from vict_jax.audit.replay import replay
from vict_jax.batching import Rollout, TokenSequence, to_device, to_host
from vict_jax.config import RunConfig, from_config_dict
from vict_jax.credit.assign import assign_credit
from vict_jax.rollout.tokenizer import Codec, train_tokenizer
from vict_jax.sharding import make_mesh, replicated
from vict_jax.types import CreditInputs, CreditOutput


@pytest.fixture(scope="module")
def codec() -> Codec:
    return Codec(train_tokenizer(["This was solved. The ticket is closed.\n>list orders"], 300))


@pytest.fixture(scope="module")
def group() -> list[Rollout]:
    """Two failures and a success of one ticket."""
    options = refunds.Options()
    tasks = refunds.tasks(options, "train")[:1]
    (played,) = noisy_groups(refunds.DOMAIN, options, tasks, group_size=8, seed=0)
    best = next(rollout for rollout in played if rollout.score == 1)
    worst = next(rollout for rollout in played if rollout.score < 1)
    return [worst, best, dataclasses.replace(worst, observations=(*worst.observations[:-1], "Another end."))]


def test_the_outcome_is_that_of_a_success(group: list[Rollout]) -> None:
    worst, best, other = group
    closed = "This was solved. The ticket is closed."
    assert [hindsight.outcome_text(group, n) for n in range(3)] == [closed] * 3
    assert hindsight.outcome_text([worst, other], 1) == "This was solved."
    assert hindsight.outcome_text([worst, lose(best)], 1) == "This was solved."
    # Two successes: each has its own outcome, and a failure the first one's.
    second = dataclasses.replace(best, observations=(*best.observations[:-1], " Well\ndone. "))
    silent = dataclasses.replace(best, observations=(*best.observations[:-1], ""))
    texts = [hindsight.outcome_text([worst, second, best, silent], n) for n in range(4)]
    assert texts == [f"This was solved. {end}" for end in ("Well done.", "Well done.")] + [
        closed,
        "This was solved. close ticket",
    ]


def test_the_line_comes_behind_the_opening_and_changes_no_sampled_token(codec: Codec) -> None:
    opening = (5, 6)
    sequence = TokenSequence(
        ids=np.array([5, 6, 7, 8, 9], np.int32),
        trained=np.array([False, False, False, True, True]),
        logp=np.array([0, 0, 0, -1, -2], np.float32),
        step=np.array([0, 0, 0, 0, 1], np.int32),
    )
    line = hindsight.outcome_ids(codec, "This was solved.", 128)
    assert codec.decode(line) == "This was solved.\n"
    found = hindsight.with_outcome(sequence, opening, line)
    assert found.ids.tolist() == [5, 6, *line, 7, 8, 9]
    assert found.ids[found.trained].tolist() == [8, 9]
    assert found.logp[found.trained].tolist() == [-1, -2]
    assert found.step[found.trained].tolist() == [0, 1]
    with pytest.raises(ValueError, match="5 tokens does not begin with the 2 of the opening"):
        hindsight.with_outcome(sequence, (5, 7), line)


def test_a_long_outcome_is_cut_and_ends_its_line(codec: Codec) -> None:
    whole = hindsight.outcome_ids(codec, "This was solved. " * 40, 10_000)
    cut = hindsight.outcome_ids(codec, "This was solved. " * 40, 7)
    assert len(cut) == 7 < len(whole)
    assert cut == [*whole[:6], *codec.text("\n")]
    assert hindsight.outcome_ids(codec, "This", 1) == list(codec.text("\n"))


def test_an_update_with_the_pass(tmp_path: pathlib.Path) -> None:
    """One update: the pass is logged, a known outcome changes the log-probabilities, the log replays."""
    config = small_config().unlock()
    config.train.updates = 1
    config.warm_start.tasks = 0
    config.conformance.update(tasks=2, every=0)
    # As few sizes to compile as can be.
    config.eval.update(tasks=1, batch=1)
    config.rollout.update(rows=1, context="window", history=1, max_new_tokens=12)
    config.rollout.update(reply="action", trained="action")
    config.credit.method = "hcapo"
    run = from_config_dict(config)
    train.train(run, tmp_path / "run")
    inputs = proofs.read_inputs(tmp_path / "run", 1)
    real = inputs.step_mask & inputs.rollout_mask[..., None]
    logp = inputs.hindsight_logp
    assert logp is not None
    assert (logp[real] < 0).all()
    assert (logp[~real] == 0).all()
    assert logp[real].min() > -3 * math.log(300)
    assert len(np.unique(logp[real])) > real.sum() // 2
    (row,) = (row for row in metrics.read_metrics(tmp_path / "run") if row["kind"] == "train")
    assert np.isfinite(row["loss"])
    result = replay(tmp_path / "run", [1], lambda inputs: credit_of(run, inputs))
    assert result.differing == ()
    assert result.updates == 1


def credit_of(config: RunConfig, inputs: CreditInputs) -> CreditOutput:
    output, violations = assign_credit(
        to_device(inputs, replicated(make_mesh())),
        method=config.credit.method,
        aggregate=environment(config.env.name)[0].aggregate,
        options=config.credit.options,
    )
    assert violations == 0
    return to_host(output)
