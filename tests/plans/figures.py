"""One golden plan, measured: hashes of the module at three stages, what people compare, and the passes that changed it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from meshbridge import partitioning, plan_variants
from meshbridge.cost.communication import communication
from meshbridge.cost.memory import memory
from meshbridge.cost.step import predict
from meshbridge.decide.sharding_refinement import ShardingRefinement
from meshbridge.ir import mlir
from meshbridge.ir.mlir import ir, main_function
from meshbridge.ir.passes import Pass
from meshbridge.partitioner.mesh_spmdization import MeshSpmdization
from meshbridge.plan_variants import Plan, best_plan
from tests.plans.passes import NECESSARY, watched
from tests.plans.rows import Row

SIGNIFICANT = 6
"""Digits of predicted seconds."""


@dataclass(frozen=True)
class Figures:
    """What is planned. Bytes and seconds are those of one device and one step; seconds are None without a topology."""

    partitioned: str
    optimised: str
    lowered: str
    "Hashes of the module at those stages."
    wire_bytes: float
    collectives: int
    "That a step executes."
    seconds: float | None
    temporary_bytes: float
    passes: tuple[str, ...]
    "The optional ones that changed the module, sorted."

    @property
    def hashes(self) -> tuple[str, str, str]:
        """By stage."""
        return self.partitioned, self.optimised, self.lowered


@dataclass
class _Trial:
    """A plan that is compared with others."""

    module: ir.Module
    changed: set[str] = field(default_factory=set)
    partitioned: bytes = b""
    last: bytes = b""

    def passed(self, step: Pass) -> None:
        """Notes whether a pass has changed the module."""
        now = mlir.to_bytecode(self.module)
        if self.last and self.last != now:
            self.changed.add(step.name)
        self.last = now
        if step.name == MeshSpmdization.name:
            self.partitioned = now


def measure(row: Row, module: ir.Module, without: Collection[str] = ()) -> Figures:
    """Plans `module` in place. Raises MeshError where it cannot be planned."""
    watch = _Watch()
    options = row.planned
    with watched(watch.rewritten, without), patch.object(plan_variants, "best_plan", watch.best_plan):
        partitioning.partition_module(module, options, on_pass=watch.on_pass, on_stage=watch.on_stage)
    trial, optimised = watch.taken, watch.optimised
    assert trial is not None
    assert optimised is not None
    seconds = predict(optimised, options.target.devices).seconds if options.target.devices is not None else None
    sent = communication(optimised)
    return Figures(
        partitioned=mlir.digest(ir.Module.parse(trial.partitioned, module.context)),
        optimised=mlir.digest(optimised),
        lowered=mlir.digest(module),
        wire_bytes=sent.wire_bytes,
        collectives=sent.executions,
        seconds=None if seconds is None else float(f"{seconds:.{SIGNIFICANT}g}"),
        temporary_bytes=memory(main_function(optimised)).temporaries,
        passes=tuple(sorted(trial.changed - NECESSARY)),
    )


class _Watch:
    """What a planning tells of its trials."""

    def __init__(self) -> None:
        self.trials: list[_Trial] = []
        self.chosen: ir.Module | None = None
        self.taken: _Trial | None = None
        self.optimised: ir.Module | None = None

    def best_plan(self, *arguments: Any) -> Plan:
        """The one that is taken, remembered."""
        plan = best_plan(*arguments)
        self.chosen = plan.module
        return plan

    def rewritten(self, name: str) -> None:
        """A pass of `optimize-collectives` has changed the module of the trial at hand."""
        self.trials[-1].changed.add(name)

    def on_pass(self, step: Pass, module: ir.Module) -> None:
        if self.taken is not None:
            self.taken.module = module
            self.taken.passed(step)
        elif step.name == ShardingRefinement.name:
            self.trials.append(_Trial(module))
        elif self.trials:
            trial = next((trial for trial in self.trials if trial.module is module), self.trials[-1])
            trial.module = module  # plans are decided on a common one
            trial.passed(step)

    def on_stage(self, name: str, module: ir.Module) -> None:
        if name == "optimised":
            kept = module if self.chosen is None else self.chosen
            self.taken = next(trial for trial in self.trials if trial.module is kept)
            self.optimised = ir.Module.parse(mlir.to_bytecode(module), module.context)
