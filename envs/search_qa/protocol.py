"""Search-R1's protocol: tags in, tags out (PeterGriffinJin/Search-R1, commit a14dc3a).

A reply is cut behind its first `</search>`, else behind its first `</answer>`. The first complete
`<search>` or `<answer>` block in what is left is the action. The prompt and the correction are the
benchmark's own, to the letter, since models are trained on them.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from envs.search_qa.data import Passage

THINK, SEARCH, INFORMATION, ANSWER = KINDS = ("think", "search", "information", "answer")
TAGS = tuple(f"<{slash}{kind}>" for kind in KINDS for slash in ("", "/"))
PROMPT = (
    "Answer the given question. You must conduct reasoning inside <think> and </think> first every time you "
    "get new information. After reasoning, if you find you lack some knowledge, you can call a search engine "
    "by <search> query </search> and it will return the top searched results between <information> and "
    "</information>. You can search as many times as your want. If you find no further external knowledge "
    "needed, you can directly provide the answer inside <answer> and </answer>, without detailed "
    "illustrations. For example, <answer> Beijing </answer>. Question: {question}\n"
)
BARE_PROMPT = "Question: {question}"
CORRECTION = (
    "\nMy previous action is invalid. If I want to search, I should put the query between <search> and "
    "</search>. If I want to give the final answer, I should put the answer between <answer> and </answer>. "
    "Let me try again.\n"
)
_FOREIGN = re.compile(r"<(/?(?:think|search|information|answer))>")


@dataclasses.dataclass(frozen=True)
class Action:
    """What a reply does.

    Attributes:
      kind: `search`, `answer`, or "" if the reply has no complete block.
      content: the query or the answer, without blanks around it.
      reply: the reply as it was cut.
    """

    kind: str
    content: str
    reply: str


def cut(reply: str) -> str:
    """What counts of a reply."""
    for kind in (SEARCH, ANSWER):
        before, found, _ = reply.partition(f"</{kind}>")
        if found:
            return before + found
    return reply


def read_reply(reply: str) -> Action:
    """The action of any text, in linear time."""
    counted = cut(reply)
    blocks = []
    for kind in (SEARCH, ANSWER):
        opening, closing = f"<{kind}>", f"</{kind}>"
        start = counted.find(opening)
        end = counted.find(closing, start) if start >= 0 else -1
        if end >= 0:
            blocks.append((start, Action(kind, counted[start + len(opening) : end].strip(), counted)))
    return min(blocks, key=lambda block: block[0])[1] if blocks else Action("", "", counted)


def foreign(text: str) -> str:
    """A text that the policy did not write, with the protocol's tags in it turned into ordinary text."""
    return _FOREIGN.sub(r"&lt;\1&gt;", text)


def ask(question: str, template: str) -> str:
    """The first observation; a question mark is added where there is none, as in the benchmark."""
    text = foreign(question.strip())
    return template.format(question=text if text.endswith("?") else f"{text}?")


def documents(passages: Sequence[Passage], *, limit: int = 0) -> str:
    """The passages as the benchmark writes them. `limit`: most characters of it, 0 for all."""
    told = "".join(
        f"Doc {i}(Title: {foreign(passage.title)}) {foreign(passage.text)}\n"
        for i, passage in enumerate(passages, start=1)
    ).strip()
    return told[:limit] if limit else told


def information(told: str) -> str:
    """The observation after a search."""
    return f"\n\n<{INFORMATION}>{told}</{INFORMATION}>\n\n"
