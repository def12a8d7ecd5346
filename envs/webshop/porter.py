"""Porter's stemmer with Martin Porter's later changes, as Lucene's `PorterStemFilter` has it.

Source: M. F. Porter, "An algorithm for suffix stripping", Program 14(3), 1980, and the points of departure
on his page (words of one or two letters stay; `bli` for `abli`; `logi`). Written here because the libraries
that have this variant cost each worker process a second at start.
"""

from __future__ import annotations

import functools
import itertools

_VOWELS = frozenset("aeiou")

# Step 2 and 3: by the letter that decides (the last but one), suffix -> replacement where the measure is > 0.
_STEP_2 = {
    "a": (("ational", "ate"), ("tional", "tion")),
    "c": (("enci", "ence"), ("anci", "ance")),
    "e": (("izer", "ize"),),
    "l": (("bli", "ble"), ("alli", "al"), ("entli", "ent"), ("eli", "e"), ("ousli", "ous")),
    "o": (("ization", "ize"), ("ation", "ate"), ("ator", "ate")),
    "s": (("alism", "al"), ("iveness", "ive"), ("fulness", "ful"), ("ousness", "ous")),
    "t": (("aliti", "al"), ("iviti", "ive"), ("biliti", "ble")),
    "g": (("logi", "log"),),
}
_STEP_3 = (
    ("icate", "ic"),
    ("ative", ""),
    ("alize", "al"),
    ("iciti", "ic"),
    ("ical", "ic"),
    ("ful", ""),
    ("ness", ""),
)
# Step 4: removed where the measure is > 1; of two that fit, the longer one first.
_STEP_4 = (
    *("al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "ion", "ou", "ism"),
    *("ate", "iti", "ous", "ive", "ize"),
)


def _consonants(word: str) -> list[bool]:
    """Which letters are consonants: not a vowel, and not a y after a consonant."""
    found: list[bool] = []
    for letter in word:
        vowel = letter in _VOWELS or (letter == "y" and bool(found) and found[-1])
        found.append(not vowel)
    return found


def _measure(stem: str) -> int:
    """m of the form [C](VC)^m[V]: how often a consonant follows a vowel."""
    kinds = _consonants(stem)
    return sum(after and not before for before, after in itertools.pairwise(kinds))


def _has_vowel(stem: str) -> bool:
    return not all(_consonants(stem))


def _double_consonant(word: str) -> bool:
    return len(word) > 1 and word[-1] == word[-2] and _consonants(word)[-1]


def _short_end(word: str) -> bool:
    """Whether it ends consonant, vowel, consonant, the last not w, x or y."""
    return len(word) > 2 and _consonants(word)[-3:] == [True, False, True] and word[-1] not in "wxy"


def _plurals_and_participles(word: str) -> str:
    """Step 1a, 1b and 1c."""
    if word.endswith("s"):
        if word.endswith(("sses", "ies")):
            word = word[:-2]
        elif not word.endswith("ss"):
            word = word[:-1]
    if word.endswith("eed"):
        if _measure(word[:-3]) > 0:
            word = word[:-1]
    else:
        for suffix in ("ed", "ing"):
            if word.endswith(suffix) and _has_vowel(word[: -len(suffix)]):
                word = _after_participle(word[: -len(suffix)])
                break
    if word.endswith("y") and _has_vowel(word[:-1]):
        word = word[:-1] + "i"
    return word


def _after_participle(stem: str) -> str:
    if stem.endswith(("at", "bl", "iz")):
        return stem + "e"
    if _double_consonant(stem):
        return stem if stem[-1] in "lsz" else stem[:-1]
    return stem + "e" if _measure(stem) == 1 and _short_end(stem) else stem


def _replace(word: str, pairs: tuple[tuple[str, str], ...]) -> str:
    """Replace the first suffix that fits if the measure before it is > 0."""
    for suffix, replacement in pairs:
        if word.endswith(suffix):
            stem = word[: -len(suffix)]
            return stem + replacement if _measure(stem) > 0 else word
    return word


def _remove(word: str) -> str:
    """Step 4."""
    for suffix in _STEP_4:
        if word.endswith(suffix):
            stem = word[: -len(suffix)]
            if suffix == "ion" and stem[-1:] not in ("s", "t"):
                return word
            return stem if _measure(stem) > 1 else word
    return word


def _final_e_and_ll(word: str) -> str:
    """Step 5a and 5b."""
    if word.endswith("e"):
        measure = _measure(word[:-1])
        if measure > 1 or (measure == 1 and not _short_end(word[:-1])):
            word = word[:-1]
    return word[:-1] if word.endswith("ll") and _measure(word) > 1 else word


@functools.lru_cache(maxsize=65536)
def stem(word: str) -> str:
    """The stem of a lower-case word; letters other than a-z count as consonants."""
    if len(word) <= 2:
        return word
    word = _plurals_and_participles(word)
    word = _replace(word, _STEP_2.get(word[-2:-1], ()))
    return _final_e_and_ll(_remove(_replace(word, _STEP_3)))
