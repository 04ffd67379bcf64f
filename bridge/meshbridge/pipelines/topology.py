"""The devices of a machine, divided among the stages of a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import Any

import numpy as np

from meshbridge.cost.permutes import permute_time
from meshbridge.cost.seconds import Time
from meshbridge.ir.mlir import MeshError
from meshbridge.ir.sharding import Mesh
from meshbridge.machines.compile_target import CompileTarget
from meshbridge.machines.layout import place


def target_of_stage(target: CompileTarget, stages: int) -> CompileTarget:
    """The devices of one stage: the topology divided along its outermost dimensions, `v5p:1x4x4` of `v5p:4x4x4` for four stages;
    the target itself without a topology. Raises MeshError for a topology that cannot be divided into so many equal parts."""
    if target.devices is None:
        return target
    devices, remaining = target.devices, stages
    sizes = []
    for size in (devices.slices, *devices.topology):
        factor = gcd(size, remaining)
        # Beyond a dimension that is divided, but not in one piece for each stage, stages would be no boxes.
        sizes.append(size // factor)
        remaining //= factor
        if remaining > 1 and sizes[-1] > 1:
            break
    if remaining > 1:
        raise MeshError(
            f"error: machine '{target.name}' cannot be divided into {stages} equal parts along its outermost dimensions"
            "\n  hint: name a machine whose slices, nodes or outermost dimension the stages divide"
        )
    rest = (devices.slices, *devices.topology)[len(sizes) :]
    slices, *topology = (*sizes, *rest)
    text = "x".join(map(str, topology if slices == 1 else (slices, *topology)))
    return target.but(machine=f"{devices.device}:{text}")


def transfer_time(target: CompileTarget, mesh: Mesh, stages: int, source: int, reader: int, shard_bytes: float) -> Time:
    """The time in which each device of a stage sends `shard_bytes` to the same device of another stage. `mesh` is that of one
    stage. Raises MeshError if all stages do not fit the target's topology."""
    assert target.devices is not None, "only a topology says how far it is"
    whole = Mesh("pipeline", (stages, *mesh.shape))
    return permute_time(shard_bytes, np.array([source]), np.array([reader]), (0,), place(whole, target.devices))


def devices_of_stages(devices: Sequence[Any], size: int, stages: int) -> Sequence[Any]:
    """The devices of so many stages on meshes of `size` devices. Raises MeshError if there are fewer, or one is named twice."""
    if len(devices) < size * stages:
        raise MeshError(
            f"error: {stages} stages on meshes of {size} devices need {size * stages} devices, there are {len(devices)}"
            "\n  hint: shard the step on a mesh of as many devices as one stage has"
        )
    if len(set(devices)) < len(devices):
        twice = next(device for number, device in enumerate(devices) if device in devices[:number])
        raise MeshError(f"error: the meshes of stages overlap: device {twice.id} is named twice")
    return devices[: size * stages]
