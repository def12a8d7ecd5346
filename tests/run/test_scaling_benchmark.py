"""The benchmark of scaling: its arithmetic on paper, its tables, and the host's phases on a few rollouts."""

from __future__ import annotations

import json
import math
import pathlib

import pytest

from benchmarks import scaling, scaling_estimate, scaling_host, scaling_processes
from benchmarks.scaling_estimate import Work
from benchmarks.scaling_host import Phase
from vict_jax import processes
from vict_jax.models.config import ModelConfig
from vict_jax.models.options import ModelOptions
from vict_jax.plan.presets import HF_CONFIGS


@pytest.fixture(scope="module")
def model() -> ModelConfig:
    return ModelOptions().read(HF_CONFIGS["qwen2.5-7b"])


def cells(table: str, name: str) -> list[str]:
    """The cells of the row that begins with `name`."""
    row = next(line for line in table.splitlines() if line.startswith(f"| {name} |"))
    return [cell.strip() for cell in row.strip("|").split("|")][1:]


def test_a_v5p_256_is_128_chips_of_32_hosts() -> None:
    chip = scaling_estimate.v5p("v5p-256")
    assert (chip.chips, chip.hosts) == (128, 32)
    assert chip.dcn == 25e9
    with pytest.raises(ValueError, match="device='v5e-16' is not allowed"):
        scaling_estimate.v5p("v5e-16")
    with pytest.raises(ValueError, match="must be a v5p slice of whole hosts"):
        scaling_estimate.v5p("v5p-6")


def test_sizes_of_the_published_model(model: ModelConfig) -> None:
    """7.61 G parameters, 6.53 G of them beside the embeddings: the model's card."""
    assert scaling_estimate.parameters(model) == pytest.approx(7.61e9, rel=2e-3)
    table = model.vocab_size * model.d_model
    assert scaling_estimate.matrix_parameters(model) - table == pytest.approx(6.53e9, rel=2e-3)
    assert scaling_estimate.kv_bytes(model) == 2 * 28 * 4 * 128 * 2


def test_parts_of_an_update_by_hand(model: ModelConfig) -> None:
    """One step of one token behind a prompt of 99: 100 tokens, of which one is decoded."""
    chip = scaling_estimate.v5p("v5p-8")
    work = Work(
        rollouts=8, steps=1, prompt=99, sampled=1, rows=2, row=128, fsdp=4, env_ms=2.0, workers=4, fill=0.5
    )
    parts = scaling_estimate.estimate(model, work, chip, own={"pack": 6.0}, whole={"log": 6.0}, told=15e9)
    n = scaling_estimate.matrix_parameters(model)
    attention = 4 * 28 * 3584 * sum(range(1, 101))
    forward = 8 * (2 * n * 100 + attention)
    assert parts["training"] == pytest.approx(2 * 4 * forward / (4 * 459e12 * 0.4))
    assert parts["reference"] == pytest.approx(2 * forward / (4 * 459e12 * 0.5))
    assert parts["prefill"] == pytest.approx(0.99 * forward / (4 * 459e12 * 0.5))
    assert parts["decode"] == pytest.approx((2 * n + 2 * 57344 * 50) / (2765e9 * 0.6))
    assert parts["environments"] == pytest.approx(8 * 2e-3 / 4)
    assert parts["inputs of credit to all hosts"] == pytest.approx(1.0)
    assert parts["host, own share: pack"] == 6.0 / chip.hosts == parts["host, all rollouts: log"]
    gathered = 2 * scaling_estimate.parameters(model) * 3 / 4 / (600e9 * 0.6)
    assert parts["weights for sampling"] == pytest.approx(gathered)
    micro_batches = 800 / (128 * 0.5) / 4
    assert parts["weights and gradients in training"] == pytest.approx(micro_batches * 4 * gathered)
    table = scaling_estimate.table(parts)
    assert float(cells(table, "all")[0]) == pytest.approx(sum(parts.values()), rel=5e-3)
    assert "ESTIMATE ON PAPER" in scaling_estimate.describe("v5p-8", "7b", model, work, chip)


def test_decoding_many_rows_is_bound_by_flops_and_twice_the_rollouts_take_another_round(
    model: ModelConfig,
) -> None:
    chip = scaling_estimate.v5p("v5p-8")
    few, many = (Work(rollouts=4 * rows, rows=rows) for rows in (8, 100_000))
    n = scaling_estimate.matrix_parameters(model)
    reading = (2 * n + 8 * 57344 * few.length / 2) / (2765e9 * 0.6)
    assert scaling_estimate.decode_seconds(model, few, chip) == pytest.approx(25 * 64 * reading)
    twice = scaling_estimate.decode_seconds(model, Work(rollouts=64, rows=8), chip)
    assert twice == pytest.approx(2 * 25 * 64 * reading)
    assert scaling_estimate.decode_seconds(model, many, chip) >= 25 * 64 * 2 * n * 1e5 / (459e12 * 0.5)


def test_assumptions_are_checked_and_read() -> None:
    assert scaling.assumed(["steps=30", "fill=0.7", "recompute=False"]) == Work(
        steps=30, fill=0.7, recompute=False
    )
    for change, message in (
        ("speed=3", "the key must be one of rollouts, steps"),
        ("recompute=no", "it must be True or False"),
        ("fill=1.5", r"fill=1.5 is not allowed: it must be in \(0, 1\]"),
        ("steps=50", "row=4096 is not allowed: a rollout has 6064 tokens"),
    ):
        with pytest.raises(ValueError, match=message):
            scaling.assumed([change])
    with pytest.raises(SystemExit):
        scaling.parse_args(["--rollouts", "12"])


def test_growth_and_proportion() -> None:
    phases = [Phase("pad", 100 * 4**k, 0.1 * 8**k, 0.1, 2**20 * 4**k) for k in range(3)]
    assert scaling_host.growth(phases) == pytest.approx(1.5)
    assert scaling_host.at(phases, 3200)["pad"].cpu == pytest.approx(12.8)
    table = scaling_host.table(phases, {100: 1.0, 400: 2.0, 1600: 3.0})
    assert cells(table, "pad") == ["0.1", "0.8", "6.4", "16.0", "1.50"]


def test_every_phase_of_the_host_is_measured() -> None:
    groups = scaling_host.play(16, 8, 6)
    found = {phase.name: phase for phase in scaling_host.measure(groups, steps=6, windowed_most=16)}
    assert {
        *scaling_host.OWN,
        scaling_host.PACK_STEPS,
        "transfer",
        "credit",
        "fetch",
        "unpack",
        "log",
    } == set(found)
    assert found["pad"].size == found["transfer"].size > found["compress"].size > 0
    steps = sum(len(rollout.actions) for group in groups for rollout in group)
    rows = found[scaling_host.PACK_STEPS].size // (2048 * (6 * 4 + 1))
    assert rows >= math.ceil(steps * 288 / 2048)  # a prompt of 256 and a step of 32 tokens
    assert all(phase.cpu >= 0 and math.isfinite(phase.wall) for phase in found.values())


def test_processes_are_compared_by_work_and_cpu(tmp_path: pathlib.Path) -> None:
    def written(count: int, seconds: float) -> scaling_processes.Spent:
        workdir = tmp_path / f"run{count}"
        workdir.mkdir()
        rows = [{"kind": "train", "update": k, "seconds/sample": seconds} for k in range(4)]
        (workdir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        folder = scaling_processes.spent_folder(workdir)
        folder.mkdir()
        spent = {"wall": seconds, "cpu": 1.6, "exchanges": 9, "size": 512, "waited": 0.5, "exchanged": 0.1}
        for index in range(count):
            (folder / f"{index}.jsonl").write_text((json.dumps(spent) + "\n") * 4)
        return scaling_processes.read(count, workdir)

    found = [written(1, 2.0), written(2, 2.5)]
    table = scaling_processes.table(found)
    assert cells(table, "1") == ["16", "2.00", "1.00", "100.0", "1.00", "9", "0.5", "0.100", "0.50"]
    assert cells(table, "2") == ["32", "2.50", "0.80", "100.0", "1.00", "9", "1.0", "0.100", "0.50"]
    assert cells(scaling_processes.phase_table(found), "sample") == ["2.000", "2.500"]
    with pytest.raises(ValueError, match="updates=2 is not allowed"):
        scaling_processes.run([1], updates=2)


def test_flags_of_a_run_are_keys_of_the_config(tmp_path: pathlib.Path) -> None:
    from configs import quickstart

    config = quickstart.get_config().unlock()
    for count in (1, 2, 4):
        given = scaling_processes.flags(count, tmp_path, 4)
        for flag in given[2:]:
            name, _, value = flag.removeprefix("--config.").partition("=")
            config.update_from_flattened_dict({name: int(value)})
        assert config.train.groups == 2 * count
        processes.check_groups(config.train.groups, count)
