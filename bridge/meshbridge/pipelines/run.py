"""Runs a pipeline's step in one process: an executable for each fragment on its group of devices, and `jax.device_put` between.

JAX dispatches calls and transfers without waiting for their results, so that groups of devices compute at the same time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from meshbridge.pipelines.fragments import Fragment
from meshbridge.pipelines.plan import Call, Plan, Slot
from meshbridge.runtime.pjrt import Executable


@dataclass(frozen=True, eq=False)
class Runner:
    """A plan and the executables of its fragments. `donated` are the arguments that the step may overwrite."""

    plan: Plan
    executables: Mapping[Fragment, Executable]
    donated: frozenset[int]

    def __call__(self, arguments: Sequence[Any], labels: Sequence[str]) -> list[jax.Array]:
        """Runs a step on the arrays that the program takes, called by `labels` in diagnostics. Each result is on the devices of
        the group that computes it. Raises MeshError for arguments of another shape or type."""
        slots: dict[Slot, jax.Array] = {}
        for slot, (fragment, number) in self.plan.arguments.items():
            index = slot.source.number
            port = self.executables[fragment].inputs[number]
            slots[slot] = self._placed(port.fitted(labels[index], arguments[index]), index, fragment, number)
        for step, freed in zip(self.plan.steps, self.plan.last_uses, strict=True):
            if isinstance(step, Call):
                results = self.executables[step.fragment](*(slots[slot] for slot in step.inputs))
                slots.update(zip(step.outputs, results, strict=True))
            else:
                slots[step.target] = self._sent(slots[step.slot], step.reader, step.argument)
            for slot in freed:
                slots.pop(slot, None)
        return [slots[slot] for slot in self.plan.results]

    def _placed(self, argument: Any, index: int, fragment: Fragment, number: int) -> jax.Array:
        # An array of numpy's may share its memory with JAX's, which a donated one would be overwritten in.
        own = np.array(argument) if index in self.donated and not isinstance(argument, jax.Array) else argument
        return self._sent(own, fragment, number)

    def _sent(self, value: Any, fragment: Fragment, number: int) -> jax.Array:
        """A value on the devices of a fragment, sharded as its argument `number`."""
        executable = self.executables[fragment]
        port = executable.inputs[number]
        target = executable.sharding(port)
        with jax.enable_x64(True):  # without this JAX would silently make 32-bit numbers of 64-bit ones
            if port.padded_shape(executable.mesh) != tuple(value.shape):  # no whole shards: the executable pads it
                target = jax.sharding.NamedSharding(executable.jax_mesh, jax.sharding.PartitionSpec())
            return jax.device_put(value, target)
