"""The expert: a text-only agent with a rule for every situation, and an all-knowing plan for a game.

It acts on what a policy could have seen: the first observation, the feedback texts and the admissible
commands. `notice` keeps its memory up to date whoever acted, so `decide` answers from any state that
other actions led to (relabelling), on every engine and in both text versions.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence

from envs.alfworld.engine import Engine
from envs.alfworld.game import Game
from envs.alfworld.household import PLACES

# Sentences of the tasks; two for each type.
_SENTENCES = [
    (verb, re.compile(pattern))
    for verb, patterns in {
        "look": (
            r"look at (?P<object>\w+) under the (?P<place>\w+)",
            r"examine the (?P<object>\w+) with the (?P<place>\w+)",
        ),
        "two": (
            r"put two (?P<object>\w+) in (?P<place>\w+)",
            r"find two (?P<object>\w+) and put them in (?P<place>\w+)",
        ),
        "clean": (
            r"put a clean (?P<object>\w+) in (?P<place>\w+)",
            r"clean some (?P<object>\w+) and put it in (?P<place>\w+)",
        ),
        "heat": (
            r"put a hot (?P<object>\w+) in (?P<place>\w+)",
            r"heat some (?P<object>\w+) and put it in (?P<place>\w+)",
        ),
        "cool": (
            r"put a cool (?P<object>\w+) in (?P<place>\w+)",
            r"cool some (?P<object>\w+) and put it in (?P<place>\w+)",
        ),
        "put": (
            r"put a (?P<object>\w+) in (?P<place>\w+)",
            r"put some (?P<object>\w+) on (?P<place>\w+)",
        ),
    }.items()
    for pattern in patterns
]
_APPLIANCE = {"clean": "sinkbasin", "heat": "microwave", "cool": "fridge"}
_UNDOES = {"heat": "cool", "cool": "heat"}
_IDLE = "look"

_TASK = re.compile(r"Your task is to: (.*)\.")
_ROOM = re.compile(r"Looking quickly around you, you see (.*)\.")
_LISTED = re.compile(r"(?:On the (\w+ \d+)|The (\w+ \d+) is open\. In it), you see ([^.]*)\.")
_THING = re.compile(r"\ban? (\w+ \d+)")
_TAKEN = re.compile(r"You pick up the (\w+ \d+) from the (\w+ \d+)\.")
_PUT = re.compile(r"You (?:move|put) the (\w+ \d+) (?:to|in/on) the (\w+ \d+)\.")
_CHANGED = re.compile(r"You (clean|heat|cool) the (\w+ \d+) using the \w+ \d+\.")


@dataclasses.dataclass(frozen=True)
class Wish:
    """What the task sentence asks for.

    Attributes:
      verb: put, two, clean, heat, cool or look.
      object: object type.
      place: receptacle type, for `look` the lamp's type.
    """

    verb: str
    object: str
    place: str


@dataclasses.dataclass
class Memory:
    """What has been seen so far; all names are readable names.

    Attributes:
      wish: from the task sentence.
      receptacles: those of the room, in the order of the first observation.
      contents: receptacle -> things listed in it, for every receptacle that has been looked into.
      holding: the held thing.
      changed: (verb, thing) of every transformation that holds.
      useless: things that turned out not to be takable or transformable.
      refused: (receptacle, thing type) that turned out not to fit.
    """

    wish: Wish
    receptacles: tuple[str, ...]
    contents: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    holding: str | None = None
    changed: set[tuple[str, str]] = dataclasses.field(default_factory=set)
    useless: set[str] = dataclasses.field(default_factory=set)
    refused: set[tuple[str, str]] = dataclasses.field(default_factory=set)


def type_of(name: str) -> str:
    """Type of a readable name: `mug 2` -> `mug`."""
    return name.rpartition(" ")[0]


def read_wish(sentence: str) -> Wish:
    """Parse a task sentence without its final period.

    Raises:
      ValueError: it is none of the known sentences.
    """
    for verb, pattern in _SENTENCES:
        if match := pattern.fullmatch(sentence):
            return Wish(verb, match["object"], match["place"])
    raise ValueError(f"unknown task sentence {sentence!r}; known forms: {[p.pattern for _, p in _SENTENCES]}")


def begin(observation: str, admissible: Sequence[str]) -> Memory:
    """Memory after the first observation of a game.

    Raises:
      ValueError: the observation names no room or no known task.
    """
    room, task = _ROOM.search(observation), _TASK.search(observation)
    if room is None or task is None:
        raise ValueError(f"not the first observation of a game: {observation!r}")
    memory = Memory(read_wish(task[1]), tuple(_THING.findall(room[1])))
    notice(memory, "", admissible)
    return memory


def notice(memory: Memory, feedback: str, admissible: Sequence[str]) -> None:
    """Take in the answer to one action, the expert's own or anybody's."""
    for on, inside, things in _LISTED.findall(feedback):
        memory.contents[on or inside] = _THING.findall(things)
    if taken := _TAKEN.search(feedback):
        memory.holding = taken[1]
        if taken[1] in memory.contents.get(taken[2], ()):
            memory.contents[taken[2]].remove(taken[1])
    if put := _PUT.search(feedback):
        memory.holding = None
        things = memory.contents.setdefault(put[2], [])
        things += [put[1]] if put[1] not in things else []
    if changed := _CHANGED.search(feedback):
        memory.changed.add((changed[1], changed[2]))
        memory.changed.discard((_UNDOES.get(changed[1], ""), changed[2]))
    _notice_limits(memory, set(admissible))


def _notice_limits(memory: Memory, options: set[str]) -> None:
    """Learn from commands that are missing here: what cannot be taken, transformed or put."""
    wish, held = memory.wish, memory.holding
    for receptacle in (r for r in memory.receptacles if f"examine {r}" in options):
        if f"open {receptacle}" not in options:
            if held is None:
                targets = [o for o in memory.contents.get(receptacle, ()) if type_of(o) == wish.object]
                memory.useless.update(o for o in targets if f"take {o} from {receptacle}" not in options)
            elif not _put_commands(held, receptacle) & options:
                memory.refused.add((receptacle, type_of(held)))
        transforms = type_of(receptacle) == _APPLIANCE.get(wish.verb)
        if held is not None and transforms and f"{wish.verb} {held} with {receptacle}" not in options:
            memory.useless.add(held)


def decide(memory: Memory, admissible: Sequence[str]) -> str:
    """The expert's next action. Where nothing is left to try, it looks around."""
    options, held, verb = set(admissible), memory.holding, memory.wish.verb
    if held is None:
        return _fetch(memory, options)
    if type_of(held) != memory.wish.object or held in memory.useless:
        return _put(memory, held, memory.receptacles, options)
    if verb == "look":
        return _use_lamp(memory, options)
    if verb in _APPLIANCE and (verb, held) not in memory.changed:
        return _transform(memory, held, options)
    return _put(memory, held, _destinations(memory), options)


def _fetch(memory: Memory, options: set[str]) -> str:
    known = [(r, o) for r, o in _known(memory, memory.wish.object) if o not in memory.useless]
    if memory.wish.verb == "two":
        done = memory.contents.get(_destinations(memory)[0], ())
        known = [(r, o) for r, o in known if o not in done]
    # A thing that is transformed already, then one that can be taken from here, then the first seen.
    known.sort(key=lambda ro: ((memory.wish.verb, ro[1]) not in memory.changed, not _is_at(ro[0], options)))
    for receptacle, thing in known:
        return _reach(receptacle, options) or f"take {thing} from {receptacle}"
    return _explore(memory, memory.wish.object, options)


def _use_lamp(memory: Memory, options: set[str]) -> str:
    for receptacle, lamp in _known(memory, memory.wish.place):
        if f"use {lamp}" in options:
            return f"use {lamp}"
        if not _is_at(receptacle, options):
            return f"go to {receptacle}"
    return _explore(memory, memory.wish.place, options)


def _transform(memory: Memory, held: str, options: set[str]) -> str:
    appliances = [r for r in memory.receptacles if type_of(r) == _APPLIANCE[memory.wish.verb]]
    appliances.sort(key=lambda r: not _is_at(r, options))
    for receptacle in appliances:
        here = _is_at(receptacle, options)
        return f"{memory.wish.verb} {held} with {receptacle}" if here else f"go to {receptacle}"
    return _IDLE


def _put(memory: Memory, held: str, receptacles: Sequence[str], options: set[str]) -> str:
    """Put the held thing into the first that takes it; one that is open and here needs no way."""
    fitting = [r for r in receptacles if (r, type_of(held)) not in memory.refused]
    if memory.wish.verb != "two" or type_of(held) != memory.wish.object:
        fitting.sort(key=lambda r: not _put_commands(held, r) & options)
    for receptacle in fitting:
        way = _reach(receptacle, options)
        return way or next(iter(sorted(_put_commands(held, receptacle) & options)), _IDLE)
    return _IDLE


def _destinations(memory: Memory) -> list[str]:
    """Receptacles of the wanted type, the one that holds most wanted objects first."""
    wish = memory.wish
    places = [r for r in memory.receptacles if type_of(r) == wish.place]
    return sorted(places, key=lambda r: -sum(type_of(o) == wish.object for o in memory.contents.get(r, ())))


def _explore(memory: Memory, kind: str, options: set[str]) -> str:
    """Look into the next receptacle that has not been looked into, usual places first."""
    usual = PLACES.get(kind, ())
    rank = {place: index for index, place in enumerate(usual)}
    unknown = [r for r in memory.receptacles if r not in memory.contents]
    unknown.sort(key=lambda r: (rank.get(type_of(r), len(usual)), not _is_at(r, options)))
    for receptacle in unknown:
        return _reach(receptacle, options) or f"examine {receptacle}"
    return _IDLE


def _known(memory: Memory, kind: str) -> Iterator[tuple[str, str]]:
    """(receptacle, thing) of every thing of a kind that has been seen and is not held."""
    for receptacle, things in memory.contents.items():
        for thing in things:
            if type_of(thing) == kind and thing != memory.holding:
                yield receptacle, thing


def _is_at(receptacle: str, options: set[str]) -> bool:
    return f"examine {receptacle}" in options


def _reach(receptacle: str, options: set[str]) -> str | None:
    """The next command on the way to the inside of a receptacle; None if it is open before the agent."""
    if not _is_at(receptacle, options):
        return f"go to {receptacle}"
    return f"open {receptacle}" if f"open {receptacle}" in options else None


def _put_commands(held: str, receptacle: str) -> set[str]:
    return {f"move {held} to {receptacle}", f"put {held} in/on {receptacle}"}


def plan(engine: Engine, game: Game, limit: int = 50) -> tuple[str, ...]:
    """A plan that wins `game`: the expert's actions once it knows what is in every receptacle.

    Args:
      engine: played to find and check the plan; left in the won state.
      game: the game.
      limit: most steps.

    Raises:
      ValueError: the plan does not win within `limit` steps.
    """
    memory = begin(engine.start(game), engine.admissible())
    names = engine.names.of
    for receptacle, things in engine.world.contents.items():
        memory.contents[names[receptacle]] = sorted(names[thing] for thing in things)
    actions: list[str] = []
    while not engine.won():
        if len(actions) == limit:
            raise ValueError(f"game {game.id}: no plan within {limit} steps, it ends with {actions[-4:]}")
        actions.append(decide(memory, engine.admissible()))
        feedback, _ = engine.step(actions[-1])
        notice(memory, feedback, engine.admissible())
    return tuple(actions)
