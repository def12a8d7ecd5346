"""Real weights: stored reference values, transformers (torch, float32), and greedy text, for two Llamas.

stories260K comes with the benchmark data. SmolLM2-135M-Instruct is made by `make smollm`; its tests look
into the folder that VICT_SMOLLM2 names, by default the one that command writes.
"""

from __future__ import annotations

import functools
import json
import os
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from vict_jax import sharding
from vict_jax.models import cache as kv
from vict_jax.models import decoder, hf
from vict_jax.rollout.tokenizer import load_tokenizer

ROOT = pathlib.Path(__file__).resolve().parents[2]
STORY_PROMPTS = [
    "Once upon a time",
    "Lily and Tom went to the park",
    "The dog",
    "One day, a big red",
    "He said",
]
# Asked as chat turns, and as plain text.
QUESTIONS = [
    "What is the capital of France?",
    "Write three sentences about the sea.",
    "How many days are in a week?",
    "Name three fruits.",
    "What is 7 + 5?",
    "Explain what a mirror does.",
    "Why is the sky blue?",
    "Give me a recipe for tea.",
    "You are in the kitchen. You see a fridge 1 and a cabinet 12. What do you do?",
    "Translate 'good morning' to Spanish.",
]
TEXTS = [
    "The quick brown fox jumps over the lazy",
    "In 1969, the first man",
    "def add(a, b):\n    return",
    "The capital of Italy is",
    "Once upon a time, in a small village,",
    "Water boils at",
    "> go to drawer 3\nYou arrive at drawer 3. The drawer 3 is closed.\n>",
    "Dear Sir or Madam,",
    "1, 2, 3, 4,",
    "The most important thing about friendship is",
]
NEW_TOKENS = 64


@functools.cache
def load(folder: pathlib.Path):
    config, params = hf.load(folder, sharding.make_mesh())
    graphdef = nnx.graphdef(nnx.eval_shape(lambda: decoder.Decoder(config, jax.random.key(0))))
    return config, graphdef, params


def logits(folder: pathlib.Path, rows: list[list[int]]) -> list[np.ndarray]:
    """[len(row), v] of each row."""
    _, graphdef, params = load(folder)
    ids, real = padded(rows)
    position = jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)
    hidden, _ = jax.jit(decoder.apply, static_argnums=0)(graphdef, params, ids, real, position)
    head = jax.jit(decoder.logits, static_argnums=0)
    return [np.asarray(head(graphdef, params, hidden[i]))[: len(row)] for i, row in enumerate(rows)]


def padded(rows: list[list[int]]) -> tuple[jax.Array, jax.Array]:
    """i32[b, s] ids and 1 where they are real, padded on the right."""
    width = max(map(len, rows))
    ids = np.array([[*row, *[0] * (width - len(row))] for row in rows], np.int32)
    return jnp.asarray(ids), jnp.asarray(np.arange(width) < np.array([[len(row)] for row in rows]), jnp.int32)


def greedy(folder: pathlib.Path, rows: list[list[int]], count: int, end: int) -> list[list[int]]:
    """Most likely continuations by cached decoding of ragged prompts, up to `end` with it."""
    config, graphdef, params = load(folder)
    separate, params = decoder.unstack(graphdef, params)
    step = jax.jit(decoder.apply, static_argnums=0, static_argnames="fresh")
    best = jax.jit(lambda params, hidden: decoder.logits(separate, params, hidden).argmax(-1))
    ids, real = padded(rows)
    cache = kv.init_cache(config, len(rows), ids.shape[1] + count)
    position = jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)
    hidden, cache = step(separate, params, ids, real, position, cache, fresh=True)
    last = real.sum(axis=1) - 1
    token = best(params, hidden[jnp.arange(len(rows)), last])[:, None]
    tokens = [token]
    for _ in range(count - 1):
        hidden, cache = step(separate, params, token, jnp.ones_like(token), cache.length[:, None], cache)
        token = best(params, hidden)
        tokens.append(token)
    return [cut(row, end) for row in np.concatenate(tokens, axis=1).tolist()]


def cut(ids: list[int], end: int) -> list[int]:
    return ids[: ids.index(end) + 1] if end in ids else ids


def check_reference(folder: pathlib.Path, reference: pathlib.Path, prefix: list[int]) -> None:
    """Ids, log-probabilities, top logits, greedy ids and text that are stored, to their printed digits."""
    tokenizer = load_tokenizer(folder)
    end = hf.load_generation_config(folder)["eos_token_id"]
    for case in json.loads(reference.read_text()):
        ids = case["input_ids"]
        assert [*prefix, *tokenizer(case["text"], add_special_tokens=False)["input_ids"]] == ids
        z = logits(folder, [ids])[0]
        np.testing.assert_allclose(z[-1, case["last_top5_ids"]], case["last_top5_logits"], atol=1.5e-4)
        assert np.argsort(-z[-1])[:5].tolist() == case["last_top5_ids"]
        logp = np.asarray(jax.nn.log_softmax(z))[np.arange(len(ids) - 1), ids[1:]]
        np.testing.assert_allclose(logp, case["token_logprobs"], atol=1e-4)
        continuation = greedy(folder, [ids], len(case["greedy_ids"]), end)[0]
        assert continuation == case["greedy_ids"]
        assert tokenizer.decode(continuation, clean_up_tokenization_spaces=False) == case["greedy_text"]


def check_transformers(folder: pathlib.Path, rows: list[list[int]], *, within: float) -> None:
    """Equal greedy continuations of 64 tokens, and equal logits along prompts and continuations.

    Float32 leaves errors of about 1e-4 in the logits of a deep model, now and then 1e-3: in torch as well,
    see its own float64 forward. So of all positions a share `within` must agree within 1e-4, and every one
    within 2e-4 or three times the error that transformers itself makes there.
    """
    torch = pytest.importorskip("torch", reason="torch is the optional extra `parity`")
    transformers = pytest.importorskip("transformers")
    end = hf.load_generation_config(folder)["eos_token_id"]
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    width = max(map(len, rows))
    ids = torch.tensor([[end] * (width - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    with torch.no_grad():
        out = model.generate(
            ids, attention_mask=mask, max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=end
        )
    expected = [cut(row, end) for row in out[:, width:].tolist()]
    assert greedy(folder, rows, NEW_TOKENS, end) == expected

    whole = [row + more for row, more in zip(rows, expected, strict=True)]
    got, theirs = np.concatenate(logits(folder, whole)), torch_logits(model, whole)
    exact = torch_logits(model.double(), whole)
    difference = np.abs(got - theirs).max(axis=-1)
    own_error = np.abs(theirs - exact).max(axis=-1)
    print(
        f"{folder.name}: {len(got)} positions, {np.mean(difference < 1e-4):.1%} within 1e-4; at most "
        f"{difference.max():.1e}; largest error against float64: ours {np.abs(got - exact).max():.1e}, "
        f"transformers {own_error.max():.1e}"
    )
    assert np.mean(difference < 1e-4) >= within
    assert (difference < np.maximum(2e-4, 3 * own_error)).all()


def torch_logits(model, rows: list[list[int]]) -> np.ndarray:
    """[sum of the lengths, v] of all rows, each alone."""
    import torch

    with torch.no_grad():
        return np.concatenate([model(input_ids=torch.tensor([row])).logits[0].numpy() for row in rows])


@pytest.fixture(scope="module")
def stories(shared_dir) -> pathlib.Path:
    return shared_dir / "data/models/stories260K"


@pytest.fixture(scope="module")
def smollm2() -> pathlib.Path:
    folder = pathlib.Path(os.environ.get("VICT_SMOLLM2", ROOT / "build/SmolLM2-135M-Instruct"))
    if not (folder / "config.json").is_file():
        pytest.skip(f"no SmolLM2-135M-Instruct at {folder}: run `make smollm`, or set VICT_SMOLLM2")
    return folder


def test_stories_reference_values(stories):
    check_reference(stories, stories / "reference.json", prefix=[1])


def test_stories_equals_transformers(stories):
    tokenizer = load_tokenizer(stories)
    check_transformers(stories, [[1, *tokenizer(text)["input_ids"]] for text in STORY_PROMPTS], within=1.0)


def test_smollm2_reference_values(smollm2, shared_dir):
    check_reference(smollm2, shared_dir / "data/models/SmolLM2-135M-Instruct/reference.json", prefix=[])


def test_smollm2_equals_transformers_on_20_prompts(smollm2):
    tokenizer = load_tokenizer(smollm2)
    chats = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, tokenize=False
        )
        for question in QUESTIONS
    ]
    rows = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in (*chats, *TEXTS)]
    assert len(rows) == 20
    check_transformers(smollm2, rows, within=0.97)


def test_smollm2_chat_template(smollm2, shared_dir):
    """The converted tokenizer renders as the stored template does."""
    stored = json.loads((shared_dir / "data/models/SmolLM2-135M-Instruct/tokenizer_config.json").read_text())
    assert load_tokenizer(smollm2).chat_template == stored["chat_template"]
