"""Checks of shapes and types, and the views of `CreditInputs` that every kernel starts from."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from vict_jax.types import CreditInputs, Status

# Axes of each field: G groups, N rollouts, T steps, S = T + 1 states, M atoms, V variables, D words, J items.
_AXES = {
    "score": ("GN", jnp.float32),
    "status": ("GNSM", jnp.int8),
    "evidence": ("GNSV", jnp.int32),
    "commits": ("GNT", jnp.bool_),
    "scope": ("GNTM", jnp.bool_),
    "binds": ("GMV", jnp.bool_),
    "observation_var": ("GV", jnp.bool_),
    "requires": ("GNMM", jnp.bool_),
    "usable": ("GNM", jnp.bool_),
    "mentions": ("GNTM", jnp.bool_),
    "irreversible": ("GM", jnp.bool_),
    "terminal_only": ("GM", jnp.bool_),
    "conforming": ("G", jnp.bool_),
    "eta": ("G", jnp.float32),
    "step_mask": ("GNT", jnp.bool_),
    "rollout_mask": ("GN", jnp.bool_),
    "state_id": ("GNS", jnp.int32),
    "action_id": ("GNT", jnp.int32),
    "penalty": ("GNT", jnp.float32),
    "value": ("GNT", jnp.float32),
    "cluster_id": ("GNT", jnp.int32),
    "state_terms": ("GNTD", jnp.float32),
    "rubric": ("GNTJ", jnp.bool_),
    "rubric_kind": ("GJ", jnp.int8),
    "context_id": ("GNT", jnp.int32),
    "hindsight_logp": ("GNT", jnp.float32),
}
# Fields that only some methods need; None where nobody made them.
OPTIONAL = ("cluster_id", "state_terms", "rubric", "rubric_kind", "context_id", "hindsight_logp")


def check_inputs(inputs: CreditInputs) -> None:
    """Check shapes and types once, while tracing.

    Raises:
      ValueError: a field has another shape or type than `CreditInputs` says, given the sizes that
        `commits` and `binds` have.
    """
    groups, rollouts, steps = inputs.commits.shape
    size = dict(zip("GNTSMV", (groups, rollouts, steps, steps + 1, *inputs.binds.shape[1:]), strict=True))
    size["D"] = 0 if inputs.state_terms is None else inputs.state_terms.shape[-1]
    size["J"] = 0 if inputs.rubric_kind is None else inputs.rubric_kind.shape[-1]
    for name, (axes, dtype) in _AXES.items():
        array = getattr(inputs, name)
        if array is None and name in OPTIONAL:
            continue
        shape = tuple(size[axis] for axis in axes)
        if array.shape != shape or array.dtype != dtype:
            raise ValueError(
                f"CreditInputs.{name} is {array.dtype}{list(array.shape)}, "
                f"expected {jnp.dtype(dtype)}{list(shape)}"
            )


def real_steps(inputs: CreditInputs) -> jax.Array:
    """bool[G, N, T]: real steps of real rollouts."""
    return inputs.step_mask & inputs.rollout_mask[..., None]


def atom_mask(inputs: CreditInputs) -> jax.Array:
    """bool[G, M]: atoms that exist in the group, usable or not: `requires` is reflexive on them only."""
    reflexive = jnp.diagonal(inputs.requires, axis1=-2, axis2=-1)
    return jnp.any(reflexive & inputs.rollout_mask[..., None], axis=-2)


def requirements(inputs: CreditInputs) -> jax.Array:
    """bool[G, N, M, M]: the closure D_x between existing atoms, whatever stands in the padding."""
    real = atom_mask(inputs)[:, None]
    return inputs.requires & real[..., :, None] & real[..., None, :]


def terminal_status(inputs: CreditInputs) -> jax.Array:
    """i8[G, N, M]: status at the end of each rollout, UNKNOWN on atoms that do not exist."""
    length = jnp.sum(real_steps(inputs), axis=-1)
    last = jnp.take_along_axis(inputs.status, length[..., None, None], axis=-2)[..., 0, :]
    return jnp.where(atom_mask(inputs)[:, None], last, Status.UNKNOWN).astype(jnp.int8)
