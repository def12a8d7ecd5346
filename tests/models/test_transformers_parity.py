"""Logits and gradients of random models equal those of transformers (torch, float32), family by family.

transformers' model is loaded from what `hf.export` wrote, so names and transpositions are checked as well.
"""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.models import oracle
from vict_jax.models import config as C
from vict_jax.models import decoder, hf, likelihood
from vict_jax.models.hf_keys import key_table

torch = pytest.importorskip("torch", reason="torch is the optional extra `parity`")
transformers = pytest.importorskip("transformers")

# Biases on q/k/v, bias on o, norms on q/k: every model that a config.json of the three families can say.
VARIANTS = {
    "qwen2": (True, False, False),
    "qwen3": (False, False, True),
    "qwen3 with attention_bias": (True, True, True),
    "llama": (False, False, False),
    "llama with attention_bias": (True, True, False),
}


def make(seed: int, variant: str, tie: bool, kv_heads: int):
    qkv_bias, o_bias, qk_norm = VARIANTS[variant]
    config = C.ModelConfig(
        vocab_size=97,
        num_layers=2,
        d_model=54,
        num_heads=6,
        num_kv_heads=kv_heads,
        head_dim=10,
        d_ff=61,
        rope_theta=777.0,
        rms_eps=1e-5,
        tie_embeddings=tie,
        qkv_bias=qkv_bias,
        o_bias=o_bias,
        qk_norm=qk_norm,
        max_positions=128,
    )
    assert variant.startswith(C.family(config))
    return config, *oracle.random_params(config, seed)


def to_torch(folder, config: C.ModelConfig, params: nnx.State):
    """transformers' model with our parameters, eager attention."""
    hf.export(folder / "model", config, params, tokenizer=None, generation_config=None)
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder / "model", attn_implementation="eager", output_loading_info=True
    )
    assert not any(info.values()), info
    assert model.config.model_type == C.family(config)
    return model.eval()


def batch_of_all_kinds():
    """Rows: full, right-padded, left-padded, and packed with padding at both ends; and their sequences."""
    rng, width = np.random.default_rng(0), 19
    ids = rng.integers(0, 97, (4, width))
    segment, position = np.zeros_like(ids), rng.integers(0, 50, ids.shape)
    sequences = [(0, 0, 19), (1, 0, 13), (2, 6, 19), (3, 1, 8), (3, 8, 9), (3, 9, 17)]
    for number, (row, start, stop) in enumerate(sequences):
        segment[row, start:stop], position[row, start:stop] = number + 1, np.arange(stop - start)
    return ids, segment, position, sequences


@pytest.mark.parametrize(("variant", "tie", "kv_heads"), itertools.product(VARIANTS, (True, False), (2, 6)))
def test_logits(variant, tie, kv_heads, tmp_path):
    """Left and right padding and packing, with garbage ids in the padding."""
    config, graphdef, params = make(kv_heads, variant, tie, kv_heads)
    ids, segment, position, sequences = batch_of_all_kinds()
    args = (jnp.asarray(x, jnp.int32) for x in (np.where(segment > 0, ids, 10**6), segment, position))
    hidden, _ = jax.jit(decoder.apply, static_argnums=0)(graphdef, params, *args)
    got = np.asarray(decoder.logits(graphdef, params, hidden))
    model = to_torch(tmp_path, config, params)
    with torch.no_grad():
        # Padded rows as transformers takes them, and each sequence of the packed row alone.
        padded = model(
            input_ids=torch.from_numpy(ids[:3]),
            attention_mask=torch.from_numpy((segment[:3] > 0).astype(np.int64)),
            position_ids=torch.from_numpy(position[:3]),
        ).logits.numpy()
        for row, start, stop in sequences:
            alone = model(input_ids=torch.from_numpy(ids[row : row + 1, start:stop])).logits[0].numpy()
            np.testing.assert_allclose(got[row, start:stop], alone, atol=1e-4)
    real = segment[:3] > 0
    np.testing.assert_allclose(got[:3][real], padded[real], atol=1e-4)


@pytest.mark.parametrize(("variant", "tie"), itertools.product(VARIANTS, (True, False)))
def test_gradients(variant, tie, tmp_path):
    """Of the mean target log-probability of a batch with padding, with respect to every parameter."""
    config, graphdef, params = make(3, variant, tie, 2)
    ids = np.random.default_rng(2).integers(0, 97, (2, 15))
    real = np.arange(15) < np.array([[15], [11]])
    trained = real[:, 1:]

    @jax.jit
    @jax.grad
    def grad(params):
        x, segment = jnp.asarray(ids, jnp.int32), jnp.asarray(real, jnp.int32)
        position = jnp.broadcast_to(jnp.arange(15), x.shape)
        hidden, _ = decoder.apply(graphdef, params, x, segment, position)
        logp = likelihood.token_logp(graphdef, params, hidden[:, :-1], x[:, 1:], chunk=4)
        return jnp.where(trained, logp, 0.0).sum() / trained.sum()

    got = nnx.to_pure_dict(grad(params))
    model, x = to_torch(tmp_path, config, params), torch.from_numpy(ids)
    logits = model(input_ids=x, attention_mask=torch.from_numpy(real.astype(np.int64))).logits
    logp = torch.log_softmax(logits[:, :-1], -1).gather(-1, x[:, 1:, None])[..., 0]
    logp[torch.from_numpy(trained)].mean().backward()
    theirs = {name: p.grad.numpy() for name, p in model.named_parameters()}
    table = key_table(config)
    assert set(table) == set(theirs)
    for name, slot in table.items():
        value = got[slot.path[0]] if slot.layer is None else got["layers"][slot.path[1]][slot.layer]
        np.testing.assert_allclose(
            value.T if slot.transposed else value, theirs[name], atol=1e-5, err_msg=name
        )
        assert np.abs(theirs[name]).max() > 1e-4 or name.endswith("k_proj.bias"), name
