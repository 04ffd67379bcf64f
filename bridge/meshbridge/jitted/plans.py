"""How the computations of JAX are partitioned: with which options, and for which devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import jax
from jax.stages import Lowered

from meshbridge import pipeline
from meshbridge.ir.mlir import MeshError, ir
from meshbridge.jitted import plan_cache
from meshbridge.machines.machine import OptionValue
from meshbridge.ops import inspections
from meshbridge.reports import Report, partition_and_report
from meshbridge.runtime import devices as jax_devices
from meshbridge.runtime import lowerings, processes, xla
from meshbridge.runtime.compiler_options import CompilerOptions


@dataclass(frozen=True)
class Planning:
    """How a jitted function is partitioned and compiled. JAX keeps what it compiles by it: equal ones share that."""

    options: Mapping[str, Any] = field(default_factory=dict)
    "By names of `pipeline.Options`; where they name no machine, that of the devices is meant."
    compiler_options: CompilerOptions = field(default_factory=CompilerOptions)

    def __post_init__(self) -> None:
        pipeline.Options(**self.options)  # raises where an option cannot have its value

    def __hash__(self) -> int:
        return hash((frozenset(self.options), self.compiler_options))

    def __repr__(self) -> str:
        return f"Planning({', '.join(f'{name}={value!r}' for name, value in self.options.items())})"

    def on(self, devices: Sequence[Any]) -> pipeline.Options:
        """The options for a function that runs on these devices, those of JAX where it is not known."""
        options = {"machine": _machine(devices).name, **self.options}
        return pipeline.Options(**options, compiler_options=self.compiler_options.chosen)

    def report(self, lowered: Lowered) -> Report:
        """What the function communicates once it is partitioned. Raises MeshError."""
        return self.report_of(lowerings.module(lowered), lowerings.devices(lowered))

    def report_of(self, module: ir.Module, devices: Sequence[Any]) -> Report:
        """The same of a program on these devices, which is partitioned in place."""
        options = replace(self.on(devices), emit="mesh", replica_groups="auto")
        report, _ = partition_and_report(module, options)
        return report if "machine" in self.options else replace(report, why_machine=_machine(devices).why)


class Planned(lowerings.Replacement):
    """A computation of JAX, partitioned."""

    _notes: ClassVar[list[list[Planned]]] = []

    def __init__(self, lowered: Any, planning: Planning) -> None:
        super().__init__(lowered)
        self.planning = planning
        for each in self._notes:
            each.append(self)

    @classmethod
    @contextmanager
    def noted(cls) -> Iterator[Sequence[Planned]]:
        """The computations that are partitioned meanwhile, in order, as far as they go."""
        computations: list[Planned] = []
        cls._notes.append(computations)
        try:
            yield computations
        finally:
            cls._notes[:] = [each for each in cls._notes if each is not computations]

    @property
    def name(self) -> str:
        """The function's."""
        return str(self._name)

    def report(self) -> Report:
        """What it communicates. Raises MeshError."""
        return self.planning.report_of(self.source(), self.devices)

    def text(self) -> str:
        """The partitioned program in StableHLO. Raises MeshError."""
        return str(self.made())

    @cached_property
    def options(self) -> pipeline.Options:
        """Those that it is partitioned with."""
        return self.planning.on(self.devices)

    def made(self) -> ir.Module:
        """The partitioned program. Raises MeshError with a located diagnostic."""
        with self._lock:
            return self._plan

    @cached_property
    def _plan(self) -> ir.Module:
        if not jax.config.jax_use_shardy_partitioner:
            hint = 'jax.config.update("jax_use_shardy_partitioner", True)'
            raise MeshError(f"error: the partitioned program is one for Shardy, which JAX is told not to use\n  hint: {hint}")
        module = self.source()
        plan_cache.partition_module(module, self.options)
        for answer in inspections.answered(module):
            self.tell(answer)
        xla.order_collectives(module, self.devices)
        return module

    def compiler_options(self, devices: Sequence[Any]) -> Mapping[str, OptionValue]:
        """Those that a program with explicit collectives is compiled under on these devices."""
        machine = jax_devices.machine_of(devices, self.options.machine)
        return {**xla.own_options(devices[0]), **self.planning.compiler_options.on(machine, explicit=True)}

    def compile(self, compiler_options: Any = None, *, device_assignment: Any = None) -> Any:
        """The executable; in several processes, once all have the same plan. Raises MeshError where the function cannot be
        partitioned and where processes disagree, and what JAX raises where XLA refuses the program or an option."""
        if not self.devices or (self._executable is not None and compiler_options is None and device_assignment is None):
            return super().compile(compiler_options, device_assignment=device_assignment)
        with processes.Agreement(self.devices) as agreement:
            agreement.require(self.devices, self.made(), vars(self.options))
            executable = super().compile(compiler_options, device_assignment=device_assignment)
            agreement.require(self.devices)
        return executable


def _machine(devices: Sequence[Any]) -> jax_devices.Chosen:
    return jax_devices.of(devices) if devices else jax_devices.implied(())
