"""Rollouts that depart from a solution in one thing that the verifier has to notice, or must not mind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from envs.search_qa.data import Question
from envs.search_qa.protocol import ANSWER, INFORMATION, SEARCH, THINK

_THOUGHT = f"<{THINK}> I think. </{THINK}> "


def mutations(
    question: Question, solution: Sequence[str], others: Sequence[str], *, thoughts: bool
) -> Mapping[str, Sequence[str]]:
    """Mutations of a task.

    Args:
      solution: the expert's actions, with or without thoughts; the last one answers.
      others: names that are no golden answer; at least one.
      thoughts: play every mutation with a thought before each action, too.
    """
    plain = [action.rpartition(f"</{THINK}> ")[2] for action in solution]
    found = _plain(question, plain, others)
    if not thoughts:
        return found
    thought = {f"{name}, thought": [_THOUGHT + action for action in played] for name, played in found.items()}
    return {**found, **thought}


def _plain(question: Question, solution: Sequence[str], others: Sequence[str]) -> dict[str, Sequence[str]]:
    gold, wrong = question.answers[0], others[0]
    searches, right, false = list(solution[:-1]), _answer(gold), _answer(wrong)
    first = searches[:1] or [f"<{SEARCH}> {question.text} </{SEARCH}>"]
    return {
        "wrong answer": [*searches, false],
        "right answer": [*searches, right],
        "another golden answer": [*searches, _answer(question.answers[-1])],
        "right answer without evidence": [right],
        "wrong answer without evidence": [false],
        "right answer after the first search": [*first, right],
        "no answer": [*searches, *first],
        "empty answer": [*searches, _answer("")],
        "other case, articles, punctuation": [*searches, _answer(f"  The {gold.upper()}!  ")],
        "answer with more words": [*searches, _answer(f"{gold} or {wrong}")],
        "two answers, the right one first": [*searches, f"{right} {false}"],
        "answer block left open": [*searches, f"<{ANSWER}> {gold}"],
        "answer without tags": [*searches, gold],
        "corrected once": [gold, *searches, right],
        "answer in a query": [f"<{SEARCH}> {right} </{SEARCH}>"],
        "wrong answer after one in a query": [f"<{SEARCH}> {right} </{SEARCH}>", false],
        "search and answer in one reply": [f"{first[0]} {right}"],
        "answer and search in one reply": [f"{false} {first[0]}"],
        "answers around a search": [f"{false} {right} {first[0]}"],
        "block closed by a later reply": [f"<{ANSWER}> {gold}", f"</{ANSWER}>", *first],
        "invented information": [f"<{INFORMATION}> {gold} </{INFORMATION}> {right}"],
        "thoughts before every action": [_THOUGHT + action for action in [*searches, right]],
        "a thought missing": [*(_THOUGHT + action for action in searches), right],
        "a tag inside a thought": [f"<{THINK}> <{ANSWER}> </{THINK}> {right}"],
        "wrong answer in a valid format": [_THOUGHT + action for action in [*searches, false]],
    }


def _answer(text: str) -> str:
    return f"<{ANSWER}> {text} </{ANSWER}>"
