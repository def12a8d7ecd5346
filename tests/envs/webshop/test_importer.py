"""The check of the user's data: one clear message for each mistake."""

from __future__ import annotations

import dataclasses
import json
import shutil

import pytest

from envs.webshop import importer, raw

FILES = (
    "items_shuffle_1000.json",
    "items_ins_v2_1000.json",
    "items_human_ins_1000.json",
    "title_nouns_spacy3.8.json",
)


@pytest.fixture
def folder(webshop_dir, tmp_path):
    """A copy of the data, to be spoilt; the originals are read-only."""
    for name in FILES:
        shutil.copyfile(webshop_dir / name, tmp_path / name)
    return tmp_path


def change(path, edit) -> None:
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))


def test_the_known_catalogue(webshop_dir, capsys):
    assert importer.main(["--data-dir", str(webshop_dir)]) == 0
    printed = capsys.readouterr().out
    assert "1000 products, 6910 synthetic goals, 13 goals written by people" in printed
    assert "the known catalogue" in printed
    assert printed.endswith("The data can be used.\n")
    assert all(name in printed for name in FILES)


def test_the_manifest_names_what_is_read(folder):
    before = raw.manifest(folder)
    assert set(before) == set(FILES)
    (folder / "reviews.json").write_text("[]")
    assert raw.manifest(folder) == before
    change(folder / FILES[2], dict.clear)
    assert {name for name, digest in raw.manifest(folder).items() if digest != before[name]} == {FILES[2]}


def test_layout_does_not_matter_but_content_is_reported(folder):
    change(folder / FILES[0], lambda products: products[0].update(unread=1))
    assert importer.check(folder)[-1].endswith("the known catalogue")
    change(folder / FILES[0], lambda products: products[0].update(category="attic"))
    assert importer.check(folder)[-1].startswith("warning: content")


def spoil_query(products: list[dict]) -> None:
    for product in products:
        if product["asin"] == importer.SMALL.first[0]:
            product |= {"name": "Slippers", "full_description": "", "small_description": [""]}


@pytest.mark.parametrize(
    ("name", "edit", "message"),
    [
        (FILES[0], lambda products: products.pop(), "999 products, the small catalogue has 1000"),
        (FILES[0], spoil_query, "texts were changed"),
        (FILES[1], dict.clear, "0 synthetic goals, the small catalogue has 6910"),
        (FILES[3], dict.clear, "title nouns of 1000 products are missing"),
    ],
)
def test_field_report_29_changed_data(folder, capsys, name, edit, message):
    change(folder / name, edit)
    assert importer.main(["--data-dir", str(folder)]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file(folder, capsys, name):
    (folder / name).unlink()
    assert importer.main(["--data-dir", str(folder)]) == 1
    error = capsys.readouterr().err
    assert ("title_nouns" if name == FILES[3] else name) in error
    assert error.startswith("error: ")
    assert error.count("\n") == 1


def test_wrong_folder_kind_and_variant(webshop_dir, folder, capsys):
    for arguments in (
        ["--data-dir", str(folder / "nowhere")],
        ["--data-dir", str(webshop_dir), "--variant", "all"],
    ):
        assert importer.main(arguments) == 1
    error = capsys.readouterr().err
    assert "is not a folder" in error
    assert "has no items_shuffle.json (variant='all')" in error
    with pytest.raises(ValueError, match="variant='medium' is not one of"):
        raw.load_raw(folder, "medium")


def test_a_small_catalogue_under_the_full_name(folder):
    for name in FILES[:2]:
        (folder / name).rename(folder / name.replace("_1000", ""))
    (folder / FILES[2]).rename(folder / "items_human_ins.json")
    with pytest.raises(ValueError, match="holds 1000 products, the full catalogue has more than a million"):
        importer.check(folder, "all")


@pytest.mark.parametrize(
    ("content", "message"), [("{", "not a JSON file"), ("{}", "holds a dict, expected a list")]
)
def test_files_that_are_not_what_they_should_be(tmp_path, content, message):
    for name in FILES[:3]:
        (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        raw.load_raw(tmp_path)


def test_two_files_of_nouns(folder):
    (folder / "title_nouns.json").write_text("{}")
    with pytest.raises(ValueError, match="several files of title nouns"):
        raw.load_raw(folder)


def test_nouns_are_written_once(folder, capsys, monkeypatch):
    assert importer.main(["--data-dir", str(folder), "--write-nouns"]) == 1
    assert "exists; remove it first" in capsys.readouterr().err
    expected = json.loads((folder / FILES[3]).read_text())
    (folder / FILES[3]).unlink()

    def tag(titles):
        """Stands in for spaCy: what it says of each title is known."""
        titles_of = {product["asin"]: product["name"] for product in raw.load_raw(folder).products}
        assert list(titles) == list(titles_of.values())
        return [[("The", "DET"), *((word.upper(), "PROPN") for word in expected[asin])] for asin in titles_of]

    monkeypatch.setattr(importer, "_spacy", lambda: ("3.8", tag))
    assert importer.main(["--data-dir", str(folder), "--write-nouns"]) == 0
    assert json.loads((folder / FILES[3]).read_text()) == expected


def test_spacy_is_asked_for_by_name(folder, capsys, monkeypatch):
    (folder / FILES[3]).unlink()
    monkeypatch.setattr(importer, "MODEL", "no_such_model")
    assert importer.main(["--data-dir", str(folder), "--write-nouns"]) == 1
    assert "needs spaCy and its model" in capsys.readouterr().err


def test_nouns_of_titles(raw_shop):
    data = dataclasses.replace(raw_shop, title_nouns=None)
    tagged = [[("Soft", "ADJ"), ("Shirt", "NOUN")], [("Long", "PROPN")], []]
    assert importer.title_nouns(data, lambda titles: tagged) == {
        "B000000001": ["shirt"],
        "B000000002": ["long"],
        "B000000003": [],
    }
