"""Seeds of a config are a band, other configs a comparison; the numbers are NumPy's."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.report.synthetic import EVERY, UPDATES, change, rows, write, write_run
from tests.report.synthetic import config as make_config
from vict_jax.report import plots
from vict_jax.report.groups import Curve, common, curve, differences, grouped
from vict_jax.report.read import read


def test_runs_that_differ_in_the_seed_alone_are_one_group(tmp_path):
    paths = [write_run(tmp_path / f"s{seed}", seed) for seed in (0, 1, 2)]
    plain = make_config(1) | {"mesh": make_config()["mesh"] | {"data": 2}}
    paths.append(write(tmp_path / "mesh", rows(5), plain))
    paths.append(write_run(tmp_path / "grpo", 3, credit__method="grpo"))
    groups = grouped([read(path) for path in paths])
    assert [(one.letter, one.label, len(one.records)) for one in groups] == [
        ("A", "A: method vict, 4 seeds", 4),
        ("B", "B: method grpo", 1),
    ]
    assert differences([one.records for one in groups]) == {"credit.method": ['"vict"', '"grpo"']}


def test_one_group_has_no_letter(tmp_path):
    (group,) = grouped([read(write_run(tmp_path / "run"))])
    assert (group.letter, group.label) == ("", "run")


def test_configs_that_cannot_be_read_are_groups_of_their_own(tmp_path):
    paths = [write_run(tmp_path / name) for name in "ab"]
    for path in paths:
        (path / "config.json").write_text("{")
    groups = grouped([read(path) for path in paths])
    assert [one.label for one in groups] == ["A: a", "B: b"]


def test_the_band_is_mean_and_sample_deviation(tmp_path):
    paths = [write_run(tmp_path / f"s{seed}", seed) for seed in (0, 1, 2)]
    (group,) = grouped([read(path) for path in paths])
    for kind, name in (("train", "success"), ("train", "trigger"), ("eval", "success")):
        found = curve(group, kind, name)
        table = np.array([[row[name] for row in rows(seed) if row["kind"] == kind] for seed in (0, 1, 2)])
        assert found.std is not None
        np.testing.assert_array_equal(found.values, table)
        np.testing.assert_allclose(found.mean, np.mean(table, axis=0), rtol=0)
        np.testing.assert_allclose(found.std, np.std(table, axis=0, ddof=1), rtol=1e-12)
        assert found.std.max() > 0
    assert curve(group, "eval", "success").updates.tolist() == list(range(0, UPDATES + 1, EVERY))


def test_a_band_ends_with_the_shortest_run_and_leaves_out_what_one_lacks():
    found = common([{1: 0.0, 2: 1.0, 4: 2.0, 5: 9.0}, {1: 1.0, 3: 5.0, 4: 4.0}])
    assert found.updates.tolist() == [1, 4]
    assert found.values.tolist() == [[0.0, 2.0], [1.0, 4.0]]
    assert not common([{1: 0.0}, {}])
    assert not common([])


def test_a_single_run_has_no_band(tmp_path):
    (group,) = grouped([read(write_run(tmp_path / "run"))])
    assert curve(group, "train", "success").std is None
    assert not curve(group, "train", "absent")


def test_null_and_missing_values_are_no_points(tmp_path):
    path = change(write_run(tmp_path / "run"), "train", trigger=None)
    (group,) = grouped([read(path)])
    assert not curve(group, "train", "trigger")


def test_running_means_are_those_of_a_loop():
    values = np.random.default_rng(0).normal(size=(2, 47))
    found = plots.smoothed(Curve(np.arange(47), values))
    for run, smooth in zip(values, found.values, strict=True):
        for at in range(47):
            reach = min(2, at, 46 - at)
            assert smooth[at] == pytest.approx(run[at - reach : at + reach + 1].mean(), abs=1e-12)


def test_few_updates_are_not_smoothed():
    short = Curve(np.arange(19), np.random.default_rng(0).normal(size=(1, 19)))
    assert plots.smoothed(short) is short


def test_labels_of_many_groups_stay_short_and_differ(tmp_path):
    paths = []
    for number in range(28):
        plain = make_config() | {"env": make_config()["env"] | {"num_train": 24 + number}}
        plain["env"]["data_dir"] = "x" * 300 + str(number)
        paths.append(write(tmp_path / f"run{number}", rows(updates=1), plain))
    labels = [one.label for one in grouped([read(path) for path in paths])]
    assert len(set(labels)) == 28
    assert labels[26].startswith("A1: ")
    assert max(map(len, labels)) < 60
    assert json.dumps(labels)
