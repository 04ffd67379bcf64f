"""What comes of a choice of shardings: the program is partitioned with it, and its step predicted."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from meshbridge.cost.communication import communication
from meshbridge.cost.memory import memory
from meshbridge.cost.step import predict
from meshbridge.decide.graph import Graph
from meshbridge.decide.open_inside import closes_inside
from meshbridge.decide.split_queries import has_scores
from meshbridge.ir.mlir import MeshError, ir, main_function
from meshbridge.partitioning import partition_module
from meshbridge.pipeline import Options, PlanVariant
from meshbridge.plan_variants import open_variants, plan_in, ring_variants
from meshbridge.read.formats import copy_module
from meshbridge.search.boundary import ShardedBoundary


@dataclass(frozen=True)
class Trial:
    """A plan, and what is predicted of it."""

    boundary: ShardedBoundary
    seconds: float
    exposed_seconds: float
    wire_bytes: float
    peak_bytes: float
    way: PlanVariant | None
    "In which it was planned; None as users get it."


def ways(options: Options, graph: Graph) -> tuple[PlanVariant, ...]:
    """Ways in which users may get a plan of the program, of which one is better for one, and another for the next."""
    assert options.target is not None
    plain = PlanVariant(options.target.device), PlanVariant(options.machine, hides=True)
    rings = ring_variants(options) if has_scores(graph) else ()
    return *plain, *rings, *(open_variants(plain, options) if closes_inside(graph) else ())


def attempt(
    legal: ir.Module, boundary: ShardedBoundary, options: Options, way: PlanVariant | None
) -> tuple[Trial, ir.Module] | None:
    """What comes of a legal program with these shardings, and one device's program of it, planned in this way, or, for three
    times as long, as users get it. None where it cannot be partitioned so, or not within the options' limit of memory, and where
    the way has no plan of its own."""
    target = options.target
    assert target is not None
    try:
        module = planned(legal, boundary, options, way)
        with module.context, ir.Location.unknown():
            step = predict(module, target)
    except MeshError:
        return None
    peak = memory(main_function(module)).peak
    return Trial(boundary, step.seconds, step.exposed_seconds, communication(module).wire_bytes, peak, way), module


def planned(legal: ir.Module, boundary: ShardedBoundary, options: Options, way: PlanVariant | None) -> ir.Module:
    """One device's program, in this way or as users get it. Raises MeshError where it cannot be partitioned so, and where the
    way has no plan of its own."""
    module = copy_module(legal)
    with module.context, ir.Location.unknown(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a program that nobody has written
        boundary.annotate(module)
        if way is None:
            partition_module(module, options)
        elif not plan_in(module, options, way):
            raise MeshError("error: the program has no plan of its own in this way")
    return module
