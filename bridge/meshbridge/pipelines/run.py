"""Runs a pipeline's step: an executable for each fragment on its group of devices, and transfers between.

JAX dispatches calls and transfers without waiting for their results, so that groups of devices compute at the same time. Each
process runs the fragments of its own groups; values of other groups are arrays of which it has no shard.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from meshbridge.dialect.module_mesh import mesh_or_single
from meshbridge.ir.mlir import ir
from meshbridge.pipelines.fragments import Fragment
from meshbridge.pipelines.layer_stack import LayerStack
from meshbridge.pipelines.plan import Call, CallPlan, Send, Slot
from meshbridge.pipelines.stacks import Stacks
from meshbridge.pipelines.transfers import Transfers, elsewhere, part_of, refuse_spread, stacked
from meshbridge.runtime.pjrt import Executable, boundary
from meshbridge.runtime.xla import Loaded


@dataclass(frozen=True, eq=False)
class BoundFragment:
    """The executable of a fragment, with the shardings of what it reads and returns.

    Carried values of which devices hold terms of a sum never leave their group. They are handled like replicated ones: JAX has
    unreduced arrays on explicit axes alone, and results would be on such axes, too.
    """

    loaded: Executable

    @classmethod
    def elsewhere(cls, module: ir.Module, devices: Sequence[Any]) -> BoundFragment:
        """The fragment of another process, to know its shardings."""
        inputs, outputs = boundary(module)
        return cls(Executable(mesh_or_single(module), tuple(inputs), tuple(outputs), Loaded(None, tuple(devices))))

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

    def results_elsewhere(self) -> list[jax.Array]:
        """What the process of the fragment has as its results."""
        executable = self.executable
        return [elsewhere(port.shape, port.dtype, executable.sharding(port)) for port in executable.outputs]

    def __call__(self, arguments: Sequence[jax.Array]) -> Sequence[jax.Array]:
        """Runs the fragment. Does not wait for its results."""
        if self.returns is None:
            results: Sequence[jax.Array] = self.executable(*arguments)
            return results
        shards = self.executable.loaded.run([self.put(value, number) for number, value in enumerate(arguments)])
        outputs = zip(self.executable.outputs, self.returns, shards, strict=True)
        return [jax.make_array_from_single_device_arrays(port.shape, sharding, own) for port, sharding, own in outputs]


@dataclass(frozen=True, eq=False)
class Runner:
    """A plan and the executables of its fragments. `donated` are the arguments of the plan that it may overwrite."""

    plan: CallPlan
    stacks: Stacks
    fragments: Mapping[Fragment, BoundFragment]
    donated: frozenset[int]
    transfers: Transfers = field(default_factory=Transfers)

    @cached_property
    def _meshes(self) -> dict[int, Mesh]:
        """The devices of each group."""
        return {fragment.group: bound.executable.jax_mesh for fragment, bound in self.fragments.items()}

    @cached_property
    def _own(self) -> frozenset[int]:
        """The groups of this process."""
        process = jax.process_index()
        return frozenset(group for group, mesh in self._meshes.items() if mesh.devices.flat[0].process_index == process)

    def __call__(self, arguments: Sequence[Any], labels: Sequence[str]) -> list[jax.Array | LayerStack]:
        """Runs a step on the arrays that the step takes, called by `labels` in diagnostics. Each result is on the devices of the
        group that computes it, and a stack of layers on those of its parts. Raises MeshError for arguments of another shape or
        type."""
        slots: dict[Slot, jax.Array] = {}
        for slot, (fragment, number) in self.plan.arguments.items():
            part, bound = self.stacks.arguments[slot.source.number], self.fragments[fragment]
            port, label, target = bound.executable.inputs[number], labels[part.number], bound.reads[number]
            if part.parts > 1:
                port = replace(port, shape=(part.whole_size(port.shape[0]), *port.shape[1:]))
            fitted = port.fitted(label, arguments[part.number])
            holder = self._holder(fitted)
            if holder is not None and self._is_between_processes(holder, slot.group):
                slots[slot] = self._transferred(fitted, holder, target, slots)
            elif slot.group in self._own:
                own = fitted if part.parts == 1 else part_of(fitted, part, target, label)
                if not (isinstance(own, jax.Array) and own.sharding == target):
                    refuse_spread(own, label)
                slots[slot] = bound.put(self._copied(own, slot.source.number), number)
        for step, freed in zip(self.plan.steps, self.plan.last_uses, strict=True):
            if isinstance(step, Call):
                slots.update(zip(step.outputs, self._called(step, slots), strict=True))
            elif not self._own.isdisjoint((step.slot.group, step.target.group)):
                slots[step.target] = self._sent(step, slots)
            for slot in freed:
                slots.pop(slot, None)
        results = [slots[slot] for slot in self.plan.results]
        return [stacked([results[own] for own in parts]) for parts in self.stacks.result_numbers()]

    def _called(self, call: Call, slots: Mapping[Slot, jax.Array]) -> Sequence[jax.Array]:
        bound = self.fragments[call.fragment]
        if call.fragment.group not in self._own:
            return bound.results_elsewhere()
        return bound([slots[slot] for slot in call.inputs])

    def _sent(self, send: Send, slots: Mapping[Slot, jax.Array]) -> jax.Array:
        bound, value = self.fragments[send.reader], slots[send.slot]
        if self._own.issuperset((send.slot.group, send.target.group)):
            return bound.put(value, send.argument)
        return self._transferred(value, send.slot.group, bound.reads[send.argument], slots)

    def _holder(self, value: Any) -> int | None:
        """The group that has all of an array; None for any other array."""
        devices = value.sharding.device_set if isinstance(value, jax.Array) else set()
        return next((group for group, mesh in self._meshes.items() if devices == {*mesh.devices.flat}), None)

    def _is_between_processes(self, source: int, target: int) -> bool:
        """Whether one of these groups is this process's, and the other one is not."""
        return len(self._own.intersection((source, target))) == 1 and source != target

    def _transferred(self, value: jax.Array, source: int, target: NamedSharding, slots: Mapping[Slot, jax.Array]) -> jax.Array:
        """A value of a group, sent to that of another process. On CPUs a transfer that waits for the other process holds threads,
        which what comes before it may need: it comes when that has ended."""
        mesh = self._meshes[source]
        is_cpu = mesh.devices.flat[0].platform == "cpu"
        if is_cpu:
            jax.block_until_ready([each for each in slots.values() if each.is_fully_addressable])
        sent = self.transfers.send(value, mesh, target)
        return jax.block_until_ready(sent) if is_cpu else sent

    def _copied(self, argument: Any, index: int) -> Any:
        """An argument, or a copy of an array of numpy's that is donated: JAX's may share its memory."""
        return np.array(argument) if index in self.donated and not isinstance(argument, jax.Array) else argument
