"""WebShop as a `Domain`: options, task lists, the environment, texts for the tokenizer."""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Mapping, Sequence
from typing import Any

from envs.base import Domain, Observation, StepResult, Task, VerifierRecord
from envs.webshop import catalogue, expert, generator, goals, raw, verifier
from envs.webshop import mutations as changed
from envs.webshop.native import Session, WebShop
from envs.webshop.notes import notes
from envs.webshop.pages import PER_PAGE, SEP, Page
from envs.webshop.reward import MODES

SPLITS = ("train", "test", "valid")
GOALS = {"synthetic": goals.synthetic_goals, "human": goals.human_goals}
LAYOUTS = ("original", "lines")
HELD_OUT = ("products", "goals")
SAME_PAGE = "The page stays."
SEARCH = "search[<your query>]"
# Of the products of a generated shop, those whose goals are in `test` and in `valid`.
_HELD_OUT = 0.2
_FEW_GOALS = 3000
_CORPUS_TASKS = 300
_RANDOM_SHARE = 0.2
_SOURCE = "goal "


@dataclasses.dataclass(frozen=True)
class WebShopOptions:
    """Which shop, which goals, and how pages are written.

    Attributes:
      data_dir: folder of the original's files, see `envs.webshop.raw`; empty: a generated shop.
      variant: of the files: `small` (1,000 products) or `all`.
      products: of a generated shop.
      seed: of a generated shop.
      held_out: of a generated shop, what `test` and `valid` keep to themselves: `products` with all of their
        goals, or `goals` only, as in the original.
      long_titles, title_attributes: of a generated shop, see `envs.webshop.generator.generate`.
      goals: `synthetic` or `human`.
      reward: `original` or `corrected`, see `envs.webshop.reward`.
      layout: `original`: pieces joined by ` [SEP] ` under the instruction, which every page repeats. `lines`:
        a piece on each line, the instruction on the first page only, and `SAME_PAGE` for a page that is as it
        was before the action (such as by a click on an option); for short contexts that hold all pages.
      per_page: products on a page of results.
      max_steps: steps after which an episode ends; the original has no limit.
      num_train, num_test, num_valid: at most so many tasks of each split; 0 for all.
    """

    data_dir: str = ""
    variant: str = "small"
    products: int = 500
    seed: int = 0
    held_out: str = "products"
    long_titles: float = generator.LONG_TITLES
    title_attributes: int = 1
    goals: str = "synthetic"
    reward: str = "original"
    layout: str = "original"
    per_page: int = PER_PAGE
    max_steps: int = 15
    num_train: int = 0
    num_test: int = 0
    num_valid: int = 0

    def __post_init__(self) -> None:
        choices = {"variant": raw.VARIANTS, "goals": tuple(GOALS), "reward": MODES, "layout": LAYOUTS}
        choices["held_out"] = HELD_OUT
        for name, allowed in choices.items():
            if (value := vars(self)[name]) not in allowed:
                raise ValueError(f"{name}={value!r} is not one of {allowed}")
        counts = {"max_steps": 1, "per_page": 1, "num_train": 0, "num_test": 0, "num_valid": 0}
        for name, least in counts.items():
            if (value := vars(self)[name]) < least:
                raise ValueError(f"{name}={value} must be {least} or more")


Options = WebShopOptions  # the name under which `envs.lookup` finds them


@functools.lru_cache(maxsize=4)
def _catalogue(data_dir: str, variant: str, **generated: Any) -> catalogue.Catalogue:
    data = raw.load_raw(data_dir, variant) if data_dir else generator.generate(**generated)
    return catalogue.build(data)


@functools.lru_cache(maxsize=4)
def shop(options: WebShopOptions) -> WebShop:
    """The shop that options speak of, which all environments of a process share."""
    names = ("products", "seed", "long_titles", "title_attributes")
    generated = {} if options.data_dir else {name: vars(options)[name] for name in names}
    products = _catalogue(options.data_dir, options.variant, **generated)
    return WebShop(
        products, GOALS[options.goals](products), reward_mode=options.reward, per_page=options.per_page
    )


def tasks(options: WebShopOptions, split: str) -> list[Task]:
    """The tasks of a split; the types are numbers of options.

    Goals are split by their index in the original's order, or in fifths where there are few; those of a
    generated shop by their product, if the options say so. A goal with the very text of one that is held out
    is left out of `train`.

    Raises:
      ValueError: unknown split, or a split without goals.
    """
    if split not in SPLITS:
        raise ValueError(f"split {split!r} is not one of {SPLITS}")
    all_goals = shop(options).goals
    chosen = _split(options, split)
    if split == "train":
        held_out = {all_goals[i].instruction for name in ("test", "valid") for i in _split(options, name)}
        chosen = [i for i in chosen if all_goals[i].instruction not in held_out]
    most = vars(options)[f"num_{split}"]
    return [_task(split, i, all_goals[i]) for i in (chosen[:most] if most else chosen)]


def _task(split: str, index: int, goal: goals.Goal) -> Task:
    count = len(goal.options)
    return Task(f"{split}/{index}", f"{count} option{'s' * (count != 1)}", split, index, f"{_SOURCE}{index}")


def _split(options: WebShopOptions, split: str) -> Sequence[int]:
    """Indices of the goals of a split."""
    all_goals = shop(options).goals
    if options.data_dir or options.held_out == "goals":
        return _by_index(split, len(all_goals))
    return _by_product(split, all_goals, options.seed)


def _index(task: Task) -> int:
    return int(task.source.removeprefix(_SOURCE))


def _by_index(split: str, count: int) -> Sequence[int]:
    if count >= _FEW_GOALS:
        return goals.split(split, count)
    fifth = count // 5
    ranges = {"test": (0, fifth), "valid": (fifth, 2 * fifth), "train": (2 * fifth, None)}
    return goals.split(split, count, ranges)


def _by_product(split: str, all_goals: Sequence[goals.Goal], seed: int) -> Sequence[int]:
    asins = sorted({goal.product.asin for goal in all_goals})
    random.Random(f"split/{seed}").shuffle(asins)
    held_out = max(1, int(_HELD_OUT * len(asins)))
    bounds = {"test": (0, held_out), "valid": (held_out, 2 * held_out), "train": (2 * held_out, None)}
    chosen = set(asins[slice(*bounds[split])])
    return [i for i, goal in enumerate(all_goals) if goal.product.asin in chosen]


class WebShopEnv:
    """One customer at a time; implements `envs.base.Env`.

    `info` holds `valid` (the shop knew the action), `error` (what the original would have raised, else "")
    and `score`. An episode is done with the purchase or after `max_steps` steps.
    """

    def __init__(self, options: WebShopOptions) -> None:
        self._options = options
        self._shop = shop(options)
        self._session = Session(self._shop)
        self._text = ""

    def reset(self, task: Task) -> Observation:
        """See `Env.reset`."""
        self._session.reset(_index(task))
        self._spec = _specify(self._options, _index(task))
        self._history = [self._moment()]
        self._memory = expert.begin(self._session.goal.instruction, self._screen(), self._options.max_steps)
        return self._observe()

    def step(self, action: str) -> StepResult:
        """See `Env.step`."""
        _, score, bought, info = self._session.step(action)
        self._history.append(self._moment())
        expert.notice(self._memory, action, self._screen())
        done = bought or len(self._history) > self._options.max_steps
        return StepResult(self._observe(), done, {**info, "score": score})

    def record(self) -> VerifierRecord:
        """See `Env.record`."""
        return verifier.record(self._spec, self._history, self._shop.catalogue.by_asin, self._session.score())

    def expert_action(self) -> str:
        """See `Env.expert_action`."""
        return expert.decide(self._memory)

    def close(self) -> None:
        """See `Env.close`; nothing is held."""

    def _observe(self) -> Observation:
        available = self._session.available_actions()
        clicks = (f"click[{text}]" for text in available.clickables if text != "search")
        admissible = (*([SEARCH] if available.has_search_bar else []), *clicks)
        if self._options.layout == "original":
            return Observation(self._session.text(), admissible)
        before, self._text = self._text, self._session.text()
        if self._session.steps and self._text == before:
            return Observation(SAME_PAGE, admissible)
        opening = [] if self._session.steps else [self._session.goal.instruction]
        return Observation("\n".join([*opening, *self._pieces()]), admissible)

    def _pieces(self) -> list[str]:
        """The pieces of the page without the instruction."""
        pieces = self._session.text().split(SEP)
        if self._session.page is Page.DONE:
            return pieces
        return pieces[pieces.index("Instruction:") + 2 :]

    def _screen(self) -> expert.Screen:
        return expert.Screen(tuple(self._pieces()), self._session.available_actions().clickables)

    def _moment(self) -> verifier.Moment:
        session = self._session
        return verifier.Moment(
            asin=session.product.asin if session.product else "",
            chosen=dict(session.options),
            listed=frozenset(session.seen),
            shown=frozenset(
                (asin, "item" if what == "options" else what)
                for asin, seen in session.seen.items()
                for what in seen
            ),
            bought=session.bought.product.asin if session.bought else "",
        )


@functools.lru_cache(maxsize=256)
def _specify(options: WebShopOptions, index: int) -> verifier.Spec:
    # Cached, as the rollouts of a group all have the same goal.
    return verifier.specify(shop(options).goals[index], exact=options.reward == "corrected")


def corpus(options: WebShopOptions) -> list[str]:
    """Texts of training tasks, walked by the expert with some random steps: observations and commands."""
    chosen = tasks(options, "train")
    chosen = chosen[:: max(1, len(chosen) // _CORPUS_TASKS)][:_CORPUS_TASKS]
    rng, env, texts = random.Random(0), WebShopEnv(options), []
    for task in chosen:
        observation, done = env.reset(task), False
        while not done:
            by_chance = rng.random() < _RANDOM_SHARE
            action = rng.choice(observation.admissible) if by_chance else env.expert_action()
            texts += [observation.text, action]
            result = env.step(action)
            observation, done = result.observation, result.done
        texts.append(observation.text)
    return texts


def about(options: WebShopOptions) -> str:
    """See `Domain.about`: the size of the catalogue, the kind of goals and the score."""
    return f"{shop(options).catalogue.size:,} products, {options.goals} goals, {options.reward} score"


def max_steps(options: WebShopOptions) -> int:
    """See `Domain.max_steps`."""
    return options.max_steps


def mutations(options: WebShopOptions, task: Task) -> Mapping[str, Sequence[str]]:
    """See `Domain.mutations`."""
    here = shop(options)
    return changed.mutations(here.catalogue, here.goals[_index(task)], task.id)


def manifest(options: WebShopOptions, splits: Sequence[str]) -> Mapping[str, str]:
    """See `Domain.manifest`: the files, which all splits share."""
    return raw.manifest(options.data_dir, options.variant) if options.data_dir else {}


def guide(options: WebShopOptions) -> str:
    """See `Domain.guide`."""
    return (
        "You shop on a website for what the instruction describes. An action is search[words], or click[x] "
        "with something that can be clicked on the page: a button, a product, the value of an option. Open a "
        "product, choose the options that are asked for, and buy it with click[buy now], which ends it; what "
        "was bought is judged by its attributes, options and price."
    )


DOMAIN = Domain(
    name="webshop",
    make=WebShopEnv,
    tasks=tasks,
    splits=SPLITS,
    aggregate=verifier.aggregate,
    atom_params={"gate": True, "level": True, "share": True},
    max_atoms=verifier.MAX_ATOMS,
    max_variables=verifier.MAX_VARIABLES,
    max_steps=max_steps,
    corpus=corpus,
    mutations=mutations,
    manifest=manifest,
    about=about,
    guide=guide,
    notes=notes,
)
