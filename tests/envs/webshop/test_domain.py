"""WebShop as a domain: splits, texts that a policy sees, conformance with mutations."""

from __future__ import annotations

import pickle

import pytest

from envs import conformance
from envs.lookup import environment
from envs.webshop import domain
from envs.webshop.domain import DOMAIN, Options, WebShopEnv
from vict_jax.evaluate import Outcome, tally
from vict_jax.summary import evaluation_table

OPTIONS = Options(products=150, seed=2)


def products_of(split: str) -> set[str]:
    shop = domain.shop(OPTIONS)
    return {shop.goals[task.seed].product.asin for task in domain.tasks(OPTIONS, split)}


def test_generated_splits_share_no_product() -> None:
    train, test, valid = (products_of(split) for split in domain.SPLITS)
    assert not train & test
    assert not train & valid
    assert not test & valid
    texts = [
        {domain.shop(OPTIONS).goals[task.seed].instruction for task in domain.tasks(OPTIONS, split)}
        for split in ("train", "valid")
    ]
    assert not texts[0] & texts[1]


def test_goals_alone_can_be_held_out() -> None:
    options = Options(products=150, seed=2, held_out="goals")
    found = {split: domain.tasks(options, split) for split in domain.SPLITS}
    indices = [{task.seed for task in tasks} for tasks in found.values()]
    assert sum(map(len, indices)) == len(set().union(*indices))
    shop = domain.shop(options)
    texts = {split: {shop.goals[task.seed].instruction for task in tasks} for split, tasks in found.items()}
    assert not texts["train"] & (texts["test"] | texts["valid"])
    asins = {split: {shop.goals[task.seed].product.asin for task in tasks} for split, tasks in found.items()}
    assert asins["train"] & asins["valid"]


def test_real_splits_are_the_originals_ranges_of_one_order(webshop_dir) -> None:
    options = Options(data_dir=str(webshop_dir))
    indices = {split: [t.seed for t in domain.tasks(options, split)] for split in domain.SPLITS}
    assert indices["test"] == list(range(500))
    assert indices["valid"] == list(range(500, 1500))
    # But for 13 that have the text of a goal that is held out.
    assert set(indices["train"]) < set(range(1500, 6910))
    assert len(indices["train"]) == 5410 - 13
    goals = domain.shop(options).goals
    texts = {split: {goals[i].instruction for i in indices[split]} for split in domain.SPLITS}
    assert not texts["train"] & (texts["test"] | texts["valid"])
    few = Options(data_dir=str(webshop_dir), goals="human")
    counts = {split: len(domain.tasks(few, split)) for split in domain.SPLITS}
    assert counts == {"test": 2, "valid": 2, "train": 9}
    assert DOMAIN.about(options) == "1,000 products, synthetic goals, original score"
    assert DOMAIN.manifest(options, domain.SPLITS).keys() >= {"items_shuffle_1000.json"}


def test_the_number_of_tasks_can_be_limited() -> None:
    assert len(domain.tasks(Options(products=150, seed=2, num_train=7), "train")) == 7
    assert domain.tasks(OPTIONS, "train")[:7] == domain.tasks(
        Options(products=150, seed=2, num_train=7), "train"
    )
    assert DOMAIN.manifest(OPTIONS, domain.SPLITS) == {}


def test_field_report_36_scores_name_their_catalogue() -> None:
    """Its size is in the header of a run and in every row and table of an evaluation (`tally(about=...)`)."""
    about = DOMAIN.about(OPTIONS)
    assert about == "150 products, synthetic goals, original score"
    row = tally([Outcome(type="one option", solved=True, score=1.0, steps=3, lost=False)], about=about)
    assert about in evaluation_table("test", {"update 3": row})


def test_layouts_say_the_same() -> None:
    lines = Options(products=150, seed=2, layout="lines")
    task = domain.tasks(OPTIONS, "train")[0]
    one, other = WebShopEnv(OPTIONS), WebShopEnv(lines)
    first, short = one.reset(task), other.reset(task)
    instruction = domain.shop(OPTIONS).goals[task.seed].instruction
    assert first.text == f"WebShop [SEP] Instruction: [SEP] {instruction} [SEP] Search"
    assert short.text == f"{instruction}\nSearch"
    assert first.admissible == short.admissible == (domain.SEARCH,)
    done, before = False, first.text
    while not done:
        action = one.expert_action()
        long, short_ = one.step(action), other.step(action)
        done = long.done
        opening = "" if done else f"Instruction: [SEP] {instruction} [SEP] "
        same = opening + short_.observation.text.replace("\n", " [SEP] ")
        assert long.observation.text == (before if short_.observation.text == domain.SAME_PAGE else same)
        assert long.observation.admissible == short_.observation.admissible
        before = long.observation.text


def test_the_policy_sees_nothing_of_the_goal_but_the_instruction() -> None:
    task = next(t for t in domain.tasks(OPTIONS, "train") if t.type == "0 options")
    env, product = WebShopEnv(OPTIONS), domain.shop(OPTIONS).goals[task.seed].product
    observation = env.reset(task)
    assert product.asin not in observation.text
    assert product.title not in observation.text


def test_an_episode_ends_at_the_cap_and_with_a_purchase() -> None:
    env, task = WebShopEnv(Options(products=150, max_steps=3)), domain.tasks(OPTIONS, "train")[0]
    env.reset(task)
    assert [env.step("look").done for _ in range(3)] == [False, False, True]
    env.reset(task)
    env.step("search[cup]")
    result = env.step("look around")
    assert (result.done, result.info["valid"]) == (False, False)


@pytest.mark.parametrize("values", [{}, {"goals": "human"}, {"reward": "corrected"}])
def test_conformance_on_the_generated_shop(values) -> None:
    options = Options(products=300, seed=4, **values)
    tasks = domain.tasks(options, "train")
    report = conformance.check(DOMAIN, options, tasks[:: len(tasks) // 40][:40], rollouts=2)
    assert report.conforming, conformance.failures_by_name(report)
    assert report.share(kind="mutated").won < report.share(kind="mutated").rollouts
    names = {r.name for r in report.rollouts if r.kind == "mutated" and r.score < 1}
    assert {"not bought", "bought at once", "one that costs too much", "option 1 left out"} <= names


def test_conformance_on_the_real_shop(webshop_dir) -> None:
    options = Options(data_dir=str(webshop_dir))
    report = conformance.check(DOMAIN, options, domain.tasks(options, "train")[::135], rollouts=2)
    assert len(report.rollouts) > 900
    assert report.conforming, conformance.failures_by_name(report)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"goals": "mine"}, "goals='mine' is not one of"),
        ({"layout": "wide"}, "layout='wide'"),
        ({"max_steps": 0}, "max_steps=0 must be 1 or more"),
    ],
)
def test_options_are_checked(values, message) -> None:
    with pytest.raises(ValueError, match=message):
        Options(**values)


def test_the_built_in_name_leads_here() -> None:
    found, options = environment("webshop")
    assert (found, options) == (DOMAIN, Options)
    assert pickle.loads(pickle.dumps(found.make)) is WebShopEnv
