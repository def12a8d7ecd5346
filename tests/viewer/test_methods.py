"""What needs JAX: the same values as `vict_jax.compare` and the kernels give."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from tests.audit.logged import make_config
from vict_jax import compare
from vict_jax.types import Relation
from vict_jax.viewer import methods


def test_every_observed_edge(logged):
    workdir, updates = logged
    witness = updates[1].output.proofs.witness
    for g, n in ((0, 1), (1, 3)):
        expected = [(t, j, Relation(r).name.lower()) for t, j, r in np.argwhere(witness[g, n]).tolist()]
        assert methods.observed(workdir, 1, g, n) == expected


def test_the_run_s_own_method_gives_what_is_logged(logged):
    workdir, updates = logged
    found = methods.advantages(workdir, 1, ("vict",))
    assert np.array_equal(found["vict"], updates[1].output.advantages)


def test_which_methods_are_possible(logged):
    table = {one["name"]: one["why_not"] for one in methods.available(logged[0], 1)}
    assert table["gigpo+vict"] == table["grpo"] == ""
    assert "needs ['value']" in table["gae"]
    assert "vict+vict" not in table
    batch = compare.logged(logged[0], 1, [])
    for name, why in table.items():
        assert compare.why_not(batch, name) == why
    assert make_config().credit.method in table


def test_what_cannot_be_computed_comes_back_as_one_kind_of_error(logged, tmp_path):
    workdir = tmp_path / "run"
    shutil.copytree(logged[0], workdir)
    (workdir / "rollouts" / "update_000001.npz").write_bytes(b"PK")
    with pytest.raises(methods.UnavailableError, match=r"update_000001.npz is damaged"):
        methods._guarded(methods.observed, workdir, 1, 0, 0)
    config = json.loads((workdir / "config.json").read_text())
    del config["credit"]
    (workdir / "config.json").write_text(json.dumps(config))
    with pytest.raises(methods.UnavailableError, match="credit"):
        methods._guarded(methods.available, workdir, 2)
