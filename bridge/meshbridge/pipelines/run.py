"""Runs a pipeline's step in one process: an executable for each fragment on its group of devices, and `jax.device_put` between.

JAX dispatches calls and transfers without waiting for their results, so that groups of devices compute at the same time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, count
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from meshbridge.pipelines.fragments import Fragment
from meshbridge.pipelines.plan import Call, CallPlan, Slot
from meshbridge.pipelines.stacks import Part, Stacks
from meshbridge.runtime.pjrt import Executable


@dataclass(frozen=True, eq=False)
class BoundFragment:
    """The executable of a fragment, with the shardings of what it reads and returns.

    Carried values of which devices hold terms of a sum never leave their group. They are handled like replicated ones: JAX has
    unreduced arrays on explicit axes alone, and results would be on such axes, too.
    """

    loaded: Executable

    @cached_property
    def executable(self) -> Executable:
        """The executable, without a word of what is unreduced."""
        ins, outs = ([replace(port, partial=()) for port in ports] for ports in (self.loaded.inputs, self.loaded.outputs))
        return replace(self.loaded, inputs=tuple(ins), outputs=tuple(outs))

    @cached_property
    def reads(self) -> tuple[NamedSharding, ...]:
        """The shardings of arguments. One of uneven shards is replicated: the executable pads it."""
        executable = self.executable
        replicated = NamedSharding(executable.jax_mesh, PartitionSpec())
        even = (port.padded_shape(executable.mesh) == port.shape for port in executable.inputs)
        ports = zip(executable.inputs, even, strict=True)
        return tuple(executable.sharding(port) if is_even else replicated for port, is_even in ports)

    @cached_property
    def returns(self) -> tuple[NamedSharding, ...] | None:
        """The shardings of results; None if arguments or results need more than a sharding: padding, or another order of
        devices."""
        executable = self.executable
        ports = (*executable.inputs, *executable.outputs)
        if executable.mesh.device_ids or any(port.padded_shape(executable.mesh) != port.shape for port in ports):
            return None
        return tuple(map(executable.sharding, executable.outputs))

    def put(self, value: Any, number: int) -> jax.Array:
        """A value on the devices of the fragment, sharded as its argument `number`."""
        target = self.reads[number]
        if isinstance(value, jax.Array) and value.sharding == target:
            return value
        with jax.enable_x64(True):  # without this JAX would silently make 32-bit numbers of 64-bit ones
            placed: jax.Array = jax.device_put(value, target)
        return placed

    def __call__(self, arguments: Sequence[jax.Array]) -> Sequence[jax.Array]:
        """Runs the fragment. Does not wait for its results."""
        if self.returns is None:
            results: Sequence[jax.Array] = self.executable(*arguments)
            return results
        shards = self.executable.loaded.run([self.put(value, number) for number, value in enumerate(arguments)])
        outputs = zip(self.executable.outputs, self.returns, shards, strict=True)
        return [jax.make_array_from_single_device_arrays(port.shape, sharding, own) for port, sharding, own in outputs]


def part_of(stack: Any, part: Part, target: NamedSharding) -> Any:
    """A part of a stack of layers: its shards, if they are on the devices of `target` as that says, as after a step; else a
    copy."""
    start, end = part.bounds(stack.shape[0])
    shape = (end - start, *stack.shape[1:])
    if isinstance(stack, jax.Array) and len(stack.sharding.device_set) == part.parts * len(target.device_set):
        held = stack.sharding.devices_indices_map(stack.shape)
        wanted = target.devices_indices_map(shape)
        if all(device in held for device in wanted) and all(
            _bounds(held[device], stack.shape) == _bounds(index, shape, start) for device, index in wanted.items()
        ):
            shards = {shard.device: shard.data for shard in stack.addressable_shards}
            own = [shards[device] for device in target.addressable_devices_indices_map(shape)]
            return jax.make_array_from_single_device_arrays(shape, target, own)
    return stack[start:end]


def _bounds(index: tuple[slice, ...], shape: Sequence[int], start: int = 0) -> list[tuple[int, int]]:
    """The bounds of a shard by dimension, of which those along the first one begin at `start`."""
    bounds = [each.indices(size)[:2] for each, size in zip(index, shape, strict=True)]
    return [(bounds[0][0] + start, bounds[0][1] + start), *bounds[1:]]


def is_of_stack(sharding: Any) -> bool:
    """Whether a stack of layers on the devices of all groups has this sharding."""
    return isinstance(sharding, NamedSharding) and any(name.startswith(STACK_AXIS) for name in sharding.mesh.axis_names[:1])


STACK_AXIS = "stages"
"""The axis of the groups of devices, in the sharding of a stack of layers."""


def stacked(parts: Sequence[jax.Array]) -> jax.Array:
    """The stack of these parts: one array on all of their devices, if they are on as many meshes, sharded alike; else on the
    devices of the first part."""
    first = parts[0]
    if len(parts) == 1:
        return first
    shardings = [part.sharding for part in parts]
    meshes = [sharding.mesh for sharding in shardings if isinstance(sharding, NamedSharding)]
    devices = [device for mesh in meshes for device in mesh.devices.flat]
    if len({sharding.spec for sharding in shardings if isinstance(sharding, NamedSharding)}) > 1 or len({*devices}) < len(
        devices
    ):
        return jax.numpy.concatenate([jax.device_put(part, first.sharding) for part in parts])
    axis = next(
        name for name in chain((STACK_AXIS,), map(f"{STACK_AXIS}_{{}}".format, count())) if name not in meshes[0].axis_names
    )
    whole = Mesh(np.stack([mesh.devices for mesh in meshes]), (axis, *meshes[0].axis_names))
    spec = shardings[0].spec
    first_axes = spec[0] if len(spec) else None
    axes = () if first_axes is None else (first_axes,) if isinstance(first_axes, str) else tuple(first_axes)
    sharding = NamedSharding(whole, PartitionSpec((axis, *axes), *spec[1:]))
    shape = (first.shape[0] * len(parts), *first.shape[1:])
    shards = {shard.device: shard.data for part in parts for shard in part.addressable_shards}
    own = [shards[device] for device in sharding.addressable_devices_indices_map(shape)]
    return jax.make_array_from_single_device_arrays(shape, sharding, own)


@dataclass(frozen=True, eq=False)
class Runner:
    """A plan and the executables of its fragments. `donated` are the arguments of the plan that it may overwrite."""

    plan: CallPlan
    stacks: Stacks
    fragments: Mapping[Fragment, BoundFragment]
    donated: frozenset[int]

    def __call__(self, arguments: Sequence[Any], labels: Sequence[str]) -> list[jax.Array]:
        """Runs a step on the arrays that the step takes, called by `labels` in diagnostics. Each result is on the devices of the
        group that computes it, and a stack of layers on those of all groups. Raises MeshError for arguments of another shape or
        type."""
        slots: dict[Slot, jax.Array] = {}
        for slot, (fragment, number) in self.plan.arguments.items():
            part, bound = self.stacks.arguments[slot.source.number], self.fragments[fragment]
            port = bound.executable.inputs[number]
            if part.parts > 1:
                port = replace(port, shape=(port.shape[0] * part.parts, *port.shape[1:]))
            fitted = port.fitted(labels[part.number], arguments[part.number])
            own = fitted if part.parts == 1 else part_of(fitted, part, bound.reads[number])
            slots[slot] = bound.put(self._own(own, slot.source.number), number)
        for step, freed in zip(self.plan.steps, self.plan.last_uses, strict=True):
            if isinstance(step, Call):
                results = self.fragments[step.fragment]([slots[slot] for slot in step.inputs])
                slots.update(zip(step.outputs, results, strict=True))
            else:
                slots[step.target] = self.fragments[step.reader].put(slots[step.slot], step.argument)
            for slot in freed:
                slots.pop(slot, None)
        results = [slots[slot] for slot in self.plan.results]
        return [stacked([results[own] for own in parts]) for parts in self.stacks.result_numbers()]

    def _own(self, argument: Any, index: int) -> Any:
        """An argument, or a copy of an array of numpy's that is donated: JAX's may share its memory."""
        return np.array(argument) if index in self.donated and not isinstance(argument, jax.Array) else argument
