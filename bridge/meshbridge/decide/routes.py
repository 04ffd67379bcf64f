"""The ways of refinement to the best plan: what is minimised one after the other, layers folded first, and then unfolded."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from meshbridge.decide.choice import pricing_of
from meshbridge.decide.dimension_classes import HELD, NARROW, WIDE
from meshbridge.decide.fold_layers import fold_layers
from meshbridge.decide.graph import Graph
from meshbridge.decide.held import held
from meshbridge.decide.refine import Refiner
from meshbridge.resharding import Objective

MANAGEABLE = 1000
"""Nodes up to which a program is refined once more unfolded: the stacks of a loop are folded, but may be sharded differently.

Measured (`benchmarks.constants`): without it llama_scan_fsdp sends 25,522 KB instead of 22,573. Unfolded, gpt12 (more nodes)
takes a fifth longer and sends as much."""


def refine(graph: Graph, budget: int, objective: Objective) -> None:
    """Refines the splits of `graph` in place, trying at most `budget` moves on each of the objective's routes.

    The plan of a later route is taken if it costs less and holds no more: parameters that are gathered outside of their loop cost
    less, until they do not fit.
    """
    for index, tensor in enumerate(graph.tensors):
        if tensor.boundary:
            graph.describe(index, found=frozenset(sum(tensor.split, ())))
    propagated, prices = graph.tensors, _memory_prices(graph, objective.memory)
    least = most_held = inf
    for route in objective.routes:
        graph.tensors, left = list(propagated), budget
        for each in route:
            graph.pricing = pricing_of(graph.mesh, each)
            refiner = _refined(graph, left, prices)
            left = refiner.budget
        if refiner.total < least and refiner.held <= most_held:
            least, most_held, found = refiner.total, refiner.held, graph.tensors
    graph.tensors = found


def _refined(graph: Graph, budget: int, prices: Sequence[float]) -> Refiner:
    """Refines under the objective of the graph's prices, and those of memory by tensor; returns what did so last."""
    folded, standing_for = fold_layers(graph)
    refiner = Refiner(folded, budget, _summed(prices, standing_for))
    left = refiner.run(WIDE, NARROW)
    graph.tensors = [folded.tensors[colour] for colour in standing_for]
    if len(graph.nodes) <= MANAGEABLE:
        refiner = Refiner(graph, left, prices)
        refiner.run(NARROW, HELD)
    return refiner


def _memory_prices(graph: Graph, price: float) -> list[float]:
    """Per tensor, what it costs to hold a byte of it; none where memory has no price."""
    return [price * part for part in held(graph)] if price else []


def _summed(prices: Sequence[float], standing_for: Sequence[int]) -> list[float]:
    """The same per tensor of the folded graph."""
    found = [0.0] * (1 + max(standing_for, default=-1)) if prices else []
    for colour, price in zip(standing_for, prices, strict=False):
        found[colour] += price
    return found
