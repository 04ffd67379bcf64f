"""Runs a pipeline's step in one process: an executable for each fragment on its group of devices, and `jax.device_put` between.

JAX dispatches calls and transfers without waiting for their results, so that groups of devices compute at the same time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from meshbridge.pipelines.fragments import Fragment
from meshbridge.pipelines.plan import Call, CallPlan, Slot
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


@dataclass(frozen=True, eq=False)
class Runner:
    """A plan and the executables of its fragments. `donated` are the arguments that the step may overwrite."""

    plan: CallPlan
    fragments: Mapping[Fragment, BoundFragment]
    donated: frozenset[int]

    def __call__(self, arguments: Sequence[Any], labels: Sequence[str]) -> list[jax.Array]:
        """Runs a step on the arrays that the program takes, called by `labels` in diagnostics. Each result is on the devices of
        the group that computes it. Raises MeshError for arguments of another shape or type."""
        slots: dict[Slot, jax.Array] = {}
        for slot, (fragment, number) in self.plan.arguments.items():
            index, bound = slot.source.number, self.fragments[fragment]
            fitted = bound.executable.inputs[number].fitted(labels[index], arguments[index])
            slots[slot] = bound.put(self._own(fitted, index), number)
        for step, freed in zip(self.plan.steps, self.plan.last_uses, strict=True):
            if isinstance(step, Call):
                results = self.fragments[step.fragment]([slots[slot] for slot in step.inputs])
                slots.update(zip(step.outputs, results, strict=True))
            else:
                slots[step.target] = self.fragments[step.reader].put(slots[step.slot], step.argument)
            for slot in freed:
                slots.pop(slot, None)
        return [slots[slot] for slot in self.plan.results]

    def _own(self, argument: Any, index: int) -> Any:
        """An argument, or a copy of an array of numpy's that is donated: JAX's may share its memory."""
        return np.array(argument) if index in self.donated and not isinstance(argument, jax.Array) else argument
