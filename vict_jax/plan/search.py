"""Settings that fit: a few sensible meshes and sizes of micro-batches, in order of what they cost."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from vict_jax.plan.devices import Fleet
from vict_jax.plan.estimate import Estimate, Setting, estimate


def meshes(setting: Setting, fleet: Fleet) -> Iterator[tuple[int, int, int]]:
    """Meshes of the whole fleet that divide the model, those with the least communication first.

    `tensor` exchanges activations in every layer, so it comes last and stays within a group of devices;
    `fsdp` gathers weights once a pass, `data` adds up gradients.
    """
    count, model = fleet.count, setting.model
    for tensor in range(1, fleet.group + 1):
        divides = not any(
            size % tensor
            for size in (model.num_heads, model.num_kv_heads, model.d_ff, model.vocab_size, count)
        )
        if divides:
            parts = count // tensor
            for fsdp in (size for size in range(1, parts + 1) if parts % size == 0):
                if model.d_model % fsdp == 0:
                    yield parts // fsdp, fsdp, tensor


def candidates(setting: Setting, fleet: Fleet) -> Iterator[Setting]:
    """The settings that are tried; without rematerialisation first, large micro-batches before small ones."""
    for mesh in meshes(setting, fleet):
        parts = mesh[0] * mesh[1]
        sampled = max(parts, setting.sample_rows // parts * parts)
        for remat in (False, True):
            for rows in (8, 4, 2, 1):
                yield dataclasses.replace(
                    setting,
                    model=dataclasses.replace(setting.model, remat=remat),
                    mesh=mesh,
                    micro_rows=rows * parts,
                    sample_rows=sampled,
                )


def suggest(setting: Setting, fleet: Fleet) -> tuple[Setting, Estimate] | None:
    """The first candidate that fits into the devices of the fleet, None if none does."""
    for candidate in candidates(setting, fleet):
        if candidate.micro_rows <= max(setting.rows, candidate.parts):
            found = estimate(candidate, fleet.platform)
            if found.peak <= fleet.usable:
                return candidate, found
    return None
