"""Credit on real conversations of tau-bench: logged episodes of a language model, in groups of one task.

    python -m benchmarks.tau_bench_logged --data-dir DIR --log gpt-4o-airline.json.gz [--domain airline]
        [--score procedure] [--cores] [--workdir DIR] [--json OUT]

Every conversation is played again with the customer's own messages. Printed are how many recorded rewards
come out again, whether the atoms rebuild them, and the figures of an audit. With --workdir the groups are
written as the log of one update, so that `python -m vict_jax.audit --explain DIR --update 0 --rollout 3/1`
explains trial 1 of task 3.
"""

from __future__ import annotations

import argparse
import itertools
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from envs import conformance
from envs.play import POLICY
from envs.tau_bench import data
from envs.tau_bench.domain import DOMAIN, Options, TauBenchEnv, tasks
from envs.tau_bench.logged import Conversation, Replayed, read, replay
from vict_jax import proofs
from vict_jax.audit import figures
from vict_jax.audit.cores import compare_cores
from vict_jax.audit.source import Batch, Setting, credit
from vict_jax.batching import EndReason, Rollout, credit_inputs
from vict_jax.config import default_config, from_config_dict, to_plain
from vict_jax.metrics import write_json
from vict_jax.types import CreditOutput

_NOT_HERE = {"credit_share": "no update", "mutation_conformance": "see the audit"}


def main(argv: Sequence[str] | None = None) -> int:
    """Print the figures; 1 if a score was not rebuilt or a correction has no proof."""
    args = _arguments(argv)
    options = Options(
        domain=args.domain,
        data_dir=str(args.data_dir),
        style="json",
        score=args.score,
        max_steps=args.max_steps,
    )
    conversations = read(args.log)
    groups = replay_groups(options, conversations)
    again = sum(
        rollout.score == conversation.reward
        for rollout, conversation in zip(itertools.chain(*groups), conversations, strict=True)
    )
    rebuilt, faults = conformance_of(groups)
    setting, batch, output, violations, values = credit_of(options, groups)
    values |= compare_cores(setting, [batch]).figures() if args.cores else {}
    total = len(conversations)
    print(
        f"{total} episodes of {len(groups)} tasks, {sum(c.reward for c in conversations):g} rewarded\n"
        f"recorded reward comes out again: {again} of {total}\n"
        f"F over the atoms rebuilds the score: {rebuilt} of {total}\n"
        f"unsound records: {faults}\n\n{figures.text(values, _NOT_HERE)}"
    )
    if args.workdir is not None:
        config = default_config("tau_bench")
        config.env.update(domain=options.domain, data_dir=options.data_dir, style="json", score=options.score)
        for folder in ("rollouts", "atoms", "proofs"):
            (args.workdir / folder).mkdir(parents=True, exist_ok=True)
        write_json(args.workdir / "config.json", to_plain(from_config_dict(config)))
        proofs.write_update(args.workdir, 0, groups, batch.inputs, output, masked_families=())
    if args.json is not None:
        counts = {"conversations": total, "again": again, "rebuilt": rebuilt, "unsound": faults}
        write_json(args.json, {"counts": counts, "figures": figures.to_json(values)})
    return int(bool(rebuilt < total or faults or violations))


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data-dir", type=pathlib.Path, required=True)
    parser.add_argument("--log", type=pathlib.Path, required=True)
    parser.add_argument("--domain", choices=sorted(data.TABLES), default="airline")
    parser.add_argument("--score", choices=("original", "procedure"), default="original")
    parser.add_argument("--max-steps", type=int, default=30)
    parser.add_argument("--cores", action="store_true", help="compare cores with an exhaustive search")
    parser.add_argument("--workdir", type=pathlib.Path)
    parser.add_argument("--json", type=pathlib.Path)
    return parser.parse_args(argv)


def replay_groups(options: Options, conversations: Sequence[Conversation]) -> list[list[Rollout]]:
    """The conversations as rollouts, those of one task together.

    Args:
      conversations: ordered by task; all tasks have the same number of them.
    """
    bench, env = data.load(options.data_dir, options.domain), TauBenchEnv(options)
    known = tasks(options, "test")
    groups = itertools.groupby(conversations, key=lambda c: c.index)
    return [
        [_rollout(replay(env, bench, known[index], c), options.max_steps) for c in group]
        for index, group in groups
    ]


def _rollout(played: Replayed, max_steps: int) -> Rollout:
    steps, record = len(played.actions), played.record
    ended = EndReason.STEP_CAP if steps >= max_steps else EndReason.FAILURE
    return Rollout(
        task=played.task,
        sequences=(),
        actions=played.actions,
        observations=played.observations,
        taken=np.ones(steps, bool),
        valid=played.valid,
        record=record,
        score=record.score,
        end=EndReason.SUCCESS if record.score >= 1 else ended,
    )


def conformance_of(groups: Sequence[Sequence[Rollout]]) -> tuple[int, int]:
    """Rollouts whose score the atoms rebuild, and those whose record is unsound."""
    judged = [
        conformance.judge(DOMAIN, rollout.record, rollout.task, POLICY)
        for rollout in itertools.chain(*groups)
        if rollout.record is not None
    ]
    return sum(j.agrees for j in judged), sum(bool(j.faults) for j in judged)


def credit_of(
    options: Options, groups: Sequence[Sequence[Rollout]]
) -> tuple[Setting, Batch, CreditOutput, int, dict[str, Any]]:
    """VICT's credit with its defaults: the output, violations of Eq. 8, and the figures."""
    chosen = from_config_dict(default_config("tau_bench")).credit.options
    setting = Setting(DOMAIN, options, "vict", chosen)
    inputs = credit_inputs(
        groups,
        domain=DOMAIN,
        max_steps=max(len(rollout.actions) for group in groups for rollout in group),
        group_size=len(groups[0]),
        conforming=[True] * len(groups),
    )
    batch = Batch(0, inputs)
    output, violations = credit(setting, inputs)
    total = figures.tally(inputs, output)
    values = figures.figures(total) | dict.fromkeys(_NOT_HERE)
    return setting, batch, output, violations, values


if __name__ == "__main__":
    raise SystemExit(main())
