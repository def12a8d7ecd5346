"""Logits and gradients equal those of transformers' Qwen2 (torch, float32)."""

from __future__ import annotations

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.models import oracle
from vict_jax.models import config as C
from vict_jax.models import decoder

torch = pytest.importorskip("torch", reason="torch is the optional extra `parity`")
transformers = pytest.importorskip("transformers")

# HF name of a layer's weight -> ours; HF stores matrices as [out, in].
LAYER_NAMES = {
    "input_layernorm.weight": "attn_norm",
    "post_attention_layernorm.weight": "mlp_norm",
    **{f"self_attn.{x}_proj.weight": x for x in "qkvo"},
    **{f"self_attn.{x}_proj.bias": f"{x}_bias" for x in "qkv"},
    **{f"mlp.{x}_proj.weight": x for x in ("gate", "up", "down")},
}


def to_torch(config: C.ModelConfig, params: nnx.State):
    """transformers' model with our parameters (zero biases where ours has none)."""
    hf = C.to_hf(dataclasses.replace(config, qkv_bias=True))
    model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**hf, attn_implementation="eager"))
    weights = nnx.to_pure_dict(params)

    def tensor(x):
        return torch.from_numpy(np.array(x, np.float32))

    state = {"model.embed_tokens.weight": weights["embed"], "model.norm.weight": weights["final_norm"]}
    state["lm_head.weight"] = weights["embed"] if config.tie_embeddings else weights["head"]
    for l, (theirs, ours) in itertools.product(range(config.num_layers), LAYER_NAMES.items()):
        name = f"model.layers.{l}.{theirs}"
        if ours in weights["layers"]:
            value = weights["layers"][ours][l]
            state[name] = value.T if value.ndim == 2 else value
        else:
            state[name] = np.zeros(model.get_parameter(name).shape, np.float32)
    model.load_state_dict({name: tensor(value) for name, value in state.items()}, strict=True)
    return model.eval()


def ours(graphdef, params, ids, segment, position):
    args = (jnp.asarray(x, jnp.int32) for x in (ids, segment, position))
    hidden, _ = jax.jit(decoder.apply, static_argnums=0)(graphdef, params, *args)
    return np.asarray(decoder.logits(graphdef, params, hidden))


def make(seed: int, tie: bool, bias: bool, kv_heads: int, head_dim: int = 10):
    config = C.ModelConfig(
        vocab_size=97,
        num_layers=2,
        d_model=54,
        num_heads=6,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        d_ff=61,
        rope_theta=777.0,
        rms_eps=1e-5,
        tie_embeddings=tie,
        qkv_bias=bias,
        max_positions=128,
    )
    return config, *oracle.random_params(config, seed)


@pytest.mark.parametrize(
    ("tie", "bias", "kv_heads"), itertools.product((True, False), (True, False), (1, 3, 6))
)
def test_logits(tie, bias, kv_heads):
    """Right and left padding in one batch, with garbage ids in the padding."""
    config, graphdef, params = make(kv_heads, tie, bias, kv_heads)
    rng = np.random.default_rng(0)
    ids, real = rng.integers(0, 97, (4, 19)), np.ones((4, 19), bool)
    real[1, 13:], real[2, :6], real[3, 1:] = False, False, False
    position = np.maximum(np.cumsum(real, 1) - 1, 0)
    got = ours(graphdef, params, np.where(real, ids, 10**6), real, position)
    with torch.no_grad():
        expected = to_torch(config, params)(
            input_ids=torch.from_numpy(np.where(real, ids, 0)),
            attention_mask=torch.from_numpy(real.astype(np.int64)),
            position_ids=torch.from_numpy(position),
        ).logits.numpy()
    np.testing.assert_allclose(got[real], expected[real], atol=1e-4)


def test_logits_of_packed_rows():
    config, graphdef, params = make(7, True, True, 2, head_dim=8)
    rng, lengths = np.random.default_rng(1), (11, 1, 20)
    ids = rng.integers(0, 97, (1, sum(lengths) + 3))
    segment, position = np.zeros_like(ids), np.zeros_like(ids)
    model, at = to_torch(config, params), 0
    spans = []
    for number, n in enumerate(lengths):
        segment[0, at : at + n], position[0, at : at + n] = number + 1, np.arange(n)
        spans.append(slice(at, at + n))
        at += n
    got = ours(graphdef, params, ids, segment, position)
    for span in spans:
        with torch.no_grad():
            expected = model(input_ids=torch.from_numpy(ids[:, span])).logits.numpy()
        np.testing.assert_allclose(got[:, span], expected, atol=1e-4)


@pytest.mark.parametrize("tie", [True, False])
def test_gradients(tie):
    """Of the summed target log-probabilities, with respect to every parameter."""
    config, graphdef, params = make(3, tie, True, 2)
    ids = np.random.default_rng(2).integers(0, 97, (2, 15))

    @jax.jit
    @jax.grad
    def grad(params):
        x = jnp.asarray(ids, jnp.int32)
        position = jnp.broadcast_to(jnp.arange(15), x.shape)
        hidden, _ = decoder.apply(graphdef, params, x, jnp.ones_like(x), position)
        return decoder.token_logp(graphdef, params, hidden[:, :-1], x[:, 1:], chunk=4).sum()

    got = nnx.to_pure_dict(grad(params))
    model = to_torch(config, params)
    x = torch.from_numpy(ids)
    logp = torch.log_softmax(model(input_ids=x).logits[:, :-1], -1).gather(-1, x[:, 1:, None])
    logp.sum().backward()
    theirs = {name: p.grad.numpy() for name, p in model.named_parameters()}
    pairs = {"model.embed_tokens.weight": got["embed"], "model.norm.weight": got["final_norm"]}
    if not tie:
        pairs["lm_head.weight"] = got["head"]
    for l, (name, key) in itertools.product(range(2), LAYER_NAMES.items()):
        value = got["layers"][key][l]
        pairs[f"model.layers.{l}.{name}"] = value.T if value.ndim == 2 else value
    assert set(pairs) == set(theirs)
    for name, value in pairs.items():
        np.testing.assert_allclose(value, theirs[name], atol=2e-4, err_msg=name)
