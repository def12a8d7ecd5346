"""Which published rules a game file carries: the domain's actions, the grammar's texts, and their version.

The engine has these rules in its own code. They are recognised part by part through digests of their
normalised content, so that a file with other rules is refused with the names of the parts that differ
rather than played wrongly.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import re
from typing import Any

from envs.alfworld.game import TextVersion

# Part of the domain or grammar -> digests of its known forms, all of them with the same meaning here.
# The cleanobject of alfworld 0.4 leaves out a receptacle type (SinkType) that no game declares.
_KNOWN: dict[str, tuple[str, ...]] = {
    "action cleanobject": ("e2fa547395a8", "3c107e312727"),
    "action closeobject": ("2103e72be30d",),
    "action coolobject": ("e9a2583cb3db",),
    "action examineobject": ("f37cd91221db",),
    "action examinereceptacle": ("df2fed83affa",),
    "action gotolocation": ("17b4c2c1c5f4",),
    "action heatobject": ("1e1fe101888e",),
    "action inventory": ("39cd493e666c",),
    "action look": ("6256165b4a3a",),
    "action openobject": ("b72124fff6e4",),
    "action pickupobject": ("f083fed64ede",),
    "action putobject": ("a3383a7bae4f",),
    "action sliceobject": ("b553cbe8234a",),
    "action toggleobject": ("75cf2e78c96c",),
    "rule CloseObject.feedback": ("01cf143fb27b",),
    "rule OpenObject.feedback": ("1af5096c7414",),
    "rule PickupObject.feedback": ("4dec34b29b1d",),
    "rule cleanObject.feedback": ("bce25485bf56",),
    "rule coolObject.feedback": ("ac06d1cdd7c7",),
    "rule examineObject.feedback": ("384fc0bd21d3",),
    "rule examineReceptacle.feedback": ("5c4c29e437a7",),
    "rule heatObject.feedback": ("962b9db41402",),
    "rule intro": ("216083ba7c5c",),
    "rule inventory.feedback": ("10a90af74fc8",),
    "rule list_appliances": ("0db854d4c8d9",),
    "rule list_empty": ("d4ca4eae8944",),
    "rule list_last_separator": ("2585510d29cd",),
    "rule list_objects_on_the_floor": ("1debc78e9c97",),
    "rule list_separator": ("85e97985e64c",),
    "rule look-variations": ("51d6e0d6b4cf",),
    "rule look.feedback": ("be96fdf33fd3",),
    "rule overview(o)": ("4195965f71b2",),
    "rule overview(r)": ("44373d352162",),
    "rule sliceObject.feedback": ("ffa03a313409",),
    "rule task": ("4f5c2c7fb57b",),
    "rule toggleObject.feedback": ("0e3fc274298a",),
    "text cleanobject": ("c085f3b554a3",),
    "text closeobject": ("f01a17be1e7e",),
    "text coolobject": ("b433fe144134",),
    "text examineobject": ("5a9db45e78b4",),
    "text examinereceptacle": ("1c99ffa91550",),
    "text gotolocation": ("b0bb439d3454",),
    "text heatobject": ("c7f480bfe25b",),
    "text inventory": ("83ac3a1ab6e5",),
    "text look": ("bdb56f2a8d80",),
    "text openobject": ("9f24a628707d",),
    "text pickupobject": ("1c8ba2cc81d2",),
    "text sliceobject": ("c586e9e8ddb4",),
    "text toggleobject": ("43b166ae7d88",),
}
_VERSIONS: dict[TextVersion, dict[str, tuple[str, ...]]] = {
    TextVersion.MOVE: {
        "rule GotoLocation.feedback": ("df5b823a24b0",),
        "rule PutObject.feedback": ("1e736d7aa8b5",),
        "text putobject": ("838204799160",),
    },
    TextVersion.PUT_IN_ON: {
        "rule GotoLocation.feedback": ("09b0f0f0fa45",),
        "rule PutObject.feedback": ("d74757fc927f",),
        "text putobject": ("faa1860c49f9",),
    },
}
# Only where the domain has a help action. Its text is written in the action itself or, in alfworld
# 0.4's own grammar, as a rule.
_HELP: dict[str, tuple[str, ...]] = {
    "action help": ("ba04faa0a7aa",),
    "text help": ("f71d31a1d0f3", "59b8db424a7a"),
    "rule help.feedback": ("bf2fffec7b1f",),
}


@dataclasses.dataclass(frozen=True)
class Dialect:
    """Text version, and whether the `help` command exists."""

    text_version: TextVersion
    has_help: bool


@functools.lru_cache(maxsize=16)
def detect_dialect(domain: str, grammar: str) -> Dialect:
    """Recognise the rules of a game.

    Args:
      domain: PDDL text of the domain.
      grammar: text of the grammar, the task sentence taken out.

    Raises:
      ValueError: a part that the engine relies on is missing or has an unknown form.
    """
    parts = _domain_parts(domain) | _grammar_parts(grammar)
    has_help = "action help" in parts
    expected = _KNOWN | (_HELP if has_help else {})
    if "rule help.feedback" not in parts:
        expected.pop("rule help.feedback", None)
    version = _text_version(parts)
    odd = sorted(part for part, digests in expected.items() if parts.get(part) not in digests)
    odd += sorted(part for part in parts if part.startswith("action ") and part not in expected)
    if odd:
        raise ValueError(f"these rules are not those of a known ALFWorld version: {', '.join(odd)}")
    return Dialect(version, has_help)


def _text_version(parts: dict[str, str]) -> TextVersion:
    for version, expected in _VERSIONS.items():
        if all(parts.get(part) in digests for part, digests in expected.items()):
            return version
    known = " or ".join(repr(version.value) for version in _VERSIONS)
    raise ValueError(
        f"the grammar speaks neither of the known text versions ({known}): its parts "
        f"{', '.join(sorted(_VERSIONS[TextVersion.MOVE]))} fit none of them"
    )


def _domain_parts(domain: str) -> dict[str, str]:
    """`action NAME` -> digest of the action's words, comments and layout removed."""
    parts: dict[str, str] = {}
    plain = re.sub(r";[^\n]*", "", domain).lower()
    for block in plain.split("(:action")[1:]:
        words = re.sub(r"( \))+$", "", " ".join(re.findall(r"[()]|[^\s()]+", block)))
        parts[f"action {words.split()[0]}"] = _digest(words)
    return parts


def _grammar_parts(grammar: str) -> dict[str, str]:
    """`rule NAME` -> digest of its productions; `text NAME` -> digest of an action's two templates."""
    parts: dict[str, str] = {}
    for block in re.findall(r'"""(.*?)"""', grammar, re.DOTALL):
        try:
            rules = json.loads(block)
        except ValueError as error:
            raise ValueError(f"a block of the grammar is not JSON ({error})") from error
        parts |= {f"rule {name}": _digest(productions) for name, productions in rules.items()}
    texts = r'action\s+(\w+)\s*\{\s*template\s*::\s*"([^"]*)";\s*feedback\s*::\s*"([^"]*)"'
    for name, template, feedback in re.findall(texts, grammar):
        parts[f"text {name.lower()}"] = _digest([template, feedback])
    return parts


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]
