"""The whole loop on a very small model: it runs, resumes exactly, its proofs replay, its errors are clear."""

from __future__ import annotations

import dataclasses
import itertools
import json
import pathlib
import threading
from collections.abc import Callable
from typing import Any

import chex
import numpy as np
import pyarrow.parquet as pq
import pytest

from envs.lookup import environment
from tests.browser import Watched
from tests.report.parsed import Page
from tests.run.results import assert_same, comparable, start
from vict_jax import metrics, proofs, train
from vict_jax.audit.replay import replay
from vict_jax.batching import to_device, to_host
from vict_jax.config import RunConfig
from vict_jax.credit.assign import assign_credit
from vict_jax.evaluate import evaluate
from vict_jax.job import open_job
from vict_jax.run_state import restore_reference
from vict_jax.sharding import make_mesh, replicated
from vict_jax.types import CreditInputs, CreditOutput
from vict_jax.viewer.server import open_server


def credit_of(config: RunConfig) -> Callable[[CreditInputs], CreditOutput]:
    def credit(inputs: CreditInputs) -> CreditOutput:
        output, violations = assign_credit(
            to_device(inputs, replicated(make_mesh())),
            method=config.credit.method,
            aggregate=environment(config.env.name)[0].aggregate,
            options=config.credit.options,
        )
        assert violations == 0
        return to_host(output)

    return credit


def test_a_run_leaves_everything_it_promises(finished: pathlib.Path, config: RunConfig) -> None:
    rows = comparable(finished)
    assert [(r["kind"], r["update"]) for r in rows] == [
        ("conformance", 0),
        ("warm_start", 0),
        ("warm_start", 0),
        ("eval", 0),
        ("train", 1),
        ("train", 2),
        ("eval", 2),
        ("train", 3),
        ("eval", 3),
    ]
    assert (rows[0]["reconstruction"], rows[0]["mutation"], rows[0]["findings"]) == (1.0, 1.0, [])
    assert rows[2]["loss"] < rows[1]["loss"]  # the warm start learns
    update = rows[4]
    assert update["first_log_ratio_max"] < 1e-4  # sampler, reference and learner share one forward
    assert update["eligibility"] == 1.0
    assert update["reconstruction"] == 1.0
    assert update["count/rollouts"] == 8
    summary = json.loads((finished / "summary.json").read_text())
    assert summary["before"]["per_type"].keys() == summary["after"]["per_type"].keys()
    assert sum(total for _, total in summary["after"]["per_type"].values()) == 6
    header = json.loads((finished / "run.json").read_text())
    assert header["tasks"]["train"]["count"] == 24
    assert (finished / "tokenizer" / "tokenizer.json").is_file()
    assert list((finished / "events").glob("events.*"))
    assert proofs.logged_updates(finished) == [1, 2, 3]
    assert not list(finished.rglob(".*partial"))


def test_a_run_reports_itself(finished: pathlib.Path) -> None:
    page = Page((finished / "report.html").read_text())
    rows = metrics.read_metrics(finished)
    assert "Finished: all 3 updates." in page.text
    assert "Not all of the directory can be read" not in page.text
    shown = [row[2:4] for row in page.tables["evaluations"][1:]]
    assert shown == [
        [str(row["update"]), f"{100 * row['success']:.1f} %"] for row in rows if row["kind"] == "eval"
    ]
    abstention = [row["abstention"] for row in rows if row["kind"] == "train"]
    assert page.row("credit_table", "abstention")[4] == f"{100 * np.mean(abstention):.1f} %"
    manifest = json.loads((finished / "run.json").read_text())
    assert manifest["tasks"]["train"]["sha256"] in page.text
    assert page.tables["config1"][1][:2] == ["seed", "0"]


def test_the_report_of_a_run_opens_in_a_browser(finished: pathlib.Path, watched: Watched) -> None:
    address = (finished / "report.html").as_uri()
    watched.page.goto(address)
    assert watched.page.locator("figure svg").count() > 10
    assert watched.requests == [address]


def test_the_viewer_shows_every_rollout_of_a_run(finished: pathlib.Path, watched: Watched) -> None:
    page = watched.page
    with open_server(finished, 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        page.goto(server.url + "#f.update=all&at=1/0/0")
        page.wait_for_selector("body[data-ready]")
        assert page.inner_text("#count") == "24 of 24 rollouts"
        for update in (1, 2, 3):
            steps = pq.read_table(finished / "rollouts" / f"update_{update:06d}.parquet").to_pylist()
            for g, n in itertools.product(range(2), range(4)):
                page.wait_for_selector(f"h2 >> text=Update {update} · group {g} · rollout {n}")
                own = [row for row in steps if (row["group"], row["rollout"]) == (g, n)]
                cells = page.eval_on_selector_all(
                    "tr.step td[data-of=final]", "cells => cells.map(cell => Number(cell.dataset.value))"
                )
                assert cells == [row["advantage"] for row in own]
                page.keyboard.press("j")
        server.shutdown()
        thread.join()


def test_the_proof_log_replays_bit_for_bit(finished: pathlib.Path, config: RunConfig) -> None:
    result = replay(finished, proofs.logged_updates(finished), credit_of(config))
    assert result.differing == ()
    assert result.updates == 3
    tables = [pq.read_table(path) for path in sorted((finished / "rollouts").glob("*.parquet"))]
    assert result.steps == sum(table.num_rows for table in tables) > 0


def test_replay_notices_a_changed_correction(
    finished: pathlib.Path, config: RunConfig, tmp_path: pathlib.Path
) -> None:
    for folder in ("rollouts", "atoms", "proofs"):
        (tmp_path / folder).mkdir()
        for path in (finished / folder).glob("update_000001*"):
            (tmp_path / folder / path.name).write_bytes(path.read_bytes())
    path = tmp_path / "rollouts" / "update_000001.parquet"
    table = pq.read_table(path)
    changed = table["correction"].to_numpy().copy()
    changed[0] = np.nextafter(changed[0], np.float32(1))  # one bit
    index = table.schema.get_field_index("correction")
    pq.write_table(table.set_column(index, table.schema.field(index), [changed]), path)
    result = replay(tmp_path, [1], credit_of(config))
    assert len(result.differing) == 1
    assert "group 0, rollout 0, step 0: correction logged" in result.differing[0]


def test_field_report_34_same_seed_same_run_whatever_the_workers(
    finished: pathlib.Path, config: RunConfig, tmp_path: pathlib.Path
) -> None:
    """Field report 34."""
    other = dataclasses.replace(config, env=dataclasses.replace(config.env, workers=3))
    train.train(other, tmp_path / "again")
    assert_same(tmp_path / "again", finished, config)


def test_a_finished_run_is_not_run_again(finished: pathlib.Path, config: RunConfig) -> None:
    before = (finished / "metrics.jsonl").read_bytes()
    train.train(config, finished)
    assert (finished / "metrics.jsonl").read_bytes() == before


def test_a_run_may_begin_with_the_warm_start_of_another(
    finished: pathlib.Path, config: RunConfig, tmp_path: pathlib.Path
) -> None:
    other = dataclasses.replace(
        config,
        seed=1,
        warm_start=dataclasses.replace(config.warm_start, run=str(finished), tasks=0),
        train=dataclasses.replace(config.train, updates=0),
    )
    train.train(other, tmp_path / "other")
    begun = metrics.read_metrics(tmp_path / "other")
    assert [row["kind"] for row in begun] == ["conformance", "eval"]
    # The same policy with the same tokenizer; the keys of validation differ with the seed.
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "other" / "tokenizer" / name).read_bytes() == (
            finished / "tokenizer" / name
        ).read_bytes()
    with open_job(config, finished) as job:
        taken, original = (restore_reference(job, workdir) for workdir in (tmp_path / "other", finished))
    chex.assert_trees_all_equal(taken, original)


@pytest.mark.parametrize(("tasks", "played"), [(6, 0), (5, 1)])
def test_a_known_validation_of_the_warm_start_is_not_played_again(
    finished: pathlib.Path,
    config: RunConfig,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    tasks: int,
    played: int,
) -> None:
    calls = []

    def counted(*args: Any, **kwargs: Any) -> dict[str, Any]:
        calls.append(args)
        return evaluate(*args, **kwargs)

    monkeypatch.setattr(train, "evaluate", counted)
    other = dataclasses.replace(
        config,
        warm_start=dataclasses.replace(config.warm_start, run=str(finished)),
        train=dataclasses.replace(config.train, updates=0),
        eval=dataclasses.replace(config.eval, tasks=tasks),
    )
    train.train(other, tmp_path / "other")
    assert len(calls) == played
    known, own = (
        next(row for row in metrics.read_metrics(workdir) if row["kind"] == "eval")
        for workdir in (finished, tmp_path / "other")
    )
    assert own["tasks"] == tasks
    assert (own == known) == (played == 0)


def test_a_warm_start_of_no_run_is_refused(config: RunConfig, tmp_path: pathlib.Path) -> None:
    warm_start = dataclasses.replace(config.warm_start, run=str(tmp_path / "nowhere"))
    with pytest.raises(FileNotFoundError, match=r"warm_start\.run=.*nowhere"):
        train.train(dataclasses.replace(config, warm_start=warm_start), tmp_path / "other")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--config.train.upates=5"], "unknown config key 'train.upates'; did you mean 'updates'?"),
        (["--config.train.updates=many"], "invalid literal for int"),
        (["--config.env.data_dir=no/such/folder"], "'no/such/folder' does not exist"),
        (
            ["--config.credit.method=vikt"],
            "credit.method='vikt' is not allowed: credit method 'vikt' is unknown: allowed are",
        ),
        (["--config.warm_start.tasks=100"], "warm_start.tasks=100 is above the 24 tasks"),
        (["trailing"], "unknown argument 'trailing'"),
    ],
)
def test_mistakes_on_the_command_line_give_one_message(
    more: list[str], message: str, tmp_path: pathlib.Path
) -> None:
    process = start(tmp_path / "run", *more)
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 1
    assert message in stderr
    assert "Traceback" not in stderr
