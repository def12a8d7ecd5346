"""The worked example: its score, its statuses by hand, and a run of it as a user's own module."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest

from configs import example
from envs.base import Status, StepResult
from examples.refunds import DOMAIN, Options, RefundDesk, mutations, tasks, walk
from vict_jax.config import from_config_dict, from_plain, to_plain

ROOT = pathlib.Path(__file__).resolve().parents[2]
UNKNOWN, YES, NO, VIOLATED = Status.UNKNOWN, Status.SATISFIED, Status.UNSATISFIED, Status.VIOLATED
TINY = """
from vict_jax.config import default_config

def get_config():
    config = default_config("my_desk")
    config.env.update(num_train=8, num_valid=2, workers=1)
    config.model.update(vocab_size=400, num_layers=1, d_model=16, num_heads=1, num_kv_heads=1)
    config.model.update(head_dim=16, d_ff=32)
    config.rollout.update(context="append", list_admissible=False, max_context=512, max_new_tokens=6, rows=4)
    config.warm_start.update(tasks=4, epochs=1)
    config.train.update(updates=1, groups=1, rollouts=2, eval_every=1)
    config.ppo.update(micro_rows=2)
    config.eval.update(batch=2)
    return config.lock()
"""


def desk(orders: dict[str, tuple[str, str]], wanted: list[str]) -> RefundDesk:
    """A desk with given orders and returned things."""
    made = RefundDesk(Options())
    made.reset(tasks(Options(), "train")[0])
    made.orders, made.wanted = orders, wanted
    made.history = [made.evidence()]
    return made


def play(made: RefundDesk, *actions: str) -> StepResult:
    return [made.step(action) for action in actions][-1]


ORDERS = {"lamp": ("used", "cash"), "mug": ("sealed", "card"), "rug": ("used", "card")}


@pytest.mark.parametrize(
    ("actions", "score"),
    [
        (("open lamp", "refund to credit", "open mug", "refund to card", "close ticket"), 1.0),
        (("open mug", "refund to card", "open lamp", "refund to credit", "close ticket"), 1.0),
        (("open lamp", "refund to credit", "close ticket"), 0.5),
        (("open lamp", "refund to cash", "open mug", "refund to card", "close ticket"), 0.5),
        (("open lamp", "refund to credit", "open mug", "refund to card"), 0.0),
        (("open rug", "refund to credit", "open lamp", "refund to credit", "close ticket"), 0.0),
        (("close ticket",), 0.0),
    ],
)
def test_score(actions: tuple[str, ...], score: float) -> None:
    made = desk(ORDERS, ["lamp", "mug"])
    play(made, "list orders", *actions)
    record = made.record()
    assert record.score == score
    assert float(DOMAIN.aggregate(record.status[-1] == YES, record.params)) == score


def test_statuses_evidence_and_commits_by_hand() -> None:
    made = desk(ORDERS, ["mug"])
    play(made, "refund to card", "list orders", "open mug", "refund to cash", "open rug")
    play(made, "refund to credit", "close ticket")
    record = made.record()
    assert [atom.id for atom in record.atoms] == [
        "orders_listed",
        "order_read_1",
        "refunded_1",
        "nothing_else",
        "ticket_closed",
    ]
    expected = [
        [UNKNOWN, UNKNOWN, UNKNOWN, YES, NO],
        [UNKNOWN, UNKNOWN, UNKNOWN, YES, NO],  # no order was open
        [YES, UNKNOWN, UNKNOWN, YES, NO],
        [YES, YES, NO, YES, NO],
        [YES, YES, VIOLATED, YES, NO],  # the mug was paid by card
        [YES, YES, VIOLATED, YES, NO],
        [YES, YES, VIOLATED, VIOLATED, NO],  # nobody returned the rug
        [YES, YES, VIOLATED, VIOLATED, YES],
    ]
    np.testing.assert_array_equal(record.status, expected)
    assert record.evidence[3] == ("listed", "sealed card", "none", "none", "open")
    assert record.evidence[-1] == ("listed", "sealed card", "cash", "rug", "closed")
    assert record.commits.tolist() == [False] * 6 + [True]
    assert record.scope[-1].tolist() == [False, False, True, False, True]
    assert not record.scope[:-1].any()


def test_what_the_desk_refuses_changes_nothing() -> None:
    made = desk(ORDERS, ["lamp"])
    for action in ("open lamp", "refund to credit", "", "list", "open the lamp"):
        assert made.step(action).info == {"valid": False}
    play(made, "list orders", "open lamp", "refund to credit")
    assert made.step("refund to cash").info == {"valid": False}  # paid back once
    assert made.refunds == {"lamp": "credit"}


def test_the_expert_wins_and_every_mutation_loses() -> None:
    options = Options()
    for task in tasks(options, "valid"):
        made, actions, _ = walk(options, task)
        assert made.score() == 1
        assert len(actions) in (4, 6, 8)
        for name, script in mutations(options, task).items():
            made.reset(task)
            play(made, *script)
            assert made.score() < 1, name


@pytest.mark.parametrize("orders", [3, 9])
def test_options_say_what_is_allowed(orders: int) -> None:
    with pytest.raises(ValueError, match=f"orders={orders} must be from 4 to 8"):
        Options(orders=orders)


def test_the_config_keeps_the_name_of_the_module() -> None:
    config = from_config_dict(example.get_config())
    assert (config.train.split, config.eval.split) == ("train", "valid")
    assert to_plain(config)["env"]["name"] == "examples.refunds"
    assert from_plain(to_plain(config)) == config
    assert isinstance(config.env.options, Options)


def test_a_module_beside_the_user_is_trained_resumed_and_evaluated(tmp_path: pathlib.Path) -> None:
    """The module is in the current directory only, so workers and later commands must find it there."""
    shutil.copy(ROOT / "examples" / "refunds.py", tmp_path / "my_desk.py")
    (tmp_path / "config.py").write_text(TINY)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def command(*arguments: str, expect: int = 0, cwd: pathlib.Path = tmp_path) -> str:
        done = subprocess.run(
            [sys.executable, "-m", *arguments], cwd=cwd, env=environment, capture_output=True, text=True
        )
        assert done.returncode == expect, done.stdout + done.stderr
        return done.stdout + done.stderr

    train = ("launch.local", "--config=config.py", "--workdir=run")
    assert "environment  refunds: 8 training tasks" in command(*train)
    command(*train, "--config.train.updates=2", expect=1)  # found, and refused: another config
    assert "success on valid" in command("launch.evaluate", "--workdir=run")
    elsewhere = command("launch.evaluate", f"--workdir={tmp_path / 'run'}", expect=1, cwd=ROOT)
    assert "there is no environment 'my_desk'" in elsewhere
    assert "start from the directory that holds the module" in elsewhere
