"""The training program: warm start, then rollouts, credit, update, again and again, and a summary.

One update: a group of rollouts for each of a few tasks -> padded arrays -> credit kernels -> token rows
-> PPO. Everything is a function of the config and the update's number, so a run that is killed and
started again continues as if nothing had happened.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import pathlib
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import tqdm
from flax import nnx

from envs.verdict import Verdict
from vict_jax import fission, gate, observations, processes, proofs, rubric, summary
from vict_jax.batching import (
    TokenSequence,
    credit_inputs,
    some_params,
    to_device,
    to_host,
    whole_to_device,
)
from vict_jax.config import RunConfig, to_plain
from vict_jax.corrections import CorrectionBuffer
from vict_jax.credit.assign import InvariantError, assign_credit
from vict_jax.credit.methods import needs
from vict_jax.evaluate import evaluate
from vict_jax.header import header
from vict_jax.job import (
    Job,
    Policy,
    new_params,
    open_job,
    reference_policy,
    with_value_head,
)
from vict_jax.learner.microbatch import LearnerState, init_state
from vict_jax.learner.optimizer import OptimizerOptions, make_optimizer
from vict_jax.learner.update import PpoLearner, compile_ppo, ppo_update
from vict_jax.learner.value import Values
from vict_jax.learner.warm_start import compile_supervised, train_epoch
from vict_jax.metrics import (
    MetricsWriter,
    RunDir,
    Unwritten,
    read_metrics,
    write_json,
)
from vict_jax.packing import pack_sequences
from vict_jax.report.build import write_report
from vict_jax.resampling import Sampled, roll_out
from vict_jax.rollout.collector import Collected, Progress, demonstrations
from vict_jax.run_state import copy, optimizer_steps, restore, restore_reference, save, save_reference
from vict_jax.scoring import Scored, score_rollouts
from vict_jax.sharding import batch_sharding, replicated
from vict_jax.shares import Share, share_of, whole
from vict_jax.types import CreditInputs, CreditOutput


def train(config: RunConfig, workdir: pathlib.Path) -> dict[str, Any]:
    """Run or continue a run, and return the content of `summary.json`.

    In a run of several processes all call it, and the first one alone writes and prints.

    Raises:
      RunError: the run directory, the data or the disk do not allow it; the message says what to do.
      ValueError: an option is out of range.
      InvariantError, NonFiniteError: a bug or a diverged run; nothing of the update is kept.
    """
    began = time.perf_counter()
    with run_dir(config, workdir), open_job(config, workdir) as job:
        optimizer = make_optimizer(config.optimizer, total_steps=optimizer_steps(config))
        restored = restore(job, optimizer, workdir)
        done = restored[0] if restored else None
        with MetricsWriter(workdir, done) if processes.is_first() else Unwritten() as metrics:
            verdict = check(job, metrics, workdir, resumed=restored is not None)
            if restored is None:
                params = warm_start(job, metrics)
                validate(job, metrics, params, update=0)
                state = init_state(with_value_head(job, params), optimizer)
                save_reference(workdir, state.params)
                metrics.sync()
                corrections = CorrectionBuffer()
                save(workdir, 0, state, corrections, keep=config.train.keep_checkpoints)
                done = 0
            else:
                done, state, corrections = restored
                if processes.is_first():
                    proofs.drop_after(workdir, done)
                    print(f"continuing after update {done}", flush=True)
            learner = compile_ppo(
                job.graphdef,
                state.params,
                optimizer,
                options=config.ppo,
                temperature=config.rollout.temperature,
                mesh=job.mesh,
                frozen=job.frozen,
            )
            reference = starting_policy(job, restored, state, workdir)
            # From here on nothing may cross between host and device unless it says so.
            with jax.transfer_guard("disallow"):
                for update in progress_updates(done, config.train.updates):
                    state, verdict, corrections, row = run_update(
                        job, learner, state, reference, update, workdir, verdict, metrics, corrections
                    )
                    metrics.write("train", update, row)
                    last = update == config.train.updates
                    if last or update % config.train.eval_every == 0:
                        validate(job, metrics, state.params, update=update)
                    if last or update % config.train.checkpoint_every == 0:
                        metrics.sync()
                        save(workdir, update, state, corrections, keep=config.train.keep_checkpoints)
    seconds = time.perf_counter() - began
    return processes.from_first(lambda: conclude(workdir, config, seconds=seconds))


def run_dir(config: RunConfig, workdir: pathlib.Path) -> contextlib.AbstractContextManager[object]:
    """The run directory, which the first process claims; the others wait for it."""
    held = processes.on_first(lambda: RunDir.open(workdir, to_plain(config)))
    return contextlib.nullcontext() if held is None else held


def check(job: Job, metrics: MetricsWriter, workdir: pathlib.Path, *, resumed: bool) -> Verdict:
    """The verdict that the updates begin with, by the first process for all; what runs is printed."""

    def find() -> Verdict:
        verdict = gate.resumed(job, workdir) if resumed else gate.before_training(job, metrics)
        print(header(job, verdict), flush=True)
        return verdict

    return processes.from_first(find)


def starting_policy(job: Job, resumed: object, state: LearnerState, workdir: pathlib.Path) -> Policy | None:
    """The policy before the first update, the reference of the KL term; None without such a term.

    Args:
      resumed: None at the start of a run, whose `state` has this policy.
    """
    if job.config.ppo.kl_coefficient == 0:
        return None
    start = copy(state.params) if resumed is None else restore_reference(job, workdir)
    return reference_policy(job, start)


def progress_updates(done: int, total: int) -> Iterator[int]:
    """Numbers of the updates still to do, under a progress bar with the time left."""
    yield from tqdm.trange(
        done + 1,
        total + 1,
        initial=done,
        total=total,
        desc="updates",
        unit="update",
        disable=not processes.is_first(),
    )


def bar(description: str, unit: str = "rollout") -> tuple[tqdm.tqdm, Progress]:
    """A progress bar and the callback that moves it."""
    shown = tqdm.tqdm(desc=description, leave=False, unit=unit, disable=not processes.is_first())

    def move(over: int, total: int) -> None:
        shown.total = total
        shown.update(over - shown.n)

    return shown, move


def warm_start(job: Job, metrics: MetricsWriter) -> nnx.State:
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
    sequences = [(0, sequence) for sequence in expert_sequences(job)]
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
        with shown:
            state, row = train_epoch(
                learner,
                state,
                batch,
                rows_per_batch=options.rows_per_batch,
                seed=job.config.seed,
                epoch=epoch,
                progress=move,
            )
        metrics.write("warm_start", 0, {"epoch": epoch, **row})
    return state.params


def expert_sequences(job: Job) -> list[TokenSequence]:
    """Model sequences of the expert on the tasks of the warm start; each process plays its share of them."""
    own = processes.share(job.config.warm_start.tasks)
    shown, move = bar("expert episodes")
    with shown:
        episodes = demonstrations(
            job.pool,
            job.codec,
            job.train_tasks[own.start : own.stop],
            options=job.config.rollout,
            max_steps=job.max_steps,
            examples=job.examples,
            progress=move,
        )
    sequences = [sequence for episode in episodes if not episode.lost for sequence in episode.sequences]
    return [sequence for some in processes.gather(sequences) for sequence in some]


def train_everything(sequence: TokenSequence) -> TokenSequence:
    """The sequence with every token trained but the first, which nothing predicts."""
    return dataclasses.replace(sequence, trained=np.arange(len(sequence.ids)) > 0)


def run_update(
    job: Job,
    learner: PpoLearner,
    state: LearnerState,
    reference: Policy | None,
    update: int,
    workdir: pathlib.Path,
    verdict: Verdict,
    metrics: MetricsWriter,
    corrections: CorrectionBuffer,
) -> tuple[LearnerState, Verdict, CorrectionBuffer, dict[str, Any]]:
    """One update: rollouts, recoveries, conformance, credit, proofs, PPO.

    Returns:
      The new state, the verdict after this update's recheck, the errors that wait, and the row for the
      metrics.

    Raises:
      RunError: a strict run does not conform, or the disk is full.
      InvariantError: a correction has no proof.
    """
    seconds: dict[str, float] = {}
    shown, move = bar(f"rollouts of update {update}")
    key = fold(job.keys.rollout, update, job)
    with shown:
        sampled = roll_out(job, state.params, update, key, move)
        with stopwatch(seconds, "recover"):
            recovered = fission.recover(job, state.params, update, key, sampled.played, corrections, move)
    played = recovered.played
    seconds |= {f"seconds/{phase}": value for phase, value in played.seconds.items()}
    with stopwatch(seconds, "wait"):  # for the processes that are still playing
        share = share_of(recovered.numbers)
    with stopwatch(seconds, "gate"):
        if gate.due(job.config.conformance, update):
            verdict = gate.recheck(job, metrics, verdict, played.groups, update, share)
    with stopwatch(seconds, "score"):
        scored = score_rollouts(job, learner, state.params, reference, played, share)
        jax.block_until_ready(scored.ref_logp)  # else the wait for it would count as time of credit
    with stopwatch(seconds, "credit"):
        inputs, output = credit(job, played, scored, update, verdict, share)
    with stopwatch(seconds, "log"):
        logged = proofs.write_update(
            workdir,
            update,
            played.groups,
            inputs,
            output,
            masked_families=verdict.masked_families,
            share=share,
        )
    with stopwatch(seconds, "update"):
        state, losses = learn(job, learner, state, scored, output, update)
    seconds["credit_share"] = seconds["seconds/credit"] / sum(seconds.values())
    row = {
        **rollout_figures(sampled),
        **recovered.figures,
        **scored.figures,
        "nonconforming_groups": int((~inputs.conforming).sum()),
        **{name: float(value) for name, value in output.diagnostics.items()},
        **losses,
        **seconds,
        "proofs": logged,
    }
    return state, verdict, recovered.corrections, row


@contextlib.contextmanager
def stopwatch(seconds: dict[str, float], name: str) -> Iterator[None]:
    """Write the seconds spent inside to `seconds["seconds/<name>"]`."""
    began = time.perf_counter()
    yield
    seconds[f"seconds/{name}"] = time.perf_counter() - began


def credit(
    job: Job, played: Collected, scored: Scored, update: int, verdict: Verdict, share: Share
) -> tuple[CreditInputs, CreditOutput]:
    """Credit of the update's rollouts, on the host; none where the verdict or their own scores forbid it.

    Called by all processes with their own groups; what it returns is of all groups, everywhere.

    Raises:
      InvariantError: a correction has no proof.
    """
    inputs = whole(own_inputs(job, played, verdict), share)
    inputs = dataclasses.replace(inputs, **scored.inputs)
    output, violations = to_host(
        assign_credit(
            to_device(inputs, replicated(job.mesh)),
            method=job.config.credit.method,
            aggregate=job.domain.aggregate,
            options=job.config.credit.options,
        )
    )
    if violations:
        raise InvariantError(
            f"update {update}: {violations} corrections of {job.config.credit.method!r} are not what it "
            f"claims (Eq. 8 for VICT: no correction without proof). This is a bug; please report it with "
            f"{job.domain.name!r} and the run's config.json."
        )
    return inputs, output


def own_inputs(job: Job, played: Collected, verdict: Verdict) -> CreditInputs:
    """What credit needs to know of this process's groups, but for what models have to say about them."""
    groups, chosen = played.groups, job.config.credit
    example = next((some for some in processes.gather(some_params(groups)) if some is not None), None)
    inputs = credit_inputs(
        groups,
        domain=job.domain,
        max_steps=job.max_steps,
        group_size=job.config.train.rollouts,
        conforming=gate.conforming_groups(job.domain, verdict, groups),
        masked_families=verdict.masked_families,
        example=example,
    )
    needed = needs([chosen.method], chosen.options)
    texts = observations.texts_of(groups)
    inputs = observations.add_needed(inputs, texts, needs=needed, options=chosen.options)
    return rubric.add_needed(inputs, rubric.played_of(groups), needs=needed, domain=job.domain)


def learn(
    job: Job, learner: PpoLearner, state: LearnerState, scored: Scored, output: CreditOutput, update: int
) -> tuple[LearnerState, dict[str, float]]:
    """PPO on the update's tokens."""
    values = None
    if output.value_target is not None:
        values = Values(old=scored.inputs["value"], target=output.value_target)
        values = to_device(values, replicated(job.mesh))
    state, losses = ppo_update(
        learner,
        state,
        scored.ref_logp,
        scored.batch,
        to_device(output.advantages, replicated(job.mesh)),
        fold(job.keys.minibatch, update, job),
        update=update,
        values=values,
    )
    report = scored.report
    return state, {
        **losses,
        "token_rows": float(report.rows),
        "row_fill": report.tokens / (report.rows * scored.batch.ids.shape[1]),
    }


def rollout_figures(sampled: Sampled) -> dict[str, Any]:
    """Success, length and everything countable of an update's rollouts, those of dropped groups included."""
    own = [
        [
            (rollout.end.value == "success", rollout.score, len(rollout.actions))
            for group in groups
            for rollout in group
        ]
        for groups in (sampled.played.groups, sampled.dropped)
    ]
    counts = processes.gather(dataclasses.asdict(sampled.played.counts) | sampled.counts)
    played, dropped = zip(*processes.gather(own), strict=True)
    solved, scores, steps = zip(*itertools.chain(*played, *dropped), strict=True)
    return {
        "success": float(np.mean(solved)),
        "score": float(np.mean(scores)),
        "steps_mean": float(np.mean(steps)),
        **{f"count/{name}": sum(one[name] for one in counts) for name in counts[0]},
    }


@functools.partial(jax.jit, out_shardings=None)
def _fold(key: jax.Array, number: jax.Array) -> jax.Array:
    return jax.random.fold_in(key, number)


def fold(key: jax.Array, number: int, job: Job) -> jax.Array:
    """`fold_in(key, number)` with an explicit transfer of the number."""
    return _fold(key, to_device(np.uint32(number), key.sharding))


def validate(job: Job, metrics: MetricsWriter, params: nnx.State, *, update: int) -> None:
    """Evaluate on the validation tasks and write the row."""
    shown, move = bar(f"validation after update {update}")
    with shown:
        row = evaluate(job, params, progress=move)
    metrics.write("eval", update, row)
    share = f"{100 * row['success']:.1f} % of {row['tasks']}"
    score = f", mean score {row['score']:.3f}" if summary.is_graded(row) else ""
    if processes.is_first():
        tqdm.tqdm.write(f"update {update:4}: {share} {job.config.eval.split} tasks solved{score}")


def conclude(workdir: pathlib.Path, config: RunConfig, *, seconds: float) -> dict[str, Any]:
    """Write `summary.json` and the report, print the table, and return the summary."""
    rows = [row for row in read_metrics(workdir) if row["kind"] == "eval"]
    before, after = rows[0], rows[-1]
    content = summary.result(
        before, after, method=config.credit.method, updates=config.train.updates, seconds=round(seconds, 1)
    )
    write_json(workdir / "summary.json", content)
    columns = {"warm start": before, f"after update {after['update']}": after}
    print(f"\n{summary.evaluation_table(config.eval.split, columns)}")
    scores = f"mean score {before['score']:.3f} -> {after['score']:.3f}"
    print(
        f"gain {content['gain_points']:+.1f} points, {scores}, with {config.credit.method} "
        f"in {seconds / 60:.1f} minutes"
    )
    report = write_report([workdir])
    print(f"written to {workdir}: metrics.jsonl, summary.json, proofs/; look at {report.name} first")
    return content
