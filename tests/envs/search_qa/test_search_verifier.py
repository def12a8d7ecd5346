"""The verifier interface: every atom and relation on episodes made by hand, F, and conformance."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs import conformance
from envs.base import ScoreRole, Status, Task, hash_evidence
from envs.closure import requirement_closure
from envs.search_qa import domain, expert, generator, score, verifier
from envs.search_qa.data import MAX_FACTS, Question
from envs.search_qa.domain import DOMAIN, SearchQaEnv, SearchQaOptions

U, S, N, V = Status.UNKNOWN, Status.SATISFIED, Status.UNSATISFIED, Status.VIOLATED
WORLD = generator.make_world(5)
TWO_HOP = next(q for q in WORLD.questions if q.text.startswith("In which country was"))
TASK = Task("x", "two_hop", "train", 5, TWO_HOP.to_json())
FIRST, SECOND = (f"<search> {fact} </search>" for fact in TWO_HOP.facts)
GOLD, WRONG = TWO_HOP.answers[0], TWO_HOP.facts[1]
THOUGHT = "<think> hm </think>"


def answer(text):
    return f"<answer> {text} </answer>"


def play(*actions, task=TASK, **options):
    env = SearchQaEnv(SearchQaOptions(topk=1, **options))
    env.reset(task)
    for action in actions:
        env.step(action)
    return env.record()


def status(record, atom):
    return [Status(value) for value in record.status[:, [a.id for a in record.atoms].index(atom)]]


def test_a_solved_question():
    record = play(FIRST, SECOND, answer(GOLD))
    assert status(record, "retrieved_1") == [U, S, S, S]
    assert status(record, "retrieved_2") == [U, U, S, S]
    assert status(record, "unsupported") == [S, S, N, N]
    assert status(record, "answered") == [N, N, N, S]
    assert status(record, "exact_match") == [N, N, N, S]
    assert status(record, "format_valid") == [S] * 4
    assert record.commits.tolist() == [False, False, True]
    scope = {atom.id for atom, held in zip(record.atoms, record.scope[2], strict=True) if held}
    assert scope == {"answered", "exact_match"}
    assert not record.scope[:2].any()
    assert record.score == 1
    roles = {atom.id for atom in record.atoms if atom.role is ScoreRole.SUPPORT}
    assert roles == {"retrieved_1", "retrieved_2", "unsupported"}
    revealed = {v.id for v in record.variables if v.observation}
    assert revealed == {"passage_1", "passage_2"}


@pytest.mark.parametrize(
    ("actions", "rests_on"),
    [
        ((FIRST, SECOND, answer(GOLD)), {"retrieved_1", "retrieved_2"}),
        ((FIRST, SECOND, answer(WRONG)), {"retrieved_1", "retrieved_2"}),
        ((FIRST, SECOND), {"retrieved_1", "retrieved_2"}),
        ((answer(GOLD),), {"unsupported"}),
        ((FIRST, answer(GOLD)), {"unsupported"}),
        ((FIRST, answer(WRONG)), {"unsupported"}),
        ((), {"unsupported"}),
        # A draft counts as an answer of the text, and keeps what it rested on when it became right.
        ((f"<search> {answer(GOLD)} </search>", FIRST, SECOND), {"unsupported"}),
        ((f"<search> {answer(WRONG)} </search>", FIRST, SECOND), {"retrieved_1", "retrieved_2"}),
    ],
)
def test_what_a_match_rests_on_is_always_settled(actions, rests_on):
    record = play(*actions)
    closure = requirement_closure(record.atoms, record.status)
    assert not any(closure.unsettled)
    ids = [atom.id for atom in record.atoms]
    required = {ids[k] for k in np.flatnonzero(closure.requires[ids.index("exact_match")])}
    assert required == rests_on | {"answered", "exact_match"}
    assert not list(conformance.faults(record))


def test_a_wrong_answer_is_final_and_a_draft_is_not():
    wrong = play(FIRST, SECOND, answer(WRONG))
    assert status(wrong, "exact_match")[-1] is V
    assert (status(wrong, "answered")[-1], wrong.score) == (S, 0)
    draft = play(f"<search> {answer(WRONG)} </search>", answer(GOLD))
    assert status(draft, "exact_match") == [N, N, S]
    assert draft.commits.tolist() == [False, True]
    assert [row[-1] for row in draft.evidence] == ["none", f"draft: {WRONG}", f"final: {GOLD}"]


def test_long_answers_and_lone_surrogates_are_evidence_like_any_other():
    long = [play(answer("x" * 50_000 + end)).evidence[-1][-1] for end in ("a", "b", "ab")]
    assert len(set(long)) == 3
    assert max(map(len, long)) < 300
    odd = play(answer("\ud800")).evidence
    assert (hash_evidence(odd)[:, -1] > 0).all()


def test_stepping_after_the_end_changes_nothing():
    env = SearchQaEnv(SearchQaOptions())
    env.reset(TASK)
    assert env.step(answer(WRONG)).done
    before = env.record()
    for late in (answer(GOLD), FIRST, ""):
        result = env.step(late)
        assert (result.done, result.info["valid"], result.observation.text) == (True, False, "")
    after = env.record()
    assert after.score == 0
    assert (after.status[2:] == before.status[-1]).all()
    assert after.commits.tolist() == [True, False, False, False]
    assert set(after.evidence[1:]) == {before.evidence[-1]}


def test_format_is_broken_by_what_the_reward_calls_so():
    assert status(play("hm", answer(GOLD)), "format_valid") == [S, V, V]
    assert status(play(answer(GOLD)), "format_valid") == [S, S]
    graded = {"reward": "format"}
    assert status(play(THOUGHT + FIRST, answer(GOLD), **graded), "format_valid") == [S, S, V]
    kept = play(THOUGHT + FIRST, THOUGHT + SECOND, THOUGHT + answer(GOLD), **graded)
    assert (status(kept, "format_valid"), kept.score, kept.eta) == ([S] * 4, 1, 1e-6)


def test_without_supporting_facts_the_evidence_is_a_passage_with_a_golden_answer():
    question = Question("q", "nq", TWO_HOP.text, TWO_HOP.answers)
    task = Task("x", "nq", "train", 5, question.to_json())
    record = play(FIRST, SECOND, answer(GOLD), task=task)
    assert [atom.id for atom in record.atoms][:2] == ["retrieved_1", "unsupported"]
    assert status(record, "retrieved_1") == [U, U, S, S]
    # Part of a word is no answer.
    part = Question("q", "nq", TWO_HOP.text, (GOLD[:-1],))
    assert status(play(SECOND, task=Task("x", "nq", "train", 5, part.to_json())), "retrieved_1") == [U, U]


def test_what_a_policy_invents_is_no_evidence():
    passage = next(p for p in WORLD.passages if p.name == TWO_HOP.facts[0].casefold())
    invented = f"<information>Doc 1(Title: {passage.title}) {passage.text}</information>"
    record = play(invented, f"{invented} <search> zzz </search>")
    assert status(record, "retrieved_1") == [U, U, U]


def test_f_on_every_combination_in_numpy_and_jax():
    values = {"em": {}, "format": score.FORMAT_SCORES}
    for reward, combination in itertools.product(values, itertools.product((False, True), repeat=3)):
        right, answered, valid = combination
        params = play(reward=reward).params
        held = params["right"] & right | params["answered"] & answered | params["valid"] & valid
        expected = float(right) if reward == "em" else values[reward][right, valid] * float(answered or right)
        assert float(verifier.aggregate(held, params)) == pytest.approx(expected, abs=1e-6)
        jitted = jax.jit(verifier.aggregate)(jnp.asarray(held), dict(params))
        assert float(jitted) == pytest.approx(expected, abs=1e-6)


def test_bounds_hold_for_the_most_facts():
    question = Question("q", "musique", "who?", ("a",), tuple(f"T{i}" for i in range(MAX_FACTS)))
    record = play(task=Task("x", "musique", "train", 5, question.to_json()))
    assert (len(record.atoms), len(record.variables)) == (DOMAIN.max_atoms, DOMAIN.max_variables)
    with pytest.raises(ValueError, match="has 7 supporting titles"):
        Question("q", "musique", "who?", ("a",), tuple(f"T{i}" for i in range(MAX_FACTS + 1)))


@pytest.mark.parametrize("reward", verifier.REWARDS)
def test_conformance_on_generated_worlds(reward):
    # All 1,000 are played by the command in docs/search_qa.md; these are enough to notice a change.
    options = SearchQaOptions(num_train=1000, reward=reward)
    chosen = domain.tasks(options, "train")[:: 20 if reward == "em" else 40]
    report = conformance.check(DOMAIN, options, chosen, rollouts=1)
    assert report.conforming
    assert report.share(kind="expert").won == len(chosen)
    mutated = report.share(kind="mutated")
    assert mutated.rollouts == (25 if reward == "em" else 50) * len(chosen)
    assert 0.1 < mutated.won / mutated.rollouts < 0.8


def test_conformance_on_real_questions(shared_dir):
    options = SearchQaOptions(data_dir=str(shared_dir / "data" / "searchqa"))
    chosen = domain.tasks(options, "valid")[:28]
    assert {task.type for task in chosen} == set(options.datasets)
    report = conformance.check(DOMAIN, options, chosen, rollouts=1)
    assert report.conforming
    assert report.share(kind="expert").won > 0.1 * len(chosen)


def test_the_expert_of_the_worlds_solves_them_in_the_fewest_steps():
    options = SearchQaOptions(num_train=1000)
    env = SearchQaEnv(options)
    for task in domain.tasks(options, "train")[::7]:
        env.reset(task)
        actions = 0
        while not env.step(env.expert_action()).done:
            actions += 1
        assert (env.record().score, actions) == (1, 1 if task.type == "one_hop" else 2)


def test_the_expert_acts_on_what_was_shown():
    relation, name = expert.understand(TWO_HOP.text)[0][0], TWO_HOP.facts[0]
    both = {FIRST, f"<search> {name} {generator.KINDS[relation]} </search>"}
    memory = expert.Memory(TWO_HOP.text, 5, thinks=False)
    first = expert.read_world(memory)
    assert first in both
    expert.notice(memory, first[9:-10], "\n\n<information></information>\n\n")
    assert {first, expert.read_world(memory)} == both  # it asks in other words
    told = f'\n\n<information>Doc 1(Title: "{name}") {name}'
    sentence = generator.STATEMENTS[relation].format(s="", o="Somebody Else", job="nurse")
    expert.notice(memory, "x", f"{told}{sentence} Nothing more.</information>\n\n")
    assert expert.read_world(memory).startswith("<search> Somebody Else")
    memory.turns_left = 1
    assert expert.read_world(memory) == answer("Somebody Else")
    with pytest.raises(ValueError, match="is no question of a generated world"):
        expert.understand("Why?")
