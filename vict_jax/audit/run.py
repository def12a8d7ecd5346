"""`--workdir DIR`: what the credit of a run did, and whether its log replays bit for bit."""

from __future__ import annotations

import argparse
import dataclasses
import pathlib

import tqdm

from envs.lookup import environment
from vict_jax import proofs
from vict_jax.batching import to_device, to_host
from vict_jax.config import from_plain
from vict_jax.credit.assign import InvariantError, assign_credit
from vict_jax.metrics import RunError, read_json, write_json
from vict_jax.sharding import make_mesh, replicated
from vict_jax.types import CreditInputs, CreditOutput

# Differences printed one by one; the rest is only counted.
_SHOWN = 20


def audit_run(workdir: pathlib.Path) -> proofs.Replay:
    """Replay every logged update of a run and print what came out.

    Raises:
      RunError: the directory holds no run, or a logged file is damaged.
    """
    if not (workdir / "config.json").is_file():
        raise RunError(f"--workdir {workdir} holds no run (no config.json in it)")
    config = from_plain(read_json(workdir / "config.json"))
    domain, _ = environment(config.env.name)
    sharding = replicated(make_mesh())

    def credit(inputs: CreditInputs) -> CreditOutput:
        output, violations = assign_credit(
            to_device(inputs, sharding),
            method=config.credit.method,
            aggregate=domain.aggregate,
            options=config.credit.options,
        )
        if violations:
            raise InvariantError(f"{violations} replayed corrections have no proof (Eq. 8)")
        return to_host(output)

    updates = proofs.logged_updates(workdir)
    with tqdm.tqdm(updates, desc="replay", unit="update", disable=None) as bar:
        result = proofs.replay(workdir, bar, credit)
    print(f"{workdir}: {result.updates} updates, {result.steps} steps, {result.proofs} proofs replayed")
    for line in result.differing[:_SHOWN]:
        print(f"DIFFERS {line}")
    print(f"{len(result.differing)} differences, bit for bit")
    return result


def main(args: argparse.Namespace) -> int:
    """Run the command; returns its exit code."""
    result = audit_run(args.workdir)
    if args.json is not None:
        write_json(args.json, dataclasses.asdict(result))
    return 1 if result.differing else 0
