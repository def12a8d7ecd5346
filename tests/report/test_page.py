"""What the page shows: the numbers of the metrics, in tables and in words."""

from __future__ import annotations

import json
import pathlib
import random

import numpy as np
import pytest

from tests.report.parsed import Page
from tests.report.synthetic import KINDS, TASKS, TEXT, UPDATES, change, rows, write, write_run
from tests.report.synthetic import config as make_config
from vict_jax.pages.render import visible
from vict_jax.report import plots
from vict_jax.report.build import report, write_report
from vict_jax.report.diagnostics import CAUSES
from vict_jax.report.read import read
from vict_jax.viewer.words import ROLLOUT_CAUSES


def page_of(*workdirs: pathlib.Path) -> Page:
    return Page(report([read(path) for path in workdirs]))


@pytest.fixture
def no_pictures(monkeypatch):
    """The page as it is without matplotlib, which is much faster."""
    monkeypatch.setattr(plots, "available", lambda: False)


@pytest.fixture(scope="module")
def single(tmp_path_factory) -> Page:
    return page_of(write_run(tmp_path_factory.mktemp("report") / "run"))


def values(name: str, kind: str = "train", seed: int = 0) -> np.ndarray:
    return np.array([row[name] for row in rows(seed) if row["kind"] == kind])


def test_the_page_is_well_formed_and_asks_for_nothing(single):
    assert single.unbalanced == []
    assert "svg" in single.tags
    assert not single.tags & {"img", "iframe", "object", "embed", "image"}


def test_evaluations_are_those_of_the_metrics(single):
    table = single.tables["evaluations"]
    assert [row[2] for row in table[1:]] == ["0", "6", "12", "18", "24"]
    assert [row[3] for row in table[1:]] == [f"{100 * v:.1f} %" for v in values("success", "eval")]
    found = single.row("overview", "run")
    success = values("success", "eval")
    assert found[2].startswith(f"{100 * success.max():.1f} ±")
    assert found[5] == f"{100 * (success[-1] - success[0]):+.1f}"
    # The trapezoidal rule by hand: inner points count once, the ends half.
    area = (success.sum() - (success[0] + success[-1]) / 2) / 4
    assert found[6] == f"{100 * area:.1f} %"


def test_the_interval_is_agresti_and_coulls(single):
    solved, tasks = 12, 80  # of update 0
    likely = (solved + 2) / (tasks + 4)
    half = 100 * 2 * np.sqrt(likely * (1 - likely) / (tasks + 4))
    assert single.row("overview", "run")[1] == f"15.0 ± {half:.1f} %"


def test_task_types_have_counts_and_a_sum(single):
    last = [row for row in rows() if row["kind"] == "eval"][-1]["per_type"]
    table = single.tables["per_type"]
    assert table[0] == ["task type", "first, update 0", "best and last, update 24", "change, points"]
    for kind, before in zip(KINDS, (4, 8), strict=True):
        after = last[kind][0]
        assert single.row("per_type", kind) == [
            f"{100 * before / TASKS:.1f} % ({before}/{TASKS})",
            f"{100 * after / TASKS:.1f} % ({after}/{TASKS})",
            f"{100 * (after - before) / TASKS:+.1f}",
        ]
    assert single.row("per_type", "all")[0] == "15.0 % (12/80)"


def test_credit_stands_beside_the_papers_ranges(single):
    trigger = values("trigger")
    shown = single.row("credit_table", "trigger")
    quarters = [trigger[:6].mean(), trigger[-6:].mean(), trigger.mean()]
    assert shown[1] == "49.5 % to 61.8 %"
    assert shown[2:5] == [f"{100 * value:.1f} %" for value in quarters]
    assert shown[5] == "inside"
    assert single.row("credit_table", "sparsity")[4:] == ["10.0 %", "below"]
    assert single.row("credit_table", "abstention")[4:] == ["30.0 %", "above"]
    assert single.row("credit_table", "mutation_conformance")[4] == "100.0 %"
    assert single.row("causes", "zero_scale")[:2] == ["20.0 %", "15.0 %"]
    assert single.row("causes", "near_tie")[:2] == ["10.0 %", "0.0 %"]
    assert "the average of its group" in single.row("causes", "near_tie")[2]
    assert [row[0] for row in single.tables["causes"][1:]] == ["zero_scale", "near_tie"]


def test_every_cause_can_be_explained():
    assert set(CAUSES) == set(ROLLOUT_CAUSES)


def test_time_is_split_by_phase(single):
    (table,) = [one for one in single.tables.values() if one[0][0] == "phase"]
    assert [(row[0], row[3], row[5]) for row in table[1:]] == [
        ("sample", "6.0 s", "60.0 %"),
        ("update", "3.0 s", "30.0 %"),
        ("credit", "750 ms", "7.5 %"),
        ("log", "250 ms", "2.5 %"),
        ("all", "10.0 s", "100.0 %"),
    ]
    assert table[1][4] == "2.4 min"


def test_rollouts_are_counted(single):
    assert single.row("rollout_table", "rollouts")[0] == str(32 * UPDATES)
    assert single.row("rollout_table", "steps refused by the environment") == [str(11 * UPDATES), "5.5 %"]


def test_what_ran_is_there(single):
    text = single.text
    assert "--config=configs/again.py:" in text
    for part in ("ab" * 32, "games.zip", "cd" * 32, "0.10.2", "cpu:0", "18, 24"):
        assert part in text
    config = {row[0]: row[1:] for row in single.tables["config1"][1:]}
    assert config["model.d_model"] == ["32", "128", "changed"]
    assert config["credit.method"] == ['"vict"', "", ""]
    assert len(config) > 100


def test_the_first_words_say_what_the_figures_say(single):
    text = single.text
    success = values("success", "eval")
    assert f"Finished: all {UPDATES} updates." in text
    assert f"went from 15.0 % (update 0) to {100 * success[-1]:.1f} % (update 24)" in text
    assert "that is more than chance explains on 80 tasks" in text
    assert "The best evaluation is the last one, whose checkpoint is kept." in text
    assert "Most of the time goes to the phase sample (the policy writes replies): 60.0 %" in text
    assert f"Credit method vict corrected {100 * values('trigger').mean():.1f} % of the rollouts" in text
    assert "the commonest reason not to: zero_scale (20.0 % of the rollouts)" in text


@pytest.mark.parametrize(
    ("slope", "said"), [(0.02, "is still rising"), (-0.02, "is falling"), (0.0, "is flat by now")]
)
def test_the_direction_of_training(tmp_path, no_pictures, slope, said):
    some = rows()
    for row in some:
        if row["kind"] == "train":
            row["success"] = row["score"] = 0.5 + slope * (row["update"] - 12) + 0.02 * (-1) ** row["update"]
    assert f"Success on train {said}" in page_of(write(tmp_path / "run", some, make_config())).text


def test_a_graded_score_is_shown_beside_success(tmp_path, no_pictures):
    some = rows()
    for row in some:
        if row["kind"] in ("train", "eval"):
            row["score"] = 0.25 + row["success"] / 2
        if row["kind"] == "eval":
            row["score_per_type"] = {"clean": 0.125, "heat": 0.5}
    page = page_of(write(tmp_path / "run", some, make_config()))
    assert "Mean score on validation" in page.text
    assert page.row("per_type", "clean")[0] == "10.0 % (4/40), score 0.125"
    assert page.row("per_type", "all")[0] == "15.0 % (12/80), score 0.312"
    assert page.row("overview", "mean score")[1] == "0.325"


def test_a_run_in_progress(tmp_path, no_pictures):
    page = page_of(write(tmp_path / "run", rows(updates=3), make_config()))
    assert f"3 of {UPDATES} updates are there: it is still running or was stopped." in page.text
    assert "One validation so far, after update 0: 15.0 % of the tasks solved." in page.text


def test_a_run_that_has_not_begun(tmp_path, no_pictures):
    page = page_of(write(tmp_path / "run", [], make_config()))
    assert "No validation yet." in page.text
    assert "No update yet." in page.text
    assert page.unbalanced == []


def test_a_method_without_proofs(tmp_path, no_pictures):
    some = [
        {name: value for name, value in row.items() if name not in ("trigger", "sparsity", "abstention")}
        for row in rows()
    ]
    page = page_of(write(tmp_path / "run", some, make_config(credit__method="grpo")))
    assert "Credit method grpo makes no corrections with proofs" in page.text


def test_several_seeds_and_methods_are_compared(tmp_path):
    paths = [write_run(tmp_path / f"v{seed}", seed) for seed in (0, 1, 2)]
    paths += [write_run(tmp_path / f"g{seed}", 5 + seed, credit__method="grpo") for seed in (0, 1)]
    page = page_of(*paths)
    last = np.array([[row["success"] for row in rows(s) if row["kind"] == "eval"][-1] for s in (0, 1, 2)])
    shown = page.row("overview", "A: method vict, 3 seeds")
    assert shown[4] == f"{100 * last.mean():.1f} ± {100 * np.std(last, ddof=1):.1f} %"
    assert page.tables["differing"] == [["key", "A", "B"], ["credit.method", '"vict"', '"grpo"']]
    assert [row[0] for row in page.tables["members"][1:]] == ["A", "A", "A", "B", "B"]
    pooled = sum(
        [row["per_type"]["heat"][0] for row in rows(s) if row["kind"] == "eval"][-1] for s in (0, 1, 2)
    )
    assert page.row("per_type", "heat")[0] == f"{100 * pooled / 120:.1f} % ({pooled}/120)"
    assert "Finished: all 24 updates of 3 runs with seeds 0, 1, 2." in page.text
    assert "At update 24, the last validation that all have," in page.text
    assert page.unbalanced == []


def test_everything_is_escaped(tmp_path):
    """What a policy, an environment, a user or a damaged disk may have written is text."""
    some = rows()
    for row in some:
        if row["kind"] == "eval":
            row["per_type"] = {TEXT: row["per_type"]["clean"], "x" * 100_000: [1, 2]}
            row["about"] = TEXT
        if row["kind"] == "train":
            row["seconds/" + TEXT] = 100.0
            row["entropy"] = TEXT
    example = {"task": TEXT, "type": TEXT, "kind": "policy", "name": TEXT, "actions": [TEXT, "y" * 100_000]}
    example |= {"score": 1.0, "rebuilt": 0.0, "eta": 0.0, "blamed": [TEXT], "faults": []}
    some[0]["findings"] = [{"kind": "score", "name": TEXT, "reason": TEXT, "example": example}]
    plain = make_config(rollout__instruction=TEXT)
    plain[TEXT] = {TEXT: TEXT}
    odd = write(tmp_path / TEXT.replace("/", "|").replace("\ud800", ""), some, plain)
    (odd / "run.json").write_text(json.dumps({name: {TEXT: TEXT} for name in ("versions", "tasks", "data")}))
    source = report([read(odd), read(write_run(tmp_path / "other", 1))])
    page = Page(source)
    assert source.encode()
    assert source.count("<script") == 1
    assert not page.tags & {"img"}
    assert not set("\x1b\u202e\x00") & set(source)
    assert page.unbalanced == []
    shown = " ".join(visible(TEXT).split())
    assert page.row("per_type", shown)
    assert page.text.count(shown) > 8
    assert "y" * 100_000 in page.text


def test_without_matplotlib_the_numbers_are_there(tmp_path, no_pictures, single):
    page = page_of(write_run(tmp_path / "run"))
    assert "svg" not in page.tags
    assert "matplotlib is not installed" in page.text
    assert page.tables["credit_table"] == single.tables["credit_table"]


@pytest.mark.parametrize("seed", range(12))
def test_no_damage_stops_the_report(tmp_path, no_pictures, seed):
    """Bytes of any file lost, overwritten or cut off at random."""
    workdir = write_run(tmp_path / "run")
    rng = random.Random(seed)
    for name in ("config.json", "run.json", "metrics.jsonl"):
        data = bytearray((workdir / name).read_bytes())
        for _ in range(rng.choice([0, 1, 30])):
            data[rng.randrange(len(data))] = rng.choice(b'\x00\xff0"{}[],:ea-\n')
        if rng.random() < 0.3:
            del data[rng.randrange(len(data)) :]
        (workdir / name).write_bytes(bytes(data))
    page = page_of(workdir)
    assert page.unbalanced == []
    assert "What to look at first" in page.text


def test_an_environment_that_is_not_here_and_odd_values(tmp_path, no_pictures):
    plain = make_config(env__name="no_such_module", train__updates={"many": []}) | {"seed": [1]}
    paths = [write(tmp_path / name, rows(updates=2), plain) for name in "ab"]
    page = page_of(*paths)
    assert (
        "Values are not compared with their defaults: there is no environment 'no_such_module'" in page.text
    )
    assert "with seeds [1], [1] (some are equal: repeats, not independent runs)" in page.text
    assert {row[3] for row in page.tables["config1"][1:]} == {""}


def test_where_it_is_written(tmp_path, no_pictures):
    workdir = write_run(tmp_path / "run")
    assert write_report([workdir]) == workdir / "report.html"
    out = write_report([workdir], tmp_path / "other.html")
    assert Page(out.read_text()).tables.keys() == Page((workdir / "report.html").read_text()).tables.keys()


def test_wrong_arguments(tmp_path):
    with pytest.raises(ValueError, match="--workdir=DIR is needed"):
        write_report([])
    workdir = write_run(tmp_path / "run")
    with pytest.raises(ValueError, match="is given twice"):
        write_report([workdir, workdir / ".." / "run"])


def test_a_warning_has_its_next_step(tmp_path, no_pictures):
    page = page_of(change(write_run(tmp_path / "run"), "train", dead_groups=0.9))
    assert "1 warning: Dead groups." in page.text
    assert "Next: Replace them (train.resample_groups, now 0)" in page.text
