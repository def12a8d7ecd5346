"""The verifier interface of ALFWorld: atoms, evidence and commits beside the engine's own goal test.

Every goal speaks of one object (two for pick two) and of one place or lamp, under `exists`. Which
instance that is shows only at the end, so a rollout is kept as `Snapshot`s of the few instances that
may become it, and `record` binds the one that got furthest: all atoms then speak of that instance,
from the first step to the last.

    found        the object came into view: listed, held, or in reach (open before the agent)
    acquired     it was taken once, or is already where the goal wants it
    cleaned, heated, cooled
    placed       it is in a receptacle of the target type (pick two: both in the same one), transformed
    holding, lamp_found, lit, at_lamp    the goal "look at the object under the lamp"

Before its object or lamp has come into view an atom is UNKNOWN, afterwards SATISFIED or UNSATISFIED.
ALFWorld has no VIOLATED: whatever an agent does there can be undone (a lamp once used stays lit).
`placed` is what the goal says, `(inReceptacle ?o ?r)`: an object that the data put into two
receptacles at once is still in the second one while held, and the original score counts that.

The goal is matched with `_GOALS`; the engine's evaluator of formulas is not used, so that agreement
of the two (`envs.conformance`) proves something.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from envs.alfworld.game import Formula, Game, World
from envs.base import Atom, ScoreRole, Status, Variable, VerifierRecord

# What a goal of each task type says; a word in capitals stands for a type.
_PLACE = "(inreceptacle ?o ?r) (objecttype ?o OBJECT) (receptacletype ?r RECEPTACLE)"
_GOALS = {
    "pick_and_place_simple": _PLACE,
    "pick_clean_then_place_in_recep": f"{_PLACE} (cleanable ?o) (isclean ?o)",
    "pick_heat_then_place_in_recep": f"{_PLACE} (heatable ?o) (ishot ?o)",
    "pick_cool_then_place_in_recep": f"{_PLACE} (coolable ?o) (iscool ?o)",
    "pick_two_obj_and_place": "(inreceptacle ?o1 ?r) (objecttype ?o1 OBJECT) (receptacletype ?r RECEPTACLE) "
    "(inreceptacle ?o2 ?r) (objecttype ?o2 OBJECT) (not = ?o1 ?o2)",
    "look_at_obj_in_light": "(objecttype ?o OBJECT) (holds ?a ?o) (objecttype ?ot LAMP) (toggleable ?ot) "
    "(istoggled ?ot) (inreceptacle ?ot ?r) (receptacleatlocation ?r ?l) (atlocation ?a ?l)",
}
# Task type -> (atom, ability that the goal asks for, flag).
_TRANSFORM = {
    "pick_clean_then_place_in_recep": ("cleaned", "cleanable", "clean"),
    "pick_heat_then_place_in_recep": ("heated", "heatable", "hot"),
    "pick_cool_then_place_in_recep": ("cooled", "coolable", "cool"),
}
# Atom -> (literals of the goal that it checks, variables that it reads). Support atoms check none.
_ATOMS = {
    "found": ("", ("object_seen",)),
    "acquired": ("", ("object_taken",)),
    "cleaned": ("(isClean ?o)", ("object_state",)),
    "heated": ("(isHot ?o)", ("object_state",)),
    "cooled": ("(isCool ?o)", ("object_state",)),
    "placed": ("(inReceptacle ?o ?r)", ("object_put",)),
    "holding": ("(holds ?a ?o)", ("object_held",)),
    "lamp_found": ("", ("lamp_seen",)),
    "lit": ("(isToggled ?ot)", ("lamp_state",)),
    "at_lamp": ("(inReceptacle ?ot ?r) (receptacleAtLocation ?r ?l) (atLocation ?a ?l)", ("agent_at_lamp",)),
}


@dataclasses.dataclass(frozen=True)
class Moment:
    """One watched instance at one time, with what has happened to it so far.

    Attributes:
      inside: receptacles it is in.
      held, at_agent: it is held; the agent stands at a receptacle that it is in.
      flags: flags that hold (`hot`, `toggled`, ...).
      seen, taken: it has come into view; it has been held.
      handled: last step at which it was held or changed, -1 for never.
    """

    inside: frozenset[str]
    held: bool
    at_agent: bool
    flags: frozenset[str]
    seen: bool
    taken: bool
    handled: int


Snapshot = Mapping[str, Moment]
# What one moment means: facts (used only while the instance is in view) and evidence values.
Judge = Callable[[Moment], tuple[dict[str, bool], dict[str, str]]]


@dataclasses.dataclass(frozen=True)
class Story:
    """One instance through a whole rollout: its facts (none before it is in view) and evidence values."""

    id: str
    facts: tuple[Mapping[str, bool], ...]
    values: tuple[Mapping[str, str], ...]
    handled: int

    def since(self, fact: str) -> int:
        """Since when `fact` has held without a break up to the end; T + 1 if it does not hold then."""
        time = len(self.facts)
        while time and self.facts[time - 1].get(fact, False):
            time -= 1
        return time


@dataclasses.dataclass(frozen=True)
class Spec:
    """What the verifier knows of a game before the first step.

    Attributes:
      objects, lamps: ids of the instances that the goal may be about, in the order of the game.
      targets: ids of the receptacles that the goal may be about.
      transform: (atom, flag) of the wanted change, or None.
      count: how many objects the goal wants.
      location_of: receptacle id -> location id.
      openable: ids of receptacles that can be closed.
      names: id -> readable name.
      atoms, variables: as in `VerifierRecord`.
    """

    objects: tuple[str, ...]
    lamps: tuple[str, ...]
    targets: tuple[str, ...]
    transform: tuple[str, str] | None
    count: int
    location_of: Mapping[str, str]
    openable: frozenset[str]
    names: Mapping[str, str]
    atoms: tuple[Atom, ...]
    variables: tuple[Variable, ...]


def aggregate(satisfied: Any, params: Mapping[str, Any]) -> Any:
    """F of VICT Eq. 3: all scored atoms hold.

    Args:
      satisfied: bool[M].
      params: `required` bool[M], the scored atoms.

    Returns:
      bool[], of the array library that came in.
    """
    return (satisfied | ~params["required"]).all()


def specify(game: Game, names: Mapping[str, str]) -> Spec:
    """Read the goal of `game`.

    Raises:
      ValueError: the goal does not have the form of the game's task type, or the room lacks a part of it.
    """
    types = _match_goal(game)
    atom, ability, flag = _TRANSFORM.get(game.task_type, ("", "", ""))
    fits = [t for t in game.things if t.type == types["OBJECT"] and (not ability or ability in t.abilities)]
    lamps = [t.id for t in game.things if t.type == types.get("LAMP") and "toggleable" in t.abilities]
    targets = [r.id for r in game.receptacles if r.type == types.get("RECEPTACLE")]
    count = 2 if game.task_type == "pick_two_obj_and_place" else 1
    if len(fits) < count or not (lamps or targets):
        raise ValueError(f"game {game.id}: the goal wants {types}, the room has not got them")
    atoms = _atoms(
        game.task_type,
        transform=atom,
        changed_at_start=any(flag in thing.flags for thing in fits),
        in_two_places=any(len(thing.receptacles) > 1 for thing in fits),
    )
    variables = dict.fromkeys(v for a in atoms for v in a.variables)
    return Spec(
        objects=tuple(thing.id for thing in fits),
        lamps=tuple(lamps),
        targets=tuple(targets),
        transform=(atom, flag) if atom else None,
        count=count,
        location_of={r.id: r.location for r in game.receptacles},
        openable=frozenset(r.id for r in game.receptacles if r.openable),
        names=names,
        atoms=atoms,
        variables=tuple(Variable(v, observation="seen" in v) for v in variables),
    )


def observe(spec: Spec, world: World, past: Sequence[Snapshot]) -> Snapshot:
    """The watched instances in the present state; `past` holds the snapshots of the steps before."""
    here = {r for r, location in spec.location_of.items() if location == world.location}
    uncovered = {r for r in here if r not in spec.openable or r in world.opened}
    snapshot = {}
    for id_ in (*spec.objects, *spec.lamps):
        before = past[-1][id_] if past else None
        inside = frozenset(r for r, contents in world.contents.items() if id_ in contents)
        held, flags = id_ in world.holding, frozenset(world.flags.get(id_, ()))
        # Before any text lists it, a lamp can be used and an object taken: it is then in reach.
        in_reach = bool(inside & (here if id_ in spec.lamps else uncovered))
        touched = held or (before is not None and flags != before.flags)
        snapshot[id_] = Moment(
            inside=inside,
            held=held,
            at_agent=bool(inside & here),
            flags=flags,
            seen=id_ in world.seen or in_reach or held or (before is not None and before.seen),
            taken=held or (before is not None and before.taken),
            handled=len(past) if touched else before.handled if before else -1,
        )
    return snapshot


def record(spec: Spec, history: Sequence[Snapshot], score: float) -> VerifierRecord:
    """The verifier's record of a rollout of T steps.

    Args:
      spec: of the game.
      history: T + 1 snapshots.
      score: V, the engine's own terminal score.
    """
    stories = bind(spec, history)
    steps, index = len(history) - 1, {atom.id: j for j, atom in enumerate(spec.atoms)}
    status = np.full((steps + 1, len(index)), Status.UNKNOWN, np.int8)
    scope = np.zeros((steps, len(index)), bool)
    for suffix, story in stories:
        for t, facts in enumerate(story.facts):
            for fact, holds in facts.items():
                status[t, index[fact + suffix]] = Status.SATISFIED if holds else Status.UNSATISFIED
        for t in range(steps):
            if _finalises(spec, history[t][story.id], history[t + 1][story.id]):
                scope[t, index["lit" if story.id in spec.lamps else "placed" + suffix]] = True
    values = [
        {name + suffix: value for suffix, story in stories for name, value in story.values[t].items()}
        for t in range(steps + 1)
    ]
    return VerifierRecord(
        atoms=spec.atoms,
        variables=spec.variables,
        status=status,
        evidence=tuple(tuple(row[variable.id] for variable in spec.variables) for row in values),
        commits=np.any(scope, axis=1),
        scope=scope,
        params={"required": np.array([atom.role is ScoreRole.SCORED for atom in spec.atoms])},
        eta=0.0,
        score=score,
    )


def bind(spec: Spec, history: Sequence[Snapshot]) -> list[tuple[str, Story]]:
    """The instances that the atoms speak of, each with the suffix of its atoms.

    The one with most facts at the end is taken; of several, the one handled last; then the first of
    the game. Of two objects the first placed gets suffix `_1`; both are judged by one receptacle, the
    one where the pair got furthest and, of several, where the first of them has been longest.
    """
    if spec.lamps:
        objects = [_story(id_, history, _holding) for id_ in spec.objects]
        lamps = [_story(id_, history, _lighting) for id_ in spec.lamps]
        return [("", max(objects, key=_progress)), ("", max(lamps, key=_progress))]
    choices = [frozenset({r}) for r in spec.targets] if spec.count == 2 else [frozenset(spec.targets)]
    groups = [_furthest(spec, history, choice) for choice in choices]
    best = max(groups, key=lambda group: (sum(_progress(s)[0] for s in group), -group[0].since("placed")))
    return [("", best[0])] if spec.count == 1 else [("_1", best[0]), ("_2", best[1])]


def _furthest(spec: Spec, history: Sequence[Snapshot], targets: frozenset[str]) -> list[Story]:
    """The objects that got furthest towards `targets`, the one placed, taken or found first in front."""
    stories = [_story(id_, history, functools.partial(_placing, spec, targets)) for id_ in spec.objects]
    stories = sorted(stories, key=_progress, reverse=True)[: spec.count]
    return sorted(stories, key=lambda story: [story.since(fact) for fact in ("placed", "acquired", "found")])


def _story(id_: str, history: Sequence[Snapshot], judge: Judge) -> Story:
    moments = [snapshot[id_] for snapshot in history]
    facts, values = zip(*map(judge, moments), strict=True)
    facts = tuple(known if moment.seen else {} for known, moment in zip(facts, moments, strict=True))
    return Story(id_, facts, values, moments[-1].handled)


def _progress(story: Story) -> tuple[int, int]:
    """How far an instance got: facts that hold at the end, then how recently it was handled."""
    return sum(story.facts[-1].values()), story.handled


def _placing(spec: Spec, targets: frozenset[str], moment: Moment) -> tuple[dict[str, bool], dict[str, str]]:
    atom, flag = spec.transform or ("", "")
    changed = not flag or flag in moment.flags
    placed = changed and bool(moment.inside & targets)
    facts = {"found": True, "acquired": moment.taken or placed, "placed": placed}
    values = {
        "object_seen": "seen" if moment.seen else "",
        "object_taken": "taken" if moment.taken else "not taken",
        "object_put": _put(spec, moment),
    }
    if atom:
        facts[atom] = changed
        values["object_state"] = flag if changed else f"not {flag}"
    return facts, values


def _put(spec: Spec, moment: Moment) -> str:
    """Where the object has been put. Taking it from where it must not stay is no change of this."""
    put_down = moment.taken and not moment.held
    where = [spec.names[r] for r in moment.inside if put_down or r in spec.targets]
    return f"in {' and '.join(sorted(where))}" if where else "not put down"


def _holding(moment: Moment) -> tuple[dict[str, bool], dict[str, str]]:
    values = {
        "object_seen": "seen" if moment.seen else "",
        "object_held": "held" if moment.held else "not held",
    }
    return {"found": True, "holding": moment.held}, values


def _lighting(moment: Moment) -> tuple[dict[str, bool], dict[str, str]]:
    lit = "toggled" in moment.flags
    values = {
        "lamp_seen": "seen" if moment.seen else "",
        "lamp_state": "used" if lit else "not used",
        "agent_at_lamp": "at the lamp" if moment.at_agent else "elsewhere",
    }
    return {"lamp_found": True, "lit": lit, "at_lamp": moment.at_agent}, values


def _finalises(spec: Spec, before: Moment, after: Moment) -> bool:
    """The step between put the object into a receptacle of the target type, or used the lamp."""
    put = before.held and not after.held and bool(after.inside & frozenset(spec.targets))
    return put or "toggled" in after.flags - before.flags


def _atoms(task_type: str, transform: str, changed_at_start: bool, in_two_places: bool) -> tuple[Atom, ...]:
    """The atoms of a task type; the last two arguments say what the game's start rules out or demands.

    An object that is already cool needs no taking for `cooled`. One that is in two places at once can
    become `placed` by a change while it is held, so there `placed` also reads its state.
    """
    if task_type == "look_at_obj_in_light":
        requires = {"found": (), "holding": ("found",), "lamp_found": ()}
        requires |= {"lit": ("lamp_found",), "at_lamp": ("lamp_found",)}
        return tuple(_atom(name, needed) for name, needed in requires.items())
    requires = {"found": (), "acquired": ("found",)}
    if transform:
        requires[transform] = ("found",) if changed_at_start else ("acquired",)
    requires["placed"] = ("acquired", transform) if transform else ("acquired",)
    extra = ("object_state",) if transform and in_two_places else ()
    suffixes = ("_1", "_2") if task_type == "pick_two_obj_and_place" else ("",)
    return tuple(
        _atom(name, needed, suffix, extra if name == "placed" else ())
        for suffix in suffixes
        for name, needed in requires.items()
    )


def _atom(name: str, requires: tuple[str, ...], suffix: str = "", extra: tuple[str, ...] = ()) -> Atom:
    literals, variables = _ATOMS[name]
    return Atom(
        id=name + suffix,
        family=name,
        variables=tuple(variable + suffix for variable in variables + extra),
        requires=tuple(required + suffix for required in requires),
        role=ScoreRole.SCORED if literals else ScoreRole.SUPPORT,
        source=f"goal of the game: {literals}" if literals else "preconditions in the game's domain",
        # Seeing is read off the observations, everything else off the state.
        level=2 if variables[0].endswith("_seen") else 0,
    )


def _match_goal(game: Game) -> dict[str, str]:
    """Types named in the goal, by the capital words of `_GOALS`."""
    literals = set(_literals(game.goal))
    form = [tuple(literal.split()) for literal in _GOALS[game.task_type].strip("()").split(") (")]
    types: dict[str, str] = {}
    for wanted in form:
        same = [g for g in literals if len(g) == len(wanted) and _fits(wanted, g)]
        if len(same) != 1 or len(form) != len(literals):
            raise ValueError(f"game {game.id}: the goal {game.goal} is not one of {game.task_type}")
        pairs = zip(wanted, same[0], strict=True)
        types |= {word: type_.removesuffix("type") for word, type_ in pairs if word.isupper()}
    return types


def _fits(wanted: tuple[str, ...], literal: tuple[str, ...]) -> bool:
    return all(word.isupper() or word == actual for word, actual in zip(wanted, literal, strict=True))


def _literals(formula: Formula) -> Iterator[tuple[str, ...]]:
    """The literals under `and` and `exists`; a negated one starts with `not`."""
    operator, *rest = formula
    if operator == "and":
        for part in rest:
            yield from _literals(part)  # type: ignore[arg-type]
    elif operator == "exists":
        yield from _literals(rest[-1])  # type: ignore[arg-type]
    elif operator == "not":
        yield ("not", *rest[0])
    else:
        yield formula  # type: ignore[misc]
