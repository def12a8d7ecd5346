"""The original ALFWorld engine (TextWorld) behind the same interface as the native one.

Needs the packages of `requirements-textworld.txt`; nothing here is imported unless it is asked for. The
original is not thread-safe, takes about 1 MB for every distinct game and process, and gives it back
only when the process ends.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib.resources
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import fast_downward
import textworld
import textworld.envs.pddl.textgen
import textworld.logic
from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
from textworld.envs.pddl.pddl import PddlEnv

from envs.alfworld.game import FLAGS, Game, TextVersion, World
from envs.alfworld.problem import render_problem
from envs.alfworld.rules import Names

_LISTED = re.compile(r"\ba ([a-z]+ \d+)\b")


class TextWorldEngine:
    """The original engine, played from a `Game` or from the content of a game file.

    Args:
      memoise: remember results of the original's slow pure functions (see `_Memo`): same outputs, faster.
    """

    def __init__(self, *, memoise: bool = False) -> None:
        self._env = AlfredDemangler(PddlEnv(textworld.EnvInfos(won=True, admissible_commands=True)))
        self._memo = _Memo() if memoise else None
        self._state: Any = None
        self._game: Game | None = None

    @property
    def game(self) -> Game:
        """See `Engine`."""
        if self._game is None:
            raise ValueError("no game was started: call start(game) first")
        return self._game

    @property
    def names(self) -> Names:
        """See `Engine`; the original's own names, whose agent is `agent1 `."""
        return self._names

    def start(self, game: Game) -> str:
        """See `Engine`. The game is written as PDDL, so generated games can be played, too."""
        return self.start_data(game_data(game), game)

    def start_data(self, data: Mapping[str, Any], game: Game) -> str:
        """Start from the content of a game file, byte for byte what the original reads.

        Args:
          data: the JSON object of the game file.
          game: the same game, as read by `parse_game`.
        """
        self._game = game
        if self._memo is not None:
            self._memo.forget_game()
        with self._scope(), _keep_arguments():
            self._env.load(dict(data))
        return self.restart()

    def restart(self) -> str:
        """Start the same game again, without loading it."""
        with self._scope(), _keep_arguments():
            self._state = self._env.reset()
        of = {entity: info.name for entity, info in self._state["_entity_infos"].items()}
        self._names = Names(of, {name: entity for entity, name in of.items()})
        self._seen: set[str] = set()
        return self._state.feedback

    def step(self, command: str) -> tuple[str, bool]:
        """See `Engine`."""
        with self._scope():
            self._state, _, _ = self._env.step(command)
        accepted = self._state["_last_action"] is not None
        if accepted:
            self._note_seen()
        return self._state.feedback, accepted

    def _scope(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self._memo is None else self._memo.active()

    def admissible(self) -> tuple[str, ...]:
        """See `Engine`."""
        return tuple(self._state["admissible_commands"])

    def won(self) -> bool:
        """See `Engine`; the planner's own check of the goal."""
        return bool(self._state["won"])

    @property
    def world(self) -> World:
        """See `Engine`; built from the original's facts, a new one at each call."""
        facts: dict[str, list[tuple[str, ...]]] = {}
        for fact in self._state["_facts"]:
            facts.setdefault(fact.name, []).append(fact.names)
        game = self.game
        return World(
            location=facts["atlocation"][0][1],
            holding={thing for _, thing in facts.get("holds", ())},
            contents=_groups(facts.get("inreceptacle", ()), [r.id for r in game.receptacles], key=1),
            opened={receptacle for (receptacle,) in facts.get("opened", ())},
            flags=self._flags(facts),
            at=_groups(facts.get("objectatlocation", ()), [thing.id for thing in game.things], key=0),
            seen=set(self._seen),
        )

    def _flags(self, facts: Mapping[str, list[tuple[str, ...]]]) -> dict[str, set[str]]:
        flags: dict[str, set[str]] = {thing.id: set() for thing in self.game.things}
        for predicate, word in FLAGS.items():
            # The facts of `ison` are wrong: both of its conditional effects are noted. Ask the planner.
            entities = (
                self._switched_on() if word == "on" else [names[0] for names in facts.get(predicate, ())]
            )
            for entity in entities:
                flags[entity].add(word)
        return flags

    def _switched_on(self) -> list[str]:
        library = self._env.unwrapped._pddl_state.downward_lib
        atoms = (fast_downward.Atom * library.get_state_size())()
        library.get_state(atoms)
        return [found[1] for atom in atoms if (found := re.fullmatch(r"Atom ison\((\S+)\)", atom.name))]

    def _note_seen(self) -> None:
        """Objects named in a list of the feedback ("a mug 1, and a bowl 2"), and held objects."""
        id_of = self._names.id_of
        things = {thing.id for thing in self.game.things}
        self._seen |= things & {id_of[name] for name in _LISTED.findall(self._state.feedback)}
        self._seen |= {fact.names[1] for fact in self._state["_facts"] if fact.name == "holds"}


def game_data(game: Game) -> dict[str, Any]:
    """`game` as the content of a game file, with the domain and grammar that alfworld is shipped with.

    Raises:
      ValueError: the game speaks the old text version, for which alfworld ships no grammar.
    """
    if game.text_version is not TextVersion.MOVE or not game.has_help:
        raise ValueError(
            f"game {game.id!r}: the installed alfworld has rules only for {TextVersion.MOVE.value!r} with "
            f"help, got {game.text_version.value!r}, has_help={game.has_help}; use start_data with its file"
        )
    rules = importlib.resources.files("alfworld") / "data"
    grammar = (rules / "alfred.twl2").read_text(encoding="utf-8")
    return {
        "pddl_domain": (rules / "alfred.pddl").read_text(encoding="utf-8"),
        "grammar": grammar.replace("UNKNOWN GOAL.", game.sentence),
        "pddl_problem": render_problem(game),
        "solvable": True,
        "walkthrough": list(game.walkthrough),
    }


def _groups(pairs: Any, entities: list[str], *, key: int) -> dict[str, set[str]]:
    groups: dict[str, set[str]] = {entity: set() for entity in entities}
    for pair in pairs:
        groups[pair[key]].add(pair[1 - key])
    return groups


@contextlib.contextmanager
def _keep_arguments() -> Iterator[None]:
    """The original's translator overwrites `sys.argv`."""
    arguments = sys.argv
    try:
        yield
    finally:
        sys.argv = arguments


class _Memo:
    """Remembered results of four functions of the original whose results depend on their arguments only.

    Translating a PDDL problem is repeated for every reset, and once more in each for the planner. This
    engine never asks for a plan, so the planner gets the first translation instead of an optimised one.
    Parsing a text template, parsing a query, and writing out the commands are repeated for every action of
    every step. A command's text depends on its template, the entities in it and where the receptacles
    stand, which never changes within a game. Parsed templates are written to by their users, so each user
    gets a copy. The replacements are in force only while `active`: other engines in the process are not
    affected.
    """

    def __init__(self) -> None:
        textgen, rule = textworld.envs.pddl.textgen, textworld.logic.Rule
        grammar = textgen.ContextSensitiveGrammar
        parse_text = functools.lru_cache(maxsize=4096)(textgen._parse_and_convert)
        parse_query = functools.lru_cache(maxsize=4096)(rule.parse_conjunctive_query)
        pddl2sas = fast_downward.pddl2sas
        translate = functools.lru_cache(maxsize=1)(lambda domain, problem: pddl2sas(domain, problem))
        self._commands: dict[Any, str] = {}
        self._replacements = (
            (textgen, "_parse_and_convert", lambda *a, **k: copy.deepcopy(parse_text(*a, **k))),
            (rule, "parse_conjunctive_query", staticmethod(parse_query)),
            (fast_downward, "pddl2sas", lambda domain, problem, **_: translate(domain, problem)),
            (grammar, "derive", self._remember_commands(grammar.derive)),
        )

    def _remember_commands(self, derive: Callable[..., str]) -> Callable[..., str]:
        def remembered(grammar: Any, start: str, context: Mapping[str, Any]) -> str:
            if start.startswith("#"):  # a feedback text: depends on the state
                return derive(grammar, start, context)
            key = (start, *(variable.name for variable in context["mapping"].values()))
            if key not in self._commands:
                self._commands[key] = derive(grammar, start, context)
            return self._commands[key]

        return remembered

    def forget_game(self) -> None:
        """Drop what depends on the game; call before another one is loaded."""
        self._commands.clear()

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Use the memory within this context."""
        before = [(owner, name, vars(owner)[name]) for owner, name, _ in self._replacements]
        for owner, name, replacement in self._replacements:
            setattr(owner, name, replacement)
        try:
            yield
        finally:
            for owner, name, original in before:
                setattr(owner, name, original)
