"""What to look at first, in sentences made from the figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from vict_jax.report import phases, success, task_types
from vict_jax.report.diagnostics import cause_shares
from vict_jax.report.groups import Curve, Group, as_json, curve
from vict_jax.report.tables import chance, percent

# Updates that a statement about the direction of the training curve needs at least.
_ENOUGH = 8


def sentences(groups: Sequence[Group]) -> list[str]:
    """A few sentences on each group, and on how they compare."""
    if len(groups) == 1:
        one = groups[0]
        return [*_course(one), *_types(one), *_credit(one), *_time(one)]
    return [*_comparison(groups), *(f"{group.letter}: {' '.join(_course(group))}" for group in groups)]


def _course(group: Group) -> Iterator[str]:
    """How far it is, and how it went."""
    yield _progress(group)
    yield from _validation(group)
    yield from _direction(group)


def _progress(group: Group) -> str:
    """How far it is, and how to go on."""
    planned = [record.setting("train", "updates") for record in group.records]
    done = [record.updates for record in group.records]
    if len(set(done)) == 1 and planned[0] == done[0]:
        return f"Finished: all {done[0]} updates{_seeds(group)}."
    if planned[0] is None:
        return f"{_range(done)} updates are there; how many were planned is not known."
    return (
        f"{_range(done)} of {planned[0]} updates are there{_seeds(group)}: it is still running or was "
        "stopped. The command that started it continues it."
    )


def _seeds(group: Group) -> str:
    if len(group.records) == 1:
        return ""
    seeds = [as_json(record.config.get("seed")) for record in group.records]
    equal = "" if len(set(seeds)) == len(seeds) else " (some are equal: repeats, not independent runs)"
    return f" of {len(seeds)} runs with seeds {', '.join(seeds)}{equal}"


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"


def _validation(group: Group) -> Iterator[str]:
    """First, best and last evaluation, whether that is more than chance, and whether the best is kept."""
    found = success.best(group)
    if found is None:
        yield "No validation yet."
        return
    (start, before), (top, most), (end, after) = found.first, found.best, found.last
    if start == end:
        yield f"One validation so far, after update {end}: {percent(after)} of the tasks solved."
        return
    gain = f"{100 * (after - before):+.1f} points"
    yield (
        f"Validation success went from {percent(before)} (update {start}) to {percent(after)} (update "
        f"{end}), {gain}; {_certainty(group, start, end)}."
    )
    kept = [record for record in group.records if top in record.checkpoints]
    whose = "whose checkpoint is kept" if len(kept) == len(group.records) else "whose checkpoint is not kept"
    yield (
        f"The best evaluation is the last one, {whose}."
        if top == end
        else f"The best evaluation is {percent(most)} at update {top}, {whose}."
    )


def _certainty(group: Group, start: int, end: int) -> str:
    """Whether the difference of two evaluations is more than chance gives."""
    values = curve(group, "eval", "success")
    if len(group.records) > 1:
        gains = values.values[:, -1] - values.values[:, 0]
        mean, std = 100 * gains.mean(), 100 * gains.std(ddof=1)
        return f"over the seeds the gain has mean {mean:+.1f} and standard deviation {std:.1f}"
    rows = {row["update"]: row for row in group.records[0].of_kind("eval")}
    first, last = (chance(rows[update]["success"], rows[update]["tasks"]) for update in (start, end))
    noise = float(np.hypot(first, last))
    more = "more" if abs(rows[end]["success"] - rows[start]["success"]) > noise else "not more"
    return (
        f"that is {more} than chance explains on {rows[end]['tasks']} tasks (about {100 * noise:.1f} points)"
    )


def _direction(group: Group) -> Iterator[str]:
    """Whether success on train still rises: the last quarter of the updates against the one before it."""
    found = direction(curve(group, "train", "success"))
    if found is None:
        return
    change, noise = found
    shown = f"{100 * change:+.1f} points from the quarter before the last to the last, ± {100 * noise:.1f}"
    if change > noise:
        yield f"Success on train is still rising ({shown}): more updates may bring more."
    elif change < -noise:
        yield f"Success on train is falling ({shown})."
    else:
        yield f"Success on train is flat by now ({shown})."


def direction(values: Curve) -> tuple[float, float] | None:
    """Mean of the last quarter less that of the quarter before, and two standard errors of it.

    The standard error is that of the update-to-update spread inside the quarters. None below 8 updates.
    """
    part = len(values.updates) // 4
    if len(values.updates) < _ENOUGH:
        return None
    late, before = values.mean[-part:], values.mean[-2 * part : -part]
    error = np.sqrt((late.var(ddof=1) + before.var(ddof=1)) / part)
    return float(late.mean() - before.mean()), float(2 * error)


def _types(group: Group) -> Iterator[str]:
    """The task types at the two ends."""
    shares = task_types.last_per_type(group)
    if len(shares) < 2:
        return
    worst, top = min(shares, key=lambda kind: shares[kind]), max(shares, key=lambda kind: shares[kind])
    if shares[worst] < shares[top]:
        low, high = percent(shares[worst]), percent(shares[top])
        yield f"Weakest task type: {worst} ({low}); strongest: {top} ({high})."


def _credit(group: Group) -> Iterator[str]:
    """How much is corrected, and why not more."""
    trigger, sparsity = (curve(group, "train", name) for name in ("trigger", "sparsity"))
    method = group.records[0].setting("credit", "method")
    if not trigger or not sparsity:
        if method is not None and group.records[0].updates:
            yield f"Credit method {method} makes no corrections with proofs, so there are no figures of them."
        return
    causes = cause_shares(group)
    first = next(iter(causes), None)
    why = (
        f"; the commonest reason not to: {first} ({percent(causes[first])} of the rollouts)" if first else ""
    )
    yield (
        f"Credit method {method or 'unknown'} corrected {percent(float(trigger.values.mean()))} of the "
        f"rollouts and {percent(float(sparsity.values.mean()))} of the actions{why}."
    )


def _time(group: Group) -> Iterator[str]:
    """The phase that takes most of the time."""
    parts = list(phases.shares(group).items())
    if parts:
        second = f", then {parts[1][0]} ({percent(parts[1][1])})" if len(parts) > 1 else ""
        meaning = phases.MEANING.get(parts[0][0])
        what = f" ({meaning})" if meaning else ""
        yield f"Most of the time goes to the phase {parts[0][0]}{what}: {percent(parts[0][1])}{second}."


def _comparison(groups: Sequence[Group]) -> Iterator[str]:
    """Which group is ahead at the last evaluation that all have, and by how much more than chance."""
    curves = {group.letter: curve(group, "eval", "success") for group in groups}
    if len(groups) < 2 or not all(curves.values()):
        return
    shared = sorted(set.intersection(*(set(one.updates.tolist()) for one in curves.values())) - {0})
    if not shared:
        yield "The runs have no validation after the same update, so success cannot be compared at one."
        return
    at, end = {}, shared[-1]
    for group in groups:
        one = curves[group.letter]
        at[group.letter] = _mean_and_error(group, one, int(np.flatnonzero(one.updates == end)[0]))
    ranked = sorted(at, key=lambda letter: -at[letter][0])
    first, second = ranked[:2]
    lead, noise = at[first][0] - at[second][0], 2 * float(np.hypot(at[first][1], at[second][1]))
    single = any(len(group.records) == 1 for group in groups)
    caution = " One run says nothing about other seeds: repeat with several." if single else ""
    verdict = "more" if lead > noise else "not more"
    yield (
        f"At update {end}, the last validation that all have, {first} is first with {percent(at[first][0])}, "
        f"{100 * lead:.1f} points before {second}: {verdict} than chance explains (about {100 * noise:.1f})."
        f"{caution}"
    )


def _mean_and_error(group: Group, values: Curve, at: int) -> tuple[float, float]:
    """Mean of a group at an evaluation and its standard error: over seeds, or of the tasks for one run."""
    mean = float(values.mean[at])
    if values.std is not None:
        return mean, float(values.std[at]) / len(values.values) ** 0.5
    update = int(values.updates[at])
    tasks = next(row["tasks"] for row in group.records[0].of_kind("eval") if row["update"] == update)
    return mean, chance(mean, tasks) / 2
