"""Tokenizers: one trained on an environment's own texts, and the codec the context builders use.

Masks are never derived from ids: what is trained is what was sampled, and only the code that sampled it
knows that.
"""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Iterable, Sequence

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

PAD = "<|pad|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
THINK, END_THINK, ACTION, END_ACTION = REPLY_TAGS = ("<think>", "</think>", "<action>", "</action>")
SPECIAL_TOKENS = (PAD, TURN_START, TURN_END, *REPLY_TAGS)
MIN_VOCAB_SIZE = 256 + len(SPECIAL_TOKENS)


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


class Codec:
    """Text to ids and back, as prompts and replies need it.

    Attributes:
      tokenizer: the tokenizer.
      end_id: id of the token that ends a turn, the stop token of sampling.
      pad_id: id of the padding token.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self.end_id = self.control(TURN_END)
        pad_id = tokenizer.pad_token_id
        if not isinstance(pad_id, int):
            raise ValueError(f"the tokenizer has no padding token: pad_token_id={pad_id!r}")
        self.pad_id = pad_id
        # Environments repeat themselves: most texts of a rollout were seen before.
        self._text = functools.lru_cache(maxsize=1 << 16)(self._encode_text)

    def control(self, token: str) -> int:
        """Id of a control token. Raises ValueError if the tokenizer has no such token."""
        found = self.tokenizer.convert_tokens_to_ids(token)
        if not isinstance(found, int) or found == self.tokenizer.unk_token_id:
            raise ValueError(f"the tokenizer has no token {token!r}")
        return found

    def text(self, text: str) -> tuple[int, ...]:
        """Ids of a text that comes from outside; names of control tokens in it stay ordinary text."""
        return self._text(text)

    def reply(self, text: str) -> list[int]:
        """Ids of a reply that we write ourselves: the tags in it become single tokens where there are any."""
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def decode(self, ids: Sequence[int]) -> str:
        """The exact text of `ids`, control tokens included."""
        return str(
            self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        )

    def _encode_text(self, text: str) -> tuple[int, ...]:
        encoded = self.tokenizer(text, add_special_tokens=False, split_special_tokens=True)
        return tuple(encoded["input_ids"])
