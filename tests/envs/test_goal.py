"""Goal formulas: the compiled test against a plain reading of the formula."""

from __future__ import annotations

import dataclasses
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.alfworld.engine import NativeEngine
from envs.alfworld.goal import compile_goal
from envs.alfworld.problem import parse_formula
from tests.envs.kitchen import make_kitchen, walk


def holds(formula, world, game, binding):
    """Plain reading of a formula, one case after the other: the oracle for `compile_goal`."""
    head, *parts = formula
    if head in ("and", "or"):
        return (all if head == "and" else any)([holds(part, world, game, binding) for part in parts])
    if head == "not":
        return not holds(parts[0], world, game, binding)
    if head == "imply":
        return not holds(parts[0], world, game, binding) or holds(parts[1], world, game, binding)
    if head in ("exists", "forall"):
        (name, _, kind), body = parts
        domain = [t.id for t in game.things] if kind == "object" else [r.id for r in game.receptacles]
        results = [holds(body, world, game, {**binding, name: value}) for value in domain]
        return any(results) if head == "exists" else all(results)
    values = [binding.get(part, part) for part in parts]
    things = {t.id: t for t in game.things}
    return {
        "=": lambda a, b: a == b,
        "objecttype": lambda o, kind: things[o].type + "type" == kind,
        "heatable": lambda o: "heatable" in things[o].abilities,
        "ishot": lambda o: "hot" in world.flags[o],
        "istoggled": lambda o: "toggled" in world.flags[o],
        "holds": lambda a, o: o in world.holding,
        "inreceptacle": lambda o, r: o in world.contents[r],
        "opened": lambda r: r in world.opened,
    }[head](*values)


def formulas(objects=(), receptacles=(), depth=3):
    """Random closed formulas over the variables in scope."""
    atoms = []
    if objects:
        o = st.sampled_from(objects)
        atoms += [
            st.tuples(st.just("objecttype"), o, st.sampled_from(["appletype", "mugtype", "cuptype"])),
            st.tuples(st.sampled_from(["ishot", "heatable", "istoggled"]), o),
            st.tuples(st.just("holds"), st.just("agent1"), o),
            st.tuples(st.just("="), o, o),
        ]
    if receptacles:
        atoms.append(st.tuples(st.just("opened"), st.sampled_from(receptacles)))
    if objects and receptacles:
        atoms.append(
            st.tuples(st.just("inreceptacle"), st.sampled_from(objects), st.sampled_from(receptacles))
        )
    if depth == 0 and atoms:
        return st.one_of(atoms)
    below = depth - 1 if depth else 0
    o, r = f"?o{len(objects)}", f"?r{len(receptacles)}"
    quantifier = st.sampled_from(["exists", "forall"])
    same = st.deferred(lambda: formulas(objects, receptacles, below))
    compound = [
        st.tuples(
            quantifier,
            st.just((o, "-", "object")),
            st.deferred(lambda: formulas((*objects, o), receptacles, below)),
        ),
        st.tuples(
            quantifier,
            st.just((r, "-", "receptacle")),
            st.deferred(lambda: formulas(objects, (*receptacles, r), below)),
        ),
    ]
    if depth:
        compound += [
            st.tuples(st.sampled_from(["and", "or"]), same, same),
            st.tuples(st.just("not"), same),
            st.tuples(st.just("imply"), same, same),
        ]
    return st.one_of(atoms + compound)


@settings(max_examples=300, deadline=None)
@given(formula=formulas(), seed=st.integers(0, 20))
def test_compiled_goal_equals_plain_reading(formula, seed):
    game = make_kitchen()
    test = compile_goal(dataclasses.replace(game, goal=formula))
    engine = NativeEngine()
    engine.start(game)
    walk(engine, random.Random(seed), seed)
    assert test(engine.world) == holds(formula, engine.world, game, {})


@pytest.mark.parametrize(
    ("goal", "message"),
    [
        ("(flies ?o)", "unbound term"),
        ("(exists (?o - object) (flies ?o))", "unknown predicate 'flies'"),
        ("(exists (?o - spaceship) (holds agent1 ?o))", "unknown types"),
        ("(exists (?o) (holds agent1 ?o))", "variables without a type"),
        ("(not (holds agent1 a) (holds agent1 b))", "takes one part"),
    ],
)
def test_goal_errors(goal, message):
    with pytest.raises(ValueError, match=message):
        compile_goal(dataclasses.replace(make_kitchen(), goal=parse_formula(goal)))
