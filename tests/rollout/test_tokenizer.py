"""The tokenizer: lossless, deterministic, words and control tokens are one token, offline."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from tests.envs import toy_env
from vict_jax.rollout import tokenizer as tk

TEXTS = [
    *toy_env.corpus(toy_env.ToyOptions()),
    *[
        f"go to drawer {i}\nYou arrive at drawer {i}. On the drawer {i}, you see nothing."
        for i in range(1, 30)
    ]
    * 3,
]


@pytest.fixture(scope="module")
def tokenizer():
    return tk.train_tokenizer(TEXTS, 512)


@pytest.fixture(scope="module")
def codec(tokenizer):
    return tk.Codec(tokenizer)


CODEC = tk.Codec(tk.train_tokenizer(TEXTS, 512))


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_any_text_survives(text):
    assert CODEC.decode(CODEC.text(text)) == text


@given(
    st.lists(st.sampled_from([*tk.SPECIAL_TOKENS, "go", " ", "\n", "é", "<", "|>"]), max_size=8).map("".join)
)
def test_text_from_outside_never_holds_a_control_token(text):
    ids = CODEC.text(text)
    assert CODEC.decode(ids) == text
    assert not set(ids) & {CODEC.control(token) for token in tk.SPECIAL_TOKENS}


def test_words_numbers_and_tags_are_one_token_each(codec):
    words = ["go", " to", " drawer", " 1", " 17", "You", " arrive", " at", "\n"]
    assert [len(codec.text(word)) for word in words] == [1] * len(words)
    assert codec.text("go to drawer 17") == sum((codec.text(w) for w in ["go", " to", " drawer", " 17"]), ())
    reply = codec.reply("<think></think><action>go to drawer 1</action>")
    assert reply[:3] == [codec.control(t) for t in ("<think>", "</think>", "<action>")]
    assert len(reply) == 8
    assert codec.decode(reply) == "<think></think><action>go to drawer 1</action>"


def test_special_ids(codec, tokenizer):
    assert tokenizer.pad_token_id == 0
    assert codec.stop_ids == (codec.end_id,)
    assert codec.end_id == tokenizer.eos_token_id == codec.control("<|im_end|>")
    assert [codec.control(token) for token in tk.SPECIAL_TOKENS] == list(range(len(tk.SPECIAL_TOKENS)))
    with pytest.raises(ValueError, match="no token '<nope>'"):
        codec.control("<nope>")


def test_training_is_deterministic_and_bounded(tokenizer):
    again = tk.train_tokenizer(iter(TEXTS), 512)
    assert again.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()
    assert tk.MIN_VOCAB_SIZE < len(tokenizer) <= 512
    assert len(tk.train_tokenizer(TEXTS, tk.MIN_VOCAB_SIZE)) == tk.MIN_VOCAB_SIZE
    with pytest.raises(ValueError, match="vocab_size=200 is too small: 263"):
        tk.train_tokenizer(TEXTS, 200)


def test_saved_and_loaded(tokenizer, tmp_path):
    tk.save_tokenizer(tokenizer, tmp_path)
    text = "go to drawer 3 <think>é</think>\n"
    for loaded in (
        tk.load_tokenizer(tmp_path),
        AutoTokenizer.from_pretrained(tmp_path, local_files_only=True),
    ):
        codec = tk.Codec(loaded)
        assert codec.text(text) == tk.Codec(tokenizer).text(text)
        assert codec.reply(text) == tk.Codec(tokenizer).reply(text)
        assert codec.decode(codec.text(text)) == text
        assert codec.end_id == 2
        assert codec.tokenizer.chat_template == tk.CHAT_TEMPLATE
    with pytest.raises(FileNotFoundError, match=r"no tokenizer\.json"):
        tk.load_tokenizer(tmp_path / "nowhere")
