"""The start of a run: supervised on expert episodes, before its first update."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import numpy as np
from flax import nnx

from vict_jax import processes
from vict_jax.bars import bar
from vict_jax.batching import TokenSequence, whole_to_device
from vict_jax.job import Job, new_params
from vict_jax.learner.microbatch import init_state
from vict_jax.learner.optimizer import OptimizerOptions, make_optimizer
from vict_jax.learner.warm_start import compile_supervised, train_epoch
from vict_jax.metrics import MetricsWriter, read_config, read_metrics
from vict_jax.packing import pack_sequences
from vict_jax.rollout.collector import demonstrations
from vict_jax.run_state import restore_reference
from vict_jax.sharding import batch_sharding
from vict_jax.watch import Watch


def warm_start(job: Job, metrics: MetricsWriter, watch: Watch) -> nnx.State:
    """Supervised start on expert episodes, or that of the run that `warm_start.run` names.

    Deterministic, so it is simply run again after a kill.
    """
    options, rollout = job.config.warm_start, job.config.rollout
    if options.run:
        return restore_reference(job, pathlib.Path(options.run))
    params = new_params(job)
    if not options.active:
        return params
    if options.tasks > len(job.train_tasks):
        raise ValueError(
            f"warm_start.tasks={options.tasks} is above the {len(job.train_tasks)} tasks of split "
            f"{job.config.train.split!r}"
        )
    sequences = [(0, sequence) for sequence in expert_sequences(job, watch)]
    if options.tokens == "everything":
        sequences = [(0, train_everything(sequence)) for _, sequence in sequences]
    rows, report = pack_sequences(sequences, row_length=rollout.max_context, row_multiple=options.micro_rows)
    steps = options.epochs * -(-report.rows // options.rows_per_batch)
    optimizer = make_optimizer(
        OptimizerOptions(
            learning_rate=options.learning_rate,
            warmup_steps=options.warmup_steps,
            weight_decay=options.weight_decay,
            schedule="cosine",
        ),
        total_steps=max(steps, options.warmup_steps + 1),
    )
    learner = compile_supervised(
        job.graphdef,
        params,
        optimizer,
        micro_rows=options.micro_rows,
        mesh=job.mesh,
        frozen=job.frozen,
    )
    state, batch = init_state(params, optimizer), whole_to_device(rows, batch_sharding(job.mesh))
    for epoch in range(options.epochs):
        shown, move = bar(f"warm start, epoch {epoch + 1} of {options.epochs}", "step")
        with watch.phase("warm start"), shown:
            state, row = train_epoch(
                learner,
                state,
                batch,
                rows_per_batch=options.rows_per_batch,
                seed=job.config.seed,
                epoch=epoch,
                progress=watch.moving(move),
            )
        metrics.write("warm_start", 0, {"epoch": epoch, **row})
    return state.params


# All that the validation of a policy that is given depends on.
_OF_VALIDATION = ("seed", "env", "model", "rollout", "eval")


def known_validation(job: Job) -> dict[str, Any] | None:
    """The validation of the policy of `warm_start.run` as that run has it, if it validates as this one does.

    Playing it again would give the same row.
    """
    if not job.config.warm_start.run:
        return None

    def find() -> dict[str, Any] | None:
        run = pathlib.Path(job.config.warm_start.run)
        theirs = read_config(run, flag="--config.warm_start.run=")
        if any(getattr(theirs, name) != getattr(job.config, name) for name in _OF_VALIDATION):
            return None
        rows = (row for row in read_metrics(run) if (row["kind"], row["update"]) == ("eval", 0))
        row = next(rows, None)
        return row and {name: value for name, value in row.items() if name not in ("kind", "update")}

    return processes.from_first(find)


def expert_sequences(job: Job, watch: Watch) -> list[TokenSequence]:
    """Model sequences of the expert on the tasks of the warm start; each process plays its share of them."""
    own = processes.share(job.config.warm_start.tasks)
    shown, move = bar("expert episodes")
    with watch.phase("expert episodes"), shown:
        episodes = demonstrations(
            job.pool,
            job.codec,
            job.train_tasks[own.start : own.stop],
            options=job.config.rollout,
            max_steps=job.max_steps,
            examples=job.examples,
            progress=watch.moving(move),
        )
    sequences = [sequence for episode in episodes if not episode.lost for sequence in episode.sequences]
    return [sequence for some in processes.gather(sequences) for sequence in some]


def train_everything(sequence: TokenSequence) -> TokenSequence:
    """The sequence with every token trained but the first, which nothing predicts."""
    return dataclasses.replace(sequence, trained=np.arange(len(sequence.ids)) > 0)
