"""The household domain: options, task lists, the environment's protocol, texts for the tokenizer."""

from __future__ import annotations

import pathlib
import pickle
import subprocess
import sys
import tomllib

import pytest

from envs.alfworld import domain
from envs.alfworld.domain import DOMAIN, AlfworldEnv, AlfworldOptions
from envs.alfworld.game import TASK_TYPES


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"engine": "unity"}, "engine='unity' is not one of"),
        ({"text_version": "old"}, "text_version='old' is not one of"),
        ({"task_types": ("pick_three",)}, "must be a non-empty selection"),
        ({"task_types": ()}, "must be a non-empty selection"),
        ({"max_steps": 0}, "max_steps=0 must be at least 1"),
        ({"num_valid": 0}, "num_valid=0 must be from 1"),
        ({"num_train": 10**9}, "num_train=1000000000, num_valid=60 must be from 1"),
        ({"seed": -1}, "seed=-1 must be in"),
        ({"max_things": 2}, "max_things=2"),
    ],
)
def test_wrong_options(values, message):
    with pytest.raises(ValueError, match=message):
        AlfworldOptions(**values)


def test_generated_tasks_are_a_sequence():
    options = AlfworldOptions(num_train=10**7, num_valid=7)
    tasks = domain.tasks(options, "train")
    assert len(tasks) == 10**7
    assert tasks[-1] == tasks[10**7 - 1]
    assert tasks[2:4] == [tasks[2], tasks[3]]
    assert [task.type for task in tasks[:6]] == list(TASK_TYPES)
    with pytest.raises(IndexError):
        tasks[10**7]
    valid = list(domain.tasks(options, "valid_seen"))
    assert len(valid) == 7
    with pytest.raises(ValueError, match="real games need data_dir"):
        domain.tasks(options, "valid_train")


def test_tasks_of_all_splits_and_seeds_are_distinct_and_stable():
    groups = [domain.tasks(AlfworldOptions(seed=s), split)[:60] for s in (0, 1) for split in DOMAIN.splits]
    tasks = [task for group in groups for task in group]
    assert len({task.id for task in tasks}) == len({task.seed for task in tasks}) == len(tasks)
    assert tasks[0].id == "train/pick_and_place_simple/0"
    assert list(domain.tasks(AlfworldOptions(num_train=9), "train")) == tasks[:9], "the count changes no task"


def test_real_tasks(shared_dir):
    options = AlfworldOptions(
        data_dir=str(shared_dir / "data" / "alfworld"), task_types=("look_at_obj_in_light",)
    )
    tasks = domain.tasks(options, "valid_seen")
    assert [task.type for task in tasks] == ["look_at_obj_in_light"] * len(tasks)
    assert tasks
    env = AlfworldEnv(options)
    assert "Your task is to:" in env.reset(tasks[0]).text


def test_an_episode_ends_at_the_cap_or_with_the_win():
    options = AlfworldOptions(max_steps=3)
    env = DOMAIN.make(options)
    task = domain.tasks(options, "train")[0]
    first = env.reset(task)
    assert "Your task is to:" in first.text
    results = [env.step("fly to the moon") for _ in range(3)]
    assert [r.done for r in results] == [False, False, True]
    assert {r.observation.text for r in results} == {"Nothing happens."}
    assert results[0].info == {"valid": False, "won": False}
    assert results[0].observation.admissible == first.admissible
    assert env.record().score == 0.0
    env = DOMAIN.make(AlfworldOptions())
    env.reset(task)
    result = env.step(env.expert_action())
    while not result.done:
        result = env.step(env.expert_action())
    assert result.info == {"valid": True, "won": True}
    assert env.record().score == 1.0
    assert len(env.record().commits) < 50


def test_resets_are_independent():
    """Another episode in between leaves no trace."""
    options = AlfworldOptions()
    tasks = domain.tasks(options, "train")[:2]

    def play(env, task):
        texts, result = [env.reset(task).text], None
        while result is None or not result.done:
            result = env.step(env.expert_action())
            texts.append(result.observation.text)
        return texts, env.record().evidence

    env = AlfworldEnv(options)
    first = play(env, tasks[0])
    play(env, tasks[1])
    assert play(env, tasks[0]) == first == play(AlfworldEnv(options), tasks[0])


def test_corpus_covers_what_is_said():
    options = AlfworldOptions(num_train=30)
    texts = domain.corpus(options)
    assert texts == domain.corpus(options)
    everything = "\n".join(texts)
    for words in ("Your task is to: ", "You arrive at ", "go to ", "take ", "move ", "use "):
        assert words in everything


def test_domain_and_options_travel_to_workers():
    assert pickle.loads(pickle.dumps((DOMAIN, AlfworldOptions()))) == (DOMAIN, AlfworldOptions())


def test_field_report_27_the_household_needs_no_native_package():
    """Neither the required packages nor a game ask for the original engine, which needs a compiler."""
    root = pathlib.Path(__file__).resolve().parents[2]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    native = ("textworld", "alfworld", "fast_downward", "tatsu")
    assert not [need for need in project["dependencies"] if need.startswith(native)]
    program = f"""
import sys
sys.modules.update(dict.fromkeys({native}))  # an import of one of them fails
from envs.lookup import environment
domain, options = environment("alfworld")
env = domain.make(options(num_train=1))
task = domain.tasks(options(num_train=1), "train")[0]
env.reset(task)
while not env.step(env.expert_action()).done:
    pass
print(env.record().score)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "1.0", done.stderr
