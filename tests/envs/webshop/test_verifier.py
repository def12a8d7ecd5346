"""Atoms of WebShop: what they say while an episode goes on, and F against the shop's own score."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

import numpy as np
import pytest

from envs import conformance
from envs.base import Status, VerifierRecord
from envs.webshop import catalogue, domain, generator, goals, native, reward, verifier
from envs.webshop.domain import DOMAIN, Options, WebShopEnv

UNKNOWN, YES, NO = Status.UNKNOWN, Status.SATISFIED, Status.UNSATISFIED


def history_of(record: VerifierRecord, atom: str) -> list[Status]:
    index = [one.id for one in record.atoms].index(atom)
    return [Status(value) for value in record.status[:, index]]


def values_of(record: VerifierRecord, variable: str) -> list[str]:
    index = [one.id for one in record.variables].index(variable)
    return [row[index] for row in record.evidence]


@pytest.fixture(scope="module")
def options() -> Options:
    return Options(products=120, seed=1, long_titles=0.0)


@pytest.fixture(scope="module")
def task(options):
    """A goal with two options, one of them a colour, whose product has other colours as well."""
    for one in domain.tasks(options, "train"):
        goal = domain.shop(options).goals[one.seed]
        if [name for name, _ in goal.options] == ["color", "size"] and reward.best(goal) == 1:
            return one
    raise AssertionError("no goal with colour and size")


def play(options: Options, task, actions: Sequence[str]) -> VerifierRecord:
    env = WebShopEnv(options)
    env.reset(task)
    for action in actions:
        env.step(action)
    return env.record()


@pytest.fixture(scope="module")
def goal(options, task):
    return domain.shop(options).goals[task.seed]


@pytest.fixture(scope="module")
def visit(goal):
    return [f"search[{goal.product.title}]", f"click[{goal.product.asin}]"]


def test_pages_reveal_options_are_written_buying_commits(options, task, goal, visit) -> None:
    (_, colour), (_, size) = goal.options
    record = play(options, task, [*visit, f"click[{colour}]", f"click[{size}]", "click[buy now]"])
    assert history_of(record, "product_listed") == [UNKNOWN, YES, YES, YES, YES, YES]
    assert history_of(record, "product_opened") == [UNKNOWN, UNKNOWN, YES, YES, YES, YES]
    assert history_of(record, "type_1") == [UNKNOWN, UNKNOWN, YES, YES, YES, YES]
    assert history_of(record, "attribute_1") == [UNKNOWN, UNKNOWN, YES, YES, YES, YES]
    assert history_of(record, "option_1") == [UNKNOWN, UNKNOWN, NO, YES, YES, YES]
    assert history_of(record, "option_2") == [UNKNOWN, UNKNOWN, NO, NO, YES, YES]
    assert history_of(record, "price_fits") == [UNKNOWN, UNKNOWN, YES, YES, YES, YES]
    assert history_of(record, "purchase_made") == [NO, NO, NO, NO, NO, YES]
    assert values_of(record, "choice_1") == ["none", "none", "none", colour, colour, colour]
    assert record.commits.tolist() == [False, False, False, False, True]
    scored = {a.id for a, inside in zip(record.atoms, record.scope[4], strict=True) if inside}
    assert scored == {a.id for a in record.atoms} - {"product_listed", "product_opened"}
    assert record.score == conformance.rebuild(DOMAIN, record) == 1


def test_options_are_lost_by_leaving_and_kept_by_reading(options, task, goal, visit) -> None:
    (_, colour), _ = goal.options
    record = play(options, task, [*visit, f"click[{colour}]", "click[features]", "click[< prev]"])
    assert history_of(record, "option_1")[3:] == [YES, YES, YES]
    record = play(options, task, [*visit, f"click[{colour}]", "click[< prev]", visit[1]])
    assert history_of(record, "option_1")[3:] == [YES, NO, NO]
    assert values_of(record, "choice_1")[3:] == [colour, "none", "none"]


def test_a_wrong_value_is_written_as_well(options, task, goal, visit) -> None:
    (_, colour), _ = goal.options
    other = next(
        v for v in goal.product.options["color"] if not verifier._fulfils(False, ("color", colour), v)
    )
    record = play(options, task, [*visit, f"click[{other}]", f"click[{colour}]"])
    assert values_of(record, "choice_1")[2:] == ["none", other, colour]
    assert history_of(record, "option_1")[2:] == [NO, NO, YES]


def test_an_attribute_is_revealed_again_where_it_is_read(options, task, goal, visit) -> None:
    record = play(options, task, [*visit, "click[features]"])
    places = {values_of(record, f"attribute_{i}")[-1]: i for i in range(1, len(goal.attributes) + 1)}
    assert places.keys() == {"title", "features"}
    assert [bool(text) for text in values_of(record, f"words_{places['title']}")] == [
        False,
        False,
        True,
        True,
    ]
    assert [bool(text) for text in values_of(record, f"words_{places['features']}")] == [False] * 3 + [True]


def test_atoms_speak_of_the_product_that_is_bought(options, task, goal, visit) -> None:
    other = next(p for p in domain.shop(options).catalogue.products if p.category != goal.product.category)
    wrong = [f"search[{other.title}]", f"click[{other.asin}]"]
    record = play(options, task, [*visit, *wrong, "click[buy now]"])
    assert history_of(record, "type_1") == [UNKNOWN] * 4 + [NO, NO]
    assert values_of(record, "listing")[-1].startswith(other.title)
    assert record.score == conformance.rebuild(DOMAIN, record) == 0
    # Without a purchase they speak of the last one that was opened.
    record = play(options, task, [*visit, *wrong, "click[< prev]"])
    assert values_of(record, "page")[-1] == other.asin
    listed = play(options, task, visit[:1])
    known = {a.id: s for a, s in zip(listed.atoms, listed.status[-1], strict=True) if s != UNKNOWN}
    assert known == {"purchase_made": NO}


@pytest.mark.parametrize(
    ("nouns", "levels"),
    [
        ([], (0.5, 1.0)),
        (["a", "b"], (1.0,)),
        (["a"] * 4, (1.0,)),
        (["a", "b", "c", "d", "e"], (0.5, 1.0)),
        ([*"abcdefghij"], (0.5, 1.0)),
        ([*"abcdefghijk"], (0.1, 0.5, 1.0)),
        (["a"] * 11, (0.1, 1.0)),  # one noun: at most 1/11 of them
    ],
)
def test_only_factors_that_a_product_can_have_get_an_atom(nouns, levels) -> None:
    assert verifier.possible_levels(nouns) == levels


def purchases(shop: native.WebShop, count: int, seed: int):
    """Goals, products and choices from right to wrong."""
    rng = random.Random(seed)
    for _ in range(count):
        goal, chance = rng.choice(shop.goals), rng.random()
        same = [p for p in shop.catalogue.products if p.query == goal.product.query]
        product = (
            goal.product if chance < 0.3 else rng.choice(same if chance < 0.6 else shop.catalogue.products)
        )
        chosen = {name: rng.choice(values) for name, values in product.options.items() if rng.random() < 0.8}
        if rng.random() < 0.4:
            chosen |= {name: value for name, value in goal.options if value in product.options.get(name, ())}
        yield goal, product, chosen


def check_purchases(shop: native.WebShop, count: int) -> set[float]:
    """F equals the shop's own score; returns the type factors that occurred."""
    factors = set()
    for goal, product, chosen in purchases(shop, count, seed=0):
        spec = verifier.specify(goal, exact=shop.reward_mode == "corrected")
        asin, page = product.asin, frozenset({(product.asin, "item")})
        moments = [
            verifier.Moment("", {}, frozenset(), frozenset(), ""),
            verifier.Moment("", {}, frozenset({asin}), frozenset(), ""),
            verifier.Moment(asin, {}, frozenset({asin}), page, ""),
            verifier.Moment(asin, chosen, frozenset({asin}), page, asin),
        ]
        score = reward.reward(goal, product, chosen, mode=shop.reward_mode)
        record = verifier.record(spec, moments, shop.catalogue.by_asin, score.total)
        assert conformance.rebuild(DOMAIN, record) == pytest.approx(score.total, abs=record.eta), goal
        assert not list(conformance.faults(record))
        factors.add(score.r_type)
    return factors


@pytest.mark.parametrize("mode", reward.MODES)
@pytest.mark.parametrize("kind", [goals.synthetic_goals, goals.human_goals])
def test_f_is_the_score_of_the_generated_shop(mode, kind) -> None:
    products = catalogue.build(generator.generate(products=300, seed=5, long_titles=0.6))
    assert check_purchases(native.WebShop(products, kind(products), reward_mode=mode), 800) == {
        0,
        0.1,
        0.5,
        1,
    }


@pytest.mark.parametrize("mode", reward.MODES)
def test_f_is_the_score_of_the_real_shop(real_shop, mode) -> None:
    everything = real_shop.goals + goals.human_goals(real_shop.catalogue)
    factors = check_purchases(native.WebShop(real_shop.catalogue, everything, reward_mode=mode), 800)
    assert factors == {0, 0.1, 0.5, 1}


def test_the_real_goals_fit_the_bounds(real_shop) -> None:
    specs = [verifier.specify(goal) for goal in real_shop.goals[::7]]
    assert max(len(spec.atoms) for spec in specs) <= verifier.MAX_ATOMS
    assert max(len(spec.variables) for spec in specs) <= verifier.MAX_VARIABLES
    assert 11 < np.mean([len(spec.atoms) for spec in specs]) < 14


def test_a_goal_with_too_many_atoms_is_refused(goal) -> None:
    many = dataclasses.replace(goal, attributes=tuple(f"attribute {i}" for i in range(40)))
    with pytest.raises(ValueError, match="has 40 attributes and 2 options"):
        verifier.specify(many)
