"""What step-level methods need from the texts of observations, as arrays: clusters and word vectors.

Made on the host, and only for methods that ask for it (`CreditMethod.needs`). Each field is a function of one
group's own texts, so that what a group gets does not depend on the other groups of the batch.
"""

from __future__ import annotations

import collections
import dataclasses
import difflib
import functools
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from envs.base import stable_hash
from vict_jax.batching import Rollout
from vict_jax.credit.options import VictOptions
from vict_jax.types import CreditInputs

# Of each rollout of a group, the raw observations before its actions; none of a lost one.
GroupTexts = Sequence[Sequence[str]]

# Words as scikit-learn's TfidfVectorizer has them by default: two or more letters, digits or underscores.
_WORD = re.compile(r"\b\w\w+\b")


def texts_of(groups: Sequence[Sequence[Rollout]]) -> list[list[Sequence[str]]]:
    """The texts of rollouts as `add_needed` takes them."""
    return [[() if r.lost else r.observations[: len(r.actions)] for r in group] for group in groups]


def add_needed(
    inputs: CreditInputs, texts: Sequence[GroupTexts], *, needs: Collection[str], options: VictOptions
) -> CreditInputs:
    """The NumPy `inputs` with those of the fields in `needs` that are made of texts.

    Args:
      texts: of the G groups that `inputs` was made of.

    Raises:
      ValueError: the texts are not those of as many groups and rollouts as `inputs` has.
    """
    groups, rollouts, _ = inputs.commits.shape
    if len(texts) != groups or any(len(group) != rollouts for group in texts):
        found = f"{len(texts)} groups of {sorted({len(group) for group in texts})} rollouts"
        raise ValueError(f"texts of {found} do not belong to a batch of {groups} groups of {rollouts}")
    steps = inputs.commits.shape[-1]
    made: dict[str, Any] = {
        name: np.stack([make(group, steps, options) for group in texts])
        for name, make in _MAKE.items()
        if name in needs
    }
    return dataclasses.replace(inputs, **made)


def _spread(group: GroupTexts, steps: int, of_text: Mapping[str, int]) -> np.ndarray:
    """The number of each step's text, i64[N, T]; -1 on padding."""
    out = np.full((len(group), steps), -1)
    for n, texts in enumerate(group):
        out[n, : len(texts)] = [of_text[text] for text in texts]
    return out


# --- clusters -------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=65536)
def _ratio(text: str, first: str) -> float:
    return difflib.SequenceMatcher(None, text, first).ratio()


def _most_similar(counts: np.ndarray, firsts: np.ndarray) -> np.ndarray:
    """Upper bounds of the similarity of a text to others, from the characters they have in common."""
    common = np.minimum(counts, firsts).sum(axis=-1)
    return 2.0 * common / np.maximum(counts.sum() + firsts.sum(axis=-1), 1)


def clusters(texts: Sequence[str], *, similarity: float) -> dict[str, str]:
    """The first member of each text's cluster, by text (GiGPO, arXiv 2505.10978, its code).

    Texts are taken in order. Each joins the first cluster to whose first member it is as similar as asked
    (`difflib.SequenceMatcher.ratio`), or else opens its own.
    """
    distinct = list(dict.fromkeys(texts))
    alphabet = {character: i for i, character in enumerate(sorted(set().union(*distinct)))}
    counts = np.zeros((len(distinct), len(alphabet)), np.int32)
    for row, text in zip(counts, distinct, strict=True):
        np.add.at(row, [alphabet[character] for character in text], 1)
    opened: list[int] = []
    first: dict[str, str] = {}
    for i, text in enumerate(distinct):
        bounds = _most_similar(counts[i], counts[opened])
        near = (
            distinct[opened[k]]
            for k in np.flatnonzero(bounds >= similarity)
            if _ratio(text, distinct[opened[k]]) >= similarity
        )
        first[text] = next(near, text)
        if first[text] == text:
            opened.append(i)
    return first


def _cluster_id(group: GroupTexts, steps: int, options: VictOptions) -> np.ndarray:
    """i32[N, T], hash of the cluster's first member; 0 on padding."""
    flat = [text for texts in group for text in texts]
    first = clusters(flat, similarity=options.gigpo.similarity) if flat else {}
    number = _spread(group, steps, {text: stable_hash(of) for text, of in first.items()})
    return np.where(number < 0, 0, number).astype(np.int32)


# --- word vectors ---------------------------------------------------------------------------------


@functools.lru_cache(maxsize=65536)
def _words(text: str) -> tuple[tuple[str, int], ...]:
    return tuple(collections.Counter(_WORD.findall(text.lower())).items())


def term_vectors(texts: Sequence[str], *, terms: int) -> tuple[np.ndarray, dict[str, int]]:
    """TF-IDF vectors of the distinct texts among `texts`, one document each step.

    tf is a word's count, idf = ln((1 + n) / (1 + df)) + 1 with n documents of which df have the word, and
    each vector has length 1. The `terms` most frequent words are told apart; of equally frequent ones those
    that come first in the alphabet.

    Returns:
      f32[distinct texts, terms], and the row of each text.
    """
    documents = collections.Counter(texts)
    row = {text: i for i, text in enumerate(documents)}
    total: collections.Counter[str] = collections.Counter()
    having: collections.Counter[str] = collections.Counter()
    for text, times in documents.items():
        for word, count in _words(text):
            total[word] += times * count
            having[word] += times
    kept = sorted(total, key=lambda word: (-total[word], word))[:terms]
    column = {word: i for i, word in enumerate(kept)}
    idf = {word: math.log((1 + len(texts)) / (1 + having[word])) + 1.0 for word in kept}
    vectors = np.zeros((len(documents), terms))
    for text, i in row.items():
        for word, count in _words(text):
            if word in column:
                vectors[i, column[word]] = count * idf[word]
    length = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return (vectors / np.where(length > 0, length, 1.0)).astype(np.float32), row


def _state_terms(group: GroupTexts, steps: int, options: VictOptions) -> np.ndarray:
    """f32[N, T, terms]; 0 on padding."""
    vectors, row = term_vectors([text for texts in group for text in texts], terms=options.proxmo.terms)
    number = _spread(group, steps, row)
    vectors = np.concatenate([vectors, np.zeros((1, options.proxmo.terms), np.float32)])
    return vectors[number]  # -1 is the row of zeros


_MAKE: Mapping[str, Callable[[GroupTexts, int, VictOptions], np.ndarray]] = {
    "cluster_id": _cluster_id,
    "state_terms": _state_terms,
}
# The fields that are made here.
FIELDS = frozenset(_MAKE)
