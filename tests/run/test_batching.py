"""Padding of rollouts into CreditInputs, packing of token rows, and the transfer to devices."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest

from envs.base import Atom, Domain, Task, Variable, VerifierRecord, stable_hash
from vict_jax import batching, packing, sharding
from vict_jax.batching import EndReason, Rollout, TokenSequence
from vict_jax.packing import Overlong

ATOMS = (
    Atom("taken", "acquire", ("holding",)),
    Atom("hot", "heat", ("holding", "seen"), requires=("taken",), irreversible=True),
    Atom("placed", "place", ("at",), requires=("hot",), terminal_only=True),
)
VARIABLES = (Variable("holding"), Variable("seen", observation=True), Variable("at"))
DOMAIN = Domain(
    name="kitchen",
    make=lambda options: pytest.fail("not built here"),
    tasks=lambda options, split: (),
    splits=("train",),
    aggregate=lambda satisfied, params: (satisfied | ~params["scored"]).all(),
    atom_params={"scored": True, "bonus": False},
    max_atoms=5,
    max_variables=4,
    max_steps=lambda options: 6,
    corpus=lambda options: (),
)
TASK = Task("t0", "heat", "train", 0, "")


def sequence(length=4, trained_from=2, step=0, start=100):
    trained = np.arange(length) >= trained_from
    return TokenSequence(
        ids=np.arange(start, start + length, dtype=np.int32),
        trained=trained,
        logp=np.where(trained, -1.5, np.nan).astype(np.float32),
        step=np.full(length, step, np.int32),
    )


def make_record(steps, *, score=1.0, atoms=ATOMS, variables=VARIABLES, scored=(True, True, True)):
    rng = np.random.default_rng(steps)
    commits = np.arange(steps) == steps - 1
    return VerifierRecord(
        atoms=atoms,
        variables=variables,
        status=rng.integers(0, 4, (steps + 1, len(atoms))).astype(np.int8),
        evidence=tuple(
            tuple(f"v{t}{v}" if t >= v else "" for v in range(len(variables))) for t in range(steps + 1)
        ),
        commits=commits,
        scope=commits[:, None] & np.ones((1, len(atoms)), bool),
        params={"scored": np.array(scored), "bonus": np.float32(0.5)},
        eta=0.25,
        score=score,
    )


def make_rollout(steps, *, task=TASK, end=EndReason.SUCCESS, score=1.0, **record):
    lost = end in (EndReason.ENV_ERROR, EndReason.ENV_TIMEOUT)
    return Rollout(
        task=task,
        sequences=tuple(sequence(step=t, start=100 * t) for t in range(steps)),
        actions=tuple(f"action {t}" for t in range(steps)),
        observations=tuple(f"room {t}" for t in range(steps + (not lost))),
        taken=np.ones(steps, bool),
        valid=np.ones(steps, bool),
        record=None if lost else make_record(steps, score=score, **record),
        score=0.0 if lost else score,
        end=end,
    )


def inputs_of(groups, **options):
    options = {
        "domain": DOMAIN,
        "max_steps": 6,
        "group_size": 2,
        "conforming": [True] * len(groups),
        **options,
    }
    return batching.credit_inputs(groups, **options)


# --- constructors ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["trained", "logp", "step"])
def test_field_report_20_lengths_that_differ_are_refused(name):
    good = sequence()
    with pytest.raises(ValueError, match=rf"TokenSequence\.{name} has shape \(3,\), but ids has 4 tokens"):
        dataclasses.replace(good, **{name: getattr(good, name)[:3]})


def test_token_sequence_refuses_what_cannot_be_trained():
    good = sequence()
    with pytest.raises(ValueError, match="first token that is not trained"):
        dataclasses.replace(good, trained=np.ones(4, bool))
    with pytest.raises(ValueError, match="not finite on a trained token"):
        dataclasses.replace(good, logp=np.full(4, np.nan, np.float32))
    with pytest.raises(ValueError, match=r"TokenSequence\.ids has dtype float32"):
        dataclasses.replace(good, ids=good.ids.astype(np.float32))


def test_rollout_refuses_parts_that_disagree():
    good = make_rollout(3)
    cases = {
        "valid has shape": {"valid": np.ones(2, bool)},
        "record of 3 steps and 3 observations": {"observations": good.observations[:3]},
        "differs from its record": {"score": 0.0},
        "end is 'env_error'": {"end": EndReason.ENV_ERROR},
        "trained tokens of steps 7 to 7": {"sequences": (sequence(step=7),)},
    }
    for message, change in cases.items():
        with pytest.raises(ValueError, match=message):
            dataclasses.replace(good, **change)


# --- credit inputs --------------------------------------------------------------------------------


def test_credit_inputs_hold_the_record_and_pad_the_rest():
    rollouts = [make_rollout(2), make_rollout(4, score=0.5, end=EndReason.FAILURE)]
    inputs = inputs_of([rollouts], conforming=[False])
    for n, rollout in enumerate(rollouts):
        steps, record = len(rollout.actions), rollout.record
        assert inputs.score[0, n] == record.score
        np.testing.assert_array_equal(inputs.status[0, n, : steps + 1, :3], record.status)
        np.testing.assert_array_equal(
            inputs.status[0, n, steps + 1 :, :3], record.status[-1:].repeat(6 - steps, 0)
        )
        assert (inputs.status[0, n, :, 3:] == 0).all()
        for t in range(steps + 1):
            assert inputs.evidence[0, n, t].tolist() == [*(stable_hash(v) for v in record.evidence[t]), 0]
        np.testing.assert_array_equal(inputs.evidence[0, n, -1], inputs.evidence[0, n, steps])
        assert inputs.step_mask[0, n].tolist() == [t < steps for t in range(6)]
        assert inputs.commits[0, n].tolist() == [t == steps - 1 for t in range(6)]
        assert inputs.scope[0, n].sum() == 3
        assert inputs.action_id[0, n].tolist() == [
            stable_hash(rollout.actions[t]) if t < steps else 0 for t in range(6)
        ]
        assert inputs.state_id[0, n, steps] == stable_hash(f"room {steps}")
        assert (inputs.state_id[0, n, steps + 1 :] == 0).all()
    assert inputs.binds[0].tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0] * 4, [0] * 4]
    assert inputs.observation_var[0].tolist() == [False, True, False, False]
    for n in range(2):
        assert inputs.requires[0, n, :3, :3].tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
        assert not inputs.requires[0, n, 3:].any()
        assert inputs.usable[0, n].tolist() == [True, True, True, False, False]
    assert inputs.irreversible[0].tolist() == [False, True, False, False, False]
    assert inputs.terminal_only[0].tolist() == [False, False, True, False, False]
    assert inputs.params["scored"].tolist() == [[True, True, True, False, False]]
    assert inputs.params["bonus"].tolist() == [0.5]
    assert (inputs.eta.tolist(), inputs.conforming.tolist()) == ([0.25], [False])


def test_credit_inputs_have_the_declared_dtypes_and_shapes():
    inputs = inputs_of([[make_rollout(2), make_rollout(3)]] * 3)
    expected = {
        "score": (np.float32, (3, 2)),
        "status": (np.int8, (3, 2, 7, 5)),
        "evidence": (np.int32, (3, 2, 7, 4)),
        "commits": (np.bool_, (3, 2, 6)),
        "scope": (np.bool_, (3, 2, 6, 5)),
        "binds": (np.bool_, (3, 5, 4)),
        "observation_var": (np.bool_, (3, 4)),
        "requires": (np.bool_, (3, 2, 5, 5)),
        "usable": (np.bool_, (3, 2, 5)),
        "mentions": (np.bool_, (3, 2, 6, 5)),
        "irreversible": (np.bool_, (3, 5)),
        "terminal_only": (np.bool_, (3, 5)),
        "conforming": (np.bool_, (3,)),
        "eta": (np.float32, (3,)),
        "step_mask": (np.bool_, (3, 2, 6)),
        "rollout_mask": (np.bool_, (3, 2)),
        "state_id": (np.int32, (3, 2, 7)),
        "action_id": (np.int32, (3, 2, 6)),
    }
    for name, (dtype, shape) in expected.items():
        array = getattr(inputs, name)
        assert (array.dtype, array.shape) == (dtype, shape), name


def test_lost_rollouts_keep_their_place_and_are_masked():
    lost = make_rollout(3, end=EndReason.ENV_TIMEOUT)
    inputs = inputs_of([[lost, make_rollout(2)], [lost, lost]])
    assert inputs.rollout_mask.tolist() == [[False, True], [False, False]]
    assert not inputs.step_mask[0, 0].any()
    assert inputs.usable.tolist() == [[[False] * 5, [True, True, True, False, False]], [[False] * 5] * 2]
    assert batching.atom_states(lost, ()) == []
    with pytest.raises(ValueError, match="every rollout of every group was lost"):
        inputs_of([[lost, lost]])


def test_ambiguous_and_masked_atoms_are_not_usable():
    cyclic = (ATOMS[0], dataclasses.replace(ATOMS[1], requires=("placed",)), ATOMS[2])
    group = [make_rollout(2, atoms=cyclic), make_rollout(3, atoms=cyclic)]
    assert inputs_of([group]).usable[0].tolist() == [[True, False, False, False, False]] * 2
    assert batching.atom_states(group[0], ()) == [
        "",
        "cycle: hot <- placed <- hot",
        "cycle: placed <- hot <- placed",
    ]
    plain = [make_rollout(2), make_rollout(3)]
    masked = inputs_of([plain], masked_families=("heat",))
    assert masked.usable[0].tolist() == [[True, False, True, False, False]] * 2
    assert batching.atom_states(plain[0], ("heat",)) == ["", batching.MASKED, ""]


def test_a_choice_is_settled_for_each_rollout_by_itself():
    """`placed` needs `taken` or `hot`; only the first rollout tells which."""
    atoms = (ATOMS[0], dataclasses.replace(ATOMS[1], requires=(), irreversible=False), ATOMS[2])
    atoms = (*atoms[:2], dataclasses.replace(atoms[2], requires=(), alternatives=(("taken",), ("hot",))))

    def with_status(*rows):
        record = make_record(len(rows) - 1, atoms=atoms)
        record = dataclasses.replace(record, status=np.array(rows, np.int8))
        return dataclasses.replace(make_rollout(len(rows) - 1), record=record)

    group = [
        with_status([2, 2, 2], [1, 2, 2], [1, 2, 1]),
        with_status([2, 2, 2], [1, 1, 2], [1, 1, 1]),
    ]
    inputs = inputs_of([group])
    assert inputs.requires[0, 0, 2].tolist() == [True, False, True, False, False]
    assert inputs.requires[0, 1, 2].tolist() == [False, False, True, False, False]
    assert inputs.usable[0, :, :3].tolist() == [[True, True, True], [True, True, False]]
    assert batching.atom_states(group[1], ()) == [
        "",
        "",
        "disjunction: placed <- taken or hot: 2 of 2 ways hold in state 2",
    ]


def test_actions_mention_atoms_whose_words_they_share():
    def rollout(actions, values):
        steps = len(actions)
        record = make_record(steps)
        record = dataclasses.replace(record, evidence=tuple((v, "", "In Drawer 2") for v in values))
        return dataclasses.replace(make_rollout(steps), actions=actions, record=record)

    group = [
        rollout(("go to fridge 1", "take the Egg", "look in 2"), ("", "", "egg 4", "egg 4")),
        rollout(("open drawer", "heat it until hot"), ("", "", "")),
    ]
    mentions = inputs_of([group]).mentions[0, :, :, :3].tolist()
    nothing = [False] * 3
    assert mentions[0] == [nothing, [True, True, False], [False, False, True], nothing, nothing, nothing]
    # The second rollout is measured against what the whole group saw.
    assert mentions[1][:2] == [[False, False, True], [False, True, False]]


def test_groups_that_disagree_are_refused():
    other = dataclasses.replace(TASK, id="t1")
    cases = {
        "disagree about its atoms": [make_rollout(2), make_rollout(2, atoms=ATOMS[:2], scored=(True, True))],
        "disagree about aggregator parameter 'scored'": [
            make_rollout(2),
            make_rollout(2, scored=(True, False, True)),
        ],
        r"mixes tasks \['t0', 't1'\]": [make_rollout(2), make_rollout(2, task=other)],
        "has 1 rollouts, expected group_size=2": [make_rollout(2)],
        "has 7 actions, above max_steps=6": [make_rollout(2), make_rollout(7)],
    }
    for message, group in cases.items():
        with pytest.raises(ValueError, match=message):
            inputs_of([group])
    with pytest.raises(ValueError, match="conforming has 2 flags for 1 groups"):
        inputs_of([[make_rollout(2), make_rollout(2)]], conforming=[True, True])


def test_tasks_beyond_the_domain_bounds_are_refused():
    group = [make_rollout(2), make_rollout(2)]
    with pytest.raises(ValueError, match=r"3 atoms, above Domain\.max_atoms=2"):
        inputs_of([group], domain=dataclasses.replace(DOMAIN, max_atoms=2))
    with pytest.raises(ValueError, match=r"3 variables, above Domain\.max_variables=2"):
        inputs_of([group], domain=dataclasses.replace(DOMAIN, max_variables=2))
    with pytest.raises(ValueError, match=r"parameters \['bonus', 'scored'\]"):
        inputs_of([group], domain=dataclasses.replace(DOMAIN, atom_params={"scored": True}))


# --- token rows -----------------------------------------------------------------------------------


def unpack(batch):
    """(rollout, step, ids, trained, logp) of every sequence found in the rows, sorted."""
    found = []
    for s, row in enumerate(batch.segment):
        for index in range(1, row.max() + 1):
            at = row == index
            trained = batch.loss_mask[s, at]
            assert batch.position[s, at].tolist() == list(range(at.sum()))
            owners = set(batch.rollout[s, at][trained].tolist()), set(batch.step[s, at][trained].tolist())
            found.append((*map(tuple, owners), tuple(batch.ids[s, at].tolist()), tuple(trained.tolist())))
    return sorted(found)


def test_token_rows_hold_every_sequence_once_under_its_rollout_and_step():
    groups = [[make_rollout(2), make_rollout(3)], [make_rollout(1, end=EndReason.ENV_ERROR), make_rollout(2)]]
    batch, report = packing.token_rows(groups, group_size=2, row_length=10, row_multiple=4)
    expected = [
        ((g * 2 + n,), (t,), tuple(s.ids.tolist()), tuple(s.trained.tolist()))
        for g, group in enumerate(groups)
        for n, rollout in enumerate(group)
        if not rollout.lost
        for t, s in enumerate(rollout.sequences)
    ]
    assert unpack(batch) == sorted(expected)
    assert batch.ids.shape == (4, 10)
    assert report == packing.RowReport(
        rows=4, tokens=28, trained_tokens=14, cut_sequences=0, cut_trained_tokens=0
    )
    assert (batch.behaviour_logp[batch.loss_mask] == -1.5).all()
    assert (batch.behaviour_logp[~batch.loss_mask] == 0).all()


def test_empty_rows_fill_up_to_the_multiple():
    batch, report = packing.pack_sequences([(0, sequence())], row_length=6, row_multiple=8)
    assert (batch.ids.shape, report.rows) == ((8, 6), 1)
    assert not batch.segment[1:].any()
    assert not batch.loss_mask[1:].any()


def test_first_fit_fills_rows_and_isolation_keeps_rollouts_apart():
    lengths = [7, 3, 6, 4, 5, 5]
    pairs = [(i % 2, sequence(length)) for i, length in enumerate(lengths)]
    packed, report = packing.pack_sequences(pairs, row_length=10)
    assert report.rows == 3
    assert ((packed.segment > 0).sum(axis=1) == 10).all()
    apart, _ = packing.pack_sequences(pairs, row_length=10, isolate_rollouts=True)
    for s in range(len(apart.ids)):
        assert len(set(apart.rollout[s][apart.loss_mask[s]].tolist())) == 1
    assert unpack(apart) == unpack(packed)


def test_sequences_are_packed_first_fit_in_order_of_length():
    """The rows are those of looking through all rows for each sequence, one by one."""
    rng = np.random.default_rng(0)
    for count in (1, 2, 7, 64, 300):
        pairs = [(i, sequence(int(length))) for i, length in enumerate(rng.integers(3, 33, count))]
        expected: list[list[int]] = []
        for i in sorted(range(count), key=lambda i: -len(pairs[i][1].ids)):
            size = len(pairs[i][1].ids)
            room = (row for row in expected if sum(len(pairs[k][1].ids) for k in row) + size <= 32)
            row = next(room, None)
            if row is None:
                expected.append([i])
            else:
                row.append(i)
        batch, report = packing.pack_sequences(pairs, row_length=32)
        assert report.rows == len(expected)
        last = np.diff(batch.segment, append=0) != 0  # of each sequence; trained, and so of a known rollout
        found = [row[ends].tolist() for row, ends in zip(batch.rollout, last, strict=True)]
        assert found == expected


def test_field_report_32_overlong_sequences_are_refused_or_cut_at_the_tail_and_counted():
    pairs = [(0, sequence(9, trained_from=5)), (1, sequence(4))]
    with pytest.raises(ValueError, match="a sequence has 9 tokens, above row_length=7"):
        packing.pack_sequences(pairs, row_length=7)
    batch, report = packing.pack_sequences(pairs, row_length=7, overlong=Overlong.CUT_TAIL)
    assert (report.cut_sequences, report.cut_trained_tokens, report.trained_tokens) == (1, 2, 4)
    # The head is kept, so what is trained still follows the prefix it was sampled after.
    assert batch.ids[0].tolist() == list(range(100, 107))


def test_packing_nothing_is_refused():
    with pytest.raises(ValueError, match="no token sequences"):
        packing.pack_sequences([], row_length=4)


# --- devices --------------------------------------------------------------------------------------


def test_transfers_are_explicit_and_keep_values():
    mesh = sharding.make_mesh()
    batch, _ = packing.pack_sequences([(0, sequence())], row_length=6)
    with jax.transfer_guard("disallow"):
        on_device = batching.to_device(batch, sharding.batch_sharding(mesh))
        again = batching.to_host(on_device)
    jax.tree.map(np.testing.assert_array_equal, again, batch)
    assert isinstance(on_device.ids, jax.Array)
    assert on_device.ids.sharding.is_equivalent_to(sharding.batch_sharding(mesh), 2)
