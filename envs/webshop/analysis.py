"""From text to index terms, as Lucene 8's English analyser: words, no possessive, no stop words, stems.

Words are those of UAX #29 as Lucene's StandardTokenizer reads it: a letter or digit with its marks, joined by
`_`, between letters also by ' ’ . : · and between digits by ' ’ . , ; ⁄; ideographs, hiragana and pictographs
are words by themselves. What changed with Unicode's versions is listed here. Of UAX #29 only the two rules on
quotation marks in Hebrew words are left out.

Source: Unicode Standard Annex #29, rules WB3 to WB16; Lucene 8 `EnglishAnalyzer`, `StandardTokenizer`.
"""

from __future__ import annotations

import functools

import regex

from envs.webshop.porter import stem

_STOP_WORDS = (
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these "
    "they this to was will with"
)
STOP_WORDS = frozenset(_STOP_WORDS.split())
MAX_TOKEN = 255  # a longer word is cut into pieces of this length

# Extended_Pictographic as of Emoji 11; later versions dropped what never became an emoji, such as the star ★.
_PICTOGRAPHS = (
    r"\u00A9\u00AE\u203C\u2049\u2122\u2139\u2194-\u2199\u21A9\u21AA\u231A\u231B\u2328\u2388\u23CF"
    r"\u23E9-\u23F3\u23F8-\u23FA\u24C2\u25AA\u25AB\u25B6\u25C0\u25FB-\u25FE\u2600-\u2605\u2607-\u2612"
    r"\u2614-\u2685\u2690-\u2705\u2708-\u2712\u2714\u2716\u271D\u2721\u2728\u2733\u2734\u2744\u2747"
    r"\u274C\u274E\u2753-\u2755\u2757\u2763-\u2767\u2795-\u2797\u27A1\u27B0\u27BF\u2934\u2935\u3030"
    r"\u303D\u2B05-\u2B07\u2B1B\u2B1C\u2B50\u2B55\u3297\u3299\U0001F000-\U0001F0FF\U0001F10D-\U0001F10F"
    r"\U0001F12F\U0001F16C-\U0001F171\U0001F17E\U0001F17F\U0001F18E\U0001F191-\U0001F19A"
    r"\U0001F1AD-\U0001F1E5\U0001F201-\U0001F20F\U0001F21A\U0001F22F\U0001F232-\U0001F23A"
    r"\U0001F23C-\U0001F23F\U0001F249-\U0001F3FA\U0001F400-\U0001F53D\U0001F546-\U0001F64F"
    r"\U0001F680-\U0001F6FF\U0001F774-\U0001F77F\U0001F7D5-\U0001F7FF\U0001F80C-\U0001F80F"
    r"\U0001F848-\U0001F84F\U0001F85A-\U0001F85F\U0001F888-\U0001F88F\U0001F8AE-\U0001F8FF"
    r"\U0001F90C-\U0001F93A\U0001F93C-\U0001F945\U0001F947-\U0001FFFD"
)


# Characters that join two letters, two digits, or both (MidLetter, MidNum; MidNumLet and Single_Quote).
_IN_WORD = r":\u00B7\u0387\u05F4\u2027\uFE13\uFE55\uFF1A"
_IN_NUMBER = r",;\u037E\u0589\u060C\u060D\u066C\u07F8\u2044\uFE10\uFE14\uFE50\uFE54\uFF0C\uFF1B"
_IN_BOTH = r"'.\u2018\u2019\u2024\uFE52\uFF07\uFF0E"


def _word_pattern() -> regex.Pattern[str]:
    # Possessive throughout, and a run of joiners without a word is matched as well: linear in any text.
    marks = r"[\p{WB=Extend}\p{WB=Format}\p{WB=ZWJ}]*+"
    letter = rf"[\p{{WB=ALetter}}\p{{WB=Hebrew_Letter}}]{marks}"
    digit = rf"\p{{WB=Numeric}}{marks}"
    katakana = rf"\p{{WB=Katakana}}{marks}"
    join = rf"(?:\p{{WB=ExtendNumLet}}{marks})"
    letters = rf"{letter}(?:(?:{join}*+|[{_IN_WORD}{_IN_BOTH}]{marks}){letter})*+"
    digits = rf"{digit}(?:(?:{join}*+|[{_IN_NUMBER}{_IN_BOTH}]{marks}){digit})*+"
    part = rf"(?:{katakana}(?:{join}*+{katakana})*+|(?:{letters}|{digits})++)"
    word = rf"{join}*+{part}(?:{join}++{part})*+{join}*+"
    picture = f"[{_PICTOGRAPHS}]"
    emoji = (
        rf"{picture}(?:[\uFE0F\U0001F3FB-\U0001F3FF]|\u200D{picture})*+|\p{{RI}}{{2}}|[#*0-9]\uFE0F?\u20E3"
    )
    single = rf"[\p{{Han}}\p{{Hiragana}}]{marks}|\p{{LB=SA}}++"
    return regex.compile(rf"{emoji}|{word}|{single}|(?P<no_word>{join}++)")


_WORD = _word_pattern()


@functools.lru_cache(maxsize=65536)
def _term(word: str) -> str:
    """The term of a word, or "" for a stop word."""
    if word[-2:] in ("'s", "’s", "＇s"):
        word = word[:-2]
    return "" if word in STOP_WORDS else stem(word)


def terms(text: str) -> list[str]:
    """The terms of a text in order, with repeats."""
    found = []
    for match in _WORD.finditer(text.lower()):
        if match.lastgroup:
            continue
        word = match.group()
        pieces = (word,) if len(word) <= MAX_TOKEN else _pieces(word)
        found += [term for piece in pieces if (term := _term(piece))]
    return found


def _pieces(word: str) -> list[str]:
    return [word[at : at + MAX_TOKEN] for at in range(0, len(word), MAX_TOKEN)]
