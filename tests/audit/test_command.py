"""The commands as they are typed: tables, JSON, exit codes, errors."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.audit.failing import FIRST, SECOND
from tests.audit.logged import log_run, make_config
from vict_jax.audit import __main__ as command
from vict_jax.audit import benchmarks, environment, figures
from vict_jax.audit.run import choose, corrected_plays
from vict_jax.metrics import RunError


@pytest.fixture
def copied(run, tmp_path):
    shutil.copytree(run[0], tmp_path / "run")
    return tmp_path / "run"


def test_a_run_replays_and_its_figures_are_written(run, tmp_path, capsys):
    out = tmp_path / "report.json"
    assert command.main(["--workdir", str(run[0]), "--interventions", "2", "--json", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "credit method vict, updates 1 to 2" in printed
    assert "0 differences, bit for bit" in printed
    report = json.loads(out.read_text())
    assert report["replay"]["updates"] == 2
    assert report["unproved_corrections"] == 0
    values = {name: figure["value"] for name, figure in report["figures"].items()}
    assert values["eligibility"] == 1.0
    assert values["mutation_conformance"] == 0.95  # from the metrics of the run
    assert values["credit_share"] == pytest.approx(1.5 / 21.5)
    assert values["greedy_minimal"] == report["cores"]["rules"]["greedy"]["minimal"]
    assert report["cores"]["found"] > 0
    assert report["interventions"]["rollouts"] == 2
    assert report["interventions"]["skipped"] == 0
    assert sum(outcome["actions"] for outcome in report["interventions"]["outcomes"].values()) > 0


def test_a_changed_bit_fails_the_audit_and_a_range_can_leave_it_out(copied, capsys):
    path = copied / "rollouts" / "update_000001.parquet"
    table = pq.read_table(path)
    values = table["advantage"].to_numpy().copy()
    values[0] = np.nextafter(values[0], np.float32(9))
    index = table.schema.get_field_index("advantage")
    pq.write_table(table.set_column(index, table.schema.field(index), [values]), path)
    assert command.main(["--workdir", str(copied)]) == 1
    printed = capsys.readouterr().out
    assert "1 differences, bit for bit" in printed
    assert "DIFFERS update 1, group 0, rollout 0, step 0: advantage logged" in printed
    assert command.main(["--workdir", str(copied), "--updates", "2:"]) == 0


def test_what_no_metrics_row_tells_is_not_logged(copied, capsys):
    (copied / "metrics.jsonl").unlink()
    assert command.main(["--workdir", str(copied), "--updates", ":1"]) == 0
    assert capsys.readouterr().out.count("not logged") == 2


def test_a_method_without_proofs_is_replayed_too(tmp_path, capsys):
    log_run(tmp_path / "run", make_config("grpo"), updates=1)
    assert command.main(["--workdir", str(tmp_path / "run")]) == 0
    assert "credit method grpo" in capsys.readouterr().out


def test_interventions_visit_every_update_before_any_one_again(run, config):
    plays = list(corrected_plays(run[0], config, [1, 2], seed=0))
    corrected = {
        f"update {u}, {g}/{n}"
        for u, update in run[1].items()
        for g, n in np.argwhere((update.output.correction != 0).any(-1)).tolist()
    }
    assert {play.name for play in plays} == corrected
    assert len(plays) == len(corrected)
    assert {play.name.split(",")[0] for play in plays[:2]} == {"update 1", "update 2"}
    assert [play.name for play in plays] != sorted(play.name for play in plays)
    for play in plays:
        assert len(play.actions) == len(play.taken) == len(play.correction)


@pytest.mark.parametrize(
    ("text", "expected"), [(None, [2, 3, 7]), ("3:", [3, 7]), (":3", [2, 3]), ("3:6", [3]), (":", [2, 3, 7])]
)
def test_ranges_of_updates(text, expected):
    assert choose([2, 3, 7], text) == expected


def test_ranges_without_an_update_and_wrong_ones_are_refused(tmp_path):
    with pytest.raises(RunError, match="in --updates 8:: updates 2 to 7 are logged"):
        choose([2, 7], "8:")
    with pytest.raises(RunError, match="nothing to audit: no update is logged"):
        choose([], None)
    with pytest.raises(ValueError, match="--updates '3' must look like A:B"):
        choose([3], "3")
    with pytest.raises(RunError, match="holds no run"):
        command.main(["--workdir", str(tmp_path)])


def test_fresh_rollouts_of_an_environment(tmp_path, capsys):
    out = tmp_path / "report.json"
    arguments = "--env alfworld --split train --tasks 2 --plays 1 --rollouts 16 --interventions 2"
    options = ["--credit", "center=mean", "--option", "max_steps=20", "--seed", "1", "--json", str(out)]
    assert command.main([*arguments.split(), *options]) == 0
    printed = capsys.readouterr().out
    assert "alfworld train: 2 tasks" in printed
    assert "Credit of 16 rollouts of 2 tasks of train" in printed
    report = json.loads(out.read_text())
    assert report["conformance"]["train"]["conforming"]
    assert report["counts"]["rollouts"] == 16
    assert report["figures"]["reconstruction"]["value"] == 1.0
    assert report["figures"]["eligibility"]["value"] == 1.0
    assert report["figures"]["mutation_conformance"]["value"] == 1.0
    assert report["interventions"]["rollouts"] == 2
    assert report["interventions"]["skipped"] == 0


@pytest.mark.parametrize(
    ("fails", "message"),
    [
        (
            "step",
            rf"task '{FIRST}': after 2 steps step\(.*\) raises KeyError: 'step was planted' \(failing.py:",
        ),
        ("reset", rf"after 0 steps reset\('{FIRST}'\) raises KeyError: 'reset was planted'"),
        ("score", rf"task '{FIRST}': after \d+ steps record\(\) raises .*VerifierRecord.score=nan"),
        ("mutations", rf"mutated rollout of task '{FIRST}': mutations\(options, task\) raises KeyError"),
    ],
)
def test_an_environment_that_raises_loses_rollouts_and_the_report_goes_on(fails, message, tmp_path, capsys):
    out = tmp_path / "report.json"
    arguments = "--env tests.audit.failing --split train --tasks 2 --plays 1 --option max_steps=20"
    assert command.main([*arguments.split(), "--option", f"fails={fails}", "--json", str(out)]) == 1
    printed = capsys.readouterr().out
    assert re.search(rf"^LOST .*{message}", printed, re.MULTILINE), printed
    assert "aggregator: conforms" in printed
    report = json.loads(out.read_text())["conformance"]["train"]
    assert not report["conforming"]
    assert report["total"]["rollouts"] == report["total"]["agree"] > 0
    assert {lost["task"] for lost in report["lost"]} == ({FIRST, SECOND} if fails == "mutations" else {FIRST})


def test_an_environment_that_always_raises_gets_its_report_too(tmp_path, capsys):
    out = tmp_path / "report.json"
    arguments = "--env tests.audit.failing --split train --tasks 2 --plays 1 --option everywhere=True"
    more = ["--option", "fails=step", "--rollouts", "8", "--json", str(out)]
    assert command.main([*arguments.split(), *more]) == 1
    printed = capsys.readouterr().out
    assert "LOST   ... and" in printed
    assert re.search(
        rf"FAILED no credit of .* of train: task '{FIRST}', after 2 steps: step\(.*KeyError", printed
    )
    report = json.loads(out.read_text())
    assert report["conformance"]["train"]["lost"]
    assert "step was planted" in report["no_credit"]


def test_corrections_without_a_proof_fail_the_audit(monkeypatch, capsys):
    def unsound(setting, inputs):
        output, _ = original(setting, inputs)
        return output, 3

    original = environment.credit
    monkeypatch.setattr(environment, "credit", unsound)
    arguments = "--env alfworld --split train --tasks 1 --plays 0 --rollouts 16 --option max_steps=20"
    assert command.main([*arguments.split(), "--credit", "center=mean"]) == 1
    assert "FAILED 3 corrections without a proof" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--env alfworld --rollouts 12", "--rollouts 12 must be a multiple of --group-size 8"),
        ("--env alfworld --group-size 1", "--group-size 1 must be 2 or more"),
        ("--env alfworld --plays -1", "--plays -1 must not be negative"),
        ("--env alfworld --interventions -1", "--interventions -1 must not be negative"),
        ("--env alfworld --workdir here", "not allowed with argument"),
        ("--env alfworld --controls", "--controls has no effect without --rollouts N"),
        ("--env alfworld --updates 1:2", "--updates has no effect with --env"),
        ("--check examples.refunds --rollouts 8", "--rollouts has no effect with --check"),
        ("--workdir here --credit budget=4", "--credit has no effect with --workdir"),
        ("--workdir here --update 3", "--update has no effect with --workdir"),
        ("--explain here --update 1 --rollout 0 --json out", "--explain prints text only"),
        ("", "one of the arguments --env --benchmarks --check --workdir --explain is required"),
    ],
)
def test_wrong_arguments_end_with_a_message(arguments, message, capsys):
    with pytest.raises(SystemExit):
        command.main(arguments.split())
    assert message in capsys.readouterr().err


def test_too_few_tasks_and_unknown_credit_options_are_refused():
    few = "--env alfworld --split train --tasks 1 --plays 0 --option num_train=1"
    with pytest.raises(ValueError, match="needs 2 tasks, split 'train' has 1"):
        command.main([*few.split(), "--rollouts", "16"])
    with pytest.raises(ValueError, match=r"unknown config key 'credit\.centre'; did you mean 'center'"):
        command.main([*few.split(), "--rollouts", "8", "--credit", "centre=mean"])


def test_benchmarks_stand_side_by_side_beside_the_paper(tmp_path, capsys, monkeypatch):
    chosen = {name: benchmarks.BENCHMARKS[name] for name in ("ALFWorld", "search QA")}
    monkeypatch.setattr(benchmarks, "BENCHMARKS", chosen)
    out = tmp_path / "all.json"
    arguments = ["--benchmarks", "--tasks", "2", "--plays", "1", "--rollouts", "16", "--json"]
    assert command.main([*arguments, str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    header = next(i for i, text in enumerate(lines) if text.startswith("here (paper)"))
    rows = {text.split()[0]: text for text in lines[header + 1 :]}
    assert lines[header].split("  ")[-1] == "meaning"
    report = json.loads(out.read_text())
    assert list(report) == list(chosen)
    for figure, paper in figures.PAPER_OF["ALFWorld"].items():
        ours = report["ALFWorld"]["figures"][figure]["value"]
        assert f"{figures.show(figure, ours)} ({figures.show(figure, paper)})" in rows[figure]
        other = report["search QA"]["figures"][figure]["value"]
        assert f"{figures.show(figure, other)}  " in rows[figure]


def test_data_of_no_benchmark_are_refused():
    with pytest.raises(ValueError, match="--data 'shop' is not one of the environments"):
        command.main(["--benchmarks", "--data", "shop=here"])
