"""Several methods on one stored batch, or on fresh rollouts."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from vict_jax import compare, rubric
from vict_jax.credit.options import VictOptions
from vict_jax.metrics import RunError

METHODS = ("grpo", "gigpo", "gigpo_similar", "salt", "proxmo", "trca")


@pytest.fixture(scope="module")
def printed(run, tmp_path_factory):
    """What is printed for update 2 of the logged run, and the JSON file."""
    out = tmp_path_factory.mktemp("compare") / "out.json"
    text = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("builtins.print", text.append)
        compare.main([f"--workdir={run[0]}", f"--methods={','.join(METHODS)}", f"--json={out}"])
    return text[0], json.loads(out.read_text())


def test_the_last_update_is_compared_step_by_step(run, printed):
    text, values = printed
    inputs = run[1][2].inputs
    real = inputs.step_mask & inputs.rollout_mask[..., None]
    assert text.startswith(
        f"update 2 of {run[0]}: {real.sum()} steps of {inputs.rollout_mask.sum()} rollouts"
    )
    assert len(values["steps"]) == real.sum()
    assert values["methods"] == list(METHODS)
    base = run[1][2].output.base  # of VICT, whose outcome advantage is GRPO's
    for row in values["steps"]:
        place = row["group"], row["rollout"], row["step"]
        assert real[place]
        assert row["advantages"]["grpo"] == base[place]
        assert row["action"] == run[1][2].groups[place[0]][place[1]].actions[place[2]]


def test_figures_are_those_of_the_steps(printed):
    _, values = printed
    for name in METHODS:
        rows = {}
        for row in values["steps"]:
            rows.setdefault((row["group"], row["rollout"]), []).append(row["advantages"][name])
        flat = np.concatenate(list(rows.values()))
        figures = values["figures"][name]
        assert figures["nonzero"] == pytest.approx((flat != 0).mean())
        assert figures["mean"] == pytest.approx(flat.mean(), abs=1e-6)
        assert figures["std"] == pytest.approx(flat.std(), rel=1e-5)
        inside = sum(np.square(np.array(r) - np.mean(r)).sum() for r in rows.values()) / len(flat)
        assert figures["within"] == pytest.approx(inside / flat.var(), abs=1e-6)
    assert values["figures"]["grpo"]["within"] == pytest.approx(0, abs=1e-9)
    assert values["figures"]["gigpo"]["within"] > 0.01


def test_matrices(printed):
    text, values = printed
    for a in METHODS:
        assert values["correlation"][a][a] == pytest.approx(1)
        assert values["sign_agreement"][a][a] == 1
        for b in METHODS:
            assert values["correlation"][a][b] == pytest.approx(values["correlation"][b][a])
            x, y = ([row["advantages"][name] for row in values["steps"]] for name in (a, b))
            assert values["correlation"][a][b] == pytest.approx(np.corrcoef(x, y)[0, 1], rel=1e-5)
    assert values["correlation"]["grpo"]["gigpo"] < 0.999
    for title in ("All steps", "Same sign", "Correlation", "rollout "):
        assert f"\n{title}" in text


def test_the_table_shows_the_rollout_that_is_asked_for(run, capsys):
    compare.main([f"--workdir={run[0]}", "--methods=grpo,dr_grpo", "--update=1", "--rollout=0/1"])
    text = capsys.readouterr().out
    update = run[1][1]
    rollout = update.groups[0][1]
    assert f"rollout 0/1, score {rollout.score:g}" in text
    block = text.split("\n\n")[1].splitlines()[2:]
    assert len(block) == len(rollout.actions)
    assert block[0].split()[0] == "0"
    assert float(block[0].split()[-2] or "nan") == pytest.approx(float(update.output.base[0, 1, 0]), abs=1e-3)
    lost = f"{len(update.groups) - 1}/{len(update.groups[0]) - 1}"
    compare.main([f"--workdir={run[0]}", "--methods=grpo,dr_grpo", "--update=1", f"--rollout={lost}"])
    assert "lost, it has no advantages" in capsys.readouterr().out


def test_a_rubric_made_from_the_log_is_that_of_the_rollouts(run):
    logged = run[1][2]
    stored = compare.logged(run[0], 2, [])
    from_log, direct = (
        rubric.add_needed(inputs, played, needs={"rubric"}, domain=stored.domain)
        for inputs, played in (
            (stored.inputs, stored.played),
            (logged.inputs, rubric.played_of(logged.groups)),
        )
    )
    for name in rubric.FIELDS:
        np.testing.assert_array_equal(getattr(from_log, name), getattr(direct, name))
        assert np.any(getattr(direct, name))


def test_fresh_rollouts(capsys):
    option = ["--option=max_steps=8", "--option=num_train=4"]
    compare.main(["--env=alfworld", "--rollouts=6", "--group-size=3", "--methods=grpo,salt", *option])
    text = capsys.readouterr().out
    assert text.startswith("6 rollouts of alfworld, train, by the expert with random actions in between: ")


def test_credit_options_may_be_dotted():
    options = compare.changed(VictOptions(), ["gigpo.mode=mean", "center=mean", "proxmo.terms=8"])
    assert (options.gigpo.mode, options.center, options.proxmo.terms) == ("mean", "mean", 8)
    assert compare.changed(VictOptions(), []) == VictOptions()
    for pair, message in (
        ("gigpo.modus=mean", r"unknown config key 'credit.gigpo.modus'; did you mean 'mode'\?"),
        ("gigpoo.mode=mean", "there are no options called 'gigpoo'"),
        ("center.x=1", "there are no options called 'center'"),
        ("gigpo.mode=std", "gigpo.mode='std' is not allowed"),
        ("gigpo=3", "config key 'credit.gigpo' is 3, expected"),
        ("budget=many", "config key 'credit.budget' is 'many', expected <class 'int'>"),
        ("steps.rows=1", "config key 'credit.steps.rows' is 1, expected <class 'bool'>"),
    ):
        with pytest.raises(ValueError, match=message):
            compare.changed(VictOptions(), [pair])


def test_figures_without_variance():
    real = np.array([[[True, True]]])
    figures = compare.figures(np.zeros((1, 1, 2), np.float32), real)
    assert figures == compare.Figures(nonzero=0.0, mean=0.0, std=0.0, within=None)
    one = compare.figures(np.array([[[1.0, -1.0]]], np.float32), real)
    assert (one.std, one.within) == (1.0, 1.0)
    assert not math.isnan(one.mean)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (["--update=9"], RunError, r"no logged update at .*; updates 1 to 2 \(2 of them\) are logged"),
        (["--rollout=99"], RunError, r"there is no rollout 99: update 2 of .* has rollouts 0 to 11"),
        (["--methods=grpo,nope"], ValueError, "credit method 'nope' is unknown: allowed are"),
        (["--methods=grpo,hgpo+vict"], ValueError, "'hgpo.vict' is refused"),
        (["--methods=grpo,grpo"], ValueError, "must name one method or more, each once"),
        (["--methods=,"], ValueError, "must name one method or more"),
        (
            ["--methods=gae"],
            ValueError,
            r"'gae' needs \['value'\], which only a run of .* logs; update 2 of .* has none",
        ),
        (["--workdir=/no/such/run"], RunError, "--workdir=/no/such/run holds no run"),
    ],
)
def test_what_is_wrong_is_named(run, change, error, message):
    with pytest.raises(error, match=message):
        compare.main([f"--workdir={run[0]}", "--methods=grpo", *change])


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--methods=grpo"], "one of the arguments --workdir --env is required"),
        (["--workdir=x", "--methods=grpo", "--rollouts=8"], "--rollouts has no effect with --workdir"),
        (
            ["--env=alfworld", "--methods=grpo", "--rollouts=8", "--update=1"],
            "--update has no effect with --env",
        ),
        (["--env=alfworld", "--methods=grpo"], "--env needs --rollouts N"),
        (["--env=alfworld", "--methods=grpo", "--rollouts=9"], "must be a multiple of --group-size 8"),
    ],
)
def test_arguments(argv, message, capsys):
    with pytest.raises(SystemExit):
        compare.main(argv)
    assert message in capsys.readouterr().err
