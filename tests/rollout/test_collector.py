"""Collections of rollouts, with a scripted sampler and with the real one."""

from __future__ import annotations

import dataclasses
import itertools

import jax
import numpy as np
import pytest

from envs.base import Status
from envs.pool import EnvPool
from tests.envs import toy_env
from tests.envs.toy_env import DOMAIN, ToyOptions
from vict_jax import shaping
from vict_jax.batching import EndReason, credit_inputs
from vict_jax.models import decoder, likelihood
from vict_jax.models.config import ModelConfig
from vict_jax.packing import token_rows
from vict_jax.rollout import episode
from vict_jax.rollout.collector import collect, demonstrations, open_session, sampling_shapes
from vict_jax.rollout.episode import spread_record
from vict_jax.rollout.options import RolloutOptions
from vict_jax.rollout.parser import ReplyFormat, format_reply
from vict_jax.rollout.session import Sample
from vict_jax.rollout.tokenizer import Codec, action_tokens, train_tokenizer
from vict_jax.shaping import RewardOptions

TOY = ToyOptions(doors=3, max_steps=6)
TASKS = DOMAIN.tasks(TOY, "train")[:3]
CODEC = Codec(train_tokenizer([*toy_env.corpus(TOY), "Commands:\nNothing happens. fly to moon\n"] * 3, 400))
KEY = jax.random.key(7)
OPTIONS = RolloutOptions(max_context=300)
ENDLESS = "\x00"  # in a script: a reply that is cut off


class ScriptedSampler:
    """Says what a script says, and keeps what it was given as the real session does.

    `script(text, key)` gets all text before the reply and the row's key. `contexts` holds, per reply, all
    ids before it; `keys` their keys.
    """

    def __init__(self, script):
        self.script, self.compiled, self.shared_tokens = script, set(), 0
        self.contexts, self.keys, self.replies = [], [], []

    def start(self, rows):
        self._rows = {row: [] for row in range(rows)}

    def restart(self, rows):
        for row in rows:
            assert row in self._rows
            self._rows[row] = []

    def release(self, rows):
        for row in rows:
            del self._rows[row]

    def extend(self, rows, tokens, keys):
        return [self._reply(row, new.tolist(), key) for row, new, key in zip(rows, tokens, keys, strict=True)]

    def _reply(self, row, new, key):
        known = self._rows[row]
        assert not known or new[0] == known[-1], "a next prompt starts with the last sampled token"
        context = known[:-1] + new
        text = self.script(CODEC.decode(context), key)
        ids = CODEC.reply(text.removesuffix(ENDLESS))
        stopped = not text.endswith(ENDLESS)
        ids = np.array([*ids, CODEC.end_id] if stopped else ids, np.int32)
        logp = -np.arange(1, len(ids) + 1, dtype=np.float32)
        self._rows[row] = context + ids.tolist()
        self.contexts.append(context)
        self.keys.append(tuple(key.tolist()))
        self.replies.append(ids.tolist())
        return Sample(ids, logp, stopped)


def listed(text):
    """The admissible commands of a prompt."""
    return text.rpartition("Commands:\n")[2].rpartition("\n")[0].splitlines()


def random_script(text, key):
    """A policy that depends on the prompt and the key: mostly a listed command, sometimes rubbish."""
    commands = [*listed(text)] * 4 + ["fly to moon", "", "next\ndoor", "next do" + ENDLESS]
    return commands[int(key[0]) % len(commands)]


def run(
    script=random_script, options=OPTIONS, toy=TOY, workers=0, tasks=TASKS, rollouts=4, timeout_s=1.0, **more
):
    sampler = ScriptedSampler(script)
    with EnvPool(DOMAIN, toy, workers=workers, timeout_s=timeout_s, grace_s=1.0) as pool:
        result = collect(
            pool,
            [sampler],
            CODEC,
            tasks,
            rollouts=rollouts,
            key=KEY,
            options=options,
            max_steps=DOMAIN.max_steps(toy),
            **more,
        )
    return result, sampler


def flat(nested):
    return [item for row in nested for item in row]


def same(left, right):
    """Whether two rollouts agree in everything."""
    return (
        left.task == right.task
        and (left.actions, left.observations, left.end) == (right.actions, right.observations, right.end)
        and left.score == right.score
        and left.valid.tolist() == right.valid.tolist()
        and len(left.sequences) == len(right.sequences)
        and all(
            np.array_equal(getattr(a, field.name), getattr(b, field.name))
            for a, b in zip(left.sequences, right.sequences, strict=True)
            for field in dataclasses.fields(a)
        )
    )


@pytest.mark.parametrize("context", ["window", "append"])
def test_results_depend_neither_on_workers_nor_on_rows_in_play(context):
    options = dataclasses.replace(OPTIONS, context=context)
    expected, sampler = run(options=options)
    assert [rollout.task for rollout in flat(expected.groups)] == [t for t in TASKS for _ in range(4)]
    assert len(set(sampler.keys)) == len(sampler.keys)
    variants = [
        run(options=options, workers=1)[0].groups,
        run(options=options, workers=3)[0].groups,
        run(options=dataclasses.replace(options, rows=5), workers=2)[0].groups,
        [run(options=options, tasks=[task], first=4 * g)[0].groups[0] for g, task in enumerate(TASKS)],
    ]
    for groups in variants:
        assert all(map(same, flat(groups), flat(expected.groups)))
    members = expected.groups[0]
    assert len({rollout.actions for rollout in members}) > 1


def test_keys_are_those_of_the_rollout_and_the_step():
    _, sampler = run(lambda text, key: "next door", rollouts=2)
    expected = {
        tuple(jax.random.key_data(jax.random.fold_in(jax.random.fold_in(KEY, rollout), step)).tolist())
        for rollout in range(6)
        for step in range(6)
    }
    assert set(sampler.keys) == expected


@pytest.mark.parametrize("context", ["window", "append"])
def test_field_report_16_training_ids_are_generation_ids(context):
    result, sampler = run(options=dataclasses.replace(OPTIONS, context=context), rollouts=1, tasks=TASKS[:1])
    (rollout,) = result.groups[0]
    assert len(rollout.actions) == len(sampler.contexts) == result.counts.steps
    for step, (given, reply) in enumerate(zip(sampler.contexts, sampler.replies, strict=True)):
        sequence = rollout.sequences[0 if context == "append" else step]
        start, end = len(given), len(given) + len(reply)
        assert sequence.ids[:end].tolist() == given + reply
        assert sequence.trained[start:end].all()
        assert set(sequence.step[start:end]) == {step}
        assert sequence.logp[start:end].tolist() == [-float(i) for i in range(1, len(reply) + 1)]
    trained = sum(int(sequence.trained.sum()) for sequence in rollout.sequences)
    assert trained == sum(map(len, sampler.replies)) == result.counts.sampled_tokens
    if context == "window":
        assert result.counts.prompt_tokens == sum(map(len, sampler.contexts))


def test_finished_rollouts_are_not_sampled_any_further():
    def script(text, key):
        commands = listed(text)
        return commands[int(key[0]) % len(commands)]

    result, sampler = run(script)
    rollouts = flat(result.groups)
    lengths = [len(rollout.actions) for rollout in rollouts]
    assert len(set(lengths)) > 1
    assert len(sampler.replies) == sum(lengths)
    assert all(rollout.valid.all() for rollout in rollouts)
    for rollout in rollouts:
        solved = rollout.observations[-1] == "The chest is open."
        assert rollout.end is (EndReason.SUCCESS if solved else EndReason.STEP_CAP)
        assert rollout.score == float(solved)
    assert {rollout.end for rollout in rollouts} == {EndReason.SUCCESS, EndReason.STEP_CAP}


def scripted(*replies):
    """A policy that gives one reply per step of an appended plain context."""
    return lambda text, key: replies[min(text.count("\n>") - 1, len(replies) - 1)]


APPEND = dataclasses.replace(OPTIONS, context="append")
MIXED = ("next door", "", "fly to moon", "take key" + ENDLESS, "next door")


def test_field_report_26_a_reply_without_an_action_is_a_step_that_the_environment_does_not_see():
    options = dataclasses.replace(APPEND, format_penalty=0.5)
    result, _ = run(scripted(*MIXED), options, tasks=TASKS[:1], rollouts=1)
    (rollout,), (marks,) = result.groups[0], result.marks[0]
    assert rollout.actions == ("next door", "", "fly to moon", "take key", "next door", "next door")
    assert rollout.valid.tolist() == [True, False, False, False, True, True]
    assert marks.unparsed.tolist() == [False, True, False, True, False, False]
    assert marks.truncated.tolist() == [False, False, False, True, False, False]
    assert marks.reasons[1:4] == ("empty action", "", "cut off before its end")
    assert rollout.observations[2:5] == ("Nothing happens.",) * 3
    assert rollout.observations[5:] == ("You are at door 2.", "You are at door 0.")
    assert (rollout.end, rollout.score) == (EndReason.STEP_CAP, 0.0)
    penalties = shaping.step_penalties(rollout, marks, RewardOptions(), options)
    assert penalties.tolist() == [0.0, 0.5, 0.0, 0.5, 0.0, 0.0]
    assert rollout.record is not None
    assert rollout.record.status.shape == (7, 2)
    counts = result.counts
    assert (counts.unparsed, counts.inadmissible, counts.truncated, counts.steps) == (2, 1, 1, 6)


def test_a_reply_without_an_action_can_be_passed_on():
    options = dataclasses.replace(APPEND, invalid="pass")
    result, _ = run(scripted("next\ndoor", "next door" + ENDLESS), options, tasks=TASKS[:1], rollouts=1)
    (rollout,) = result.groups[0]
    assert rollout.observations[1:3] == ("Nothing happens.", "You are at door 1.")
    assert not rollout.valid.any()  # accepted or not, a reply that does not parse is invalid


def test_a_reply_without_an_action_can_end_the_rollout():
    options = dataclasses.replace(APPEND, invalid="end")
    result, _ = run(scripted("next door", ""), options, tasks=TASKS[:1], rollouts=1)
    (rollout,) = result.groups[0]
    assert rollout.actions == ("next door", "")
    assert (rollout.end, rollout.score) == (EndReason.FAILURE, 0.0)
    assert rollout.sequences[0].trained.sum() == 3 + 1


@pytest.mark.parametrize(
    ("action", "end"),
    [("raise", EndReason.ENV_ERROR), ("die", EndReason.ENV_ERROR), ("sleep", EndReason.ENV_TIMEOUT)],
)
def test_a_failing_environment_loses_its_rollout_only(action, end):
    expected, sampler = run()
    victim = sampler.keys[12 + 1]  # rollout 1 at its second step

    def script(text, key):
        return action if tuple(key.tolist()) == victim else random_script(text, key)

    result, _ = run(script, workers=2)
    lost = [i for i, rollout in enumerate(flat(result.groups)) if rollout.lost]
    assert len(lost) == 1
    rollout, marks = flat(result.groups)[lost[0]], flat(result.marks)[lost[0]]
    assert rollout.end is end
    assert marks.fault
    assert rollout.actions == (*flat(expected.groups)[lost[0]].actions[:1], action)
    assert len(rollout.observations) == 2
    others = zip(flat(result.groups), flat(expected.groups), strict=True)
    assert all(same(a, b) for i, (a, b) in enumerate(others) if i not in lost)
    counts = result.counts
    assert counts.env_errors + counts.env_timeouts == 1
    inputs = credit_inputs(result.groups, domain=DOMAIN, max_steps=6, group_size=4, conforming=[True] * 3)
    assert (~inputs.rollout_mask).sum() == 1


def test_a_reset_that_fails_loses_its_rollouts_only(monkeypatch):
    told = []
    monkeypatch.setattr(
        episode.logging, "log_first_n", lambda level, text, most, *values: told.append(text % values)
    )
    toy = dataclasses.replace(TOY, unlucky=True)
    tasks = [DOMAIN.tasks(toy, "train")[i] for i in (13, 1)]
    result, _ = run(toy=toy, tasks=tasks, rollouts=2)
    assert [rollout.end is EndReason.ENV_ERROR for rollout in flat(result.groups)] == [
        True,
        True,
        False,
        False,
    ]
    assert result.groups[0][0].actions == ()
    assert "unlucky" in result.marks[0][0].fault
    assert len(told) == 2
    assert told[0].startswith(f"a rollout of task {tasks[0].id!r} is lost (env_error): ")
    assert "seed 13 is unlucky" in told[0]
    assert f"in reset of environment {DOMAIN.name!r}" in told[0]


def test_a_context_that_is_full_ends_the_rollout_and_is_kept():
    whole, sampler = run(lambda text, key: "next door", APPEND, tasks=TASKS[:1], rollouts=1)
    limit = len(sampler.contexts[3]) + APPEND.max_new_tokens
    options = dataclasses.replace(APPEND, max_context=limit)
    result, _ = run(lambda text, key: "next door", options, tasks=TASKS[:1], rollouts=1)
    (rollout,) = result.groups[0]
    assert rollout.end is EndReason.CONTEXT
    assert len(rollout.actions) == 4
    assert rollout.record is not None
    assert rollout.sequences[0].trained.sum() == 4 * 3
    assert (result.counts.context_ends, whole.counts.context_ends) == (1, 0)


def test_shortened_windows_are_counted():
    _, sampler = run(lambda text, key: "next door", tasks=TASKS[:1], rollouts=1)
    limit = max(map(len, sampler.contexts)) + OPTIONS.max_new_tokens - 1
    options = dataclasses.replace(OPTIONS, max_context=limit)
    result, _ = run(lambda text, key: "next door", options, tasks=TASKS[:1], rollouts=1)
    assert result.counts.shortened == result.marks[0][0].shortened > 0
    assert len(result.groups[0][0].actions) == 6


def test_progress_is_told_and_time_is_accounted_for():
    told = []
    result, _ = run(
        progress=lambda over, total: told.append((over, total)), options=dataclasses.replace(OPTIONS, rows=5)
    )
    assert told[-1] == (12, 12)
    assert told == sorted(told)
    assert set(result.seconds) == {"sample", "env", "host"}
    assert all(value > 0 for value in result.seconds.values())


@pytest.mark.parametrize("context", ["window", "append"])
def test_only_the_tokens_inside_the_action_tags_can_be_trained(context):
    """A reply without an action is trained whole; what is sampled, and its steps, stay the same."""
    replies = ("<action>next door</action>", "next door", "<action> take key </action>")
    options = dataclasses.replace(OPTIONS, context=context, reply="action", max_context=600)
    whole, _ = run(scripted(*replies), options, tasks=TASKS[:1], rollouts=1)
    options = dataclasses.replace(options, trained="action")
    found, _ = run(scripted(*replies), options, tasks=TASKS[:1], rollouts=1)
    (before,), (after,) = whole.groups[0], found.groups[0]
    assert (after.actions, after.observations) == (before.actions, before.observations)
    said = []
    for plain, chosen in zip(before.sequences, after.sequences, strict=True):
        np.testing.assert_array_equal(plain.ids, chosen.ids)
        assert not (chosen.trained & ~plain.trained).any()
        np.testing.assert_array_equal(chosen.logp, np.where(chosen.trained, plain.logp, 0))
        for t in np.unique(chosen.step[chosen.trained]):
            said.append(CODEC.decode(chosen.ids[chosen.trained & (chosen.step == t)].tolist()))
    assert said[:3] == ["next door", "next door<|im_end|>", " take key "]


def test_tokens_of_an_action_however_it_is_cut_into_tokens():
    """Also where the tags are ordinary text, and where a character is more than one token."""
    for action in ("next door", "dØør ✓", "x"):
        reply = f"<think>?</think><action>{action}</action>"
        for ids in (CODEC.reply(reply), list(CODEC.text(reply))):
            ids = [*ids, CODEC.end_id]
            inside = action_tokens(CODEC, ids)
            at = np.flatnonzero(inside)
            assert at.tolist() == list(range(at[0], at[-1] + 1))
            text = CODEC.decode([ids[i] for i in at])
            assert action in text
            assert len(text) <= len(action) + 2  # no more than the bracket that shares a token with it
    beyond = [*CODEC.reply("<action>x"), len(CODEC.tokenizer) + 3, *CODEC.reply("</action>")]
    assert CODEC.decode([beyond[i] for i in np.flatnonzero(action_tokens(CODEC, beyond))]) == "x"


def test_action_tokens_need_tags():
    with pytest.raises(ValueError, match=r"trained='action' needs a reply in one of .*'line'"):
        RolloutOptions(trained="action")
    with pytest.raises(ValueError, match=r"reward.overlong_of='reply' is not allowed with rollout.trained="):
        RewardOptions(overlong_of="reply", overlong_buffer=4).limit(
            RolloutOptions(trained="action", reply="tags")
        )


@pytest.mark.parametrize(
    ("context", "template", "reply"),
    itertools.product(("window", "append"), ("plain", "chat"), ("line", "tags")),
)
def test_demonstrations_win_and_train_the_experts_replies(context, template, reply):
    trained = "action" if reply == "tags" else "reply"  # of the policy only
    options = RolloutOptions(
        context=context, template=template, reply=reply, trained=trained, max_context=2000
    )
    with EnvPool(DOMAIN, TOY, workers=0, timeout_s=1.0) as pool:
        rollouts = demonstrations(pool, CODEC, TASKS, options=options, max_steps=6)
    for rollout, task in zip(rollouts, TASKS, strict=True):
        assert (rollout.task, rollout.end, rollout.score) == (task, EndReason.SUCCESS, 1.0)
        assert rollout.valid.all()
        ids = np.concatenate([s.ids[s.trained] for s in rollout.sequences])
        steps = np.concatenate([s.step[s.trained] for s in rollout.sequences])
        said = [CODEC.decode(ids[steps == t].tolist()) for t in range(len(rollout.actions))]
        assert said == [format_reply(a, ReplyFormat(reply)) + "<|im_end|>" for a in rollout.actions]
        assert all((s.logp == 0).all() for s in rollout.sequences)


def test_the_prompts_of_demonstrations_are_those_of_the_policy():
    with EnvPool(DOMAIN, TOY, workers=0, timeout_s=1.0) as pool:
        (demo,) = demonstrations(pool, CODEC, TASKS[:1], options=APPEND, max_steps=6)
    result, _ = run(scripted(*demo.actions), APPEND, tasks=TASKS[:1], rollouts=1)
    np.testing.assert_array_equal(result.groups[0][0].sequences[0].ids, demo.sequences[0].ids)
    np.testing.assert_array_equal(result.groups[0][0].sequences[0].trained, demo.sequences[0].trained)


def test_a_demonstration_that_the_policy_could_never_give_is_refused():
    options = dataclasses.replace(APPEND, max_new_tokens=2)
    with (
        EnvPool(DOMAIN, TOY, workers=0, timeout_s=1.0) as pool,
        pytest.raises(ValueError, match="max_new_tokens=2"),
    ):
        demonstrations(pool, CODEC, TASKS, options=options, max_steps=6)


def test_spread_record():
    record = toy_env.VerifierRecord(
        toy_env.ATOMS,
        toy_env.VARIABLES,
        np.array([[2, 2], [1, 2], [1, 1]], np.int8),
        (("a", "b"), ("c", "d"), ("e", "f")),
        np.array([False, True]),
        np.array([[False, False], [False, True]]),
        {"bonus": np.float32(0)},
        0.0,
        1.0,
    )
    spread = spread_record(record, np.array([False, True, False, False, True]))
    no, yes = Status.UNSATISFIED, Status.SATISFIED
    assert spread.status.tolist() == [[no, no], [no, no], [yes, no], [yes, no], [yes, no], [yes, yes]]
    assert [row[0] for row in spread.evidence] == ["a", "a", "c", "c", "c", "e"]
    assert spread.commits.tolist() == [False, False, False, False, True]
    assert spread.scope[:, 1].tolist() == [False, False, False, False, True]
    assert spread_record(record, np.array([True, True])) is record
    with pytest.raises(ValueError, match="has 2 steps, but 1 actions"):
        spread_record(record, np.array([True, False]))


def test_sampling_shapes():
    shapes = sampling_shapes(RolloutOptions(context="window", max_context=210, max_new_tokens=10, rows=128))
    assert (shapes.batch, shapes.prompt, shapes.cache) == ((8, 32, 128), (100, 200), (210,))
    shapes = sampling_shapes(RolloutOptions(context="append", max_context=300, max_new_tokens=10, rows=3))
    assert (shapes.batch, shapes.prompt, shapes.cache) == ((1, 3), (32, 64, 128, 256, 290), (128, 256, 300))
    shapes = sampling_shapes(RolloutOptions(context="append", max_context=20, max_new_tokens=19, rows=1))
    assert (shapes.batch, shapes.prompt, shapes.cache) == ((1,), (1,), (20,))


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


def play(model, options, *, workers=0, rollouts=2, key=KEY):
    """Rollouts of the model with the real sampler."""
    session = open_session(*model, CODEC, options)
    with EnvPool(DOMAIN, TOY, workers=workers, timeout_s=20.0) as pool:
        return collect(
            pool, [session], CODEC, TASKS, rollouts=rollouts, key=key, options=options, max_steps=6
        )


def real_options(context):
    limit = 90 if context == "window" else 200
    return dataclasses.replace(
        OPTIONS, context=context, history=1, max_new_tokens=6, rows=4, max_context=limit
    )


@pytest.mark.parametrize("context", ["window", "append", "shortened"])
def test_the_real_sampler_agrees_with_scoring_and_with_itself(model, context):
    graphdef, params = model
    options = real_options("window" if context == "window" else "append")
    if context == "shortened":
        options = dataclasses.replace(options, max_context=90, overflow="shorten", top_p=0.9, temperature=1.5)
    result, again = (play(model, options, workers=workers) for workers in (1, 3))
    assert (result.counts.shortened > 0) == (context == "shortened")
    assert all(map(same, flat(result.groups), flat(again.groups)))
    assert result.counts.compiled >= 1
    members = result.groups[0]
    assert not np.array_equal(members[0].sequences[0].ids, members[1].sequences[0].ids)
    batch, _ = token_rows(result.groups, group_size=2, row_length=200)
    hidden, _ = decoder.apply(graphdef, params, batch.ids, batch.segment, batch.position)
    logp = likelihood.token_logp(graphdef, params, hidden[:, :-1], batch.ids[:, 1:], options.temperature)
    mask = np.asarray(batch.loss_mask)[:, 1:]
    difference = np.abs(np.asarray(logp) - np.asarray(batch.behaviour_logp)[:, 1:])[mask]
    assert mask.sum() == result.counts.sampled_tokens
    assert difference.max() < 1e-4


def test_greedy_evaluation_does_not_depend_on_the_key(model):
    options = dataclasses.replace(real_options("window"), temperature=0.0)
    first, second = (play(model, options, rollouts=1, key=jax.random.key(seed)) for seed in (1, 2))
    assert all(map(same, flat(first.groups), flat(second.groups)))
    assert [len(group) for group in first.groups] == [1, 1, 1]
