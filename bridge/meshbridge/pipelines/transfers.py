"""Arrays on the devices of several stages: stacks of layers, and transfers between processes.

Between processes, `jax.device_put` moves nothing on CPUs. There a transfer is a program that both processes run, on the devices
of both stages: a permute along an axis of two, the source and the reader.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from meshbridge.ir.mlir import MeshError
from meshbridge.pipelines.layer_stack import LayerStack
from meshbridge.pipelines.stacks import STACK_AXIS, Part, stack_axis


def on_all(meshes: Sequence[Mesh], spec: PartitionSpec) -> NamedSharding:
    """The sharding of a stack whose parts are sharded as `spec` on these meshes, one part on each."""
    names = meshes[0].axis_names
    axis = stack_axis(names)
    first = spec[0] if len(spec) else None
    axes = () if first is None else (first,) if isinstance(first, str) else tuple(first)
    whole = Mesh(np.stack([mesh.devices for mesh in meshes]), (axis, *names))
    return NamedSharding(whole, PartitionSpec((axis, *axes), *spec[1:]))


def is_of_stack(sharding: Any) -> bool:
    """Whether a stack of layers on the devices of all groups has this sharding."""
    return isinstance(sharding, NamedSharding) and any(name.startswith(STACK_AXIS) for name in sharding.mesh.axis_names[:1])


def part_of(stack: Any, part: Part, target: NamedSharding, label: str) -> Any:
    """A part of a stack of layers: that of a `LayerStack`, or the shards, if they are on the devices of `target` as that says, as
    after a step; else a copy.

    Raises MeshError for another stack that is on devices of several processes."""
    start, end = part.bounds(stack.shape[0])
    shape = (end - start, *stack.shape[1:])
    if isinstance(stack, LayerStack):
        return stack.rows(start, end)
    if isinstance(stack, jax.Array) and len(stack.sharding.device_set) == part.parts * len(target.device_set):
        held = stack.sharding.devices_indices_map(stack.shape)
        wanted = target.devices_indices_map(shape)
        if all(device in held for device in wanted) and all(
            _bounds(held[device], stack.shape) == _bounds(index, shape, start) for device, index in wanted.items()
        ):
            shards = {shard.device: shard.data for shard in stack.addressable_shards}
            own = [shards[device] for device in target.addressable_devices_indices_map(shape)]
            return jax.make_array_from_single_device_arrays(shape, target, own)
    refuse_spread(stack, label)
    return stack[start:end]


def refuse_spread(value: Any, label: str) -> None:
    """Raises MeshError for an array of which other processes have shards."""
    if isinstance(value, jax.Array) and not value.is_fully_addressable:
        raise MeshError(
            f"error: {label}: the array is on devices of other processes, and not as a step returns it"
            "\n  hint: give each process all of it, as an array of numpy"
        )


def _bounds(index: tuple[slice, ...], shape: Sequence[int], start: int = 0) -> list[tuple[int, int]]:
    """The bounds of a shard by dimension, of which those along the first one begin at `start`."""
    bounds = [each.indices(size)[:2] for each, size in zip(index, shape, strict=True)]
    return [(bounds[0][0] + start, bounds[0][1] + start), *bounds[1:]]


def stacked(parts: Sequence[jax.Array]) -> jax.Array | LayerStack:
    """The stack of these parts: one array on all of their devices, if they have equally many layers, and are on as many meshes,
    sharded alike; else a `LayerStack`."""
    first = parts[0]
    if len(parts) == 1:
        return first
    shardings = [part.sharding for part in parts if isinstance(part.sharding, NamedSharding)]
    devices = [device for sharding in shardings for device in sharding.mesh.devices.flat]
    alike = {(part.shape, sharding.spec) for part, sharding in zip(parts, shardings, strict=False)}
    if len(shardings) < len(parts) or len(alike) > 1 or len({*devices}) < len(devices):
        return LayerStack(tuple(parts))
    sharding = on_all([each.mesh for each in shardings], shardings[0].spec)
    shape = (first.shape[0] * len(parts), *first.shape[1:])
    shards = {shard.device: shard.data for part in parts for shard in part.addressable_shards}
    own = [shards[device] for device in sharding.addressable_devices_indices_map(shape)]
    return jax.make_array_from_single_device_arrays(shape, sharding, own, dtype=first.dtype)


def elsewhere(shape: Sequence[int], dtype: np.dtype[Any], sharding: NamedSharding) -> jax.Array:
    """An array of which this process has no shard."""
    return jax.make_array_from_single_device_arrays(tuple(shape), sharding, [], dtype=dtype)


@dataclass(frozen=True)
class Transfers:
    """Transfers between groups of devices of two processes, one of which is this one. Both call them in the same order."""

    _programs: dict[Any, tuple[Any, list[jax.Array]]] = field(default_factory=dict)

    def send(self, value: jax.Array, source: Mesh, target: NamedSharding) -> jax.Array:
        """A value of the mesh `source` in the sharding `target`, on devices in the same order. In the process of the reader, the
        value has no shards; in that of the source, the result has none."""
        mesh = Mesh(np.array(source.devices.flat).reshape(target.mesh.devices.shape), target.mesh.axis_names)
        is_source = mesh.devices.flat[0].process_index == jax.process_index()
        scalar = not value.shape
        shape = value.shape or (1,)
        sharding = on_all([mesh, target.mesh], target.spec)
        whole = (2 * shape[0], *shape[1:])
        with jax.enable_x64(True):
            program, zeros = self._program(whole, value.dtype, sharding, is_source=is_source)
            if is_source:
                placed = jax.device_put(value, NamedSharding(mesh, target.spec))
                own = [shard.data.reshape(1) if scalar else shard.data for shard in placed.addressable_shards]
            else:
                own = zeros
            sent = program(jax.make_array_from_single_device_arrays(whole, sharding, own))
        if is_source:
            return elsewhere(value.shape, value.dtype, target)
        shards = {shard.device: shard.data for shard in sent.addressable_shards}
        received = [shards[device] for device in target.addressable_devices_indices_map(value.shape)]
        parts = [part.reshape(()) for part in received] if scalar else received
        return jax.make_array_from_single_device_arrays(value.shape, target, parts)

    def _program(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], sharding: NamedSharding, *, is_source: bool
    ) -> tuple[Any, list[jax.Array]]:
        """The permute, and what a reader puts into it."""
        key = shape, dtype, sharding
        if key not in self._programs:
            axis = sharding.mesh.axis_names[0]
            permute = partial(jax.lax.ppermute, axis_name=axis, perm=[(0, 1)])
            specs = {"in_specs": sharding.spec, "out_specs": sharding.spec}
            program = jax.jit(jax.shard_map(permute, mesh=sharding.mesh, check_vma=False, **specs))
            part = np.zeros(sharding.shard_shape(shape), dtype)
            devices = () if is_source else sharding.addressable_devices_indices_map(shape)
            self._programs[key] = program, [jax.device_put(part, device) for device in devices]
        return self._programs[key]
