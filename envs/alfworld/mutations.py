"""Rollouts that depart from a solution in one thing: what a verifier of ALFWorld's goals can get wrong.

Commands that are not admissible where they stand are harmless ("Nothing happens."), so the scripts
open everything that they reach.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from envs.alfworld.game import Game, TextVersion, Thing
from envs.alfworld.rules import readable_names
from envs.alfworld.verifier import Spec, specify

_APPLIANCE = {"clean": "sinkbasin", "heat": "microwave", "cool": "fridge"}
_VERB = {"cleaned": "clean", "heated": "heat", "cooled": "cool"}


@dataclasses.dataclass(frozen=True)
class _Script:
    """Writes commands for a game.

    Attributes:
      game, spec: the game and its goal.
      home: thing's name -> name of the receptacle that it starts in.
    """

    game: Game
    spec: Spec
    home: Mapping[str, str]

    def reach(self, receptacle: str) -> list[str]:
        return [f"go to {receptacle}", f"open {receptacle}"]

    def fetch(self, thing: str) -> list[str]:
        return [*self.reach(self.home[thing]), f"take {thing} from {self.home[thing]}"]

    def put(self, thing: str, receptacle: str) -> list[str]:
        old = self.game.text_version is TextVersion.PUT_IN_ON
        text = f"put {thing} in/on {receptacle}" if old else f"move {thing} to {receptacle}"
        return [*self.reach(receptacle), text]

    def change(self, verb: str, thing: str) -> list[str]:
        appliance = next(
            (self.spec.names[r.id] for r in self.game.receptacles if r.type == _APPLIANCE[verb]), None
        )
        return [] if appliance is None else [f"go to {appliance}", f"{verb} {thing} with {appliance}"]

    def receptacle_for(self, thing: Thing, fits: Callable[[str], bool]) -> str | None:
        """The first receptacle that takes the thing and whose id `fits`."""
        for receptacle in self.game.receptacles:
            if fits(receptacle.id) and (receptacle.type, thing.type) in self.game.can_contain:
                return self.spec.names[receptacle.id]
        return None


def mutations(game: Game) -> dict[str, Sequence[str]]:
    """Name -> commands. What the room does not allow (no second instance, no other place) is left out."""
    names = readable_names(game).of
    spec = specify(game, names)
    takable = [t for t in game.things if t.receptacles and "pickupable" in t.abilities]
    wanted = [t for t in takable if t.id in spec.objects]
    if not wanted:
        return {}
    others = [t for t in takable if t.type != wanted[0].type]
    script = _Script(game, spec, {names[t.id]: names[t.receptacles[0]] for t in game.things if t.receptacles})
    if spec.lamps:
        return _look(script, wanted, others)
    return _two(script, wanted, others) if spec.count == 2 else _one(script, wanted, others)


def _one(script: _Script, wanted: Sequence[Thing], others: Sequence[Thing]) -> dict[str, Sequence[str]]:
    spec, fetch, put = script.spec, script.fetch, script.put
    thing, target = spec.names[wanted[0].id], spec.names[spec.targets[0]]
    verb = _VERB[spec.transform[0]] if spec.transform else None
    changed = fetch(thing) + (script.change(verb, thing) if verb else [])
    elsewhere = script.receptacle_for(wanted[0], lambda r: r not in spec.targets)
    found: dict[str, Sequence[str]] = {"never placed": changed}
    if elsewhere:
        found["wrong receptacle"] = changed + put(thing, elsewhere)
    for other in others[:2]:
        name = spec.names[other.id]
        change = script.change(verb, name) if verb else []
        found[f"object swapped for a {other.type}"] = fetch(name) + change + put(name, target)
    if verb is None:
        return found
    found["transformation dropped"] = fetch(thing) + put(thing, target)
    found["wrong order"] = fetch(thing) + put(thing, target) + script.change(verb, thing)
    for wrong in _APPLIANCE.keys() - {verb}:
        found[f"{wrong} instead"] = fetch(thing) + script.change(wrong, thing) + put(thing, target)
        found[f"then {wrong}"] = changed + script.change(wrong, thing) + put(thing, target)
    if elsewhere and len(wanted) > 1:
        second = spec.names[wanted[1].id]
        found["other instance transformed"] = [
            *(changed + put(thing, elsewhere)),
            *(fetch(second) + put(second, target)),
        ]
    return found


def _two(script: _Script, wanted: Sequence[Thing], others: Sequence[Thing]) -> dict[str, Sequence[str]]:
    spec, fetch, put = script.spec, script.fetch, script.put
    target = spec.names[spec.targets[0]]
    first = spec.names[wanted[0].id]
    placed = fetch(first) + put(first, target)
    again = [f"take {first} from {target}", *put(first, target)]
    found: dict[str, Sequence[str]] = {"one only": placed, "the same one twice": placed + again}
    for other in others[:2]:
        name = spec.names[other.id]
        found[f"second swapped for a {other.type}"] = placed + fetch(name) + put(name, target)
    if len(wanted) < 2:
        return found
    second = spec.names[wanted[1].id]
    for place in spec.targets[1:3]:
        found[f"second in {spec.names[place]}"] = placed + fetch(second) + put(second, spec.names[place])
    elsewhere = script.receptacle_for(wanted[0], lambda r: r not in spec.targets)
    if elsewhere:
        found["second elsewhere"] = placed + fetch(second) + put(second, elsewhere)
        moved_away = [f"take {first} from {target}", *put(first, elsewhere)]
        found["first moved away"] = placed + moved_away + fetch(second) + put(second, target)
    return found


def _look(script: _Script, wanted: Sequence[Thing], others: Sequence[Thing]) -> dict[str, Sequence[str]]:
    spec, fetch = script.spec, script.fetch
    thing, lamp = spec.names[wanted[0].id], spec.names[spec.lamps[0]]
    if lamp not in script.home:
        return {}
    at_lamp, use = [f"go to {script.home[lamp]}"], [f"use {lamp}"]
    found: dict[str, Sequence[str]] = {
        "lamp not used": fetch(thing) + at_lamp,
        "lamp used, nothing held": at_lamp + use,
        "left the lamp": at_lamp + use + fetch(thing),
        "lamp first": at_lamp + use + fetch(thing) + at_lamp,
        "lamp used twice": at_lamp + use + use + fetch(thing) + at_lamp,
    }
    put_down = script.receptacle_for(wanted[0], lambda r: spec.names[r] == script.home[lamp])
    if put_down:
        found["object put down"] = fetch(thing) + script.put(thing, put_down) + use
    for other in others[:2]:
        found[f"object swapped for a {other.type}"] = fetch(spec.names[other.id]) + at_lamp + use
    return found
