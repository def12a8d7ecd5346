"""The benchmark's own scores: exact match of the last answer, and exact match with a reward for format.

Source: Search-R1's `qa_em.py` and `qa_em_format.py` (commit a14dc3a); the normalisation is SQuAD's
(Rajpurkar et al., 2016). Nothing here is used by the verifier interface, and nothing of it here.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence

_ANSWER = re.compile(r"(</?answer>)")
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_SPLIT = re.compile(r"(</?(?:think|search|information|answer)>)")
_INSIDE = {"think", "search", "information", "answer"}
# Of the format automaton: tag -> the states in which it may stand and the one after it.
_MOVES = {
    "<think>": ({"start", "informed"}, "think"),
    "</think>": ({"think"}, "thought"),
    "<search>": ({"thought"}, "search"),
    "</search>": ({"search"}, "searched"),
    "<information>": ({"searched"}, "information"),
    "</information>": ({"information"}, "informed"),
    "<answer>": ({"thought"}, "answer"),
    "</answer>": ({"answer"}, "end"),
}
# Scores with a reward for format: (answer right, format valid); without any answer it is 0.
FORMAT_SCORES = {(True, True): 1.0, (True, False): 0.8, (False, True): 0.2, (False, False): 0.1}


def normalise(text: str) -> str:
    """Lower case, no ASCII punctuation, no articles, single blanks."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def extract_answer(text: str) -> str | None:
    """The content of the last complete `<answer>` block; None without any.

    The same as the last match of the benchmark's `<answer>(.*?)</answer>`, in linear time: the expression
    takes quadratic time on a text of many opening tags.
    """
    answer: str | None = None
    block: list[str] | None = None
    for part in _ANSWER.split(text):
        if part == "</answer>" and block is not None:
            answer, block = "".join(block), None
        elif block is not None:
            block.append(part)
        elif part == "<answer>":
            block = []
    return None if answer is None else answer.strip()


def exact_match(prediction: str, answers: Sequence[str]) -> bool:
    """Whether a prediction equals one of the golden answers once both are normalised."""
    return normalise(prediction) in map(normalise, answers)


def substring_match(prediction: str, answers: Sequence[str]) -> bool:
    """Search-R1's subEM: whether the prediction contains a golden answer once both are normalised."""
    return any(normalise(answer) in normalise(prediction) for answer in answers)


def is_valid_format(text: str) -> bool:
    """Whether a text is a thought, any number of (search, information, thought), and an answer."""
    state = "start"
    for part in _SPLIT.split(text):
        if part in _MOVES:
            before, after = _MOVES[part]
            if state not in before:
                return False
            state = after
        elif state not in _INSIDE and part.strip():
            return False
    return state == "end"


def score_em(text: str, answers: Sequence[str]) -> float:
    """1 if the last answer of a rollout's text is right, else 0."""
    answer = extract_answer(text)
    return float(answer is not None and exact_match(answer, answers))


def score_format(text: str, answers: Sequence[str]) -> float:
    """See `FORMAT_SCORES`."""
    answer = extract_answer(text)
    return 0.0 if answer is None else FORMAT_SCORES[exact_match(answer, answers), is_valid_format(text)]
