"""`python -m benchmarks.scaling --what estimate`: seconds of an update on a TPU slice, reckoned on paper.

Nothing here is measured but the host's phases, which are passed in. Every number that is assumed is a field
of `Work` or `Slice`, and is printed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from vict_jax.models.config import ModelConfig
from vict_jax.plan.devices import parse_fleet

GB = 1e9
BF16 = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Slice:
    """A TPU slice.

    Attributes:
      chips, hosts: of the slice. flops: of a chip, bfloat16, a second. hbm: bytes a second of a chip.
      ici: bytes a second that a chip sends to the others; dcn: of a host over the data center's network.
    """

    chips: int
    hosts: int
    flops: float
    hbm: float
    ici: float
    dcn: float


def v5p(name: str) -> Slice:
    """A v5p slice by name, of whole hosts with 4 chips.

    Peak 459 TFLOP/s, 2765 GB/s of memory, 1200 GB/s between chips in both directions, of which half is
    counted, 50 Gbit/s of network a chip: Google Cloud's page "TPU v5p".

    Raises:
      ValueError: it is no v5p slice, or has no whole number of hosts.
    """
    chips = parse_fleet(name).count
    if not name.startswith("v5p") or chips % 4:
        raise ValueError(f"device={name!r} is not allowed: it must be a v5p slice of whole hosts (4 chips)")
    return Slice(chips=chips, hosts=chips // 4, flops=459e12, hbm=2765 * GB, ici=600 * GB, dcn=4 * 50e9 / 8)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """What an update does, and how well the chips are used.

    Attributes:
      rollouts, steps: rollouts of an update, and steps of each.
      prompt, observed, sampled: tokens of the first prompt, of a later observation and of a reply; one
        sequence a rollout, and what was read before is in the cache.
      rows: rollouts that a chip samples at once.
      training, forward: share of the peak FLOP/s in training, and in scoring and prefill.
      bandwidth: share of the memory's peak in decoding. link: of the links' peak in collectives.
      fill: share of the token rows that is tokens.
      micro: rows of a gradient on a chip. row: tokens of a row.
      reference: there is a KL term. fsdp: chips that the weights are split over.
      recompute: a layer's activations are computed again in the backward pass (`model.remat`).
      env_ms: CPU milliseconds of an environment's step. workers: environment processes of a host.
      slower: seconds that a core of the host takes for a CPU second of the machine that was measured.
    """

    rollouts: int = 16384
    steps: int = 25
    prompt: int = 512
    observed: int = 48
    sampled: int = 64
    rows: int = 128
    training: float = 0.4
    forward: float = 0.5
    bandwidth: float = 0.6
    link: float = 0.6
    fill: float = 0.8
    micro: int = 1
    row: int = 4096
    reference: bool = True
    fsdp: int = 32
    recompute: bool = True
    env_ms: float = 0.5
    workers: int = 64
    slower: float = 1.0

    def __post_init__(self) -> None:
        for name in ("training", "forward", "bandwidth", "link", "fill"):
            if not 0 < vars(self)[name] <= 1:
                raise ValueError(f"{name}={vars(self)[name]} is not allowed: it must be in (0, 1]")
        if self.length > self.row:
            raise ValueError(f"row={self.row} is not allowed: a rollout has {self.length} tokens")

    @property
    def length(self) -> int:
        """Tokens of a whole rollout."""
        return self.prompt + self.steps * self.sampled + (self.steps - 1) * self.observed

    @property
    def tokens(self) -> int:
        """Tokens of an update."""
        return self.rollouts * self.length


def matrix_parameters(model: ModelConfig) -> int:
    """Parameters that each token is multiplied with: all but the table of embeddings, biases and norms."""
    heads = (2 * model.num_heads + 2 * model.num_kv_heads) * model.head_dim
    layer = model.d_model * (heads + 3 * model.d_ff)
    return model.num_layers * layer + model.vocab_size * model.d_model


def parameters(model: ModelConfig) -> int:
    """Parameters that are stored, but for biases and norms."""
    tied = 0 if model.tie_embeddings else model.vocab_size * model.d_model
    return matrix_parameters(model) + tied


def attention_flops(model: ModelConfig, length: int) -> float:
    """FLOPs of scores and values of one sequence, forward, each token with those before it."""
    return 4.0 * model.num_layers * model.num_heads * model.head_dim * length * (length + 1) / 2


def kv_bytes(model: ModelConfig) -> int:
    """Bytes of keys and values of one token, bfloat16."""
    return 2 * model.num_layers * model.num_kv_heads * model.head_dim * BF16


def forward_flops(model: ModelConfig, work: Work) -> float:
    """Of all tokens of an update once: 2 N a token, and attention."""
    return 2.0 * matrix_parameters(model) * work.tokens + work.rollouts * attention_flops(model, work.length)


def decode_seconds(model: ModelConfig, work: Work, chip: Slice) -> float:
    """Sampling all replies: each token reads all weights once for the rows of a chip, and each row's cache.

    The weights lie whole on every chip; where so many rows are sampled that their FLOPs take longer than
    reading, those count.
    """
    rounds = -(-work.rollouts // (chip.chips * work.rows))
    rows = min(work.rows, -(-work.rollouts // chip.chips))
    cache = rows * kv_bytes(model) * work.length / 2  # half full on average
    reading = (BF16 * matrix_parameters(model) + cache) / (chip.hbm * work.bandwidth)
    computing = 2.0 * matrix_parameters(model) * rows / (chip.flops * work.forward)
    return rounds * work.steps * work.sampled * max(reading, computing)


def gather_seconds(model: ModelConfig, work: Work, chip: Slice) -> dict[str, float]:
    """Collectives of weights and gradients, on the links between chips, none of it hidden behind computation.

    Each micro-batch gathers the weights twice (forward and backward, in bfloat16) and scatters float32
    gradients once; gradients are summed over the copies of the mesh once.
    """
    split, copies = (work.fsdp - 1) / work.fsdp, chip.chips // work.fsdp
    rate = chip.ici * work.link
    rows = work.tokens / (work.row * work.fill)
    micro_batches = max(1.0, rows / (chip.chips * work.micro))
    weights, gradients = BF16 * parameters(model) * split, 4 * parameters(model) * split
    summed = 2 * (4 * parameters(model) / work.fsdp) * (copies - 1) / copies
    return {
        "weights for sampling": weights / rate,
        "weights and gradients in training": (micro_batches * (2 * weights + gradients) + summed) / rate,
    }


def estimate(
    model: ModelConfig,
    work: Work,
    chip: Slice,
    *,
    own: Mapping[str, float],
    whole: Mapping[str, float],
    told: float,
) -> dict[str, float]:
    """Seconds of each part of an update.

    Args:
      own, whole: CPU seconds of the host's phases for all rollouts; the first are shared out over the hosts,
        the others are done whole by each of them, or by the first. told: bytes of the inputs of credit,
        compressed, which go to every host.
    """
    forward = forward_flops(model, work)
    peak = chip.chips * chip.flops
    padded = 1 / work.fill
    steps = work.rollouts * work.steps / chip.hosts
    parts = {
        "prefill": forward * (1 - work.steps * work.sampled / work.length) / (peak * work.forward),
        "decode": decode_seconds(model, work, chip),
        "environments": steps * work.env_ms / 1e3 / work.workers * work.slower,
        "reference": padded * forward / (peak * work.forward) if work.reference else 0.0,
        "training": padded * (4 if work.recompute else 3) * forward / (peak * work.training),
        **gather_seconds(model, work, chip),
        "inputs of credit to all hosts": told / (chip.dcn * work.link),
    }
    parts |= {f"host, own share: {name}": cpu * work.slower / chip.hosts for name, cpu in own.items()}
    return parts | {f"host, all rollouts: {name}": cpu * work.slower for name, cpu in whole.items()}


def describe(name: str, model_name: str, model: ModelConfig, work: Work, chip: Slice) -> str:
    """Every assumption."""
    return "\n".join(
        [
            f"ESTIMATE ON PAPER, not a measurement: {model_name} on {name}",
            f"  {chip.chips} chips, {chip.hosts} hosts; a chip {chip.flops / 1e12:.0f} TFLOP/s bfloat16, "
            f"{chip.hbm / GB:.0f} GB/s of memory, {chip.ici / GB:.0f} GB/s to others; a host "
            f"{chip.dcn / GB:.0f} GB/s of network",
            f"  model: {parameters(model) / 1e9:.2f} G parameters, {matrix_parameters(model) / 1e9:.2f} G "
            f"of them multiplied with each token, {kv_bytes(model) / 1024:.0f} KiB of keys and "
            "values a token",
            f"  {work.rollouts:,} rollouts of {work.length:,} tokens ({work.steps} steps; prompt "
            f"{work.prompt}, reply {work.sampled}, observation {work.observed}): "
            f"{work.tokens / 1e6:.0f} M tokens",
            *(f"  {field.name} = {vars(work)[field.name]}" for field in dataclasses.fields(work)),
            "  no phase overlaps another; all rollouts have the same length; no compiling, no checkpoint",
        ]
    )


def table(parts: Mapping[str, float]) -> str:
    """Markdown: seconds and share of each part."""
    total = sum(parts.values())
    rows = [f"| {name} | {seconds:.3g} | {seconds / total:.1%} |" for name, seconds in parts.items()]
    return "\n".join(["| part | s, estimated | share |", "|---|---|---|", *rows, f"| all | {total:.3g} | |"])
