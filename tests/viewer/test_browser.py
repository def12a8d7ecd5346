"""The page in a browser: every control, numbers against the proof log, hostile texts, damage, the export."""

from __future__ import annotations

import shutil
import threading

import numpy as np
import pytest

from tests.audit.logged import SIZE
from tests.viewer.planted import HOSTILE_UPDATE, HTML, LONG
from vict_jax.types import Relation, Status
from vict_jax.viewer.export import collect
from vict_jax.viewer.page import page as page_html
from vict_jax.viewer.server import open_server

MARKS = {Status.UNKNOWN: "?", Status.SATISFIED: "✓", Status.UNSATISFIED: "○", Status.VIOLATED: "✗"}
LETTERS = {relation: relation.name[0] for relation in Relation}
SLOW = 60_000  # milliseconds; a method is compiled the first time


def signed(value: float) -> str:
    """As the page writes a number."""
    return "0" if value == 0 else f"{value:+.3f}".replace("-", "−")


def go_to(page, url: str, fragment: str = "") -> None:
    """Open the page anew and wait until it shows what its address says."""
    page.goto("about:blank")
    page.goto(url + fragment)
    page.wait_for_selector("body[data-ready]")


@pytest.fixture
def page(watched, server):
    go_to(watched.page, server.url)
    return watched.page


def good_failure(logged) -> tuple[int, int, int, int]:
    """(update, group, rollout, step) of a raised step of a failed rollout."""
    for update, content in logged[1].items():
        for g, n, t in np.argwhere(content.output.correction > 0).tolist():
            if content.groups[g][n].score < 1:
                return update, g, n, t
    raise AssertionError("no failed rollout has a raised step")


def at(*place: int) -> str:
    return "#at=" + "/".join(map(str, place[:3]))


def values_of(page, name: str) -> list[float]:
    cells = page.query_selector_all(f"tr.step td[data-of={name}]")
    return [float(cell.get_attribute("data-value")) for cell in cells]


def count(page) -> str:
    return page.inner_text("#count")


def shown_place(page) -> str:
    return (
        page.inner_text("#content h2")
        .removeprefix("Update ")
        .replace(" · group ", "/")
        .replace(" · rollout ", "/")
    )


# --- numbers --------------------------------------------------------------------------------------


def test_numbers_are_those_of_the_log(page, server, logged):
    update, g, n, t = place = good_failure(logged)
    go_to(page, server.url, at(*place))
    content = logged[1][update]
    rollout, output, record = content.groups[g][n], content.output, content.groups[g][n].record
    steps = len(rollout.actions)
    for name, array in (
        ("base", output.base),
        ("correction", output.correction),
        ("final", output.advantages),
    ):
        assert values_of(page, name) == array[g, n, :steps].tolist()
        texts = page.eval_on_selector_all(
            f"tr.step td[data-of={name}]", "cells => cells.map(c => c.innerText)"
        )
        assert texts == [signed(value) for value in array[g, n, :steps].tolist()]
    rows = page.eval_on_selector_all(
        "tr.start, tr.step", "rows => rows.map(r => [...r.querySelectorAll('.status')].map(s => s.innerText))"
    )
    assert rows == [[MARKS[code] for code in row] for row in record.status.tolist()]
    edges = page.eval_on_selector_all(
        "tr.step", "rows => rows.map(r => [...r.querySelectorAll('.edge')].map(e => e.innerText))"
    )
    share = np.where(output.correction[g, n, :, None, None] != 0, output.proofs.contribution[g, n], 0)
    assert edges == [
        [LETTERS[Relation(r)] + signed(float(share[s, j, r])) for j, r in np.argwhere(share[s]).tolist()]
        for s in range(steps)
    ]
    assert page.inner_text(".title .tag") == f"✗ failed, score {rollout.score:g}"
    core = [atom.id for atom, inside in zip(record.atoms, output.proofs.core[g, n], strict=False) if inside]
    assert page.eval_on_selector_all(".tag.atom", "tags => tags.map(t => t.innerText)") == core
    weights = page.eval_on_selector_all(
        ".edges td[data-of=weight]", "cells => cells.map(c => Number(c.dataset.value))"
    )
    assert weights == [float(output.proofs.weight[g, n, s, j, r]) for s, j, r in np.argwhere(share).tolist()]
    sentence = page.inner_text(f".sentences [data-step='{t}']")
    assert sentence.startswith(f"Step {t} “{rollout.actions[t]}” gets +")
    assert "The rollout failed, yet" in sentence


def test_atoms_say_why_they_got_nothing(page, server, logged, viewing):
    """In words, with the next step; so does a rollout that abstains, and one that was lost."""
    for update, content in logged[1].items():
        for g, n in np.argwhere(content.output.proofs.cause != 0).tolist()[:2]:
            go_to(page, server.url, at(update, g, n))
            record = viewing.rollout(update, g, n)
            facts = page.inner_text(".facts")
            assert record["abstains"]["why"] in facts
            assert f"Next: {record['abstains']['next']}" in facts
            rows = page.query_selector_all(".atoms tbody tr")
            for row, atom in zip(rows, record["atoms"], strict=True):
                assert atom["why"] is None or atom["why"]["why"] in row.inner_text()
    g, n = next((g, n) for g in range(2) for n in range(SIZE) if logged[1][1].groups[g][n].lost)
    go_to(page, server.url, at(1, g, n))
    assert "lost to an error or a time-out of its environment" in page.inner_text(".facts")


def test_a_group_side_by_side(page, server, logged):
    update, g, n, t = good_failure(logged)
    content = logged[1][update]
    go_to(page, server.url, at(update, g, n) + "&view=group")
    for k, rollout in enumerate(content.groups[g]):
        cells = page.eval_on_selector_all(
            f"td[data-rollout='{k}']", "cells => cells.map(c => Number(c.dataset.value))"
        )
        assert cells == content.output.advantages[g, k, : len(rollout.actions)].tolist()
    assert page.locator(".side-by-side thead th").count() == SIZE + 1
    outcomes = page.eval_on_selector_all(".side-by-side .tag", "tags => tags.map(t => t.innerText[0])")
    assert outcomes == ["⌀" if r.lost else "✓" if r.score >= 1 else "✗" for r in content.groups[g]]
    page.click(f"td[data-rollout='{n}'][data-step='{t}']")
    page.wait_for_selector(f"tr.step.selected[data-step='{t}']")
    assert shown_place(page) == f"{update}/{g}/{n}"
    page.click("text=2 Group side by side")
    page.click(".side-by-side a[data-rollout='2']")
    page.wait_for_selector(".rollout")
    assert shown_place(page) == f"{update}/{g}/2"


def test_two_methods_side_by_side(page, server, logged, viewing):
    place = good_failure(logged)[:3]
    go_to(page, server.url, at(*place))
    page.click("text=3 Two methods")
    page.wait_for_selector("table.methods", timeout=SLOW)
    assert page.locator("#method-b option[value=gae]").is_disabled()
    assert "needs ['value']" in page.locator("#method-b option[value=gae]").get_attribute("title")
    page.select_option("#method-b", "gigpo")
    page.wait_for_selector("table.methods th:has-text('gigpo')", timeout=SLOW)
    expected = viewing.advantages(*place, ["grpo", "gigpo"])
    logged_values = [step["advantage"] for step in viewing.rollout(*place)["steps"]]
    for side, values in (("first", logged_values), ("second", expected["gigpo"])):
        cells = page.eval_on_selector_all(
            f"td[data-of={side}]", "cells => cells.map(c => Number(c.dataset.value))"
        )
        assert cells == values
    opposite = sum(a * b < 0 for a, b in zip(logged_values, expected["gigpo"], strict=True))
    assert f"{opposite} with opposite signs" in page.inner_text(".summary")
    page.select_option("#method-a", "grpo")
    page.wait_for_selector("table.methods th:has-text('grpo')", timeout=SLOW)
    cells = page.eval_on_selector_all("td[data-of=first]", "cells => cells.map(c => Number(c.dataset.value))")
    assert cells == expected["grpo"]


def test_evidence_that_was_touched_without_credit(page, server, logged):
    update, g, n, _ = place = good_failure(logged)
    go_to(page, server.url, at(*place))
    content = logged[1][update]
    share = np.where(
        content.output.correction[g, n, :, None, None] != 0, content.output.proofs.contribution[g, n], 0
    )
    uncredited = np.argwhere(content.output.proofs.witness[g, n] & (share == 0)).tolist()
    assert uncredited
    assert page.locator(".edge.uncredited").count() == 0
    page.check("#observed")
    page.wait_for_selector("tr .edge.uncredited", timeout=SLOW)
    marks = page.eval_on_selector_all(
        "tr .edge.uncredited", "edges => edges.map(e => [Number(e.closest('tr').dataset.step), e.innerText])"
    )
    assert sorted(map(tuple, marks)) == sorted((t, LETTERS[Relation(r)]) for t, _, r in uncredited)
    t = uncredited[0][0]
    page.click(f"tr.step[data-step='{t}'] td:first-child")
    assert page.inner_text(".step-detail .why")
    page.uncheck("#observed")
    page.wait_for_selector("tr .edge.uncredited", state="detached")


# --- controls -------------------------------------------------------------------------------------


def expected_count(viewing, passes) -> str:
    overview = viewing.overview()
    rows, texts = overview["rows"], overview["texts"]
    chosen = sum(
        bool(passes({name: values[i] for name, values in rows.items()}, texts))
        for i in range(len(rows["update"]))
    )
    return f"{chosen} of {len(rows['update'])} rollouts"


def test_filters(page, viewing):
    checks = 0

    def check(passes) -> None:
        nonlocal checks
        page.wait_for_function(
            "text => document.getElementById('count').innerText === text", arg=expected_count(viewing, passes)
        )
        checks += 1

    check(lambda row, texts: row["update"] == 2)
    page.select_option("#group", "1")
    check(lambda row, texts: row["update"] == 2 and row["group"] == 1)
    page.select_option("#update", "all")
    check(lambda row, texts: True)
    assert page.locator("#group").is_disabled()
    assert page.locator(".row-title:has-text('update 2 · group')").count() > 1
    page.check("#failed")
    check(lambda row, texts: texts[row["end"]] not in ("success", "env_error"))
    page.select_option("#sign", "up")
    check(lambda row, texts: texts[row["end"]] not in ("success", "env_error") and row["raised"])
    page.click("#clear")
    check(lambda row, texts: True)
    page.select_option("#sign", "down")
    check(lambda row, texts: row["lowered"])
    page.select_option("#sign", "none")
    check(lambda row, texts: not row["lowered"] and not row["raised"])
    page.select_option("#sign", "")
    for option in page.eval_on_selector_all("#type option", "options => options.map(o => o.value)")[1:]:
        page.select_option("#type", option)
        check(lambda row, texts, option=option: texts[row["type"]] == option)
    page.select_option("#type", "")
    for option in page.eval_on_selector_all("#cause option", "options => options.map(o => o.value)")[2:]:
        of, cause = option.split(":")
        page.select_option("#cause", option)
        name = {"rollout": "cause", "atom": "atom_causes"}[of]
        check(
            lambda row, texts, n=name, c=cause: (
                c in [texts[k] for k in np.atleast_1d(row[n]) if k is not None]
            )
        )
    page.select_option("#cause", "lost:")
    check(lambda row, texts: texts[row["end"]] == "env_error")
    page.click("#clear")
    for text in ("DESKLAMP", "<img src=x", "no such text"):
        found = {tuple(place) for place in viewing.search(text, None)["found"]}
        page.fill("#text", text)
        check(lambda row, texts, f=found: (row["update"], row["group"], row["rollout"]) in f)
    assert checks > 15


def test_keys(page, server, viewing, logged):
    go_to(page, server.url, at(1, 0, 0))
    press = page.keyboard.press

    def see(place: str) -> None:
        page.wait_for_function(
            "text => document.querySelector('#content h2').innerText === text",
            arg="Update {} · group {} · rollout {}".format(*place.split("/")),
        )

    for key, place in (
        ("j", "1/0/1"),
        ("j", "1/0/2"),
        ("k", "1/0/1"),
        ("]", "1/1/0"),
        ("[", "1/0/0"),
        ("}", "2/0/0"),
        ("{", "1/0/0"),
    ):
        press(key)
        see(place)
    assert page.inner_text(".row.selected .row-title").split("\n")[1] == "group 0 · rollout 0"
    page.focus("#list")
    press("ArrowDown")
    see("1/0/1")
    press("n")
    press("n")
    assert page.get_attribute("tr.step.selected", "data-step") == "1"
    press("p")
    assert page.get_attribute("tr.step.selected", "data-step") == "0"
    update, g, n, _ = good_failure(logged)
    go_to(page, server.url, at(update, g, n))
    press("c")
    corrected = np.flatnonzero(logged[1][update].output.correction[g, n])
    assert page.get_attribute("tr.step.selected", "data-step") == str(corrected[0])
    press("2")
    page.wait_for_selector(".group-view")
    press("3")
    page.wait_for_selector(".methods-view")
    press("1")
    page.wait_for_selector(".rollout")
    press("o")
    page.wait_for_selector("tr .edge.uncredited", timeout=SLOW)
    press("f")
    assert page.is_checked("#failed")
    press("/")
    page.keyboard.type("jk1")  # letters in a field are letters
    page.wait_for_function("() => document.getElementById('count').innerText.startsWith('0 of')")
    press("Escape")
    press("x")
    assert (page.is_checked("#failed"), page.input_value("#text")) == (False, "")
    press("?")
    assert page.locator("#help").is_visible()
    for word in ("next / previous rollout of the list", "marginal", "core"):
        assert word in page.inner_text("#help")
    press("Escape")
    assert not page.locator("#help").is_visible()
    page.click("#help-button")
    page.click("#help >> text=Close")
    press("r")
    page.wait_for_selector(".rollout")


def test_links_reopen_the_same_view(page, server, logged):
    update, g, n, t = good_failure(logged)
    go_to(page, server.url, at(update, g, n))
    page.check("#failed")
    page.select_option("#sign", "up")
    page.click(f".sentences [data-step='{t}']")
    page.wait_for_selector(f"tr.step.selected[data-step='{t}']")
    seen = (page.url, page.inner_text("#main"), count(page))
    go_to(page, page.url)
    assert (page.url, page.inner_text("#main"), count(page)) == seen
    page.click("text=2 Group side by side")
    page.wait_for_selector(".group-view")
    page.go_back()
    page.wait_for_selector(f"tr.step.selected[data-step='{t}']")
    assert page.inner_text("#main") == seen[1]
    page.goto(server.url + "#at=99/0/0")
    page.wait_for_selector(".unreadable >> text=There is no rollout 0/0 in update 99")
    page.goto(server.url + at(1, 1, 2))
    page.wait_for_selector("h2 >> text=Update 1 · group 1 · rollout 2")


# --- what may be in a log -------------------------------------------------------------------------


def test_hostile_texts_are_texts(page, server, viewing):
    for n in range(SIZE):
        go_to(page, server.url, at(HOSTILE_UPDATE, 1, n))
        assert page.evaluate("window.hacked") is None
        assert page.locator("#content img, #content b, #content script, #side img, #side script").count() == 0
    record = viewing.rollout(HOSTILE_UPDATE, 1, 0)
    go_to(page, server.url, at(HOSTILE_UPDATE, 1, 0))
    shown = page.inner_text("#content")
    assert HTML in shown
    assert "\\x1b[31mred\\x1b[0m\\x07\\x00 \\u{202e}evil\\u{2066} \\u{200b}end" in shown
    assert not {"\x1b", "\x07", "\u202e", "\u200b"} & set(page.content())
    assert LONG[:500] not in shown
    folded = page.locator(".foldable").first
    button = folded.locator("button")
    assert "show all 100," in button.inner_text()
    button.click()
    assert len(folded.inner_text()) > 100_000
    button.click()
    assert len(folded.inner_text()) < 1_000
    page.click("tr.step >> nth=1 >> td >> nth=0")
    assert page.inner_text(".step-detail .why")
    for view in ("group", "methods"):
        go_to(page, server.url, at(HOSTILE_UPDATE, 1, 0) + f"&view={view}&b=grpo")
        page.wait_for_selector(f".{view}-view")
        assert page.evaluate("window.hacked") is None
    assert any(HTML in step["action"] for step in record["steps"])


def test_a_damaged_run_says_what_is_not_readable(watched, logged, tmp_path):
    workdir = tmp_path / "run"
    shutil.copytree(logged[0], workdir)
    for path in (
        "rollouts/update_000001.npz",
        "proofs/update_000001.parquet",
        "rollouts/update_000002.parquet",
    ):
        (workdir / path).write_bytes((workdir / path).read_bytes()[:100])
    with open_server(workdir, 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        page = watched.page
        go_to(page, server.url, at(1, 1, 1))
        page.click("#problems-button")
        assert page.inner_text("#problems-button") == "3 files not readable"
        assert "rollouts/update_000002.parquet is damaged" in page.inner_text("#problems")
        assert "proofs/update_000001.parquet is damaged" in page.inner_text("#content .unreadable")
        assert page.locator("tr.step").count() == len(logged[1][1].groups[1][1].actions)
        assert "not readable" in page.inner_text("#content section:has(.steps)")
        go_to(page, server.url, at(2, 0, 1))
        assert "The steps of this rollout are not readable." in page.inner_text("#content")
        assert page.locator(".atoms tbody tr").count() > 2
        server.shutdown()
        thread.join()


def test_a_directory_without_updates_says_so(watched, tmp_path):
    with open_server(tmp_path, 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        go_to(watched.page, server.url)
        assert "no logged update yet" in watched.page.inner_text("#content")
        assert watched.page.inner_text("#count") == "0 of 0 rollouts"
        server.shutdown()
        thread.join()


# --- the export -----------------------------------------------------------------------------------


def test_an_exported_page_works_without_a_server(watched, viewing, logged, tmp_path):
    update, g, n, t = good_failure(logged)
    data, left_out = collect(viewing, updates=[1, 2], groups=None, methods=["gigpo"], most_bytes=10**9)
    assert left_out == []
    (tmp_path / "credit.html").write_text(page_html("Credit", data=data))
    page, url = watched.page, (tmp_path / "credit.html").as_uri()
    go_to(page, url, at(update, g, n) + f"&step={t}&observed=1")
    record = viewing.rollout(update, g, n)
    assert values_of(page, "final") == [step["advantage"] for step in record["steps"]]
    assert page.locator(".edge.uncredited").count() > 1
    page.click("text=2 Group side by side")
    page.wait_for_selector(".side-by-side")
    page.click("text=3 Two methods")
    page.select_option("#method-b", "gigpo")
    page.wait_for_selector("table.methods th:has-text('gigpo')")
    cells = page.eval_on_selector_all(
        "td[data-of=second]", "cells => cells.map(c => Number(c.dataset.value))"
    )
    assert cells == viewing.advantages(update, g, n, ["gigpo"])["gigpo"]
    page.select_option("#update", "all")
    page.fill("#text", "DESKLAMP")
    found = len(viewing.search("desklamp", None)["found"])
    page.wait_for_function(
        "text => document.getElementById('count').innerText === text", arg=f"{found} of 24 rollouts"
    )
    go_to(page, url, at(HOSTILE_UPDATE, 1, 0))
    assert page.evaluate("window.hacked") is None
    assert HTML in page.inner_text("#content")
    assert {request.partition(":")[0] for request in watched.requests} <= {"file", "about", "data"}
