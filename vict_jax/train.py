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
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import tqdm
from flax import nnx

from envs.verdict import Verdict
from vict_jax import fission, gate, observations, processes, proofs, rubric, summary
from vict_jax.ahead import pieces_a_turn, play_ahead, with_ahead
from vict_jax.bars import bar, progress_updates
from vict_jax.batching import (
    credit_inputs,
    some_params,
    to_device,
    to_host,
)
from vict_jax.config import RunConfig, to_plain
from vict_jax.credit.assign import InvariantError, assign_credit
from vict_jax.credit.methods import needs
from vict_jax.evaluate import evaluate
from vict_jax.header import header
from vict_jax.job import (
    DATA,
    Job,
    Policy,
    fold,
    open_job,
    reference_policy,
)
from vict_jax.learner.microbatch import LearnerState
from vict_jax.learner.optimizer import Optimizer, make_optimizer
from vict_jax.learner.update import PpoLearner, compile_ppo, ppo_update
from vict_jax.learner.value import Values
from vict_jax.metrics import (
    MetricsWriter,
    RunDir,
    Unwritten,
    read_metrics,
    write_json,
)
from vict_jax.report.build import write_report
from vict_jax.resampling import Sampled, roll_out
from vict_jax.rollout.collector import Collected
from vict_jax.run_state import (
    RunState,
    StateSaver,
    copy,
    first_state,
    optimizer_steps,
    replaced,
    restore,
    restore_reference,
    save_reference,
)
from vict_jax.scoring import Scored, score_rollouts
from vict_jax.sharding import replicated
from vict_jax.shares import Share, share_of, whole
from vict_jax.start import NOTHING, StartOptions, traced
from vict_jax.textfile import TextFile
from vict_jax.types import CreditInputs, CreditOutput
from vict_jax.warming import known_validation, warm_start
from vict_jax.watch import Watch
from vict_jax.work import Pieces, Work


def train(config: RunConfig, workdir: pathlib.Path, start: StartOptions = NOTHING) -> dict[str, Any]:
    """Run or continue a run, and return the content of `summary.json`.

    In a run of several processes all call it, and the first one alone writes and prints.

    Raises:
      RunError: the run directory, the data or the disk do not allow it; the message says what to do.
      ValueError: an option is out of range.
      InvariantError, NonFiniteError: a bug or a diverged run; nothing of the update is kept.
      Stopped: after SIGTERM; what is finished is saved.
    """
    began = time.perf_counter()
    with (
        run_dir(config, workdir, start),
        Watch(workdir, config.watch) as watch,
        open_job(config, workdir, start.allow_changed) as job,
    ):
        optimizer = make_optimizer(config.optimizer, total_steps=optimizer_steps(config))
        restored = restore(job, optimizer, workdir)
        with (
            open_metrics(workdir, restored, start) as metrics,
            StateSaver(workdir, metrics, config.train.keep_checkpoints, restored) as saver,
            watch.saving(),
        ):
            with watch.phase("conformance"):
                verdict = check(job, metrics, workdir, resumed=restored is not None)
            if restored is None:
                params = warm_start(job, metrics, watch)
                validate(job, metrics, watch, params, update=0, known=known_validation(job))
                here = first_state(job, params, optimizer, metrics.rows)
                save_reference(workdir, here.learner.params)
                saver.save(here)
            else:
                here = restored
                if processes.is_first():
                    proofs.drop_after(workdir, here.update)
                    print(f"continuing after update {here.update}", flush=True)
            watch.at(here.update)
            watch.hold(functools.partial(saver.finish, here))
            learner = compile_learner(job, here, optimizer)
            reference = starting_policy(job, restored, here.learner, workdir)
            # From here on nothing may cross between host and device unless it says so.
            with jax.transfer_guard("disallow"):
                if restored and validation_is_missing(config, workdir, here.update):
                    validate(job, metrics, watch, here.learner.params, update=here.update)
                updates = progress_updates(here.update, config.train.updates)
                for update in traced(updates, start.profile, workdir):
                    watch.at(update)
                    here, verdict, row = run_update(
                        job, learner, here, reference, update, workdir, verdict, metrics, watch
                    )
                    metrics.write("train", update, {**row, "seconds/checkpoint": saver.take_seconds()})
                    here = dataclasses.replace(here, rows=metrics.rows)
                    watch.hold(functools.partial(saver.finish, here))
                    if is_due(config, update, config.train.eval_every):
                        validate(job, metrics, watch, here.learner.params, update=update)
                    if is_due(config, update, config.train.checkpoint_every):
                        with watch.phase("checkpoint"):
                            saver.save(dataclasses.replace(here, rows=metrics.rows))
    seconds = time.perf_counter() - began
    return processes.from_first(lambda: conclude(workdir, config, seconds=seconds))


def compile_learner(job: Job, here: RunState, optimizer: Optimizer) -> PpoLearner:
    """The compiled update of the run."""
    return compile_ppo(
        job.graphdef,
        here.learner.params,
        optimizer,
        options=job.config.ppo,
        temperature=job.config.rollout.temperature,
        mesh=job.mesh,
        frozen=job.frozen,
    )


def run_dir(
    config: RunConfig, workdir: pathlib.Path, start: StartOptions
) -> contextlib.AbstractContextManager[object]:
    """The run directory, which the first process claims; the others wait for it."""
    plain = to_plain(config)
    start.check(plain, DATA)
    held = processes.on_first(lambda: RunDir.open(workdir, plain, start.allow_changed))
    return contextlib.nullcontext() if held is None else held


def open_metrics(workdir: pathlib.Path, restored: RunState | None, start: StartOptions) -> MetricsWriter:
    """The metrics up to the restored state, which the first process alone writes."""
    update, rows = (None, 0) if restored is None else (restored.update, restored.rows)

    def make() -> MetricsWriter:
        gauges = TextFile(workdir / "metrics.prom") if start.prometheus else None
        return MetricsWriter(workdir, update, expected=rows, gauges=gauges)

    first = processes.on_first(make)
    return Unwritten() if first is None else first


def check(job: Job, metrics: MetricsWriter, workdir: pathlib.Path, *, resumed: bool) -> Verdict:
    """The verdict that the updates begin with, by the first process for all; what runs is printed."""

    def find() -> Verdict:
        verdict = gate.resumed(job, workdir) if resumed else gate.before_training(job, metrics)
        print(header(job, verdict), flush=True)
        return verdict

    return processes.from_first(find)


def is_due(config: RunConfig, update: int, every: int) -> bool:
    """Whether something that is done every so many updates, and after the last, is done after this one."""
    return update == config.train.updates or update % every == 0


def validation_is_missing(config: RunConfig, workdir: pathlib.Path, update: int) -> bool:
    """Whether the run was stopped in the validation after this update, whose state was saved then."""
    told = any(row["kind"] == "eval" and row["update"] == update for row in read_metrics(workdir))
    return is_due(config, update, config.train.eval_every) and not told


def starting_policy(job: Job, resumed: object, state: LearnerState, workdir: pathlib.Path) -> Policy | None:
    """The policy before the first update, the reference of the KL term; None without such a term.

    Args:
      resumed: None at the start of a run, whose `state` has this policy.
    """
    if job.config.ppo.kl_coefficient == 0:
        return None
    start = copy(state.params) if resumed is None else restore_reference(job, workdir)
    return reference_policy(job, start)


def run_update(
    job: Job,
    learner: PpoLearner,
    here: RunState,
    reference: Policy | None,
    update: int,
    workdir: pathlib.Path,
    verdict: Verdict,
    metrics: MetricsWriter,
    watch: Watch,
) -> tuple[RunState, Verdict, dict[str, Any]]:
    """One update: rollouts, recoveries, conformance, credit, proofs, PPO.

    Returns:
      The new state, the verdict after this update's recheck, and the row for the metrics.

    Raises:
      RunError: a strict run does not conform, or the disk is full.
      InvariantError: a correction has no proof.
    """
    began = time.perf_counter()
    seconds: dict[str, float] = {}
    shown, move = bar(f"rollouts of update {update}")
    key = fold(job.keys.rollout, update)
    with watch.phase("rollouts"), shown:
        sampled = here.ahead or roll_out(job, here.sampled_with, update, key, watch.moving(move))
    with watch.phase("recover", seconds), shown:
        recovered = fission.recover(
            job, here.learner.params, update, key, sampled.played, here.corrections, watch.moving(move)
        )
    played = recovered.played
    seconds |= {f"seconds/{phase}": value for phase, value in played.seconds.items()}
    with watch.phase("wait", seconds):  # for the processes that are still playing
        share = share_of(recovered.numbers)
    with watch.phase("gate", seconds):
        if gate.due(job.config.conformance, update):
            verdict = gate.recheck(job, metrics, verdict, played.groups, update, share)
    with watch.phase("score", seconds):
        scored = score_rollouts(job, learner, here.learner.params, reference, played, share)
        jax.block_until_ready(scored.ref_logp)  # else the wait for it would count as time of credit
    with watch.phase("credit", seconds):
        inputs, output = credit(job, played, scored, update, verdict, share)
    with watch.phase("log", seconds):
        logged = proofs.write_update(
            workdir,
            update,
            played.groups,
            inputs,
            output,
            masked_families=verdict.masked_families,
            share=share,
        )
    with watch.phase("update", seconds):
        watch.release()  # the state is given up: `learner` is donated, `behind` makes room for the next
        behind = replaced(here.behind, here.learner.params) if job.config.train.staleness else None
        work = learn(job, learner, here.learner, scored, output, update)
        pieces = Pieces(work, each=pieces_a_turn(job, scored.report.rows))
        ahead = None
        if behind is not None and update < job.config.train.updates:
            ahead = play_ahead(job, behind, update + 1, pieces, watch)
        state, losses = pieces.result()
    seconds = with_ahead(seconds, ahead)
    seconds["credit_share"] = seconds["seconds/credit"] / sum(seconds.values())
    row = {
        **rollout_figures(sampled),
        **recovered.figures,
        **scored.figures,
        "nonconforming_groups": int((~inputs.conforming).sum()),
        **{name: float(value) for name, value in output.diagnostics.items()},
        **losses,
        **seconds,
        **waits(seconds, time.perf_counter() - began),
        "proofs": logged,
    }
    sampled_ahead = None if ahead is None else ahead.sampled
    new = RunState(update, state, recovered.corrections, here.rows, behind, sampled_ahead)
    return new, verdict, row


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
) -> Work[tuple[LearnerState, dict[str, float]]]:
    """PPO on the update's tokens, in pieces of a micro-batch."""
    values = None
    if output.value_target is not None:
        values = Values(old=scored.inputs["value"], target=output.value_target)
        values = to_device(values, replicated(job.mesh))
    state, losses = yield from ppo_update(
        learner,
        state,
        scored.ref_logp,
        scored.batch,
        to_device(output.advantages, replicated(job.mesh)),
        fold(job.keys.minibatch, update),
        update=update,
        values=values,
        importance=scored.importance,
    )
    report = scored.report
    return state, {
        **losses,
        "token_rows": float(report.rows),
        "row_fill": report.tokens / (report.rows * scored.batch.ids.shape[1]),
    }


def waits(seconds: Mapping[str, float], total: float) -> dict[str, float]:
    """Shares of an update's `total` seconds for which the device had no program and environments no call."""
    computing = ("sample", "score", "credit", "update")
    busy = {"device": computing, "envs": ("env", "gate")}
    return {
        f"waits/{who}": 1 - sum(seconds[f"seconds/{phase}"] for phase in phases) / total
        for who, phases in busy.items()
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


def validate(
    job: Job,
    metrics: MetricsWriter,
    watch: Watch,
    params: nnx.State,
    *,
    update: int,
    known: dict[str, Any] | None = None,
) -> None:
    """Evaluate on the validation tasks, unless the result is `known`, and write the row."""
    row = known
    if row is None:
        shown, move = bar(f"validation after update {update}")
        with watch.phase("validation"), shown:
            row = evaluate(job, params, progress=watch.moving(move))
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
