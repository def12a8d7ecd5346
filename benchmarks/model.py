"""Speed and memory of the decoder against transformers on this machine: prefill, decode, training.

    python -m benchmarks.model [--model DIR] [--quickstart] [--batch 1 16 64] [--prompt 256] [--new 32]
        [--rounds 3] [--what prefill decode train] [--json OUT]

Needs torch (`make parity`). Both sides compute in float32 on the same random token ids with the same
weights, each in a process of its own, in turns; the figures are medians over the rounds. The peer is
transformers' model with its own cache in a plain greedy loop (faster than its `generate`), and for
training the loss that the model computes from labels. Ours are the functions that rollouts and updates
call, sampling at temperature 1; on a CPU with unrolled layers, which are faster there and slower to
compile. Training is the gradient of the mean log-probability of all tokens, without optimizer.

On an accelerator only our side runs (--ours --dtype=bfloat16). Figures are also given as shares of what
the device does at best: FLOP/s of a large matrix product, bytes/s of a large copy, both measured here.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from configs import quickstart
from vict_jax.models import decoder, hf, likelihood
from vict_jax.models.cache import init_cache
from vict_jax.models.config import ModelConfig
from vict_jax.rollout.sampler import SamplerOptions, prefill, reply
from vict_jax.sharding import make_mesh

WORK = ("prefill", "decode", "train")
TRAIN_ROWS, TRAIN_LENGTH = 4, 512


@dataclasses.dataclass(frozen=True)
class Task:
    """One measurement: which side and model, what it does, rows, prompt and new tokens."""

    side: str
    model: str
    what: str
    batch: int
    prompt: int
    new: int
    dtype: str

    @property
    def tokens(self) -> int:
        """Tokens whose time is measured."""
        return self.batch * (self.new if self.what == "decode" else self.prompt)


def measure(task: Task) -> dict[str, float]:
    """In a process of its own: seconds of a call after the first, which compiles, and peak memory."""
    work = (_ours if task.side == "ours" else _theirs)(task)
    began = time.perf_counter()
    work()
    first = time.perf_counter() - began
    seconds = min(work() for _ in range(2))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {"seconds": seconds, "first": first, "peak_gib": peak}


def _ids(task: Task, vocab_size: int) -> np.ndarray:
    return np.random.default_rng(0).integers(100, vocab_size, (task.batch, task.prompt), np.int32)


def _ours(task: Task) -> Callable[[], float]:
    config, params = hf.load(pathlib.Path(task.model), make_mesh(), dtype=task.dtype, param_dtype=task.dtype)
    config = dataclasses.replace(config, scan_layers=jax.devices()[0].platform != "cpu")
    graphdef = decoder.structure(config)
    ids = jnp.asarray(_ids(task, config.vocab_size))
    if task.what == "train":
        return _our_training(graphdef, params, ids)
    length, keys = jnp.full(task.batch, task.prompt), jax.random.split(jax.random.key(0), task.batch)
    # No token ends a reply: both sides sample the same number.
    options = SamplerOptions(max_new_tokens=task.new, stop_ids=(config.vocab_size,))

    def work() -> float:
        cache = jax.block_until_ready(init_cache(config, task.batch, task.prompt + task.new))
        began = time.perf_counter()
        cache, last = jax.block_until_ready(prefill(graphdef, params, cache, ids, length, fresh=True))
        if task.what == "decode":
            began = time.perf_counter()
            jax.block_until_ready(reply(graphdef, params, cache, last, length, keys, None, options))
        return time.perf_counter() - began

    return work


def _our_training(graphdef: nnx.GraphDef, params: nnx.State, ids: jax.Array) -> Callable[[], float]:
    def loss(params: nnx.State, ids: jax.Array) -> jax.Array:
        ones = jnp.ones_like(ids)
        position = jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)
        hidden, _ = decoder.apply(graphdef, params, ids, ones, position)
        return -likelihood.token_logp(graphdef, params, hidden[:, :-1], ids[:, 1:]).mean()

    step = jax.jit(jax.value_and_grad(loss))

    def work() -> float:
        began = time.perf_counter()
        jax.block_until_ready(step(params, ids))
        return time.perf_counter() - began

    return work


def _theirs(task: Task) -> Callable[[], float]:
    import torch  # the peer, of the extra `parity`
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(task.model, dtype=getattr(torch, task.dtype))
    ids = torch.tensor(_ids(task, model.config.vocab_size), dtype=torch.long)

    def train() -> float:
        model.zero_grad(set_to_none=True)
        began = time.perf_counter()
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        return time.perf_counter() - began

    @torch.inference_mode()
    def sample() -> float:
        began = time.perf_counter()
        out = model(input_ids=ids, use_cache=True, logits_to_keep=1)
        if task.what == "prefill":
            return time.perf_counter() - began
        began = time.perf_counter()
        for _ in range(task.new - 1):
            token = out.logits[:, -1:].argmax(-1)
            out = model(input_ids=token, past_key_values=out.past_key_values, use_cache=True)
        return time.perf_counter() - began

    return train if task.what == "train" else sample


def in_process(task: Task) -> dict[str, float]:
    """`measure` in a fresh interpreter.

    Raises:
      RuntimeError: it failed; the message has its last lines.
    """
    command = [sys.executable, "-m", "benchmarks.model", "--task", json.dumps(dataclasses.asdict(task))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{task} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def quickstart_model(folder: pathlib.Path) -> pathlib.Path:
    """A directory with the quickstart's model, newly initialised."""
    options = quickstart.get_config().model
    names = ("num_layers", "d_model", "num_heads", "num_kv_heads", "head_dim", "d_ff", "vocab_size")
    config = ModelConfig(**{name: options[name] for name in names})
    _, params = decoder.init(config, jax.random.key(0))
    hf.export(folder, config, params, tokenizer=None, generation_config=None)
    return folder


def ceilings(dtype: str) -> dict[str, float]:
    """FLOP/s of a large matrix product and bytes/s of a large copy (read and written), best of several."""
    size = 4096 if jax.devices()[0].platform == "cpu" else 16384
    x = jnp.ones((size, size), dtype)
    product = jax.jit(jnp.matmul)
    copy = jax.jit(lambda x: x + 1)

    def best(work: Callable[[], Any]) -> float:
        times = []
        for _ in range(5):
            began = time.perf_counter()
            jax.block_until_ready(work())
            times.append(time.perf_counter() - began)
        return min(times[1:])

    return {
        "flops": 2 * size**3 / best(functools.partial(product, x, x)),
        "bytes": 2 * x.nbytes / best(functools.partial(copy, x)),
    }


def utilisation(task: Task, seconds: float, best: dict[str, float]) -> str:
    """Share of the measured ceiling: FLOPs for prefill and training, weight bytes for decode."""
    config = hf.load_config(pathlib.Path(task.model))
    declared = jax.eval_shape(lambda: decoder.init(config, jax.random.key(0))[1])
    size = sum(leaf.size for leaf in jax.tree.leaves(declared))
    if task.what == "decode":
        moved = task.new * size * jnp.dtype(task.dtype).itemsize
        return f"{moved / seconds / best['bytes']:.0%} of the copy bandwidth"
    flops = (6 if task.what == "train" else 2) * size * task.tokens
    return f"{flops / seconds / best['flops']:.0%} of the FLOP/s of a matrix product"


def tasks(args: argparse.Namespace, model: str) -> list[tuple[str, int, int]]:
    """(what, rows, prompt) of each line."""
    lines = [(what, batch, args.prompt) for what in ("prefill", "decode") for batch in args.batch]
    lines = [one for one in lines if one[0] in args.what and not (one[0] == "prefill" and one[1] > 16)]
    return lines + [("train", TRAIN_ROWS, TRAIN_LENGTH)] * ("train" in args.what)


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line; see the module."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.model", description="Decoder speed.")
    parser.add_argument("--model", type=pathlib.Path, help="checkpoint directory, see `make smollm`")
    parser.add_argument("--quickstart", action="store_true", help="the quickstart's model as well")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--prompt", type=int, default=256, help="tokens before those that are sampled")
    parser.add_argument("--new", type=int, default=32, help="tokens sampled")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--what", nargs="+", choices=WORK, default=list(WORK))
    parser.add_argument("--ours", action="store_true", help="without the peer, in --dtype")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--json", type=pathlib.Path, metavar="OUT")
    parser.add_argument("--task", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if not args.task and args.model is None and not args.quickstart:
        parser.error("give --model DIR, --quickstart, or both")
    return args


def compare(args: argparse.Namespace, model: pathlib.Path, best: dict[str, float]) -> list[dict[str, Any]]:
    """Measure both sides of every line in turns and print them."""
    sides = ("ours",) if args.ours else ("ours", "theirs")
    rows = []
    print(f"{model.name}: {'':12} rows   ours tok/s  theirs tok/s   ratio   peak GiB ours / theirs")
    for what, batch, prompt in tasks(args, str(model)):
        found: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
        for _ in range(args.rounds):
            for side in sides:
                task = Task(side, str(model), what, batch, prompt, args.new, args.dtype)
                found[side].append(in_process(task))
        speed = {
            side: task.tokens / statistics.median(run["seconds"] for run in runs)
            for side, runs in found.items()
        }
        peak = {side: statistics.median(run["peak_gib"] for run in runs) for side, runs in found.items()}
        share = utilisation(task, task.tokens / speed["ours"], best)
        rows.append({"what": what, "batch": batch, "speed": speed, "peak_gib": peak, "share": share})
        theirs = f"{speed['theirs']:12.1f}  {speed['ours'] / speed['theirs']:6.2f}" if not args.ours else ""
        peaks = " / ".join(f"{value:.2f}" for value in peak.values())
        print(f"{what:24}{batch:6}{speed['ours']:13.1f}{theirs}   {peaks}   {share}", flush=True)
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    """Command line."""
    args = parse_args(argv)
    if args.task:
        print(json.dumps(measure(Task(**json.loads(args.task)))))
        return
    result: dict[str, Any] = {"device": str(jax.devices()[0]), "dtype": args.dtype}
    result["ceilings"] = best = ceilings(args.dtype)
    print(f"{result['device']}, {args.dtype}: {best['flops']:.3g} FLOP/s, {best['bytes']:.3g} bytes/s")
    with tempfile.TemporaryDirectory() as folder:
        models = [args.model] if args.model else []
        models += [quickstart_model(pathlib.Path(folder) / "quickstart")] if args.quickstart else []
        for model in models:
            result[model.name] = compare(args, model, best)
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
