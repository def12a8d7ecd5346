"""The verifier interface of WebShop: atoms, evidence and the one commit beside the shop's own score.

The score speaks of the product that is bought, so all atoms of a rollout do: of the product that was bought,
or else of the last one that was opened. Before that one was listed and opened they are UNKNOWN.

    product_listed    it was in a list of results
    product_opened    its page was opened
    type_K            it is enough of what was wanted for the factor K (`type_1`; `type_0.1` and `type_0.5` in
                      goals where a wrong product can have these factors)
    attribute_i       it has the i-th attribute that the goal asks for
    option_k          a value like the k-th one that the goal asks for is chosen
    price_fits        it does not cost more than the goal says
    purchase_made     it was bought

Type, attributes and price are facts about a product; a list reveals title and price, its page the rest, and
an attribute is revealed once more where a page shows it in words. Options are written by clicks, and cleared
by leaving the page. `buy now` is the only commit, and puts everything that is scored into its scope.

The predicates read products and goals; nothing of `envs.webshop.reward` is used but its list of colour words,
so that agreement of the two (`envs.conformance`) proves something. A fault of the original that its score has
is one of the predicate, too: an option that can never count is an atom that never holds.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from envs.base import Atom, ScoreRole, Status, Variable, VerifierRecord
from envs.webshop.catalogue import Product, clean_value
from envs.webshop.goals import Goal
from envs.webshop.reward import COLOURS

# Of the 1,000 products the largest goal has 15 attributes and 3 options.
MAX_ATOMS = 28
MAX_VARIABLES = 48
_NONE = "none"
_WRITTEN = ("choice", "bought")  # state variables; the others are observations
# Where an attribute is found -> the page that shows it.
_PAGES_OF_TEXTS = {"title": "item", "features": "features", "description": "description"}


@dataclasses.dataclass(frozen=True)
class Moment:
    """What the verifier keeps of one state of the shop.

    Attributes:
      asin: of the product whose page or subpage is on the screen, else "".
      chosen: group -> value, of that product.
      listed: ids of all products that were in a list so far.
      shown: (id, page) of all pages of products that were on the screen so far; a page is `item`,
        `description`, `features`, ...
      bought: id of the product that was bought, else "".
    """

    asin: str
    chosen: Mapping[str, str]
    listed: frozenset[str]
    shown: frozenset[tuple[str, str]]
    bought: str


@dataclasses.dataclass(frozen=True)
class Spec:
    """What the verifier knows of a goal before the first step.

    Attributes:
      goal: it. exact: options must be equal (the corrected score), not only alike.
      levels: factors above 0 that the type of a product can have, ascending.
      atoms, variables, params: as in `VerifierRecord`.
    """

    goal: Goal
    exact: bool
    levels: tuple[float, ...]
    atoms: tuple[Atom, ...]
    variables: tuple[Variable, ...]
    params: Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Finding:
    """What is to be said of one product, whatever is done with it.

    Attributes:
      level: factor of its type.
      places: for each attribute of the goal where it is found: `title`, `features`, `description`, `hidden`,
        or "" for nowhere.
      affordable: it does not cost too much.
      groups: for each option of the goal the group of the product that it belongs to, "" if none.
    """

    level: float
    places: tuple[str, ...]
    affordable: bool
    groups: tuple[str, ...]


def aggregate(satisfied: Any, params: Mapping[str, Any]) -> Any:
    """F of VICT Eq. 3: type factor x share of attributes, options and price that fit; 0 without a purchase.

    Args:
      satisfied: bool[M].
      params: `gate` bool[M], all must hold; `level` f32[M], what an atom adds to the type factor; `share`
        f32[M], what it adds to the share.

    Returns:
      f32[], of the array library that came in.
    """
    bought = (satisfied | ~params["gate"]).all()
    return bought * (satisfied * params["level"]).sum() * (satisfied * params["share"]).sum()


def specify(goal: Goal, *, exact: bool = False) -> Spec:
    """The atoms of a goal.

    Args:
      exact: options must be equal, as in the corrected score.

    Raises:
      ValueError: the goal has more attributes and options than `MAX_ATOMS` allows.
    """
    levels = possible_levels(goal.product.nouns)
    atoms = tuple(_atoms(goal, levels))
    if len(atoms) > MAX_ATOMS:
        raise ValueError(
            f"goal {goal.instruction!r} has {len(goal.attributes)} attributes and {len(goal.options)} "
            f"options, {len(atoms)} atoms in all; at most {MAX_ATOMS} are allowed (verifier.MAX_ATOMS)"
        )
    families = np.array([atom.family for atom in atoms])
    parts = np.isin(families, ("attribute", "option", "price"))
    level = np.zeros(len(atoms), np.float32)
    level[families == "type"] = np.diff((0.0, *levels))
    return Spec(
        goal=goal,
        exact=exact,
        levels=levels,
        atoms=atoms,
        variables=tuple(
            Variable(name, observation=not name.startswith(_WRITTEN))
            for name in dict.fromkeys(name for atom in atoms for name in atom.variables)
        ),
        params={
            "gate": families == "purchase",
            "level": level,
            "share": parts.astype(np.float32) / int(parts.sum()),
        },
    )


def possible_levels(wanted: Sequence[str]) -> tuple[float, ...]:
    """Type factors above 0 that some product can have for a goal whose title has the nouns `wanted`."""
    counts = range(len(set(wanted)) + 1)
    found = {_factor(count, len(wanted), alike) for count in counts for alike in (False, True)}
    return tuple(sorted((found | {1.0}) - {0.0}))


def examine(spec: Spec, product: Product) -> Finding:
    """Judge a product."""
    goal = spec.goal
    return Finding(
        level=_level(goal.product, product),
        places=tuple(_place(wanted, product) for wanted in goal.attributes),
        affordable=not product.price > goal.price_upper,
        groups=tuple(_group(spec, option, product) for option in goal.options),
    )


def record(
    spec: Spec, history: Sequence[Moment], products: Mapping[str, Product], score: float
) -> VerifierRecord:
    """The verifier's record of a rollout of T steps.

    Args:
      spec: of the goal.
      history: T + 1 moments.
      products: by id.
      score: V, the shop's own score of the present state.
    """
    about = _bind(history)
    if about:
        finding = examine(spec, products[about])
        rows = [_row(spec, products[about], finding, moment) for moment in history]
    else:
        rows = [_nothing(spec)] * len(history)
    names = [variable.id for variable in spec.variables]
    commits = np.array([bool(moment.bought) for moment in history[1:]], bool)
    commits[1:] &= ~commits[:-1]
    scored = np.array([atom.role is ScoreRole.SCORED for atom in spec.atoms])
    return VerifierRecord(
        atoms=spec.atoms,
        variables=spec.variables,
        status=np.array([status for status, _ in rows], np.int8),
        evidence=tuple(tuple(values[name] for name in names) for _, values in rows),
        commits=commits,
        scope=commits[:, None] & scored,
        params=spec.params,
        eta=1e-6,  # thirds in float32
        score=score,
    )


def _bind(history: Sequence[Moment]) -> str:
    """The product that the atoms speak of: the one bought, else the last one opened, "" if none was."""
    return history[-1].bought or next((moment.asin for moment in reversed(history) if moment.asin), "")


def _nothing(spec: Spec) -> tuple[list[Status], dict[str, str]]:
    """Statuses and values while there is no product to speak of."""
    status = [Status.UNSATISFIED if a.id == "purchase_made" else Status.UNKNOWN for a in spec.atoms]
    written = [variable.id for variable in spec.variables if not variable.observation]
    return status, {variable.id: "" for variable in spec.variables} | dict.fromkeys(written, _NONE)


def _row(
    spec: Spec, product: Product, finding: Finding, moment: Moment
) -> tuple[list[Status], dict[str, str]]:
    """Statuses of all atoms and values of all variables at one moment."""
    chosen = moment.chosen if moment.asin == product.asin else {}
    choices = [_choice(spec, k, finding.groups[k], chosen) for k in range(len(spec.goal.options))]
    listed, opened = product.asin in moment.listed, (product.asin, "item") in moment.shown
    facts = {
        **{f"type_{level:g}": finding.level >= level for level in spec.levels},
        **{f"option_{k}": hit for k, (_, hit) in enumerate(choices, start=1)},
        **{f"attribute_{i}": bool(place) for i, place in enumerate(finding.places, start=1)},
        "price_fits": finding.affordable,
    }
    known = {True: Status.SATISFIED, False: Status.UNSATISFIED}
    status = {name: known[fact] if opened else Status.UNKNOWN for name, fact in facts.items()}
    status["purchase_made"] = known[bool(moment.bought)]
    for name, seen in (("product_listed", listed), ("product_opened", opened)):
        status[name] = Status.SATISFIED if seen else Status.UNKNOWN
    values = {
        "listing": f"{product.title}, {product.price_tag}" if listed else "",
        **{f"choice_{k}": value for k, (value, _) in enumerate(choices, start=1)},
        "bought": moment.bought or _NONE,
    }
    values |= _revealed(product, finding, moment) if opened else {}
    values = {variable.id: "" for variable in spec.variables} | values
    return [status[atom.id] for atom in spec.atoms], values


def _revealed(product: Product, finding: Finding, moment: Moment) -> dict[str, str]:
    """Values of the observation variables of a product whose page was opened."""
    values = {
        "page": product.asin,
        "kind": f"{product.query}, factor {finding.level:g}",
        "price": f"{product.price:.2f}",
    }
    for i, place in enumerate(finding.places, start=1):
        page = _PAGES_OF_TEXTS.get(place, "")
        values[f"attribute_{i}"] = place or "nowhere"
        values[f"words_{i}"] = f"on page {page}" if (product.asin, page) in moment.shown else ""
    return values


def _atoms(goal: Goal, levels: Sequence[float]) -> Iterator[Atom]:
    """The atoms of a goal. Where a core has no room for all of equal effect, the first ones are in it: what
    clicks decide goes before what only the choice of the product does."""
    opened = ("product_opened",)
    fact = functools.partial(Atom, level=1)
    lower = opened
    for level in levels:
        id_, source = f"type_{level:g}", "goal.py: get_type_reward"
        text = f"is close enough to {goal.product.query!r} for the factor {level:g}"
        yield fact(id_, "type", ("listing", "kind"), lower, source=source, description=text)
        lower = (id_,)
    yield Atom("purchase_made", "purchase", ("bought",), opened, source="web_agent_text_env.py: done")
    for k, (group, value) in enumerate(goal.options, start=1):
        source, text = "goal.py: get_option_reward", f"{group or 'an option'} is {value!r}"
        yield fact(f"option_{k}", "option", (f"choice_{k}",), opened, source=source, description=text)
    source, text = "goal.py: get_reward", f"costs at most {goal.price_upper:g} dollars"
    yield fact("price_fits", "price", ("listing", "price"), opened, source=source, description=text)
    for i, wanted in enumerate(goal.attributes, start=1):
        source, text = "goal.py: get_attribute_reward", f"is {wanted!r}"
        reads = (f"attribute_{i}", f"words_{i}")
        yield fact(f"attribute_{i}", "attribute", reads, opened, source=source, description=text)
    support = functools.partial(Atom, role=ScoreRole.SUPPORT, level=2, source="pages of the shop")
    yield support(*opened, *opened, ("page",), ("product_listed",), description="its page was opened")
    yield support("product_listed", "product_listed", ("listing",), description="was in a list of results")


# Predicates.


def _level(wanted: Product, product: Product) -> float:
    paths = [{step.strip() for step in p.product_category.split("›")} for p in (wanted, product)]
    alike = product.query == wanted.query or len(paths[0].intersection(paths[1])) > 1
    common = len(set(wanted.nouns).intersection(product.nouns))
    return _factor(common, len(wanted.nouns), alike)


def _factor(common: int, of: int, alike: bool) -> float:
    """Type factor of a title with `common` of the `of` nouns wanted; none wanted count as one in five."""
    share = Fraction(common, of) if of else Fraction(1, 5)
    if not share:
        return 0.0
    if share < Fraction(1, 10):
        return 0.1
    return 0.5 if share <= Fraction(1, 5) and not alike else 1.0


def _place(wanted: str, product: Product) -> str:
    """Where a product has an attribute, the most visible place first."""
    texts = {
        "title": product.title,
        "features": " ".join(product.bullets),
        "description": product.description,
    }
    seen = next((place for place, text in texts.items() if wanted in text.lower()), "")
    if not seen and any(alike(attribute, wanted) for attribute in product.attributes):
        return "hidden"
    return seen


def _group(spec: Spec, option: tuple[str, str], product: Product) -> str:
    """The group of a product that an option of the goal belongs to: by name, else one with such a value."""
    name, _ = option
    if name in product.options:
        return name
    fits = (
        group
        for group, values in product.options.items()
        if any(_fulfils(spec.exact, option, value) for value in values)
    )
    return next(fits, "")


def _choice(spec: Spec, k: int, group: str, chosen: Mapping[str, str]) -> tuple[str, bool]:
    """What is chosen for the k-th option of the goal, and whether it fulfils it."""
    option = spec.goal.options[k]
    right = next((value for value in chosen.values() if _fulfils(spec.exact, option, value)), None)
    if right is not None:
        return right, True
    return chosen.get(group, _NONE), False


@functools.lru_cache(maxsize=65536)
def _fulfils(exact: bool, option: tuple[str, str], value: str) -> bool:
    """A chosen value counts for an option of the goal.

    In the original the value is first cut down to its colour word. So is the option of a goal by a person;
    that of a synthetic goal only if its name or its whole value is a colour word, else it is compared
    together with its name.
    """
    group, wanted = option
    if exact:
        return clean_value(wanted) == value
    if not group:
        return alike(_colour(value), _colour(wanted))
    whole = [colour for colour in COLOURS if colour in (group, wanted)]
    return alike(_colour(value), whole[0] if whole else f"{group!r} {wanted!r}")


def _colour(text: str) -> str:
    held = [colour for colour in COLOURS if colour in text]
    return held[0] if held else text


@functools.lru_cache(maxsize=65536)
def alike(one: str, other: str) -> bool:
    """Two texts are at least 86 % alike as sets of words (token set ratio, rounded)."""
    left, right = _words(one), _words(other)
    common = sorted(left & right)
    if not left or not right:
        return False
    if common and (left <= right or right <= left):
        return True
    first, second = (" ".join(common + sorted(words - set(common))) for words in (left, right))
    pairs = [(first, second), *((" ".join(common), text) for text in (first, second) if common)]
    return any(round(100 * difflib.SequenceMatcher(None, a, b).ratio()) > 85 for a, b in pairs)


def _words(text: str) -> frozenset[str]:
    kept = "".join(c for c in text if ord(c) < 128 or ord(c) > 255)
    return frozenset(re.findall(r"\w+", kept.lower()))
