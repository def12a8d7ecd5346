"""The verifier interface on games made by hand: every atom, every relation, and the score's own quirks."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest

from envs import conformance
from envs.alfworld import domain, expert, generate, pddl, verifier
from envs.alfworld.domain import DOMAIN, AlfworldEnv, AlfworldOptions
from envs.alfworld.engine import NativeEngine
from envs.alfworld.game import TASK_TYPES, Game, Receptacle, TextVersion, Thing
from envs.alfworld.problem import parse_formula
from envs.base import ScoreRole, Status

U, S, N = Status.UNKNOWN, Status.SATISFIED, Status.UNSATISFIED
FOOD = frozenset({"pickupable", "heatable", "coolable", "cleanable"})


def _goal(task_type, object_type, place):
    return parse_formula(generate._GOALS[task_type].format(o=object_type, r=place))


def _thing(id_, *receptacles, abilities=FOOD, flags=()):
    return Thing(id_, id_.split("_")[0], receptacles, (), frozenset(abilities), frozenset(flags))


def make_game(task_type, object_type, place, things):
    """A kitchen with two shelves at one place. `thing_bar_a` is called `thing 1` where it is the only one."""
    furniture = ("countertop", "fridge", "microwave", "sinkbasin", "desk")
    receptacles = [
        Receptacle(f"{t}_bar_x", t, f"loc_bar_{t}", t in {"fridge", "microwave"}, False) for t in furniture
    ]
    receptacles += [Receptacle(f"shelf_bar_{n}", "shelf", "loc_bar_shelf", False, False) for n in "ab"]
    types = {thing.type for thing in things}
    return Game(
        id="made by hand",
        task_type=task_type,
        sentence="put a thing in place.",
        text_version=TextVersion.MOVE,
        has_help=True,
        receptacles=tuple(receptacles),
        things=tuple(things),
        locations=(*dict.fromkeys(r.location for r in receptacles), "loc_bar_start"),
        can_contain=frozenset((r.type, t) for r in receptacles for t in types),
        agent_location="loc_bar_start",
        goal=_goal(task_type, object_type, place),
    )


class Episode:
    """Plays commands and keeps what the verifier needs."""

    def __init__(self, game):
        self.engine = NativeEngine()
        self.engine.start(game)
        self.spec = verifier.specify(game, self.engine.names.of)
        self.history = [verifier.observe(self.spec, self.engine.world, ())]

    def play(self, *commands):
        for command in commands:
            _, accepted = self.engine.step(command)
            assert accepted, (command, self.engine.admissible())
            self.history.append(verifier.observe(self.spec, self.engine.world, self.history))
        return self

    def record(self):
        return verifier.record(self.spec, self.history, float(self.engine.won()))


def play(game, *commands):
    record = Episode(game).play(*commands).record()
    assert list(conformance.faults(record)) == []
    assert conformance.rebuild(DOMAIN, record) == record.score
    return record


def column(record, atom):
    return list(record.status[:, [a.id for a in record.atoms].index(atom)])


def writes(record, atom):
    """Steps that change a state variable that the atom reads."""
    return _changes(record, atom, observation=False)


def reveals(record, atom):
    return _changes(record, atom, observation=True)


def _changes(record, atom, observation):
    (atom,) = (a for a in record.atoms if a.id == atom)
    found = set()
    for v, variable in enumerate(record.variables):
        if variable.id in atom.variables and variable.observation == observation:
            values = [row[v] for row in record.evidence]
            found |= {t for t in range(len(values) - 1) if values[t] != values[t + 1]}
            assert observation or "" not in values, "a state variable always has a value"
    return sorted(found)


def scope(record, atom):
    return list(np.flatnonzero(record.scope[:, [a.id for a in record.atoms].index(atom)]))


HOT_EGG = ("pick_heat_then_place_in_recep", "egg", "fridge")
TAKE = ("go to countertop 1", "take egg 1 from countertop 1")
HEAT = ("go to microwave 1", "heat egg 1 with microwave 1")
STORE = ("go to fridge 1", "open fridge 1", "move egg 1 to fridge 1")


def test_hot_egg_step_by_step():
    record = play(make_game(*HOT_EGG, [_thing("egg_bar_a", "countertop_bar_x")]), *TAKE, *HEAT, *STORE)
    assert record.score == 1.0
    assert column(record, "found") == [U, S, S, S, S, S, S, S]
    assert column(record, "acquired") == [U, N, S, S, S, S, S, S]
    assert column(record, "heated") == [U, N, N, N, S, S, S, S]
    assert column(record, "placed") == [U, N, N, N, N, N, N, S]
    assert (reveals(record, "found"), writes(record, "found")) == ([0], [])
    assert writes(record, "acquired") == [1]
    assert writes(record, "heated") == [3]
    assert writes(record, "placed") == [6], "taking the egg from where it must not stay writes nothing"
    assert scope(record, "placed") == [6]
    assert not record.scope[:, :-1].any()
    assert record.evidence[0] == ("", "not taken", "not hot", "not put down")
    assert record.evidence[-1] == ("seen", "taken", "hot", "in fridge 1")


def test_cold_egg_in_place():
    record = play(make_game(*HOT_EGG, [_thing("egg_bar_a", "countertop_bar_x")]), *TAKE, *STORE)
    assert record.score == 0.0
    assert [column(record, atom)[-1] for atom in ("found", "acquired", "heated", "placed")] == [S, S, N, N]
    assert writes(record, "placed") == scope(record, "placed") == [4]
    assert writes(record, "heated") == []


def test_wrong_receptacle_is_a_write_but_no_commit():
    commands = (*TAKE, *HEAT, "go to desk 1", "move egg 1 to desk 1")
    record = play(make_game(*HOT_EGG, [_thing("egg_bar_a", "countertop_bar_x")]), *commands)
    assert column(record, "placed")[-1] == N
    assert writes(record, "placed") == [5]
    assert not record.commits.any()


def test_hot_egg_elsewhere_and_cold_egg_in_place():
    """The conditions must hold for the same object."""
    eggs = [_thing("egg_bar_a", "countertop_bar_x"), _thing("egg_bar_b", "fridge_bar_x")]
    game = make_game(*HOT_EGG, eggs)  # egg 2 on the countertop, egg 1 in the fridge
    take, heat = "take egg 2 from countertop 1", "heat egg 2 with microwave 1"
    record = play(game, TAKE[0], take, HEAT[0], heat, "go to desk 1", "move egg 2 to desk 1", *STORE[:2])
    assert record.score == 0.0
    assert [column(record, atom)[-1] for atom in ("acquired", "heated", "placed")] == [S, S, N]


def test_the_one_handled_last_is_bound_among_equals():
    eggs = [_thing("egg_bar_a", "countertop_bar_x"), _thing("egg_bar_b", "desk_bar_x")]
    episode = Episode(make_game(*HOT_EGG, eggs))
    episode.play("go to countertop 1", "take egg 2 from countertop 1", "move egg 2 to countertop 1")
    assert [story.id for _, story in verifier.bind(episode.spec, episode.history)] == ["egg_bar_a"]
    episode.play("go to desk 1", "take egg 1 from desk 1")
    assert [story.id for _, story in verifier.bind(episode.spec, episode.history)] == ["egg_bar_b"]
    # From the first step on, all atoms speak of the egg bound at the end.
    assert column(episode.record(), "found") == [U, U, U, U, S, S]


def test_object_in_two_receptacles_wins_without_placing():
    """The data's own fault: the egg is still in the fridge while it is held."""
    game = make_game(*HOT_EGG, [_thing("egg_bar_a", "countertop_bar_x", "fridge_bar_x")])
    record = play(game, *TAKE, *HEAT)
    assert record.score == 1.0
    assert column(record, "placed") == [U, N, N, N, S]
    assert writes(record, "placed") == [3]
    assert not record.commits.any()


def test_heat_undone_by_cooling():
    game = make_game(
        "pick_heat_then_place_in_recep", "egg", "desk", [_thing("egg_bar_a", "countertop_bar_x")]
    )
    commands = ("go to fridge 1", "cool egg 1 with fridge 1", "go to desk 1", "move egg 1 to desk 1")
    record = play(game, *TAKE, *HEAT, *commands)
    assert record.score == 0.0
    assert column(record, "heated")[3:] == [N, S, S, N, N, N]
    assert writes(record, "heated") == [3, 5]


def test_cool_from_the_start_needs_no_taking():
    cold = _thing("egg_bar_a", "fridge_bar_x", flags=("cool",))
    game = make_game("pick_cool_then_place_in_recep", "egg", "desk", [cold])
    record = play(game, "go to fridge 1", "open fridge 1")
    requires = {atom.id: atom.requires for atom in record.atoms}
    assert requires["cooled"] == ("found",)
    assert column(record, "cooled") == [U, U, S]
    warm = dataclasses.replace(cold, flags=frozenset())
    atoms = Episode(dataclasses.replace(game, things=(warm,))).spec.atoms
    assert {atom.id: atom.requires for atom in atoms}["cooled"] == ("acquired",)


TWO = ("pick_two_obj_and_place", "cup", "shelf")


def test_two_objects_in_order_of_placing():
    cups = [_thing("cup_bar_a", "desk_bar_x"), _thing("cup_bar_b", "countertop_bar_x")]
    record = play(
        make_game(*TWO, cups),
        *("go to countertop 1", "take cup 1 from countertop 1", "go to shelf 1", "move cup 1 to shelf 1"),
        *("go to desk 1", "take cup 2 from desk 1", "go to shelf 1", "move cup 2 to shelf 1"),
    )
    assert record.score == 1.0
    assert column(record, "placed_1") == [U, N, N, N, S, S, S, S, S]
    assert column(record, "placed_2") == [U, U, U, U, U, N, N, N, S]
    assert (scope(record, "placed_1"), scope(record, "placed_2")) == ([3], [7])
    assert len(record.atoms) == DOMAIN.max_atoms
    assert len(record.variables) == DOMAIN.max_variables


def test_two_objects_on_two_shelves():
    """Both placed, but not together: judged by the shelf of the first, the second placement is the fault."""
    cups = [_thing("cup_bar_a", "desk_bar_x"), _thing("cup_bar_b", "countertop_bar_x")]
    record = play(
        make_game(*TWO, cups),
        *("go to countertop 1", "take cup 1 from countertop 1", "go to shelf 2", "move cup 1 to shelf 2"),
        *("go to desk 1", "take cup 2 from desk 1", "go to shelf 1", "move cup 2 to shelf 1"),
    )
    assert record.score == 0.0
    assert [column(record, atom)[-1] for atom in ("placed_1", "acquired_2", "placed_2")] == [S, S, N]
    assert writes(record, "placed_2") == scope(record, "placed_2") == [7]


def test_one_of_two_is_in_place_from_the_start():
    cups = [_thing("cup_bar_a", "desk_bar_x"), _thing("cup_bar_b", "shelf_bar_a")]
    record = play(make_game(*TWO, cups), "go to shelf 2", "examine shelf 2")
    assert column(record, "placed_1") == [U, S, S]
    assert column(record, "acquired_1") == [U, S, S], "it needs no taking"
    assert writes(record, "placed_1") == []
    assert column(record, "found_2") == [U, U, U]


def test_reach_without_a_listing_is_in_view():
    """Shelf 2 is at the place of shelf 1, so its cup can be taken although no text has named it."""
    cups = [_thing("cup_bar_a", "desk_bar_x"), _thing("cup_bar_b", "shelf_bar_a")]
    episode = Episode(make_game(*TWO, cups)).play("go to desk 1", "take cup 2 from desk 1", "go to shelf 1")
    assert "take cup 1 from shelf 2" not in episode.engine.admissible()  # the hands are full
    assert "cup_bar_b" not in episode.engine.world.seen
    record = episode.play("move cup 2 to shelf 2").record()
    assert "cup_bar_b" not in episode.engine.world.seen
    assert record.score == conformance.rebuild(DOMAIN, record) == 1.0
    assert column(record, "found_1") == [U, U, U, S, S]


LAMP = _thing("desklamp_bar_a", "desk_bar_x", abilities={"toggleable"})
LOOK = ("look_at_obj_in_light", "pen", "desklamp")


def test_look_under_the_lamp():
    game = make_game(*LOOK, [_thing("pen_bar_a", "countertop_bar_x"), LAMP])
    commands = ("go to desk 1", "use desklamp 1", "go to countertop 1", "take pen 1 from countertop 1")
    record = play(game, *commands, "go to desk 1")
    assert record.score == 1.0
    assert column(record, "found") == [U, U, U, S, S, S]
    assert column(record, "holding") == [U, U, U, N, S, S]
    assert column(record, "lamp_found") == [U, S, S, S, S, S]
    assert column(record, "lit") == [U, N, S, S, S, S]
    assert column(record, "at_lamp") == [U, S, S, N, N, S]
    assert (writes(record, "lit"), scope(record, "lit")) == ([1], [1])
    assert writes(record, "at_lamp") == [0, 2, 4]
    assert writes(record, "holding") == [3]
    assert reveals(record, "lamp_found") == [0]


def test_look_needs_one_lamp_that_is_both_lit_and_here():
    lamps = [LAMP, _thing("desklamp_bar_b", "shelf_bar_a", abilities={"toggleable"})]
    game = make_game(*LOOK, [_thing("pen_bar_a", "shelf_bar_a"), *lamps])
    commands = ("go to desk 1", "use desklamp 2", "go to shelf 2", "take pen 1 from shelf 2")
    record = play(game, *commands)
    assert record.score == 0.0
    record = play(game, *commands, "use desklamp 1")
    assert record.score == 1.0
    assert column(record, "lit")[-2:] == [N, S]


@pytest.mark.parametrize("task_type", TASK_TYPES)
def test_records_hold_at_every_step(task_type):
    """Also in the middle of an episode: requirements, writes, and F = V."""
    env, options = AlfworldEnv(AlfworldOptions()), AlfworldOptions(task_types=(task_type,))
    for task in domain.tasks(options, "train")[:5]:
        env.reset(task)
        done = False
        while not done:
            done = env.step(env.expert_action()).done
            record = env.record()
            assert list(conformance.faults(record)) == []
            assert conformance.rebuild(DOMAIN, record) == record.score
            assert len(record.atoms) <= DOMAIN.max_atoms
            assert len(record.variables) <= DOMAIN.max_variables
        assert record.score == 1.0


def test_aggregate_is_the_same_function_in_jax():
    rng = np.random.default_rng(0)
    for _ in range(50):
        satisfied, required = rng.random(6) < 0.7, rng.random(6) < 0.6
        expected = all(s for s, r in zip(satisfied, required, strict=True) if r)
        assert bool(verifier.aggregate(satisfied, {"required": required})) == expected
        assert bool(jax.jit(verifier.aggregate)(satisfied, {"required": required})) == expected


def test_score_reads_only_what_the_goal_says():
    roles = {
        atom.id: atom.role
        for task_type in TASK_TYPES
        for atom in verifier.specify(*_generated(task_type)).atoms
    }
    support = {atom for atom, role in roles.items() if role is ScoreRole.SUPPORT}
    assert support == {"found", "acquired", "lamp_found", "found_1", "found_2", "acquired_1", "acquired_2"}


def _generated(task_type):
    game = generate.generate_game(0, task_type=task_type)
    engine = NativeEngine()
    engine.start(game)
    return game, engine.names.of


def test_another_goal_is_refused():
    game, names = _generated("pick_heat_then_place_in_recep")
    for goal in (
        _goal("pick_cool_then_place_in_recep", "egg", "fridge"),
        parse_formula("(and (exists (?o - object) (ishot ?o)))"),
    ):
        with pytest.raises(ValueError, match="is not one of pick_heat_then_place_in_recep"):
            verifier.specify(dataclasses.replace(game, goal=goal), names)
    with pytest.raises(ValueError, match="the room has not got them"):
        verifier.specify(dataclasses.replace(game, things=()), names)


def test_real_games_won_without_placing(shared_dir):
    """Some official solutions end with heating, cooling or cleaning; the score counts them, and so does F."""
    path = shared_dir / "data" / "alfworld" / pddl.ARCHIVE_NAME
    found = 0
    for split in ("valid_seen", "valid_unseen"):
        for _, game in pddl.read_archive(path, split):
            if game.walkthrough[-1].split()[0] in {"heat", "cool", "clean"}:
                record = play(game, *game.walkthrough)
                assert record.score == 1.0
                assert not record.commits.any()
                found += 1
    assert found == 8


def test_same_records_on_the_original_engine():
    """Generated games, played on both engines."""
    pytest.importorskip("textworld", reason="the original engine (extra alfworld) is not installed")
    native, original = AlfworldEnv(AlfworldOptions()), AlfworldEnv(AlfworldOptions(engine="textworld"))
    for task in domain.tasks(AlfworldOptions(), "train")[:6]:
        assert native.reset(task) == original.reset(task)
        done = False
        while not done:
            action = native.expert_action()
            assert original.expert_action() == action
            result = native.step(action)
            assert original.step(action) == result
            done = result.done
        records = native.record(), original.record()
        assert records[0].evidence == records[1].evidence
        assert (records[0].status == records[1].status).all()
        assert records[0].score == records[1].score == 1.0


def test_expert_and_verifier_read_the_same_goal():
    for task_type in TASK_TYPES:
        game, names = _generated(task_type)
        wish, spec = expert.read_wish(game.sentence.removesuffix(".")), verifier.specify(game, names)
        assert {names[id_].split()[0] for id_ in spec.objects} == {wish.object}
        assert {names[id_].split()[0] for id_ in spec.targets or spec.lamps} == {wish.place}
