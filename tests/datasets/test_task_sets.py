"""Task sets: what is written is read back, in its order, and what does not fit is refused by name."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import pytest
import tensorflow_datasets as tfds

from envs.alfworld.domain import DOMAIN, AlfworldOptions
from envs.base import Domain, Task
from vict_jax.config import default_config, from_config_dict
from vict_jax.datasets import storage
from vict_jax.datasets.__main__ import main
from vict_jax.datasets.tasks import TaskSet, provenance, select, task_source, training_tasks
from vict_jax.job import describe
from vict_jax.task_order import task_digest

OPTIONS = AlfworldOptions(num_train=30, num_valid=5)
ARGUMENTS = ["--env=alfworld", "--option=num_train=30", "--option=num_valid=5"]


@pytest.fixture(scope="module")
def household(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Every generated task of `OPTIONS`, written by the command."""
    out = tmp_path_factory.mktemp("sets") / "household"
    main([*ARGUMENTS, f"--out={out}"])
    return out


def write(out: pathlib.Path, tasks: list[Task], domain: Domain = DOMAIN) -> None:
    """A task set of training tasks of `domain`."""
    splits = {"train": tasks}
    made_from = provenance("alfworld", domain, OPTIONS, splits)
    storage.write(TaskSet(data_dir=out, splits=splits, metadata=made_from))


def test_every_split_is_read_back_in_its_order(household: pathlib.Path) -> None:
    for split in DOMAIN.splits:
        assert list(task_source(household, split)) == list(DOMAIN.tasks(OPTIONS, split))


def test_access_is_that_of_a_sequence(household: pathlib.Path) -> None:
    source, tasks = task_source(household, "train"), DOMAIN.tasks(OPTIONS, "train")
    assert len(source) == 30
    assert source[7] == tasks[7]
    assert source[-2] == tasks[-2]
    assert source[4:20:5] == tasks[4:20:5]
    for index in (30, -31):
        with pytest.raises(IndexError, match=f"task {index} of 30"):
            source[index]


def test_any_text_survives(tmp_path: pathlib.Path) -> None:
    odd = [
        Task("a\0", "", "train", -(2**63), 'quoted "text"\n\t'),
        Task("b", "Übung 😀", "train", 2**63 - 1, "x" * 20_000 + "\0"),
    ]
    write(tmp_path, odd)
    assert list(task_source(tmp_path, "train")) == odd


def test_other_programs_read_it_without_this_one(household: pathlib.Path) -> None:
    builder = tfds.builder_from_directory(household / "task_set" / "1.0.0")
    first = DOMAIN.tasks(OPTIONS, "valid_seen")[0]
    assert builder.as_data_source(split="valid_seen")[0]["id"].decode() == first.id
    assert builder.info.metadata["options"]["num_train"] == 30


def test_ids_choose_tasks_and_their_order(tmp_path: pathlib.Path) -> None:
    train, valid = (DOMAIN.tasks(OPTIONS, split) for split in ("train", "valid_seen"))
    chosen = [train[9], valid[2], train[3]]
    (tmp_path / "ids.txt").write_text("".join(f"{task.id}\n" for task in chosen))
    main([*ARGUMENTS, f"--ids={tmp_path / 'ids.txt'}", f"--out={tmp_path}"])
    assert list(task_source(tmp_path, "train")) == [train[9], train[3]]
    assert list(task_source(tmp_path, "valid_seen")) == [valid[2]]
    with pytest.raises(ValueError, match=r"split='valid_unseen' is not one of \['train', 'valid_seen'\]"):
        task_source(tmp_path, "valid_unseen")
    assert training_tasks(tmp_path, "alfworld", DOMAIN, OPTIONS, "train") == [train[9], train[3]]


@pytest.mark.parametrize(
    ("splits", "ids", "message"),
    [
        (["train"], ["nobody"], r"no task 'nobody' in \['train'\]"),
        (["train"], ["train/pick_and_place_simple/0"] * 2, "'train/pick_and_place_simple/0' is given twice"),
        (["test"], None, "split 'test' is not one of"),
    ],
)
def test_what_there_is_not_cannot_be_chosen(splits: list[str], ids: list[str] | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        select(DOMAIN, OPTIONS, splits, ids)


def test_a_set_is_never_overwritten(household: pathlib.Path) -> None:
    with pytest.raises(FileExistsError, match="exists already"):
        main([*ARGUMENTS, f"--out={household}"])


def test_arguments_without_effect_are_refused(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for wrong in ([*ARGUMENTS, "--updates=1:2"], [f"--workdir={tmp_path}", "--split=train"]):
        with pytest.raises(SystemExit):
            main([*wrong, f"--out={tmp_path}"])
        assert "has no effect with" in capsys.readouterr().err


def manifest(checksum: str) -> Domain:
    """The household with a data file of this checksum."""

    def files(options: Any, splits: Any) -> Mapping[str, str]:
        return {"games.zip": checksum}

    return dataclasses.replace(DOMAIN, manifest=files)


def test_a_set_of_other_data_is_refused_by_the_name_of_the_file(tmp_path: pathlib.Path) -> None:
    write(tmp_path, list(DOMAIN.tasks(OPTIONS, "train")), manifest("aa"))
    assert len(training_tasks(tmp_path, "alfworld", manifest("aa"), OPTIONS, "train")) == 30
    with pytest.raises(ValueError, match=r"data games\.zip: 'aa' -> 'bb'"):
        training_tasks(tmp_path, "alfworld", manifest("bb"), OPTIONS, "train")
    with pytest.raises(ValueError, match=r"data games\.zip: 'aa' -> None"):
        training_tasks(tmp_path, "alfworld", DOMAIN, OPTIONS, "train")


def test_a_set_of_other_options_tasks_or_environment_is_refused_by_name(household: pathlib.Path) -> None:
    other = dataclasses.replace(OPTIONS, seed=1, min_things=3)
    with pytest.raises(ValueError, match=r"env\.seed: 0 -> 1\n  env\.min_things: 4 -> 3\n  all tasks"):
        training_tasks(household, "alfworld", DOMAIN, other, "train")
    with pytest.raises(ValueError, match=r"environment: 'alfworld' -> 'examples\.refunds'"):
        training_tasks(household, "examples.refunds", DOMAIN, OPTIONS, "train")
    fewer = dataclasses.replace(DOMAIN, tasks=lambda options, split: DOMAIN.tasks(options, split)[1:])
    with pytest.raises(ValueError, match=r"all tasks of train: {'count': 30.*-> {'count': 29"):
        training_tasks(household, "alfworld", fewer, OPTIONS, "train")


def test_data_may_lie_elsewhere(household: pathlib.Path) -> None:
    """Tasks are the environment's own, so that those of files are found where they are now."""

    def tasks(options: Any, split: str) -> list[Task]:
        return [dataclasses.replace(task, source="/moved") for task in DOMAIN.tasks(OPTIONS, split)]

    moved = dataclasses.replace(DOMAIN, tasks=tasks, manifest=lambda options, splits: {})
    found = training_tasks(household, "alfworld", moved, dataclasses.replace(OPTIONS, data_dir="x"), "train")
    assert {task.source for task in found} == {"/moved"}


def test_a_run_notes_the_set_that_it_trains_on(tmp_path: pathlib.Path) -> None:
    tasks = list(DOMAIN.tasks(OPTIONS, "train"))[4:8]
    write(tmp_path, tasks)
    config = default_config("alfworld")
    config.env.update(num_train=30, num_valid=5)
    config.train.task_set = str(tmp_path)
    said = describe(from_config_dict(config), DOMAIN)["tasks"]
    assert said["of train.task_set"] == task_digest(tasks)
    assert said["train"]["count"] == 30


@pytest.mark.parametrize(
    ("pattern", "keep", "message"),
    [
        ("*.array_record*", 0, "record 0 of split 'train' of .* cannot be read"),
        ("*.array_record*", 70_000, "record 0 of split 'train' of .* cannot be read"),
        ("features.json", 40, "the description of .* is damaged"),
        ("dataset_info.json", 40, "the description of .* is damaged"),
        ("metadata.json", 40, "the description of .* is damaged"),
    ],
)
def test_damage_is_told(tmp_path: pathlib.Path, pattern: str, keep: int, message: str) -> None:
    write(tmp_path, list(DOMAIN.tasks(OPTIONS, "train")))
    [path] = (tmp_path / "task_set" / "1.0.0").glob(pattern)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(storage.DamagedError, match=message):
        task_source(tmp_path, "train")[0]


@pytest.mark.parametrize("pattern", ["*.array_record*", "features.json", "metadata.json"])
def test_a_lost_file_is_told(tmp_path: pathlib.Path, pattern: str) -> None:
    write(tmp_path, list(DOMAIN.tasks(OPTIONS, "train")))
    [path] = (tmp_path / "task_set" / "1.0.0").glob(pattern)
    path.unlink()
    with pytest.raises(storage.DamagedError, match=r"is damaged|cannot be read"):
        task_source(tmp_path, "train")[0]


def test_a_directory_without_a_set_is_named(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match="holds no task_set"):
        task_source(tmp_path, "train")
