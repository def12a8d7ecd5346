"""The report in a browser: nothing goes wrong, nothing leaves the machine, every control works."""

from __future__ import annotations

import json
import pathlib

import pytest

from tests.report.synthetic import TEXT, rows, write, write_run
from tests.report.synthetic import config as make_config
from vict_jax.pages.render import visible
from vict_jax.report.build import write_report


@pytest.fixture(scope="module")
def single(tmp_path_factory) -> pathlib.Path:
    return write_report([write_run(tmp_path_factory.mktemp("browser") / "run")])


def shown_rows(page, table: str) -> list[str]:
    """The first cells of a table's rows that are to be seen."""
    found = page.locator(f"#{table} tbody tr:visible > :first-child")
    return found.all_inner_texts()


def test_numbers_are_the_metrics(watched, single):
    page = watched.page
    page.goto(single.as_uri())
    page.get_by_text("Every evaluation").click()
    cells = page.locator("#evaluations tbody tr td:nth-child(4)").all_inner_texts()
    logged = [json.loads(line) for line in (single.parent / "metrics.jsonl").read_text().splitlines()]
    assert cells == [f"{100 * row['success']:.1f} %" for row in logged if row["kind"] == "eval"]
    assert watched.requests == [single.as_uri()]


def test_text_in_figures_is_text_and_has_a_name(watched, single):
    page = watched.page
    page.goto(single.as_uri())
    figures = page.locator("figure")
    assert figures.count() >= 15
    for figure in figures.all():
        drawn = figure.locator("svg[role=img]")
        assert drawn.get_attribute("aria-label").startswith(figure.locator("figcaption").inner_text())
        assert "update" in drawn.locator("text").all_text_contents()
    trigger = page.locator("figure", has_text="trigger:").locator("svg").get_attribute("aria-label")
    assert "the paper's range: 49.5 % to 61.8 %" in trigger
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map((e) => e.id)")
    assert len(ids) == len(set(ids))
    missing = page.evaluate(
        """[...document.querySelectorAll('use')].filter(
          (e) => !document.getElementById(e.getAttribute('href').slice(1))).length"""
    )
    assert missing == 0


def test_settings_are_searched_with_the_keyboard(watched, single):
    page = watched.page
    page.goto(single.as_uri())
    everything = shown_rows(page, "config1")
    search = page.get_by_label("Search")
    search.focus()
    page.keyboard.type("num_heads D_MODEL")
    assert shown_rows(page, "config1") == []
    search.fill("model.d_")
    assert shown_rows(page, "config1") == ["model.d_model", "model.d_ff"]
    search.fill("")
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    changed = shown_rows(page, "config1")
    assert "model.d_model" in changed
    assert "credit.method" not in changed
    assert page.locator(".search output").inner_text() == f"{len(changed)} of {len(everything)}"


def test_links_lead_to_sections(watched, single):
    page = watched.page
    page.goto(single.as_uri())
    for link in page.locator("nav a").all():
        link.click()
        assert page.evaluate(
            "document.querySelector(location.hash).getBoundingClientRect().top < innerHeight"
        )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_background(watched, single, scheme):
    """At least 4.5 to 1 (WCAG 2.2, 1.4.3), text of the figures included, in both schemes."""
    page = watched.page
    page.emulate_media(color_scheme=scheme)
    page.goto(single.as_uri())
    worst = page.evaluate(
        """() => {
          const channel = (v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
          const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
          const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
          const behind = (node) => {
            for (; node; node = node.parentElement) {
              const colour = numbers(getComputedStyle(node).backgroundColor);
              if (colour.length < 4 || colour[3] === 1) return colour;
            }
            throw Error("no background");
          };
          let worst = [99, ""];
          for (const node of document.querySelectorAll("main *")) {
            const own = [...node.childNodes].some((c) => c.nodeType === 3 && c.data.trim());
            if (!own || node.matches("option")) continue;
            const style = getComputedStyle(node);
            const ink = numbers(node instanceof SVGElement ? style.fill : style.color);
            const [a, b] = [light(ink), light(behind(node))].sort((x, y) => y - x);
            const ratio = (a + 0.05) / (b + 0.05);
            if (ratio < worst[0]) worst = [ratio, node.textContent.slice(0, 60)];
          }
          return worst;
        }"""
    )
    assert worst[0] >= 4.5, worst


@pytest.mark.parametrize("width", [360, 1280])
def test_it_fits_the_window(watched, single, width):
    page = watched.page
    page.set_viewport_size({"width": width, "height": 800})
    page.goto(single.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_comparison_tells_its_lines_apart_without_colour(watched, tmp_path):
    paths = [write_run(tmp_path / f"v{seed}", seed) for seed in (0, 1)]
    paths.append(write_run(tmp_path / "grpo", 5, credit__method="grpo"))
    page = watched.page
    page.goto(write_report(paths, tmp_path / "both.html").as_uri())
    looks = page.evaluate(
        """[...document.querySelectorAll('.legend')].map((legend) => [
          [...legend.querySelectorAll('text')].map((e) => e.textContent),
          [...legend.querySelectorAll("[id*='line2d'] > path")].map((e) => e.style.strokeDasharray),
          [...legend.querySelectorAll('use')].map((e) => e.getAttribute('href'))])"""
    )
    assert len(looks) == 3
    for labels, dashes, markers in looks:
        assert labels == ["A: method vict, 2 seeds", "B: method grpo"]
        assert (len(set(dashes)), len(set(markers))) == (2, 2)
    page.locator("details", has_text="grpo").locator("summary").last.click()
    assert page.locator("#config3").is_visible()


def test_text_full_of_markup_is_shown_as_text(watched, tmp_path):
    some = rows()
    for row in some:
        if row["kind"] == "eval":
            row["per_type"] = {TEXT: [4, 40], "x" * 100_000: [8, 40]}
    workdir = write(tmp_path / "<b>run", some, make_config(rollout__instruction=TEXT))
    page = watched.page
    page.on("dialog", lambda dialog: watched.wrong.append(f"dialog: {dialog.message}"))
    page.goto(write_report([workdir]).as_uri())
    assert page.locator("#per_type tbody th").first.text_content() == visible(TEXT)
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    page.get_by_label("Search").fill("alert('x')")
    assert shown_rows(page, "config1") == ["rollout.instruction"]
