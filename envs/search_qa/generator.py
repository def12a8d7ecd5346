"""Generated worlds: facts, short passages that state them, and questions with their supporting passages.

    python -m envs.search_qa.generator --out DIR [--world 0]

A world is a function of its number: people, films, novels, companies, cities and countries with made-up
names, and relations between them. Every entity has one passage. Films, novels and companies share their name
with a song or a ship, whose passage is shorter: of a query of the bare name it is the first result. Names
repeat from world to world with other facts, so what is true can only be read. The command writes a world in
the files of the real data sets.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import pathlib
import random
import re
from collections.abc import Mapping, Sequence

from envs.search_qa.data import Passage, Question

TYPES = ("one_hop", "two_hop")
DATASET = "world"
_listed = re.compile(r"\w+").findall
_FIRST = _listed(
    "Mara Olin Tessa Bram Ilse Corin Dalia Edric Fenna Garo Hedda Ivo Jorun Kaspar Lenka Milo Nadia Osric "
    "Petra Quill Rosa Stellan Thora Ulric"
)
_LAST = _listed(
    "Velden Harrow Castell Brandt Osmond Tarrow Lindqvist Marlow Penrose Quist Ransom Sorel Tamsin Ullman "
    "Vance Wexford Yarrow Zeller Ashdown Birch Crane Dunmore Elling Farrow"
)
_CITIES = _listed(
    "Alden Brimwick Carth Dornfell Eastmere Fallow Grenholt Hollin Istrin Jarrow Kelmar Lorne Mirefield "
    "Norwell Orstead Pellam Quarrow Redmoor Selwick Tarn"
)
_COUNTRIES = _listed("Valoria Norland Estavia Brumia Caldera Drovia Feronia Galdor")
_ADJECTIVES = _listed("Silent Golden Broken Hidden Crimson Distant Frozen Gentle Hollow Iron Lonely Paper")
_NOUNS = _listed("Harbor River Garden Mirror Winter Bridge Lantern Orchard Station Voyage Compass Island")
_FIRMS = _listed("Arden Bellis Corvan Dexter Elmont Fulton Gessler Hartwell Inver Juno Keller Lumen")
_TRADES = _listed("Works Lines Press Motors")
_JOBS = _listed("painter sailor doctor pianist lawyer runner")
_YEARS = ("1921", "1934", "1947", "1958", "1963", "1972", "1986", "1999")

# Relation -> a sentence of the subject's passage that states it. The first words are the subject's name.
STATEMENTS = {
    "director": "{s} is a film directed by {o}.",
    "author": "{s} is a novel written by {o}.",
    "birthplace": "{s} is a {job} born in {o}.",
    "seat": "{s} is a company based in {o}.",
    "country": "{s} is a city in {o}.",
}
# Relation -> a word of the subject's passage that its namesake's passage lacks.
KINDS = {"director": "film", "author": "novel", "birthplace": "born", "seat": "company", "country": "city"}
_NAMESAKES = {
    "director": ("song", "{s} is a song."),
    "author": ("song", "{s} is a song."),
    "seat": ("ship", "{s} is a ship."),
}
# What else a passage says: true, and of no use for the questions.
_ASIDES = {
    "director": "It was shot in {city} in {year}.",
    "author": "It is set in {city} in {year}.",
    "birthplace": "The {job} moved to {city} in {year}.",
    "seat": "It was founded by {person} in {year}.",
    "country": "It is twinned with {city}.",
}
# Relations from the subject to the answer -> the question.
QUESTIONS = {
    ("director",): "Who directed {s}?",
    ("author",): "Who wrote {s}?",
    ("birthplace",): "Where was {s} born?",
    ("seat",): "Where is {s} based?",
    ("director", "birthplace"): "Where was the director of {s} born?",
    ("author", "birthplace"): "Where was the author of {s} born?",
    ("birthplace", "country"): "In which country was {s} born?",
    ("seat", "country"): "In which country is {s} based?",
}


@dataclasses.dataclass(frozen=True)
class Entity:
    """A thing of a world.

    Attributes:
      relation: the relation that its passage states. value: the name of the other side.
      aliases: other names that a golden answer may have.
    """

    name: str
    relation: str
    value: str
    aliases: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class World:
    """Passages in the order of the corpus; questions in the order of the tasks, the types in turn."""

    passages: tuple[Passage, ...]
    questions: tuple[Question, ...]


def _pairs(rng: random.Random, first: Sequence[str], second: Sequence[str], count: int) -> list[str]:
    """`count` different names made of one word of each."""
    return [f"{a} {b}" for a, b in rng.sample([(a, b) for a in first for b in second], count)]


def _entities(rng: random.Random) -> dict[str, Entity]:
    """The things of a world, by name. Works, people, firms and cities each state one relation."""
    countries, cities = rng.sample(_COUNTRIES, 4), rng.sample(_CITIES, 8)
    people = _pairs(rng, _FIRST, _LAST, 20)
    works = _pairs(rng, _ADJECTIVES, _NOUNS, 20)
    firms = _pairs(rng, _FIRMS, _TRADES, 10)
    found = [
        *(Entity(work, "director", rng.choice(people)) for work in works[:10]),
        *(Entity(work, "author", rng.choice(people)) for work in works[10:]),
        *(Entity(firm, "seat", rng.choice(cities)) for firm in firms),
        *(Entity(name, "birthplace", rng.choice(cities), (_last_first(name),)) for name in people),
        *(Entity(city, "country", rng.choice(countries), (f"{city} City",)) for city in cities),
    ]
    return {entity.name: entity for entity in found}


def _last_first(name: str) -> str:
    first, last = name.split()
    return f"{last}, {first}"


def _passage(rng: random.Random, number: int, entity: Entity, names: Mapping[str, Sequence[str]]) -> Passage:
    values = {
        "job": rng.choice(_JOBS),
        "year": rng.choice(_YEARS),
        "city": rng.choice([city for city in names["country"] if city not in (entity.name, entity.value)]),
        "person": rng.choice(names["birthplace"]),
    }
    statement = STATEMENTS[entity.relation].format(s=entity.name, o=entity.value, **values)
    return Passage(str(number), f'"{entity.name}"\n{statement} {_ASIDES[entity.relation].format(**values)}')


def _question(number: int, entities: Mapping[str, Entity], subject: str, path: Sequence[str]) -> Question:
    facts, at = [subject], entities[subject].value
    for _ in path[1:]:
        facts.append(at)
        at = entities[at].value
    aliases = entities[at].aliases if at in entities else (f"Republic of {at}",)
    return Question(
        id=str(number),
        dataset=DATASET,
        text=QUESTIONS[tuple(path)].format(s=subject),
        answers=(at, *aliases),
        facts=tuple(facts),
        kind=TYPES[len(path) - 1],
    )


@functools.lru_cache(maxsize=32)
def make_world(number: int) -> World:
    """The world with this number; the same in every process."""
    rng = random.Random(f"search_qa world {number}")
    entities = _entities(rng)
    names: dict[str, list[str]] = {}
    for entity in entities.values():
        names.setdefault(entity.relation, []).append(entity.name)
    order = rng.sample(list(entities.values()), len(entities))
    passages = [_passage(rng, i, entity, names) for i, entity in enumerate(order)]
    for entity in order:
        if entity.relation in _NAMESAKES:
            kind, text = _NAMESAKES[entity.relation]
            contents = f'"{entity.name} ({kind})"\n{text.format(s=entity.name)}'
            passages.append(Passage(str(len(passages)), contents))
    by_hops: list[list[tuple[str, tuple[str, ...]]]] = [[], []]
    for entity in order:
        for path in QUESTIONS:
            if path[0] == entity.relation:
                by_hops[len(path) - 1].append((entity.name, path))
    turns = [choice for pair in zip(*by_hops, strict=True) for choice in pair]
    questions = (_question(i, entities, subject, path) for i, (subject, path) in enumerate(turns))
    return World(tuple(passages), tuple(questions))


# Every subject but the cities has a question of each type.
QUESTIONS_PER_WORLD = 100


def names_in(passages: Sequence[Passage]) -> list[str]:
    """The titles of passages, without quotes: names that a wrong answer may take."""
    return [passage.title.strip('"') for passage in passages]


def write_world(number: int, out: pathlib.Path) -> None:
    """Write a world as `corpus.jsonl` and a question file, in the format of HotpotQA's rows here."""
    out.mkdir(parents=True, exist_ok=True)
    world = make_world(number)
    corpus = [{"id": passage.id, "contents": passage.contents} for passage in world.passages]
    questions = [
        {
            "id": question.id,
            "question": question.text,
            "golden_answers": question.answers,
            "type": question.kind,
            "supporting_titles": question.facts,
        }
        for question in world.questions
    ]
    for name, rows in (("corpus.jsonl", corpus), ("hotpotqa_world.jsonl", questions)):
        text = "".join(f"{json.dumps(row)}\n" for row in rows)
        (out / name).write_text(text, encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Write a generated world as data files.")
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--world", type=int, default=0)
    options = parser.parse_args(arguments)
    write_world(options.world, options.out)
    print(f"wrote world {options.world} to {options.out}")


if __name__ == "__main__":
    main()
