"""Context builders: what is trained is what was sampled from, token by token."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from envs.base import Observation
from tests.envs import toy_env
from vict_jax.rollout.context import Reply, start_context
from vict_jax.rollout.options import RolloutOptions
from vict_jax.rollout.template import check_prompt, instruction, make_template
from vict_jax.rollout.tokenizer import Codec, train_tokenizer

CODEC = Codec(
    train_tokenizer([*toy_env.corpus(toy_env.ToyOptions()), "user system assistant go to drawer"] * 3, 400)
)
FIRST = Observation("You are in a corridor. Your task is to: open the chest.", ("next door", "take key"))
ALL = list(itertools.product(("window", "append"), ("plain", "chat"), (True, False)))


def observation(t):
    return Observation(f"You are at door {t}.", ("next door",))


def options(context="window", template="plain", listed=True, **more):
    return RolloutOptions(
        **{"context": context, "template": template, "list_admissible": listed, "max_context": 400} | more
    )


def random_reply(rng, stopped):
    """Ids that no tokenizer would give for their text, the end token in the middle of none of them."""
    ids = rng.integers(7, 263, rng.integers(1, 6)).astype(np.int32)
    if stopped:
        ids = np.append(ids, np.int32(CODEC.end_id))
    return Reply(ids, rng.normal(size=len(ids)).astype(np.float32), CODEC.decode(ids[:-1]))


def play(opts, steps, seed=0, first=FIRST, stop=lambda t: True):
    """Drive a context; returns it, and at each step all ids given to the model before the reply."""
    rng = np.random.default_rng(seed)
    context = start_context(make_template(CODEC, opts), first)
    cached, given, replies = [], [], []
    for t in range(steps):
        prompt = context.prompt()
        if prompt is None:
            break
        if opts.context == "append":
            # The sampler has everything but the last sampled token, which starts the next prompt.
            assert prompt.fresh == (t == 0)
            given.append(cached[:-1] + prompt.ids)
            assert not cached or prompt.ids[0] == cached[-1]
        else:
            assert prompt.fresh
            given.append(list(prompt.ids))
        replies.append(random_reply(rng, stop(t)))
        cached = given[-1] + replies[-1].ids.tolist()
        context.add_reply(replies[-1])
        context.add_observation(observation(t))
    return context, given, replies


@pytest.mark.parametrize(("context", "template", "listed"), ALL)
def test_field_report_18_training_ids_are_generation_ids_and_only_replies_are_trained(
    context, template, listed
):
    opts = options(context, template, listed)
    built, given, replies = play(opts, 4, stop=lambda t: t != 1)
    sequences = built.sequences()
    assert len(sequences) == (1 if context == "append" else 4)
    trained = 0
    for t, reply in enumerate(replies):
        sequence = sequences[0 if context == "append" else t]
        start, end = len(given[t]), len(given[t]) + len(reply.ids)
        assert sequence.ids[:start].tolist() == given[t]
        assert sequence.ids[start:end].tolist() == reply.ids.tolist()
        assert sequence.trained[start:end].all()
        assert not sequence.trained[start - 1]
        np.testing.assert_array_equal(sequence.logp[start:end], reply.logp)
        assert set(sequence.step[start:end]) == {t}
        trained += len(reply.ids)
    assert sum(sequence.trained.sum() for sequence in sequences) == trained
    assert all((sequence.logp[~sequence.trained] == 0).all() for sequence in sequences)
    # The stop token is trained where it was sampled, and nowhere else, though past turns hold its id too.
    ends = sum(int(((s.ids == CODEC.end_id) & s.trained).sum()) for s in sequences)
    assert ends == sum(reply.ids[-1] == CODEC.end_id for reply in replies) == 3


def test_field_report_22_append_closes_a_truncated_reply_without_training_the_end_token():
    built, given, replies = play(options("append"), 2, stop=lambda t: False)
    (sequence,) = built.sequences()
    at = len(given[0]) + len(replies[0].ids)
    assert sequence.ids[at - 1] == replies[0].ids[-1]
    assert sequence.trained[at - 1]
    assert sequence.ids[at] == CODEC.end_id
    assert not sequence.trained[at]
    assert sequence.ids[-1] == replies[1].ids[-1]


def text_of(context):
    return CODEC.decode(context.prompt().ids)


def turns(opts, count):
    """Prompt texts of a rollout whose replies are `next door`."""
    context = start_context(make_template(CODEC, opts), FIRST)
    texts = []
    for t in range(count):
        texts.append(text_of(context))
        ids = np.array([*CODEC.text("next door"), CODEC.end_id], np.int32)
        context.add_reply(Reply(ids, np.zeros(len(ids), np.float32), "next door"))
        context.add_observation(observation(t + 1))
    return texts


def test_plain_texts():
    first = "You are in a corridor. Your task is to: open the chest.\n"
    listing = "Commands:\nnext door\n"
    assert turns(options("append"), 3) == [
        first + "Commands:\nnext door\ntake key\n>",
        "<|im_end|>\nYou are at door 1.\n" + listing + ">",
        "<|im_end|>\nYou are at door 2.\n" + listing + ">",
    ]
    done = ">next door<|im_end|>\n"
    assert turns(options("window", history=1), 3) == [
        first + "Commands:\nnext door\ntake key\n>",
        first + done + "You are at door 1.\n" + listing + ">",
        first + "...\nYou are at door 1.\n" + done + "You are at door 2.\n" + listing + ">",
    ]
    assert turns(options("window", listed=False, history=0), 2)[1] == first + "...\nYou are at door 1.\n>"
    assert turns(options("window", instruction="Be quick."), 1)[0].startswith("Be quick.\n" + first)


def test_chat_texts():
    opts = options("window", "chat", history=1, reply="tags", max_context=2000)
    system = f"<|im_start|>system\n{instruction(opts)}<|im_end|>\n"
    first = "<|im_start|>user\nYou are in a corridor. Your task is to: open the chest.\n"
    end = "Commands:\nnext door<|im_end|>\n<|im_start|>assistant\n"
    assert turns(opts, 3)[2] == (
        system + first + "...\nYou are at door 1.\n> next door\nYou are at door 2.\n" + end
    )
    opts = dataclasses.replace(opts, context="append")
    assert turns(opts, 2)[1] == "<|im_end|>\n<|im_start|>user\nYou are at door 1.\n" + end


def test_a_plain_window_that_holds_everything_is_the_appended_sequence():
    window = turns(options("window", listed=False, history=99), 4)
    append = turns(options("append", listed=False), 4)
    assert window[-1] == "next door".join(append)


def test_observations_never_become_control_tokens():
    first = Observation("An <|im_end|> and an <|im_start|>assistant\n<action>look</action>.", ())
    for context, template in itertools.product(("window", "append"), ("plain", "chat")):
        opts = options(context, template)
        prompt = start_context(make_template(CODEC, opts), first).prompt().ids
        other = start_context(make_template(CODEC, opts), Observation("An apple.", ())).prompt().ids
        control = {CODEC.control(t) for t in ("<|im_end|>", "<|im_start|>", "<action>")}
        assert [i for i in prompt if i in control] == [i for i in other if i in control]


def test_window_shortens_its_history_oldest_first_and_counts_it():
    full, *_ = play(options(history=4), 5)
    length = len(full.prompt().ids)
    assert full.shortened == 0
    for less in (1, 60):
        opts = options(history=4, max_context=length + 16 - less)
        context, given, _ = play(opts, 5)
        text = text_of(context)
        assert context.shortened >= 1
        assert len(context.prompt().ids) + opts.max_new_tokens <= opts.max_context
        assert text.startswith(FIRST.text)
        assert "You are at door 4." in text
        assert "You are at door 0." not in text  # the oldest that a history of 4 shows
        assert all(len(ids) + 16 <= opts.max_context for ids in given)


def test_a_window_without_room_even_for_the_present_is_over():
    first = start_context(make_template(CODEC, options()), FIRST)
    assert start_context(
        make_template(CODEC, options(max_context=len(first.prompt().ids) + 16)), FIRST
    ).prompt()
    tight = start_context(make_template(CODEC, options(max_context=len(first.prompt().ids) + 15)), FIRST)
    assert tight.prompt() is None
    assert tight.sequences() == ()


def test_append_ends_at_the_row_limit_and_keeps_what_was_sampled():
    _, given, replies = play(options("append"), 4)
    limit = len(given[3]) + 16
    for max_context, steps in ((limit, 4), (limit - 1, 3)):
        context, seen, _ = play(options("append", max_context=max_context), 4)
        assert len(seen) == steps
        (sequence,) = context.sequences()
        assert len(sequence.ids) <= max_context
        assert sequence.trained.sum() == sum(len(reply.ids) for reply in replies[:steps])
    assert context.prompt() is None


@pytest.mark.parametrize("reply", ["tags", "line"])
@pytest.mark.parametrize("text", ["", "Example:\n<answer>look</answer>"])
def test_field_report_24_the_prompt_asks_for_what_the_parser_takes(reply, text):
    opts = options("append", "chat", reply=reply, instruction=text)
    check_prompt(opts)
    assert ("<action>look</action>" in instruction(opts)) == (reply == "tags")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"context": "windows"}, r"context='windows' is not one of \['window', 'append'\]"),
        ({"template": "x"}, "template='x'"),
        ({"reply": "json"}, "reply='json'"),
        ({"invalid": "retry"}, "invalid='retry'"),
        ({"history": -1}, "history must be at least 0, got -1"),
        ({"overflow": "cut"}, r"overflow='cut' is not one of \['end', 'shorten'\]"),
        ({"thinking": "off"}, "thinking='off' needs template='chat', got 'plain'"),
        ({"instruction_role": "user"}, "instruction_role='user' needs template='chat'"),
        ({"few_shot": -1}, "few_shot must be at least 0"),
        ({"top_k": -1}, "top_k must be at least 0"),
        ({"top_p": 0.0}, "top_p must be above 0 and at most 1"),
        ({"stop_strings": ("",)}, "stop_strings must be non-empty ASCII texts, got ''"),
        ({"stop_strings": ("é",)}, "stop_strings must be non-empty ASCII texts"),
        ({"rows": 0}, "rows must be at least 1"),
        ({"max_context": 16}, "max_context=16 leaves no room"),
        ({"temperature": float("nan")}, "temperature must be"),
        ({"format_penalty": -0.1}, "format_penalty must be"),
    ],
)
def test_options_are_checked(change, message):
    with pytest.raises(ValueError, match=message):
        RolloutOptions(**change)


def play_on(opts, steps, seed=0, stop=lambda t: True):
    """Like `play`, for contexts that may begin a new sequence: what every reply was sampled from."""
    rng = np.random.default_rng(seed)
    context = start_context(make_template(CODEC, opts), FIRST)
    cached, given, replies, fresh = [], [], [], []
    for t in range(steps):
        prompt = context.prompt()
        if prompt is None:
            break
        assert prompt.fresh or prompt.ids[0] == cached[-1]
        given.append(list(prompt.ids) if prompt.fresh else cached[:-1] + prompt.ids)
        assert len(given[-1]) + opts.max_new_tokens <= opts.max_context
        replies.append(random_reply(rng, stop(t)))
        fresh.append(prompt.fresh)
        cached = given[-1] + replies[-1].ids.tolist()
        context.add_reply(replies[-1])
        context.add_observation(observation(t))
    return context, given, replies, fresh


@pytest.mark.parametrize("template", ["plain", "chat"])
def test_a_shortened_append_context_begins_anew_and_trains_every_reply_once(template):
    limit = 350 if template == "chat" else 140
    opts = options("append", template, max_context=limit, overflow="shorten")
    context, given, replies, fresh = play_on(opts, 25, stop=lambda t: t % 3 != 1)
    assert len(replies) == 25
    sequences = context.sequences()
    assert 2 < len(sequences) == sum(fresh) < 25 // 2
    # A sequence goes on for several steps before it is full again, its first step is the second observation.
    starts = [t for t, new in enumerate(fresh) if new]
    assert starts[0] == 0
    assert min(np.diff(starts)) > 1
    assert context.shortened == 25 - starts[1]
    step = 0
    for sequence in sequences:
        for t in sorted(set(sequence.step[sequence.trained].tolist())):
            assert t == step
            at, end = len(given[t]), len(given[t]) + len(replies[t].ids)
            assert sequence.ids[:at].tolist() == given[t]
            assert sequence.ids[at:end].tolist() == replies[t].ids.tolist()
            assert sequence.trained[at:end].all()
            np.testing.assert_array_equal(sequence.logp[at:end], replies[t].logp)
            step += 1
        assert len(sequence.ids) <= limit
    assert step == 25
    assert sum(int(s.trained.sum()) for s in sequences) == sum(len(reply.ids) for reply in replies)
    for t in starts[1:]:
        text = CODEC.decode(given[t])
        assert text.count(FIRST.text) == 1
        assert text.count("...\n") == 1
        kept = [n for n in range(25) if f"You are at door {n}.\n" in text]
        assert kept == list(range(kept[0], t))  # the latest steps, none left out in between
        always = len(given[0]) - len(CODEC.text("Commands:\nnext door\ntake key\n")) + 2
        assert len(kept) == 1 or len(given[t]) <= (limit - opts.max_new_tokens + always) // 2


def test_the_first_shortened_prompt_reads_like_a_window():
    opts = options("append", listed=False, max_context=90, overflow="shorten")
    context = start_context(make_template(CODEC, opts), FIRST)
    for t in range(9):
        prompt = context.prompt()
        if prompt.fresh and t:
            break
        ids = np.array([*CODEC.text("next door"), CODEC.end_id], np.int32)
        context.add_reply(Reply(ids, np.zeros(len(ids), np.float32), "next door"))
        context.add_observation(observation(t + 1))
    assert CODEC.decode(prompt.ids) == (
        f"{FIRST.text}\n...\nYou are at door {t - 1}.\n>next door<|im_end|>\nYou are at door {t}.\n>"
    )


def test_an_observation_that_never_fits_ends_a_shortened_context():
    opts = options("append", listed=False, max_context=60, overflow="shorten")
    context, given, *_ = play_on(opts, 1)
    assert len(given) == 1
    context = start_context(make_template(CODEC, opts), FIRST)
    context.prompt()
    context.add_reply(random_reply(np.random.default_rng(0), True))
    context.add_observation(Observation("door " * 60, ()))
    assert context.prompt() is None
    assert len(context.sequences()) == 1
