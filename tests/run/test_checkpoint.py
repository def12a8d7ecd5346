"""Checkpoints: exact round trips, and what is left after kills, damage and full disks."""

from __future__ import annotations

import errno
import json
import logging
import pathlib
import shutil
import signal
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vict_jax import checkpoint, sharding
from vict_jax.learner.microbatch import init_state
from vict_jax.learner.optimizer import OptimizerOptions, make_optimizer
from vict_jax.models import config, decoder


def abstract(tree):
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), tree)


def make_tree(scale=1.0):
    placed = sharding.replicated(sharding.make_mesh())
    tree = {
        "a": scale * jnp.arange(60000, dtype=jnp.float32).reshape(-1, 30),
        "half": jnp.full((7,), scale, jnp.bfloat16),
        "nested": [jnp.int32(3), jax.random.key(11)],
    }
    return jax.device_put(tree, placed)


def bits(x):
    is_key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(x) if is_key else x)


def assert_same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert x.dtype == y.dtype
        assert x.sharding == y.sharding
        np.testing.assert_array_equal(bits(x), bits(y))


@pytest.fixture
def two(tmp_path):
    """A directory with checkpoints of steps 1 and 2."""
    for step in (1, 2):
        checkpoint.save(tmp_path, step, make_tree(step), {"update": step}, keep=5)
    return tmp_path


def largest_file(path):
    return max((p for p in path.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)


def restore(directory, **kwargs):
    return checkpoint.restore(directory, abstract(make_tree()), **kwargs)


def test_round_trip_is_exact(two):
    restored = restore(two)
    assert_same(restored.tree, make_tree(2))
    assert (restored.step, restored.metadata, restored.skipped) == (2, {"update": 2}, ())
    assert_same(restore(two, step=1).tree, make_tree(1))
    assert checkpoint.latest_step(two) == 2


def test_buffers_may_be_donated_while_a_checkpoint_is_written(tmp_path):
    spoil = jax.jit(lambda tree: jax.tree.map(lambda x: x * 0 - 1, tree), donate_argnums=0)
    for step in range(3):
        tree = jax.block_until_ready({f"{i}": jnp.full((1000, 500), i, jnp.float32) for i in range(8)})
        wanted = abstract(tree)
        pending = checkpoint.begin(tmp_path, step, tree, {}, keep=1)
        jax.block_until_ready(spoil(tree))
        pending.wait()
        restored = checkpoint.restore(tmp_path, wanted).tree
        assert all((restored[str(i)] == i).all() for i in range(8))


def test_nobody_waits_for_the_disk_but_who_asks(two, monkeypatch):
    write, disk = checkpoint._write_manifest, threading.Event()

    def slow(*arguments):
        assert disk.wait(60)
        write(*arguments)

    monkeypatch.setattr(checkpoint, "_write_manifest", slow)
    pending = checkpoint.begin(two, 3, make_tree(3), {}, keep=1)
    assert checkpoint.steps(two) == [1, 2]
    disk.set()
    pending.wait()
    assert checkpoint.steps(two) == [3]


def test_a_relative_directory_works(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = pathlib.Path("runs/here")
    checkpoint.save(folder, 1, make_tree(1), {}, keep=1)
    assert_same(restore(folder).tree, make_tree(1))


def test_learner_state_round_trip(tmp_path):
    model = config.ModelConfig(
        vocab_size=11, num_layers=2, d_model=8, num_heads=2, num_kv_heads=1, head_dim=4, d_ff=8
    )
    mesh = sharding.make_mesh()
    _, params = decoder.init(model, jax.random.key(0))
    params = jax.device_put(params, sharding.param_shardings(mesh, params, decoder.logical_axes(model)))
    state = init_state(params, make_optimizer(OptimizerOptions(), total_steps=5))
    checkpoint.save(tmp_path, 0, state, {}, keep=1)
    assert_same(checkpoint.restore(tmp_path, abstract(state)).tree, state)


def test_only_the_newest_are_kept(tmp_path):
    for step in (3, 5, 7, 9):
        checkpoint.save(tmp_path, step, make_tree(), {}, keep=2)
    assert checkpoint.steps(tmp_path) == [7, 9]
    # A run that was set back writes an earlier step: what came later is another history.
    checkpoint.save(tmp_path, 8, make_tree(8), {}, keep=2)
    assert checkpoint.steps(tmp_path) == [7, 8]
    checkpoint.save(tmp_path, 8, make_tree(4), {"again": True}, keep=2)
    assert_same(restore(tmp_path).tree, make_tree(4))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step_00000007", "step_00000008"]


def test_a_kill_while_writing_leaves_nothing_that_looks_complete(two, monkeypatch):
    class Killed(BaseException):
        pass

    def killed(*_):
        raise Killed

    for point in ("_write_manifest", "_commit"):
        with monkeypatch.context() as patch:
            patch.setattr(checkpoint, point, killed)
            with pytest.raises(Killed):
                checkpoint.save(two, 3, make_tree(3), {}, keep=1)
        assert checkpoint.steps(two) == [1, 2]
        assert_same(restore(two).tree, make_tree(2))
    checkpoint.save(two, 3, make_tree(3), {}, keep=1)
    assert [p.name for p in two.iterdir()] == ["step_00000003"]


def test_an_interrupt_while_writing_comes_after_the_checkpoint(two, monkeypatch):
    """Orbax's threads would otherwise fail with tracebacks while the interpreter ends."""
    tree = make_tree(9)
    write, usual = checkpoint.ocp.save_async, signal.getsignal(signal.SIGINT)

    def interrupted(*arguments):
        signal.raise_signal(signal.SIGINT)
        return write(*arguments)

    monkeypatch.setattr(checkpoint.ocp, "save_async", interrupted)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.begin(two, 9, tree, {}, keep=3)
    assert_same(restore(two, step=9).tree, tree)
    assert signal.getsignal(signal.SIGINT) is usual

    def insisting(*arguments):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        pytest.fail("the second interrupt did nothing")

    monkeypatch.setattr(checkpoint.ocp, "save_async", insisting)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.begin(two, 9, tree, {}, keep=3)
    assert signal.getsignal(signal.SIGINT) is usual


def test_a_kill_while_removing_leaves_the_newest(two, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.shutil, "rmtree", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            checkpoint.save(two, 3, make_tree(3), {}, keep=1)
    assert_same(restore(two).tree, make_tree(3))
    checkpoint.save(two, 4, make_tree(4), {}, keep=1)
    assert [p.name for p in two.iterdir()] == ["step_00000004"]


def truncate(file):
    file.write_bytes(file.read_bytes()[:-100])


def flip_a_bit(file):
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(raw)


@pytest.mark.parametrize("damage", [truncate, flip_a_bit, lambda file: file.unlink()])
def test_a_damaged_newest_checkpoint_falls_back_and_says_so(two, damage, caplog):
    damage(largest_file(two / "step_00000002"))
    with caplog.at_level(logging.WARNING, logger="absl"):
        restored = restore(two)
    assert_same(restored.tree, make_tree(1))
    assert restored.step == 1
    assert len(restored.skipped) == 1
    assert "step_00000002" in restored.skipped[0]
    assert "step_00000002 is damaged" in caplog.text
    with pytest.raises(checkpoint.CheckpointError, match="step_00000002"):
        restore(two, step=2)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"step": 2}'])
def test_a_damaged_manifest_counts_as_damage(two, text):
    (two / "step_00000002" / "manifest.json").write_text(text)
    assert restore(two).step == 1


def test_every_file_of_a_checkpoint_is_covered(two):
    path = two / "step_00000002"
    names = {str(p.relative_to(path)) for p in path.rglob("*") if p.is_file()} - {"manifest.json"}
    assert set(json.loads((path / "manifest.json").read_text())["files"]) == names


def test_nothing_to_restore_is_a_clear_error(two, tmp_path):
    with pytest.raises(checkpoint.CheckpointError, match=r"no checkpoint of step 7 .* there are \[1, 2\]"):
        restore(two, step=7)
    with pytest.raises(checkpoint.CheckpointError, match="no checkpoint in"):
        restore(tmp_path / "nothing")
    for step in (1, 2):
        truncate(largest_file(two / f"step_{step:08d}"))
    with pytest.raises(checkpoint.CheckpointError, match=r"no undamaged checkpoint: .*02: .*01: "):
        restore(two)


def test_another_model_is_refused_by_leaf_and_both_shapes(two):
    other = abstract(make_tree())
    other["a"] = jax.ShapeDtypeStruct((5, 30), jnp.float32, sharding=other["a"].sharding)
    with pytest.raises(ValueError, match=r"leaf 'a' is float32\[2000, 30\], expected float32\[5, 30\]"):
        checkpoint.restore(two, other)
    other["b"] = other.pop("a")
    with pytest.raises(ValueError, match=r"lacks leaves \['b'\] and has unknown leaves \['a'\]"):
        checkpoint.restore(two, other)


def test_a_full_disk_is_refused_before_anything_is_written(two, monkeypatch):
    usage = shutil.disk_usage(two)
    monkeypatch.setattr(checkpoint.shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(OSError, match=r"needs up to 2\d+ bytes and 1000 are free") as caught:
        checkpoint.save(two, 3, make_tree(), {}, keep=1)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(two))
    assert "steps [1, 2] are kept" in str(caught.value)


def test_a_disk_that_fills_up_while_writing_keeps_the_old_checkpoints(two, monkeypatch):
    class Full:
        def result(self):
            raise ValueError("RESOURCE_EXHAUSTED: Failed: No space left on device [os_error_code='28']")

    def full(path, _):
        path.mkdir(parents=True)
        (path / "part").write_bytes(b"0" * 100)
        return Full()

    monkeypatch.setattr(checkpoint.ocp, "save_async", full)
    with pytest.raises(OSError, match=r"steps \[1, 2\] are kept") as caught:
        checkpoint.save(two, 3, make_tree(), {}, keep=1)
    assert caught.value.errno == errno.ENOSPC
    assert sorted(p.name for p in two.iterdir()) == ["step_00000001", "step_00000002"]
    assert_same(restore(two).tree, make_tree(2))


def test_arguments_are_checked(tmp_path):
    with pytest.raises(ValueError, match="keep=0"):
        checkpoint.save(tmp_path, 1, make_tree(), {}, keep=0)
    with pytest.raises(ValueError, match="checkpoint leaf 'x' is a float"):
        checkpoint.save(tmp_path, 1, {"x": 1.0}, {}, keep=1)
