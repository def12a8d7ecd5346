"""Slots that are refilled, prompts that are shared, examples, and stop strings in whole collections."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest

from envs.pool import EnvPool
from tests.rollout.test_collector import (
    APPEND,
    CODEC,
    DOMAIN,
    KEY,
    TASKS,
    TOY,
    ScriptedSampler,
    flat,
    play,
    random_script,
    real_options,
    run,
    same,
)
from vict_jax.batching import EndReason
from vict_jax.models import decoder, likelihood
from vict_jax.models.config import ModelConfig
from vict_jax.packing import token_rows
from vict_jax.rollout.collector import collect, demonstrations, expert_examples, open_sessions
from vict_jax.rollout.options import RolloutOptions
from vict_jax.rollout.parser import ReplyFormat, reply_text
from vict_jax.rollout.template import PastAction, make_template, situation
from vict_jax.rollout.tokenizer import first_stop


@pytest.fixture(scope="module")
def model():
    config = ModelConfig(
        vocab_size=len(CODEC.tokenizer),
        num_layers=1,
        d_model=32,
        num_heads=2,
        num_kv_heads=1,
        head_dim=16,
        d_ff=64,
        max_positions=512,
    )
    return decoder.init(config, jax.random.key(0))


def test_a_slot_takes_the_next_rollout_at_once():
    """With 3 slots: never fewer rollouts in play while one waits."""
    sizes = []

    class Watched(ScriptedSampler):
        def extend(self, rows, tokens, keys):
            sizes.append(len(rows))
            return super().extend(rows, tokens, keys)

    sampler = Watched(random_script)
    ending = dataclasses.replace(APPEND, invalid="end")
    options = dataclasses.replace(ending, rows=3)
    with EnvPool(DOMAIN, TOY, workers=0, timeout_s=1.0) as pool:
        result = collect(pool, [sampler], CODEC, TASKS, rollouts=4, key=KEY, options=options, max_steps=6)
    expected, _ = run(options=ending)
    assert all(map(same, flat(result.groups), flat(expected.groups)))
    lengths = [len(rollout.actions) for rollout in flat(result.groups)]
    assert len(set(lengths)) > 1
    assert sum(sizes) == sum(lengths)
    waits = -(-(sum(lengths) - max(lengths) * 2) // 3)
    assert sizes[:waits] == [3] * waits
    assert len(sizes) < sum(max(lengths[i : i + 3]) for i in range(0, 12, 3))  # fewer than in waves of 3


def test_a_reset_that_fails_leaves_its_slot_to_the_next():
    toy = dataclasses.replace(TOY, unlucky=True)
    tasks = [DOMAIN.tasks(toy, "train")[i] for i in (1, 13, 2, 13, 13, 3)]
    result, _ = run(toy=toy, tasks=tasks, rollouts=1, options=dataclasses.replace(APPEND, rows=2))
    ends = [rollout.end is EndReason.ENV_ERROR for rollout in flat(result.groups)]
    assert ends == [False, True, False, True, True, False]
    alone, _ = run(toy=toy, tasks=tasks, rollouts=1, options=APPEND)
    assert all(map(same, flat(result.groups), flat(alone.groups)))


@pytest.mark.parametrize("context", ["window", "append"])
def test_the_real_sampler_shares_and_refills_without_a_difference(model, context):
    """Chat with examples: 12 rollouts in 12 rows, and in 3 that are refilled; counts say what was shared."""
    options = RolloutOptions(
        context=context, template="chat", few_shot=2, list_admissible=False, max_new_tokens=6, max_context=400
    )
    results = []
    with EnvPool(DOMAIN, TOY, workers=0, timeout_s=20.0) as pool:
        examples = expert_examples(pool, DOMAIN.tasks(TOY, "train"), options)
        for rows, lanes in ((12, 1), (3, 1), (6, 2)):
            chosen = dataclasses.replace(options, rows=rows, lanes=lanes)
            sessions = open_sessions(*model, CODEC, chosen, examples=examples)
            more = {"options": chosen, "examples": examples, "max_steps": 6}
            results.append(collect(pool, sessions, CODEC, TASKS, rollouts=4, key=KEY, **more))
            compiled = set().union(*(session.compiled for session in sessions))
            assert results[-1].counts.compiled == len(compiled) <= sessions[0].shapes.most_programs
    one, *others = results
    for other in others:
        assert all(map(same_but_logp, flat(one.groups), flat(other.groups)))
    opening = len(make_template(CODEC, options, examples).opening)
    starts = 12 if context == "append" else one.counts.steps
    for sessions, result in zip((1, 1, 2), results, strict=True):  # each computes the opening once
        assert result.counts.shared_tokens >= (starts - sessions) * opening
        assert result.counts.shared_tokens < result.counts.prompt_tokens
    batch, _ = token_rows(one.groups, group_size=4, row_length=400)
    graphdef, params = model
    hidden, _ = decoder.apply(graphdef, params, batch.ids, batch.segment, batch.position)
    logp = likelihood.token_logp(graphdef, params, hidden[:, :-1], batch.ids[:, 1:], 1.0)
    mask = np.asarray(batch.loss_mask)[:, 1:]
    assert np.abs(np.asarray(logp) - np.asarray(batch.behaviour_logp)[:, 1:])[mask].max() < 1e-4


def same_but_logp(left, right):
    """Equal, log-probabilities up to rounding: programs of other sizes add up in another order."""
    for a, b in zip(left.sequences, right.sequences, strict=True):
        np.testing.assert_allclose(a.logp, b.logp, atol=1e-5)
        np.testing.assert_array_equal(a.ids, b.ids)
        np.testing.assert_array_equal(a.trained, b.trained)
    return (left.actions, left.observations, left.end) == (right.actions, right.observations, right.end)


def test_examples_are_solved_steps_of_training_tasks():
    options = RolloutOptions(template="chat", few_shot=3, reply="action", max_context=2000)
    tasks = DOMAIN.tasks(TOY, "train")
    with EnvPool(DOMAIN, TOY, workers=2, timeout_s=20.0) as pool:
        examples = expert_examples(pool, tasks, options)
        again = expert_examples(pool, tasks, options)
        with pytest.raises(ValueError, match="few_shot=3 is above the 2 tasks"):
            expert_examples(pool, tasks[:2], options)
        (demo,) = demonstrations(pool, CODEC, tasks[:1], options=options, max_steps=6, examples=examples)
    assert examples == again
    assert expert_examples(None, tasks, dataclasses.replace(options, few_shot=0)) == ()
    for step, example in enumerate(examples):
        texts = [piece for piece in example.pieces if isinstance(piece, str)]
        done = [piece.text for piece in example.pieces if isinstance(piece, PastAction)]
        assert len(done) == step
        assert "Your task is to: open the chest." in texts[0]
        listed = texts[texts.index("Commands:\n") + 1 :: 2]
        assert example.reply in {f"<action>{command}</action>" for command in listed}
    # They come first in every prompt, untrained.
    text = CODEC.decode(demo.sequences[0].ids[~demo.sequences[0].trained])
    assert text.count("<|im_start|>assistant\n<action>") == 3
    said = CODEC.decode(demo.sequences[0].ids[demo.sequences[0].trained])
    assert said.count("<action>") == 1


def test_examples_of_a_growing_context_are_first_turns():
    options = RolloutOptions(context="append", template="chat", few_shot=3, max_context=2000)
    with EnvPool(DOMAIN, TOY, workers=0, timeout_s=20.0) as pool:
        tasks = DOMAIN.tasks(TOY, "train")
        examples = expert_examples(pool, tasks, options)
        told = [situation(pool.reset({0: task})[0], options) for task in tasks]
    assert len(examples) == 3
    assert all(list(example.pieces) in told for example in examples)


def test_stop_strings_end_demonstrations_and_are_read_as_a_part_of_the_reply():
    options = dataclasses.replace(APPEND, reply="action", stop_strings=("</action>",))
    with EnvPool(DOMAIN, TOY, workers=0, timeout_s=1.0) as pool:
        (demo,) = demonstrations(pool, CODEC, TASKS[:1], options=options, max_steps=6)
    assert demo.score == 1.0
    (sequence,) = demo.sequences
    said = CODEC.decode(sequence.ids[sequence.trained])
    assert said == "".join(f"<action>{action}</action>" for action in demo.actions)
    # The end token stands behind it in the context, not trained.
    ends = np.flatnonzero(sequence.ids == CODEC.end_id)
    assert len(ends) == len(demo.actions) - 1
    assert not sequence.trained[ends].any()


@pytest.mark.parametrize(
    ("text", "reply_format", "expected"),
    [
        ("go\n\nmore", ReplyFormat.LINE, "go"),
        ("go", ReplyFormat.LINE, "go"),
        ("<action>go</action>\n\nx", ReplyFormat.ACTION, "<action>go</action>"),
        ("a\n\n<action>", ReplyFormat.ACTION, "a\n\n"),
    ],
)
def test_field_report_23_nothing_behind_a_stop_string_is_read(text, reply_format, expected):
    assert reply_text(text, reply_format, ("</action>", "\n\n")) == expected


def test_a_model_that_says_a_stop_string(model):
    """Replies of the real sampler: cut at the first stop string, equal to those without up to there."""
    stop = ("o", "e")
    plain = dataclasses.replace(real_options("append"), max_new_tokens=12, max_context=300)
    stopping = dataclasses.replace(plain, stop_strings=stop)
    whole, ended = play(model, plain), play(model, stopping)
    cut = 0
    for a, b in zip(flat(whole.groups), flat(ended.groups), strict=True):
        first_a, first_b = (
            r.sequences[0].ids[(r.sequences[0].step == 0) & r.sequences[0].trained] for r in (a, b)
        )
        count = first_stop(CODEC, first_a.tolist(), stop)
        assert first_b.tolist() == first_a[:count].tolist()
        cut += count is not None and count < len(first_a)
    assert cut


class Order(ScriptedSampler):
    """Writes down when it speaks."""

    def __init__(self, script, events):
        super().__init__(script)
        self.events = events

    def extend(self, rows, tokens, keys):
        self.events.append("speak")
        return super().extend(rows, tokens, keys)


class OrderedPool(EnvPool):
    """Writes down when it is asked and when it answers."""

    def __init__(self, *args, events, **kwargs):
        self.events = events
        super().__init__(*args, **kwargs)

    def ask(self, actions):
        self.events.append("ask")
        super().ask(actions)

    def answers(self):
        self.events.append("answers")
        return super().answers()


@pytest.mark.parametrize("rows", [2, 4, 12, 100])
def test_two_lanes_play_the_same_and_one_speaks_while_the_other_acts(rows):
    events: list[str] = []
    options = dataclasses.replace(APPEND, rows=rows, lanes=2)
    samplers = [Order(random_script, events) for _ in range(2)]
    with OrderedPool(DOMAIN, TOY, workers=1, timeout_s=5.0, events=events) as pool:
        result = collect(pool, samplers, CODEC, TASKS, rollouts=4, key=KEY, options=options, max_steps=6)
    alone, _ = run(options=APPEND)
    assert all(map(same, flat(result.groups), flat(alone.groups)))
    assert result.counts == alone.counts
    # As long as both lanes play, a lane speaks between each question and its answers.
    both = events[: events.index("speak", len(events) // 3)]
    asked = [i for i, event in enumerate(both[:-2]) if event == "ask"]
    assert asked
    assert all(both[i + 1 : i + 3] == ["speak", "answers"] for i in asked[:-1])


def test_each_lane_needs_a_sampler():
    options = dataclasses.replace(APPEND, rows=4, lanes=2)
    with EnvPool(DOMAIN, TOY, workers=0, timeout_s=5.0) as pool, pytest.raises(ValueError, match="lanes=2"):
        collect(
            pool,
            [ScriptedSampler(random_script)],
            CODEC,
            TASKS,
            rollouts=4,
            key=KEY,
            options=options,
            max_steps=6,
        )


@pytest.mark.parametrize(("rows", "lanes"), [(4, 3), (4, 0), (5, 2)])
def test_lanes_divide_the_rows(rows, lanes):
    with pytest.raises(ValueError, match=f"lanes={lanes} must be 1 or 2"):
        dataclasses.replace(APPEND, rows=rows, lanes=lanes)
