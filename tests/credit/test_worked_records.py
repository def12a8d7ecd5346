"""Cases worked by hand from a verifier's records to corrections, the paper's own (appendix F) among them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.base import Atom, Domain, Task, Variable, VerifierRecord
from tests.credit.builders import UNKNOWN, S, U, V
from tests.credit.worked import ATOMS, COMPLETE, CONJUNCTION, PRODUCT, ROLLOUTS, STEPS, close, run, verifier
from vict_jax.batching import EndReason, Rollout, atom_states, credit_inputs
from vict_jax.credit.diagnostics import Cause
from vict_jax.types import Relation

DOMAIN = Domain(
    name="kitchen",
    make=lambda options: pytest.fail("not built here"),
    tasks=lambda options, split: (),
    splits=("train",),
    aggregate=verifier,
    atom_params={"weight": True, "gate": True, "kind": True},
    max_atoms=ATOMS,
    max_variables=2 * ATOMS,
    max_steps=lambda options: STEPS,
    corpus=lambda options: (),
)
TASK = Task("t0", "heat", "train", 0, "")
State = tuple[str, Sequence[int]]  # evidence values joined by spaces, "-" where not available; statuses


@dataclasses.dataclass(frozen=True)
class Verifier:
    """The interface of one task. `scored`: the atoms that F reads; all if left out."""

    atoms: tuple[Atom, ...]
    variables: tuple[Variable, ...]
    kind: int = CONJUNCTION
    weight: Sequence[float] = ()
    gate: Sequence[bool] = ()

    def rollout(
        self, score: float, *states: State, commits: Mapping[int, Sequence[str]] | None = None
    ) -> Rollout:
        steps, m = len(states) - 1, len(self.atoms)
        names = [atom.id for atom in self.atoms]
        scope = np.zeros((steps, m), bool)
        for t, scoped in (commits or {}).items():
            scope[t, [names.index(name) for name in scoped]] = True
        record = VerifierRecord(
            atoms=self.atoms,
            variables=self.variables,
            status=np.array([status for _, status in states], np.int8),
            evidence=tuple(
                tuple("" if value == "-" else value for value in values.split()) for values, _ in states
            ),
            commits=scope.any(axis=1),
            scope=scope,
            params={
                "weight": np.array(self.weight or [1.0] * m, np.float32),
                "gate": np.array(self.gate or [False] * m),
                "kind": np.full(m, self.kind, np.int32),
            },
            eta=0.0,
            score=score,
        )
        return Rollout(
            task=TASK,
            sequences=(),
            actions=tuple(f"action {t}" for t in range(steps)),
            observations=tuple(f"seen {t}" for t in range(steps + 1)),
            taken=np.ones(steps, bool),
            valid=np.ones(steps, bool),
            record=record,
            score=score,
            end=EndReason.SUCCESS if score == 1 else EndReason.FAILURE,
        )


LOST = Rollout(TASK, (), (), (), np.ones(0, bool), np.ones(0, bool), None, 0.0, EndReason.ENV_ERROR)


def credited(*rollouts: Rollout) -> tuple[np.ndarray, Any]:
    """Corrections [N, T] and proofs of a group, filled up with lost rollouts."""
    group = [*rollouts, *[LOST] * (ROLLOUTS - len(rollouts))]
    inputs = credit_inputs([group], domain=DOMAIN, max_steps=STEPS, group_size=ROLLOUTS, conforming=[True])
    output = run(jax.tree.map(jnp.asarray, inputs), COMPLETE)
    assert output.proofs is not None
    assert not np.asarray(output.correction)[0, len(rollouts) :].any()
    return np.asarray(output.correction)[0], jax.tree.map(lambda x: np.asarray(x)[0], output.proofs)


def signs(correction: np.ndarray) -> list[int]:
    return np.sign(correction).astype(int).tolist()


EGG = Verifier(
    atoms=(
        Atom("acquired", "acquired", ("seen", "held")),
        Atom("heated", "heated", ("heat",), requires=("acquired",)),
        Atom("placed", "placed", ("put",), requires=("heated",)),
    ),
    variables=(Variable("seen", observation=True), Variable("held"), Variable("heat"), Variable("put")),
)


def egg_rollouts() -> list[Rollout]:
    """Done; placed cold; heated and cooled again; three that saw the egg and left it."""
    start, seen = ("- never cold no", [U, U, U]), ("egg never cold no", [U, U, U])
    taken, hot = ("egg once cold no", [S, U, U]), ("egg once hot no", [S, S, U])
    done, cold = ("egg once hot yes", [S, S, S]), ("egg once cold yes", [S, U, U])
    return [
        EGG.rollout(1.0, start, seen, taken, hot, done, commits={3: ["placed"]}),
        EGG.rollout(0.0, start, seen, taken, cold, commits={2: ["placed"]}),
        EGG.rollout(0.0, start, seen, taken, hot, taken),
        *[EGG.rollout(0.0, start, seen, seen)] * 3,
    ]


def test_appendix_f_egg_heated_and_placed() -> None:
    """Seeing and taking, heating and placing are all credited in the rollout that did them."""
    correction, proofs = credited(*egg_rollouts())
    assert signs(correction[0]) == [1, 1, 1, 1]
    # acquired: three times 1, three times -1, std sqrt(6/5): 0.912871, half for seeing, half for taking.
    # heated: 1 here, -1 where it was cooled again: 0.707107.
    # placed: 1 here, -1 cold, write and commit at once.
    a_vict = proofs.contribution.sum((-1, -2))
    close(a_vict[0], [0.456435, 0.456435, 0.707107, 0.707107])


def test_appendix_f_egg_placed_cold() -> None:
    """The acquisition stays to its credit, the placement counts against it."""
    correction, proofs = credited(*egg_rollouts())
    np.testing.assert_array_equal(proofs.marginal[1, :3], [1, -1, -1])
    assert signs(correction[1]) == [1, 1, -1, 0]
    close(proofs.contribution[1].sum((-1, -2)), [0.456435, 0.456435, -0.707107, 0])
    assert proofs.atom_cause[1, 1] == Cause.NO_PROOF_SUPPORT, "it never touched the heat: no proof, no blame"
    assert signs(correction[3]) == [-1, 0, 0, 0], "seen but never taken; looking again is nothing"


def test_appendix_f_right_colour_and_size_of_the_wrong_product() -> None:
    shirt = Verifier(
        atoms=(
            Atom("type", "type", ("page",)),
            Atom("colour", "option", ("colour",)),
            Atom("size", "option", ("size",)),
        ),
        variables=(Variable("page"), Variable("colour"), Variable("size")),
        kind=PRODUCT,
        weight=(0, 0.5, 0.5),
        gate=(True, False, False),
    )

    def shopping(score: float, page: str, colour: str, size: str) -> Rollout:
        right = [S if found else U for found in (page == "shirt", colour == "red", size == "m")]
        states = [
            ("search - -", [U, U, U]),
            (f"{page} - -", [right[0], U, U]),
            (f"{page} {colour} -", [*right[:2], U]),
            (f"{page} {colour} {size}", right),
        ]
        return shirt.rollout(score, *states)

    correction, proofs = credited(
        shopping(1.0, "shirt", "red", "m"),
        shopping(0.0, "mug", "red", "m"),
        shopping(0.0, "shirt", "blue", "xl"),
        shopping(0.0, "mug", "blue", "xl"),
    )
    np.testing.assert_array_equal(proofs.marginal[1, :3], [-1, 0.5, 0.5])
    assert signs(correction[:4, :3]) == [[1, 1, 1], [-1, 1, 1], [1, -1, -1], [-1, -1, -1]]


def test_unknown_evidence_is_neither_credit_nor_blame() -> None:
    drawer = Verifier(
        atoms=(Atom("open", "open", ("door",)), Atom("found", "found", ("content",))),
        variables=(Variable("door"), Variable("content", observation=True)),
    )
    correction, proofs = credited(
        drawer.rollout(1.0, ("shut -", [U, UNKNOWN]), ("ajar -", [S, UNKNOWN]), ("ajar key", [S, S])),
        drawer.rollout(0.0, ("shut -", [U, UNKNOWN]), ("ajar -", [S, UNKNOWN]), ("ajar pen", [S, U])),
        drawer.rollout(0.0, ("shut -", [U, UNKNOWN]), ("ajar -", [S, UNKNOWN]), ("shut -", [U, UNKNOWN])),
    )
    np.testing.assert_array_equal(proofs.marginal[:3, 1], [1, -1, 0])
    np.testing.assert_array_equal(proofs.atom_cause[:3, 1], [Cause.NONE, Cause.NONE, Cause.UNKNOWN_EVIDENCE])
    assert not proofs.contribution[2, :, 1].any()
    assert (correction[0, 1] > 0 > correction[1, 1]).all()


def test_an_irreversible_violation_is_blamed_where_it_happened() -> None:
    vase = Verifier(
        atoms=(Atom("intact", "intact", ("vase",), irreversible=True),), variables=(Variable("vase"),)
    )
    correction, proofs = credited(
        vase.rollout(1.0, ("dusty", [S]), ("clean", [S]), ("clean", [S])),
        vase.rollout(0.0, ("dusty", [S]), ("dusty", [S]), ("broken", [V]), ("broken", [V])),
    )
    # +-1 over sqrt(2). Breaking it is a write and a violation: both edges on one action, all of the blame.
    close(proofs.contribution[1].sum((-1, -2)), [0, -0.707107, 0, 0])
    assert proofs.weight[1, 1, 0, [Relation.WRITE, Relation.VIOLATE]].tolist() == [1, 1]
    assert signs(correction[:2, :3]) == [[1, 0, 0], [0, -1, 0]]


def test_terminal_only_atoms_belong_to_their_last_writer_or_last_commit() -> None:
    report = Verifier(
        atoms=(Atom("sent", "sent", ("text",), terminal_only=True),), variables=(Variable("text"),)
    )
    written = ("v1", [U])
    correction, _ = credited(
        report.rollout(1.0, ("v0", [U]), written, ("v2", [U]), ("v2", [S]), commits={2: ["sent"]}),
        report.rollout(0.0, *[("v0", [U])] * 4, commits={0: ["sent"], 2: ["sent"]}),
    )
    # Written twice: the second writer, although another action committed it. Never written: the last commit.
    assert signs(correction[:2, :3]) == [[0, 1, 0], [0, 0, -1]]


def test_a_cycle_switches_its_atoms_off_and_leaves_the_rest() -> None:
    loop = Verifier(
        atoms=(
            Atom("a", "a", ("x",), requires=("b",)),
            Atom("b", "b", ("y",), requires=("a",)),
            Atom("c", "c", ("z",)),
        ),
        variables=(Variable("x"), Variable("y"), Variable("z")),
    )
    tried = [("0 0 0", [U, U, U]), ("1 0 0", [U, U, U]), ("1 1 0", [S, S, U])]
    won = loop.rollout(1.0, *tried, ("1 1 1", [S, S, S]))
    assert atom_states(won, ()) == ["cycle: a <- b <- a", "cycle: b <- a <- b", ""]
    correction, proofs = credited(won, loop.rollout(0.0, *tried, ("1 1 2", [S, S, U])))
    np.testing.assert_array_equal(proofs.core[:2], [[False, False, True, False]] * 2)
    assert signs(correction[:2, :3]) == [[0, 0, 1], [0, 0, -1]]


DOOR = Verifier(
    atoms=(
        Atom("opened", "opened", ("door",), alternatives=(("key",), ("code",))),
        Atom("key", "key", ("key",), irreversible=True),
        Atom("code", "code", ("code",)),
    ),
    variables=(Variable("door"), Variable("key"), Variable("code")),
    weight=(1, 0, 0),  # F reads only whether it is open
)


def test_settled_disjunctions_credit_the_way_that_was_taken() -> None:
    shut = ("shut none none", [U, U, U])
    by_key = DOOR.rollout(1.0, shut, ("shut held none", [U, S, U]), ("ajar held none", [S, S, U]))
    by_code = DOOR.rollout(1.0, shut, ("shut none known", [U, U, S]), ("ajar none known", [S, U, S]))
    broken = DOOR.rollout(0.0, shut, ("shut broken none", [U, V, U]), ("shut broken wrong", [U, V, U]))
    never = DOOR.rollout(0.0, shut, ("shut held none", [U, S, U]), ("shut held none", [U, S, U]))
    correction, proofs = credited(by_key, by_code, broken, never)
    # With the key broken the code is the one way left; with the key in hand it is the way that was open.
    np.testing.assert_array_equal(proofs.marginal[:4, :3], [[1, 1, 0], [1, 0, 1], [-1, 0, -1], [-1, 1, 0]])
    # code: 1 and -1 over sqrt(2), by the actions that read it and got it wrong. key: 1 and 1, scale 0.
    assert correction[1, 0] > 0 > correction[2, 1]
    assert proofs.atom_cause[0, 1] == Cause.ZERO_SCALE
    assert not proofs.contribution[2, 0].any(), "breaking the key is not in the core: it was no longer needed"


def test_an_unsettled_disjunction_switches_the_atom_off() -> None:
    both = ("shut held known", [U, S, S])
    open_ = DOOR.rollout(1.0, ("shut none none", [U, U, U]), both, ("ajar held known", [S, S, S]))
    shut = DOOR.rollout(0.0, ("shut none none", [U, U, U]), both, both)
    assert atom_states(open_, ()) == [
        "disjunction: opened <- key or code: 2 of 2 ways hold in state 2",
        "",
        "",
    ]
    correction, proofs = credited(open_, shut)
    assert not correction.any()
    np.testing.assert_array_equal(proofs.cause[:2], [Cause.NO_CORE] * 2)


def test_a_horn_rule_needs_all_of_its_premises() -> None:
    """F reads only the cake; its flour and its egg are load-bearing through the rule."""
    cake = Verifier(
        atoms=(
            Atom("flour", "flour", ("bowl",)),
            Atom("egg", "egg", ("shell",)),
            Atom("cake", "cake", ("oven",), requires=("flour", "egg")),
        ),
        variables=(Variable("bowl"), Variable("shell"), Variable("oven")),
        weight=(0, 0, 1),
    )
    start, flour = ("no no no", [U, U, U]), ("yes no no", [S, U, U])
    correction, proofs = credited(
        cake.rollout(1.0, start, flour, ("yes yes no", [S, S, U]), ("yes yes yes", [S, S, S])),
        cake.rollout(0.0, start, flour, ("yes rotten no", [S, U, U]), ("yes rotten burnt", [S, U, U])),
        cake.rollout(0.0, start, ("spilt no no", [U, U, U])),
    )
    np.testing.assert_array_equal(proofs.marginal[:3, :3], [[1, 1, 1], [1, -1, -1], [-1, -1, -1]])
    # flour: 1, 1, -1: only the one that spilt it departs from the median; egg and cake: 1 and -1.
    assert signs(correction[:3, :3]) == [[0, 1, 1], [0, -1, -1], [-1, 0, 0]]
