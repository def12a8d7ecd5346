"""How fast the credit viewer opens a long run and answers a click.

    python -m benchmarks.viewer [--rollouts 10240] [--repeats 5] [--clicks 60] [--json OUT]
    python -m benchmarks.viewer --workdir=DIR
    python -m benchmarks.viewer --workdir=runs/quickstart --pictures=docs/images

The first command makes a run of its own in a temporary directory: 8 household tasks played 16 times each
by the expert with random actions in between, credited by VICT, and written again and again as update 1, 2,
... by the writer of the proof log. The second measures a run that is there; the third takes the docs'
pictures of it instead. All need Chromium and Playwright (`pip install 'vict_jax[browser]'`).

Opening is the time from the start of `python -m launch.viewer` to the list and the first rollout on the
screen, with the browser already running. A click is the time from the event to the second frame after its
content is there, so that layout and painting count. The exit code is 1 if the median of the openings is 2 s
or more, or that of a kind of click 0.2 s or more. These are times of the wall clock, for a machine that does
nothing else; beside them stands the mean CPU time of the server and of the page's main thread, which a busy
machine changes little.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import math
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

# What the viewer promises, in seconds.
MOST_TO_OPEN, MOST_TO_CLICK = 2.0, 0.2
_GROUPS, _SIZE = 8, 16
# Runs in the page: act, wait until `done` holds, then for two frames; milliseconds.
_TIMED = """async ([act, done]) => {
  const actions = {
    row: (i) => document.querySelector(`#rows [data-i="${i}"]`).click(),
    view: (name) => document.querySelector(`#tabs [data-view="${name}"]`).click(),
    step: (t) => document.querySelector(`tr.step[data-step="${t}"]`).click(),
    set: ([name, value]) => {
      const field = document.getElementById(name);
      if (field.type === "checkbox") field.checked = value;
      else field.value = value;
      field.dispatchEvent(new Event("change"));
    },
  };
  const holds = {
    title: (text) => document.querySelector("#content h2")?.textContent === text,
    there: (selector) => document.querySelector(selector) !== null,
    count: (text) => document.getElementById("count").textContent !== text,
  };
  const frame = () => new Promise((resolve) => requestAnimationFrame(resolve));
  const before = performance.now();
  actions[act[0]](act[1]);
  while (!holds[done[0]](done[1])) await new Promise((resolve) => setTimeout(resolve, 1));
  await frame();
  await frame();
  return performance.now() - before;
}"""


@dataclasses.dataclass(frozen=True)
class Timing:
    """Seconds of one kind of event.

    Attributes:
      kind: what was done. times: of each. cpu: mean CPU time of one. most: what the median may be.
    """

    kind: str
    times: tuple[float, ...]
    cpu: float
    most: float

    @property
    def median(self) -> float:
        """Of the times."""
        return statistics.median(self.times)

    @property
    def passed(self) -> bool:
        """The median is below what it may be."""
        return self.median < self.most

    def to_json(self) -> dict[str, Any]:
        """As plain JSON types."""
        p95 = float(np.quantile(self.times, 0.95))
        values = {"kind": self.kind, "count": len(self.times), "median": self.median, "p95": p95}
        return values | {"cpu": self.cpu, "most": self.most}

    def text(self) -> str:
        """A line of the report."""
        values = self.to_json()
        verdict = "" if self.passed else f"  ABOVE {self.most:g} s"
        return (
            f"{self.kind:<28} {len(self.times):>4} x  median {1000 * self.median:7.1f} ms"
            f"  95 % {1000 * values['p95']:7.1f} ms  CPU {1000 * self.cpu:7.1f} ms{verdict}"
        )


def write_run(workdir: pathlib.Path, rollouts: int) -> None:
    """A run of at least so many rollouts; see the module."""
    from envs.alfworld.domain import DOMAIN
    from vict_jax import proofs
    from vict_jax.audit.fresh import noisy_groups
    from vict_jax.audit.source import Setting, credit
    from vict_jax.batching import credit_inputs
    from vict_jax.config import default_config, from_config_dict, to_plain

    config = from_config_dict(default_config("alfworld"))
    tasks = DOMAIN.tasks(config.env.options, "train")[:_GROUPS]
    groups = noisy_groups(DOMAIN, config.env.options, tasks, group_size=_SIZE, seed=0)
    inputs = credit_inputs(
        groups,
        domain=DOMAIN,
        max_steps=DOMAIN.max_steps(config.env.options),
        group_size=_SIZE,
        conforming=[True] * _GROUPS,
    )
    options = dataclasses.replace(config.credit.options, center="mean")
    output, _ = credit(Setting(DOMAIN, config.env.options, "vict", options), inputs)
    for folder in ("rollouts", "atoms", "proofs"):
        (workdir / folder).mkdir(parents=True)
    (workdir / "config.json").write_text(json.dumps(to_plain(config)))
    for update in range(1, math.ceil(rollouts / (_GROUPS * _SIZE)) + 1):
        proofs.write_update(workdir, update, groups, inputs, output, masked_families=())


def server_cpu(pid: int) -> float:
    """CPU seconds of a process so far (Linux)."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class PageCpu:
    """CPU seconds of the main thread of a page so far."""

    def __init__(self, page: Any):
        self.session = page.context.new_cdp_session(page)
        self.session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def __call__(self) -> float:
        """Seconds so far."""
        metrics = self.session.send("Performance.getMetrics")["metrics"]
        return {metric["name"]: metric["value"] for metric in metrics}["TaskDuration"]


@contextlib.contextmanager
def served(workdir: pathlib.Path) -> Iterator[tuple[str, int]]:
    """The command; the address that it prints, and its process."""
    command = [sys.executable, "-m", "launch.viewer", f"--workdir={workdir}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            yield line.rsplit(" ", 1)[1].strip(), process.pid
        finally:
            process.terminate()


def open_once(page: Any, workdir: pathlib.Path) -> tuple[float, float]:
    """Seconds from the start of the command to the first view, and CPU seconds of both."""
    page.goto("about:blank")
    before = time.perf_counter()
    with served(workdir) as (url, pid):
        page.goto(url)
        page.wait_for_selector("body[data-ready]")
        elapsed = time.perf_counter() - before
        return elapsed, server_cpu(pid) + PageCpu(page)()


def click_through(page: Any, pid: int, clicks: int) -> Iterator[Timing]:
    """Every kind of click, on rollouts drawn from all updates."""
    rng = random.Random(0)

    page_cpu = PageCpu(page)
    cpu: list[float] = []

    def timed(act: Sequence[Any], done: Sequence[Any]) -> float:
        before = page_cpu() + server_cpu(pid)
        elapsed = page.evaluate(_TIMED, [act, done]) / 1000
        cpu.append(page_cpu() + server_cpu(pid) - before)
        return elapsed

    def times(kind: str, acts: Sequence[Callable[[], float]]) -> Timing:
        found, used = [], []
        for act in acts:
            found.append(act())
            used.append(cpu[-1])
        return Timing(kind, tuple(found), statistics.mean(used), MOST_TO_CLICK)

    def filtered(name: str, value: Any) -> float:
        return timed(["set", [name, value]], ["count", page.inner_text("#count")])

    def rollout() -> float:
        page.evaluate("at => { list.box.scrollTop = at * (list.box.scrollHeight - 1000) }", rng.random())
        page.wait_for_timeout(50)
        rows = page.locator("#rows .row:not(.selected)")
        row = rows.nth(rng.randrange(rows.count()))
        title = row.locator(".row-title span:nth-child(2)").inner_text()
        return timed(["row", row.get_attribute("data-i")], ["title", title[0].upper() + title[1:]])

    def step() -> float:
        row = page.locator("tr.step:not(.selected)").first
        t = row.get_attribute("data-step")
        return timed(["step", t], ["there", f"tr.step.selected[data-step='{t}']"])

    def switch(view: str, selector: str) -> Callable[[], float]:
        def act() -> float:
            rollout()
            page.wait_for_timeout(20)
            elapsed = timed(["view", view], ["there", selector])
            page.click("#tabs [data-view=rollout]")
            page.wait_for_selector(".rollout")
            return elapsed

        return act

    toggles = [
        ("failed", True),
        ("failed", False),
        ("sign", "up"),
        ("sign", ""),
        ("update", "1"),
        ("update", "all"),
    ]
    yield times("filter: all updates", [lambda: filtered("update", "all")])
    yield times("choose a rollout", [rollout] * clicks)
    yield times("choose a step", [step] * clicks)
    yield times("its group side by side", [switch("group", ".group-view")] * (clicks // 3))
    yield times("filters, over all updates", [functools.partial(filtered, *one) for one in toggles])


@contextlib.contextmanager
def browser_page(width: int, height: int) -> Iterator[Any]:
    """A page of a new browser. Raises ValueError if there is no Chromium."""
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        raise ValueError("no Chromium on the PATH (on Debian: apt-get install chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, chromium_sandbox=False)
        yield browser.new_page(viewport={"width": width, "height": height})
        browser.close()


def measure(workdir: pathlib.Path, repeats: int, clicks: int) -> list[Timing]:
    """Open the run and click through it."""
    with browser_page(1440, 900) as page:
        opened, cpu = zip(*(open_once(page, workdir) for _ in range(repeats)), strict=True)
        with served(workdir) as (url, pid):
            page.goto(url)
            page.wait_for_selector("body[data-ready]")
            first = Timing("open", opened, statistics.mean(cpu), MOST_TO_OPEN)
            return [first, *click_through(page, pid, clicks)]


def take_pictures(workdir: pathlib.Path, folder: pathlib.Path) -> None:
    """The views of the rollout that the viewer opens with, as the docs show them."""
    with browser_page(1360, 860) as page, served(workdir) as (url, _):
        page.goto(url)
        page.wait_for_selector("body[data-ready]")
        page.screenshot(path=folder / "viewer.png")
        for name, key, there in (
            ("step", "c", "tr.detail"),
            ("group", "2", ".group-view"),
            ("methods", "3", ".methods-view #method-b option[value=gigpo]"),
        ):
            page.keyboard.press(key)
            page.wait_for_selector(there, state="attached", timeout=60_000)
            if name == "methods":
                page.select_option("#method-b", "gigpo")
                page.wait_for_selector("table.methods th:has-text('gigpo')", timeout=60_000)
            page.screenshot(path=folder / f"viewer_{name}.png")


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.viewer", description=__doc__.split("\n", 1)[0]
    )
    parser.add_argument("--workdir", type=pathlib.Path, help="a run; one is made if left out")
    parser.add_argument("--rollouts", type=int, default=10_240, help="of the run that is made")
    parser.add_argument("--repeats", type=int, default=5, help="openings")
    parser.add_argument("--clicks", type=int, default=60, help="of the most frequent kinds")
    parser.add_argument("--pictures", type=pathlib.Path, metavar="DIR", help="take pictures of --workdir")
    parser.add_argument("--json", type=pathlib.Path, metavar="OUT", help="where to write the figures")
    args = parser.parse_args(argv)
    if args.pictures is not None:
        if args.workdir is None:
            parser.error("--pictures needs a --workdir")
        take_pictures(args.workdir, args.pictures)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        workdir = args.workdir
        if workdir is None:
            workdir = pathlib.Path(folder, "run")
            write_run(workdir, args.rollouts)
        timings = measure(workdir, args.repeats, args.clicks)
    print("\n".join(timing.text() for timing in timings))
    if args.json is not None:
        args.json.write_text(json.dumps([timing.to_json() for timing in timings], indent=1))
    return 0 if all(timing.passed for timing in timings) else 1


if __name__ == "__main__":
    sys.exit(main())
