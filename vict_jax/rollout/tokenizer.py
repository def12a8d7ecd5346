"""Tokenizers: one trained on an environment's own texts, those of checkpoints, and the codec around them.

Masks are never derived from ids: what is trained is what was sampled, and only the code that sampled it
knows that.
"""

from __future__ import annotations

import functools
import json
import pathlib
from collections.abc import Iterable, Sequence

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

PAD = "<|pad|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
THINK, END_THINK, ACTION, END_ACTION = REPLY_TAGS = ("<think>", "</think>", "<action>", "</action>")
SPECIAL_TOKENS = (PAD, TURN_START, TURN_END, *REPLY_TAGS)
MIN_VOCAB_SIZE = 256 + len(SPECIAL_TOKENS)
# ChatML, the template of the tokenizers that are trained here.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Files of a checkpoint that may name end tokens.
_END_TOKEN_FILES = ("generation_config.json", "config.json")


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer; the same texts give the same tokenizer.

    Any Unicode text survives encoding and decoding. Pieces are words with the blank before them, as in
    GPT-2, and no merge crosses one, so a frequent word is one token. Numbers are pieces as well: the
    small ones of object names become one token each, others split into digits and known pairs.
    `SPECIAL_TOKENS` have the first ids, the padding token id 0.

    Args:
      texts: what the environment says and hears.
      vocab_size: the most tokens there may be, at least `MIN_VOCAB_SIZE`; few texts give fewer.

    Raises:
      ValueError: `vocab_size` is too small.
    """
    if vocab_size < MIN_VOCAB_SIZE:
        raise ValueError(
            f"vocab_size={vocab_size} is too small: {MIN_VOCAB_SIZE} are taken by bytes and special tokens"
        )
    bpe = tokenizers.Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        pad_token=PAD,
        eos_token=TURN_END,
        additional_special_tokens=[TURN_START, *REPLY_TAGS],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: pathlib.Path) -> None:
    """Write a tokenizer in the form that `transformers.AutoTokenizer` reads as well."""
    tokenizer.save_pretrained(folder)


def load_tokenizer(folder: pathlib.Path) -> PreTrainedTokenizerFast:
    """Read a tokenizer written by `save_tokenizer`; nothing is ever fetched.

    Raises:
      FileNotFoundError: the folder has no tokenizer.
    """
    if not (folder / "tokenizer.json").is_file():
        raise FileNotFoundError(f"no tokenizer.json in {folder}")
    return PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)


def load_codec(folder: pathlib.Path) -> Codec:
    """The codec of a checkpoint: its tokenizer and chat template, and every end token that it names.

    Raises:
      FileNotFoundError: the folder has no tokenizer.
      ValueError: no end token is named anywhere.
    """
    end_ids: list[int] = []
    for name in _END_TOKEN_FILES:
        path = folder / name
        named = json.loads(path.read_text()).get("eos_token_id") if path.is_file() else None
        end_ids += named if isinstance(named, list) else [] if named is None else [named]
    return Codec(load_tokenizer(folder), end_ids)


class Codec:
    """Text to ids and back, as prompts and replies need it.

    Attributes:
      tokenizer: the tokenizer.
      end_id: id of its end token.
      stop_ids: every token that ends a reply, ascending: `end_id` and `end_ids`.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, end_ids: Sequence[int] = ()) -> None:
        """Args: `end_ids`, further end tokens of the model, see `load_codec`."""
        self.tokenizer = tokenizer
        end_id = tokenizer.eos_token_id
        if not isinstance(end_id, int):
            raise ValueError(f"the tokenizer has no end token: eos_token_id={end_id!r}")
        self.end_id = end_id
        self.stop_ids = tuple(sorted({end_id, *end_ids}))
        self._ordinary = _without_added_tokens(tokenizer)
        # Environments repeat themselves: most texts of a rollout were seen before.
        self._text = functools.lru_cache(maxsize=1 << 14)(self._encode_text)

    def control(self, token: str) -> int:
        """Id of a control token. Raises ValueError if the tokenizer has no such token."""
        found = self.tokenizer.convert_tokens_to_ids(token)
        if not isinstance(found, int) or found == self.tokenizer.unk_token_id:
            raise ValueError(f"the tokenizer has no token {token!r}")
        return found

    def text(self, text: str) -> tuple[int, ...]:
        """Ids of a text from outside; names of control tokens and tags in it stay ordinary text."""
        return self._text(text)

    def reply(self, text: str) -> list[int]:
        """Ids of a text that we write ourselves: control tokens and tags in it become single tokens."""
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def decode(self, ids: Sequence[int]) -> str:
        """The exact text of `ids`, control tokens included."""
        return str(
            self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        )

    @functools.cached_property
    def token_texts(self) -> tuple[str, ...]:
        """The text of every token alone; an incomplete UTF-8 character shows as U+FFFD.

        Raises:
          ValueError: the text of a sequence is not that of its tokens in a row (not a byte-level tokenizer).
        """
        texts = tuple(self.decode([i]) for i in range(len(self.tokenizer)))
        sample = self.text("go to\n the <b> 1.")
        if "".join(texts[i] for i in sample) != self.decode(sample):
            raise ValueError(
                "stop_strings and trained='action' need a byte-level tokenizer: tokens of this one have no "
                "fixed text"
            )
        return texts

    def _encode_text(self, text: str) -> tuple[int, ...]:
        return tuple(self._ordinary.encode(text, add_special_tokens=False).ids)


def _without_added_tokens(tokenizer: PreTrainedTokenizerFast) -> tokenizers.Tokenizer:
    """The same tokenizer knowing no added token, special or not (`<think>` of Qwen3 is not): all is text."""
    description = json.loads(tokenizer.backend_tokenizer.to_str())
    description["added_tokens"] = []
    return tokenizers.Tokenizer.from_str(json.dumps(description))


def action_tokens(codec: Codec, ids: Sequence[int]) -> np.ndarray:
    """The tokens with text between the action tags, bool[n]; a tag that shares a token with it is in.

    Args:
      ids: of a reply with both tags, once each.
    """
    known = codec.token_texts  # a model may have more tokens than its tokenizer, without text
    texts = [known[i] if i < len(known) else "" for i in ids]
    before, _, rest = "".join(texts).partition(ACTION)
    start = len(before) + len(ACTION)
    stop = start + rest.index(END_ACTION)
    ends = np.cumsum([len(text) for text in texts])
    begins = np.concatenate([[0], ends[:-1]])
    return (ends > start) & (begins < stop)


def first_stop(codec: Codec, ids: Sequence[int], stop_strings: Sequence[str]) -> int | None:
    """How many of the first `ids` it takes until their text has a stop string; None if it never does."""
    for count in range(1, len(ids) + 1):
        text = codec.decode(ids[:count])
        if any(stop in text for stop in stop_strings):
            return count
    return None


@functools.lru_cache(maxsize=8)
def stop_table(token_texts: tuple[str, ...], stop_strings: tuple[str, ...], vocab_size: int) -> np.ndarray:
    """The automaton (Aho-Corasick, on tokens) that finds the first stop string of a reply.

    A state is the longest end of the text so far that begins a stop string; 0 is none, where replies start.

    Args:
      stop_strings: ASCII texts. vocab_size: at least the number of tokens; the others have no text.

    Returns:
      i32[states, vocab_size], the state after a token, -1 once a stop string is complete.
    """
    states = ["", *sorted({s[:n] for s in stop_strings for n in range(1, len(s))})]
    index = {state: i for i, state in enumerate(states)}
    letters = set().union(*stop_strings)
    # A token without text leaves the state as it is.
    table = np.repeat(np.arange(len(states), dtype=np.int32)[:, None], vocab_size, axis=1)
    for token, text in enumerate(token_texts):
        if not text:
            continue
        if letters.isdisjoint(text):
            table[:, token] = 0
            continue
        for row, state in enumerate(states):
            seen = state + text
            if any(stop in seen for stop in stop_strings):
                table[row, token] = -1
            else:
                table[row, token] = next(
                    i for start in range(len(seen) + 1) if (i := index.get(seen[start:])) is not None
                )
    return table
