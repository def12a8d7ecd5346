"""The plan in words and tables."""

from __future__ import annotations

from collections.abc import Sequence

from vict_jax.plan.devices import GIB, Fleet
from vict_jax.plan.estimate import Estimate, Setting
from vict_jax.plan.verify import Comparison


def describe(setting: Setting, fleet: Fleet) -> str:
    """What is planned, in two lines."""
    model = setting.model
    data, fsdp, tensor = setting.mesh
    return (
        f"{model.num_layers} layers, width {model.d_model}, vocabulary {model.vocab_size}, {model.dtype} on "
        f"{model.param_dtype} weights, remat {'on' if model.remat else 'off'}\n"
        f"{fleet.name}: {fleet.count} devices, {setting.count} of them in the mesh data={data} fsdp={fsdp} "
        f"tensor={tensor}; {setting.micro_rows} rows of {setting.length} tokens a gradient, "
        f"{setting.sample_rows} rows sampled"
    )


def table(found: Estimate, fleet: Fleet) -> str:
    """GiB of one device, by what it is and by phase of an update."""
    phases = list(found.phases)
    lines = [f"{'GiB of one device':32}" + "".join(f"{phase:>12}" for phase in phases)]
    for name, size in found.resident.items():
        lines.append(f"{name:32}" + "".join(f"{size / GIB:12.3f}" for _ in phases))
    for name in dict.fromkeys(name for phase in phases for name in found.phases[phase]):
        cells = [found.phases[phase].get(name) for phase in phases]
        lines.append(f"{name:32}" + "".join(" " * 12 if x is None else f"{x / GIB:12.3f}" for x in cells))
    lines.append(f"{'total':32}" + "".join(f"{found.total(phase) / GIB:12.3f}" for phase in phases))
    fits = "fits" if found.peak <= fleet.usable else "does NOT fit"
    lines.append(f"{fits}: {found.peak / GIB:.2f} of {fleet.usable / GIB:.2f} GiB usable on a device")
    return "\n".join(lines)


def suggestion(found: tuple[Setting, Estimate] | None, fleet: Fleet) -> str:
    """The settings that the search came to, as flags."""
    if found is None:
        return "suggested: nothing that was tried fits; more devices, LoRA or a shorter context are left"
    setting, planned = found
    data, fsdp, tensor = setting.mesh
    return (
        f"suggested: --config.mesh.data={data} --config.mesh.fsdp={fsdp} --config.mesh.tensor={tensor} "
        f"--config.model.remat={setting.model.remat} --config.ppo.micro_rows={setting.micro_rows} "
        f"--config.rollout.rows={setting.sample_rows}\n"
        f"           {planned.peak / GIB:.2f} of {fleet.usable / GIB:.2f} GiB usable on a device"
    )


def comparison(found: Sequence[Comparison]) -> str:
    """Planned and compiled bytes of each program."""
    names = ("arguments", "temporary", "compiled", "planned")
    lines = [f"{'MiB of one device':18}" + "".join(f"{name:>12}" for name in names) + f"{'ratio':>8}"]
    for row in found:
        sizes = (row.arguments, row.temporary, row.compiled, row.planned)
        cells = "".join(f"{size / 2**20:12.1f}" for size in sizes)
        lines.append(f"{row.program:18}{cells}{row.ratio:8.3f}   ({row.seconds:.0f} s)")
    return "\n".join(lines)
