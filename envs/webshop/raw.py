"""WebShop's data files, read and not yet interpreted.

| file | content |
|---|---|
| `items_shuffle[_1000].json` | list of products |
| `items_ins_v2[_1000].json` | asin -> attributes, and the instruction of a synthetic goal |
| `items_human_ins.json` | asin -> list of instructions that people wrote |
| `title_nouns*.json` | asin -> nouns of the title; not the original's, which runs spaCy on every purchase |

Source: princeton-nlp/WebShop at 64fa2a5, `web_agent_site/engine/engine.py`. The nouns of a title depend on
the version of spaCy and of its model, so they are data here, computed once by the importer.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

VARIANTS = ("small", "all")


@dataclasses.dataclass(frozen=True)
class RawData:
    """What the original's JSON files hold.

    Attributes:
      products: in file order; the keys `asin`, `name`, `full_description`, `small_description`, `pricing`,
        `category`, `query`, `product_category` and `customization_options` are read.
      attributes: asin -> `{"attributes": [...], "instruction": text, "instruction_attributes": [...]}`, the
        last two absent where the product has no synthetic goal.
      human: asin -> list of `{"instruction", "instruction_attributes", "instruction_options", ...}`.
      title_nouns: asin -> lower-case nouns and proper nouns of the title with repeats, in order; None where
        they have not been computed.
    """

    products: Sequence[Mapping[str, Any]]
    attributes: Mapping[str, Mapping[str, Any]]
    human: Mapping[str, Sequence[Mapping[str, Any]]]
    title_nouns: Mapping[str, Sequence[str]] | None = None


def data_files(data_dir: str | pathlib.Path, variant: str = "small") -> dict[str, pathlib.Path]:
    """The file of each kind in a folder: `products`, `attributes`, `human`, maybe `title_nouns`.

    Args:
      data_dir: folder of the files.
      variant: `small` for the files of 1,000 products, `all` for the full catalogue.

    Raises:
      ValueError: unknown variant, not a folder, a file that is missing, or several files of nouns.
    """
    if variant not in VARIANTS:
        raise ValueError(f"variant={variant!r} is not one of {VARIANTS}")
    folder = pathlib.Path(data_dir)
    if not folder.is_dir():
        raise ValueError(f"data_dir={str(folder)!r} is not a folder; it must hold WebShop's JSON files")
    suffix = "_1000" if variant == "small" else ""
    # The original has one file of human instructions for both; a reduced one goes before it.
    wanted = {
        "products": [f"items_shuffle{suffix}.json"],
        "attributes": [f"items_ins_v2{suffix}.json"],
        "human": [f"items_human_ins{suffix}.json", "items_human_ins.json"],
    }
    files = {}
    for kind, names in wanted.items():
        present = [folder / name for name in names if (folder / name).is_file()]
        if not present:
            raise ValueError(f"data_dir={str(folder)!r} has no {' or '.join(names)} (variant={variant!r})")
        files[kind] = present[0]
    nouns = sorted(folder.glob("title_nouns*.json"))
    if len(nouns) > 1:
        listed = ", ".join(path.name for path in nouns)
        raise ValueError(f"data_dir={str(folder)!r} has several files of title nouns ({listed}); keep one")
    return files | dict(zip(["title_nouns"], nouns, strict=False))


def load_raw(data_dir: str | pathlib.Path, variant: str = "small") -> RawData:
    """Read the files that `data_files` finds.

    Raises:
      ValueError: as `data_files`, or a file that is not JSON of the expected kind.
    """
    files = data_files(data_dir, variant)
    read = {kind: _read(path) for kind, path in files.items()}
    for kind, value in read.items():
        expected = list if kind == "products" else dict
        if not isinstance(value, expected):
            found = type(value).__name__
            raise ValueError(f"{files[kind].name} holds a {found}, expected a {expected.__name__}")
    return RawData(read["products"], read["attributes"], read["human"], read.get("title_nouns"))


def _read(path: pathlib.Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:  # not JSON, or not UTF-8
        raise ValueError(f"{path} is not a JSON file ({error}); was it downloaded completely?") from error


def manifest(data_dir: str | pathlib.Path, variant: str = "small") -> dict[str, str]:
    """Name of each file that `load_raw` reads -> its SHA-256."""
    files = data_files(data_dir, variant)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files.values()}
