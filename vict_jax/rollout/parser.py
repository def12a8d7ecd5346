"""From the text of a reply to one action, or to the reason why there is none; and the way back."""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Sequence

from vict_jax.rollout.tokenizer import ACTION, END_ACTION, END_THINK, REPLY_TAGS, THINK


class ReplyFormat(enum.Enum):
    """What a reply looks like.

    TAGS: `<think>..</think><action>..</action>`, blanks between the parts, one line of action.
    ACTION: `<action>..</action>` alone, one line of action.
    LINE: the reply is the action, one line; for models too small to think.
    RAW: the reply is the action, whatever is in it; for environments with a protocol of their own, such as
      the tags of search QA.
    """

    TAGS = "tags"
    ACTION = "action"
    LINE = "line"
    RAW = "raw"


@dataclasses.dataclass(frozen=True)
class ParsedReply:
    """`valid` replies have an action and no reason; others have a reason and the empty action."""

    action: str
    valid: bool
    reason: str


# The tags that a format wants, once each and in this order.
_WANTED = {ReplyFormat.TAGS: REPLY_TAGS, ReplyFormat.ACTION: (ACTION, END_ACTION), ReplyFormat.LINE: ()}
_TAG = re.compile("|".join(map(re.escape, REPLY_TAGS)))
_CONTROL = re.compile(r"<\|[^|\s]*\|>")


def reply_text(text: str, reply_format: ReplyFormat, stop_strings: Sequence[str]) -> str:
    """What of a reply's text is to be read: nothing after the first stop string, which a LINE leaves out.

    Stop strings of the other formats may be a part of them, such as `</action>`, and stay.
    """
    ends = [(text.index(stop), len(stop)) for stop in stop_strings if stop in text]
    if not ends:
        return text
    start, length = min(ends, key=sum)  # the one that was complete first
    return text[: start if reply_format is ReplyFormat.LINE else start + length]


def _invalid(reason: str) -> ParsedReply:
    return ParsedReply(action="", valid=False, reason=reason)


def parse_reply(
    text: str, reply_format: ReplyFormat, *, stopped: bool, allow_trailing: bool = False
) -> ParsedReply:
    """Read one reply.

    Args:
      text: the reply without the stop token.
      reply_format: what it must look like; nothing else is accepted.
      stopped: it ended with the stop token. A single line that was cut off may be half an action and is
        invalid; a complete action block is one whatever follows.
      allow_trailing: for TAGS and ACTION, accept text (but no tag) after `</action>`.
    """
    if control := _CONTROL.search(text):
        return _invalid(f"control token {control.group()} in the reply")
    if reply_format is ReplyFormat.LINE:
        return _parse_line(text, stopped)
    if reply_format is ReplyFormat.RAW:
        action = text.strip()
        return ParsedReply(action, True, "") if action else _invalid("empty action")
    return _parse_tags(text, _WANTED[reply_format], allow_trailing)


def _parse_tags(text: str, wanted: tuple[str, ...], allow_trailing: bool) -> ParsedReply:
    tags = _TAG.findall(text)
    if tags != list(wanted):
        found = "".join(tags) or "none"
        return _invalid(f"expected the tags {''.join(wanted)} once each, found {found}")
    *outside, action, after = _TAG.split(text)
    if any(part.strip() for part in outside[::2]):
        return _invalid("text outside the blocks")
    if after.strip() and not allow_trailing:
        return _invalid(f"text after {END_ACTION}")
    return _one_line(action)


def _parse_line(text: str, stopped: bool) -> ParsedReply:
    if not stopped:
        return _invalid("cut off before its end")
    if tag := _TAG.search(text):
        return _invalid(f"tag {tag.group()} in a plain reply")
    return _one_line(text)


def _one_line(text: str) -> ParsedReply:
    action = text.strip()
    if not action:
        return _invalid("empty action")
    if len(action.splitlines()) > 1:
        return _invalid("more than one line of action")
    return ParsedReply(action=action, valid=True, reason="")


def format_reply(action: str, reply_format: ReplyFormat, thought: str = "") -> str:
    """The reply that says `action`, as demonstrations and the example in the prompt write it.

    Raises:
      ValueError: the parser would not read `action` back from it.
    """
    reply = action
    if reply_format in (ReplyFormat.TAGS, ReplyFormat.ACTION):
        reply = f"{ACTION}{action}{END_ACTION}"
    if reply_format is ReplyFormat.TAGS:
        reply = f"{THINK}{thought}{END_THINK}{reply}"
    parsed = parse_reply(reply, reply_format, stopped=True)
    if not parsed.valid or parsed.action != action:
        raise ValueError(
            f"action {action!r} cannot be said as {reply!r}: {parsed.reason or 'blanks around it'}"
        )
    return reply
