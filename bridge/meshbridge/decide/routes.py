"""The ways of refinement to the best plan: what is minimised one after the other, layers folded first, and then unfolded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, reduce
from math import inf
from operator import or_

from meshbridge.cost.fusion import NO_KERNELS
from meshbridge.decide.beside import note_beside
from meshbridge.decide.choice import pricing_of
from meshbridge.decide.dimension_classes import BATCH, HELD, NARROW, WIDE
from meshbridge.decide.fold_layers import fold_layers
from meshbridge.decide.graph import Graph
from meshbridge.decide.held import held
from meshbridge.decide.refine import Refiner
from meshbridge.resharding import Objective

MANAGEABLE = 1000
"""Nodes up to which a program is refined once more unfolded: the stacks of a loop are folded, but may be sharded differently.

Measured (`benchmarks.constants`): without it llama_scan_fsdp sends 25,522 KB instead of 22,573. Unfolded, gpt12 (more nodes)
takes a fifth longer and sends as much."""

SMALL = 10.0
"""A program is small if its kernels take so many times longer to start than what they compute would take by its price. The
search is soon over there, and is thorough on every machine.

Measured on 37 models of other libraries, each under three shardings: without it three recurrent ones execute hundreds of
collectives instead of ten."""


def refine(graph: Graph, budget: int, objective: Objective) -> None:
    """Refines the splits of `graph` in place, trying at most `budget` moves on each of the objective's routes.

    The plan of a later route is taken if it costs less, and this by a larger factor than it holds more: parameters that are
    gathered outside of their loop cost less, until they do not fit.
    """
    for index, tensor in enumerate(graph.tensors):
        if tensor.boundary:
            graph.describe(index, found=frozenset(sum(tensor.split, ())))
    work = _price_of_work(graph, objective.launch)
    if work > 1:
        _note_sharing(graph)
    if objective.hides or (work > 1 and objective.combined_bytes):
        note_beside(graph, objective, is_small=work > 1)
    propagated, prices = graph.tensors, _memory_prices(graph, objective.memory)
    folded = fold_layers(graph)
    least = most_held = inf
    for route in (replace(objective, is_thorough=True) if work > SMALL else objective).routes:
        graph.tensors, left = list(propagated), budget
        for step, each in enumerate(route):
            graph.pricing = pricing_of(graph.mesh, each, work)
            refiner = _refined(graph, fold_layers(graph) if step else folded, left, prices)
            left = refiner.budget
        total, holds = refiner.total, refiner.held
        if total < least and (holds <= most_held or total * holds < least * most_held):
            least, most_held, found = total, holds, graph.tensors
    graph.tensors = found


def _price_of_work(graph: Graph, launch: float) -> float:
    """How many times its price it costs to compute again what the annotations share, for a program to cost no less than its
    kernels take to start, each as long as a collective: who repeats a tenth of a small model pays a tenth of the time that it
    takes at least, not next to nothing. A program without contractions is no model: what it computes may be repeated to spare a
    collective. More than 1 in small programs, in which the starts of collectives count more than bytes."""
    counts = Counter([(node.kind, node.name) for node in graph.nodes if not node.is_identity])
    weighed = [(kind, name, kind.weight * count) for (kind, name), count in counts.items()]
    computed = sum([weight * graph.pricing.computed(kind.rule) for kind, _, weight in weighed])
    if not computed or not any(kind.rule.is_contraction for kind, _, _ in weighed):
        return 1.0
    kernels = sum([weight for _, name, weight in weighed if name not in NO_KERNELS])
    return max(1.0, kernels * launch * graph.mesh.size / computed)


def _note_sharing(graph: Graph) -> None:
    """Notes among how many devices each op is shared, in place, as the annotations have been propagated. What they leave to every
    device, as an optimiser's products of replicated gradients, is worth sharing only where that takes less than computing it."""
    changed = cache(lambda kind, axes: graph.changed_kind(kind, sharing=graph.pricing.devices(axes)))
    for node in graph.nodes:
        if not node.is_identity:
            axes = reduce(or_, [graph.tensors[tensor].axes for tensor in (*node.operands, *node.results) if tensor >= 0], 0)
            node.kind = changed(node.kind, axes)


def _refined(graph: Graph, folding: tuple[Graph, list[int]], budget: int, prices: Sequence[float]) -> Refiner:
    """Refines under the objective of the graph's prices, and those of memory by tensor; returns what did so last."""
    folded, standing_for = folding
    folded = replace(folded, tensors=list(folded.tensors), pricing=graph.pricing)
    refiner = Refiner(folded, budget, _summed(prices, standing_for))
    left = refiner.run(WIDE, NARROW, BATCH)
    graph.tensors = [folded.tensors[colour] for colour in standing_for]
    if len(graph.nodes) <= MANAGEABLE:
        refiner = Refiner(graph, left, prices)
        refiner.run(NARROW, HELD, BATCH)
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
