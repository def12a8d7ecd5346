"""Imports of checkouts that are written here in the original's layout."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from envs.tau_bench import data, importer
from envs.tau_bench.data import TABLES

FLIGHT = {
    "flight_number": "HAT001",
    "origin": "JFK",
    "destination": "SEA",
    "scheduled_departure_time_est": "08:00:00",
    "scheduled_arrival_time_est": "11:00:00",
    "dates": {
        "2024-05-20": {
            "status": "available",
            "available_seats": {"basic_economy": 1, "economy": 2, "business": 3},
            "prices": {"basic_economy": 50, "economy": 100, "business": 300},
        }
    },
}
AIRLINE_USER = {
    "name": {"first_name": "Mia", "last_name": "Li"},
    "payment_methods": {"credit_card_1": {"source": "credit_card", "id": "credit_card_1"}},
    "reservations": ["AAAAAA"],
}
RESERVATION = {
    "reservation_id": "AAAAAA",
    "user_id": "mia_li_1",
    "cabin": "economy",
    "flights": [],
    "passengers": [],
    "payment_history": [{"payment_id": "credit_card_1", "amount": 100}],
    "total_baggages": 0,
    "nonfree_baggages": 0,
}
ORDER = {
    "order_id": "#W1",
    "user_id": "mia_li_1",
    "items": [],
    "status": "pending",
    "payment_history": [
        {"transaction_type": "payment", "amount": 10.5, "payment_method_id": "credit_card_1"},
    ],
}
DATABASES: dict[str, dict[str, Any]] = {
    "retail": {
        "orders": {"#W1": ORDER},
        "products": {"1": {"name": "Bücher", "product_id": "1", "variants": {}}},
        "users": {"mia_li_1": AIRLINE_USER},
    },
    "airline": {
        "flights": {"HAT001": FLIGHT},
        "reservations": {"AAAAAA": RESERVATION},
        "users": {"mia_li_1": AIRLINE_USER},
    },
}
CALLS = {
    "retail": ("cancel_pending_order", {"order_id": "#W1", "reason": "no longer needed"}),
    "airline": ("cancel_reservation", {"reservation_id": "AAAAAA"}),
}
SCHEMA = {"type": "function", "function": {"name": "think", "description": "A 'thought'.", "parameters": {}}}
SPLITS = {"retail": ("train", "dev", "test"), "airline": ("test",)}


def task_source(domain: str, splits_list: str, tasks: list[dict[str, Any]]) -> str:
    lines = ["from tau_bench.types import Task, Action", "", f"{splits_list} = ["]
    for task in tasks:
        actions = ", ".join(f"Action(name={c['name']!r}, kwargs={c['kwargs']!r})" for c in task["actions"])
        lines += [
            "    Task(",
            '        annotator="0",',
            f"        user_id={task['user_id']!r},",
            f"        instruction={task['instruction']!r},",
            f"        actions=[{actions}],",
            f"        outputs={task['outputs']!r},",
            "    ),",
        ]
    return "\n".join([*lines, "]", ""])


def tool_source(name: str, schema: dict[str, Any]) -> str:
    return (
        "class Tool:\n    pass\n\n\n"
        f"class {name}(Tool):\n    @staticmethod\n    def invoke(data):\n        raise SystemExit\n\n"
        f"    @staticmethod\n    def get_info():\n        return {schema!r}\n"
    )


def write_checkout(root: pathlib.Path, contents: dict[str, dict[str, Any]]) -> pathlib.Path:
    """A checkout with `contents`: domain -> tables, `tasks_<split>`, `tools`, `rules` and `wiki`."""
    for domain, content in contents.items():
        folder = root / "tau_bench" / "envs" / domain
        (folder / "data").mkdir(parents=True)
        (folder / "tools").mkdir()
        for table in TABLES[domain]:
            (folder / "data" / f"{table}.json").write_text(json.dumps(content[table]))
        for split in SPLITS[domain]:
            name = f"TASKS_{split.upper()}" if domain == "retail" else "TASKS"
            text = task_source(domain, name, content[f"tasks_{split}"])
            (folder / f"tasks_{split}.py").write_text(text, encoding="utf-8")
        (folder / "rules.py").write_text(f"rules = {content['rules']!r}\n", encoding="utf-8")
        (folder / "wiki.md").write_text(content["wiki"], encoding="utf-8")
        imports, names = [], []
        for i, schema in enumerate(content["tools"]):
            imports.append(f"from .tool_{i} import Tool{i}")
            names.append(f"Tool{i}")
            (folder / "tools" / f"tool_{i}.py").write_text(tool_source(f"Tool{i}", schema), encoding="utf-8")
        index = "\n".join([*imports, "", f"ALL_TOOLS = [{', '.join(names)}]", ""])
        (folder / "tools" / "__init__.py").write_text(index)
    return root


def small_contents() -> dict[str, dict[str, Any]]:
    contents = {}
    for domain, database in DATABASES.items():
        name, kwargs = CALLS[domain]
        task = {
            "user_id": "mia_li_1",
            "instruction": "You're Mia — cancel.",
            "actions": [{"name": name, "kwargs": kwargs}],
            "outputs": ["10.5"] if domain == "retail" else [],
        }
        tasks = {f"tasks_{split}": [task] for split in SPLITS[domain]}
        contents[domain] = {
            **database,
            **tasks,
            "tools": [SCHEMA],
            "rules": ["Be kind."],
            "wiki": "# Policy\n",
        }
    return contents


@pytest.fixture
def checkout(tmp_path: pathlib.Path) -> pathlib.Path:
    return write_checkout(tmp_path / "checkout", small_contents())


def edit(path: pathlib.Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def test_imported_files_are_loaded_as_they_were(checkout: pathlib.Path, tmp_path: pathlib.Path) -> None:
    manifest = importer.import_checkout(checkout, tmp_path / "out")
    bench = data.load(str(tmp_path / "out"), "retail")
    assert bench.database == DATABASES["retail"]
    assert {split: len(tasks) for split, tasks in bench.tasks.items()} == {"train": 1, "dev": 1, "test": 1}
    task = bench.tasks["test"][0]
    assert (task.user_id, task.instruction, task.outputs) == ("mia_li_1", "You're Mia — cancel.", ("10.5",))
    assert [(call.name, call.kwargs) for call in task.actions] == [CALLS["retail"]]
    assert (bench.policy, bench.rules, bench.tools) == ("# Policy\n", ["Be kind."], [SCHEMA])
    assert list(data.load(str(tmp_path / "out"), "airline").tasks) == ["test"]
    assert manifest["version"] == "unchecked"
    assert json.loads((tmp_path / "out" / "manifest.json").read_text()) == manifest


def test_another_version_is_refused_and_nothing_written(
    checkout: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    with pytest.raises(ValueError, match=r"retail_orders: 1 entries, expected 1000.*--any-version"):
        importer.import_checkout(checkout, tmp_path / "out", importer.KNOWN)
    assert not (tmp_path / "out").exists()


def test_one_changed_price_is_noticed(checkout: pathlib.Path) -> None:
    files = importer.read_domain(checkout, "retail")
    sums = {name: importer.content_sum(content) for name, content in files.items()}
    known = importer.Known({"orders": 1}, sums, "")
    importer.check_content("retail", files, known)
    edit(checkout / "tau_bench/envs/retail/data/orders.json", "10.5", "10.4")
    changed = importer.read_domain(checkout, "retail")
    with pytest.raises(ValueError, match=r"retail_orders\.json: another content"):
        importer.check_content("retail", changed, known)


def test_a_known_digest_that_differs_is_noticed(checkout: pathlib.Path, tmp_path: pathlib.Path) -> None:
    importer.import_checkout(checkout, tmp_path / "out")
    bench = data.load(str(tmp_path / "out"), "airline")
    with pytest.raises(ValueError, match="the original's has 00"):
        importer.check_plan(bench, "00")


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("tasks_test.py", "TASKS_TEST", "TASKS_OTHER", "does not assign TASKS_TEST"),
        ("tasks_test.py", "user_id='mia_li_1'", "user_id=f()", "line 6: expected a literal"),
        ("tasks_test.py", "Task(\n", "Job(\n", r"line 4: expected Task\(...\)"),
        ("tasks_test.py", "        user_id='mia_li_1',\n", "", "the task lacks"),
        ("tasks_test.py", "Task(\n", "Task((\n", "is no Python file"),
        ("tasks_test.py", "kwargs=", "arguments=", "an action needs name and kwargs"),
        ("tasks_test.py", "#W1", "#W2", "order not found"),
        ("tasks_test.py", "cancel_pending_order", "delete_order", "Unknown action delete_order"),
        ("data/users.json", "{", "", "is no JSON file"),
        ("rules.py", "rules", "laws", "does not assign rules"),
        ("tools/__init__.py", "[Tool0]", "(Tool0,)", "expected a list of tool classes"),
        ("tools/__init__.py", "[Tool0]", "[Tool1]", "the name of an imported class"),
        ("tools/tool_0.py", "get_info", "info", "no class Tool0 with a get_info"),
    ],
)
def test_each_fault_of_a_checkout_is_named(
    checkout: pathlib.Path, tmp_path: pathlib.Path, file: str, old: str, new: str, message: str
) -> None:
    edit(checkout / "tau_bench/envs/retail" / file, old, new)
    with pytest.raises(ValueError, match=message):
        importer.import_checkout(checkout, tmp_path / "out")


def test_a_plan_that_proves_nothing_is_refused(checkout: pathlib.Path, tmp_path: pathlib.Path) -> None:
    file = checkout / "tau_bench/envs/airline/tasks_test.py"
    edit(file, "cancel_reservation", "get_reservation_details")
    with pytest.raises(ValueError, match="1 known actions score"):
        importer.import_checkout(checkout, tmp_path / "out")


@pytest.mark.parametrize("file", ["data/products.json", "wiki.md", "rules.py", "tools/tool_0.py"])
def test_a_missing_file_is_named(checkout: pathlib.Path, tmp_path: pathlib.Path, file: str) -> None:
    (checkout / "tau_bench/envs/retail" / file).unlink()
    with pytest.raises(ValueError, match=file):
        importer.import_checkout(checkout, tmp_path / "out")


def test_the_command_says_why_it_fails(
    checkout: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert importer.main(["--checkout", str(tmp_path), "--out", str(out)]) == 1
    assert "must be a checkout of the tau-bench repository" in capsys.readouterr().err
    assert importer.main(["--checkout", str(checkout), "--out", str(out), "--any-version"]) == 0
    assert "16 files of version unchecked" in capsys.readouterr().out


def test_the_real_content_is_the_known_version(shared_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    source = shared_dir / "data" / "tau_bench"
    contents: dict[str, dict[str, Any]] = {}
    for domain in TABLES:
        names = [*TABLES[domain], *(f"tasks_{split}" for split in SPLITS[domain]), "tools", "rules"]
        contents[domain] = {name: data.read_json(source / f"{domain}_{name}.json") for name in names}
        contents[domain]["wiki"] = (source / f"{domain}_wiki.md").read_text(encoding="utf-8")
    write_checkout(tmp_path / "checkout", contents)
    manifest = importer.import_checkout(tmp_path / "checkout", tmp_path / "out", importer.KNOWN)
    assert manifest["version"] == importer.VERSION
    for domain in TABLES:
        ours, theirs = data.load(str(tmp_path / "out"), domain), data.load(str(source), domain)
        assert ours.database == theirs.database
        assert (ours.policy, ours.rules, ours.tools) == (theirs.policy, theirs.rules, theirs.tools)
