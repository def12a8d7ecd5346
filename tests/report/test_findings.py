"""Each warning is raised by what it is about, and by nothing else."""

from __future__ import annotations

import pytest

from tests.report.synthetic import UPDATES, change, eval_row, rows, write, write_run
from tests.report.synthetic import config as make_config
from vict_jax.report.findings import LOOK, PROBLEM, shared, warnings
from vict_jax.report.read import read


@pytest.fixture
def workdir(tmp_path):
    return write_run(tmp_path / "run")


def titles(workdir) -> list[str]:
    return [one.title for one in warnings(read(workdir))]


def test_a_run_in_order_has_none(workdir):
    assert titles(workdir) == []


@pytest.mark.parametrize(
    ("values", "level", "title", "text", "next_"),
    [
        ({"count__truncated": 20}, LOOK, "Replies are cut off", "10.0 % of the steps", "(now 24)"),
        (
            {"count__context_ends": 16},
            LOOK,
            "Rollouts end because the context is full",
            "50.0 %",
            "(now 512)",
        ),
        ({"count__unparsed": 50}, LOOK, "Replies hold no action", "25.0 %", "--explain"),
        ({"count__inadmissible": 100}, LOOK, "The environment refuses actions", "50.0 %", "now False"),
        ({"count__shortened": 100}, LOOK, "Prompts show less than the options ask for", "50.0 %", "512"),
        (
            {"count__env_errors": 1},
            PROBLEM,
            "Rollouts are lost to the environment",
            "24 failed",
            "(now 20.0)",
        ),
        ({"count__env_timeouts": 2}, PROBLEM, "Rollouts are lost to the environment", "48 ran", "--env alf"),
        ({"dead_groups": 0.75}, LOOK, "Dead groups", "75.0 % of the groups", "resample_groups, now 0"),
        ({"trigger": 0.0}, LOOK, "Nothing is corrected", "No rollout", "causes below"),
        ({"nonconforming_groups": 1}, LOOK, "Groups without credit", "In 24 groups", "--env alfworld"),
        ({"eligibility": 0.99}, PROBLEM, "Corrections without a proof", "updates 1, 2", "report it"),
        ({"reconstruction": 0.5}, LOOK, "Scores that the atoms do not rebuild", "updates 1", "alfworld"),
        ({"clip_fraction": 0.3}, LOOK, "Much is clipped", "30.0 %", "(now 0.001)"),
        ({"kl_behaviour": 0.1}, LOOK, "The policy moves far in an update", "0.1 nats", "kl_coefficient"),
        ({"first_log_ratio_max": 0.5}, LOOK, "Sampler and learner disagree", "update 1", "dtype"),
        ({"entropy": None}, PROBLEM, "Figures that are not finite", "entropy had no", "(now 0.001)"),
        (
            {"clip_fraction": 0.0, "kl_behaviour": 0.0},
            LOOK,
            "The policy does not move",
            "Nothing was ever clipped",
            "Raise optimizer.learning_rate",
        ),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_what_calls_for_a_look(workdir, values, level, title, text, next_):
    (one,) = warnings(read(change(workdir, "train", **values)))
    assert (one.level, one.title) == (level, title)
    assert text in one.text
    assert next_ in one.next
    assert "{" not in one.next


@pytest.mark.parametrize(
    "values",
    [
        {"count__truncated": 2},
        {"count__context_ends": 1},
        {"count__unparsed": 4},
        {"count__inadmissible": 20},
        {"dead_groups": 0.5},
        {"clip_fraction": 0.2},
        {"kl_behaviour": 0.02},
        {"first_log_ratio_max": 0.1},
        {"clip_fraction": 0.0, "kl_behaviour": 0.0, "optimizer_steps": 1.0},
    ],
    ids="-".join,
)
def test_at_the_threshold_nothing_is_said(workdir, values):
    assert titles(change(workdir, "train", **values)) == []


def test_rates_are_those_of_the_last_quarter(tmp_path):
    some = rows()
    early = [row | {"count/truncated": 100} if row["update"] <= 18 else row for row in some]
    late = [row | {"count/truncated": 3} if row["update"] > 18 else row for row in some]
    assert titles(write(tmp_path / "early", early, make_config())) == []
    assert titles(write(tmp_path / "late", late, make_config())) == ["Replies are cut off"]


def test_a_rate_of_nothing_is_none(workdir):
    assert titles(change(workdir, "train", count__steps=0, count__rollouts=0)) == []


def test_findings_of_the_conformance_gate_are_shown_word_for_word(tmp_path):
    example = {"task": "t1", "type": "heat", "kind": "edited", "name": "drop", "actions": ["a\x1b[0m", "b"]}
    example |= {"score": 1.0, "rebuilt": 0.0, "eta": 0.0, "blamed": ["placed"], "faults": []}
    finding = {"kind": "score", "name": "placed", "reason": "F(z_T) = 0 but V = 1", "example": example}
    some = rows()
    some[0]["findings"] = [finding, finding | {"kind": "aggregator", "name": "heat"}]
    found = warnings(read(write(tmp_path / "run", some, make_config())))
    assert [(one.level, one.title) for one in found] == [
        (PROBLEM, "Verifier interface, update 0: family 'placed' is masked, its atoms get no credit"),
        (
            PROBLEM,
            "Verifier interface, update 0: the aggregator fails on task type 'heat', its tasks get no credit",
        ),
    ]
    assert "task 't1', edited drop, F = 0, V = 1, 2 actions" in found[0].text
    some[0]["findings"] = [{"kind": "new"}]
    (one,) = warnings(read(write(tmp_path / "other", some, make_config())))
    assert "1 findings of another version" in one.title


def test_damage_is_the_first_warning(workdir):
    (workdir / "config.json").unlink()
    path = workdir / "metrics.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:3], "{", *lines[4:-1], lines[-1][:40]]))
    change_less = warnings(read(workdir))
    assert [one.level for one in change_less] == [PROBLEM, PROBLEM, PROBLEM, PROBLEM][: len(change_less)]
    assert [one.title for one in change_less[:3]] == ["Not all of the directory can be read"] * 2 + [
        "Updates are missing"
    ]
    assert "update 2;" in change_less[2].text


def test_half_written_is_a_note(workdir):
    path = workdir / "metrics.jsonl"
    path.write_text(path.read_text()[:-20])
    (one,) = warnings(read(workdir))
    assert (one.level, one.title) == (LOOK, "Something is half written")


def test_a_fall_beyond_chance_is_said(tmp_path):
    some = [row for row in rows() if row["kind"] != "eval"]
    ends = [eval_row(0, (4, 4)), eval_row(18, (36, 36)), eval_row(24, (20, 20))]
    (one,) = warnings(read(write(tmp_path / "run", some + ends, make_config())))
    assert one.title == "Validation has fallen from its best"
    assert one.text.startswith("50.0 % at update 24 after 90.0 % at update 18")
    assert "its checkpoint is kept" in one.next
    ends[1] = eval_row(12, (36, 36))
    (one,) = warnings(read(write(tmp_path / "not_kept", some + ends, make_config())))
    assert "is not kept" in one.next
    ends[1] = eval_row(18, (21, 21))
    assert titles(write(tmp_path / "chance", some + ends, make_config())) == []


def test_collapse_of_the_entropy(tmp_path):
    some = [
        row | {"entropy": 0.5 / row["update"] ** 1.5} if row["kind"] == "train" else row for row in rows()
    ]
    (one,) = warnings(read(write(tmp_path / "run", some, make_config())))
    assert one.title == "The policy hardly explores any more"


def test_lost_validation_tasks(workdir):
    (one,) = warnings(read(change(workdir, "eval", lost=2)))
    assert one.text.startswith("10 of all evaluated tasks")


def test_warnings_of_several_runs_stand_together(tmp_path):
    paths = [
        change(write_run(tmp_path / f"s{seed}", seed), "train", dead_groups=0.6 + seed / 10)
        for seed in (0, 1)
    ]
    change(paths[1], "train", eligibility=0.5)
    found = shared([read(path) for path in paths])
    assert [(one.title, len(one.runs)) for one in found] == [
        ("Corrections without a proof", 1),
        ("Dead groups", 2),
    ]
    assert [path for path, _ in found[1].runs] == [str(path) for path in paths]
    assert ["60.0 %" in found[1].runs[0][1], "70.0 %" in found[1].runs[1][1]] == [True, True]


def test_a_run_without_a_config_has_advice_all_the_same(workdir):
    change(workdir, "train", dead_groups=0.9, count__truncated=50)
    (workdir / "config.json").unlink()
    assert titles(workdir)[1:] == ["Dead groups", "Replies are cut off"]
    assert read(workdir).updates == UPDATES
