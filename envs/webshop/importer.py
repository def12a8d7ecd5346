"""Check WebShop's data before anything is trained or scored on it, and add the nouns of the titles.

    python -m envs.webshop.importer --data-dir DIR [--variant all] [--write-nouns]

The data comes with the original (`setup.sh` of princeton-nlp/WebShop): `items_shuffle_1000.json` and
`items_ins_v2_1000.json` (variant `small`) or the files without `_1000` (variant `all`), and
`items_human_ins.json`. Scores are comparable only on the same catalogue, so the size is part of each of them,
and the check says which one this is: it counts products and goals, compares the content with the known one,
and asks a query whose answer is known. It exits with 1 and one message if the data cannot be used.

`--write-nouns` runs spaCy (`pip install spacy`, `python -m spacy download en_core_web_sm`) over all titles
once. The nouns depend on the version of the model: r_type differed for 1.4 % of random pairs of products
between en_core_web_sm 3.6 and 3.8, so the version becomes part of the file's name.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import pathlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from envs.webshop import catalogue, goals, raw
from envs.webshop.search import Index

MODEL = "en_core_web_sm"
_SPEECH = ("NOUN", "PROPN")
_SMALLEST_FULL = 100_000  # products; the original's full catalogue has 1.18 million

Tag = Callable[[Sequence[str]], Iterable[Iterable[tuple[str, str]]]]


@dataclasses.dataclass(frozen=True)
class Known:
    """What is known of a catalogue: products, goals, content, and the first products of a query."""

    products: int
    synthetic_goals: int
    digest: str
    query: str
    first: tuple[str, ...]


SMALL = Known(
    products=1000,
    synthetic_goals=6910,
    digest="4611e76a8abf4acf52306c4b4b751ef3365f0c8dd718e7374379d1c2084c0593",
    query="i want open toe gibobby sandals for women in size 8",
    first=("B09QXF3V3X", "B09MFZ726L", "B09S3TWKSC", "B09P5V8ZSK", "B092VDY5MF"),
)


def check(data_dir: str | pathlib.Path, variant: str = "small") -> list[str]:
    """Check a folder; what there is to say about it, line by line.

    Raises:
      ValueError: the data cannot be used, and why.
    """
    data = raw.load_raw(data_dir, variant)
    lines = [f"{name}  sha256 {digest}" for name, digest in raw.manifest(data_dir, variant).items()]
    shop = catalogue.build(data)
    synthetic, human = goals.synthetic_goals(shop), goals.human_goals(shop)
    lines.append(
        f"{shop.size} products, {len(synthetic)} synthetic goals, {len(human)} goals written by people"
    )
    if variant == "all":
        _check_full(shop.size)
        return [*lines, f"content {shop.digest()} (no digest of the full catalogue is known)"]
    _check_count("products", shop.size, SMALL.products)
    _check_count("synthetic goals", len(synthetic), SMALL.synthetic_goals)
    _check_query(shop, SMALL)
    return [*lines, f"query {SMALL.query!r}: the known order", _compare_digest(shop.digest())]


def title_nouns(data: raw.RawData, tag: Tag) -> dict[str, list[str]]:
    """Nouns of each title, lower-case, with repeats. `tag` gives for each text its words with their kind."""
    titles = {entry["asin"]: entry["name"] for entry in catalogue.usable(data.products)}
    return {
        asin: [word.lower() for word, kind in words if kind in _SPEECH]
        for asin, words in zip(titles, tag(list(titles.values())), strict=True)
    }


def write_nouns(data_dir: str | pathlib.Path, variant: str = "small") -> pathlib.Path:
    """Tag the titles with spaCy and write `title_nouns_spacyVERSION.json` beside the data.

    Raises:
      ValueError: spaCy or its model is not installed, or there are nouns already.
    """
    files = raw.data_files(data_dir, variant)
    if "title_nouns" in files:
        raise ValueError(f"{files['title_nouns']} exists; remove it first to write the nouns anew")
    version, tag = _spacy()
    nouns = title_nouns(raw.load_raw(data_dir, variant), tag)
    path = pathlib.Path(data_dir) / f"title_nouns_spacy{version}.json"
    path.write_text(json.dumps(nouns))
    return path


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0 if the data can be used."""
    parser = argparse.ArgumentParser("python -m envs.webshop.importer", description="Check WebShop's data.")
    parser.add_argument("--data-dir", required=True, help="folder with WebShop's JSON files")
    parser.add_argument("--variant", choices=raw.VARIANTS, default="small", help="1,000 products, or all")
    parser.add_argument("--write-nouns", action="store_true", help="tag the titles with spaCy first")
    options = parser.parse_args(arguments)
    try:
        if options.write_nouns:
            print(f"wrote {write_nouns(options.data_dir, options.variant)}")
        lines = check(options.data_dir, options.variant)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print("\n".join([*lines, "The data can be used."]))
    return 0


def _check_count(what: str, found: int, expected: int) -> None:
    if found != expected:
        raise ValueError(
            f"{found} {what}, the small catalogue has {expected}; it is not the original's or was cut "
            "(the full catalogue is checked with --variant all)"
        )


def _check_full(size: int) -> None:
    if size < _SMALLEST_FULL:
        raise ValueError(
            f"items_shuffle.json holds {size} products, the full catalogue has more than a million; "
            "name a small one items_shuffle_1000.json and check it with --variant small"
        )


def _check_query(shop: catalogue.Catalogue, known: Known) -> None:
    index = Index({product.asin: product.document() for product in shop.products})
    found = tuple(asin for asin, _ in index.search(known.query, len(known.first)))
    if found != known.first:
        raise ValueError(f"query {known.query!r} finds {found}, expected {known.first}: texts were changed")


def _compare_digest(digest: str) -> str:
    if digest == SMALL.digest:
        return f"content {digest}: the known catalogue"
    return (
        f"warning: content {digest} differs from the known {SMALL.digest} in some field; scores are "
        "comparable with others on the same content only"
    )


def _spacy() -> tuple[str, Tag]:
    """Version of the model, and a function that tags texts with it."""
    try:
        spacy: Any = importlib.import_module("spacy")
        model = spacy.load(MODEL, exclude=["ner", "parser", "lemmatizer"])
    except (ImportError, OSError) as error:  # spaCy raises OSError for a model that is not there
        raise ValueError(
            f"--write-nouns needs spaCy and its model ({error}); `pip install spacy` and "
            f"`python -m spacy download {MODEL}`"
        ) from error
    version: Mapping[str, Any] = model.meta
    return ".".join(version["version"].split(".")[:2]), lambda texts: (
        [(token.text, token.pos_) for token in document] for document in model.pipe(texts)
    )


if __name__ == "__main__":
    sys.exit(main())
