"""From a `jax.stages.Lowered` to one whose program is partitioned: with which options, and for which devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
from jax.stages import Compiled, Lowered

from meshbridge import pipeline
from meshbridge.ir.mlir import MeshError, ir
from meshbridge.jitted import plan_cache
from meshbridge.machines.machine import OptionValue
from meshbridge.reports import Report, partition_and_report
from meshbridge.runtime import devices as jax_devices
from meshbridge.runtime import lowerings, processes, xla
from meshbridge.runtime.compiler_options import CompilerOptions


class _Plan(NamedTuple):
    """A partitioned program, and under which options."""

    options: pipeline.Options
    module: ir.Module


@dataclass(frozen=True)
class Planning:
    """How a jitted function is partitioned and compiled."""

    options: Mapping[str, Any] = field(default_factory=dict)
    "By names of `pipeline.Options`; where they name no machine, that of the devices is meant."
    compiler_options: CompilerOptions = field(default_factory=CompilerOptions)

    def __post_init__(self) -> None:
        pipeline.Options(**self.options)  # raises where an option cannot have its value

    def on(self, devices: Sequence[Any]) -> pipeline.Options:
        """The options for a function that runs on these devices, those of JAX where it is not known."""
        options = {"machine": _machine(devices).name, **self.options}
        return pipeline.Options(**options, compiler_options=self.compiler_options.chosen)

    def partition(self, lowered: Lowered) -> Lowered:
        """The same function, every collective explicit. Raises MeshError with a located diagnostic."""
        return self._with(self._plan(lowered), lowered)

    def compile(self, lowered: Lowered, name: str) -> Compiled:
        """What XLA makes of the partitioned function of that name; in several processes, once all have the same plan. Raises
        MeshError where it cannot be partitioned, where processes disagree, and where XLA refuses the program or an option."""
        devices = lowerings.devices(lowered)
        with processes.Agreement(devices) as agreement:
            plan = self._plan(lowered)
            partitioned = self._with(plan, lowered)
            agreement.require(devices, plan.module, vars(plan.options))
            try:
                made = partitioned.compile()
            except jax.errors.JaxRuntimeError as error:
                raise MeshError(f"error: {name}: XLA cannot compile the program: {str(error).splitlines()[0]}") from error
            agreement.require(devices)
        return made

    def _plan(self, lowered: Lowered) -> _Plan:
        devices = lowerings.devices(lowered)
        if len(devices) > 1 and not jax.config.jax_use_shardy_partitioner:
            hint = 'jax.config.update("jax_use_shardy_partitioner", True)'
            raise MeshError(f"error: the partitioned program is one for Shardy, which JAX is told not to use\n  hint: {hint}")
        plan = _Plan(self.on(devices), lowerings.module(lowered))
        plan_cache.partition_module(plan.module, plan.options)
        xla.order_collectives(plan.module, devices)
        return plan

    def _with(self, plan: _Plan, lowered: Lowered) -> Lowered:
        under = self._compiler_options(lowerings.devices(lowered), plan.options.machine)
        return lowerings.with_module(lowered, plan.module, under)

    def report(self, lowered: Lowered) -> Report:
        """What the function communicates once it is partitioned. Raises MeshError."""
        devices = lowerings.devices(lowered)
        options = replace(self.on(devices), emit="mesh", replica_groups="auto")
        report, _ = partition_and_report(lowerings.module(lowered), options)
        return report if "machine" in self.options else replace(report, why_machine=_machine(devices).why)

    def _compiler_options(self, devices: Sequence[Any], machine: str) -> dict[str, OptionValue]:
        """XLA's, of which JAX takes those that are given to `compile` instead."""
        if len(devices) < 2:
            return dict(self.compiler_options.given)
        asked = self.compiler_options.on(jax_devices.machine_of(devices, machine), explicit=True)
        return {**xla.own_options(devices[0]), **asked}


def _machine(devices: Sequence[Any]) -> jax_devices.Chosen:
    return jax_devices.of(devices) if devices else jax_devices.implied(())
