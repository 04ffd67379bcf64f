"""The variants in which a program is planned, and the choice among their plans."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from hashlib import sha256
from math import inf
from typing import NamedTuple

from meshbridge import pipeline
from meshbridge.cost.communication import communication
from meshbridge.cost.memory import memory
from meshbridge.cost.memory_limit import memory_error, memory_excess
from meshbridge.cost.step import MARGIN, predict
from meshbridge.decide.decisions import Decisions
from meshbridge.ir import mlir
from meshbridge.ir.errors import MemoryWarning
from meshbridge.ir.mlir import MeshError, ir, main_function
from meshbridge.ir.passes import Analyses
from meshbridge.machines.target import Target
from meshbridge.pipeline import OnPass, Options, PlanVariant, Timing
from meshbridge.read.formats import copy_module

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


def best_plan(
    variants: Sequence[PlanVariant], devices: Target | None, limit: float, planned: Callable[[PlanVariant], ir.Module | None]
) -> Plan:
    """The plan of the `variants` with the shortest predicted step on the `devices`; without any, that of the first variant.
    Memory is priced at the lowest of FACTORS at which a plan needs at most `limit` bytes. `planned` returns None for a variant
    without a plan of its own.

    Raises MeshError if no plan fits, with the missing bytes and the tensors of the plan that needs least.
    """
    least: tuple[float, ir.Module] | None = None
    for factor in FACTORS:
        fitting: list[Plan] = []
        for variant in (variant._replace(memory_factor=factor) for variant in variants):
            if (module := planned(variant)) is None:
                continue
            needed = memory(main_function(module)).peak if limit < inf else 0.0
            if needed <= limit:
                fitting.append(Plan(variant, module))
            elif least is None or needed < least[0]:
                least = needed, module
        if fitting:
            return _fastest(fitting, devices)
    assert least is not None
    raise memory_error(least[1], limit)


def _fastest(plans: Sequence[Plan], devices: Target | None) -> Plan:
    if devices is None:
        return plans[0]
    try:
        steps = [predict(plan.module, devices) for plan in plans]
    except MeshError:  # the report explains why the prediction fails
        return plans[0]
    worth = admitted([plan.variant for plan in plans], [step.seconds for step in steps])
    longest = MARGIN * min(steps[number].seconds for number in worth)
    equal = [number for number in worth if steps[number].seconds <= longest]
    if len(equal) == 1:
        return plans[equal[0]]
    wire_bytes = {number: communication(plans[number].module).wire_bytes for number in equal}
    least = min(equal, key=lambda number: wire_bytes[number])
    seconds_per_byte = steps[least].communication_seconds / wire_bytes[least] if wire_bytes[least] else 0.0
    return plans[min(equal, key=lambda number: seconds_per_byte * wire_bytes[number] + steps[number].exposed_seconds)]


def admitted(variants: Sequence[PlanVariant], seconds: Sequence[float]) -> list[int]:
    """The indices of eligible plans: plans with relaxed constraints only if they are worth it."""
    strict_seconds = [step for variant, step in zip(variants, seconds, strict=True) if not variant.inside_open]
    most = min(strict_seconds, default=inf)
    return [
        number for number, variant in enumerate(variants) if not variant.inside_open or WORTH_OPENING * seconds[number] <= most
    ]


def best_plan_of(legal: ir.Module, options: Options, timings: list[Timing], on_pass: OnPass | None) -> Plan:
    """The best plan of a `legal` module among `plan_variants(options)`. Adds to the `timings`, and repeats the warnings of that
    plan. Raises MeshError if no plan keeps the user's memory limit."""
    caught, hashes = dict[PlanVariant, list[warnings.WarningMessage]](), set[bytes]()

    def planned(variant: PlanVariant) -> ir.Module | None:
        copy = copy_module(legal)
        with warnings.catch_warnings(record=True) as caught[variant]:
            warnings.simplefilter("always")
            return copy if plan_in(copy, _in_mesh(options), variant, timings, seen=hashes, on_pass=on_pass) else None

    plan = best_plan(plan_variants(options), options.target.devices, options.target.written_limit, planned)
    fitting = fitting_plan(plan.module, legal, options, timings, on_pass)
    if fitting is not None:
        return fitting
    for warning in caught[plan.variant]:
        warnings.warn(warning.message, stacklevel=2)
    return plan


def _in_mesh(options: Options) -> Options:
    """The options for one device's program on the mesh dialect, on which plans are compared."""
    return replace(options, emit="mesh", stablehlo_version=None, ops=())


def fitting_plan(
    planned: ir.Module, legal: ir.Module, options: Options, timings: list[Timing], on_pass: OnPass | None
) -> Plan | None:
    """The best plan that fits the memory of the machine's device, if the `planned` one does not; None if that fits. Warns and
    returns None if no plan fits. Does not search if arguments and results alone, or the plan under the highest price of memory,
    are too large."""
    limit = options.target.implied_limit
    needed = memory(main_function(planned)) if limit < inf else None
    if needed is None or needed.peak <= limit:
        return None
    limited = options.limited(limit)
    if needed.peak - needed.temporaries <= limit:
        frugal = copy_module(legal)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # this plan is not returned
            plan_in(frugal, _in_mesh(limited), PlanVariant(memory_factor=FACTORS[-1]), timings, on_pass=on_pass)
        if memory(main_function(frugal)).peak <= limit:
            return best_plan_of(legal, limited, timings, on_pass)
    text = memory_excess(planned, limit).replace("the limit of", f"'{options.target.name}' has,")
    warnings.warn(f"warning: {text}; memory-limit 'none' plans as if it fitted", MemoryWarning, stacklevel=2)
    return None


def plan_in(
    module: ir.Module,
    options: Options,
    variant: PlanVariant,
    timings: list[Timing] | None = None,
    *,
    seen: set[bytes] | None = None,
    on_pass: OnPass | None = None,
) -> bool:
    """Partitions a legal `module` in place by one variant, to the form of the options, and adds the time of each pass to
    `timings`. Returns False if the variant has no plan of its own, or a plan whose hash is among those `seen`; else adds the
    hash. Raises MeshError with a source location."""
    analyses = Analyses()
    for stage in pipeline.build(options, variant).starting_at("legal").stages:
        took = pipeline.run(stage.passes, module, verified="none", analyses=analyses, on_pass=on_pass)
        if timings is not None:
            timings += took
        if stage.name == "decided" and not analyses[Decisions].is_as_requested:
            return False
        if stage.name == "partitioned" and seen is not None:
            if (plan := sha256(mlir.to_bytecode(module)).digest()) in seen:
                return False
            seen.add(plan)
    return True
