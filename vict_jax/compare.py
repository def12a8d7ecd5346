"""The advantages of several credit methods on the same rollouts, side by side.

    python -m vict_jax.compare --workdir=DIR --methods=grpo,gigpo,vict,gigpo+vict [--update=U] [--rollout=R]
    python -m vict_jax.compare --env=NAME --rollouts=N --methods=... [--group-size=N] [--option KEY=VALUE]

The first form takes one logged update of a run (the last one if left out) and the run's own credit options,
the second rollouts of the expert with random actions in between. `--credit KEY=VALUE` sets a credit option.
Printed are the advantages of each step of one rollout, and figures over all steps; `--json OUT` has every
step of every rollout. Nothing is written to the run.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from envs.base import Domain
from envs.lookup import environment
from vict_jax import observations, proofs, rubric
from vict_jax.audit.contrast import correlation, sign_agreement
from vict_jax.audit.environment import read_options
from vict_jax.audit.explain import find_rollout
from vict_jax.audit.findings import UserCodeError
from vict_jax.audit.fresh import noisy_groups
from vict_jax.audit.source import on_device
from vict_jax.audit.text import number, printable, share, signed, table
from vict_jax.batching import credit_inputs, to_host
from vict_jax.config import build
from vict_jax.credit.assign import InvariantError, assign_many
from vict_jax.credit.methods import credit_method, needs
from vict_jax.credit.options import VictOptions
from vict_jax.metrics import RunError, read_config, write_json
from vict_jax.observations import GroupTexts
from vict_jax.types import CreditInputs

_ACTION = 36  # widest action text in the table


@dataclasses.dataclass(frozen=True)
class Stored:
    """A batch of rollouts with its texts.

    Attributes:
      title: where it is from, in words. inputs: NumPy arrays.
      played: the steps of each rollout of each group; none of a lost one.
      has: fields that `inputs` holds although most methods do not need them.
    """

    title: str
    domain: Domain
    options: VictOptions
    inputs: CreditInputs
    played: Sequence[rubric.GroupPlayed]
    has: frozenset[str]

    @property
    def observations(self) -> list[GroupTexts]:
        """The texts before the actions of each rollout."""
        return [[one.observations for one in group] for group in self.played]

    @property
    def actions(self) -> list[GroupTexts]:
        """The action texts of each rollout."""
        return [[one.actions for one in group] for group in self.played]


@dataclasses.dataclass(frozen=True)
class Figures:
    """One method over all real steps.

    Attributes:
      nonzero: share of steps with an advantage other than 0.
      mean, std: of the advantages; std with n in the denominator.
      within: share of their variance that is inside rollouts: 0 for a method that gives each rollout one
        advantage; None without any variance.
    """

    nonzero: float
    mean: float
    std: float
    within: float | None


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line; see the module."""
    parser = argparse.ArgumentParser(prog="python -m vict_jax.compare", description=__doc__.split("\n", 1)[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--workdir", type=pathlib.Path, help="a run with a log")
    what.add_argument("--env", metavar="NAME", help="an environment, for fresh rollouts")
    parser.add_argument(
        "--methods", required=True, help="names with commas between them; X+vict for VICT on X"
    )
    parser.add_argument("--update", type=int, metavar="U", help="with --workdir: which; the last if left out")
    parser.add_argument("--rollout", metavar="R", help="which rollout to show, from 0, or GROUP/ROLLOUT")
    parser.add_argument("--rollouts", type=int, metavar="N", help="with --env: how many")
    parser.add_argument("--group-size", type=int, default=8, metavar="N", help="with --env: of one task")
    parser.add_argument("--split", help="with --env: of which split; the first if left out")
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="with --env")
    parser.add_argument("--credit", action="append", default=[], metavar="KEY=VALUE", help="a credit option")
    parser.add_argument("--seed", type=int, default=0, help="with --env: of the random actions")
    parser.add_argument("--json", type=pathlib.Path, metavar="OUT", help="where to write everything")
    args = parser.parse_args(argv)
    unread = ("rollouts", "group_size", "split", "option", "seed") if args.workdir else ("update",)
    for name in unread:
        if vars(args)[name] != parser.get_default(name):
            form = "--workdir" if args.workdir else "--env"
            parser.error(f"--{name.replace('_', '-')} has no effect with {form}; leave it out")
    if args.env is not None and (args.rollouts is None or args.group_size < 2):
        parser.error(f"--env needs --rollouts N and a --group-size of 2 or more, not {args.group_size}")
    if args.env is not None and (args.rollouts < 1 or args.rollouts % args.group_size):
        parser.error(f"--rollouts {args.rollouts} must be a multiple of --group-size {args.group_size}")
    return args


def chosen_methods(text: str, options: VictOptions) -> tuple[str, ...]:
    """Names from a text with commas; ValueError if one is unknown, refused, or there twice."""
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names or len(set(names)) < len(names):
        raise ValueError(f"--methods {text!r} must name one method or more, each once")
    for name in names:
        credit_method(name, options)
    return names


def changed(options: VictOptions, pairs: Sequence[str]) -> VictOptions:
    """Credit options with some replaced, `KEY=VALUE` each; the key may be dotted (`gigpo.mode`)."""
    values = dataclasses.asdict(options)
    for key, value in read_options("--credit", pairs).items():
        section, _, last = key.rpartition(".")
        place = values
        for part in section.split(".") if section else []:
            if not isinstance(place.get(part), dict):
                raise ValueError(f"--credit {key}: there are no options called {section!r}")
            place = place[part]
        place[last] = value
    return build(VictOptions, values, "credit.")


# --- batches --------------------------------------------------------------------------------------


def logged(workdir: pathlib.Path, update: int | None, credit: Sequence[str]) -> Stored:
    """A logged update of a run.

    Raises:
      RunError: there is no such run or update, or a file of it is damaged.
    """
    config = read_config(workdir, flag="--workdir=")
    known = proofs.logged_updates(workdir)
    if update is None and not known:
        raise RunError(f"--workdir={workdir} has no logged update yet")
    update = known[-1] if update is None else update
    inputs = proofs.read_inputs(workdir, update)
    columns = ["group", "rollout", "observation", "action", "taken", "valid"]
    rows = proofs.read_table(workdir, "rollouts", update, columns)
    groups, size = inputs.score.shape
    steps: list[list[list[Any]]] = [[[] for _ in range(size)] for _ in range(groups)]
    for g, n, *step in zip(*(rows[name] for name in columns), strict=True):
        if inputs.rollout_mask[g, n]:
            steps[g][n].append(step)
    played = [[_played(one) for one in group] for group in steps]
    domain, _ = environment(config.env.name)
    options = changed(config.credit.options, credit)
    has = needs([config.credit.method], config.credit.options)
    return Stored(f"update {update} of {workdir}", domain, options, inputs, played, has)


def _played(steps: Sequence[Sequence[Any]]) -> rubric.Played:
    """A rollout of (observation, action, taken, valid) rows."""
    return rubric.Played(*zip(*steps, strict=True)) if steps else rubric.NOTHING_PLAYED


def fresh(args: argparse.Namespace) -> Stored:
    """Rollouts of the expert with random actions in between; conformance is taken for granted.

    Raises:
      ValueError: an option is wrong, or the split has too few tasks.
    """
    domain, options_class = environment(args.env)
    options: Any = build(options_class, read_options("--option", args.option), "env.")
    split = args.split or domain.splits[0]
    if split not in domain.splits:
        raise ValueError(f"--split {split!r} is not one of {list(domain.splits)}")
    needed = args.rollouts // args.group_size
    tasks = list(itertools.islice(domain.tasks(options, split), needed))
    if len(tasks) < needed:
        raise ValueError(f"--rollouts {args.rollouts} needs {needed} tasks, split {split!r} has {len(tasks)}")
    groups = noisy_groups(domain, options, tasks, group_size=args.group_size, seed=args.seed)
    inputs = credit_inputs(
        groups,
        domain=domain,
        max_steps=domain.max_steps(options),
        group_size=args.group_size,
        conforming=[True] * needed,
    )
    return Stored(
        f"{args.rollouts} rollouts of {args.env}, {split}, by the expert with random actions in between",
        domain,
        changed(VictOptions(), args.credit),
        inputs,
        rubric.played_of(groups),
        frozenset(),
    )


# --- figures --------------------------------------------------------------------------------------


def why_not(batch: Stored, name: str) -> str:
    """Why a method cannot be computed on a batch; empty if it can. ValueError as `credit_method`."""
    known = batch.has | observations.FIELDS | rubric.FIELDS
    if unknown := needs([name], batch.options) - known:
        return (
            f"credit method {name!r} needs {sorted(unknown)}, which only a run of a method that needs it "
            f"logs; {batch.title} has none"
        )
    return ""


def advantages(batch: Stored, methods: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Advantages f32[G, N, T] of each method, from one compiled call.

    Fields made of texts, and rubrics, are made anew, under the options of the batch.

    Raises:
      InvariantError: a method breaks its claim.
      ValueError: a method needs what a model makes, and the batch does not have it.
    """
    needed = needs(methods, batch.options)
    for name in methods:
        if why := why_not(batch, name):
            raise ValueError(why)
    inputs = observations.add_needed(batch.inputs, batch.observations, needs=needed, options=batch.options)
    inputs = rubric.add_needed(inputs, batch.played, needs=needed, domain=batch.domain)
    outputs, violations = to_host(
        assign_many(
            on_device(inputs), methods=methods, aggregate=batch.domain.aggregate, options=batch.options
        )
    )
    if violations:
        raise InvariantError(f"{int(violations)} advantages of {methods} are not what their methods claim")
    return {name: np.asarray(outputs[name].advantages) for name in methods}


def real_steps(inputs: CreditInputs) -> np.ndarray:
    """bool[G, N, T]: real steps of real rollouts."""
    return np.asarray(inputs.step_mask & inputs.rollout_mask[..., None])


def figures(advantage: np.ndarray, real: np.ndarray) -> Figures:
    """Figures of one method. `advantage` f32[G, N, T], `real` bool[G, N, T] with a real step in it."""
    values = advantage[real].astype(np.float64)
    count = np.maximum(real.sum(-1, keepdims=True), 1)
    own = np.where(real, advantage, 0.0).sum(-1, keepdims=True, dtype=np.float64) / count
    variance = values.var()
    inside = np.square(np.where(real, advantage - own, 0.0)).sum() / len(values)
    return Figures(
        nonzero=float((values != 0).mean()),
        mean=float(values.mean()),
        std=float(np.sqrt(variance)),
        within=float(inside / variance) if variance > 0 else None,
    )


def matrix(
    found: Mapping[str, np.ndarray], real: np.ndarray, measure: Any
) -> dict[str, dict[str, float | None]]:
    """A measure of two vectors for every pair of methods, over the real steps."""
    rows = {name: values[real] for name, values in found.items()}
    return {a: {b: measure(rows[a], rows[b]) for b in rows} for a in rows}


# --- output ---------------------------------------------------------------------------------------


def place(batch: Stored, text: str | None) -> tuple[int, int]:
    """The rollout to show: the one asked for, or else the first whose group has unequal scores."""
    inputs = batch.inputs
    groups, size = inputs.score.shape
    if text is not None:
        return find_rollout(text, groups, size, batch.title)
    score = np.where(inputs.rollout_mask, inputs.score, np.nan)
    for g in range(groups):
        real = score[g][inputs.rollout_mask[g]]
        if len(real) and np.ptp(real) > 0:
            return g, int(np.argmax(inputs.rollout_mask[g]))
    return 0, 0


def step_table(batch: Stored, found: Mapping[str, np.ndarray], g: int, n: int) -> str:
    """The advantages of one rollout, a row a step and a column a method."""
    rows = [
        [str(t), printable(action, _ACTION), *(signed(float(values[g, n, t])) for values in found.values())]
        for t, action in enumerate(batch.actions[g][n])
    ]
    title = f"rollout {g}/{n}, score {batch.inputs.score[g, n]:g}"
    if not batch.inputs.rollout_mask[g, n]:
        return f"{title}: lost, it has no advantages"
    return f"{title}\n{table(['step', 'action', *found], rows, align='rl' + 'r' * len(found))}"


def figure_table(of: Mapping[str, Figures]) -> str:
    """A row a method."""
    rows = [
        [name, share(f.nonzero), f"{f.mean:+.3f}", f"{f.std:.3f}", share(f.within)] for name, f in of.items()
    ]
    return table(["", "non-zero", "mean", "std", "within rollouts"], rows, align="lrrrr")


def matrix_table(values: Mapping[str, Mapping[str, float | None]], show: Any) -> str:
    """A row and a column a method."""
    rows = [[name, *map(show, row.values())] for name, row in values.items()]
    return table(["", *values], rows, align="l" + "r" * len(values))


def report(batch: Stored, found: Mapping[str, np.ndarray], g: int, n: int) -> tuple[str, dict[str, Any]]:
    """What is printed, and the same and more as JSON values."""
    real = real_steps(batch.inputs)
    if not real.any():
        raise RunError(f"{batch.title} has no step to compare")
    of = {name: figures(values, real) for name, values in found.items()}
    agreement, correlations = matrix(found, real, sign_agreement), matrix(found, real, correlation)
    text = "\n\n".join(
        [
            f"{batch.title}: {int(real.sum())} steps of {int(batch.inputs.rollout_mask.sum())} rollouts",
            step_table(batch, found, g, n),
            f"All steps\n{figure_table(of)}",
            f"Same sign, where both are not 0\n{matrix_table(agreement, share)}",
            f"Correlation\n{matrix_table(correlations, number)}",
        ]
    )
    steps = [
        {
            "group": i,
            "rollout": j,
            "step": t,
            "action": batch.actions[i][j][t],
            "advantages": {name: float(values[i, j, t]) for name, values in found.items()},
        }
        for i, j, t in np.argwhere(real).tolist()
    ]
    return text, {
        "batch": batch.title,
        "methods": list(found),
        "figures": {name: dataclasses.asdict(f) for name, f in of.items()},
        "sign_agreement": agreement,
        "correlation": correlations,
        "steps": steps,
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Command line.

    Raises:
      RunError: the directory holds no run, or not that update or rollout.
      ValueError: a method or an option is unknown or refused.
    """
    args = parse_args(argv)
    batch = fresh(args) if args.env is not None else logged(args.workdir, args.update, args.credit)
    methods = chosen_methods(args.methods, batch.options)
    g, n = place(batch, args.rollout)
    text, values = report(batch, advantages(batch, methods), g, n)
    print(text)
    if args.json is not None:
        write_json(args.json, values)


if __name__ == "__main__":
    try:
        main()
    except (ValueError, OSError, RunError, UserCodeError) as error:
        sys.exit(f"error: {error}")
