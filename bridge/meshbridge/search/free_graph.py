"""A function's graph in which every sharding is open that nobody has written: that of every argument and result too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, permutations, product
from math import prod
from typing import NamedTuple

from meshbridge.decide.build_graph import identity_rule
from meshbridge.decide.choice import Pricing
from meshbridge.decide.decide import propagated
from meshbridge.decide.dimension_classes import BATCH, HELD, NARROW, WIDE, Dimension, classes_of
from meshbridge.decide.fold_layers import fold_layers
from meshbridge.decide.graph import Graph, Node, Tensor
from meshbridge.decide.held import held, local_bytes
from meshbridge.decide.refine import Refiner, moved
from meshbridge.ir.elements import element_bytes
from meshbridge.ir.mlir import ir, main_function
from meshbridge.ir.sharding import Axes, Mesh
from meshbridge.ops.rule import Interface
from meshbridge.resharding import Objective
from meshbridge.search.boundary import ends

MOVES = 20_000
"""Changes of a dimension class that are tried from each starting point at most."""

CLASSES = 8
"""Dimension classes that a starting point may split: those that hold most bytes. Those of a transformer are its batch, sequence,
width, heads, hidden width, vocabulary and experts."""

MOST_STARTS = 1000
"""Starting points that are priced: with three axes, fewer classes are combined."""


KEY_TYPE, KEY_WORDS = "ui32", (2, 4)
"""The type of a random key as a program has it, and of how many words its last dimension is."""


class Neighbour(NamedTuple):
    """A plan that differs from another one in a dimension class."""

    price: float
    bytes: float
    "Of the arguments and results whose dimensions are in the class."
    tensors: list[Tensor]


@dataclass
class FreeGraph:
    """The graph, and with its repetitions folded."""

    graph: Graph
    folded: Graph
    standing_for: list[int]
    "For every tensor of `graph`, the one of `folded` that stands for it."

    @classmethod
    def of(
        cls, module: ir.Module, objective: Objective, pairs: Sequence[tuple[int, int]], data_axes: Sequence[str] = ()
    ) -> FreeGraph:
        """That of a legal program, in which what the user has written is propagated. The `pairs` are arguments and results by
        their places: who calls a step again and again hands each result on as the argument, for which it is resharded where the
        two differ. Along the `data_axes`, by name, arguments and what is handed on are split as the user's annotations propagate,
        and not otherwise. Of the module nothing is changed but how axes are numbered, where one is cut."""
        (graph,) = propagated([main_function(module)], module, Interface(), objective.plain)
        data = frozenset(chain.from_iterable(graph.mesh.runs[name] for name in data_axes))
        axes = frozenset(range(graph.mesh.rank)) - data
        arguments, results = ends(graph)
        kept = {*arguments, *(results[result] for _, result in pairs)}
        for index, tensor in enumerate(graph.tensors):
            if tensor.boundary:
                is_kept = index in kept
                fixed = [is_kept and not data.isdisjoint(along) for along in tensor.split]
                may = tuple(
                    is_open and not stays and is_worth
                    for is_open, stays, is_worth in zip(tensor.open, fixed, _worth_splitting(tensor), strict=True)
                )
                graph.describe(index, found=tensor.found | axes if is_kept else axes | data, open=may)
        _hand_on(graph, pairs)
        return cls(graph, *fold_layers(graph))

    @property
    def mesh(self) -> Mesh:
        """The devices."""
        return self.graph.mesh

    @property
    def is_annotated(self) -> bool:
        """Whether the user has said anything: `folded` is split as that propagates."""
        return any(tensor.user for tensor in self.folded.tensors)

    @cached_property
    def axes(self) -> list[int]:
        """Those of more than one device."""
        return [axis for axis, size in enumerate(self.mesh.shape) if size > 1]

    @cached_property
    def _boundary(self) -> set[int]:
        """The tensors of the folded graph that stand for arguments and results."""
        return {self.standing_for[index] for side in ends(self.graph) for index in side if index >= 0}

    @cached_property
    def _counts(self) -> list[int]:
        counts = [0] * len(self.folded.tensors)
        for index in self.standing_for:
            counts[index] += 1
        return counts

    @cached_property
    def _largest(self) -> list[dict[int, tuple[int, ...]]]:
        """The classes that hold most bytes: by tensor, its dimensions."""
        tensors, counts = self.folded.tensors, self._counts

        def size(found: Iterable[Dimension]) -> float:
            return sum(local_bytes(tensors[tensor], self.mesh) * counts[tensor] for tensor in {tensor for tensor, _ in found})

        count = CLASSES
        while count > 1 and (count + 1) ** len(self.axes) > MOST_STARTS:
            count -= 1
        found = sorted(classes_of(self.folded, (WIDE,)), key=size, reverse=True)[:count]
        return [_by_tensor(each) for each in found]

    def starts(self) -> Iterator[list[Tensor]]:
        """The tensors of the folded graph from which a search begins: every axis splits one of the largest classes, or none."""
        classes = self._largest
        for chosen in product((*range(len(classes)), None), repeat=len(self.axes)):
            along: dict[int, Axes] = {}
            for axis, number in zip(self.axes, chosen, strict=True):
                if number is not None:
                    along[number] = (*along.get(number, ()), axis)
            yield self._split(along)

    def _split(self, along: dict[int, Axes]) -> list[Tensor]:
        tensors = list(self.folded.tensors)
        for number, axes in along.items():
            size = self.mesh.group_size(axes)
            for tensor, dims in self._largest[number].items():
                tensors[tensor] = moved(tensors[tensor], dims, axes, size) or tensors[tensor]
        return tensors

    def priced(self, tensors: Sequence[Tensor], pricing: Pricing, memory: float = 0.0) -> Refiner:
        """What the shardings cost, ready to be refined; memory costs so much a byte."""
        folded = replace(self.folded, tensors=list(tensors), pricing=pricing)
        return Refiner(folded, MOVES, self._memory_prices(tensors, memory), self.axes)

    def refined(self, tensors: Sequence[Tensor], pricing: Pricing, memory: float) -> Refiner:
        """The best plan that leads on from there."""
        refiner = self.priced(tensors, pricing, memory)
        refiner.run(WIDE, NARROW, BATCH)
        refiner.run(NARROW, HELD, BATCH)
        return refiner

    def refined_inside(self, tensors: Sequence[Tensor], pricing: Pricing) -> Refiner:
        """The best plan that leads on from there with the same arguments and results."""
        graph = replace(self.folded, tensors=list(tensors))
        for index in self._boundary:
            graph.describe(index, open=(False,) * len(graph.tensors[index].shape))
        return self.refined(graph.tensors, pricing, 0.0)

    def neighbours(self, tensors: Sequence[Tensor], pricing: Pricing, memory: float) -> list[Neighbour]:
        """Plans in which one dimension class of arguments and results is split otherwise, those first in which it has most bytes,
        and of these the cheapest: of small tensors the step hardly says anything."""
        return sorted(self._neighbours(tensors, pricing, memory), key=lambda each: (-each.bytes, each.price))

    def _neighbours(self, tensors: Sequence[Tensor], pricing: Pricing, memory: float) -> Iterator[Neighbour]:
        folded = replace(self.folded, tensors=list(tensors))
        for dimensions in classes_of(folded, (HELD, NARROW)):
            members = _by_tensor(dimensions)
            held = self._boundary.intersection(members)
            if not held:
                continue
            size_held = sum(
                prod(tensors[index].shape) * element_bytes(tensors[index].dtype) * self._counts[index] for index in held
            )
            for axes in self._alternatives:
                size = self.mesh.group_size(axes)
                changed = {index: after for index, dims in members.items() if (after := moved(tensors[index], dims, axes, size))}
                if len(changed) == len(members) and any(after is not tensors[index] for index, after in changed.items()):
                    found = [changed.get(index, tensor) for index, tensor in enumerate(tensors)]
                    yield Neighbour(self.priced(found, pricing, memory).total, size_held, found)

    @cached_property
    def _alternatives(self) -> list[Axes]:
        """What a class may be split along: none of the axes, one, or two in either order."""
        return [*chain.from_iterable(permutations(self.axes, count) for count in (0, 1, 2))]

    def unfolded(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The tensors of the graph, of those of the folded one."""
        return [tensors[index] for index in self.standing_for]

    def folded_as(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The tensors of the folded graph, of those of the graph: of repeated layers the last one counts."""
        found = list(self.folded.tensors)
        for index, tensor in zip(self.standing_for, tensors, strict=True):
            found[index] = found[index].with_split(tensor.split)
        return found

    def _memory_prices(self, tensors: Sequence[Tensor], price: float) -> list[float]:
        """Per tensor of the folded graph, what it costs to hold a byte of it: the caller holds arguments and results
        throughout."""
        if not price:
            return []
        graph = replace(self.graph, tensors=self.unfolded(tensors))
        prices = [0.0] * len(tensors)
        for index, tensor, part in zip(self.standing_for, graph.tensors, held(graph), strict=True):
            prices[index] += price * (1.0 if tensor.boundary else part)
        return prices


def _worth_splitting(tensor: Tensor) -> list[bool]:
    """Which dimensions of an argument or result it makes sense to split: none of no elements or one, and not the words of a
    random key, a dimension that the key does not have for JAX."""
    last = len(tensor.shape) - 1
    is_key = tensor.dtype == KEY_TYPE and tensor.shape[-1:] and tensor.shape[last] in KEY_WORDS
    return [size not in (0, 1) and not (is_key and dim == last) for dim, size in enumerate(tensor.shape)]


def _hand_on(graph: Graph, pairs: Iterable[tuple[int, int]]) -> None:
    """Adds what the next step begins with: an identity from each result to the argument that it becomes."""
    arguments, results = ends(graph)
    *_, last = graph.function.regions[0].blocks[0].operations
    for argument, result in pairs:
        before, after = results[result], arguments[argument]
        if before != after and min(before, after) >= 0:
            kind = graph.kind(identity_rule(graph.tensors[before].shape), 1, is_identity=True)
            graph.nodes.append(Node(last.operation, last.operation.name, kind, (before,), (after,), result))
            graph.uses[before] += 1
            for tensor in (before, after):
                graph.users[tensor].append(len(graph.nodes) - 1)


def _by_tensor(dimensions: Iterable[Dimension]) -> dict[int, tuple[int, ...]]:
    found: dict[int, tuple[int, ...]] = {}
    for tensor, dim in dimensions:
        found[tensor] = (*found.get(tensor, ()), dim)
    return found
