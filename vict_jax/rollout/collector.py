"""Groups of rollouts: prompts, replies and environment steps, all rollouts in step, until all are over.

`collect` serves training and evaluation alike; `demonstrations` makes rollouts of the expert with the same
context builders, for the supervised warm start.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import jax
import numpy as np
from flax import nnx

from envs.base import Observation, StepResult, Task
from envs.pool import EnvPool
from envs.worker import Fault
from vict_jax.batching import EndReason, Rollout
from vict_jax.rollout.context import Reply, Template, start_context
from vict_jax.rollout.episode import Counts, Episode, Marks, count
from vict_jax.rollout.options import ContextKind, InvalidReply, RolloutOptions
from vict_jax.rollout.parser import ReplyFormat, format_reply, parse_reply
from vict_jax.rollout.sampler import Sample, SamplerOptions, Session, Shapes, row_keys
from vict_jax.rollout.tokenizer import Codec

NOTHING_HAPPENS = "Nothing happens."

# (rollouts that are over, all rollouts); called after every step of the rollouts in play.
Progress = Callable[[int, int], None]


class Sampler(Protocol):
    """The part of `sampler.Session` that a collection uses."""

    compiled: set[tuple[int, int, int]]

    def start(self, rows: int) -> None:
        """Begin with `rows` empty rows."""
        ...

    def extend(self, rows: Sequence[int], tokens: Sequence[np.ndarray], keys: np.ndarray) -> list[Sample]:
        """Append to rows and sample a reply to each."""
        ...

    def release(self, rows: Sequence[int]) -> None:
        """Give up rows."""
        ...


@dataclasses.dataclass(frozen=True)
class Collected:
    """What `collect` returns.

    Attributes:
      groups: per task its rollouts, in the order of the tasks. marks: the same shape.
      counts: sums. seconds: wall time by phase: `sample`, `env` and `host` (everything else).
    """

    groups: list[list[Rollout]]
    marks: list[list[Marks]]
    counts: Counts
    seconds: Mapping[str, float]


# Replies of episodes to their prompts; a Fault ends its episode.
_Policy = Callable[[list[Episode], list[list[int]]], Sequence[Sample | Fault]]


def open_session(
    graphdef: nnx.GraphDef,
    params: nnx.State,
    codec: Codec,
    options: RolloutOptions,
    mesh: jax.sharding.Mesh | None = None,
) -> Session:
    """A sampler for rollouts with `options`."""
    sampler = SamplerOptions(
        max_new_tokens=options.max_new_tokens, temperature=options.temperature, stop_ids=(codec.end_id,)
    )
    return Session(graphdef, params, options=sampler, shapes=sampling_shapes(options), mesh=mesh)


def sampling_shapes(options: RolloutOptions) -> Shapes:
    """The sizes that sampling with `options` compiles for, each a program of its own.

    Windowed prompts are all of one kind: two lengths and one cache. Appended ones start long and go on
    short, in a cache that grows: lengths and caches double. Rows thin out as rollouts finish.
    """
    longest = options.max_context - options.max_new_tokens
    append = ContextKind(options.context) is ContextKind.APPEND
    return Shapes(
        batch=_up_to(options.rows, least=-(-options.rows // 16), factor=4),
        prompt=_up_to(longest, least=32 if append else -(-longest // 2), factor=2),
        cache=_up_to(options.max_context, least=128 if append else options.max_context, factor=2),
    )


def _up_to(most: int, *, least: int, factor: int) -> tuple[int, ...]:
    """`least` times the powers of `factor` below `most`, and `most`."""
    sizes = []
    while least < most:
        sizes.append(least)
        least *= factor
    return (*sizes, most)


def collect(
    pool: EnvPool,
    session: Sampler,
    codec: Codec,
    tasks: Sequence[Task],
    *,
    rollouts: int,
    key: jax.Array,
    options: RolloutOptions,
    max_steps: int,
    first: int = 0,
    progress: Progress | None = None,
) -> Collected:
    """Play every task `rollouts` times with the model.

    Reply t of rollout n of task g is sampled with `fold_in(fold_in(key, first + g * rollouts + n), t)`, so
    the result depends neither on the workers of the pool nor on how many rollouts are in play at once.

    Args:
      session: samples replies; made with the same options, see `open_session`.
      key: PRNG key of this update.
      max_steps: the step cap; replies that the environment never sees count as well.
      first: number of the first rollout, to split a long list of tasks over several calls.

    Raises:
      ValueError: an option is out of range, or a record does not fit the steps taken.
      RuntimeError: environment workers cannot be kept alive.
    """
    if rollouts < 1:
        raise ValueError(f"rollouts must be at least 1, got {rollouts}")
    seconds = {"sample": 0.0, "env": 0.0}
    began = time.perf_counter()
    template = Template(codec, options)
    plays = [(g * rollouts + n, task) for g, task in enumerate(tasks) for n in range(rollouts)]
    finished: list[tuple[Rollout, Marks]] = []
    for start in range(0, len(plays), options.rows):
        wave = plays[start : start + options.rows]
        policy = _sampled(session, key, options, first, len(wave), seconds)
        tell = _shifted(progress, start, len(plays))
        finished += _play(pool, template, wave, policy, max_steps, seconds, tell)
    seconds["host"] = time.perf_counter() - began - sum(seconds.values())
    chunks = [finished[i : i + rollouts] for i in range(0, len(finished), rollouts)]
    return Collected(
        groups=[[rollout for rollout, _ in chunk] for chunk in chunks],
        marks=[[marks for _, marks in chunk] for chunk in chunks],
        counts=count(finished, len(session.compiled)),
        seconds=seconds,
    )


def demonstrations(
    pool: EnvPool,
    codec: Codec,
    tasks: Sequence[Task],
    *,
    options: RolloutOptions,
    max_steps: int,
    progress: Progress | None = None,
) -> list[Rollout]:
    """Play every task once with the expert; its actions become trained replies, log-probability 0.

    Raises:
      ValueError: an action of the expert cannot be said in the reply format, or not within
        `max_new_tokens`.
    """
    template, seconds = Template(codec, options), {"sample": 0.0, "env": 0.0}
    plays = list(enumerate(tasks))
    finished: list[tuple[Rollout, Marks]] = []
    for start in range(0, len(plays), options.rows):
        wave = plays[start : start + options.rows]
        tell = _shifted(progress, start, len(plays))
        finished += _play(pool, template, wave, _expert(pool, codec, options), max_steps, seconds, tell)
    return [rollout for rollout, _ in finished]


def _shifted(progress: Progress | None, before: int, total: int) -> Callable[[int], None]:
    return (lambda over: progress(before + over, total)) if progress else lambda over: None


@contextlib.contextmanager
def _timed(seconds: dict[str, float], phase: str) -> Iterator[None]:
    began = time.perf_counter()
    yield
    seconds[phase] += time.perf_counter() - began


def _sampled(
    session: Sampler,
    key: jax.Array,
    options: RolloutOptions,
    first: int,
    rows: int,
    seconds: dict[str, float],
) -> _Policy:
    """Replies by the model. Appended contexts keep their rows, windowed ones start anew at every step."""
    append = ContextKind(options.context) is ContextKind.APPEND
    in_play: set[int] = set(range(rows))
    if append:
        session.start(rows)

    def policy(episodes: list[Episode], prompts: list[list[int]]) -> list[Sample]:
        slots = [episode.slot for episode in episodes]
        with _timed(seconds, "sample"):
            if over := in_play - set(slots):
                in_play.difference_update(over)
                if append:
                    session.release(sorted(over))
            if not append:
                session.start(len(episodes))
            keys = row_keys(
                key,
                np.array([first + episode.index for episode in episodes]),
                np.array([len(episode.actions) for episode in episodes]),
            )
            tokens = [np.array(prompt, np.int32) for prompt in prompts]
            return session.extend(slots if append else range(len(episodes)), tokens, keys)

    return policy


def _expert(pool: EnvPool, codec: Codec, options: RolloutOptions) -> _Policy:
    """Replies by the environment's expert."""

    def say(action: str) -> Sample:
        reply = format_reply(action, ReplyFormat(options.reply))
        ids = np.array([*codec.reply(reply), codec.end_id], np.int32)
        if len(ids) > options.max_new_tokens:
            raise ValueError(
                f"the expert's reply {reply!r} has {len(ids)} tokens, above "
                f"max_new_tokens={options.max_new_tokens}: the policy could never give it"
            )
        return Sample(ids, np.zeros(len(ids), np.float32), stopped=True)

    def policy(episodes: list[Episode], prompts: list[list[int]]) -> list[Sample | Fault]:
        answers = pool.expert([episode.slot for episode in episodes])
        return [
            answer if isinstance(answer, Fault) else say(answer)
            for answer in (answers[episode.slot] for episode in episodes)
        ]

    return policy


def _play(
    pool: EnvPool,
    template: Template,
    wave: Sequence[tuple[int, Task]],
    policy: _Policy,
    max_steps: int,
    seconds: dict[str, float],
    progress: Callable[[int], None],
) -> list[tuple[Rollout, Marks]]:
    """Play (index, task) pairs in step, each in its own slot, until all are over."""
    with _timed(seconds, "env"):
        episodes = _begin(pool, template, wave)
    in_play = _not_over(episodes)
    while in_play:
        prompts = _prompts(in_play)
        in_play = _not_over(in_play)
        if in_play:
            _take(in_play, prompts, policy(in_play, prompts), template)
            with _timed(seconds, "env"):
                _act(pool, _not_over(in_play), template.options, max_steps)
        in_play = _not_over(in_play)
        progress(len(wave) - len(in_play))
    with _timed(seconds, "env"):
        records = pool.record([episode.slot for episode in episodes if not episode.lost])
    return [episode.finish(records.get(episode.slot), template.options, max_steps) for episode in episodes]


def _not_over(episodes: Sequence[Episode]) -> list[Episode]:
    return [episode for episode in episodes if not episode.over]


def _begin(pool: EnvPool, template: Template, wave: Sequence[tuple[int, Task]]) -> list[Episode]:
    answers = pool.reset({slot: task for slot, (_, task) in enumerate(wave)})
    episodes = []
    for slot, (index, task) in enumerate(wave):
        answer = answers[slot]
        lost = isinstance(answer, Fault)
        first = Observation("") if isinstance(answer, Fault) else answer
        context = start_context(template, first)
        episode = Episode(index, slot, task, context, observations=[] if lost else [first])
        if isinstance(answer, Fault):
            episode.lose(answer)
        episodes.append(episode)
    return episodes


def _prompts(episodes: Sequence[Episode]) -> list[list[int]]:
    """Prompts of the episodes that have room for one; the others end here."""
    prompts = []
    for episode in episodes:
        prompt = episode.context.prompt()
        if prompt is None:
            episode.over, episode.end = True, EndReason.CONTEXT
        else:
            prompts.append(prompt)
    return prompts


def _take(
    episodes: Sequence[Episode],
    prompts: Sequence[Sequence[int]],
    replies: Sequence[Sample | Fault],
    template: Template,
) -> None:
    """Take replies down: the ids as they are, and the action they say."""
    reply_format = ReplyFormat(template.options.reply)
    trailing = template.options.allow_trailing
    for episode, prompt, reply in zip(episodes, prompts, replies, strict=True):
        if isinstance(reply, Fault):
            episode.lose(reply)
            continue
        ids = reply.ids[:-1] if reply.stopped else reply.ids
        text = template.codec.decode(ids.tolist())
        parsed = parse_reply(text, reply_format, stopped=reply.stopped, allow_trailing=trailing)
        action = parsed.action if parsed.valid else text.strip()
        episode.context.add_reply(Reply(reply.ids, reply.logp, reply.stopped, action))
        episode.reply(action, parsed, truncated=not reply.stopped, tokens=(len(prompt), len(reply.ids)))


def _act(pool: EnvPool, episodes: Sequence[Episode], options: RolloutOptions, max_steps: int) -> None:
    """Apply the last actions, and say what happens to replies that had none."""
    treatment = InvalidReply(options.invalid)
    asked = {
        episode.slot: episode.actions[-1]
        for episode in episodes
        if episode.parsed[-1].valid or treatment is InvalidReply.PASS
    }
    results = pool.step(asked)
    for episode in episodes:
        taken = episode.slot in asked
        result = results[episode.slot] if taken else _nothing(episode, done=treatment is InvalidReply.END)
        episode.observe(result, taken=taken, max_steps=max_steps)


def _nothing(episode: Episode, *, done: bool) -> StepResult:
    """Answer to a reply that the environment does not see."""
    admissible = episode.observations[-1].admissible
    return StepResult(Observation(NOTHING_HAPPENS, admissible), done, {"valid": False})
