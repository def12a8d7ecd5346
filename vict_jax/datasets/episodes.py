"""Logged rollouts as RLDS episodes: an episode with its metadata, and in it a data set of steps.

RLDS (arXiv 2111.02767, section 3) names the fields of a step: observation, action, reward, discount,
is_first, is_last, is_terminal; what the proof log knows beyond them is added under its own names. The last
step has the action that ended the episode and its reward, as in the sets of Open X-Embodiment: the log does
not keep what the environment showed after it.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, overload

import numpy as np
import tensorflow_datasets as tfds

from vict_jax.datasets import storage

NAME = "episodes"
SPLIT = "train"
# Ends that the environment came to by itself; the others cut an episode off or lose it.
TERMINAL = ("success", "failure")
# Fields of an `Episode` with one entry a step.
STEP_TEXTS = ("observation", "action")
STEP_ARRAYS = {
    "taken": np.bool_,
    "valid": np.bool_,
    "base": np.float32,
    "correction": np.float32,
    "advantage": np.float32,
}
# Its fields with one value, and the features that hold them.
EPISODE_FEATURES = {
    "update": np.int32,
    "group": np.int32,
    "rollout": np.int32,
    "task_id": tfds.features.Text(),
    "task_type": tfds.features.Text(),
    "end": tfds.features.Text(),
    "score": np.float32,
}
# `tfds.rlds.rlds_base.build_info` describes the same structure, but needs TensorFlow.
_STEP_FEATURES = {
    **{name: tfds.features.Text() for name in STEP_TEXTS},
    **STEP_ARRAYS,
    "reward": np.float32,
    "discount": np.float32,
    "is_first": np.bool_,
    "is_last": np.bool_,
    "is_terminal": np.bool_,
}


@dataclasses.dataclass(frozen=True, eq=False)
class Episode:
    """One logged rollout of T steps, T at least 1.

    Attributes:
      update, group, rollout: where it is in the log.
      task_id, task_type: what was played.
      end: why it ended, a value of `vict_jax.batching.EndReason`; the score of a lost one is unknown.
      score: terminal score V, a float32 value; 0 if lost.
      observation, action: T texts each, the observation before the action.
      taken, valid: bool[T], the environment saw the action; and accepted it.
      base, correction, advantage: float32[T], the credit of the action.
    """

    update: int
    group: int
    rollout: int
    task_id: str
    task_type: str
    end: str
    score: float
    observation: tuple[str, ...]
    action: tuple[str, ...]
    taken: np.ndarray
    valid: np.ndarray
    base: np.ndarray
    correction: np.ndarray
    advantage: np.ndarray

    def __post_init__(self) -> None:
        steps = len(self.action)
        for name in (*STEP_TEXTS, *STEP_ARRAYS):
            if len(vars(self)[name]) != steps or not steps:
                raise ValueError(
                    f"Episode.{name} has {len(vars(self)[name])} entries, but there are {steps} actions; "
                    "an episode has 1 or more, and as many of everything"
                )

    def rlds_steps(self) -> dict[str, Any]:
        """The fields of its steps, T entries each."""
        last = np.arange(len(self.action)) == len(self.action) - 1
        terminal = last & (self.end in TERMINAL)
        return {name: vars(self)[name] for name in (*STEP_TEXTS, *STEP_ARRAYS)} | {
            "reward": np.where(last, np.float32(self.score), np.float32(0)),
            "discount": 1 - terminal.astype(np.float32),
            "is_first": np.arange(len(self.action)) == 0,
            "is_last": last,
            "is_terminal": terminal,
        }


class Episodes(tfds.core.GeneratorBasedBuilder):
    """Builder of RLDS episodes: one record a rollout, in the order of the log, in the split `SPLIT`.

    Args:
      episodes: at least one.
      metadata: what they come from, JSON values.
      progress: called after each episode.
    """

    VERSION = tfds.core.Version(storage.VERSION)
    RELEASE_NOTES = {storage.VERSION: "RLDS steps and the credit of each."}  # noqa: RUF012

    def __init__(
        self,
        *,
        data_dir: pathlib.Path,
        episodes: Iterable[Episode],
        metadata: Mapping[str, Any],
        progress: Callable[[Episode], object] = lambda _: None,
    ) -> None:
        self._episodes, self._made_from, self._progress = episodes, metadata, progress
        super().__init__(data_dir=data_dir, file_format=storage.FORMAT)

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self,
            description="Rollouts of a training run with the credit of every action.",
            features=tfds.features.FeaturesDict(
                {"steps": tfds.features.Dataset(_STEP_FEATURES), **EPISODE_FEATURES}
            ),
            metadata=tfds.core.MetadataDict(self._made_from),
            disable_shuffling=True,
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterator[tuple[int, dict[str, Any]]]]:
        return {SPLIT: self._generate_examples()}

    def _generate_examples(self) -> Iterator[tuple[int, dict[str, Any]]]:
        for index, episode in enumerate(self._episodes):
            whole = {name: vars(episode)[name] for name in EPISODE_FEATURES}
            yield index, {"steps": episode.rlds_steps(), **whole}
            self._progress(episode)


class EpisodeSource(Sequence[Episode]):
    """The episodes of a data set, each read from its file when asked for.

    Attributes:
      made_from: the metadata given to `Episodes`.
    """

    def __init__(self, out: pathlib.Path) -> None:
        # Without decoding, the steps come as one array a field instead of one dict a step.
        decoders = {"steps": tfds.decode.SkipDecoding()}
        self._records, self.made_from = storage.open_split(out, NAME, SPLIT, decoders)
        self._what = str(storage.folder_of(out, NAME))

    def __len__(self) -> int:
        return len(self._records)

    @overload
    def __getitem__(self, index: int) -> Episode: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Episode]: ...
    def __getitem__(self, index: int | slice) -> Episode | Sequence[Episode]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"episode {index} of {len(self)}")
        record = storage.read(self._records, index % len(self), self._what)
        steps = record["steps"]
        fields: dict[str, Any] = {name: _plain(record[name]) for name in EPISODE_FEATURES}
        fields |= {name: tuple(text.decode() for text in steps[name]) for name in STEP_TEXTS}
        return Episode(**fields, **{name: steps[name] for name in STEP_ARRAYS})


def _plain(value: Any) -> Any:
    """A value of a record as Python has it."""
    return value.decode() if isinstance(value, bytes) else np.asarray(value).item()


def episode_source(out: pathlib.Path) -> EpisodeSource:
    """The episodes of the data set in `out`, by random access.

    Raises:
      ValueError: there are none.
      DamagedError: they cannot be read; also when an episode is asked for.
    """
    return EpisodeSource(out)
