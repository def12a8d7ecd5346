"""The boundary: finished rollouts (host) to padded NumPy arrays to global `jax.Array`s.

`credit_inputs` and `packing.token_rows` describe the same rollouts, both indexed by group and place in the
group, so that the loss finds a token's advantage at `[rollout, step]`. `to_device` is the only place
where host data becomes device data.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from envs.base import Domain, Task, VerifierRecord, hash_evidence, stable_hash
from envs.closure import Closure, requirement_closure
from vict_jax.lexical import mention_table
from vict_jax.sharding import replicated
from vict_jax.types import CreditInputs


class EndReason(enum.Enum):
    """Why a rollout ended. The last three lose the rollout: nothing is known about its score.

    ABSENT: it was not played; it fills up a group that is smaller than the others.
    """

    SUCCESS = "success"
    FAILURE = "failure"
    STEP_CAP = "step_cap"
    CONTEXT = "context"
    ENV_ERROR = "env_error"
    ENV_TIMEOUT = "env_timeout"
    ABSENT = "absent"


_LOST = (EndReason.ENV_ERROR, EndReason.ENV_TIMEOUT, EndReason.ABSENT)


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
      record: the verifier's record, None if the rollout is lost.
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
        lost = self.end in _LOST
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
        """Lost to an environment error, or absent: masked out of credit and training."""
        return self.record is None


def _pad(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Pad at the end of every axis with 0."""
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


def some_params(groups: Sequence[Sequence[Rollout]]) -> Mapping[str, np.ndarray] | None:
    """Aggregator parameters of the first task with a record; None if every rollout was lost."""
    records = (rollout.record for group in groups for rollout in group)
    return next((record.params for record in records if record is not None), None)


def _task_params(
    records: Sequence[VerifierRecord | None], domain: Domain, example: Mapping[str, np.ndarray] | None
) -> dict[str, np.ndarray]:
    """Aggregator parameters with leading axis G; zeros for a group without a record."""
    known = next((record.params for record in records if record is not None), example)
    if known is None:
        raise ValueError("every rollout of every group was lost; there is nothing to credit")
    params = {}
    for name, per_atom in domain.atom_params.items():
        like = np.asarray(known[name])
        shape = (domain.max_atoms, *like.shape[1:]) if per_atom else like.shape
        empty = np.zeros(shape, like.dtype)
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


# Fields of a rollout: type, and axes in sizes of T, S = T + 1, M and V.
_ROLLOUT_FIELDS = {
    "score": (np.float32, ""),
    "status": (np.int8, "SM"),
    "evidence": (np.int32, "SV"),
    "commits": (np.bool_, "T"),
    "scope": (np.bool_, "TM"),
    "requires": (np.bool_, "MM"),
    "usable": (np.bool_, "M"),
    "mentions": (np.bool_, "TM"),
    "step_mask": (np.bool_, "T"),
    "rollout_mask": (np.bool_, ""),
    "state_id": (np.int32, "S"),
    "action_id": (np.int32, "T"),
    "penalty": (np.float32, "T"),
    "value": (np.float32, "T"),
}


def _empty_fields(leading: tuple[int, int], domain: Domain, steps: int) -> dict[str, np.ndarray]:
    """All rollout fields of a batch, full of padding: 0 and False."""
    size = {"T": steps, "S": steps + 1, "M": domain.max_atoms, "V": domain.max_variables}
    return {
        name: np.zeros(leading + tuple(size[axis] for axis in axes), dtype)
        for name, (dtype, axes) in _ROLLOUT_FIELDS.items()
    }


def _write_rollout(
    fields: Mapping[str, np.ndarray],
    at: tuple[int, int],
    rollout: Rollout,
    *,
    masked_families: Collection[str],
    mentions: Callable[[str], np.ndarray],
) -> None:
    """Write one rollout over the padding at [g, n]; a lost rollout stays padding."""
    record, length, steps = rollout.record, len(rollout.actions), fields["commits"].shape[-1]
    if record is None:
        return
    if length > steps:
        raise ValueError(f"rollout of task {rollout.task.id!r} has {length} actions, above max_steps={steps}")
    atoms, variables = len(record.atoms), len(record.variables)
    closure = requirement_closure(record.atoms, record.status)
    fields["score"][at] = record.score
    fields["rollout_mask"][at] = True
    fields["step_mask"][at][:length] = True
    fields["commits"][at][:length] = record.commits
    fields["scope"][at][:length, :atoms] = record.scope
    fields["requires"][at][:atoms, :atoms] = closure.requires
    fields["usable"][at][:atoms] = [not state for state in _states(record, closure, masked_families)]
    fields["state_id"][at][: length + 1] = [stable_hash(text) for text in rollout.observations]
    for t, action in enumerate(rollout.actions):
        fields["action_id"][at][t] = stable_hash(action)
        fields["mentions"][at][t, :atoms] = mentions(action)
    for name, values, width in (
        ("status", record.status, atoms),
        ("evidence", hash_evidence(record.evidence), variables),
    ):
        fields[name][at][: length + 1, :width] = values
        fields[name][at][length + 1 :, :width] = values[-1]  # the terminal state, repeated


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
    example: Mapping[str, np.ndarray] | None = None,
) -> CreditInputs:
    """Pad the rollouts of an update into one `CreditInputs` of NumPy arrays.

    Sizes are fixed by `domain.max_atoms`, `domain.max_variables`, `max_steps` and `group_size`. Lost
    rollouts keep their place under `rollout_mask` False. Identifiers are 0 beyond the last observation;
    penalties and values are 0 throughout.

    Args:
      groups: G groups of `group_size` rollouts of one task each, lost ones included.
      conforming: G flags, the audit's verdict on the aggregator of each task.
      masked_families: atom families that failed conformance; their atoms are not usable.
      example: aggregator parameters of any task, needed if every rollout here was lost, see `some_params`.

    Raises:
      ValueError: a group has another size or mixes tasks, a bound is exceeded, or the rollouts of a group
        disagree about the task's atoms, variables, eta or parameters.
    """
    check_groups(groups, group_size)
    if len(conforming) != len(groups):
        raise ValueError(f"conforming has {len(conforming)} flags for {len(groups)} groups")
    records = [_group_record(group, domain) for group in groups]
    tasks = [_task_arrays(record, domain) for record in records]
    rollouts = _empty_fields((len(groups), group_size), domain, max_steps)
    for g, group in enumerate(groups):
        mentions = mention_table([rollout.record for rollout in group if rollout.record is not None])
        for n, rollout in enumerate(group):
            _write_rollout(rollouts, (g, n), rollout, masked_families=masked_families, mentions=mentions)
    fields: dict[str, Any] = {name: np.stack([task[name] for task in tasks]) for name in tasks[0]} | rollouts
    fields |= {"conforming": np.array(conforming, bool), "params": _task_params(records, domain, example)}
    return CreditInputs(**fields)


def to_device(tree: Any, sharding: jax.sharding.Sharding) -> Any:
    """Global arrays of a tree of NumPy arrays, each sharded as `sharding`.

    Every process passes its own part along sharded axes, and the whole array where it is replicated. The
    transfer is explicit, so it is allowed under `jax.transfer_guard("disallow")`.
    """
    with jax.transfer_guard_host_to_device("allow"):  # with several processes JAX takes it for implicit
        return jax.tree.map(lambda x: jax.make_array_from_process_local_data(sharding, np.asarray(x)), tree)


def whole_to_device(tree: Any, sharding: jax.sharding.Sharding) -> Any:
    """`to_device` of arrays that every process has whole, also where the sharding splits them."""
    with jax.transfer_guard_host_to_device("allow"):
        return jax.tree.map(
            lambda x: jax.make_array_from_callback(np.shape(x), sharding, np.asarray(x).__getitem__), tree
        )


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


def fetch(tree: Any, mesh: jax.sharding.Mesh) -> Any:
    """NumPy copies of a tree of arrays on `mesh`, however they are sharded; called by all processes."""
    return to_host(jax.device_put(tree, replicated(mesh)))
