"""BM25 over the products, with the ranking of the original (Lucene 8 by Anserini 0.14.3: k1 0.9, b 0.4).

    score(q, d) = sum over terms t of w_t - w_t / (1 + tf(t, d) c_d)
    w_t = qtf(t) ln(1 + (N - n_t + 1/2) / (n_t + 1/2)),   c_d = 1 / (k1 (1 - b + b len_d / avgdl))

Lucene's arithmetic decides close calls, so it is followed: document lengths are rounded to a byte, terms are
scored in float32 and summed in float64, the sum is rounded to float32; equal scores are ordered by id. Common
libraries (rank_bm25, bm25s) have neither the byte nor the formula without (k1 + 1), and rank differently.

Source: Robertson and Zaragoza 2009, Eq. 3.15; Lucene 8 `BM25Similarity`, `SmallFloat`.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence

import numpy as np

from envs.webshop.analysis import terms

K1, B = 0.9, 0.4
_EXACT = 24  # lengths below it are stored as they are


def rounded_length(length: int) -> int:
    """A document length after Lucene's byte: four significant bits above the first 24 values."""
    if length < _EXACT:
        return length
    value = length - _EXACT
    shift = max(value.bit_length() - 4, 0)
    return _EXACT + (value >> shift << shift)


class Index:
    """Immutable BM25 index.

    Attributes:
      ids: ids of the documents, ascending.
    """

    def __init__(self, documents: Mapping[str, str]) -> None:
        """Index texts by their id."""
        self.ids = sorted(documents)
        postings: dict[str, tuple[list[int], list[int]]] = {}
        lengths = []
        for number, document_id in enumerate(self.ids):
            counts = collections.Counter(terms(documents[document_id]))
            lengths.append(counts.total())
            for term, count in counts.items():
                numbers, frequencies = postings.setdefault(term, ([], []))
                numbers.append(number)
                frequencies.append(count)
        self._filled = sum(length > 0 for length in lengths)
        saturation = self._saturation(lengths)
        self._postings = {
            term: (np.array(numbers, np.int32), np.array(counts, np.float32) * saturation[numbers])
            for term, (numbers, counts) in postings.items()
        }

    def _saturation(self, lengths: Sequence[int]) -> np.ndarray:
        """c_d of each document, float32[N]."""
        average = np.float32(sum(lengths) / max(self._filled, 1))
        rounded = np.array([rounded_length(length) for length in lengths], np.float32)
        k1, b, one = np.float32(K1), np.float32(B), np.float32(1)
        return one / (k1 * ((one - b) + b * rounded / max(average, one)))

    def search(self, query: str, limit: int) -> list[tuple[str, float]]:
        """The `limit` best documents with their scores, best first; none for a query without terms."""
        counts = collections.Counter(terms(query))
        found = [(self._postings[term], count) for term, count in counts.items() if term in self._postings]
        if not found or limit < 1:
            return []
        total = np.zeros(len(self.ids), np.float64)
        for (numbers, saturated), count in found:
            weight = np.float32(count) * self._idf(len(numbers))
            total[numbers] += weight - weight / (np.float32(1) + saturated)
        return self._best(total.astype(np.float32), limit)

    def _idf(self, documents: int) -> np.float32:
        return np.float32(np.log(1 + (self._filled - documents + 0.5) / (documents + 0.5)))

    def _best(self, scores: np.ndarray, limit: int) -> list[tuple[str, float]]:
        matching = int(np.count_nonzero(scores))
        if matching > limit:
            bound = np.partition(scores, len(scores) - limit)[len(scores) - limit]
            candidates = np.flatnonzero(scores >= bound)
        else:
            candidates = np.flatnonzero(scores)
        order = candidates[np.argsort(-scores[candidates], kind="stable")][:limit]
        return [(self.ids[number], float(scores[number])) for number in order]
