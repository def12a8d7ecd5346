"""Groups of rollouts: prompts, replies and environment steps, a number of them in play at a time.

Rollouts in play take their steps together, see `vict_jax.rollout.turns`. `collect` serves training and
evaluation alike; `demonstrations` makes rollouts of the expert with the same context builders, for the
supervised warm start.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np
from flax import nnx

from envs.base import Task
from envs.pool import EnvPool
from envs.worker import Fault
from vict_jax.batching import Rollout
from vict_jax.rollout.context import Prompt
from vict_jax.rollout.episode import Counts, Episode, Marks, count
from vict_jax.rollout.options import ContextKind, RolloutOptions, Trained
from vict_jax.rollout.parser import ReplyFormat, format_reply
from vict_jax.rollout.prefix import Prefix
from vict_jax.rollout.sampler import SamplerOptions, Shapes, row_keys
from vict_jax.rollout.session import Sample, Session
from vict_jax.rollout.template import Example, Template, make_template, window
from vict_jax.rollout.tokenizer import Codec, first_stop, stop_table
from vict_jax.rollout.turns import Lane, Progress, Speaker, split_slots, take_turns, timed
from vict_jax.sharding import batch_parts

# An opening is computed once where it is at least one part in so many of the longest prompt. Prompts behind
# a shorter one gain less than reading it from the cache costs a small model.
_PREFIX_SHARE = 4


class Sampler(Protocol):
    """The part of `session.Session` that a collection uses."""

    compiled: set[tuple[str | int, ...]]
    shared_tokens: int

    def start(self, rows: int) -> None:
        """Begin with `rows` empty rows."""
        ...

    def restart(self, rows: Sequence[int]) -> None:
        """Empty rows."""
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


def open_sessions(
    graphdef: nnx.GraphDef,
    params: nnx.State,
    codec: Codec,
    options: RolloutOptions,
    mesh: jax.sharding.Mesh | None = None,
    examples: Sequence[Example] = (),
) -> tuple[Session, ...]:
    """A sampler for each of the lanes of rollouts with `options`; they share their compiled programs."""
    each = dataclasses.replace(options, rows=options.rows // options.lanes, lanes=1)
    return tuple(open_session(graphdef, params, codec, each, mesh, examples) for _ in range(options.lanes))


def open_session(
    graphdef: nnx.GraphDef,
    params: nnx.State,
    codec: Codec,
    options: RolloutOptions,
    mesh: jax.sharding.Mesh | None = None,
    examples: Sequence[Example] = (),
) -> Session:
    """A sampler for rollouts with `options` and, where they have any, the same `examples`."""
    opening = make_template(codec, options, examples).opening
    worth_it = _PREFIX_SHARE * len(opening) >= options.max_context - options.max_new_tokens
    prefix = opening if worth_it else ()
    stops = None
    if options.stop_strings:
        vocabulary = nnx.merge(graphdef, params).config.vocab_size
        stops = stop_table(codec.token_texts, options.stop_strings, vocabulary)
    return Session(
        graphdef,
        params,
        options=SamplerOptions(
            max_new_tokens=options.max_new_tokens,
            temperature=options.temperature,
            top_k=options.top_k,
            top_p=options.top_p,
            stop_ids=codec.stop_ids,
        ),
        shapes=sampling_shapes(options, len(prefix), parts=1 if mesh is None else batch_parts(mesh)),
        prefix=prefix,
        stops=stops,
        mesh=mesh,
    )


def sampling_shapes(options: RolloutOptions, prefix: int = 0, *, parts: int = 1) -> Shapes:
    """The sizes that sampling with `options` compiles for, each a program of its own.

    Windowed prompts are all of one kind: two lengths and one cache. Appended ones start long and go on
    short, in a cache that grows: lengths and caches double. Rows thin out when no rollout waits any more.

    Args:
      prefix: tokens that all prompts begin with and that are computed once.
      parts: of the mesh's batch axes, which divide the numbers of rows.

    Raises:
      ValueError: `parts` does not divide `options.rows`.
    """
    longest = options.max_context - options.max_new_tokens - prefix
    if options.rows % parts:
        raise ValueError(
            f"{options.rows} rows (rollout.rows, eval.batch) are not a multiple of the {parts} parts of the "
            "batch axes, mesh data * fsdp"
        )
    append = ContextKind(options.context) is ContextKind.APPEND
    return Shapes(
        batch=_up_to(options.rows, least=-(-options.rows // (16 * parts)) * parts, factor=4),
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
    sessions: Sequence[Sampler],
    codec: Codec,
    tasks: Sequence[Task],
    *,
    rollouts: int,
    key: jax.Array,
    options: RolloutOptions,
    max_steps: int,
    examples: Sequence[Example] = (),
    first: int = 0,
    prefixes: Sequence[Prefix] = (),
    progress: Progress | None = None,
    meanwhile: Callable[[], None] | None = None,
) -> Collected:
    """Play every task `rollouts` times with the model.

    Reply t of rollout n of task g is sampled with `fold_in(fold_in(key, first + g * rollouts + n), t)`, so
    the result depends neither on the workers of the pool nor on how many rollouts are in play at once.

    Args:
      sessions: sample replies, one for each lane; made with the same options, see `open_sessions`.
      key: PRNG key of this update.
      max_steps: the step cap; replies that the environment never sees count as well.
      examples: solved steps that come before every rollout, see `expert_examples`.
      first: number of the first rollout, to split a long list of tasks over several calls.
      prefixes: one for each task, behind which its rollouts begin; none: they begin at the beginning.
      meanwhile: called in every turn while environments act; its time counts as `host`.

    Raises:
      ValueError: an option is out of range, there are not as many sessions as lanes, or a record does not fit
        the steps taken.
      RuntimeError: environment workers cannot be kept alive.
    """
    if rollouts < 1:
        raise ValueError(f"rollouts must be at least 1, got {rollouts}")
    if len(sessions) != options.lanes:
        raise ValueError(
            f"{len(sessions)} sessions for rollout.lanes={options.lanes}: one for each is needed"
        )
    seconds = {"sample": 0.0, "env": 0.0}
    began = time.perf_counter()
    template = make_template(codec, options, examples)
    plays = [(g * rollouts + n, task) for g, task in enumerate(tasks) for n in range(rollouts)]
    shared = sum(session.shared_tokens for session in sessions)
    lanes = [
        Lane(slots, _sampled(session, key, first, slots, seconds))
        for session, slots in zip(sessions, split_slots(options, len(plays)), strict=True)
        if slots
    ]
    behind = {n: prefixes[n // rollouts] for n, _ in plays} if prefixes else {}
    finished = take_turns(pool, template, plays, lanes, max_steps, seconds, progress, behind, meanwhile)
    seconds["host"] = time.perf_counter() - began - sum(seconds.values())
    chunks = [finished[i : i + rollouts] for i in range(0, len(finished), rollouts)]
    return Collected(
        groups=[[rollout for rollout, _ in chunk] for chunk in chunks],
        marks=[[marks for _, marks in chunk] for chunk in chunks],
        counts=count(
            finished,
            shared_tokens=sum(session.shared_tokens for session in sessions) - shared,
            compiled=len(set[tuple[str | int, ...]]().union(*(session.compiled for session in sessions))),
        ),
        seconds=seconds,
    )


def demonstrations(
    pool: EnvPool,
    codec: Codec,
    tasks: Sequence[Task],
    *,
    options: RolloutOptions,
    max_steps: int,
    examples: Sequence[Example] = (),
    progress: Progress | None = None,
) -> list[Rollout]:
    """Play every task once with the expert; its actions become trained replies, log-probability 0.

    Raises:
      ValueError: an action of the expert cannot be said in the reply format, or not within
        `max_new_tokens`.
    """
    options = dataclasses.replace(options, trained=Trained.REPLY.value, lanes=1)
    template = make_template(codec, options, examples)
    (slots,) = split_slots(options, len(tasks))
    lanes = [Lane(slots, _expert(pool, template))]
    finished = take_turns(
        pool, template, list(enumerate(tasks)), lanes, max_steps, {"sample": 0.0, "env": 0.0}, progress
    )
    return [rollout for rollout, _ in finished]


def expert_examples(pool: EnvPool, tasks: Sequence[Task], options: RolloutOptions) -> tuple[Example, ...]:
    """The `options.few_shot` solved steps that prompts begin with; the same for the same tasks.

    Example i is from task i of a fixed shuffle. In a WINDOW it is the expert's step i (or its last), told as
    prompts there are: the task, the last steps, the situation. With APPEND it is the first step, since only
    the first turn of a rollout tells a whole situation there.

    Raises:
      ValueError: there are fewer tasks than examples.
      RuntimeError: the environment fails.
    """
    if options.few_shot > len(tasks):
        raise ValueError(f"few_shot={options.few_shot} is above the {len(tasks)} tasks to take examples from")
    order = np.random.default_rng(0).permutation(len(tasks))[: options.few_shot]
    later = ContextKind(options.context) is ContextKind.WINDOW
    return tuple(_expert_step(pool, tasks[int(n)], i if later else 0, options) for i, n in enumerate(order))


def _expert_step(pool: EnvPool, task: Task, step: int, options: RolloutOptions) -> Example:
    observations, actions = [_answer(pool.reset({0: task})[0])], []
    while True:
        actions.append(_answer(pool.expert([0])[0]))
        if len(actions) > step:
            break
        result = _answer(pool.step({0: actions[-1]})[0])
        if result.done:
            break
        observations.append(result.observation)
    *before, action = actions
    told = window(observations, before, min(options.history, len(before)), options)
    return Example(tuple(told), format_reply(action, ReplyFormat(options.reply)))


def _answer(answer: Any) -> Any:
    if isinstance(answer, Fault):
        raise RuntimeError(f"the environment failed on an example: {answer.kind.value}: {answer.message}")
    return answer


def _sampled(
    session: Sampler, key: jax.Array, first: int, slots: Sequence[int], seconds: dict[str, float]
) -> Speaker:
    """Replies by the model; an episode has the row of its slot, given up when nothing waits for it."""
    row_of = {slot: row for row, slot in enumerate(slots)}
    in_play = set(row_of.values())
    session.start(len(slots))

    def speak(episodes: list[Episode], prompts: list[Prompt], waiting: bool) -> list[Sample]:
        rows = [row_of[episode.slot] for episode in episodes]
        with timed(seconds, "sample"):
            if not waiting:
                session.release(sorted(in_play.difference(rows)))
                in_play.intersection_update(rows)
            session.restart([row for row, prompt in zip(rows, prompts, strict=True) if prompt.fresh])
            keys = row_keys(
                key,
                np.array([first + episode.index for episode in episodes]),
                np.array([len(episode.actions) for episode in episodes]),
            )
            return session.extend(rows, [np.array(prompt.ids, np.int32) for prompt in prompts], keys)

    return speak


def _expert(pool: EnvPool, template: Template) -> Speaker:
    """Replies by the environment's expert, as the policy would give them."""
    codec, options = template.codec, template.options

    def say(action: str) -> Sample:
        reply = format_reply(action, ReplyFormat(options.reply))
        ids = codec.reply(reply)
        stop = first_stop(codec, ids, options.stop_strings)
        ids = [*ids, template.end_id] if stop is None else ids[:stop]
        if len(ids) > options.max_new_tokens:
            raise ValueError(
                f"the expert's reply {reply!r} has {len(ids)} tokens, above "
                f"max_new_tokens={options.max_new_tokens}: the policy could never give it"
            )
        return Sample(np.array(ids, np.int32), np.zeros(len(ids), np.float32), stopped=True)

    def speak(episodes: list[Episode], prompts: list[Prompt], waiting: bool) -> list[Sample | Fault]:
        answers = pool.expert([episode.slot for episode in episodes])
        return [
            answer if isinstance(answer, Fault) else say(answer)
            for answer in (answers[episode.slot] for episode in episodes)
        ]

    return speak
