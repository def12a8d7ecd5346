"""Import of a checkout of the original benchmark.

    python -m envs.tau_bench.importer --checkout DIR --out DIR

Writes the JSON files that `data.load` reads, and `manifest.json` with what was imported. Nothing of the
checkout is executed: task lists, rules and tool schemas are read as literals from its Python files. Layout
read, below `tau_bench/envs/<domain>`: `data/<table>.json`, `tasks_<split>.py`, `rules.py`, `wiki.md`,
`tools/__init__.py` and one file for each tool. Source: github.com/sierra-research/tau-bench, MIT licence.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import hashlib
import json
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from envs.tau_bench import scoring
from envs.tau_bench.data import RESPOND, SPLITS, TABLES, Bench, Call, load, read_json
from envs.tau_bench.database import record_texts
from envs.tau_bench.session import STOP, Session


@dataclasses.dataclass(frozen=True)
class Known:
    """What one version of a domain holds.

    Attributes:
      counts: table, task split (`tasks_test`) or `tools` -> number of entries.
      sums: file name of the data directory -> `content_sum` of what is in it.
      digest: of the database after the ground truth of the first test task, by the original.
    """

    counts: Mapping[str, int]
    sums: Mapping[str, str]
    digest: str


VERSION = "59a200c6d575d595120f1cb70fea53cef0632f6b"
KNOWN: Mapping[str, Known] = {
    "retail": Known(
        counts={
            "orders": 1000,
            "products": 50,
            "users": 500,
            "tasks_train": 500,
            "tasks_dev": 20,
            "tasks_test": 115,
            "tools": 16,
        },
        sums={
            "retail_orders.json": "af98e9fd917b342ef3d675c398a5075b44acae9388aa7d36390695a9bab8ea3a",
            "retail_products.json": "83eb2cf14d9c4ad60ed30d1fa040ec8a16076547b2c74b43f96a60458868f7c5",
            "retail_rules.json": "bb4c3fd8cfc55a2859180f8e745d832f02e22073548b2ac7457c8a8db2380aab",
            "retail_tasks_dev.json": "da7357f241258fd8e8d339dc72998a69f0d47b5f89b23abfef5a44bc4af2f561",
            "retail_tasks_test.json": "e5fab942f9f7c4ae7c13945518432ef4fcdcea536b157ead3d3e1ff4e203cf58",
            "retail_tasks_train.json": "73c9a58f96879ff9aade98aab8ebb7eb92cc639ef002832d60e282dac7f546ec",
            "retail_tools.json": "670eba513010bd281a5e5acc872ca203703b1aa26e992d8f276bcf3ffe0bc603",
            "retail_users.json": "9357f363970c71f2aa9cee4641553b0d233b17c2f52a9aa8031a0bd573b4e4ac",
            "retail_wiki.md": "eeeb5e9dba227c2180db4c8611a9f5e3c093c0170691ffaef6a89dd64d50c90c",
        },
        digest="5ed21c65cf9e8d0c20ad0210721146bb6abad19bedce7c2e08472311dabbeec8",
    ),
    "airline": Known(
        counts={"flights": 300, "reservations": 2000, "users": 500, "tasks_test": 50, "tools": 14},
        sums={
            "airline_flights.json": "efa6d424f4c4b7850d1d2dbb030885cedef57f0820633c7d20bbf51958524cfb",
            "airline_reservations.json": "7fef0b814d74de6245ff26715469b2c02eebba21e8f382e4e1e5d2f86df82ad1",
            "airline_rules.json": "4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d8e11ba873c2f11161202b945",
            "airline_tasks_test.json": "cdc1ccee5d86c6d1f21d3c55df26cf92b5ada9da96729118c7d7180ab76f1a73",
            "airline_tools.json": "aa4c00d2b0ae4dcb6d38642e82062aa377f827dd887a44f57ffed6e20dec1904",
            "airline_users.json": "d664f2316f01611e30de845b402b88b036021fd956d93ab40ea4d52ccc81bbe3",
            "airline_wiki.md": "f2d741a1831d9c7d099c6ca670edfb5ae41bdc39dd772137d781a8d1eeef12ee",
        },
        digest="a825bc534ee4abad2f0f36d5d162989dcbae16dd509bd675feb7e9ffc86a1001",
    ),
}
# Name of the list in tasks_<split>.py.
_TASK_LISTS = {"retail": "TASKS_{split}", "airline": "TASKS"}


def content_sum(content: Any) -> str:
    """SHA-256 of JSON content or of a text, whatever the spacing or line ends of its file."""
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def read_domain(checkout: pathlib.Path, domain: str) -> dict[str, Any]:
    """File name of the data directory -> content, for one domain of a checkout.

    Raises:
      ValueError: a file is missing or not of the form that is expected, with its path and line.
    """
    folder = checkout / "tau_bench" / "envs" / domain
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder: --checkout must be a checkout of the tau-bench repository")
    files: dict[str, Any] = {f"{t}.json": read_json(folder / "data" / f"{t}.json") for t in TABLES[domain]}
    for split in SPLITS:
        path = folder / f"tasks_{split}.py"
        if path.is_file():
            files[f"tasks_{split}.json"] = _read_tasks(path, _TASK_LISTS[domain].format(split=split.upper()))
    files["tools.json"] = _read_tools(folder / "tools")
    files["rules.json"] = _literal(_assigned(folder / "rules.py", "rules"), folder / "rules.py")
    files["wiki.md"] = _source(folder / "wiki.md")
    return {f"{domain}_{name}": content for name, content in files.items()}


def check_content(domain: str, files: Mapping[str, Any], known: Known) -> None:
    """Hold what was read to a known version. Raises ValueError naming all that differs."""
    faults = []
    for name, expected in known.counts.items():
        found = len(files.get(f"{domain}_{name}.json", ()))
        if found != expected:
            faults.append(f"{domain}_{name}: {found} entries, expected {expected}")
    for name, expected_sum in known.sums.items():
        if name in files and content_sum(files[name]) != expected_sum:
            faults.append(f"{name}: another content than in the known version")
    if faults:
        raise ValueError(
            f"the checkout's {domain} data are not those of version {VERSION[:7]}: {'; '.join(faults)}. "
            f"Check out that version, or import this one with --any-version; scores then do not compare."
        )


def check_plan(bench: Bench, digest: str | None) -> None:
    """Play the ground truth of the first test task: no call may fail, it must score 1, and doing nothing 0.

    Args:
      digest: what the original's database amounts to after it; None if it is not known.

    Raises:
      ValueError: one of these does not hold, or there is no test task with ground truth.
    """
    task = bench.tasks.get("test", [None])[0]
    if task is None or not task.actions:
        raise ValueError(f"the first {bench.domain} test task has no ground truth to check the import with")
    replies = [Call(RESPOND, {"content": " ".join(task.outputs)})]
    for calls, expected in (((*task.actions, *replies), 1.0), ((Call(RESPOND, {"content": ""}),), 0.0)):
        session = Session(bench, _Leaving())
        session.reset(task)
        texts = [session.step(call.name, call.kwargs).text for call in calls]
        failed = [text for text in texts if text.startswith(("Error", "Unknown action"))]
        if failed:
            raise ValueError(f"{bench.domain} test task 0: its ground truth is answered {failed}")
        score = session.score()
        if score.reward != expected:
            raise ValueError(f"{bench.domain} test task 0: {len(calls)} known actions score {score}")
    found = scoring.ground_truth(bench, task).digest(record_texts(bench.database))
    if digest is not None and found != digest:
        raise ValueError(
            f"{bench.domain} test task 0: the database after the ground truth has SHA-256 {found}, "
            f"the original's has {digest}"
        )


class _Leaving:
    """A customer who ends the conversation at the first reply."""

    def reset(self, instruction: str) -> str:
        return instruction

    def step(self, content: str) -> str:
        return STOP


def import_checkout(
    checkout: pathlib.Path, out: pathlib.Path, known: Mapping[str, Known] | None = None
) -> dict[str, Any]:
    """Read, check and write both domains; returns the manifest.

    Args:
      known: domain -> what its data must hold; None imports any version and says so in the manifest.

    Raises:
      ValueError: the checkout or one of the checks is at fault; nothing is written before the content is
        checked.
    """
    files: dict[str, Any] = {}
    for domain in TABLES:
        content = read_domain(checkout, domain)
        if known is not None:
            check_content(domain, content, known[domain])
        files.update(content)
    out.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        text = content if name.endswith(".md") else json.dumps(content, indent=1)
        (out / name).write_text(text, encoding="utf-8", newline="\n")
    for domain in TABLES:
        check_plan(load(str(out), domain), known[domain].digest if known is not None else None)
    manifest = {
        "source": "sierra-research/tau-bench",
        "version": VERSION if known is not None else "unchecked",
        "content_sha256": {name: content_sum(content) for name, content in files.items()},
    }
    (out / "manifest.json").write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    return manifest


def _source(path: pathlib.Path) -> str:
    if not path.is_file():
        raise ValueError(f"{path} is missing in the checkout")
    return path.read_text(encoding="utf-8")


def _module(path: pathlib.Path) -> ast.Module:
    try:
        return ast.parse(_source(path), str(path))
    except SyntaxError as error:
        raise ValueError(f"{path} is no Python file: {error}") from error


def _assigned(path: pathlib.Path, name: str) -> ast.expr:
    """The value of `name = ...` at the top of a module; capital letters do not matter."""
    for node in _module(path).body:
        if isinstance(node, ast.Assign):
            names = [target.id.lower() for target in node.targets if isinstance(target, ast.Name)]
            if name.lower() in names:
                return node.value
    raise ValueError(f"{path} does not assign {name}")


def _literal(node: ast.expr, path: pathlib.Path) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError as error:
        raise ValueError(f"{path}, line {node.lineno}: expected a literal") from error


def _list_of(node: ast.expr, what: str, path: pathlib.Path) -> list[ast.expr]:
    if not isinstance(node, ast.List):
        raise ValueError(f"{path}, line {node.lineno}: expected a list of {what}")
    return node.elts


def _keywords(node: ast.expr, name: str, path: pathlib.Path) -> dict[str, ast.expr]:
    """The arguments of `name(key=value, ...)`."""
    called = node.func if isinstance(node, ast.Call) else None
    if not (
        isinstance(node, ast.Call) and isinstance(called, ast.Name) and called.id == name and not node.args
    ):
        raise ValueError(f"{path}, line {node.lineno}: expected {name}(...) with keyword arguments")
    return {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg is not None}


def _read_tasks(path: pathlib.Path, name: str) -> list[dict[str, Any]]:
    return [_read_task(node, path) for node in _list_of(_assigned(path, name), "Task(...)", path)]


def _read_task(node: ast.expr, path: pathlib.Path) -> dict[str, Any]:
    fields = _keywords(node, "Task", path)
    missing = [key for key in ("user_id", "instruction", "actions") if key not in fields]
    if missing:
        raise ValueError(f"{path}, line {node.lineno}: the task lacks {missing}")
    actions = []
    for item in _list_of(fields["actions"], "Action(...)", path):
        action = _keywords(item, "Action", path)
        if not {"name", "kwargs"} <= action.keys():
            raise ValueError(f"{path}, line {item.lineno}: an action needs name and kwargs")
        actions.append({key: _literal(action[key], path) for key in ("name", "kwargs")})
    return {
        "user_id": _literal(fields["user_id"], path),
        "actions": actions,
        "instruction": _literal(fields["instruction"], path),
        "outputs": _literal(fields["outputs"], path) if "outputs" in fields else [],
    }


def _read_tools(folder: pathlib.Path) -> list[dict[str, Any]]:
    """The schemas that the tool classes return from `get_info`, in the order of ALL_TOOLS."""
    index = folder / "__init__.py"
    modules = {
        alias.name: node.module
        for node in _module(index).body
        if isinstance(node, ast.ImportFrom) and node.module is not None
        for alias in node.names
    }
    schemas = []
    for item in _list_of(_assigned(index, "ALL_TOOLS"), "tool classes", index):
        if not isinstance(item, ast.Name) or item.id not in modules:
            raise ValueError(f"{index}, line {item.lineno}: expected the name of an imported class")
        schemas.append(_read_schema(folder / f"{modules[item.id].rpartition('.')[2]}.py", item.id))
    return schemas


def _read_schema(path: pathlib.Path, name: str) -> dict[str, Any]:
    classes = [node for node in _module(path).body if isinstance(node, ast.ClassDef) and node.name == name]
    methods = [node for item in classes for node in item.body if isinstance(node, ast.FunctionDef)]
    lines = [line for method in methods if method.name == "get_info" for line in method.body]
    for line in lines:
        if isinstance(line, ast.Return) and line.value is not None:
            return _literal(line.value, path)
    raise ValueError(f"{path} has no class {name} with a get_info that returns a literal")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status and prints why an import failed."""
    parser = argparse.ArgumentParser(prog="python -m envs.tau_bench.importer", description=__doc__)
    parser.add_argument("--checkout", type=pathlib.Path, required=True, help="checkout of tau-bench")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="data directory to write")
    parser.add_argument("--any-version", action="store_true", help="import data of another version, too")
    options = parser.parse_args(arguments)
    try:
        manifest = import_checkout(options.checkout, options.out, None if options.any_version else KNOWN)
    except ValueError as error:
        print(f"not imported: {error}", file=sys.stderr)
        return 1
    print(f"{len(manifest['content_sha256'])} files of version {manifest['version']} in {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
