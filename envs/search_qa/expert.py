"""Two experts: one that reads generated worlds, one for real questions that knows the answer by sight.

Both act on the texts that a policy has seen. The expert of the worlds understands their questions and
sentences and knows nothing else. On real questions nobody here can read, so that expert knows the golden
answers, but gives one only once a passage has shown it; without such a passage it answers with a title.
"""

from __future__ import annotations

import dataclasses
import re
import zlib
from collections.abc import Sequence

from envs.search_qa.data import Question, title_key
from envs.search_qa.generator import KINDS, QUESTIONS, STATEMENTS
from envs.search_qa.protocol import ANSWER, SEARCH
from envs.search_qa.verifier import canonical

_DOCUMENT = re.compile(
    r"^(?:.*<information>)?Doc \d+\(Title: (.*?)\) (.*?)(?:</information>)?$", re.MULTILINE
)
_UNKNOWN = "unknown"


def _pattern(template: str) -> re.Pattern[str]:
    """A template of the generator as an expression; `s` and `o` are what it says."""
    escaped = re.escape(template)
    for name, kind in (("s", "(?P<s>.+?)"), ("o", "(?P<o>[^.]+)"), ("job", r"\w+")):
        escaped = escaped.replace(re.escape(f"{{{name}}}"), kind)
    return re.compile(escaped)


_QUESTIONS = [(path, _pattern(template)) for path, template in QUESTIONS.items()]
_STATEMENTS = {relation: _pattern(template) for relation, template in STATEMENTS.items()}


@dataclasses.dataclass
class Memory:
    """What was seen.

    Attributes:
      question: the text of the question.
      passages: texts of the passages seen, by title key, in the order in which they came.
      titles: their titles as shown.
      searched: queries so far.
      turns_left: actions that may still be taken.
      thinks: put a thought before every action, as the format asks.
    """

    question: str
    turns_left: int
    thinks: bool
    passages: dict[str, str] = dataclasses.field(default_factory=dict)
    titles: list[str] = dataclasses.field(default_factory=list)
    searched: list[str] = dataclasses.field(default_factory=list)


def notice(memory: Memory, query: str | None, observation: str) -> None:
    """Take down an action, its query if it was a search, and the answer."""
    memory.turns_left -= 1
    if query is not None:
        memory.searched.append(query)
    for title, text in _DOCUMENT.findall(observation):
        memory.passages.setdefault(title_key(title), text)
        memory.titles.append(title.strip('"'))


def say(memory: Memory, kind: str, content: str) -> str:
    """An action in the protocol."""
    thought = (
        f"<think> I {'look up' if kind == SEARCH else 'answer'} {content}. </think> " if memory.thinks else ""
    )
    return f"{thought}<{kind}> {content} </{kind}>"


def read_world(memory: Memory) -> str:
    """The next action on a question of a generated world."""
    path, subject = understand(memory.question)
    at = subject
    for relation in path:
        text = memory.passages.get(title_key(at))
        stated = _STATEMENTS[relation].search(text) if text is not None else None
        if stated is None:
            queries = [query for query in _phrasings(memory, at, relation) if query not in memory.searched]
            if queries and memory.turns_left > 1:
                return say(memory, SEARCH, queries[0])
            break
        at = stated["o"]
    return say(memory, ANSWER, at)


def _phrasings(memory: Memory, name: str, relation: str) -> list[str]:
    """Queries for a name, alone and with a word for what it is; one time in four the longer one first.

    A habit of this expert, not knowledge: the longer query is never worse. Who learns from its transcripts
    has seen both and can find out.
    """
    short, long = name, f"{name} {KINDS[relation]}"
    longer_first = zlib.crc32(f"{memory.question} {name}".encode()) % 4 == 0
    return [long, short] if longer_first else [short, long]


def understand(question: str) -> tuple[Sequence[str], str]:
    """The relations that a question asks for, and its subject.

    Raises:
      ValueError: it is no question of a generated world.
    """
    matches = [(path, found["s"]) for path, form in _QUESTIONS if (found := form.fullmatch(question))]
    if not matches:
        raise ValueError(f"{question!r} is no question of a generated world")
    # "Where was the director of X born?" is also "Where was Y born?": the longer path says more.
    return max(matches, key=lambda match: len(match[0]))


def read_real(memory: Memory, question: Question) -> str:
    """The next action on a real question; see the module."""
    seen = " ".join(
        f" {canonical(title)} " + f" {canonical(text)} " for title, text in memory.passages.items()
    )
    yes_no = {"yes", "no"} & set(map(canonical, question.answers))
    for answer in question.answers:
        if f" {canonical(answer)} " in seen or (yes_no and memory.passages):
            return say(memory, ANSWER, answer)
    queries = [query for query in (memory.question, *memory.titles) if query not in memory.searched]
    if queries and memory.turns_left > 1:
        return say(memory, SEARCH, queries[0])
    return say(memory, ANSWER, memory.titles[0] if memory.titles else _UNKNOWN)
