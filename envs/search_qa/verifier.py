"""The verifier interface of search QA: what was decided about answer, format and evidence, step by step.

Evidence for a question is a passage with the title of a supporting fact; for a question without supporting
facts, a passage that holds a golden answer (the check that Search-R1 calls a correct retrieval). A right
answer rests on one of two things, which the atom `exact_match` names as alternatives: on the evidence, or
on something else (`unsupported`: a guess, memory, another passage). The trace settles which.

Nothing here is shared with `envs.search_qa.score`: the answer is found by another scan, texts are compared
by another normalisation, and the format is checked reply by reply.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import string
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from envs.base import Atom, ScoreRole, Status, Variable, VerifierRecord, stable_hash
from envs.search_qa.data import MAX_FACTS, Passage, Question, title_key
from envs.search_qa.protocol import ANSWER, SEARCH, TAGS, THINK, Action

MAX_ATOMS = MAX_FACTS + 4
MAX_VARIABLES = MAX_FACTS + 3
_ARTICLES = frozenset({"a", "an", "the"})
_FOUND = "found"  # value of an evidence variable once its passage was retrieved
_LONGEST = 200  # characters of an answer that are kept as evidence
_ROUNDING = 1e-6  # of 0.8 and 0.1 in float32
# Values of the parameters of F by reward: the score of a right answer in a broken format, of a wrong one in
# a valid format, and of a wrong one in a broken format.
_VALUES = {"em": (1.0, 0.0, 0.0), "format": (0.8, 0.2, 0.1)}
REWARDS = tuple(_VALUES)


def canonical(text: str) -> str:
    """A text as answers are compared: lower case, ASCII punctuation and articles left out, single blanks."""
    kept = (char for char in text.lower() if char not in string.punctuation)
    runs = ("".join(run) for _, run in itertools.groupby(kept, str.isalnum))
    return " ".join("".join(" " if run in _ARTICLES else run for run in runs).split())


# The rollouts of a group read the same passages.
canonical_passage = functools.lru_cache(maxsize=8192)(canonical)


@dataclasses.dataclass(frozen=True)
class Spec:
    """What the verifier knows of a task.

    Attributes:
      answers: golden answers, canonical.
      facts: keys of the supporting titles; empty if the golden answers themselves are the evidence.
      reward: a key of `REWARDS`.
    """

    answers: frozenset[str]
    facts: tuple[str, ...]
    reward: str

    @property
    def pieces(self) -> int:
        """How many pieces of evidence there are."""
        return len(self.facts) or 1

    def shown(self, passage: Passage) -> set[int]:
        """The pieces of evidence that a passage is."""
        if self.facts:
            return {i for i, fact in enumerate(self.facts) if passage.name == fact}
        words = f" {canonical_passage(passage.contents)} "
        return {0} if any(f" {answer} " in words for answer in self.answers if answer) else set()


def specify(question: Question, reward: str) -> Spec:
    """The specification of a question."""
    answers = frozenset(map(canonical, question.answers))
    return Spec(answers, tuple(map(title_key, question.facts)), reward)


@dataclasses.dataclass(frozen=True)
class Moment:
    """What has been decided up to a moment.

    Attributes:
      found: pieces of evidence retrieved so far.
      answer: the last complete answer, None before; final: the episode ended with it.
      right: the answer is a golden one.
      supported: all evidence was there when the right answer was given; without one, all is there now.
      in_format: no reply has broken the format.
      pending: text behind the last complete answer, which may hold the beginning of one.
      committed: the last action gave the final answer.
    """

    found: frozenset[int] = frozenset()
    answer: str | None = None
    final: bool = False
    right: bool = False
    supported: bool = False
    in_format: bool = True
    pending: str = ""
    committed: bool = False


def observe(spec: Spec, before: Moment, action: Action, passages: Sequence[Passage], told: str) -> Moment:
    """The moment after an action.

    Args:
      passages: what the search retrieved. told: the answer of the environment, without foreign tags.
    """
    found = before.found.union(*map(spec.shown, passages))
    given, pending = _scan(before.pending + action.reply)
    answer = before.answer if given is None else given
    complete = len(found) == spec.pieces
    sound = action.kind != "" if spec.reward == "em" else in_order(action.reply)
    return Moment(
        found=found,
        answer=answer,
        final=action.kind == ANSWER,
        right=answer is not None and canonical(answer) in spec.answers,
        supported=before.supported if given is None and before.right else complete,
        in_format=before.in_format and sound,
        pending=pending + told,
        committed=action.kind == ANSWER,
    )


def idle(before: Moment) -> Moment:
    """The moment after an action that came when the episode was over."""
    return dataclasses.replace(before, committed=False)


def _scan(text: str) -> tuple[str | None, str]:
    """The last complete answer in a text, if any, and what is behind it."""
    opening, closing = f"<{ANSWER}>", f"</{ANSWER}>"
    answer, at = None, 0
    while (start := text.find(opening, at)) >= 0 and (end := text.find(closing, start)) >= 0:
        answer, at = text[start + len(opening) : end].strip(), end + len(closing)
    return answer, text[at:]


def in_order(reply: str) -> bool:
    """Whether a reply is a thought and then one search or answer, with no text outside and no tag inside."""
    head, closed, rest = reply.strip().partition(f"</{THINK}>")
    opened = head.startswith(f"<{THINK}>")
    for kind in (SEARCH, ANSWER):
        opening, closing = f"<{kind}>", f"</{kind}>"
        block = rest.lstrip()
        if closed and opened and block.startswith(opening) and block.endswith(closing):
            inner = head.removeprefix(f"<{THINK}>") + block[len(opening) : -len(closing)]
            return not any(tag in inner for tag in TAGS)
    return False


@functools.cache
def atoms_of(pieces: int) -> tuple[Atom, ...]:
    """The atoms of a question with so many pieces of evidence."""
    retrieved = tuple(f"retrieved_{i}" for i in range(1, pieces + 1))
    return (
        *(
            Atom(name, "retrieved", (f"passage_{i}",), role=ScoreRole.SUPPORT, level=2)
            for i, name in enumerate(retrieved, start=1)
        ),
        Atom("unsupported", "unsupported", ("evidence",), role=ScoreRole.SUPPORT, level=2),
        Atom("format_valid", "format_valid", ("format",), irreversible=True, level=1),
        Atom("answered", "answered", ("answer",), level=1),
        Atom(
            "exact_match",
            "exact_match",
            ("answer",),
            requires=("answered",),
            alternatives=(retrieved, ("unsupported",)),
            irreversible=True,
            level=1,
        ),
    )


def _short(text: str) -> str:
    """A text that is as different from others as `text`, and not much longer than `_LONGEST`."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text)}, {stable_hash(text)})"


def evidence(spec: Spec, moment: Moment) -> dict[str, str]:
    """The evidence variables of a moment."""
    passages = {f"passage_{i + 1}": _FOUND if i in moment.found else "" for i in range(spec.pieces)}
    answer = "none"
    if moment.answer is not None:
        answer = f"{'final' if moment.final else 'draft'}: {_short(moment.answer)}"
    return {
        **passages,
        "evidence": "complete" if moment.supported else "incomplete",
        "format": "valid" if moment.in_format else "broken",
        "answer": answer,
    }


def statuses(spec: Spec, moment: Moment) -> list[Status]:
    """The status of each atom of `atoms_of`, in its order."""
    wrong = Status.VIOLATED if moment.final else Status.UNSATISFIED
    return [
        *(Status.SATISFIED if i in moment.found else Status.UNKNOWN for i in range(spec.pieces)),
        Status.UNSATISFIED if moment.supported else Status.SATISFIED,
        Status.SATISFIED if moment.in_format else Status.VIOLATED,
        Status.UNSATISFIED if moment.answer is None else Status.SATISFIED,
        Status.SATISFIED if moment.right else wrong,
    ]


def record(spec: Spec, history: Sequence[Moment], score: float) -> VerifierRecord:
    """The record of the moments so far. `score`: the environment's own."""
    atoms = atoms_of(spec.pieces)
    names = np.array([atom.id for atom in atoms])
    rows = [evidence(spec, moment) for moment in history]
    commits = np.array([moment.committed for moment in history[1:]], bool)
    values = (np.array(value, np.float32) for value in _VALUES[spec.reward])
    right_broken, wrong_valid, wrong_broken = values
    return VerifierRecord(
        atoms=atoms,
        variables=tuple(Variable(name, name.startswith("passage")) for name in rows[0]),
        status=np.array([statuses(spec, moment) for moment in history], np.int8),
        evidence=tuple(tuple(row.values()) for row in rows),
        commits=commits,
        scope=commits[:, None] & np.isin(names, ("answered", "exact_match")),
        params={
            "right": names == "exact_match",
            "answered": names == "answered",
            "valid": names == "format_valid",
            "right_broken": right_broken,
            "wrong_valid": wrong_valid,
            "wrong_broken": wrong_broken,
        },
        eta=0.0 if spec.reward == "em" else _ROUNDING,
        score=score,
    )


def aggregate(satisfied: Any, params: Mapping[str, Any]) -> Any:
    """F: what a right, a wrong and no answer are worth, with and without a valid format."""
    right, answered, valid = ((satisfied & params[name]).any() for name in ("right", "answered", "valid"))
    wrong = valid * params["wrong_valid"] + ~valid * params["wrong_broken"]
    return right * (valid + ~valid * params["right_broken"]) + (answered & ~right) * wrong


# Of each parameter of F: whether it has an axis of atoms.
ATOM_PARAMS = {
    "right": True,
    "answered": True,
    "valid": True,
    "right_broken": False,
    "wrong_valid": False,
    "wrong_broken": False,
}
