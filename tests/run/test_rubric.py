"""The binder of TRCA's rubric: on all environments against loops over the records, and case by case."""

from __future__ import annotations

import dataclasses
import pathlib
import types
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest

from envs.base import Domain, VerifierRecord
from envs.lookup import environment
from envs.verdict import Verdict
from examples import refunds
from tests.audit.logged import lose, with_unseen_step
from tests.run.small import small_config
from vict_jax import rubric, train
from vict_jax.audit.fresh import noisy_groups
from vict_jax.batching import EndReason, Rollout, credit_inputs
from vict_jax.config import from_config_dict
from vict_jax.job import open_job
from vict_jax.shares import share_of
from vict_jax.types import CreditInputs, Kind, Status

SIZE = 3
# Environment -> options that keep episodes short.
CASES: dict[str, dict[str, Any]] = {
    "alfworld": {"max_steps": 20},
    "webshop": {"products": 60},
    "search_qa": {},
    "tau_bench": {},
    "examples.refunds": {},
}


def bind(domain: Domain, options: Any, groups: list[list[Rollout]]) -> CreditInputs:
    inputs = credit_inputs(
        groups,
        domain=domain,
        max_steps=domain.max_steps(options) + 1,
        group_size=len(groups[0]),
        conforming=[True] * len(groups),
    )
    return rubric.add_needed(inputs, rubric.played_of(groups), needs={"rubric"}, domain=domain)


@pytest.fixture(scope="module", params=CASES)
def played(request: pytest.FixtureRequest) -> tuple[Domain, list[list[Rollout]], CreditInputs]:
    """A group of the noisy expert, one of its rollouts with a step that the environment never saw, and one
    with a lost rollout."""
    domain, make = environment(request.param)
    options = make(**CASES[request.param])
    tasks = domain.tasks(options, domain.splits[0])[:2]
    groups = noisy_groups(domain, options, tasks, group_size=SIZE, seed=4)
    groups[0][0], groups[1][1] = with_unseen_step(groups[0][0]), lose(groups[1][1])
    return domain, groups, bind(domain, options, groups)


def items(record: VerifierRecord) -> tuple[list[str], list[str]]:
    """Ids of the variables and atoms that are items, as far as one record tells."""
    read = {name for atom in record.atoms for name in atom.variables}
    observed = {v.id for v in record.variables if v.observation}
    evidence = [f"see {v.id}" for v in record.variables if v.observation and v.id in read]
    return evidence, [f"do {atom.id}" for atom in record.atoms if set(atom.variables) - observed]


def names_of(domain: Domain, record: VerifierRecord) -> list[str]:
    """A name for each item but those of Invalidity; "" on padding."""
    names = [f"see {v.id}" for v in record.variables] + [f"do {atom.id}" for atom in record.atoms]
    names[len(record.variables) : len(record.variables)] = [""] * (
        domain.max_variables - len(record.variables)
    )
    return names + [""] * (domain.max_atoms - len(record.atoms))


def fires(record: VerifierRecord, t: int) -> set[str]:
    """Evidence and Execution at step t, from the texts."""
    observed = {v.id for v in record.variables if v.observation}
    before, after = (
        dict(zip((v.id for v in record.variables), record.evidence[u], strict=True)) for u in (t, t + 1)
    )
    changed = {name for name in after if after[name] and after[name] != before[name]}
    evidence, atoms = items(record)
    found = {f"see {name}" for name in changed} & set(evidence)
    for j, atom in enumerate(record.atoms):
        touched = changed & set(atom.variables) - observed or record.scope[t, j]
        now, then = record.status[t + 1, j], record.status[t, j]
        if f"do {atom.id}" in atoms and touched and now == Status.SATISFIED != then:
            found.add(f"do {atom.id}")
    return found


def test_items_are_those_of_the_records(played: tuple[Domain, list[list[Rollout]], CreditInputs]) -> None:
    domain, groups, inputs = played
    assert inputs.rubric is not None
    assert inputs.rubric.shape[-1] == domain.max_variables + domain.max_atoms + len(rubric.INVALIDITY)
    seen = set()
    for g, group in enumerate(groups):
        records = [rollout.record for rollout in group if rollout.record is not None]
        names = names_of(domain, records[0])
        kinds = dict(zip(names, inputs.rubric_kind[g].tolist(), strict=False))
        evidence, atoms = items(records[0])
        at_start = np.stack([record.status[0] for record in records]) == Status.SATISFIED
        held = {f"do {records[0].atoms[j].id}" for j in np.flatnonzero(at_start.all(0))}
        assert {name for name in kinds if kinds[name] == Kind.EVIDENCE} == set(evidence)
        assert {name for name in kinds if kinds[name] == Kind.EXECUTION} == set(atoms) - held
        for n, rollout in enumerate(group):
            steps = 0 if rollout.record is None else len(rollout.actions)
            assert not inputs.rubric[g, n, steps:].any()
            for t in range(steps):
                assert rollout.record is not None
                fired = {names[j] for j in np.flatnonzero(inputs.rubric[g, n, t, : len(names)])}
                assert fired == fires(rollout.record, t) - held
                seen |= {kinds[name] for name in fired}
    assert seen == {Kind.EVIDENCE, Kind.EXECUTION}


def test_a_step_that_the_environment_never_saw_is_malformed(
    played: tuple[Domain, list[list[Rollout]], CreditInputs],
) -> None:
    _, groups, inputs = played
    at = -len(rubric.INVALIDITY)
    malformed = inputs.rubric[..., at + rubric.INVALIDITY.index("malformed")]
    expected = np.zeros_like(malformed)
    expected[0, 0, : len(groups[0][0].actions)] = ~groups[0][0].taken
    np.testing.assert_array_equal(malformed, expected)
    rejected = inputs.rubric[..., at + rubric.INVALIDITY.index("rejected")]
    assert not (rejected & malformed).any()


def test_contexts_tell_evidence_apart(played: tuple[Domain, list[list[Rollout]], CreditInputs]) -> None:
    """Steps of one context have the same evidence and statuses; every real step has a context."""
    _, _, inputs = played
    real = inputs.step_mask & inputs.rollout_mask[..., None]
    np.testing.assert_array_equal(inputs.context_id != 0, real)
    for g in range(len(real)):
        state = np.concatenate([inputs.evidence[g, :, :-1], inputs.status[g, :, :-1]], axis=-1)[real[g]]
        ids = inputs.context_id[g][real[g]]
        assert 1 < len(set(ids.tolist())) < len(ids)
        for one in set(ids.tolist()):
            assert len(np.unique(state[ids == one], axis=0)) == 1


# --- the refund desk, action by action ------------------------------------------------------------


def desk(actions: Sequence[str]) -> tuple[Rollout, refunds.RefundDesk]:
    task = refunds.tasks(refunds.Options(), "train")[0]
    env = refunds.RefundDesk(refunds.Options())
    observations, valid = [env.reset(task).text], []
    for action in actions:
        result = env.step(action.format(wanted=env.wanted[0], wrong=_wrong(env)))
        observations.append(result.observation.text)
        valid.append(result.info["valid"])
    record, steps = env.record(), len(actions)
    played = Rollout(
        task=task,
        sequences=(),
        actions=tuple(action.format(wanted=env.wanted[0], wrong=_wrong(env)) for action in actions),
        observations=tuple(observations),
        taken=np.ones(steps, bool),
        valid=np.array(valid),
        record=record,
        score=record.score,
        end=EndReason.FAILURE,
    )
    return played, env


def _wrong(env: refunds.RefundDesk) -> str:
    state, method = env.orders[env.wanted[0]]
    return "credit" if state == "sealed" else method


def test_invalidity() -> None:
    actions = [
        "refund to cash",  # nothing is open
        "list orders",
        "list orders",  # once more
        "open {wanted}",
        "refund to {wrong}",
        "refund to {wrong}",  # once only
    ]
    rollout, _ = desk(actions)
    inputs = bind(refunds.DOMAIN, refunds.Options(), [[rollout, rollout]])
    assert inputs.rubric is not None
    found = inputs.rubric[0, 0, : len(actions), -len(rubric.INVALIDITY) :]
    names = [{rubric.INVALIDITY[j] for j in np.flatnonzero(row)} for row in found]
    assert names == [{"rejected"}, set(), {"no_op"}, set(), {"violated"}, {"rejected"}]
    # The second list comes from another observation than the first; a third is a repetition.
    again, _ = desk(["list orders", "list orders", "list orders"])
    inputs = bind(refunds.DOMAIN, refunds.Options(), [[again, again]])
    assert inputs.rubric is not None
    found = inputs.rubric[0, 0, :3, -len(rubric.INVALIDITY) :]
    names = [{rubric.INVALIDITY[j] for j in np.flatnonzero(row)} for row in found]
    assert names == [set(), {"no_op"}, {"no_op", "repeated"}]


def test_evidence_and_execution_of_the_desk() -> None:
    rollout, env = desk(["list orders", "open {wanted}", "refund to {wrong}", "close ticket"])
    inputs = bind(refunds.DOMAIN, refunds.Options(), [[rollout, rollout]])
    record = env.record()
    names = names_of(refunds.DOMAIN, record)
    assert inputs.rubric is not None
    fired = [{names[j] for j in np.flatnonzero(row[: len(names)])} for row in inputs.rubric[0, 0, :4]]
    assert fired == [{"see orders"}, {"see details_1"}, set(), {"do ticket_closed"}]
    kinds = dict(zip(names, inputs.rubric_kind[0].tolist(), strict=False))
    assert kinds["do nothing_else"] == Kind.NONE  # holds from the start: nothing to do
    assert kinds["do refunded_1"] == kinds["do ticket_closed"] == Kind.EXECUTION


def test_nothing_is_made_unless_a_method_needs_it() -> None:
    rollout, _ = desk(["list orders"])
    options, groups = refunds.Options(), [[rollout, rollout]]
    plain = dataclasses.replace(
        bind(refunds.DOMAIN, options, groups), rubric=None, rubric_kind=None, context_id=None
    )
    same = rubric.add_needed(plain, rubric.played_of(groups), needs={"state_terms"}, domain=refunds.DOMAIN)
    assert same is plain
    other = [[rubric.played_of(groups)[0][0], rubric.NOTHING_PLAYED]]
    with pytest.raises(ValueError, match=r"played has rollouts of \[\[1, 0\]\] steps, but the batch has"):
        rubric.add_needed(plain, other, needs={"context_id"}, domain=refunds.DOMAIN)


def test_the_training_loop_makes_what_the_method_needs(tmp_path: pathlib.Path) -> None:
    config = small_config().unlock()
    config.env.max_steps = 20
    config.credit.method = "trca"
    with open_job(from_config_dict(config), tmp_path) as job:
        groups = noisy_groups(job.domain, job.config.env.options, job.train_tasks[:2], group_size=4, seed=1)
        shape = (2, 4, job.max_steps)
        values = {name: np.zeros(shape, np.float32) for name in ("penalty", "value")}
        played, scored = types.SimpleNamespace(groups=groups), types.SimpleNamespace(inputs=values)
        share = share_of(range(2))
        inputs, output = train.credit(job, cast(Any, played), cast(Any, scored), 1, Verdict(), share)
    expected = rubric.add_needed(inputs, rubric.played_of(groups), needs={"rubric"}, domain=job.domain)
    for name in rubric.FIELDS:
        np.testing.assert_array_equal(getattr(inputs, name), getattr(expected, name))
    assert len(np.unique(output.advantages)) > 10


# --- notes of the environments --------------------------------------------------------------------


def contexts(name: str, observations: Sequence[str], actions: Sequence[str], valid: Sequence[bool]) -> list:
    return [note.context for note in environment(name)[0].notes(observations, actions, valid)]


def test_notes_of_the_household() -> None:
    texts = [
        "You are in the middle of a room.",
        "You arrive at drawer 1. The drawer 1 is closed.",
        "You open the drawer 1. The drawer 1 is open. In it, you see a mug 2.",
        "You pick up the mug 2 from the drawer 1.",
        "Nothing happens.",
        "You arrive at shelf 1. On the shelf 1, you see nothing.",
        "You move the mug 2 to the shelf 1.",
    ]
    found = contexts("alfworld", texts, [""] * len(texts), [True] * len(texts))
    assert found == [
        "at the middle of the room, as found, holding nothing",
        "at drawer 1, as found, holding nothing",
        "at drawer 1, open, holding nothing",
        "at drawer 1, open, holding mug 2",
        "at drawer 1, open, holding mug 2",
        "at shelf 1, as found, holding mug 2",
        "at shelf 1, as found, holding nothing",
    ]


def test_notes_of_the_shop_are_the_pages_of_its_session() -> None:
    """Followed through actions alone, they agree with the shop's own page, list and product."""
    domain, make = environment("webshop")
    env = domain.make(make(products=60, per_page=1))
    task = domain.tasks(make(products=60, per_page=1), "train")[0]
    actions, valid, pages = list[str](), list[bool](), list[str]()
    env.reset(task)
    session = env._session  # the state that notes are to follow
    search = f"search[<c> {session.goal.product.category}]"  # all of its kind
    wanted = [
        search, "click[next >]", "click[< prev]", "click[next >]", "ITEM", "click[features]",
        "click[< prev]", "click[nowhere]", "OPTION", "click[description]", "click[< prev]", "click[< prev]",
        "click[back to search]", "search[]", search, "ITEM", "click[buy now]",
    ]  # fmt: skip
    for action in wanted:
        product = session.product.asin.lower() if session.product else ""
        pages.append(f"{session.page}, results {session.number}, {product}")
        if action == "ITEM":
            action = f"click[{session._view.products[0].lower()}]"
        if action == "OPTION":
            last = set(session._view.clickables) - {"back to search", "< prev", "buy now"}
            action = f"click[{sorted(last - {'description', 'features', 'reviews'})[0]}]"
        actions.append(action)
        valid.append(env.step(action).info["valid"])
    assert valid.count(False) == 2
    assert contexts("webshop", [""] * len(actions), actions, valid) == pages


def test_notes_of_search_and_of_conversations() -> None:
    replies = [f"<search> {query} </search>" for query in ("Who?", "the who", "what")] + ["hm", "<answer>"]
    assert contexts("search_qa", [""] * 5, replies, [True] * 5) == [
        "after none, 0 searches, no query",
        "after search, 1 searches, new query",
        "after search, 2 searches, query repeated",
        "after search, 3 searches, new query",
        "after no tool, 3 searches, new query",
    ]
    notes = environment("tau_bench")[0].notes(
        ["Hello", "Error: user not found", "user ok"],
        ["find_user_id_by_email a@b", "find_user_id_by_email c@d", "what?"],
        [True, True, False],
    )
    assert [note.context for note in notes] == [
        "after the opening",
        "after find_user_id_by_email, which failed",
        "after find_user_id_by_email",
    ]
    assert [note.refused for note in notes] == [True, False, False]
