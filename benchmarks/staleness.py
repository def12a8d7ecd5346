"""What does `train.staleness=1` save? Whole updates, on-policy and with rollouts played one update ahead.

    python -m benchmarks.staleness [--latency 0 4 16] [--updates 6]

Household tasks of the quickstart, its model newly initialised, whatever it says handed on, and environments
that take `--latency` milliseconds a step longer than they do (a slow engine, a customer behind an endpoint).
Medians over the updates after the first two, which compile. Waiting is what of an update the process waits
for the environments.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import statistics
import tempfile
import time
from collections.abc import Sequence

from benchmarks.slow import SlowOptions, make
from configs import quickstart
from envs.pool import EnvPool
from envs.verdict import Verdict
from vict_jax.config import RunConfig, from_config_dict
from vict_jax.job import Job, new_params, open_job
from vict_jax.learner.optimizer import make_optimizer
from vict_jax.metrics import Unwritten
from vict_jax.run_state import first_state, optimizer_steps
from vict_jax.start import NOTHING
from vict_jax.train import compile_learner, run_dir, run_update, starting_policy
from vict_jax.watch import Watch


def configured(staleness: int, updates: int) -> RunConfig:
    """The quickstart without a warm start and without checks between updates."""
    config = quickstart.get_config().unlock()
    config.warm_start.tasks = 0
    config.conformance.every = 0
    config.rollout.invalid = "pass"
    config.env.update(num_train=256, num_valid=8)
    config.train.update(updates=updates + 1, rollouts=8, staleness=staleness)
    return from_config_dict(config)


def measure(job: Job, workdir: pathlib.Path, updates: int) -> tuple[float, float]:
    """Median seconds of an update, and of waiting for environments in it."""
    config = job.config
    optimizer = make_optimizer(config.optimizer, total_steps=optimizer_steps(config))
    here = first_state(job, new_params(job), optimizer, 0)
    learner = compile_learner(job, here, optimizer)
    reference = starting_policy(job, None, here.learner, workdir)
    verdict, found = Verdict(), []
    with Watch(workdir, config.watch) as watch:
        for update in range(1, updates + 1):
            began = time.perf_counter()
            here, verdict, row = run_update(
                job, learner, here, reference, update, workdir, verdict, Unwritten(), watch
            )
            found.append((time.perf_counter() - began, row["seconds/env"]))
    whole, waited = zip(*found[2:], strict=True)
    return statistics.median(whole), statistics.median(waited)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.staleness", description="Rollouts ahead.")
    parser.add_argument("--latency", type=float, nargs="+", default=[0.0, 4.0, 16.0], help="milliseconds")
    parser.add_argument("--updates", type=int, default=6, help="3 or more")
    args = parser.parse_args(argv)
    print("ms a step  staleness  s an update  for environments   against on-policy")
    for latency in args.latency:
        on_policy = 0.0
        for staleness in (0, 1):
            config = configured(staleness, args.updates)
            options = SlowOptions(config.env.options, latency / 1000)
            with tempfile.TemporaryDirectory() as folder:
                workdir = pathlib.Path(folder)
                with run_dir(config, workdir, NOTHING), open_job(config, workdir) as job:
                    slow = dataclasses.replace(job.domain, make=make)
                    with EnvPool(slow, options, workers=config.env.workers, timeout_s=20.0) as pool:
                        job = dataclasses.replace(job, pool=pool)
                        seconds, waited = measure(job, workdir, args.updates)
            on_policy = on_policy or seconds
            print(
                f"{latency:9g}  {staleness:9}  {seconds:11.2f}  {waited / seconds:16.0%}   "
                f"{on_policy / seconds:.2f}"
            )


if __name__ == "__main__":
    main()
