"""Runs refinement along the objective's routes, layers folded first and then unfolded, and takes the best plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, reduce
from math import inf
from operator import or_
from typing import NamedTuple

from meshbridge.cost.fusion import NO_KERNELS
from meshbridge.decide.choice import pricing_of
from meshbridge.decide.concurrency import note_concurrency
from meshbridge.decide.dimension_classes import BATCH, NARROW, STORED, WIDE, Dimension, classes_of
from meshbridge.decide.fold_layers import LayerColours, Numbers, fold_layers
from meshbridge.decide.graph import Graph, NodeKind, Tensor
from meshbridge.decide.liveness import MemoryPrice, lifetimes, local_bytes
from meshbridge.decide.refine import RefinementMemo, Refiner
from meshbridge.ir.sharding import Split
from meshbridge.resharding import Objective

MANAGEABLE = 1000
"""Programs of at most this many nodes are refined again unfolded: the stacks of a loop are folded, but may be sharded
differently.

Measured (`benchmarks.constants`): without it llama_scan_fsdp sends 25,522 KB instead of 22,573. Unfolded, gpt12 (more nodes)
takes a fifth longer and sends as much."""

SMALL = 10.0
"""A program is small if launching its kernels takes this many times longer than their work. The search of a small program is
short, and is thorough on every machine.

Measured on 37 models of other libraries, each under three shardings: without it three recurrent ones execute hundreds of
collectives instead of ten."""


class RefinedSplits(NamedTuple):
    """A refined graph."""

    tensors: list[Tensor]
    budget: int
    "Moves that may still be tried."
    total: float = inf
    "The cost of the plan."
    memory_cost: float = inf


class Folding:
    """A graph with its layers folded."""

    def __init__(self, graph: Graph, number: Numbers) -> None:
        self.graph = graph
        self.number = number
        "By tensor, its number in the folded graph."

    @cached_property
    def classes(self) -> list[tuple[Dimension, ...]]:
        """The dimension classes that are moved in the folded graph."""
        return classes_of(self.graph, (WIDE, NARROW, BATCH))


class _Foldings:
    """The foldings of one graph in several states."""

    def __init__(self) -> None:
        self._known: list[tuple[list[Tensor], list[NodeKind], Folding]] = []
        self._colours = LayerColours()

    def of(self, graph: Graph) -> Folding:
        """The folding of a graph: descriptions and kinds that are equal are one object, so comparing them costs little."""
        kinds = [node.kind for node in graph.nodes]
        for tensors, known_kinds, folding in self._known:
            if tensors == graph.tensors and known_kinds == kinds:
                return folding
        folding = Folding(*fold_layers(graph, self._colours))
        self._known.append((list(graph.tensors), kinds, folding))
        return folding


@dataclass
class _Start:
    """A graph before refinement, and the refined ones so far."""

    graph: Graph
    foldings: _Foldings
    memo: RefinementMemo
    budget: int
    work: float
    prices: Sequence[MemoryPrice]
    refined: dict[tuple[Objective, ...], RefinedSplits] = field(default_factory=dict)
    "By the objectives that were minimised one after the other."

    def along(self, route: tuple[Objective, ...]) -> RefinedSplits:
        """The graph after minimising these objectives one after the other."""
        if not route:
            return RefinedSplits(self.graph.tensors, self.budget)
        if route not in self.refined:
            before = self.along(route[:-1])
            graph = replace(self.graph, tensors=before.tensors, pricing=pricing_of(self.graph.mesh, route[-1], self.work))
            refiner = _refined(graph, self.foldings.of(graph), before.budget, self.prices, self.memo)
            self.refined[route] = RefinedSplits(graph.tensors, refiner.budget, refiner.total, refiner.memory_cost)
        return self.refined[route]

    def is_as(self, other: _Start) -> bool:
        """Whether refinement would find the same."""
        return (
            (self.budget, self.work, self.prices) == (other.budget, other.work, other.prices)
            and self.graph.tensors == other.graph.tensors
            and [node.kind for node in self.graph.nodes] == [node.kind for node in other.graph.nodes]
        )


class Refinements:
    """The refinements of one propagated graph: variants of a plan share those that start alike and minimise the same."""

    def __init__(self) -> None:
        self.foldings = _Foldings()
        self.memo = RefinementMemo()
        self._starts: list[_Start] = []
        self._lifetimes: list[tuple[list[Split], list[float]]] = []

    def start(self, start: _Start) -> _Start:
        """The earlier start that is like this one, or this one."""
        for earlier in self._starts:
            if earlier.is_as(start):
                return earlier
        self._starts.append(start)
        return start

    def lifetimes(self, graph: Graph) -> list[float]:
        """`lifetimes` of a copy of the graph, which depend on the splits of its tensors."""
        splits = [tensor.split for tensor in graph.tensors]
        for known, found in self._lifetimes:
            if known == splits:
                return found
        self._lifetimes.append((splits, lifetimes(graph)))
        return self._lifetimes[-1][1]


def refine(graph: Graph, budget: int, objective: Objective, refinements: Refinements | None = None) -> None:
    """Refines the splits of `graph` in place, trying at most `budget` moves on each of the objective's routes. `refinements`
    has, and gets, those of copies of the graph.

    A later route wins if its plan costs less, by a larger factor than it needs more memory: parameters gathered outside of their
    loop cost less, until they do not fit.
    """
    for index, tensor in enumerate(graph.tensors):
        if tensor.boundary:
            graph.describe(index, propagated_axes=frozenset(sum(tensor.split, ())))
    work = _price_of_work(graph, objective.launch)
    if work > 1:
        _note_sharing(graph)
    if objective.hides or (work > 1 and objective.combined_bytes):
        note_concurrency(graph, objective, is_small=work > 1)
    refinements = refinements or Refinements()
    prices = _memory_prices(graph, objective, refinements, is_small=work > 1)
    start = refinements.start(_Start(graph.copy(), refinements.foldings, refinements.memo, budget, work, prices))
    least = least_memory = inf
    for route in (replace(objective, is_thorough=True) if work > SMALL else objective).routes:
        refined = start.along(route)
        total, memory = refined.total, refined.memory_cost
        if total < least and (memory <= least_memory or total * memory < least * least_memory):
            least, least_memory, best = total, memory, refined.tensors
        graph.pricing = pricing_of(graph.mesh, route[-1], work)
    graph.tensors = list(best)


def _price_of_work(graph: Graph, launch: float) -> float:
    """The price of repeating work that the annotations share, as a multiple of its own price, with which a program costs no less
    than launching its kernels: repeating a tenth of a small model costs at least a tenth of its time, not next to nothing.
    Programs without contractions are no models: they may repeat work to save a collective. More than 1 in small programs, in
    which launches of collectives count more than bytes."""
    counts = Counter([(node.kind, node.name) for node in graph.nodes if not node.is_identity])
    weighed = [(kind, name, kind.weight * count) for (kind, name), count in counts.items()]
    computed = sum([weight * graph.pricing.computed(kind.rule) for kind, _, weight in weighed])
    if not computed or not any(kind.rule.is_contraction for kind, _, _ in weighed):
        return 1.0
    kernels = sum([weight for _, name, weight in weighed if name not in NO_KERNELS])
    return max(1.0, kernels * launch * graph.mesh.size / computed)


def _note_sharing(graph: Graph) -> None:
    """Sets the number of devices that share each op, according to the propagated annotations. Work that these repeat on
    every device, like an optimizer's products of replicated gradients, is worth sharing only if that is faster."""
    changed = cache(lambda kind, axes: graph.changed_kind(kind, sharing=graph.pricing.devices(axes)))
    nodes = []
    for node in graph.nodes:
        if not node.is_identity:
            axes = reduce(or_, [graph.tensors[tensor].axes for tensor in (*node.operands, *node.results) if tensor >= 0], 0)
            node = node.of_kind(changed(node.kind, axes))
        nodes.append(node)
    graph.nodes = nodes


def _refined(graph: Graph, folding: Folding, budget: int, prices: Sequence[MemoryPrice], memo: RefinementMemo) -> Refiner:
    """Refines with the graph's prices, and memory prices by tensor; returns the last refiner."""
    folded = replace(folding.graph, tensors=list(folding.graph.tensors), pricing=graph.pricing)
    refiner = Refiner(folded, budget, _summed(prices, folding.number), memo=memo)
    remaining = refiner.run(folding.classes)
    graph.tensors = [folded.tensors[number] for number in folding.number]
    if len(graph.nodes) <= MANAGEABLE:
        refiner = Refiner(graph, remaining, prices, memo=memo)
        refiner.run(classes_of(graph, (NARROW, STORED, BATCH)))
    return refiner


def _memory_prices(graph: Graph, objective: Objective, refinements: Refinements, *, is_small: bool) -> list[MemoryPrice]:
    """Per tensor, the cost of its memory; empty if memory has no price. In small programs, in which launches count, what loops
    hold costs no more than other values."""
    if not objective.memory:
        return []
    prices = [MemoryPrice(objective.memory * part) for part in refinements.lifetimes(graph)]
    for number, (origin, executions) in graph.invariant.items() if not is_small else ():
        stored = local_bytes(graph.tensors[origin], graph.mesh)
        prices[number] = MemoryPrice(objective.held_factor * executions * prices[number].byte, stored)
    return prices


def _summed(prices: Sequence[MemoryPrice], folded_number: Sequence[int]) -> list[MemoryPrice]:
    """The sums of prices per tensor of the folded graph."""
    bytes_, stored = ([0.0] * (1 + max(folded_number, default=-1) if prices else 0) for _ in range(2))
    for number, (byte, free) in zip(folded_number, prices, strict=False):
        bytes_[number] += byte
        if free > stored[number]:
            stored[number] = free
    return list(map(MemoryPrice, bytes_, stored))
