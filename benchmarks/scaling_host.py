"""`python -m benchmarks.scaling --what host`: credit and the host's work as an update gets larger."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import pathlib
import pickle
import resource
import tempfile
import time
import zlib
from collections.abc import Iterator, Sequence

import jax
import numpy as np

from envs.alfworld.domain import DOMAIN, Options
from vict_jax import proofs
from vict_jax.audit.fresh import noisy_groups
from vict_jax.batching import Rollout, TokenSequence, credit_inputs, to_device, to_host
from vict_jax.credit.assign import assign_credit
from vict_jax.credit.options import VictOptions
from vict_jax.packing import token_rows
from vict_jax.proof_files import FOLDERS
from vict_jax.types import CreditInputs, CreditOutput

MIB = 2**20
# Tokens of a step, sampled and answered, of a prompt, and of a row: short, as those of household tasks are.
_SAMPLED, _OBSERVED, _PROMPT, _ROW = 16, 16, 256, 2048
# What each process does for the rollouts that it played; the rest is done for all, by each or by the first.
OWN = ("pad", "compress", "pack")
PACK_STEPS = "pack, a sequence a step"


@dataclasses.dataclass(frozen=True)
class Phase:
    """One phase for one size of an update.

    Attributes:
      cpu, wall: seconds. size: bytes that it made or moved, 0 where that says nothing.
    """

    name: str
    rollouts: int
    cpu: float
    wall: float
    size: int


@dataclasses.dataclass
class Clock:
    """Collects the phases of one size."""

    rollouts: int
    phases: list[Phase] = dataclasses.field(default_factory=list)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[list[int]]:
        """Time what is inside; it may append bytes to what it is given."""
        sizes: list[int] = []
        wall, cpu = time.perf_counter(), time.process_time()
        yield sizes
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        self.phases.append(Phase(name, self.rollouts, cpu, wall, sum(sizes)))


def with_tokens(rollout: Rollout, rng: np.random.Generator, *, windowed: bool) -> Rollout:
    """A rollout with made-up tokens: one sequence of all its steps, or one for each step."""
    steps = len(rollout.actions)
    per_step = np.arange(_SAMPLED + _OBSERVED) < _SAMPLED  # what is sampled, then what is answered
    counts = [1] * steps if windowed else [steps]
    sequences, first = [], 0
    for count in counts:
        trained = np.concatenate([np.zeros(_PROMPT + int(rng.integers(64)), bool), np.tile(per_step, count)])
        step = np.full(len(trained), first, np.int32)
        step[-count * len(per_step) :] += np.repeat(np.arange(count, dtype=np.int32), len(per_step))
        ids = rng.integers(0, 32000, len(trained), np.int32)
        sequences.append(TokenSequence(ids, trained, np.full(len(trained), -1.0, np.float32), step))
        first += count
    return dataclasses.replace(rollout, sequences=tuple(sequences))


def play(rollouts: int, group: int, steps: int) -> list[list[Rollout]]:
    """Household rollouts of the noisy expert, `group` of each generated task, without tokens."""
    options = Options(max_steps=steps, num_train=rollouts // group)
    tasks = list(itertools.islice(DOMAIN.tasks(options, "train"), rollouts // group))
    return noisy_groups(DOMAIN, options, tasks, group_size=group, seed=0)


def nbytes(tree: object) -> int:
    """Bytes of the arrays of a tree."""
    return sum(x.nbytes for x in jax.tree.leaves(tree))


def measure(groups: Sequence[Sequence[Rollout]], *, steps: int, windowed_most: int) -> list[Phase]:
    """Every phase of the host for an update of these groups; the credit kernels are compiled before.

    Args:
      windowed_most: rollouts up to which one sequence a step is packed as well: its tokens fill memory.
    """
    group = len(groups[0])
    clock = Clock(len(groups) * group)
    with clock.phase("pad") as size:
        inputs = credit_inputs(
            groups, domain=DOMAIN, max_steps=steps, group_size=group, conforming=[True] * len(groups)
        )
        size.append(nbytes(inputs))
    _credit(clock, groups, inputs)
    _exchange(clock, inputs)
    _pack(clock, "pack", groups, windowed=False)
    if clock.rollouts <= windowed_most:
        _pack(clock, PACK_STEPS, groups, windowed=True)
    return clock.phases


def _credit(clock: Clock, groups: Sequence[Sequence[Rollout]], inputs: CreditInputs) -> None:
    where = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    with clock.phase("transfer") as size:
        on_device = jax.block_until_ready(to_device(inputs, where))
        size.append(nbytes(inputs))
    jax.block_until_ready(_assign(on_device))
    with clock.phase("credit"):
        credited, violations = jax.block_until_ready(_assign(on_device))
    with clock.phase("fetch") as size:
        output = to_host(credited)
        size.append(nbytes(output))
    if violations:
        raise ArithmeticError(f"{violations} corrections without proof among {clock.rollouts} rollouts")
    with tempfile.TemporaryDirectory() as folder, clock.phase("log") as size:
        workdir = pathlib.Path(folder)
        for name in FOLDERS:
            (workdir / name).mkdir()
        proofs.write_update(workdir, 1, groups, inputs, output, masked_families=())
        size += [path.stat().st_size for path in workdir.rglob("*") if path.is_file()]


def _assign(inputs: CreditInputs) -> tuple[CreditOutput, jax.Array]:
    output, violations = assign_credit(
        inputs, method="vict", aggregate=DOMAIN.aggregate, options=VictOptions(center="mean")
    )
    return output, violations


def _exchange(clock: Clock, inputs: CreditInputs) -> None:
    """What `processes.gather` does with the inputs of credit besides sending them."""
    with clock.phase("compress") as size:
        data = zlib.compress(pickle.dumps(inputs), 1)
        size.append(len(data))
    with clock.phase("unpack"):
        pickle.loads(zlib.decompress(data))


def _pack(clock: Clock, name: str, groups: Sequence[Sequence[Rollout]], *, windowed: bool) -> None:
    rng = np.random.default_rng(0)
    spoken = [[with_tokens(rollout, rng, windowed=windowed) for rollout in group] for group in groups]
    with clock.phase(name) as size:
        rows, _ = token_rows(spoken, group_size=len(groups[0]), row_length=_ROW)
        size.append(nbytes(rows))


def growth(phases: Sequence[Phase]) -> float:
    """Exponent of the CPU time of one phase between its two largest sizes; 1 is linear."""
    before, last = sorted(phases, key=lambda phase: phase.rollouts)[-2:]
    return math.log(last.cpu / before.cpu) / math.log(last.rollouts / before.rollouts)


def at(phases: Sequence[Phase], rollouts: int) -> dict[str, Phase]:
    """The phases of the largest update that was measured, in proportion for one of so many rollouts."""
    largest = max(phase.rollouts for phase in phases)
    factor = rollouts / largest
    return {
        phase.name: dataclasses.replace(
            phase,
            rollouts=rollouts,
            cpu=phase.cpu * factor,
            wall=phase.wall * factor,
            size=round(phase.size * factor),
        )
        for phase in phases
        if phase.rollouts == largest
    }


def peak_gib() -> float:
    """Most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def table(phases: Sequence[Phase], peaks: dict[int, float]) -> str:
    """Markdown: CPU seconds of each phase and size, its bytes at the largest, its growth."""
    sizes = sorted(peaks)
    lines = [
        f"| CPU s | {' | '.join(f'{size:,}' for size in sizes)} | MiB at {sizes[-1]:,} | growth |",
        "|---" * (len(sizes) + 3) + "|",
    ]
    for name in dict.fromkeys(phase.name for phase in phases):
        of_size = {phase.rollouts: phase for phase in phases if phase.name == name}
        cells = [f"{of_size[size].cpu:.3g}" if size in of_size else "" for size in sizes]
        largest = of_size.get(sizes[-1])
        made = f"{largest.size / MIB:.1f}" if largest and largest.size else ""
        exponent = f"{growth(list(of_size.values())):.2f}" if len(of_size) > 1 else ""
        lines.append(f"| {name} | {' | '.join(cells)} | {made} | {exponent} |")
    lines.append(f"| peak memory, GiB | {' | '.join(f'{peaks[size]:.1f}' for size in sizes)} | | |")
    return "\n".join(lines)


def run(counts: Sequence[int], *, group: int, steps: int, windowed_most: int) -> list[Phase]:
    """Measure an update of each number of rollouts, the smallest first, and print the table."""
    played = play(max(counts), group, steps)
    lengths = [len(rollout.actions) for some in played for rollout in some]
    print(
        f"household rollouts, groups of {group}, at most {steps} steps, {np.mean(lengths):.1f} on average",
        flush=True,
    )
    phases, peaks = [], {}
    for count in sorted(counts):
        phases += measure(played[: count // group], steps=steps, windowed_most=windowed_most)
        peaks[count] = peak_gib()
        spent = ", ".join(f"{phase.name} {phase.cpu:.3f}" for phase in phases if phase.rollouts == count)
        print(f"{count} rollouts, CPU s: {spent}", flush=True)
    print(table(phases, peaks), flush=True)
    return phases
