"""Trials: the program is partitioned with given shardings, and its step predicted."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from meshbridge.cost.communication import wire_bytes
from meshbridge.cost.memory import memory
from meshbridge.cost.step import predict
from meshbridge.decide.graph import Graph
from meshbridge.decide.relax_constraints import has_closed_constraints
from meshbridge.decide.split_queries import has_scores
from meshbridge.ir.mlir import MeshError, ir, main_function
from meshbridge.partitioning import partition_module
from meshbridge.pipeline import Options, PlanVariant
from meshbridge.plan_variants import VariantPlanner, open_variants, ring_variants
from meshbridge.read.formats import copy_module
from meshbridge.sharding_search.boundary import ShardedBoundary


@dataclass(frozen=True)
class Trial:
    """A plan, and its prediction."""

    boundary: ShardedBoundary
    seconds: float
    exposed_seconds: float
    wire_bytes: float
    peak_bytes: float
    variant: PlanVariant | None
    "The variant in which it was planned; None for the user's options."


def variants(options: Options, graph: Graph) -> tuple[PlanVariant, ...]:
    """Plan variants of the program, none of which is best for all boundaries."""
    plain = PlanVariant(link_prices=False), PlanVariant(hides=True)
    rings = ring_variants(options) if has_scores(graph) else ()
    return *plain, *rings, *(open_variants(plain, options) if has_closed_constraints(graph) else ())


def attempt(
    legal: ir.Module, boundary: ShardedBoundary, options: Options, variant: PlanVariant | None
) -> tuple[Trial, ir.Module] | None:
    """The prediction for a legal program with these shardings, and one device's program, planned in this variant, or, in three
    times the time, with the user's options. None if it cannot be partitioned so, or not within the options' memory limit, or if
    the variant has no plan of its own."""
    devices = options.target.devices
    assert devices is not None
    try:
        module = planned(legal, boundary, options, variant)
        with module.context, ir.Location.unknown():
            step = predict(module, devices)
    except MeshError:
        return None
    peak = memory(main_function(module)).peak
    return Trial(boundary, step.seconds, step.exposed_seconds, wire_bytes(module), peak, variant), module


def planned(legal: ir.Module, boundary: ShardedBoundary, options: Options, variant: PlanVariant | None) -> ir.Module:
    """One device's program, in this variant or with the user's options. Raises MeshError if it cannot be partitioned so, and if
    the variant has no plan of its own."""
    module = copy_module(legal)
    with module.context, ir.Location.unknown(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about trial programs
        boundary.annotate(module)
        if variant is None:
            partition_module(module, options)
            return module
        plan = VariantPlanner(module, options).plan(variant)
        if plan is None:
            raise MeshError("error: the program has no plan of its own in this variant")
        return plan.module
