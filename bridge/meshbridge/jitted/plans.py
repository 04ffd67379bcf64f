"""How the computations of JAX are partitioned: with which options, and for which devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, ClassVar, TypeVar

import jax
from jax.stages import Lowered

from meshbridge import pipeline
from meshbridge.ir.mlir import MeshError, ir
from meshbridge.jitted import plan_cache
from meshbridge.machines.layout import OrderError
from meshbridge.machines.machine import OptionValue
from meshbridge.ops import inspections
from meshbridge.reports import Report, partition_and_report
from meshbridge.runtime import devices as jax_devices
from meshbridge.runtime import lowerings, processes, xla
from meshbridge.runtime.compiler_options import CompilerOptions

Made = TypeVar("Made")


@dataclass(frozen=True)
class Planning:
    """How a jitted function is partitioned and compiled. JAX keeps what it compiles by it: equal ones share that."""

    options: Mapping[str, Any] = field(default_factory=dict)
    "As `pipeline.Options.of` takes them; where they name no machine, that of the devices is meant."
    compiler_options: CompilerOptions = field(default_factory=CompilerOptions)
    left_to_xla: tuple[str, ...] = ()
    "Names of functions that XLA's partitioner compiles although all are partitioned; `*` stands for any letters."

    def __post_init__(self) -> None:
        pipeline.Options.of(**self.options)  # raises where an option cannot have its value

    def __hash__(self) -> int:
        return hash((frozenset(self.options), self.compiler_options))

    def __repr__(self) -> str:
        return f"Planning({', '.join(f'{name}={value!r}' for name, value in self.options.items())})"

    def leaves(self, function: str) -> bool:
        """Whether XLA's partitioner compiles the function of that name."""
        return any(fnmatchcase(function, pattern) for pattern in self.left_to_xla)

    def on(self, devices: Sequence[Any]) -> pipeline.Options:
        """The options for a function that runs on these devices, in the topology that they say; on those of JAX if none."""
        return self._for(_machine(devices))

    def planned(self, devices: Sequence[Any], plan: Callable[[pipeline.Options, str], Made]) -> Made:
        """What `plan` makes by the options for these devices, and the reason for their machine; without a topology where axes of
        the program's mesh end where no link does."""
        machine = _machine(devices)
        try:
            return plan(self._for(machine), self._why(machine))
        except OrderError as error:
            if not machine.layout or "machine" in self.options:
                raise
            machine = _machine(devices, unlocated=str(error).removeprefix("error: "))
            return plan(self._for(machine), self._why(machine))

    def _for(self, machine: jax_devices.Chosen) -> pipeline.Options:
        implied = {} if "machine" in self.options else {"machine": machine.name, "layout": machine.layout}
        return pipeline.Options.of(**{**implied, **self.options}, compiler_options=self.compiler_options.chosen)

    def _why(self, machine: jax_devices.Chosen) -> str:
        return "" if "machine" in self.options else machine.why

    def report(self, lowered: Lowered) -> Report:
        """What the function communicates once it is partitioned. Raises MeshError."""
        return self.report_of(lambda: lowerings.module(lowered), lowerings.devices(lowered))

    def report_of(self, source: Callable[[], ir.Module], devices: Sequence[Any]) -> Report:
        """The same of a program on these devices. What `source` gives is partitioned in place."""

        def reported(options: pipeline.Options, why: str) -> Report:
            report, _ = partition_and_report(source(), replace(options, emit="mesh", replica_groups="auto"))
            return replace(report, why_machine=why)

        return self.planned(devices, reported)


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

    def __repr__(self) -> str:
        return f"<Planned: {self.name} on {len(self.devices)} devices>"

    @property
    def name(self) -> str:
        """The function's."""
        return str(self._name)

    def report(self) -> Report:
        """What it communicates. Raises MeshError."""
        return self.planning.report_of(self.source, self.devices)

    def text(self) -> str:
        """The partitioned program in StableHLO. Raises MeshError."""
        return str(self.module_to_compile())

    @property
    def options(self) -> pipeline.Options:
        """Those that it is partitioned with. Raises MeshError."""
        with self._lock:
            return self._plan[1]

    def module_to_compile(self) -> ir.Module:
        """The partitioned program. Raises MeshError with a located diagnostic."""
        with self._lock:
            return self._plan[0]

    @cached_property
    def _plan(self) -> tuple[ir.Module, pipeline.Options]:
        if not jax.config.jax_use_shardy_partitioner:
            hint = 'jax.config.update("jax_use_shardy_partitioner", True)'
            raise MeshError(f"error: the partitioned program is one for Shardy, which JAX is told not to use\n  hint: {hint}")
        return self.planning.planned(self.devices, self._partitioned)

    def _partitioned(self, options: pipeline.Options, _why: str) -> tuple[ir.Module, pipeline.Options]:
        module = self.source()
        plan_cache.partition_module(module, options)
        for answer in inspections.take_answers(module):
            self.tell(answer)
        xla.order_collectives(module, self.devices)
        return module, options

    def compiler_options(self, devices: Sequence[Any]) -> Mapping[str, OptionValue]:
        """Those that a program with explicit collectives is compiled under on these devices."""
        machine = jax_devices.machine_of(devices, self.options.target.machine)
        return {**xla.own_options(devices[0], ordered=True), **self.planning.compiler_options.on(machine, explicit=True)}

    def compile(self, compiler_options: Any = None, *, device_assignment: Any = None) -> Any:
        """The executable; in several processes, once all have the same plan. Raises MeshError where the function cannot be
        partitioned and where processes disagree, and what JAX raises where XLA refuses the program or an option."""
        if not self.devices or (self._executable is not None and compiler_options is None and device_assignment is None):
            return super().compile(compiler_options, device_assignment=device_assignment)
        with processes.Agreement(self.devices) as agreement:
            agreement.require(self.devices, self.module_to_compile(), vars(self.options))
            executable = super().compile(compiler_options, device_assignment=device_assignment)
            agreement.require(self.devices)
        return executable


def _machine(devices: Sequence[Any], *, unlocated: str = "") -> jax_devices.Chosen:
    return jax_devices.located(devices, but=unlocated) if devices else jax_devices.implied(())
