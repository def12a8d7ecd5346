"""Logged conversations of the original benchmark, played again with the customer's own words.

A log is a JSON list of episodes (plain or gzipped), each with `task_id`, `trial`, `reward` and the chat
messages `traj`, as tau-bench's `run.py` writes them and its `historical_trajectories` have them.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import pathlib

import numpy as np

from envs.base import Task, VerifierRecord
from envs.tau_bench.action import write
from envs.tau_bench.customer import LoggedCustomer
from envs.tau_bench.data import Bench, Call
from envs.tau_bench.domain import TauBenchEnv
from envs.tau_bench.messages import read_log

_GZIP = b"\x1f\x8b"


@dataclasses.dataclass(frozen=True)
class Conversation:
    """One logged episode.

    Attributes:
      index: of its task in the split. trial: which of its attempts. reward: as recorded.
      customer: the customer's messages. calls: the agent's actions.
    """

    index: int
    trial: int
    reward: float
    customer: tuple[str, ...]
    calls: tuple[Call, ...]


@dataclasses.dataclass(frozen=True)
class Replayed:
    """A conversation played again: T actions, T+1 observations, whether each action was readable."""

    task: Task
    actions: tuple[str, ...]
    observations: tuple[str, ...]
    valid: np.ndarray
    record: VerifierRecord


def read(path: pathlib.Path) -> list[Conversation]:
    """The conversations of a log, ordered by task and trial.

    Raises:
      ValueError: the file is no log.
    """
    raw = path.read_bytes()
    try:
        rows = json.loads(gzip.decompress(raw) if raw.startswith(_GZIP) else raw)
        found = [
            Conversation(row["task_id"], row["trial"], row["reward"], *read_log(row["traj"])) for row in rows
        ]
    except (LookupError, TypeError, OSError, ValueError) as error:
        raise ValueError(f"{path} is no log of conversations: {error}") from error
    return sorted(found, key=lambda c: (c.index, c.trial))


def replay(env: TauBenchEnv, bench: Bench, task: Task, conversation: Conversation) -> Replayed:
    """Play a conversation again, until it ends or the log does."""
    spec = bench.tasks[task.split][conversation.index]
    observations = [env.begin(bench, spec, LoggedCustomer(conversation.customer)).text]
    actions, valid = list[str](), list[bool]()
    for call in conversation.calls:
        actions.append(write(call))
        result = env.step(actions[-1])
        observations.append(result.observation.text)
        valid.append(bool(result.info["valid"]))
        if result.done:
            break
    return Replayed(task, tuple(actions), tuple(observations), np.array(valid, bool), env.record())
