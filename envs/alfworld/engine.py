"""The interface of ALFWorld engines, and the native engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from envs.alfworld.game import Game, Receptacle, TextVersion, World
from envs.alfworld.rules import Action, Names, Rules, initial_world, prepare


class Engine(Protocol):
    """A running game. Step caps and `done` are not its business."""

    @property
    def game(self) -> Game:
        """The game that was started."""
        ...

    @property
    def world(self) -> World:
        """The present state; read only for everybody but the engine."""
        ...

    @property
    def names(self) -> Names:
        """Readable names of the game's receptacles, things and locations."""
        ...

    def start(self, game: Game) -> str:
        """Start `game` from its beginning and return the first observation (with the task)."""
        ...

    def step(self, command: str) -> tuple[str, bool]:
        """Apply `command`: the feedback text, and whether it was accepted.

        An inadmissible text of any kind changes nothing and is answered ("Nothing happens.", False).
        """
        ...

    def admissible(self) -> tuple[str, ...]:
        """The commands that are accepted in the present state, sorted."""
        ...

    def won(self) -> bool:
        """Whether the goal formula holds in the present state."""
        ...


_NOTHING_HAPPENS = "Nothing happens."
_KNIVES = frozenset({"knife", "butterknife"})
# Receptacle type -> (verb, ability it asks for).
_APPLIANCES = {
    "sinkbasin": ("clean", "cleanable"),
    "microwave": ("heat", "heatable"),
    "fridge": ("cool", "coolable"),
}
_HELP = """\
Available commands:
  look:                             look around your current location
  inventory:                        check your current inventory
  go to (receptacle):               move to a receptacle
  open (receptacle):                open a receptacle
  close (receptacle):               close a receptacle
  take (object) from (receptacle):  take an object from a receptacle
  move (object) to (receptacle):  place an object in or on a receptacle
  examine (something):              examine a receptacle or an object
  use (object):                     use an object
  heat (object) with (receptacle):  heat an object using a receptacle
  clean (object) with (receptacle): clean an object using a receptacle
  cool (object) with (receptacle):  cool an object using a receptacle
  slice (object) with (object):     slice an object using a sharp object
"""


def enumerate_text(names: Sequence[str]) -> str:
    """`nothing`, `a`, `a, and b` or `a, b, and c`."""
    if len(names) < 2:
        return names[0] if names else "nothing"
    return f"{', '.join(names[:-1])}, and {names[-1]}"


class NativeEngine:
    """ALFWorld's rules over sets: the same texts, commands and wins as the original, far faster.

    The rules are the 14 actions of ALFWorld's PDDL domain with the texts of its grammar (Shridhar et
    al., ALFWorld, ICLR 2021), quirks included.
    """

    def __init__(self) -> None:
        self._rules: Rules | None = None
        self._options: dict[str, Action] | None = None

    @property
    def game(self) -> Game:
        """See `Engine`."""
        return self._started.game

    @property
    def world(self) -> World:
        """See `Engine`."""
        _ = self._started  # raises before the first start
        return self._world

    @property
    def names(self) -> Names:
        """See `Engine`."""
        return self._started.names

    @property
    def _started(self) -> Rules:
        if self._rules is None:
            raise ValueError("no game was started: call start(game) first")
        return self._rules

    def start(self, game: Game) -> str:
        """See `Engine`. Starting the same `Game` object again reuses what was prepared for it."""
        if self._rules is None or self._rules.game is not game:
            self._rules = prepare(game)
        self._world = initial_world(game)
        # Pairs (object, receptacle) that were undone by a `take`: `look` tells of them.
        self._taken: set[tuple[str, str]] = set()
        self._options = None
        view = self._facing() if self._rules.at[game.agent_location] else self._room(game.receptacles)
        return f"-= Welcome to TextWorld, ALFRED! =-\n\n{view}\n\nYour task is to: {game.sentence}"

    def admissible(self) -> tuple[str, ...]:
        """See `Engine`."""
        return tuple(sorted(self._current_options()))

    def won(self) -> bool:
        """See `Engine`."""
        return self._started.goal(self._world)

    def step(self, command: str) -> tuple[str, bool]:
        """See `Engine`."""
        action = self._current_options().get(command.strip())
        if action is None:
            return _NOTHING_HAPPENS, False
        self._options = None
        verb, thing, receptacle = action
        return _HANDLERS[verb](self, thing, receptacle), True

    # Commands

    def _current_options(self) -> dict[str, Action]:
        """Admissible command -> action; computed once for each state."""
        if self._options is None:
            rules, world = self._started, self._world
            options = {**rules.travel[world.location], **rules.plain}
            for receptacle in rules.at[world.location]:
                self._add_receptacle(options, receptacle)
            for thing in world.holding:
                self._add_held(options, thing)
            self._options = options
        return self._options

    def _add_receptacle(self, options: dict[str, Action], receptacle: str) -> None:
        """Commands about a receptacle at the agent's place and what is in it."""
        rules, world, of = self._started, self._world, self._started.names.of
        name = of[receptacle]
        options[f"examine {name}"] = ("examine_receptacle", "", receptacle)
        if rules.receptacles[receptacle].openable:
            verb = "close" if receptacle in world.opened else "open"
            options[f"{verb} {name}"] = (verb, "", receptacle)
        can_take = not world.holding and self._visible(receptacle)
        for thing in world.contents[receptacle]:
            abilities = rules.things[thing].abilities
            if can_take and "pickupable" in abilities:
                options[f"take {of[thing]} from {name}"] = ("take", thing, receptacle)
            # A lamp in a closed receptacle can be used, too.
            if "toggleable" in abilities:
                options[f"use {of[thing]}"] = ("use", thing, "")

    def _add_held(self, options: dict[str, Action], thing: str) -> None:
        """Commands about a held object."""
        rules, world, of = self._started, self._world, self._started.names.of
        name, kind = of[thing], rules.things[thing]
        options[f"examine {name}"] = ("examine_thing", thing, "")
        for receptacle in rules.at[world.location]:
            place = of[receptacle]
            if kind.type in rules.accepts[receptacle] and self._visible(receptacle):
                options[self._put_command(name, place)] = ("put", thing, receptacle)
            # Nothing asks for the appliance to be open.
            verb, ability = _APPLIANCES.get(rules.receptacles[receptacle].type, ("", ""))
            if ability in kind.abilities:
                options[f"{verb} {name} with {place}"] = (verb, thing, receptacle)
        if kind.type in _KNIVES:
            for other, locations in world.at.items():
                if world.location in locations and "sliceable" in rules.things[other].abilities:
                    options[f"slice {of[other]} with {name}"] = ("slice", other, thing)

    def _put_command(self, name: str, place: str) -> str:
        if self.game.text_version is TextVersion.MOVE:
            return f"move {name} to {place}"
        return f"put {name} in/on {place}"

    def _visible(self, receptacle: str) -> bool:
        return not self._started.receptacles[receptacle].openable or receptacle in self._world.opened

    # Actions: change the world, return the feedback

    def _do_go(self, _: str, receptacle: str) -> str:
        of = self.names.of
        self._world.location = self._started.receptacles[receptacle].location
        moved = self.game.text_version is TextVersion.MOVE
        place = of[receptacle] if moved else of[self._world.location]
        return f"You arrive at {place}. {self._view(receptacle)}"

    def _do_open(self, _: str, receptacle: str) -> str:
        self._world.opened.add(receptacle)
        return f"You open the {self.names.of[receptacle]}. {self._view(receptacle)}"

    def _do_close(self, _: str, receptacle: str) -> str:
        self._world.opened.discard(receptacle)
        return f"You close the {self.names.of[receptacle]}."

    def _do_take(self, thing: str, receptacle: str) -> str:
        world = self._world
        world.contents[receptacle].discard(thing)
        world.at[thing].discard(world.location)
        world.holding.add(thing)
        world.seen.add(thing)
        self._taken.add((thing, receptacle))
        return f"You pick up the {self.names.of[thing]} from the {self.names.of[receptacle]}."

    def _do_put(self, thing: str, receptacle: str) -> str:
        world = self._world
        world.contents[receptacle].add(thing)
        world.at[thing].add(world.location)
        world.holding.discard(thing)
        self._taken.discard((thing, receptacle))
        name, place = self.names.of[thing], self.names.of[receptacle]
        if self.game.text_version is TextVersion.MOVE:
            return f"You move the {name} to the {place}."
        return f"You put the {name} in/on the {place}."

    def _do_clean(self, thing: str, receptacle: str) -> str:
        self._world.flags[thing].add("clean")
        return f"You clean the {self.names.of[thing]} using the {self.names.of[receptacle]}."

    def _do_heat(self, thing: str, receptacle: str) -> str:
        self._world.flags[thing].add("hot")
        self._world.flags[thing].discard("cool")
        return f"You heat the {self.names.of[thing]} using the {self.names.of[receptacle]}."

    def _do_cool(self, thing: str, receptacle: str) -> str:
        self._world.flags[thing].add("cool")
        self._world.flags[thing].discard("hot")
        return f"You cool the {self.names.of[thing]} using the {self.names.of[receptacle]}."

    def _do_use(self, thing: str, _: str) -> str:
        # `on` flips, `toggled` stays; the text reads `toggled`, so a lamp is always turned on.
        self._world.flags[thing] ^= {"on"}
        self._world.flags[thing].add("toggled")
        return f"You turn on the {self.names.of[thing]}."

    def _do_slice(self, thing: str, knife: str) -> str:
        self._world.flags[thing].add("sliced")
        return f"You sliced the {self.names.of[thing]} with the {self.names.of[knife]}."

    def _do_examine_receptacle(self, _: str, receptacle: str) -> str:
        return self._view(receptacle)

    def _do_examine_thing(self, thing: str, _: str) -> str:
        rules, name = self._started, self.names.of[thing]
        abilities = rules.things[thing].abilities
        if "receptacle" in abilities:
            return f"This is a normal {name}. In it, you see {self._list(rules.nested.get(thing, ()))}."
        return _thing_text(name, abilities, self._world.flags[thing])

    def _do_inventory(self, _: str, __: str) -> str:
        held = sorted(self._world.holding)
        return f"You are carrying: {self._list(held)}." if held else "You are not carrying anything."

    def _do_look(self, _: str, __: str) -> str:
        return self._facing() if self._started.at[self._world.location] else self._room(())

    def _do_help(self, _: str, __: str) -> str:
        return _HELP

    # Texts

    def _list(self, things: Sequence[str]) -> str:
        """The objects with their articles; from now on they have been seen."""
        self._world.seen.update(things)
        of = self.names.of
        return enumerate_text([f"a {of[thing]}" for thing in things])

    def _view(self, receptacle: str) -> str:
        name = self.names.of[receptacle]
        if not self._visible(receptacle):
            return f"The {name} is closed."
        listed = self._list(sorted(self._world.contents[receptacle]))
        if self._started.receptacles[receptacle].openable:
            return f"The {name} is open. In it, you see {listed}."
        return f"On the {name}, you see {listed}."

    def _room(self, receptacles: Sequence[Receptacle]) -> str:
        """Only the first text of an episode names the receptacles; `look` passes none."""
        of = self.names.of
        listed = enumerate_text([f"a {of[entity]}" for entity in sorted(r.id for r in receptacles)])
        return f"You are in the middle of a room. Looking quickly around you, you see {listed}."

    def _facing(self) -> str:
        """Beside a receptacle: what lies at this place but was taken out of a receptacle here."""
        world, here = self._world, self._started.at[self._world.location]
        beside = [
            thing
            for thing in sorted({thing for thing, _ in self._taken})
            if world.location in world.at[thing]
            for receptacle in here
            if (thing, receptacle) in self._taken
        ]
        facing = enumerate_text([self.names.of[receptacle] for receptacle in here])
        return f"You are facing the {facing}. Next to it, you see {self._list(beside)}."


_HANDLERS: dict[str, Callable[[NativeEngine, str, str], str]] = {
    "go": NativeEngine._do_go,
    "open": NativeEngine._do_open,
    "close": NativeEngine._do_close,
    "take": NativeEngine._do_take,
    "put": NativeEngine._do_put,
    "clean": NativeEngine._do_clean,
    "heat": NativeEngine._do_heat,
    "cool": NativeEngine._do_cool,
    "use": NativeEngine._do_use,
    "slice": NativeEngine._do_slice,
    "examine_receptacle": NativeEngine._do_examine_receptacle,
    "examine_thing": NativeEngine._do_examine_thing,
    "inventory": NativeEngine._do_inventory,
    "look": NativeEngine._do_look,
    "help": NativeEngine._do_help,
}


def _thing_text(name: str, abilities: frozenset[str], flags: set[str]) -> str:
    """Text of an examined object; what is asked first wins, as in ALFWorld's grammar."""
    clean, hot, cool, sliced = (flag in flags for flag in ("clean", "hot", "cool", "sliced"))
    if clean and (hot or cool):
        return f"This is a {'hot' if hot else 'cool'} and clean {'sliced ' * sliced}{name}."
    if sliced and (clean or hot or cool):
        return f"This is a {'clean' if clean else 'hot' if hot else 'cool'} sliced {name}."
    if hot or clean or cool:
        return f"This is a {'hot' if hot else 'clean' if clean else 'cold'} {name}."
    if "toggleable" in abilities and "toggled" in flags:
        return f"This {name} is on."
    if "sliceable" in abilities and sliced:
        return f"This is a sliced {name}."
    return f"There's nothing special about {name}."
