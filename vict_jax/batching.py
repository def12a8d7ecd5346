"""The boundary: finished rollouts (host) to padded NumPy arrays to global `jax.Array`s.

`credit_inputs` and `packing.token_rows` describe the same rollouts, both indexed by group and place in the
group, so that the loss finds a token's advantage at `[rollout, step]`. `to_device` is the only place
where host data becomes device data.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import numpy as np

from envs.base import Domain, Task, VerifierRecord, hash_evidence, stable_hash
from envs.closure import Closure, requirement_closure
from vict_jax.lexical import mention_table
from vict_jax.types import CreditInputs


class EndReason(enum.Enum):
    """Why a rollout ended. The last two lose the rollout: nothing is known about its score."""

    SUCCESS = "success"
    FAILURE = "failure"
    STEP_CAP = "step_cap"
    CONTEXT = "context"
    ENV_ERROR = "env_error"
    ENV_TIMEOUT = "env_timeout"


@dataclasses.dataclass(frozen=True)
class TokenSequence:
    """One model sequence: an appended rollout, or one step of a windowed one.

    Attributes:
      ids: int32[n].
      trained: bool[n], True on sampled tokens (the stop token included); never on the first token.
      logp: float32[n], log-probability under the policy that sampled it; not read where not trained.
      step: int32[n], step of the rollout that a trained token belongs to; not read elsewhere.
    """

    ids: np.ndarray
    trained: np.ndarray
    logp: np.ndarray
    step: np.ndarray

    def __post_init__(self) -> None:
        length = len(self.ids)
        for name, kind in (("ids", "i"), ("trained", "b"), ("logp", "f"), ("step", "i")):
            array = getattr(self, name)
            if array.shape != (length,):
                raise ValueError(f"TokenSequence.{name} has shape {array.shape}, but ids has {length} tokens")
            if array.dtype.kind != kind:
                raise ValueError(f"TokenSequence.{name} has dtype {array.dtype}, expected kind {kind!r}")
        if length == 0 or self.trained[0]:
            raise ValueError(f"TokenSequence of {length} tokens: it needs a first token that is not trained")
        if not np.isfinite(self.logp[self.trained]).all():
            raise ValueError("TokenSequence.logp has a value that is not finite on a trained token")


@dataclasses.dataclass(frozen=True)
class Rollout:
    """One finished episode of T actions.

    Attributes:
      task: what was played.
      sequences: the model sequences whose trained tokens are the sampled replies.
      actions: T action texts.
      observations: T+1 raw observation texts, [t] before action t; T of them if the rollout is lost.
      taken: bool[T], the environment saw the action; it may never see a reply that did not parse.
      valid: bool[T], the reply parsed and the environment accepted the action.
      record: the verifier's record, None if the rollout is lost to an environment error or time-out.
      score: terminal score V; 0 if lost.
      end: why it ended.
    """

    task: Task
    sequences: tuple[TokenSequence, ...]
    actions: tuple[str, ...]
    observations: tuple[str, ...]
    taken: np.ndarray
    valid: np.ndarray
    record: VerifierRecord | None
    score: float
    end: EndReason

    def __post_init__(self) -> None:
        steps = len(self.actions)
        for name, flags in {"taken": self.taken, "valid": self.valid}.items():
            if flags.shape != (steps,):
                raise ValueError(f"Rollout.{name} has shape {flags.shape}, but there are {steps} actions")
        for sequence in self.sequences:
            trained_steps = sequence.step[sequence.trained]
            if trained_steps.size and not 0 <= trained_steps.min() <= trained_steps.max() < steps:
                raise ValueError(
                    f"Rollout of {steps} actions has trained tokens of steps "
                    f"{trained_steps.min()} to {trained_steps.max()}"
                )
        lost = self.end in (EndReason.ENV_ERROR, EndReason.ENV_TIMEOUT)
        if lost != (self.record is None):
            raise ValueError(f"Rollout.record is {self.record!r:.40}, but end is {self.end.value!r}")
        if self.record is None:
            return
        if len(self.record.commits) != steps or len(self.observations) != steps + 1:
            raise ValueError(
                f"Rollout of {steps} actions has a record of {len(self.record.commits)} steps and "
                f"{len(self.observations)} observations (expected {steps + 1})"
            )
        if self.record.score != self.score:
            raise ValueError(
                f"Rollout.score={self.score} differs from its record's score {self.record.score}"
            )

    @property
    def lost(self) -> bool:
        """Lost to an environment error: masked out of credit and training."""
        return self.record is None


def _pad(array: np.ndarray, shape: tuple[int, ...], *, repeat_last: bool = False) -> np.ndarray:
    """Pad at the end of every axis with 0, or along the first with its last entry."""
    if repeat_last:
        array = np.concatenate([array, np.repeat(array[-1:], shape[0] - len(array), axis=0)])
    pads = [(0, size - have) for size, have in zip(shape, array.shape, strict=True)]
    return np.pad(array, pads) if pads else array


def _group_record(group: Sequence[Rollout], domain: Domain) -> VerifierRecord | None:
    """The record that stands for the group's task. Raises ValueError where members disagree about it."""
    records = [rollout.record for rollout in group if rollout.record is not None]
    if not records:
        return None
    first, name = records[0], group[0].task.id
    for size, limit, what in (
        (len(first.atoms), domain.max_atoms, "atoms"),
        (len(first.variables), domain.max_variables, "variables"),
    ):
        if size > limit:
            raise ValueError(
                f"task {name!r} has {size} {what}, above Domain.max_{what}={limit} of {domain.name!r}"
            )
    if set(first.params) != set(domain.atom_params):
        raise ValueError(
            f"task {name!r} has aggregator parameters {sorted(first.params)}, "
            f"Domain.atom_params names {sorted(domain.atom_params)}"
        )
    for record in records[1:]:
        if record.atoms != first.atoms or record.variables != first.variables or record.eta != first.eta:
            raise ValueError(f"rollouts of task {name!r} disagree about its atoms, variables or eta")
        for key, value in first.params.items():
            if not np.array_equal(record.params[key], value):
                raise ValueError(f"rollouts of task {name!r} disagree about aggregator parameter {key!r}")
    return first


def _task_arrays(record: VerifierRecord | None, domain: Domain) -> dict[str, Any]:
    """The fields of one group that belong to its task, padded; all False / 0 without a record."""
    atoms = record.atoms if record else ()
    variables = record.variables if record else ()
    m, v = domain.max_atoms, domain.max_variables
    binds = np.array([[x.id in atom.variables for x in variables] for atom in atoms], bool)
    return {
        "binds": _pad(binds.reshape(len(atoms), len(variables)), (m, v)),
        "observation_var": _pad(np.array([x.observation for x in variables], bool), (v,)),
        "irreversible": _pad(np.array([a.irreversible for a in atoms], bool), (m,)),
        "terminal_only": _pad(np.array([a.terminal_only for a in atoms], bool), (m,)),
        "eta": np.float32(record.eta if record else 0.0),
    }


def _task_params(records: Sequence[VerifierRecord | None], domain: Domain) -> dict[str, np.ndarray]:
    """Aggregator parameters with leading axis G; zeros for a group without a record."""
    params = {}
    for name, per_atom in domain.atom_params.items():
        known = [np.asarray(r.params[name]) for r in records if r is not None]
        if not known:
            raise ValueError("every rollout of every group was lost; there is nothing to credit")
        shape = (domain.max_atoms, *known[0].shape[1:]) if per_atom else known[0].shape
        empty = np.zeros(shape, known[0].dtype)
        params[name] = np.stack(
            [empty if r is None else _pad(np.asarray(r.params[name]), shape) for r in records]
        )
    return params


MASKED = "masked family"


def _states(record: VerifierRecord, closure: Closure, masked_families: Collection[str]) -> list[str]:
    return [
        MASKED if atom.family in masked_families else reason
        for atom, reason in zip(record.atoms, closure.unsettled, strict=True)
    ]


def atom_states(rollout: Rollout, masked_families: Collection[str]) -> list[str]:
    """Why each atom of a rollout is not usable: "" (it is), `MASKED`, or why its closure is unsettled.

    A lost rollout has no record and so no atoms.
    """
    if rollout.record is None:
        return []
    closure = requirement_closure(rollout.record.atoms, rollout.record.status)
    return _states(rollout.record, closure, masked_families)


def _rollout_arrays(
    rollout: Rollout,
    domain: Domain,
    steps: int,
    *,
    masked_families: Collection[str],
    mentions: Callable[[str], np.ndarray],
) -> dict[str, Any]:
    """The fields of one rollout, padded to `steps`. A lost rollout is all padding."""
    m, v, record = domain.max_atoms, domain.max_variables, rollout.record
    taken = len(rollout.actions) if record else 0
    if taken > steps:
        raise ValueError(f"rollout of task {rollout.task.id!r} has {taken} actions, above max_steps={steps}")
    mask = np.arange(steps) < taken
    if record is None:
        return {
            "score": np.float32(0),
            "status": np.zeros((steps + 1, m), np.int8),
            "evidence": np.zeros((steps + 1, v), np.int32),
            "commits": np.zeros(steps, bool),
            "scope": np.zeros((steps, m), bool),
            "requires": np.zeros((m, m), bool),
            "usable": np.zeros(m, bool),
            "mentions": np.zeros((steps, m), bool),
            "step_mask": mask,
            "rollout_mask": np.bool_(False),
            "state_id": np.zeros(steps + 1, np.int32),
            "action_id": np.zeros(steps, np.int32),
        }
    closure = requirement_closure(record.atoms, record.status)
    usable = np.array([not state for state in _states(record, closure, masked_families)], bool)
    mentioned = np.array([mentions(action) for action in rollout.actions], bool)
    state_id = np.array([stable_hash(text) for text in rollout.observations], np.int32)
    action_id = np.array([stable_hash(text) for text in rollout.actions], np.int32)
    return {
        "score": np.float32(record.score),
        "status": _pad(record.status.astype(np.int8), (steps + 1, m), repeat_last=True),
        "evidence": _pad(hash_evidence(record.evidence), (steps + 1, v), repeat_last=True),
        "commits": _pad(record.commits.astype(bool), (steps,)),
        "scope": _pad(record.scope.astype(bool), (steps, m)),
        "requires": _pad(closure.requires, (m, m)),
        "usable": _pad(usable, (m,)),
        "mentions": _pad(mentioned.reshape(taken, len(record.atoms)), (steps, m)),
        "step_mask": mask,
        "rollout_mask": np.bool_(True),
        "state_id": _pad(state_id, (steps + 1,)),
        "action_id": _pad(action_id, (steps,)),
    }


def _mention_table(group: Sequence[Rollout]) -> Callable[[str], np.ndarray]:
    return mention_table([rollout.record for rollout in group if rollout.record is not None])


def check_groups(groups: Sequence[Sequence[Rollout]], group_size: int) -> None:
    """Raise ValueError unless each group has `group_size` rollouts of one task."""
    for g, group in enumerate(groups):
        if len(group) != group_size:
            raise ValueError(f"group {g} has {len(group)} rollouts, expected group_size={group_size}")
        ids = {rollout.task.id for rollout in group}
        if len(ids) > 1:
            raise ValueError(f"group {g} mixes tasks {sorted(ids)}")


def credit_inputs(
    groups: Sequence[Sequence[Rollout]],
    *,
    domain: Domain,
    max_steps: int,
    group_size: int,
    conforming: Sequence[bool],
    masked_families: Collection[str] = (),
) -> CreditInputs:
    """Pad the rollouts of an update into one `CreditInputs` of NumPy arrays.

    Sizes are fixed by `domain.max_atoms`, `domain.max_variables`, `max_steps` and `group_size`. Lost
    rollouts keep their place under `rollout_mask` False. Identifiers are 0 beyond the last observation.

    Args:
      groups: G groups of `group_size` rollouts of one task each, lost ones included.
      conforming: G flags, the audit's verdict on the aggregator of each task.
      masked_families: atom families that failed conformance; their atoms are not usable.

    Raises:
      ValueError: a group has another size or mixes tasks, a bound is exceeded, or the rollouts of a group
        disagree about the task's atoms, variables, eta or parameters.
    """
    check_groups(groups, group_size)
    if len(conforming) != len(groups):
        raise ValueError(f"conforming has {len(conforming)} flags for {len(groups)} groups")
    records = [_group_record(group, domain) for group in groups]
    tasks = [_task_arrays(record, domain) for record in records]
    rollouts = [
        [
            _rollout_arrays(rollout, domain, max_steps, masked_families=masked_families, mentions=mentions)
            for rollout in group
        ]
        for group, mentions in zip(groups, map(_mention_table, groups), strict=True)
    ]
    fields: dict[str, Any] = {name: np.stack([task[name] for task in tasks]) for name in tasks[0]}
    fields |= {
        name: np.stack([np.stack([r[name] for r in row]) for row in rollouts]) for name in rollouts[0][0]
    }
    fields |= {"conforming": np.array(conforming, bool), "params": _task_params(records, domain)}
    return CreditInputs(**fields)


def to_device(tree: Any, sharding: jax.sharding.Sharding) -> Any:
    """Global arrays of a tree of NumPy arrays, each sharded as `sharding`.

    Every process passes its own part along sharded axes, and the whole array where it is replicated. The
    transfer is explicit, so it is allowed under `jax.transfer_guard("disallow")`.
    """
    return jax.tree.map(lambda x: jax.make_array_from_process_local_data(sharding, np.asarray(x)), tree)


def to_host(tree: Any) -> Any:
    """NumPy copies of a tree of arrays, fetched together.

    Raises:
      ValueError: an array has parts that only other processes hold.
    """
    for x in jax.tree.leaves(tree):
        if isinstance(x, jax.Array) and not (x.is_fully_addressable or x.is_fully_replicated):
            raise ValueError(
                f"array of shape {x.shape} is sharded over processes ({x.sharding}); replicate it first"
            )
    return jax.device_get(tree)
