"""`--check` passes the worked example; of a copy with a planted mistake it names it and what to do."""

from __future__ import annotations

import itertools
import json
import pathlib
import re
import sys

import pytest

from examples import refunds
from vict_jax.audit import __main__ as audit
from vict_jax.audit.check import check, import_name
from vict_jax.audit.findings import Level, Section
from vict_jax.audit.size import code_lines

SOURCE = pathlib.Path(refunds.__file__).read_text()
GATE = '(satisfied | ~params["gate"]).all() * '
OTHERS = 'Status.SATISFIED if now["others"] == "none" else Status.VIOLATED'
_NUMBERS = itertools.count()


def run(target: str) -> dict[str, Section]:
    sections = check(target, values={}, splits=["valid"], tasks=4, rollouts=2, seed=0)
    return {section.title: section for section in sections}


def at(section: Section, level: Level) -> str:
    return "\n".join(f"{f.text} -> {f.advice}" for f in section.findings if f.level is level)


@pytest.fixture
def plant(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    """Write the example with texts replaced, and check it."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)  # a worker gets a hash seed of its own, as usual

    def write(*changes: tuple[str, str]) -> dict[str, Section]:
        source = SOURCE
        for old, new in changes:
            assert old in source
            source = source.replace(old, new)
        path = tmp_path / f"planted_{next(_NUMBERS)}.py"
        path.write_text(source)
        return run(str(path))

    return write


def test_the_example_passes_without_a_warning() -> None:
    sections = run("examples.refunds")
    titles = ["contract", "protocol", "conformance", "eligibility", "coverage", "prompt", "size"]
    assert list(sections) == titles
    found = [finding for section in sections.values() for finding in section.findings]
    assert {finding.level for finding in found} == {Level.PASS}
    edges = sections["coverage"].figures["edges by relation"]
    assert all(edges[relation] > 0 for relation in ("write", "reveal", "commit", "violate"))


@pytest.mark.parametrize(
    ("old", "new", "section", "message"),
    [
        (
            "self.apply(action.split()) if valid else REFUSED",
            "self.apply(action.split())",
            "protocol",
            r"step\(''\) raises IndexError: list index out of range \(planted_.* in apply\) -> answer every",
        ),
        (
            "random.Random(task.seed)",
            "random.Random()",
            "protocol",
            "goes differently after a reset.*-> draw only from random.Random",
        ),
        (
            "rng.sample(THINGS,",
            "rng.sample(list(set(THINGS)),",
            "protocol",
            "goes differently in a worker process.*order of a set",
        ),
        (
            "done = self.closed or len(self.history) > self.options.max_steps",
            "done = self.closed",
            "protocol",
            "is not done after 12 times 'wait' -> count the steps",
        ),
        ('{"valid": valid}', "{}", "protocol", 'StepResult.info is {}, expected a dict with "valid"'),
        (
            'no_op="wait"',
            'no_op="close ticket"',
            "protocol",
            r"'close ticket' changes the variables \['ticket'\]",
        ),
        ("max_atoms=9", "max_atoms=4", "protocol", r"has . atoms, above DOMAIN.max_atoms=4"),
        (
            '"share": True}',
            '"shares": True}',
            "protocol",
            r"params are \['gate', 'share'\], DOMAIN.atom_params names \['gate', 'shares'\]",
        ),
        (
            "[self.statuses(now) for now in self.history], np.int8",
            "[self.statuses(now) for now in self.history]",
            "protocol",
            "status has dtype int64, expected int8",
        ),
        ('f"{split}_{i}"', 'f"{split}_{i // 2}"', "contract", "the task id 'train_0' is used 2 times"),
        (
            "TYPES[i % len(TYPES)], split,",
            'TYPES[i % len(TYPES)], "test",',
            "contract",
            "says that it is of split 'test'",
        ),
        ("DOMAIN = ", "MY_DOMAIN = ", "contract", "has no DOMAIN -> define DOMAIN in it"),
        (
            "make=RefundDesk",
            "make=lambda options: RefundDesk(options)",
            "contract",
            "cannot import .*make by name .*-> make it a class or function at the top level",
        ),
        (
            "@dataclasses.dataclass(frozen=True)\nclass Options",
            "@dataclasses.dataclass\nclass Options",
            "contract",
            "Options is a dataclass, but not a frozen one",
        ),
        (
            "import numpy as np",
            "import numpy as np, no_such_library",
            "contract",
            "ModuleNotFoundError: No module named 'no_such_library' -> see where with",
        ),
        (
            OTHERS,
            "Status.SATISFIED",
            "conformance",
            "aggregator fails on task type .*F = 1, V = 0.*one of nothing_else, refunded, ticket_closed are",
        ),
        ("eta=1e-6,", "eta=0.0,", "conformance", "rounding in float32: give the record an eta"),
        (GATE, "", "conformance", "refunded explains it.*F = 1, V = 0.*-> play these actions"),
        (
            'params["share"]).sum()',
            'params["shares"]).sum()',
            "conformance",
            "aggregate raises KeyError: 'shares'",
        ),
        (
            '(f"refund_{i}",)',
            '("ticket",)',
            "eligibility",
            "changes at step . without a change of what it reads",
        ),
        (
            "[Status.UNKNOWN] * 2",
            "[Status.UNSATISFIED] * 2",
            "eligibility",
            "order_read_1 is known while nothing that it reads is available",
        ),
        (
            'Status.SATISFIED if now["orders"] else Status.UNKNOWN',
            "Status.UNKNOWN",
            "eligibility",
            "orders_listed is UNKNOWN while everything that it reads is available",
        ),
        ('"close ticket"', '" close ticket"', "prompt", "action ' close ticket' cannot be said as"),
    ],
)
def test_each_planted_mistake_is_named(plant, old: str, new: str, section: str, message: str) -> None:
    sections = plant((old, new))
    assert [title for title, found in sections.items() if found.failed][:1] == [section]
    assert re.search(message, at(sections[section], Level.FAIL), re.DOTALL)


def test_what_is_only_odd_is_a_warning(plant) -> None:
    sections = plant(
        ("    mutations=mutations,\n", ""),
        ('return "The ticket is closed."', 'return "Well: ticket_closed."'),
        ('return (*actions, "close ticket")', 'return (*actions, "close ticket", "smile")'),
        ("action in self.admissible()", 'action in self.admissible() and action != "smile"'),
    )
    assert not any(section.failed for section in sections.values())
    assert "no mutations of its own -> write mutations" in at(sections["conformance"], Level.WARN)
    assert "'smile' is listed as admissible, but is not taken" in at(sections["coverage"], Level.WARN)
    assert "'ticket_closed' stands in 'Well: ticket_closed.'" in at(sections["prompt"], Level.WARN)


def test_an_atom_that_no_credit_can_reach_fails(plant) -> None:
    sections = plant(
        ('{"others": ', '{"mood": "fine", "others": '),
        ('[Atom("nothing_else"', '[Atom("polite", "polite", ("mood",)), Atom("nothing_else"'),
        (f"found.append({OTHERS})", f"found += [Status.SATISFIED, {OTHERS}]"),
        ("max_atoms=9,\n    max_variables=9", "max_atoms=10,\n    max_variables=10"),
    )
    assert [title for title, found in sections.items() if found.failed] == ["coverage"]
    assert "no action ever has an edge to family 'polite'" in at(sections["coverage"], Level.FAIL)
    assert "'polite' holds in every state" in at(sections["coverage"], Level.WARN)


@pytest.mark.parametrize("target", ["no_such_file.py", "no_such_module"])
def test_what_is_not_there(target: str) -> None:
    assert "there is no" in at(run(target)["contract"], Level.FAIL)


def test_a_file_whose_name_is_taken(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])  # behind the standard library
    (tmp_path / "json.py").write_text(SOURCE)
    found = at(run(str(tmp_path / "json.py"))["contract"], Level.FAIL)
    assert "that name belongs to" in found
    assert "rename the file" in found


def test_a_file_in_a_package_is_imported_as_a_part_of_it() -> None:
    assert import_name(refunds.__file__) == "examples.refunds"
    assert import_name("examples.refunds") == "examples.refunds"


def test_the_command(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "report.json"
    arguments = ["--split", "valid", "--tasks", "2", "--json", str(out)]
    assert audit.main(["--check", refunds.__file__, *arguments]) == 0
    printed = capsys.readouterr().out
    assert "eligibility: passed" in printed
    assert "lines of code: examples.refunds" in printed
    report = json.loads(out.read_text())
    assert report["passed"]
    assert report["sections"]["size"]["figures"]["families"] == 5
    assert audit.main(["--check", "no_such_module", *arguments]) == 1
    assert "FAILED (contract)" in capsys.readouterr().out
    assert not json.loads(out.read_text())["passed"]
    with pytest.raises(ValueError, match=r"unknown config key 'env\.order'; did you mean 'orders'"):
        audit.main(["--check", "examples.refunds", "--option", "order=4"])
    with pytest.raises(ValueError, match=r"--split test is not one of \['train', 'valid'\]"):
        audit.main(["--check", "examples.refunds", "--split", "test"])


def test_code_lines() -> None:
    source = """#!/usr/bin/env python
'''Module.

Two paragraphs.
'''

x = 1  # counts
# does not

def f():
    '''One line.'''
    text = '''counts
    as two'''
    return (
        text
    )
"""
    assert code_lines(source) == 7
