"""The rubric of TRCA bound to a batch: which items fire on which transition, and the context of each step.

One binder for every environment: the items are read off what the verifier's record says anyway (evidence,
atoms, commits) and off what became of each action. What only an environment knows of a step, where in it the
agent stands and that an answer is a refusal, comes from its `Domain.notes`. Made on the host, and only for
methods that ask for it (`CreditMethod.needs`); a group's fields depend on no other group.

    Evidence    one item for each observation variable that an atom reads: it becomes available or changes
    Execution   one for each atom that reads a state variable and does not hold when the task starts: one of
                these is written, or a commit finalises the atom, and it holds now but did not before
    Invalidity  `INVALIDITY`, the same five for every task

Source: arXiv 2608.16156, whose rubrics are unpublished; the readings are on the page of credit methods
(docs/credit_methods.md).
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from envs.base import Domain, StepNote, stable_hash
from vict_jax.batching import Rollout
from vict_jax.types import CreditInputs, Kind, Status

# malformed: a reply without an action. rejected: the environment did not take the action, or answered that
# it cannot be. no_op: taken, but neither the observation nor the evidence is another one. repeated: the
# same action in the same state as at an earlier step. violated: it turned an atom VIOLATED.
INVALIDITY = ("malformed", "rejected", "no_op", "repeated", "violated")

# The fields that are made here.
FIELDS = frozenset({"rubric", "rubric_kind", "context_id"})


@dataclasses.dataclass(frozen=True)
class Played:
    """The steps of a rollout as the rubric looks at them; empty for a lost one.

    Attributes:
      observations: T texts, before each action. actions: T texts.
      taken, valid: T flags, as `Rollout` has them.
    """

    observations: Sequence[str]
    actions: Sequence[str]
    taken: Sequence[bool]
    valid: Sequence[bool]


GroupPlayed = Sequence[Played]
NOTHING_PLAYED = Played((), (), (), ())


def played_of(groups: Sequence[Sequence[Rollout]]) -> list[list[Played]]:
    """The steps of rollouts as `add_needed` takes them."""
    return [[NOTHING_PLAYED if r.lost else _played(r) for r in group] for group in groups]


def _played(rollout: Rollout) -> Played:
    steps = len(rollout.actions)
    return Played(
        rollout.observations[:steps], rollout.actions, rollout.taken.tolist(), rollout.valid.tolist()
    )


def add_needed(
    inputs: CreditInputs, played: Sequence[GroupPlayed], *, needs: Collection[str], domain: Domain
) -> CreditInputs:
    """The NumPy `inputs` with `FIELDS`, if one of them is in `needs`.

    J = V + M + 5: an item for each variable, each atom and each of `INVALIDITY`, those that the task does not
    have with `Kind.NONE`.

    Args:
      played: of the rollouts that `inputs` was made of.

    Raises:
      ValueError: they are not as many, or not as long, as `inputs` says.
    """
    if FIELDS.isdisjoint(needs):
        return inputs
    _check(inputs, played)
    notes = [[_notes(domain, one) for one in group] for group in played]
    rubric, kind = _bind(inputs)
    first = rubric.shape[-1] - len(INVALIDITY)
    made: dict[str, Any] = {"rubric": rubric, "rubric_kind": kind}
    made["context_id"] = np.zeros(inputs.commits.shape, np.int32)
    for g, group in enumerate(played):
        for n, one in enumerate(group):
            at = (g, n, slice(len(one.actions)))
            rubric[at][:, first:] |= _replies(inputs, g, n, one, notes[g][n], domain)
            made["context_id"][at] = _contexts(inputs, g, n, notes[g][n])
    return dataclasses.replace(inputs, **made)


def _check(inputs: CreditInputs, played: Sequence[GroupPlayed]) -> None:
    length = np.asarray(inputs.step_mask & inputs.rollout_mask[..., None]).sum(-1).tolist()
    found = [[len(one.actions) for one in group] for group in played]
    if found != length:
        raise ValueError(f"played has rollouts of {found} steps, but the batch has {length}")


def _notes(domain: Domain, one: Played) -> Sequence[StepNote]:
    notes = domain.notes(one.observations, one.actions, one.valid)
    if len(notes) != len(one.actions):
        raise ValueError(
            f"Domain.notes of {domain.name!r} gave {len(notes)} notes for {len(one.actions)} steps"
        )
    return notes


def _changes(inputs: CreditInputs) -> np.ndarray:
    """bool[G, N, T, V]: a real step gave the variable another value."""
    real = np.asarray(inputs.step_mask & inputs.rollout_mask[..., None])[..., None]
    return real & (inputs.evidence[:, :, 1:] != inputs.evidence[:, :, :-1])


def _bind(inputs: CreditInputs) -> tuple[np.ndarray, np.ndarray]:
    """Items that fired bool[G, N, T, J], without what is read off texts, and their kinds i8[G, J]."""
    changed, available = _changes(inputs), inputs.evidence[:, :, 1:] != 0
    satisfied = inputs.status == Status.SATISFIED
    observed = inputs.observation_var & inputs.binds.any(1)
    revealed = changed & available & observed[:, None, None]

    state = (changed & available & ~inputs.observation_var[:, None, None]).astype(np.float32)
    written = state @ inputs.binds.swapaxes(-1, -2).astype(np.float32)[:, None] > 0
    finalised = inputs.commits[..., None] & inputs.scope
    real = inputs.rollout_mask[..., None]
    steps = np.asarray(inputs.step_mask & real)[..., None]
    to_do = (inputs.binds & ~inputs.observation_var[:, None]).any(-1)
    to_do &= (real & ~satisfied[:, :, 0]).any(1)
    achieved = satisfied[:, :, 1:] & ~satisfied[:, :, :-1]
    executed = steps & (written | finalised) & achieved & to_do[:, None, None]

    violated = inputs.status == Status.VIOLATED
    turned = (steps & violated[:, :, 1:] & ~violated[:, :, :-1]).any(-1, keepdims=True)
    replies = np.zeros((*changed.shape[:3], len(INVALIDITY)), bool)
    replies[..., [INVALIDITY.index("violated")]] = turned
    groups = len(observed)
    kind = [
        np.where(observed, Kind.EVIDENCE, Kind.NONE),
        np.where(to_do, Kind.EXECUTION, Kind.NONE),
        np.full((groups, len(INVALIDITY)), Kind.INVALIDITY),
    ]
    rubric = np.concatenate([revealed, executed, replies], axis=-1)
    return rubric, np.concatenate(kind, axis=-1).astype(np.int8)


def _replies(
    inputs: CreditInputs, g: int, n: int, one: Played, notes: Sequence[StepNote], domain: Domain
) -> np.ndarray:
    """What of `INVALIDITY` is read off the replies and their answers, bool[T_i, 5]."""
    steps = len(one.actions)
    taken, valid = np.array(one.taken, bool), np.array(one.valid, bool)
    refused = np.array([note.refused for note in notes], bool)
    state, action = inputs.state_id[g, n], inputs.action_id[g, n, :steps]
    evidence = inputs.evidence[g, n, : steps + 1]
    still = (evidence[1:] == evidence[:-1]).all(-1)
    idle = (state[1 : steps + 1] == state[:steps]) | (action == stable_hash(domain.no_op))
    seen: set[tuple[int, bytes, int]] = set()
    repeated = np.zeros(steps, bool)
    for t in range(steps):
        doing = (int(state[t]), evidence[t].tobytes(), int(action[t]))
        repeated[t] = doing in seen
        seen.add(doing)
    found = {
        "malformed": ~taken,
        "rejected": taken & (~valid | refused),
        "no_op": taken & valid & ~refused & still & idle,
        "repeated": repeated,
        "violated": np.zeros(steps, bool),  # `_bind` has found them
    }
    return np.stack([found[name] for name in INVALIDITY], axis=-1)


def _contexts(inputs: CreditInputs, g: int, n: int, notes: Sequence[StepNote]) -> list[int]:
    """Identifier of the context of each step: evidence, statuses of the atoms, and the environment's note."""
    rows = zip(inputs.evidence[g, n], inputs.status[g, n], notes, strict=False)
    return [
        (zlib.crc32(e.tobytes() + s.tobytes() + note.context.encode("utf-8", "surrogatepass")) & 0x7FFFFFFF)
        or 1
        for e, s, note in rows
    ]
