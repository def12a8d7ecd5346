"""Log-probability of tokens and entropy, without the logits of all tokens at once, forward or backward.

Axis letters as in `vict_jax.models.decoder`: b rows, s tokens, d model, v vocabulary; c chunks of w tokens.

With z the logits over the temperature, p = softmax(z), y the target and H the entropy, per token

    log p_y = z_y - log Z        d log p_y / dz = 1[y] - p
    H = log Z - sum_v p z        d H / dz       = -p (log p + H)

so beside its inputs the backward pass needs log Z and H of each token only; it makes p again by chunks.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from vict_jax import sharding
from vict_jax.models.config import ModelConfig
from vict_jax.models.decoder import ready_head

CHUNK = 1024  # tokens of a device whose float32 logits exist at once


def token_logp(
    graphdef: nnx.GraphDef,
    params: nnx.State,
    hidden: jax.Array,
    targets: jax.Array,
    temperature: float | jax.Array = 1.0,
    *,
    chunk: int = CHUNK,
) -> jax.Array:
    """Log-probability of one target per hidden state under softmax(logits / temperature), f32[b, s].

    See `token_logp_entropy`; use that one where the entropy is wanted as well.
    """
    return token_logp_entropy(graphdef, params, hidden, targets, temperature, chunk=chunk)[0]


def token_logp_entropy(
    graphdef: nnx.GraphDef,
    params: nnx.State,
    hidden: jax.Array,
    targets: jax.Array,
    temperature: float | jax.Array = 1.0,
    *,
    chunk: int = CHUNK,
) -> tuple[jax.Array, jax.Array]:
    """Log-probability of the targets and entropy of the distribution they come from.

    Only about `chunk` tokens have logits at a time, forward and backward: [tokens, v] in float32
    never exists as a whole. Chunks run along s, so a batch axis that is sharded stays so.

    Args:
      hidden: dtype[b, s, d] from `decoder.apply`; hidden state l predicts target l, so the caller shifts.
      targets: i32[b, s]; any value where the result is not used.
      temperature: > 0, of the distribution that the tokens were sampled from; a constant to gradients.
      chunk: tokens per chunk, of each device.

    Returns:
      logp: f32[b, s] (of a target outside the vocabulary: minus log Z). entropy: f32[b, s], nats.
    """
    model = nnx.merge(graphdef, params)
    b, s, d = hidden.shape
    width = max(1, min(s, chunk * sharding.row_parts(hidden) // b))
    count = -(-s // width)
    pad = count * width - s
    hidden = jnp.pad(hidden, ((0, 0), (0, pad), (0, 0))).reshape(b, count, width, d).swapaxes(0, 1)
    targets = jnp.pad(targets, ((0, 0), (0, pad))).reshape(b, count, width).swapaxes(0, 1)
    inverse = lax.stop_gradient(1 / jnp.asarray(temperature, jnp.float32))
    out = _chunks(model.config, model.head_matrix(), hidden, targets, inverse)
    logp, entropy = (y.swapaxes(0, 1).reshape(b, count * width)[:, :s] for y in out)
    return logp, entropy


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _chunks(
    config: ModelConfig, head: jax.Array, hidden: jax.Array, targets: jax.Array, inverse: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """(logp, entropy), f32[c, b, w], of hidden states [c, b, w, d]; inverse is 1 / temperature."""
    return _chunks_forward(config, head, hidden, targets, inverse)[0]


Saved = tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]


def _chunks_forward(
    config: ModelConfig, head: jax.Array, hidden: jax.Array, targets: jax.Array, inverse: jax.Array
) -> tuple[tuple[jax.Array, jax.Array], Saved]:
    def of_chunk(args: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        z = _scaled_logits(ready_head(config, head), args[0], inverse)
        shift = z.max(axis=-1, keepdims=True)
        z = z - shift
        unnormalised = jnp.exp(z)
        total = unnormalised.sum(axis=-1)
        log_total = jnp.log(total)
        # A comparison instead of a gather, which would not work on a sharded v.
        chosen = jnp.where(_is_target(z, args[1]), z, 0.0).sum(axis=-1)
        entropy = log_total - (unnormalised * z).sum(axis=-1) / total
        return chosen - log_total, entropy, shift[..., 0] + log_total

    logp, entropy, log_z = lax.map(of_chunk, (hidden, targets))
    return (logp, entropy), (head, hidden, targets, inverse, log_z, entropy)


def _chunks_backward(
    config: ModelConfig, saved: Saved, gradient: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array, None, jax.Array]:
    head, hidden, targets, inverse, log_z, entropy = saved

    def of_chunk(total: jax.Array, args: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        hidden, targets, log_z, entropy, of_logp, of_entropy = args
        weight, back_to_head = jax.vjp(functools.partial(ready_head, config), head)
        logp = _scaled_logits(weight, hidden, inverse) - log_z[..., None]
        p = jnp.exp(logp)
        of_z = of_logp[..., None] * (_is_target(p, targets) - p)
        of_z = of_z - of_entropy[..., None] * p * (logp + entropy[..., None])
        of_z = (of_z * inverse).astype(weight.dtype).reshape(-1, p.shape[-1])
        of_hidden = (of_z @ weight).reshape(hidden.shape)
        of_weight = of_z.T @ hidden.reshape(-1, hidden.shape[-1])
        # Added up in the precision of the parameters, over which the chunks are summed.
        return total + back_to_head(of_weight)[0], of_hidden

    of_head, of_hidden = lax.scan(
        of_chunk, jnp.zeros_like(head), (hidden, targets, log_z, entropy, *gradient)
    )
    return of_head, of_hidden, None, jnp.zeros_like(inverse)


_chunks.defvjp(_chunks_forward, _chunks_backward)


def _scaled_logits(head: jax.Array, hidden: jax.Array, inverse: jax.Array) -> jax.Array:
    """f32[b, w, v] of hidden states [b, w, d]."""
    z = jnp.matmul(hidden.reshape(-1, hidden.shape[-1]), head.T, preferred_element_type=jnp.float32)
    return sharding.constrain(z.reshape(*hidden.shape[:-1], -1), "rows", None, "vocab") * inverse


def _is_target(z: jax.Array, targets: jax.Array) -> jax.Array:
    """bool[b, w, v]."""
    return jnp.arange(z.shape[-1]) == targets[..., None]
