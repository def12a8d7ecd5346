"""Groups of rollouts: prompts, replies and environment steps, a number of them in play at a time.

Rollouts in play take their steps together. A rollout that is over leaves its slot to the next one at once,
so that the sampler's batch stays full until no rollout waits any more. `collect` serves training and
evaluation alike; `demonstrations` makes rollouts of the expert with the same context builders, for the
supervised warm start.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np
from flax import nnx

from envs.base import Observation, Task
from envs.pool import EnvPool
from envs.worker import Fault
from vict_jax.batching import EndReason, Rollout
from vict_jax.rollout.context import Prompt, Reply, start_context
from vict_jax.rollout.episode import Counts, Episode, Marks, count
from vict_jax.rollout.options import ContextKind, InvalidReply, RolloutOptions, Trained
from vict_jax.rollout.parser import ReplyFormat, format_reply, parse_reply, reply_text
from vict_jax.rollout.prefix import Prefix, replay
from vict_jax.rollout.sampler import SamplerOptions, Shapes, row_keys
from vict_jax.rollout.session import Sample, Session
from vict_jax.rollout.template import Example, Template, make_template, window
from vict_jax.rollout.tokenizer import Codec, action_tokens, first_stop, stop_table
from vict_jax.sharding import batch_parts

# An opening is computed once where it is at least one part in so many of the longest prompt. Prompts behind
# a shorter one gain less than reading it from the cache costs a small model.
_PREFIX_SHARE = 4

# (rollouts that are over, all rollouts); called after every step of the rollouts in play.
Progress = Callable[[int, int], None]


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


# (episodes, their prompts, whether further rollouts wait for a slot) -> replies; a Fault ends its episode.
_Policy = Callable[[list[Episode], list[Prompt], bool], Sequence[Sample | Fault]]


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
    session: Sampler,
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
) -> Collected:
    """Play every task `rollouts` times with the model.

    Reply t of rollout n of task g is sampled with `fold_in(fold_in(key, first + g * rollouts + n), t)`, so
    the result depends neither on the workers of the pool nor on how many rollouts are in play at once.

    Args:
      session: samples replies; made with the same options, see `open_session`.
      key: PRNG key of this update.
      max_steps: the step cap; replies that the environment never sees count as well.
      examples: solved steps that come before every rollout, see `expert_examples`.
      first: number of the first rollout, to split a long list of tasks over several calls.
      prefixes: one for each task, behind which its rollouts begin; none: they begin at the beginning.

    Raises:
      ValueError: an option is out of range, or a record does not fit the steps taken.
      RuntimeError: environment workers cannot be kept alive.
    """
    if rollouts < 1:
        raise ValueError(f"rollouts must be at least 1, got {rollouts}")
    seconds = {"sample": 0.0, "env": 0.0}
    began = time.perf_counter()
    template = make_template(codec, options, examples)
    plays = [(g * rollouts + n, task) for g, task in enumerate(tasks) for n in range(rollouts)]
    shared = session.shared_tokens
    policy = _sampled(session, key, first, min(options.rows, len(plays)), seconds)
    behind = {n: prefixes[n // rollouts] for n, _ in plays} if prefixes else {}
    finished = _play(pool, template, plays, policy, max_steps, seconds, progress, behind)
    seconds["host"] = time.perf_counter() - began - sum(seconds.values())
    chunks = [finished[i : i + rollouts] for i in range(0, len(finished), rollouts)]
    return Collected(
        groups=[[rollout for rollout, _ in chunk] for chunk in chunks],
        marks=[[marks for _, marks in chunk] for chunk in chunks],
        counts=count(finished, shared_tokens=session.shared_tokens - shared, compiled=len(session.compiled)),
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
    options = dataclasses.replace(options, trained=Trained.REPLY.value)
    template = make_template(codec, options, examples)
    policy = _expert(pool, template)
    finished = _play(
        pool, template, list(enumerate(tasks)), policy, max_steps, {"sample": 0.0, "env": 0.0}, progress
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


@contextlib.contextmanager
def _timed(seconds: dict[str, float], phase: str) -> Iterator[None]:
    began = time.perf_counter()
    yield
    seconds[phase] += time.perf_counter() - began


def _sampled(session: Sampler, key: jax.Array, first: int, rows: int, seconds: dict[str, float]) -> _Policy:
    """Replies by the model; an episode has the row of its slot, given up when nothing waits for it."""
    in_play = set(range(rows))
    session.start(rows)

    def policy(episodes: list[Episode], prompts: list[Prompt], waiting: bool) -> list[Sample]:
        slots = [episode.slot for episode in episodes]
        with _timed(seconds, "sample"):
            if not waiting:
                session.release(sorted(in_play.difference(slots)))
                in_play.intersection_update(slots)
            session.restart([slot for slot, prompt in zip(slots, prompts, strict=True) if prompt.fresh])
            keys = row_keys(
                key,
                np.array([first + episode.index for episode in episodes]),
                np.array([len(episode.actions) for episode in episodes]),
            )
            return session.extend(slots, [np.array(prompt.ids, np.int32) for prompt in prompts], keys)

    return policy


def _expert(pool: EnvPool, template: Template) -> _Policy:
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

    def policy(episodes: list[Episode], prompts: list[Prompt], waiting: bool) -> list[Sample | Fault]:
        answers = pool.expert([episode.slot for episode in episodes])
        return [
            answer if isinstance(answer, Fault) else say(answer)
            for answer in (answers[episode.slot] for episode in episodes)
        ]

    return policy


def _play(
    pool: EnvPool,
    template: Template,
    plays: Sequence[tuple[int, Task]],
    policy: _Policy,
    max_steps: int,
    seconds: dict[str, float],
    progress: Progress | None,
    prefixes: Mapping[int, Prefix] = types.MappingProxyType({}),
) -> list[tuple[Rollout, Marks]]:
    """Play (index, task) pairs, `options.rows` at a time, each in its slot, in the order of the pairs."""
    options = template.options
    waiting, free = collections.deque(plays), list(range(min(options.rows, len(plays))))
    in_play: list[Episode] = []
    finished: dict[int, tuple[Rollout, Marks]] = {}
    while waiting or in_play:
        begun = [(free.pop(0), *waiting.popleft()) for _ in range(min(len(free), len(waiting)))]
        with _timed(seconds, "env"):
            episodes = _begin(pool, template, begun)
            replay(pool, episodes, prefixes, max_steps)
            in_play += episodes
        prompts = _prompts(in_play)
        playing = _not_over(in_play)
        if playing:
            _take(playing, prompts, policy(playing, prompts, bool(waiting)), template)
            with _timed(seconds, "env"):
                _act(pool, _not_over(playing), options, max_steps)
        with _timed(seconds, "env"):
            for episode, ended in _end(pool, in_play, max_steps):
                finished[episode.index] = ended
                free.append(episode.slot)
        in_play = _not_over(in_play)
        if progress:
            progress(len(finished), len(plays))
    return [finished[index] for index, _ in plays]


def _not_over(episodes: Sequence[Episode]) -> list[Episode]:
    return [episode for episode in episodes if not episode.over]


def _begin(pool: EnvPool, template: Template, plays: Sequence[tuple[int, int, Task]]) -> list[Episode]:
    """Start (slot, index, task) triples."""
    answers = pool.reset({slot: task for slot, _, task in plays})
    episodes = []
    for slot, index, task in plays:
        answer = answers[slot]
        lost = isinstance(answer, Fault)
        first = Observation("") if isinstance(answer, Fault) else answer
        context = start_context(template, first)
        episode = Episode(index, slot, task, context, observations=[] if lost else [first])
        if isinstance(answer, Fault):
            episode.lose(answer)
        episodes.append(episode)
    return episodes


def _end(
    pool: EnvPool, episodes: Sequence[Episode], max_steps: int
) -> list[tuple[Episode, tuple[Rollout, Marks]]]:
    """The episodes that are over, with what remains of them."""
    over = [episode for episode in episodes if episode.over]
    records = pool.record([episode.slot for episode in over if not episode.lost])
    return [(episode, episode.finish(records.get(episode.slot), max_steps)) for episode in over]


def _prompts(episodes: Sequence[Episode]) -> list[Prompt]:
    """Prompts of the episodes that have room for one; the others end here."""
    prompts = []
    for episode in _not_over(episodes):
        prompt = episode.context.prompt()
        if prompt is None:
            episode.over, episode.end = True, EndReason.CONTEXT
        else:
            prompts.append(prompt)
    return prompts


def _take(
    episodes: Sequence[Episode],
    prompts: Sequence[Prompt],
    replies: Sequence[Sample | Fault],
    template: Template,
) -> None:
    """Take replies down: the ids as they are, and the action they say."""
    options, codec = template.options, template.codec
    reply_format = ReplyFormat(options.reply)
    for episode, prompt, reply in zip(episodes, prompts, replies, strict=True):
        if isinstance(reply, Fault):
            episode.lose(reply)
            continue
        ids = reply.ids.tolist()
        text = reply_text(
            codec.decode(ids[:-1] if ids[-1] in codec.stop_ids else ids), reply_format, options.stop_strings
        )
        parsed = parse_reply(text, reply_format, stopped=reply.stopped, allow_trailing=options.allow_trailing)
        action = parsed.action if parsed.valid else text.strip()
        only_action = Trained(options.trained) is Trained.ACTION and parsed.valid
        trained = action_tokens(codec, ids) if only_action else None
        episode.context.add_reply(Reply(reply.ids, reply.logp, action, trained))
        episode.reply(action, parsed, truncated=not reply.stopped, ids=ids)
        episode.prompt_tokens += len(prompt.ids)
        episode.sampled_tokens += len(ids)


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
        result = results[episode.slot] if taken else episode.unseen(done=treatment is InvalidReply.END)
        episode.observe(result, taken=taken, max_steps=max_steps)
