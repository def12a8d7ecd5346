"""Can a model say what the environment wants, and does the prompt keep the verifier to itself."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterator, Sequence
from typing import Any

from envs.base import Domain
from envs.play import EXPERT
from vict_jax.audit.findings import Level, Section, call, judged
from vict_jax.audit.watch import Episode
from vict_jax.models.options import ModelOptions
from vict_jax.rollout.options import RolloutOptions, TemplateKind
from vict_jax.rollout.parser import ReplyFormat, format_reply
from vict_jax.rollout.template import check_prompt
from vict_jax.rollout.tokenizer import Codec, train_tokenizer


def check_prompts(domain: Domain, options: Any, episodes: Sequence[Episode]) -> Section:
    """The prompt's own example and the environment's actions through the parser, in every reply format."""
    actions = _actions(episodes)
    formats = list(ReplyFormat)
    findings = [
        judged(
            f"the prompt's own example parses in {len(formats)} reply formats",
            _examples(formats),
            "the instruction and the parser disagree, which is a fault of vict_jax.rollout: report it",
        ),
        judged(
            f"{len(actions)} actions can be said in {len(formats)} reply formats",
            _unsayable(actions, formats),
            "an action is one line without blanks around it, and without the tags of a reply",
        ),
    ]
    codec = Codec(train_tokenizer(call("corpus(options)", domain.corpus, options), ModelOptions().vocab_size))
    replies = {kind.value: _longest_reply(codec, actions, kind) for kind in formats}
    transcript = max(map(functools.partial(_transcript, codec), episodes))
    limits = RolloutOptions()
    findings += [
        judged(
            f"replies fit into {limits.max_new_tokens} tokens, the default of max_new_tokens",
            (
                f"a reply in the format {name!r} has {size} tokens"
                for name, size in replies.items()
                if size > limits.max_new_tokens
            ),
            f"with that format, set config.rollout.max_new_tokens to {max(replies.values())} or more, with "
            "room for the thoughts",
            Level.WARN,
        ),
        judged(
            f"whole episodes fit into {limits.max_context} tokens, the default of max_context",
            (f"an episode has {size} tokens" for size in [transcript] if size > limits.max_context),
            f"set config.rollout.max_context to {transcript} or more, or use context='window'",
            Level.WARN,
        ),
        judged(
            "no observation contains the id or the description of an atom",
            _leaks(episodes),
            "judge: a common word is harmless, but what the verifier knows must not reach the policy",
            Level.WARN,
        ),
    ]
    figures = {
        "tokens of the longest reply": replies,
        "tokens of the longest episode, without commands": transcript,
    }
    return Section("prompt", tuple(findings), figures)


def _actions(episodes: Sequence[Episode]) -> list[str]:
    """What the expert says, and every admissible command."""
    said = [action for e in episodes if e.played.kind == EXPERT for action in e.played.actions]
    offered = [command for e in episodes for seen in e.observations for command in seen.admissible]
    return list(dict.fromkeys(said + offered))


def _examples(formats: Sequence[ReplyFormat]) -> Iterator[str]:
    for kind in formats:
        try:
            check_prompt(RolloutOptions(reply=kind.value, template=TemplateKind.CHAT.value))
        except ValueError as error:
            yield str(error)


def _unsayable(actions: Sequence[str], formats: Sequence[ReplyFormat]) -> Iterator[str]:
    for action in actions:
        for kind in formats:
            try:
                format_reply(action, kind)
            except ValueError as error:
                yield str(error)


def _longest_reply(codec: Codec, actions: Sequence[str], kind: ReplyFormat) -> int:
    """Tokens of the longest reply that can be said, the stop token included."""
    lengths = [0]
    for action in actions:
        with contextlib.suppress(ValueError):  # has been reported
            lengths.append(len(codec.reply(format_reply(action, kind))) + 1)
    return max(lengths)


def _transcript(codec: Codec, episode: Episode) -> int:
    """Tokens of an episode as an appended, plain context has them, commands left out."""
    texts = [f"{observation.text}\n>" for observation in episode.observations]
    return sum(len(codec.text(text)) for text in texts) + sum(
        len(codec.text(action)) + 2 for action in episode.played.actions
    )


def _leaks(episodes: Sequence[Episode]) -> Iterator[str]:
    atoms = [atom for episode in episodes for atom in episode.record.atoms]
    words = dict.fromkeys(text for atom in atoms for text in (atom.id, atom.description) if text)
    seen = [
        (text, e.played.task.id) for e in episodes for o in e.observations for text in (o.text, *o.admissible)
    ]
    for word in words:
        pattern = re.compile(rf"(?<!\w){re.escape(word)}(?!\w)", re.IGNORECASE)
        for text, task in dict(seen).items():
            if pattern.search(text):
                yield f"{word!r} stands in {text!r:.80} (task {task!r})"
                break
