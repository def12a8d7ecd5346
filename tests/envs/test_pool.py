"""The pool: same answers whatever the number of workers, and no failure takes anything else along."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from envs.base import StepResult
from envs.pool import EnvPool
from envs.worker import Fault, FaultKind
from tests.audit import failing
from tests.envs import toy_env
from tests.envs.toy_env import DOMAIN, ToyOptions

OPTIONS = ToyOptions()
TASKS = DOMAIN.tasks(OPTIONS, "train")
ROOT = pathlib.Path(__file__).resolve().parents[2]


def open_pool(workers=2, options=OPTIONS, timeout_s=1.0, domain=DOMAIN, **more):
    return EnvPool(domain, options, workers=workers, timeout_s=timeout_s, grace_s=1.0, **more)


def alive(pid):
    """Whether any thread of a process is more than a zombie."""
    try:
        stats = [path.read_text() for path in pathlib.Path(f"/proc/{pid}/task").glob("*/stat")]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return any(stat.rpartition(")")[2].split()[0] not in "ZX" for stat in stats)


def wait_until_gone(pids, seconds=10.0):
    end = time.monotonic() + seconds
    while any(map(alive, pids)) and time.monotonic() < end:
        time.sleep(0.02)
    return [pid for pid in pids if alive(pid)]


def play(pool, slots):
    """Expert episodes in all slots; every text, validity and record that came back."""
    seen = {slot: [observation.text] for slot, observation in pool.reset(dict(slots)).items()}
    active = list(seen)
    while active:
        results = pool.step(pool.expert(active))
        for slot, result in results.items():
            seen[slot].append((result.observation, result.done, result.info["valid"]))
        active = [slot for slot in active if not results[slot].done]
    for slot, record in pool.record(seen).items():
        seen[slot].append((record.score, record.status.tolist(), record.evidence, record.commits.tolist()))
    return seen


@pytest.mark.parametrize("workers", [1, 3])
def test_answers_do_not_depend_on_the_number_of_workers(workers):
    slots = {slot: TASKS[slot] for slot in (7, 0, 3, 11, 4)}
    with open_pool(0) as pool:
        expected = play(pool, slots)
    with open_pool(workers) as pool:
        actual = play(pool, slots)
        assert list(actual) == [7, 0, 3, 11, 4]
        assert len(pool.pids) == workers
    assert actual == expected
    assert all(rows[-1][0] == 1.0 for rows in actual.values())


def test_field_report_30_slots_are_spread_over_processes_that_import_no_jax():
    with open_pool(2) as pool:
        pool.reset({slot: TASKS[slot] for slot in range(4)})
        results = pool.step(dict.fromkeys(range(4), "next door"))
        owners = [results[slot].info["pid"] for slot in range(4)]
        assert owners == [pool.pids[slot % 2] for slot in range(4)]
        assert os.getpid() not in owners
        assert not any(result.info["jax"] for result in results.values())
        # The kernel takes them first when memory runs out.
        scores = {pathlib.Path(f"/proc/{pid}/oom_score_adj").read_text() for pid in pool.pids}
        assert scores == {"1000\n"}


FAILURES = [
    ("raise", FaultKind.ERROR, "told to raise", 0),
    ("bad answer", FaultKind.ERROR, "cannot pickle", 0),
    ("sleep", FaultKind.TIMEOUT, "no answer within 1.0 s", 0),
    ("hang", FaultKind.TIMEOUT, "worker hung", 1),
    ("die", FaultKind.ERROR, "exit status -9, as when memory runs out", 1),
    ("exit", FaultKind.ERROR, "exit status 3", 1),
    ("bloat", FaultKind.ERROR, "MemoryError", 0),
]


@pytest.mark.parametrize(("action", "kind", "message", "replaced"), FAILURES, ids=[f[0] for f in FAILURES])
def test_a_failure_ends_its_slot_and_nothing_else(action, kind, message, replaced):
    with open_pool(0) as pool:
        expected = play(pool, dict(enumerate(TASKS[:6])))
    with open_pool(2) as pool:
        start = pool.reset(dict(enumerate(TASKS[:6])))
        seen = {slot: [observation.text] for slot, observation in start.items()}
        active, failed = list(seen), {}
        for turn in range(OPTIONS.max_steps):
            actions = pool.expert(active)
            if turn == 2:
                actions[2] = action
            for slot, result in pool.step(actions).items():
                if isinstance(result, Fault):
                    failed[slot] = result
                else:
                    seen[slot].append((result.observation, result.done, result.info["valid"]))
            active = [slot for slot in active if slot not in failed and not seen[slot][-1][1]]
            if not active:
                break
        assert list(failed) == [2]
        assert failed[2].kind is kind
        assert message in failed[2].message
        assert {slot: rows for slot, rows in seen.items() if slot != 2} == {
            slot: rows[:-1] for slot, rows in expected.items() if slot != 2
        }
        assert pool.counts.replaced == replaced
        assert (pool.counts.timeouts, pool.counts.errors) == ((1, 0) if kind is FaultKind.TIMEOUT else (0, 1))
        assert len(pool.pids) == 2
        # The slot is empty now, and as good as new after a reset.
        with pytest.raises(ValueError, match="slot 2 has no running episode"):
            pool.step({2: "next door"})


def test_a_failed_slot_is_as_good_as_new_after_a_reset():
    with open_pool(1) as pool:
        pool.reset({0: TASKS[0], 1: TASKS[1]})
        assert isinstance(pool.step({0: "exit"})[0], Fault)
        again = play(pool, {0: TASKS[0]})
    with open_pool(0) as pool:
        assert again == play(pool, {0: TASKS[0]})


def test_several_culprits_in_one_worker():
    with open_pool(1) as pool:
        pool.reset(dict(enumerate(TASKS[:5])))
        results = pool.step({0: "die", 1: "next door", 2: "raise", 3: "hang", 4: "next door"})
        kinds = {slot: result.kind for slot, result in results.items() if isinstance(result, Fault)}
        assert kinds == {0: FaultKind.ERROR, 2: FaultKind.ERROR, 3: FaultKind.TIMEOUT}
        assert [results[slot].observation.text for slot in (1, 4)] == ["You are at door 1."] * 2
        assert pool.counts.replaced == 2


def test_a_worker_killed_between_calls_loses_nothing():
    with open_pool(2) as pool:
        pool.reset(dict(enumerate(TASKS[:4])))
        pool.step(dict.fromkeys(range(4), "next door"))
        lost = pool.pids[1]
        os.kill(lost, signal.SIGKILL)
        assert wait_until_gone([lost]) == []
        results = pool.step(dict.fromkeys(range(4), "next door"))
        assert [results[slot].observation.text for slot in range(4)] == ["You are at door 2."] * 4
        assert lost not in pool.pids
        assert (pool.counts.errors, pool.counts.replaced) == (0, 1)


@pytest.mark.parametrize("workers", [0, 2])
def test_questions_are_answered_later_and_one_at_a_time(workers):
    with open_pool(workers) as pool, open_pool(0) as other:
        for one in (pool, other):
            one.reset(dict(enumerate(TASKS[:4])))
        asked = dict.fromkeys((3, 0, 2), "next door")
        pool.ask(asked)
        with pytest.raises(ValueError, match=r"answers\(\) of slots \[3, 0, 2\] must be taken"):
            pool.step({1: "next door"})
        answers = pool.answers()
        assert list(answers) == [3, 0, 2]
        expected = other.step(asked)
        assert [one.observation for one in answers.values()] == [one.observation for one in expected.values()]
        with pytest.raises(ValueError, match="without ask"):
            pool.answers()


def test_an_episode_that_cannot_be_repeated_is_an_error():
    with open_pool(1, ToyOptions(fickle=True)) as pool:
        pool.reset(dict(enumerate(TASKS[:3])))
        pool.step({1: "next door"})  # its text after one step is the same every time
        results = pool.step({0: "exit", 1: "next door"})
        assert results[1].observation.text == "You are at door 2."
        lost = pool.step({2: "next door"})[2]  # not part of the failing call: told at the next one
        assert isinstance(lost, Fault)
        assert "went differently" in lost.message


def test_a_reset_that_raises():
    with open_pool(1, ToyOptions(unlucky=True)) as pool:
        results = pool.reset({0: TASKS[13], 1: TASKS[1]})
        assert isinstance(results[0], Fault)
        assert "seed 13 is unlucky" in results[0].message
        assert isinstance(pool.step({1: "next door"})[1], StepResult)


def test_replacement_is_bounded():
    with open_pool(1, max_replacements=2) as pool:
        pool.reset(dict(enumerate(TASKS[:6])))
        pids = pool.pids
        with pytest.raises(RuntimeError, match=r"replaced 2 times in a row .*exit status -9"):
            pool.step(dict.fromkeys(range(6), "die"))
        with pytest.raises(ValueError, match="closed"):
            pool.step({0: "next door"})
    assert wait_until_gone(pids) == []
    deadly = dataclasses.replace(DOMAIN, make=toy_env.make_deadly)
    with (
        open_pool(1, domain=deadly, max_replacements=1) as pool,
        pytest.raises(RuntimeError, match="exit status 5"),
    ):
        pool.reset(dict(enumerate(TASKS[:6])))


def test_a_worker_that_cannot_start_says_why():
    class Options:
        """Not importable by the worker."""

    Options.__qualname__, Options.__module__ = "Gone", "no_such_module"
    sys.modules["no_such_module"] = type(sys)("no_such_module")
    sys.modules["no_such_module"].Gone = Options
    try:
        with pytest.raises(RuntimeError, match="No module named 'no_such_module'"):
            open_pool(2, Options())
    finally:
        del sys.modules["no_such_module"]


def test_a_close_that_fails_is_reported_and_harms_nobody(capfd):
    with open_pool(1, ToyOptions(clumsy=True)) as pool:
        pool.reset(dict(enumerate(TASKS[:2])))
        assert isinstance(pool.step({0: "raise"})[0], Fault)
        assert isinstance(pool.step({1: "next door"})[1], StepResult)
    assert capfd.readouterr().err.count("RuntimeError: cannot close") == 2


def test_closing_ends_the_workers():
    with open_pool(2) as pool:
        pool.reset(dict(enumerate(TASKS[:4])))
        pids = pool.pids
        assert all(map(alive, pids))
    assert wait_until_gone(pids, 0.0) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_orphans_when_the_parent_is_ended_in_the_middle_of_a_step(number):
    program = """
from envs.pool import EnvPool
from tests.envs.toy_env import DOMAIN, ToyOptions
options = ToyOptions()
with EnvPool(DOMAIN, options, workers=2, timeout_s=60) as pool:
    pool.reset(dict(enumerate(DOMAIN.tasks(options, "train")[:4])))
    print(*pool.pids, flush=True)
    pool.step({0: "hang", 1: "sleep"})
"""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", program]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, text=True
    ) as parent:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        time.sleep(0.1)
        assert len(pids) == 2
        assert all(map(alive, pids))
        parent.send_signal(number)
        assert parent.wait(10) != 0
        assert wait_until_gone(pids) == []


@pytest.mark.parametrize(
    ("name", "value"), [("workers", -1), ("timeout_s", 0.0), ("max_replacements", -1), ("start_s", -2.0)]
)
def test_arguments_are_checked(name, value):
    arguments = {"workers": 0, "timeout_s": 1.0} | {name: value}
    with pytest.raises(ValueError, match=f"{name} must be .*{value}"):
        EnvPool(DOMAIN, OPTIONS, **arguments)


def test_slots_are_checked():
    with open_pool(0) as pool:
        with pytest.raises(ValueError, match="not negative"):
            pool.reset({-1: TASKS[0]})
        with pytest.raises(ValueError, match="slot 5 has no running episode"):
            pool.expert([5])


@pytest.mark.parametrize("workers", [0, 1])
def test_a_score_that_is_no_number_is_refused_by_task_and_environment(workers):
    options = failing.Options(fails="score")
    task = failing.DOMAIN.tasks(options, "train")[0]
    with EnvPool(failing.DOMAIN, options, workers=workers, timeout_s=20.0) as pool:
        pool.reset({0: task})
        answer = pool.record([0])[0]
    assert answer.kind is FaultKind.ERROR
    assert "VerifierRecord.score=nan and eta=0.0 are not allowed: both must be finite" in answer.message
    assert answer.message.endswith(f"in record of environment 'failing', task {task.id!r}")
