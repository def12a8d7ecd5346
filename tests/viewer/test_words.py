"""Sentences: every cause has one, and a step's says what it did, to what, and what that is worth."""

from __future__ import annotations

import pytest

from vict_jax import proofs
from vict_jax.credit.diagnostics import Cause
from vict_jax.types import Relation
from vict_jax.viewer import words


def edge(atom="hot", relation="write", contribution=0.3, step=7, **changes):
    row = {
        "step": step,
        "atom_id": atom,
        "relation": relation,
        "variable": "egg.hot",
        "before": "cold",
        "after": "hot",
        "marginal": 0.5,
        "marginal_norm": 0.3,
        "contribution": contribution,
    }
    return row | changes


def step(correction=0.31, advantage=-0.2, base=-0.51):
    return {"step": 7, "action": "heat egg", "correction": correction, "advantage": advantage, "base": base}


ATOMS = {
    name: {"atom_id": name, "status": status, "core": True}
    for name, status in (("hot", "satisfied"), ("placed", "unsatisfied"))
}


def test_every_cause_is_explained_with_a_next_step():
    names = {proofs.cause_text(cause) for cause in Cause} - {""}
    assert set(words.ROLLOUT_CAUSES) == names
    assert set(words.ATOM_CAUSES) == names | {"switched_off"}
    for why in (*words.ROLLOUT_CAUSES.values(), *words.ATOM_CAUSES.values(), words.LOST):
        assert why.why.endswith(".")
        assert why.next.endswith((".", ")."))


def test_a_good_step_of_a_failed_rollout():
    text = words.step_sentence(step(), [edge()], ATOMS, failed=True)
    assert text == (
        "Step 7 “heat egg” gets +0.31: it wrote the evidence egg.hot (cold → hot) that atom hot checks; hot "
        "is in the core, held at the end (marginal +0.50, against its group +0.30). The rollout failed, yet "
        "hot held at its end, so this step is blamed less than the rest of it: −0.20 instead of −0.51."
    )


def test_a_step_that_comes_out_ahead_is_praised():
    text = words.step_sentence(step(correction=0.7, advantage=0.19), [edge()], ATOMS, failed=True)
    assert text.endswith("so this step is praised, unlike the rest of it: +0.19 instead of −0.51.")


def test_a_failure_that_is_better_than_its_group():
    text = words.step_sentence(step(advantage=0.4, base=0.09), [edge()], ATOMS, failed=True)
    assert text.endswith("so this step is praised more than the rest of it: +0.40 instead of +0.09.")


def test_an_atom_that_did_not_hold_can_be_better_than_its_group():
    text = words.step_sentence(step(), [edge("placed")], ATOMS, failed=True)
    assert "placed is in the core, did not hold at the end" in text
    assert "yet on placed it did better than its group" in text


def test_several_edges_sharing_and_what_counts_the_other_way():
    edges = [
        edge("placed", "commit", 0.4, before="UNSATISFIED", after="SATISFIED"),
        edge("hot", "write", 0.1),
        edge("hot", "commit", 0.1, before="UNKNOWN", after="SATISFIED"),
        edge("lamp", "violate", -0.2, before="SATISFIED", after="VIOLATED"),
        edge("placed", "write", 0.4, step=2),
    ]
    text = words.step_sentence(step(), edges, ATOMS, failed=False)
    assert text.startswith(
        "Step 7 “heat egg” gets +0.31: it committed atom placed (UNSATISFIED → SATISFIED); placed is in the "
    )
    assert (
        "; also it wrote the evidence egg.hot (cold → hot) that atom hot checks and committed it "
        "(UNKNOWN → SATISFIED);"
    ) in text
    assert (
        " The other way counts: it broke atom lamp for good (SATISFIED → VIOLATED); lamp is in the core ("
        in text
    )
    assert text.endswith(" The 2 steps that touched placed share what it is worth.")


def test_a_correction_without_a_row_says_so():
    assert words.step_sentence(step(), [], ATOMS, failed=True) == (
        "Step 7 “heat egg” gets +0.31, but the proof log has no row that says why."
    )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"variable": "a; b", "before": "1; 2", "after": "3; 4"}, "a (1 → 3), b (2 → 4)"),
        ({"variable": "a", "before": "", "after": "x"}, "a (nothing yet → x)"),
        ({"variable": "a", "before": "x", "after": ""}, "a (x → nothing)"),
        ({"variable": "a", "before": "x; y", "after": "z"}, "a (x; y → z)"),
        ({"variable": "a", "before": "x", "after": "z" * 200}, f"a (x → {'z' * 79}…)"),
    ],
)
def test_evidence_before_and_after(changes, expected):
    assert f"the evidence {expected} that atom" in words.step_sentence(
        step(), [edge(**changes)], ATOMS, failed=False
    )


def test_every_relation_has_its_words():
    for relation in Relation:
        text = words.step_sentence(step(), [edge(relation=relation.name.lower())], ATOMS, failed=False)
        assert "has the relation" not in text


def test_why_an_atom_got_nothing():
    off = words.why_atom({"unusable": "cycle: a <- b", "cause": "near_tie"})
    assert off["cause"] == "switched_off"
    assert off["why"].endswith("Reason: cycle: a <- b.")
    assert words.why_atom({"unusable": "", "cause": ""}) is None
    assert words.why_atom({"unusable": "", "cause": "of_another_version"})["why"] == (
        "The log says 'of_another_version'."
    )


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "+0.00"), (-0.25, "−0.25"), (0.004, "+0.004"), (1.5, "+1.50")]
)
def test_numbers(value, text):
    assert words.number(value) == text
