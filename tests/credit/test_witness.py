"""Proof edges and their weights (Eq. 4, 12), by hand."""

from __future__ import annotations

import numpy as np

from tests.credit.builders import S, U, V
from vict_jax.credit.witness import edge_weights, witness_edges
from vict_jax.types import Relation

Edge = tuple[int, int, Relation]


def edges(
    evidence: list[list[int]],
    *,
    binds: list[list[bool]],
    observation: list[bool],
    status: list[list[int]] | None = None,
    commits: dict[int, list[int]] | None = None,
    irreversible: list[bool] | None = None,
    terminal_only: list[bool] | None = None,
    usable: list[bool] | None = None,
    steps: int | None = None,
) -> tuple[set[Edge], np.ndarray, np.ndarray]:
    length, atoms = len(evidence) - 1, len(binds)
    scope = np.zeros((length, atoms), bool)
    for t, scoped in (commits or {}).items():
        scope[t, scoped] = True
    witness = witness_edges(
        np.array(evidence, np.int32),
        np.full((length + 1, atoms), U, np.int8) if status is None else np.array(status, np.int8),
        scope.any(1),
        scope,
        binds=np.array(binds),
        observation_var=np.array(observation),
        irreversible=np.array(irreversible or [False] * atoms),
        terminal_only=np.array(terminal_only or [False] * atoms),
        usable=np.array(usable or [True] * atoms),
        step_mask=np.arange(length) < (length if steps is None else steps),
    )
    weight, total = edge_weights(witness)
    found = {(int(t), int(j), Relation(int(r))) for t, j, r in np.argwhere(witness)}
    return found, np.asarray(weight), np.asarray(total)


def test_write_is_a_change_of_a_bound_state_variable() -> None:
    found, _, _ = edges(
        [[1, 5], [2, 5], [2, 6], [2, 6]], binds=[[True, False], [False, True]], observation=[False, False]
    )
    assert found == {(0, 0, Relation.WRITE), (1, 1, Relation.WRITE)}


def test_reveal_happens_once_and_looking_again_is_no_edge() -> None:
    """First available at step 1; gone and back, or changed, it is nothing new."""
    found, _, _ = edges([[0], [0], [7], [0], [7], [8]], binds=[[True]], observation=[True])
    assert found == {(1, 0, Relation.REVEAL)}


def test_available_from_the_start_is_never_revealed() -> None:
    assert edges([[7], [0], [7]], binds=[[True]], observation=[True])[0] == set()


def test_reveals_of_an_atom_share_one() -> None:
    evidence = [[0, 0, 0, 1], [7, 0, 0, 1], [7, 7, 0, 1], [7, 7, 7, 2]]
    found, weight, total = edges(evidence, binds=[[True] * 4], observation=[True, True, True, False])
    assert found == {(t, 0, Relation.REVEAL) for t in range(3)} | {(2, 0, Relation.WRITE)}
    np.testing.assert_allclose(weight[:, 0, Relation.REVEAL], [1 / 3] * 3)
    assert weight[2, 0, Relation.WRITE] == 1
    assert total[0] == 2.0


def test_two_variables_revealed_by_one_action_are_one_edge() -> None:
    found, weight, total = edges([[0, 0], [7, 7]], binds=[[True, True]], observation=[True, True])
    assert found == {(0, 0, Relation.REVEAL)}
    assert weight[0, 0, Relation.REVEAL] == total[0] == 1.0


def test_commit_needs_the_scope_and_violation_an_irreversible_atom() -> None:
    found, _, total = edges(
        [[1], [1], [1], [1]],
        binds=[[True]] * 3,
        observation=[False],
        status=[[U, U, U], [V, V, U], [V, V, U], [U, V, S]],
        commits={2: [2]},
        irreversible=[True, False, True],
    )
    assert found == {(0, 0, Relation.VIOLATE), (2, 2, Relation.COMMIT)}
    np.testing.assert_array_equal(total, [1.0, 0.0, 1.0])


def test_terminal_only_keeps_the_last_write_else_the_last_commit() -> None:
    evidence = [[1, 0, 1], [2, 0, 1], [3, 7, 1], [3, 7, 1], [3, 7, 1]]
    found, _, total = edges(
        evidence,
        binds=[[True, True, False], [False, True, True], [False, True, False]],
        observation=[False, True, False],
        commits={2: [0, 1], 3: [0, 1]},
        terminal_only=[True, True, True],
    )
    assert found == {(1, 0, Relation.WRITE), (3, 1, Relation.COMMIT)}
    np.testing.assert_array_equal(total, [1.0, 1.0, 0.0])


def test_no_edge_on_padding_or_to_an_unusable_atom() -> None:
    evidence = [[1], [2], [3], [4]]
    found, weight, _ = edges(
        evidence, binds=[[True], [True]], observation=[False], usable=[True, False], steps=1
    )
    assert found == {(0, 0, Relation.WRITE)}
    assert weight.sum() == 1.0
