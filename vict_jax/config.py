"""Validated run options.

`configs/*.py` return ml_collections ConfigDicts made by `to_config_dict`; `from_config_dict` turns
one, once, into the frozen dataclasses below. Library code never sees a ConfigDict. Every value has
one home: the dataclass field it is declared in.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import ml_collections

from envs.lookup import environment
from vict_jax.corrections import FissionOptions
from vict_jax.credit.methods import credit_method, needs
from vict_jax.credit.options import VictOptions
from vict_jax.heartbeat import WatchOptions
from vict_jax.learner.losses import PpoOptions
from vict_jax.learner.optimizer import OptimizerOptions
from vict_jax.models.options import ModelOptions
from vict_jax.required import require
from vict_jax.rollout.options import RolloutOptions, Trained
from vict_jax.shaping import RewardOptions
from vict_jax.sharding import MeshOptions

C = TypeVar("C")


WARM_START_TOKENS = ("replies", "everything")


@dataclasses.dataclass(frozen=True)
class WarmStartOptions:
    """Supervised start on expert episodes of the first `tasks` training tasks.

    Attributes:
      run: directory of another run whose policy before its first update is taken instead, with its tokenizer
        and, where both validate alike, its validation of that policy, so that runs that are compared start
        from the same policy; "": this run has its own.
      tasks: how many; 0: there is no supervised start. epochs: passes over their episodes.
      tokens: train on the expert's "replies" alone, or on "everything" it saw and said, which teaches a
        model that starts from nothing to read and copy names sooner.
      rows_per_batch: token rows of an optimizer step. micro_rows: of one gradient computation.
      learning_rate: its peak, from which a cosine leads down. warmup_steps: optimizer steps up to the peak.
      weight_decay: of AdamW.
    """

    run: str = ""
    tasks: int = 256
    epochs: int = 4
    tokens: str = "replies"
    rows_per_batch: int = 16
    micro_rows: int = 8
    learning_rate: float = 1e-3
    warmup_steps: int = 20
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        for name in ("tasks", "epochs"):
            require(getattr(self, name) >= 0, f"warm_start.{name}", getattr(self, name), "0 or more")
        for name in ("rows_per_batch", "micro_rows"):
            require(getattr(self, name) >= 1, f"warm_start.{name}", getattr(self, name), "1 or more")
        require(
            self.tokens in WARM_START_TOKENS, "warm_start.tokens", self.tokens, f"one of {WARM_START_TOKENS}"
        )

    @property
    def active(self) -> bool:
        """Whether there is one."""
        return bool(self.run) or (self.tasks > 0 and self.epochs > 0)


@dataclasses.dataclass(frozen=True)
class TrainOptions:
    """The update loop: `groups` tasks x `rollouts` rollouts of each, every update.

    Attributes:
      updates: how many; 0 ends after the warm start. groups: tasks of an update. rollouts: of each task.
      eval_every: updates between validations. checkpoint_every: updates between checkpoints.
      keep_checkpoints: so many of the newest stay, and the policy before the first update.
      split: of the tasks that are trained on.
      staleness: 0: an update's rollouts are sampled by the policy before it. 1: by the one before that, so
        that they are played while the update before is computed; samples are weighted for it, see
        `ppo.importance_cap`.
      resample_groups: groups of equal return are dropped and new tasks played in their place, at most this
        many in an update (DAPO's dynamic sampling, see `vict_jax.resampling`); 0: they stay.
      task_set: directory of a task set (`vict_jax.datasets`) whose tasks of `split` are trained on, in its
        order; "": all of the split.
    """

    updates: int = 50
    groups: int = 16
    rollouts: int = 8
    eval_every: int = 10
    checkpoint_every: int = 5
    keep_checkpoints: int = 2
    split: str = "train"
    staleness: int = 0
    resample_groups: int = 0
    task_set: str = ""

    def __post_init__(self) -> None:
        for name in ("groups", "rollouts", "eval_every", "checkpoint_every", "keep_checkpoints"):
            require(getattr(self, name) >= 1, f"train.{name}", getattr(self, name), "1 or more")
        require(self.staleness in (0, 1), "train.staleness", self.staleness, "0 (on-policy) or 1")
        for name in ("updates", "resample_groups"):
            require(getattr(self, name) >= 0, f"train.{name}", getattr(self, name), "0 or more")


@dataclasses.dataclass(frozen=True)
class EvalOptions:
    """Validation: one rollout of each task.

    Attributes:
      split: of the tasks. tasks: the first so many of them; 0: all.
      batch: rollouts in play at once; results do not depend on it.
      temperature: of sampling; 0 is greedy.
    """

    split: str = "valid_unseen"
    tasks: int = 0
    batch: int = 64
    temperature: float = 0.0

    def __post_init__(self) -> None:
        require(self.tasks >= 0, "eval.tasks", self.tasks, "0 (all) or more")
        require(self.batch >= 1, "eval.batch", self.batch, "1 or more")
        require(self.temperature >= 0, "eval.temperature", self.temperature, "0 (greedy) or more")


@dataclasses.dataclass(frozen=True)
class EnvOptions:
    """Which environment runs, and in how many worker processes.

    Attributes:
      name: environment, a built-in name or a dotted module, see `your_environment.md`.
      workers: worker processes; results do not depend on it.
      timeout_s: seconds that one call into an environment may take.
      options: the environment's own.
    """

    name: str
    workers: int
    timeout_s: float
    options: Any


@dataclasses.dataclass(frozen=True)
class CreditOptions:
    """`method` is a name that `vict_jax.credit.methods.credit_method` takes."""

    method: str
    options: VictOptions

    def __post_init__(self) -> None:
        try:
            credit_method(self.method, self.options)
        except ValueError as error:
            raise ValueError(f"credit.method={self.method!r} is not allowed: {error}") from error


@dataclasses.dataclass(frozen=True)
class ConformanceOptions:
    """How the verifier interface is checked, see `vict_jax.gate`.

    Attributes:
      tasks: training tasks played before training.
      rollouts: random and edited rollouts of each of them; rollouts to edit of each group of a recheck.
      every: updates between rechecks on the policy's own rollouts; 0 = never.
      recheck_tasks: groups of a recheck whose rollouts are edited and whose tasks are mutated.
      strict: stop at the first finding instead of leaving it without credit.
    """

    tasks: int = 24
    rollouts: int = 1
    every: int = 10
    recheck_tasks: int = 4
    strict: bool = False

    def __post_init__(self) -> None:
        require(self.tasks >= 1, "conformance.tasks", self.tasks, "1 or more")
        for name in ("rollouts", "every", "recheck_tasks"):
            require(getattr(self, name) >= 0, f"conformance.{name}", getattr(self, name), "0 or more")


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """One run."""

    seed: int
    env: EnvOptions
    mesh: MeshOptions
    model: ModelOptions
    rollout: RolloutOptions
    warm_start: WarmStartOptions
    train: TrainOptions
    ppo: PpoOptions
    optimizer: OptimizerOptions
    reward: RewardOptions
    fission: FissionOptions
    credit: CreditOptions
    conformance: ConformanceOptions
    eval: EvalOptions
    watch: WatchOptions

    def __post_init__(self) -> None:
        domain, _ = environment(self.env.name)
        for name, split in (("train.split", self.train.split), ("eval.split", self.eval.split)):
            require(split in domain.splits, name, split, f"one of {list(domain.splits)}")
        temperature = self.rollout.temperature
        require(temperature > 0, "rollout.temperature", temperature, "above 0 in training")
        self.reward.limit(self.rollout)  # which checks the buffer
        asked = needs([self.credit.method], self.credit.options)
        self.fission.check(rollouts=self.train.rollouts, method=self.credit.method, needs=asked)
        require(
            "value" not in asked or Trained(self.rollout.trained) is Trained.REPLY,
            "rollout.trained",
            self.rollout.trained,
            f"'reply' with credit.method={self.credit.method!r}, whose critic reads before the first token",
        )


# Sections that are one dataclass each. `env` and `credit` are composed in `from_config_dict`.
SECTIONS: dict[str, type] = {
    "mesh": MeshOptions,
    "model": ModelOptions,
    "rollout": RolloutOptions,
    "warm_start": WarmStartOptions,
    "train": TrainOptions,
    "ppo": PpoOptions,
    "optimizer": OptimizerOptions,
    "reward": RewardOptions,
    "fission": FissionOptions,
    "conformance": ConformanceOptions,
    "eval": EvalOptions,
    "watch": WatchOptions,
}
COMMON_OF_ENV = {"workers": 2, "timeout_s": 20.0}

# Keys that may differ when a run is resumed, since no result depends on them (on the mesh: but for rounding).
RESUME_MAY_CHANGE = (
    "env.workers",
    "env.timeout_s",
    "train.keep_checkpoints",
    "conformance.strict",
    *("mesh.data", "mesh.fsdp", "mesh.tensor"),
    *(f"watch.{field.name}" for field in dataclasses.fields(WatchOptions)),
)


def _field_defaults(cls: type) -> dict[str, Any]:
    return dataclasses.asdict(cls())


def default_config(env: str = "alfworld") -> ml_collections.ConfigDict:
    """The ConfigDict of all defaults for an environment; a config file changes what it needs and locks it.

    Training uses the first split of the environment and validation the last.

    Args:
      env: a built-in name or a dotted module name, see `envs.lookup.environment`.
    """
    domain, options = environment(env)
    config = {name: _field_defaults(cls) for name, cls in SECTIONS.items()}
    config["train"]["split"], config["eval"]["split"] = domain.splits[0], domain.splits[-1]
    config["env"] = {"name": env, **COMMON_OF_ENV, **_field_defaults(options)}
    config["credit"] = {"method": "vict", **_field_defaults(VictOptions)}
    return ml_collections.ConfigDict({"seed": 0, **config}, convert_dict=True, allow_dotted_keys=False)


def _unknown_key(where: str, key: str, known: typing.Iterable[str]) -> ValueError:
    known = sorted(known)
    close = difflib.get_close_matches(key, known, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else "."
    return ValueError(f"unknown config key {where + key!r}{hint} Known here: {', '.join(known)}")


def _matches(value: Any, annotation: Any) -> bool:
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        return any(_matches(value, arg) for arg in typing.get_args(annotation))
    if annotation is Any:
        return True
    if origin is not None:
        annotation = origin
    if annotation is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if annotation is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, annotation)


def build(cls: type[C], values: Mapping[str, Any], where: str, beside: Sequence[str] = ()) -> C:
    """Make dataclass `cls` from `values`; unknown or mistyped keys raise ValueError naming the key.

    A field that is a dataclass itself is made from a mapping in the same way.

    Args:
      where: prefix of the keys in messages.
      beside: further keys of the same section, taken out before, for messages.
    """
    hints = typing.get_type_hints(cls)
    names = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
    made = dict(values)
    for key, value in values.items():
        if key not in names:
            raise _unknown_key(where, key, [*names, *beside])
        if dataclasses.is_dataclass(hints[key]) and isinstance(value, Mapping):
            made[key] = build(hints[key], value, f"{where}{key}.")
        elif not _matches(value, hints[key]):
            raise ValueError(f"config key {where + key!r} is {value!r}, expected {hints[key]}")
    return cls(**made)


def from_config_dict(config: ml_collections.ConfigDict) -> RunConfig:
    """Validate a config once and freeze it. Raises ValueError naming the key, the value and what is known."""
    return _from_values(config.to_dict())


def to_plain(config: RunConfig) -> dict[str, Any]:
    """A config as JSON values under the names of the command line: the content of `config.json`."""
    plain = json.loads(json.dumps(dataclasses.asdict(config)))
    for section in ("env", "credit"):
        plain[section] |= plain[section].pop("options")
    return plain


def from_plain(plain: Mapping[str, Any]) -> RunConfig:
    """The config that `to_plain` wrote; checked like any other."""

    def tuples(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: tuples(inner) for key, inner in value.items()}
        return tuple(value) if isinstance(value, list) else value

    return _from_values(tuples(plain))


def _from_values(values: Mapping[str, Any]) -> RunConfig:
    known = {"seed", "env", "credit", *SECTIONS}
    for key in values:
        if key not in known:
            raise _unknown_key("", key, known)
    for key in sorted(known - set(values)):
        raise ValueError(f"config section {key!r} is missing; start from vict_jax.config.default_config()")
    env = dict(values["env"])
    name = env.pop("name")
    _, options = environment(name)
    common = {key: env.pop(key, default) for key, default in COMMON_OF_ENV.items()}
    require(common["timeout_s"] > 0, "env.timeout_s", common["timeout_s"], "seconds above 0")
    credit = dict(values["credit"])
    return RunConfig(
        seed=values["seed"],
        env=EnvOptions(name=name, options=build(options, env, "env.", ["name", *COMMON_OF_ENV]), **common),
        credit=CreditOptions(
            method=credit.pop("method"), options=build(VictOptions, credit, "credit.", ["method"])
        ),
        **{key: build(cls, values[key], f"{key}.") for key, cls in SECTIONS.items()},
    )


def check_overrides(config: ml_collections.ConfigDict, overrides: typing.Iterable[str]) -> None:
    """Raise ValueError for a dotted key of the command line that `config` does not have."""
    for dotted in overrides:
        node: Any = config
        parts = dotted.split(".")
        for depth, part in enumerate(parts):
            where = ".".join(parts[:depth]) + ("." if depth else "")
            if not isinstance(node, ml_collections.ConfigDict):
                raise ValueError(
                    f"config key {where[:-1]!r} is a value, not a section; cannot set {dotted!r}"
                )
            if part not in node:
                raise _unknown_key(where, part, node.keys())
            node = node[part]


def differences(old: Mapping[str, Any], new: Mapping[str, Any], where: str = "") -> list[str]:
    """Dotted keys whose values differ between two nested dicts, each as `key: old -> new`."""
    found = []
    for key in sorted(set(old) | set(new)):
        a, b = old.get(key), new.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            found += differences(a, b, f"{where}{key}.")
        elif a != b and f"{where}{key}" not in RESUME_MAY_CHANGE:
            found.append(f"{where}{key}: {a!r} -> {b!r}")
    return found
