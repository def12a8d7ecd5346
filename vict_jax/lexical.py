"""Which atoms an action text mentions: words shared with what the atom speaks of.

Only the control `temporal_nearest` reads it (method page, section 9): credit by words and time instead
of by proof.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Sequence

import numpy as np

from envs.base import VerifierRecord

_WORD = re.compile(r"[^\W\d_]+|\d+")
# Words of commands and evidence values that say nothing about a thing.
FUNCTION_WORDS = frozenset(
    _WORD.findall(
        "a an and are as at by for from has have in into is it its no not of off on onto or out over that "
        "the them then there this to under up was were with without"
    )
)


@functools.lru_cache(maxsize=65536)
def words(text: str) -> frozenset[str]:
    """Lower-case words and numbers of a text, without `FUNCTION_WORDS`."""
    return frozenset(_WORD.findall(text.lower())) - FUNCTION_WORDS


def vocabularies(records: Collection[VerifierRecord]) -> list[frozenset[str]]:
    """For each atom of a group's records, the words of its id and of all values of what it reads."""
    if not records:
        return []
    first = next(iter(records))
    values: list[set[str]] = [set() for _ in first.variables]
    for record in records:
        for seen, column in zip(values, zip(*record.evidence, strict=True), strict=True):
            seen.update(column)
    spoken = {
        variable.id: frozenset().union(*map(words, seen))
        for variable, seen in zip(first.variables, values, strict=True)
    }
    return [words(atom.id).union(*(spoken[name] for name in atom.variables)) for atom in first.atoms]


def mention_table(records: Sequence[VerifierRecord]) -> Callable[[str], np.ndarray]:
    """A function from an action text to bool[M], the atoms of the group that it mentions.

    Args:
      records: those of a group's rollouts that have one; they agree about atoms and variables.
    """
    about = vocabularies(records)

    @functools.cache
    def mentions(action: str) -> np.ndarray:
        said = words(action)
        return np.array([not said.isdisjoint(vocabulary) for vocabulary in about], bool)

    return mentions
