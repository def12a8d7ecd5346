"""Does it pay to let the environments act while the model speaks? Rollouts in one lane and in two.

    python -m benchmarks.lanes [--latency 0 1 4] [--rows 64] [--steps 6] [--rounds 3]

Household tasks of the quickstart, its model newly initialised, whatever it says handed on, and
environments that take `--latency` milliseconds a step longer than they do (a slow engine, a customer
behind an endpoint). Both settings play the same rollouts, in turns; the figures are medians over the
rounds. Waiting is what of the time the main process waits for the model and for the environments.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time
from collections.abc import Sequence

import jax
from flax import nnx

from benchmarks.slow import SlowOptions, make
from configs import quickstart
from envs.alfworld.domain import DOMAIN
from envs.pool import EnvPool
from vict_jax.config import RunConfig, from_config_dict
from vict_jax.models import decoder
from vict_jax.models.config import ModelConfig
from vict_jax.rollout.collector import Collected, collect, open_sessions
from vict_jax.rollout.tokenizer import Codec, train_tokenizer


def play(
    config: RunConfig,
    model: tuple[nnx.GraphDef, nnx.State],
    codec: Codec,
    pool: EnvPool,
    args: argparse.Namespace,
) -> Collected:
    """The rollouts of one update."""
    tasks = DOMAIN.tasks(config.env.options, "train")[: args.rows // 8]
    return collect(
        pool,
        open_sessions(*model, codec, config.rollout),
        codec,
        tasks,
        rollouts=8,
        key=jax.random.key(0),
        options=config.rollout,
        max_steps=args.steps,
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lanes", description="One lane against two.")
    parser.add_argument("--latency", type=float, nargs="+", default=[0.0, 1.0, 4.0], help="milliseconds")
    parser.add_argument("--rows", type=int, default=64, help="rollouts, 8 of each task")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args(argv)
    config = from_config_dict(quickstart.get_config())
    codec = Codec(train_tokenizer(DOMAIN.corpus(config.env.options), config.model.vocab_size))
    made: ModelConfig = config.model.made(
        vocab_size=len(codec.tokenizer), max_positions=config.rollout.max_context
    )
    model = decoder.init(made, jax.random.key(0))
    print("ms a step  lanes  seconds  waiting for model  for environments   against one lane")
    for latency in args.latency:
        options = SlowOptions(config.env.options, latency / 1000)
        slow = dataclasses.replace(DOMAIN, make=make)
        with EnvPool(slow, options, workers=config.env.workers, timeout_s=20.0) as pool:
            seconds: dict[int, list[dict[str, float]]] = {1: [], 2: []}
            for _ in range(args.rounds + 1):  # the first round compiles
                for lanes, runs in seconds.items():
                    rollout = dataclasses.replace(config.rollout, rows=args.rows, lanes=lanes, invalid="pass")
                    began = time.perf_counter()
                    played = play(dataclasses.replace(config, rollout=rollout), model, codec, pool, args)
                    runs.append({**played.seconds, "all": time.perf_counter() - began})
        median = {
            lanes: {key: statistics.median(run[key] for run in runs[1:]) for key in runs[0]}
            for lanes, runs in seconds.items()
        }
        for lanes, found in median.items():
            ratio = median[1]["all"] / found["all"]
            print(
                f"{latency:9g}  {lanes:5}  {found['all']:7.2f}  {found['sample'] / found['all']:17.0%}"
                f"  {found['env'] / found['all']:16.0%}   {ratio:.2f}"
            )


if __name__ == "__main__":
    main()
