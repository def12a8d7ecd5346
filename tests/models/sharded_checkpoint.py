"""Run by test_hf.py in a process with 8 fake devices: what a sharded load reads, as JSON."""

from __future__ import annotations

import contextlib
import functools
import json
import pathlib
import sys
import tempfile
import types

import jax
import numpy as np

from vict_jax import sharding
from vict_jax.models import config as C
from vict_jax.models import decoder, hf

CONFIG = C.ModelConfig(
    vocab_size=20, num_layers=2, d_model=16, num_heads=4, num_kv_heads=2, head_dim=4, d_ff=24
)


class Counted:
    """A tensor of an open file that notes the elements of every read."""

    def __init__(self, tensor, reads):
        self.tensor, self.reads = tensor, reads
        self.get_shape, self.get_dtype = tensor.get_shape, tensor.get_dtype

    def __getitem__(self, cuts):
        part = self.tensor[cuts]
        self.reads.append(part.size)
        return part


@contextlib.contextmanager
def counting(safe_open, reads, path, framework):
    with safe_open(path, framework=framework) as file:
        yield types.SimpleNamespace(keys=file.keys, get_slice=lambda key: Counted(file.get_slice(key), reads))


def main(folder: pathlib.Path) -> None:
    params = decoder.init(CONFIG, jax.random.key(0))[1]
    hf.export(folder / "one", CONFIG, params, tokenizer=None, generation_config=None)
    reads: list[int] = []

    hf.safetensors.safe_open = functools.partial(counting, hf.safetensors.safe_open, reads)
    _, split = hf.load(folder / "one", sharding.make_mesh((2, 2, 2)))
    hf.export(folder / "two", CONFIG, split, tokenizer=None, generation_config=None)
    first, second = ((folder / name / hf.WEIGHTS).read_bytes() for name in ("one", "two"))
    report = {
        "equal": all(
            jax.tree.leaves(
                jax.tree.map(lambda a, b: bool((np.asarray(a) == np.asarray(b)).all()), params, split)
            )
        ),
        "exported_equal": first == second,
        "shard": list(split["layers"]["q"][...].addressable_shards[0].data.shape),
        "read": sum(reads),
        "size": sum(x.size for x in jax.tree.leaves(params)),
        "largest": max(reads),
        "matrix": CONFIG.d_model * CONFIG.d_ff,
    }
    json.dump(report, sys.stdout)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        main(pathlib.Path(name))
