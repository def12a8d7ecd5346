"""Tables of evaluations: success, and the mean score where it says something else."""

from __future__ import annotations

from typing import Any

from vict_jax import summary


def evaluation(scores: dict[str, list[float]], about: str = "") -> dict[str, Any]:
    everything = [score for some in scores.values() for score in some]
    return {
        "success": sum(score >= 1 for score in everything) / len(everything),
        "score": sum(everything) / len(everything),
        "per_type": {kind: [sum(s >= 1 for s in some), len(some)] for kind, some in scores.items()},
        "score_per_type": {kind: sum(some) / len(some) for kind, some in scores.items()},
        "about": about,
    }


def test_scores_of_0_and_1_are_shown_as_success_alone() -> None:
    table = summary.evaluation_table("valid", {"update 3": evaluation({"a": [1.0, 0.0], "b": [1.0, 1.0]})})
    assert table.splitlines()[0] == "success on valid"
    assert table.splitlines()[1].split() == ["task", "type", "update", "3"]
    assert table.splitlines()[3].split() == ["a", "50.0", "%", "(1/2)"]
    assert table.splitlines()[-1].split() == ["all", "75.0", "%", "(3/4)"]


def test_graded_scores_stand_beside_success() -> None:
    columns = {
        "before": evaluation({"a": [0.5, 0.25, 0.0]}, "1,000 products"),
        "after": evaluation({"a": [1.0, 0.75, 0.5], "b": [0.0]}, "1,000 products"),
    }
    lines = summary.evaluation_table("valid", columns).splitlines()
    assert lines[0] == "success, mean score on valid (1,000 products)"
    assert lines[3].split() == ["a", "0.0", "%", "(0/3)", "0.250", "33.3", "%", "(1/3)", "0.750"]
    assert lines[4].split() == ["b", "-", "0.0", "%", "(0/1)", "0.000"]
    # The mean of all is over tasks, not over task types.
    assert lines[-1].split() == ["all", "0.0", "%", "(0/3)", "0.250", "25.0", "%", "(1/4)", "0.562"]
