"""The variants in which a program is planned, and the choice among their plans."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from math import inf
from typing import NamedTuple

from meshbridge import pipeline
from meshbridge.cost.communication import wire_bytes
from meshbridge.cost.memory import Memory, memory
from meshbridge.cost.memory_limit import memory_error, memory_excess
from meshbridge.cost.step import MARGIN, schedule
from meshbridge.decide.decide import Propagation
from meshbridge.decide.decisions import Decisions
from meshbridge.ir import mlir
from meshbridge.ir.errors import MemoryWarning
from meshbridge.ir.mlir import MeshError, functions_to_partition, ir, main_function
from meshbridge.ir.passes import Analyses, Pass
from meshbridge.machines.compile_target import CompileTarget
from meshbridge.pipeline import OnPass, Options, PlanVariant, Timing
from meshbridge.read.formats import copy_module, replace_content

FACTORS = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0)
"""Factors on the machine's price of memory, tried in order to keep a limit. Each takes one partitioning."""

WORTH_OPENING = 1.02
"""A plan that relaxes constraints inside must be faster by this factor than the best one that keeps them as written: a doubtful
gain does not outweigh what the user wrote."""


def plan_variants(options: Options) -> tuple[PlanVariant, ...]:
    """The variants whose plans are compared under these options."""
    if options.target.devices is None:
        return (PlanVariant(),)
    as_written = (
        PlanVariant(link_prices=False),  # which can mislead
        PlanVariant(),
        PlanVariant(hides=True),
    )
    return (*as_written, *ring_variants(options), *open_variants(as_written, options))


def ring_variants(options: Options) -> tuple[PlanVariant, ...]:
    """The variant that plans attention for rings, on machines that have it."""
    machine = options.target.machine
    has_rings = options.collectives == "on" and machine is not None and machine.prefers_ring_attention
    return (PlanVariant(hides=True, keeps_queries=True),) if has_rings else ()


def open_variants(variants: Iterable[PlanVariant], options: Options) -> tuple[PlanVariant, ...]:
    """The same variants with constraints on intermediates as a minimum, on machines for which the planner may split further."""
    machine = options.target.machine
    may_open = options.inside == "open" and machine is not None and machine.refines_constraints
    return tuple(variant._replace(inside_open=True) for variant in variants) if may_open else ()


class Plan(NamedTuple):
    """A program planned in some variant."""

    variant: PlanVariant
    module: ir.Module
    "One device's program."
    analyses: Analyses


def best_plan(variants: Sequence[PlanVariant], target: CompileTarget, planned: Callable[[PlanVariant], Plan | None]) -> Plan:
    """The plan of the `variants` with the shortest predicted step on the target; without a topology, that of the first variant.
    Memory is priced at the lowest of FACTORS at which a plan needs at most as many bytes as the target's user has written.
    `planned` returns None for a variant without a plan of its own.

    Raises MeshError if no plan fits, with the missing bytes and the tensors of the plan that needs least.
    """
    limit = target.written_limit
    least: tuple[float, Plan] | None = None
    for factor in FACTORS:
        fitting: list[Plan] = []
        for variant in (variant._replace(memory_factor=factor) for variant in variants):
            if (plan := planned(variant)) is None:
                continue
            needed = _peak(plan) if limit < inf else 0.0
            if needed <= limit:
                fitting.append(plan)
            elif least is None or needed < least[0]:
                least = needed, plan
        if fitting:
            return _fastest(fitting, target)
    assert least is not None
    raise memory_error(least[1].module, limit, least[1].analyses)


def _fastest(plans: Sequence[Plan], target: CompileTarget) -> Plan:
    if target.devices is None or len(plans) == 1:
        return plans[0]
    try:
        steps = [schedule(plan.module, target, analyses=plan.analyses) for plan in plans]
    except MeshError:  # the report explains why the prediction fails
        return plans[0]
    worth = admitted([plan.variant for plan in plans], [step.seconds for step in steps])
    longest = MARGIN * min(steps[number].seconds for number in worth)
    equal = [number for number in worth if steps[number].seconds <= longest]
    if len(equal) == 1:
        return plans[equal[0]]
    sent = {number: wire_bytes(plans[number].module) for number in equal}
    least = min(equal, key=lambda number: sent[number])
    seconds_per_byte = steps[least].communication_seconds / sent[least] if sent[least] else 0.0
    return plans[min(equal, key=lambda number: seconds_per_byte * sent[number] + steps[number].exposed_seconds)]


def admitted(variants: Sequence[PlanVariant], seconds: Sequence[float]) -> list[int]:
    """The indices of eligible plans: plans with relaxed constraints only if they are worth it."""
    strict_seconds = [step for variant, step in zip(variants, seconds, strict=True) if not variant.inside_open]
    most = min(strict_seconds, default=inf)
    return [
        number for number, variant in enumerate(variants) if not variant.inside_open or WORTH_OPENING * seconds[number] <= most
    ]


@dataclass(frozen=True)
class VariantPlanner:
    """Plans a `legal` module, which stays as it is but for the numbering of axes, in variants that share what does not depend on
    their prices."""

    legal: ir.Module
    options: Options
    timings: list[Timing] = field(default_factory=list)
    "The times of the passes of all plans."
    on_pass: OnPass | None = None
    _propagation: Propagation = field(default_factory=Propagation)
    _caught: dict[PlanVariant, list[warnings.WarningMessage]] = field(default_factory=dict)
    _seen: set[bytes] = field(default_factory=set)
    "Hashes of the plans so far, after partitioning."
    _decided: list[tuple[bool, Decisions]] = field(default_factory=list)
    "The decisions so far, with whether links have prices: both together say what the plan is."

    def best(self) -> Plan:
        """The best plan among `plan_variants` of the options. Repeats its warnings. Raises MeshError if no plan keeps the user's
        memory limit."""
        plan = best_plan(plan_variants(self.options), self.options.target, self._new_plan)
        if not self._is_limited:
            plan = self._finished(plan)
        fitting = self.fitting(plan.module, plan.analyses)
        if fitting is not None:
            return fitting
        for warning in self._caught[plan.variant]:
            warnings.warn(warning.message, stacklevel=2)
        return plan

    def fitting(self, planned: ir.Module, analyses: Analyses | None = None) -> Plan | None:
        """The best plan that fits the memory of the machine's device, if the `planned` one, which has these analyses, does not;
        None if that fits. Warns and returns None if no plan fits. Does not search if arguments and results alone, or the plan
        under the highest price of memory, are too large."""
        limit = self.options.target.implied_limit
        analyses = {} if analyses is None else analyses
        needed = memory(main_function(planned), analyses) if limit < inf else None
        if needed is None or needed.peak <= limit:
            return None
        if needed.peak - needed.temporaries <= limit:
            limited = replace(self, options=self.options.limited(limit), _caught={}, _seen=set(), _decided=[])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # this plan is not returned
                frugal = limited._compared(PlanVariant(memory_factor=FACTORS[-1]))
            if frugal is not None and _peak(frugal) <= limit:
                return limited.best()
        text = memory_excess(planned, limit, analyses).replace("the limit of", f"'{self.options.target.name}' has,")
        warnings.warn(f"warning: {text}; memory-limit 'none' plans as if it fitted", MemoryWarning, stacklevel=2)
        return None

    def plan(self, variant: PlanVariant) -> Plan | None:
        """One device's program on the mesh dialect. None if the variant has no plan of its own. Raises MeshError with a source
        location."""
        plan = self._compared(variant)
        return plan and self._finished(plan)

    def _compared(self, variant: PlanVariant, seen: set[bytes] | None = None) -> Plan | None:
        """The plan without the passes that keep its step. None if the variant has no plan of its own, or a plan whose hash is
        among those `seen`; else adds the hash."""
        decide, *stages = pipeline.build(_in_mesh(self.options), variant).starting_at("legal").stages
        decided: Analyses = {Propagation: self._propagation}
        self._run(decide.passes, self.legal, decided)
        decisions: Decisions = decided[Decisions]
        if not decisions.is_as_requested or (seen is not None and self._is_known(variant, decisions)):
            return None
        module = copy_module(self.legal)
        analyses: Analyses = {Decisions: decisions.on_copy(functions_to_partition(self.legal), functions_to_partition(module))}
        for stage in stages:
            self._run([step for step in stage.passes if not step.keeps_step], module, analyses)
            if stage.name == "partitioned" and seen is not None:
                if (plan := sha256(mlir.to_bytecode(module)).digest()) in seen:
                    return None
                seen.add(plan)
        return Plan(variant, module, analyses)

    def _is_known(self, variant: PlanVariant, decisions: Decisions) -> bool:
        """Whether an earlier variant has led to the same decisions and partitions alike; remembers these."""
        made = (variant.link_prices, decisions)
        if made in self._decided:
            return True
        self._decided.append(made)
        return False

    def _finished(self, plan: Plan) -> Plan:
        """The same plan after the passes that keep its step, unless it does not fit the memory limit because of them: what pins
        collectives holds values for longer."""
        target, stages = self.options.target, pipeline.build(_in_mesh(self.options), plan.variant)
        steps, limit = [step for step in stages.passes if step.keeps_step], min(target.written_limit, target.implied_limit)
        if not steps:
            return plan
        before = copy_module(plan.module) if limit < inf else None
        self._run(steps, plan.module, plan.analyses)
        if before is None or _peak(plan) <= limit:
            return plan
        needed = memory(main_function(before))
        if needed.peak > limit:
            return plan
        replace_content(plan.module, before)
        return plan._replace(analyses={Memory: needed})

    def _new_plan(self, variant: PlanVariant) -> Plan | None:
        """The plan of a variant to be compared; finished if its memory counts."""
        with warnings.catch_warnings(record=True) as self._caught[variant]:
            warnings.simplefilter("always")
            plan = self._compared(variant, self._seen)
            return plan and (self._finished(plan) if self._is_limited else plan)

    @property
    def _is_limited(self) -> bool:
        return self.options.target.written_limit < inf

    def _run(self, steps: Sequence[Pass], module: ir.Module, analyses: Analyses) -> None:
        self.timings.extend(pipeline.run(steps, module, verified="none", analyses=analyses, on_pass=self.on_pass))


def _peak(plan: Plan) -> float:
    return memory(main_function(plan.module), plan.analyses).peak


def _in_mesh(options: Options) -> Options:
    """The options for one device's program on the mesh dialect, on which plans are compared."""
    return replace(options, emit="mesh", stablehlo_version=None, ops=())
