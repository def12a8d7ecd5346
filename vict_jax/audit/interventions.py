"""Fixed-continuation interventions: an action becomes a no-op, the rest is replayed, scores are compared.

Each action with a positive correction is taken out in a replay of its own, each with a negative one, and
as many uncredited actions of the same rollouts as there are positive ones. A rollout counts only if its
unchanged replay ends with the logged score, so environments must be deterministic. Steps that the
environment never saw are left out of a replay as they were in the rollout.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from envs.base import Task
from envs.play import PoolEnv, play_actions
from envs.pool import EnvPool
from vict_jax.audit.source import Setting
from vict_jax.audit.text import share, table

# Of an action of a replay; an environment that takes longer loses the rollout.
_TIMEOUT_S = 20.0
_REPLAY = "replay"


@dataclasses.dataclass(frozen=True)
class Play:
    """One rollout as it can be played again.

    Attributes:
      name: for messages and the seed of the choices.
      actions: T texts. taken: bool[T], the environment saw the action.
      score: as logged. correction: f32[T].
    """

    name: str
    task: Task
    actions: tuple[str, ...]
    taken: np.ndarray
    score: float
    correction: np.ndarray


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Actions taken out, and after how many of them the score was lower, or higher, than the logged one."""

    actions: int = 0
    dropped: int = 0
    raised: int = 0

    def __add__(self, other: Outcome) -> Outcome:
        return Outcome(self.actions + other.actions, self.dropped + other.dropped, self.raised + other.raised)


_KINDS = ("positive", "uncredited", "negative")


@dataclasses.dataclass(frozen=True)
class InterventionReport:
    """Attributes: rollouts replayed; skipped, those whose unchanged replay failed or scored otherwise;
    outcomes by the kind of action taken out: `positive`, `uncredited`, `negative`."""

    rollouts: int
    skipped: int
    outcomes: Mapping[str, Outcome]

    def to_json(self) -> dict[str, Any]:
        """As plain JSON types."""
        return dataclasses.asdict(self)

    def text(self) -> str:
        """As a table."""
        rows = [
            [
                name,
                str(outcome.actions),
                *(
                    share(count / outcome.actions if outcome.actions else None)
                    for count in (outcome.dropped, outcome.raised)
                ),
            ]
            for name, outcome in self.outcomes.items()
        ]
        head = f"{self.rollouts} rollouts replayed, {self.skipped} skipped (their unchanged replay differs)"
        return f"{head}\n{table(['correction', 'actions', 'score drops', 'score rises'], rows, align='lrrr')}"


def intervene(
    setting: Setting,
    plays: Sequence[Play],
    *,
    seed: int = 0,
    progress: Callable[[], object] = lambda: None,
) -> InterventionReport:
    """Replay rollouts with single actions replaced by `Domain.no_op`.

    Args:
      plays: the rollouts; those without any correction only test determinism.
      seed: of the choice of uncredited actions. progress: called after each rollout.
    """
    outcomes = {kind: Outcome() for kind in _KINDS}
    skipped = 0
    with EnvPool(setting.domain, setting.env_options, workers=1, timeout_s=_TIMEOUT_S) as pool:
        env = PoolEnv(pool, 0)
        for play in plays:
            logged = np.float32(play.score)
            if _replayed(env, play, play.actions) != logged:
                skipped += 1
            else:
                for kind, t in _chosen(play, random.Random(f"{seed}/{play.name}")):
                    actions = [*play.actions[:t], setting.domain.no_op, *play.actions[t + 1 :]]
                    outcomes[kind] += _outcome(logged, _replayed(env, play, actions))
            progress()
    return InterventionReport(rollouts=len(plays), skipped=skipped, outcomes=outcomes)


def _replayed(env: PoolEnv, play: Play, actions: Sequence[str]) -> np.float32 | None:
    """Score of a replay as the log rounds it, None if the environment failed."""
    seen = [action for action, taken in zip(actions, play.taken, strict=True) if taken]
    record = play_actions(env, play.task, _REPLAY, play.name, seen).record
    return None if record is None else np.float32(record.score)


def _outcome(before: np.float32, after: np.float32 | None) -> Outcome:
    if after is None:
        return Outcome()
    return Outcome(actions=1, dropped=int(after < before), raised=int(after > before))


def _chosen(play: Play, rng: random.Random) -> Iterator[tuple[str, int]]:
    """(kind, step) of every intervention on one rollout."""
    steps = range(len(play.actions))
    positive = [t for t in steps if play.correction[t] > 0]
    yield from (("positive", t) for t in positive)
    yield from (("negative", t) for t in steps if play.correction[t] < 0)
    uncredited = [t for t in steps if play.correction[t] == 0 and play.taken[t]]
    chosen = rng.sample(uncredited, min(len(positive), len(uncredited)))
    yield from (("uncredited", t) for t in sorted(chosen))
