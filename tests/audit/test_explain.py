"""One rollout as text: what it says, that it fits the screen, and its errors."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.audit.logged import ODD_ACTION, SIZE, log_run, make_config
from vict_jax.audit import __main__ as command
from vict_jax.audit.explain import explain
from vict_jax.metrics import RunError


def credited(run):
    """(group, rollout) of some rollout with a correction, and its update's content."""
    update = run[1][1]
    (g, n, _), *_ = zip(*update.output.correction.nonzero(), strict=True)
    return int(g), int(n), update


def test_every_step_with_its_proof(run):
    g, n, update = credited(run)
    text = explain(run[0], 1, f"{g}/{n}")
    lines = text.splitlines()
    rollout, output = update.groups[g][n], update.output
    assert lines[0] == f"update 1, rollout {g * SIZE + n} ({g}/{n}: group {g}, rollout {n} of {SIZE})"
    assert lines[1] == f"task {rollout.task.id} ({rollout.task.type})"
    assert f"score {rollout.score:g}, ended by {rollout.end.value} after {len(rollout.actions)}" in lines[2]
    assert f"q = {'+1' if output.base[g, n, 0] > 0 else '-1'}" in lines[3]
    core = [a.id for a, inside in zip(rollout.record.atoms, output.proofs.core[g, n], strict=False) if inside]
    assert lines[3].endswith(f"core: {' + '.join(core)}")
    assert lines[4] == "does not abstain"
    table = lines[next(i for i, line in enumerate(lines) if line.startswith("step")) + 1 :]
    steps = [line for line in table if line[:4].strip()]
    assert len(steps) == len(rollout.actions)
    for t, line in enumerate(steps):
        assert line.split()[0] == str(t)
        assert line.split()[-1] == f"{output.advantages[g, n, t]:+.3f}"
        if output.correction[g, n, t]:
            assert f"{output.correction[g, n, t]:+.3f}" in line
            assert any(atom in line for atom in core)


def test_flat_and_group_index_name_the_same_rollout(run):
    assert explain(run[0], 1, str(SIZE + 2)) == explain(run[0], 1, "1/2")


def test_lines_fit_and_control_characters_do_not_reach_the_terminal(run):
    unseen = next(n for n, r in enumerate(run[1][1].groups[0]) if ODD_ACTION in r.actions)
    text = explain(run[0], 1, str(unseen))
    assert max(map(len, text.splitlines())) <= 110
    assert "(not seen) go\\x1b[31m to\\n" in text
    assert "…" in text
    assert all(line.isprintable() for line in text.splitlines())
    assert len(text.splitlines()) == len(text.split("\n"))


def test_abstention_and_lost_rollouts_say_why(run):
    update = run[1][1]
    cause = update.output.proofs.cause
    g, n = next((g, n) for g in range(2) for n in range(SIZE) if cause[g, n] and not update.groups[g][n].lost)
    assert "\nabstains: " in explain(run[0], 1, f"{g}/{n}")
    assert "ended by env_error" in explain(run[0], 1, f"1/{SIZE - 1}")


@pytest.mark.parametrize(
    ("update", "rollout", "message"),
    [
        (9, "0", r"no logged update at .*; updates 1 to 2 \(2 of them\) are logged"),
        (1, "12", r"there is no rollout 12: update 1 has rollouts 0 to 11, or 0/0 to 1/5"),
        (1, "2/0", r"there is no rollout 2/0"),
        (1, "0/6", r"there is no rollout 0/6"),
        (1, "-1", r"'-1' is not a number or GROUP/ROLLOUT"),
        (1, "1/2/3", r"is not a number or GROUP/ROLLOUT"),
    ],
)
def test_wrong_places_name_what_exists(run, update, rollout, message):
    with pytest.raises(RunError, match=message):
        explain(run[0], update, rollout)


def test_a_method_without_proofs_and_no_run_are_refused(tmp_path):
    with pytest.raises(RunError, match="holds no run"):
        explain(tmp_path, 1, "0")
    log_run(tmp_path / "run", make_config("grpo"), updates=1)
    with pytest.raises(RunError, match="credit method 'grpo' gives no proofs; there is nothing to explain"):
        explain(tmp_path / "run", 1, "0")


def test_the_command(run, capsys):
    assert command.main(["--explain", str(run[0]), "--update", "2", "--rollout", "3"]) == 0
    assert capsys.readouterr().out.startswith("update 2, rollout 3 (0/3")
    with pytest.raises(SystemExit):
        command.main(["--explain", str(run[0]), "--update", "2"])
    assert "--explain DIR needs --update U and --rollout R" in capsys.readouterr().err


def test_side_follows_the_tie_margin_of_the_run(run, tmp_path):
    """A rollout within the margin has no side, whatever its advantage."""
    shutil.copytree(run[0], tmp_path / "run")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    config["credit"]["eps_q"] = 100.0
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    g, n, _ = credited(run)
    assert "q = 0" in explain(tmp_path / "run", 1, f"{g}/{n}")
