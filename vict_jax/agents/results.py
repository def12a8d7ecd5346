"""What an evaluation by prompting keeps on disk, and what it adds up to.

    DIR/settings.json   what the results depend on, refused if a later start brings another
    DIR/tasks.jsonl     one JSON object a line: a task that is over, with its trials word for word, or what
                        the calls of one took that was given up
    DIR/summary.json    the result

A second start plays what is not there yet.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from vict_jax import config as config_lib
from vict_jax.agents.usage import Usage
from vict_jax.batching import EndReason
from vict_jax.evaluate import Outcome, tally
from vict_jax.metrics import RunError, disk_full_is_clear, lock, read_json, write_atomically, write_json

_LOST = (EndReason.ENV_ERROR, EndReason.ENV_TIMEOUT)


@dataclasses.dataclass(frozen=True)
class Trial:
    """One attempt at a task.

    Attributes:
      end: a value of `EndReason`. score: the environment's, 0 for a trial it lost.
      steps: replies that asked for an action; of these `unparsed` had none and `inadmissible` were refused.
      shortened: prompts that left out earlier turns to fit.
      fault: the message of the environment's failure. lesson: what was learned from the trial.
      transcript: of every step the observation before it, the reply, its action or the `problem` with it,
        and whether it was accepted. last: the last observation.
    """

    end: str
    score: float
    steps: int
    unparsed: int
    inadmissible: int
    shortened: int
    fault: str
    transcript: tuple[Mapping[str, Any], ...]
    last: str
    lesson: str = ""


@dataclasses.dataclass(frozen=True)
class TaskResult:
    """A task that is over: its trials in their order, and what its calls took."""

    task: str
    type: str
    trials: tuple[Trial, ...]
    usage: Usage


class Results:
    """The results in a directory, locked against a second program. Close it (or use `with`).

    Attributes:
      done: task id -> its result. usage: of all calls, those of tasks that were given up included.
    """

    def __init__(self, folder: pathlib.Path, settings: Mapping[str, Any]) -> None:
        """Open or make `folder`.

        Raises:
          RunError: another program uses it, or it holds results with other settings, or damaged ones.
        """
        with disk_full_is_clear(folder):
            folder.mkdir(parents=True, exist_ok=True)
        self.folder, self._lock = folder, lock(folder, "--out")
        self.done: dict[str, TaskResult] = {}
        self.usage = Usage()
        try:
            _claim(folder, settings)
            rows = _rows(folder / "tasks.jsonl")
        except RunError:
            self._lock.close()
            raise
        for row in rows:
            self._take(row)
        write_atomically(folder / "tasks.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows).encode())
        self._file = open(folder / "tasks.jsonl", "a")  # noqa: SIM115 - closed in close()

    def finished(self, result: TaskResult) -> None:
        """Keep the result of a task."""
        self._append(dataclasses.asdict(result))

    def unfinished(self, task: str, usage: Usage) -> None:
        """Keep what the calls of a task took that was given up."""
        if usage != Usage():
            self._append({"unfinished": task, "usage": dataclasses.asdict(usage)})

    def close(self) -> None:
        """Release the lock."""
        self._file.close()
        self._lock.close()

    def __enter__(self) -> Results:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _append(self, row: Mapping[str, Any]) -> None:
        with disk_full_is_clear(self.folder):
            self._file.write(f"{json.dumps(row)}\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        self._take(row)

    def _take(self, row: Mapping[str, Any]) -> None:
        usage = Usage(**row["usage"])
        self.usage += usage
        if "unfinished" not in row:
            trials = tuple(Trial(**trial) for trial in row["trials"])
            self.done[row["task"]] = TaskResult(row["task"], row["type"], trials, usage)


def _claim(folder: pathlib.Path, settings: Mapping[str, Any]) -> None:
    path = folder / "settings.json"
    if not path.exists():
        write_json(path, settings)
        return
    plain = json.loads(json.dumps(settings))
    if changed := config_lib.differences(read_json(path), plain):
        listed = "\n  ".join(changed)
        raise RunError(
            f"--out={folder} holds results with other settings:\n  {listed}\n"
            "Use the same settings to continue, or another --out to start anew."
        )


def _rows(path: pathlib.Path) -> list[dict[str, Any]]:
    """All complete rows; a last one cut off by a kill is left out, another damaged one raises RunError."""
    rows = []
    lines = path.read_text().splitlines() if path.exists() else []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            if number < len(lines):
                raise RunError(f"{path}:{number} is not a JSON object ({error})") from error
    return rows


def by_trial(results: Sequence[TaskResult], trials: int, *, about: str) -> dict[str, dict[str, Any]]:
    """An evaluation, as `vict_jax.evaluate.evaluate` returns it, after each of the trials.

    A task counts as solved from the trial on that solved it; its score is that of its newest trial, its
    steps are those of all trials so far.

    Args:
      results: at least one.
    """
    return {
        f"trial {n}": tally([_after(result, n) for result in results], about=about)
        for n in range(1, trials + 1)
    }


def _after(result: TaskResult, trials: int) -> Outcome:
    made = result.trials[:trials]
    end = EndReason(made[-1].end)
    return Outcome(
        type=result.type,
        solved=end is EndReason.SUCCESS,
        score=made[-1].score,
        steps=sum(trial.steps for trial in made),
        lost=end in _LOST,
    )


def counts(results: Sequence[TaskResult]) -> dict[str, int]:
    """Sums over all trials."""
    trials = [trial for result in results for trial in result.trials]
    names = ("steps", "unparsed", "inadmissible", "shortened")
    sums = {name: sum(vars(trial)[name] for trial in trials) for name in names}
    context = sum(trial.end == EndReason.CONTEXT.value for trial in trials)
    return {"trials": len(trials), **sums, "context_ends": context}
