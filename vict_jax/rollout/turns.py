"""The turns of the rollouts in play: prompts, replies, environment steps, in one lane or two.

A rollout that is over leaves its slot to the next one at once, so that the sampler's batch stays full until
no rollout waits any more. With one lane the environments wait while the model speaks, and the model while
they act. With two lanes the rollouts are in two halves: the model speaks in one of them while the worker
processes act in the other. All are played by the same policy, and what is played does not depend on it.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence

from envs.base import Observation, Task
from envs.pool import EnvPool
from envs.worker import Fault
from vict_jax.batching import EndReason, Rollout
from vict_jax.rollout.context import Prompt, Reply, start_context
from vict_jax.rollout.episode import Episode, Marks
from vict_jax.rollout.options import InvalidReply, RolloutOptions, Trained
from vict_jax.rollout.parser import ReplyFormat, parse_reply, reply_text
from vict_jax.rollout.prefix import Prefix, replay
from vict_jax.rollout.session import Sample
from vict_jax.rollout.template import Template
from vict_jax.rollout.tokenizer import action_tokens

# (rollouts that are over, all rollouts); called after every turn.
Progress = Callable[[int, int], None]

# (episodes, their prompts, whether further rollouts wait for a slot) -> replies; a Fault ends its episode.
Speaker = Callable[[list[Episode], list[Prompt], bool], Sequence[Sample | Fault]]


@contextlib.contextmanager
def timed(seconds: dict[str, float], phase: str) -> Iterator[None]:
    """Add the seconds spent inside to `seconds[phase]`."""
    began = time.perf_counter()
    yield
    seconds[phase] += time.perf_counter() - began


@dataclasses.dataclass
class Lane:
    """Rollouts that take their steps together.

    Attributes:
      free: slots of the pool without a rollout.
      speak: gives the replies.
      in_play: rollouts that go on.
      acting: those whose last action, or the lack of one, has no answer yet. asked: slots of the actions that
        the environments got.
    """

    free: list[int]
    speak: Speaker
    in_play: list[Episode] = dataclasses.field(default_factory=list)
    acting: list[Episode] = dataclasses.field(default_factory=list)
    asked: frozenset[int] = frozenset()


def split_slots(options: RolloutOptions, plays: int) -> list[list[int]]:
    """The slots of each lane: `options.rows` in all, or as many as there are rollouts to play."""
    most = options.rows // options.lanes
    slots = list(range(min(options.rows, plays)))
    return [slots[lane * most : (lane + 1) * most] for lane in range(options.lanes)]


def take_turns(
    pool: EnvPool,
    template: Template,
    plays: Sequence[tuple[int, Task]],
    lanes: Sequence[Lane],
    max_steps: int,
    seconds: dict[str, float],
    progress: Progress | None,
    prefixes: Mapping[int, Prefix] = types.MappingProxyType({}),
    meanwhile: Callable[[], None] | None = None,
) -> list[tuple[Rollout, Marks]]:
    """Play (index, task) pairs, each in a slot of a lane; returns them in the order of the pairs.

    Args:
      lanes: one or two.
      meanwhile: called in every turn while environments act.
      seconds: has the waiting times for the model and for the environments added, `sample` and `env`.
    """
    waiting, finished = collections.deque(plays), dict[int, tuple[Rollout, Marks]]()

    def begin(lane: Lane) -> None:
        begun = [(lane.free.pop(0), *waiting.popleft()) for _ in range(min(len(lane.free), len(waiting)))]
        with timed(seconds, "env"):
            episodes = _begin(pool, template, begun)
            replay(pool, episodes, prefixes, max_steps)
        lane.in_play += episodes

    def answer(lane: Lane) -> None:
        if meanwhile:
            meanwhile()
        with timed(seconds, "env"):
            _observe(pool, lane, template.options, max_steps)
            for episode, ended in _end(pool, lane.in_play, max_steps):
                finished[episode.index] = ended
                lane.free.append(episode.slot)
        lane.in_play = _not_over(lane.in_play)
        begin(lane)

    for lane in lanes:
        begin(lane)
    while any(lane.in_play for lane in lanes):
        for lane, other in zip(lanes, [*lanes[1:], lanes[0]], strict=True):
            _speak(lane, template, bool(waiting))
            if other is not lane:
                answer(other)
            _act(pool, lane, template.options)
            if other is lane:
                answer(lane)
            if progress:
                progress(len(finished), len(plays))
    return [finished[index] for index, _ in plays]


def _speak(lane: Lane, template: Template, waiting: bool) -> None:
    """Replies of the rollouts that have room for one."""
    prompts, playing = _prompts(lane.in_play), _not_over(lane.in_play)
    if playing:
        _take(playing, prompts, lane.speak(playing, prompts, waiting), template)


def _act(pool: EnvPool, lane: Lane, options: RolloutOptions) -> None:
    """Hand the last actions to the environments."""
    lane.acting = _not_over(lane.in_play)
    passed = InvalidReply(options.invalid) is InvalidReply.PASS
    actions = {
        episode.slot: episode.actions[-1] for episode in lane.acting if episode.parsed[-1].valid or passed
    }
    lane.asked = frozenset(actions)
    if actions:
        pool.ask(actions)


def _observe(pool: EnvPool, lane: Lane, options: RolloutOptions, max_steps: int) -> None:
    """Wait for the answers, and say what happens to replies that had no action."""
    results = pool.answers() if lane.asked else {}
    ends = InvalidReply(options.invalid) is InvalidReply.END
    for episode in lane.acting:
        taken = episode.slot in lane.asked
        result = results[episode.slot] if taken else episode.unseen(done=ends)
        episode.observe(result, taken=taken, max_steps=max_steps)
    lane.acting, lane.asked = [], frozenset()


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
