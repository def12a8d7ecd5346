"""AdamW with warm-up, schedule, global-norm clipping and a weight-decay mask, on Optax."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import optax

from vict_jax.sharding import replicated

SCHEDULES = ("constant", "cosine")


@dataclasses.dataclass(frozen=True)
class OptimizerOptions:
    """AdamW (arXiv 1711.05101).

    Attributes:
      learning_rate: peak. 0 is allowed and changes no parameter.
      schedule: "constant" or "cosine", after the warm-up.
      warmup_steps: optimizer steps over which the rate grows linearly from 0 to the peak.
      final_fraction: rate at the end of a cosine schedule as a fraction of the peak.
      clip_norm: bound of the global gradient norm; 0 = off.
      weight_decay: decoupled decay of matrices; norm scales and biases are left alone.
      b1, b2, eps: Adam's.
      value_rate: learning rate of a value head as a multiple of the policy's (`learner.value`).
    """

    learning_rate: float = 1e-6
    schedule: str = "constant"
    warmup_steps: int = 0
    final_fraction: float = 0.1
    clip_norm: float = 1.0
    weight_decay: float = 0.0
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8
    value_rate: float = 10.0

    def __post_init__(self) -> None:
        allowed = {
            "learning_rate": (self.learning_rate >= 0, "0 or more"),
            "schedule": (self.schedule in SCHEDULES, f"one of {SCHEDULES}"),
            "warmup_steps": (self.warmup_steps >= 0, "0 or more"),
            "final_fraction": (0 <= self.final_fraction <= 1, "between 0 and 1"),
            "clip_norm": (self.clip_norm >= 0, "0 (off) or more"),
            "weight_decay": (self.weight_decay >= 0, "0 or more"),
            "b1": (0 <= self.b1 < 1, "0 or more and below 1"),
            "b2": (0 <= self.b2 < 1, "0 or more and below 1"),
            "eps": (self.eps > 0, "above 0"),
            "value_rate": (self.value_rate > 0, "above 0"),
        }
        for name, (ok, what) in allowed.items():
            if not ok:
                value = dataclasses.asdict(self)[name]
                raise ValueError(f"{name}={value!r} is not allowed: it must be {what}")


def make_schedule(options: OptimizerOptions, *, total_steps: int) -> optax.Schedule:
    """Learning rate by optimizer step; `total_steps` is where a cosine schedule ends."""
    if options.schedule == "cosine" and total_steps <= options.warmup_steps:
        raise ValueError(
            f"total_steps={total_steps} must be above warmup_steps={options.warmup_steps} with a cosine"
        )
    if options.schedule == "cosine":
        after: optax.Schedule = optax.cosine_decay_schedule(
            options.learning_rate, total_steps - options.warmup_steps, alpha=options.final_fraction
        )
    else:
        after = optax.constant_schedule(options.learning_rate)
    if not options.warmup_steps:
        return after
    # The first step already moves: at step 0 the rate is 1/warmup_steps of the peak.
    warmup = optax.linear_schedule(
        options.learning_rate / options.warmup_steps, options.learning_rate, max(options.warmup_steps - 1, 1)
    )
    return optax.join_schedules([warmup, after], [options.warmup_steps])


def leaf_names(tree: Any) -> list[str]:
    """Dotted name of every leaf of a parameter tree, in leaf order (`layers.q`)."""
    paths, _ = jax.tree_util.tree_flatten_with_path(tree)
    names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in paths]
    return [name.removesuffix(".value") for name in names]  # an nnx variable is a node of its own


def decay_mask(params: Any) -> Any:
    """Tree of bool: True where weight decay applies.

    Decided by name, because layers are stacked: a norm scale has as many axes as an unstacked matrix.
    """
    keep = ("norm", "scale", "bias")
    names = leaf_names(params)
    flags = [not any(word in name.lower() for word in keep) for name in names]
    return jax.tree.unflatten(jax.tree.structure(params), flags)


def value_mask(params: Any) -> Any:
    """Tree of bool: True on the value head, which `learner.value` puts beside the policy's parameters."""
    flags = [name.startswith("value_head.") for name in leaf_names(params)]
    return jax.tree.unflatten(jax.tree.structure(params), flags)


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """A gradient transformation, and the learning rate it uses at a step (for the log)."""

    transformation: optax.GradientTransformation
    schedule: optax.Schedule


def make_optimizer(options: OptimizerOptions, *, total_steps: int) -> Optimizer:
    """Clip by global norm, then AdamW under the schedule; `total_steps` is where a cosine ends.

    Adam's steps have the size of the learning rate whatever that of the gradient, so that a factor behind it
    is a learning rate of its own: that of a value head.
    """
    schedule = make_schedule(options, total_steps=total_steps)
    adamw = optax.adamw(
        schedule,
        b1=options.b1,
        b2=options.b2,
        eps=options.eps,
        weight_decay=options.weight_decay,
        mask=decay_mask,
    )
    clip = optax.clip_by_global_norm(options.clip_norm) if options.clip_norm else optax.identity()
    head = optax.masked(optax.scale(options.value_rate), value_mask)
    return Optimizer(transformation=optax.chain(clip, adamw, head), schedule=schedule)


def opt_state_shardings(transformation: optax.GradientTransformation, params: Any) -> Any:
    """Shardings of the optimizer state: moments like their parameters, everything else replicated.

    Args:
      params: arrays (or `jax.ShapeDtypeStruct`) that carry a `NamedSharding`.
    """
    shardings = jax.tree.map(lambda p: p.sharding, params)
    mesh = jax.tree.leaves(shardings)[0].mesh
    return optax.tree.map_params(
        transformation,
        lambda _, sharding: sharding,
        jax.eval_shape(transformation.init, params),
        shardings,
        transform_non_params=lambda _: replicated(mesh),
    )


def init_opt_state(transformation: optax.GradientTransformation, params: Any) -> optax.OptState:
    """Initial optimizer state, sharded as `opt_state_shardings` says.

    Without explicit shardings a compiled `init` returns replicated moments.
    """
    shardings = opt_state_shardings(transformation, params)
    return jax.jit(transformation.init, out_shardings=shardings)(params)
