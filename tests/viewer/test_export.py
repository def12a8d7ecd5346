"""The exported page: what it holds, what it says it left out, and that its data stay in their element."""

from __future__ import annotations

import json
import re

import pytest

from tests.audit.logged import SIZE
from vict_jax.viewer import export as export_lib
from vict_jax.viewer.export import collect, export
from vict_jax.viewer.page import page, script_json

EVERYTHING = {"groups": None, "methods": [], "most_bytes": 10**9}


def data_of(html: str):
    return json.loads(
        re.search(r'<script type="application/json" id="export-data">(.*?)</script>', html, re.S)[1]
    )


def test_the_data_are_the_answers_of_the_server(viewing):
    data, left_out = collect(viewing, updates=None, **EVERYTHING)
    assert left_out == ["left out: 1 of 2 updates; --update=U names others"]
    assert data["index"]["note"] == f"exported: {2 * SIZE} rollouts of 2 groups of update 2"
    assert data["index"]["updates"] == [2]
    assert len(data["index"]["rows"]["update"]) == 2 * SIZE
    for g in range(2):
        assert data["groups"][f"2/{g}"] == viewing.group(2, g)
        for n in range(SIZE):
            found = data["rollouts"][f"2/{g}/{n}"]
            assert found["record"] == viewing.rollout(2, g, n)
            assert found["observed"] == viewing.observed(2, g, n)
    html = page("t", data=data)
    assert data_of(html) == json.loads(json.dumps(data))
    assert html.count("</script>") == html.count("<script")


def test_what_does_not_fit_is_named(viewing):
    small = len(json.dumps(viewing.group(1, 0))) * 12
    data, left_out = collect(viewing, updates=[2, 1], groups=None, methods=[], most_bytes=small)
    assert "2/1" not in data["groups"]
    assert "1/0" in data["groups"]
    assert re.fullmatch(
        r"left out: \d of 4 groups \(update/group .*2/1\), which would have made the data larger than "
        r"--export_mb=[0-9.e-]+; choose with --group, or raise it",
        left_out[-1],
    )
    assert set(data["index"]["updates"]) == {int(key.split("/")[0]) for key in data["groups"]}


def test_chosen_groups(viewing):
    data, _ = collect(viewing, updates=[1], groups=[1], methods=[], most_bytes=10**9)
    assert list(data["groups"]) == ["1/1"]
    assert set(data["index"]["rows"]["group"]) == {1}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"updates": [7]}, r"--update=7: logged are 1 to 2 \(2 updates\)"),
        ({"groups": [5]}, r"--group=5: update 2 has the 2 groups"),
        ({"most_bytes": 10}, r"--export_mb=1e-05 is too small for any of the 2 groups"),
        ({"methods": ["gigpoo"]}, r"--methods: 'gigpoo' is not one of"),
    ],
)
def test_wrong_choices_are_refused(viewing, changes, message):
    with pytest.raises(ValueError, match=message):
        collect(viewing, **{"updates": None, **EVERYTHING, **changes})


def test_a_method_that_is_not_possible_is_named(viewing):
    data, left_out = collect(viewing, updates=[1], groups=[0], methods=["gae"], most_bytes=10**9)
    assert any("credit method 'gae' needs ['value']" in line for line in left_out)
    assert data["methods"][0]["name"] == "gae"
    assert data["methods"][0]["why_not"]


def test_the_command(logged, viewing, tmp_path, monkeypatch):
    """One process for methods serves all tests."""
    monkeypatch.setattr(viewing, "close", lambda: None)
    monkeypatch.setattr(export_lib, "Viewing", lambda workdir: viewing)
    file = tmp_path / "credit.html"
    message = export(logged[0], file, updates=[1], groups=[0], methods=[], most_bytes=10**9)
    assert message.startswith(
        f"written to {file} (0.1 MB): exported: {SIZE} rollouts of 1 groups of update 1"
    )
    assert data_of(file.read_text())["index"]["updates"] == [1]
    assert list(tmp_path.iterdir()) == [file]
    with pytest.raises(OSError, match="no/folder"):
        export(
            logged[0],
            tmp_path / "no" / "folder" / "a.html",
            updates=[1],
            groups=[0],
            methods=[],
            most_bytes=10**9,
        )


@pytest.mark.parametrize("text", ["</script><script>alert(1)</script>", "<!--", "&lt;", "\u2028\ud800é"])
def test_json_cannot_leave_its_element(text):
    written = script_json({"a": text})
    assert not set("<>&") & set(written)
    assert written.isascii()
    assert json.loads(written) == {"a": text}
