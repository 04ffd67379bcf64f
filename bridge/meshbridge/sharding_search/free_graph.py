"""A function's graph in which every sharding is open that the user has not written, also those of arguments and results."""

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
from meshbridge.decide.dimension_classes import BATCH, NARROW, STORED, WIDE, Dimension, classes_of
from meshbridge.decide.fold_layers import fold_layers
from meshbridge.decide.graph import Graph, Node, Tensor
from meshbridge.decide.liveness import MemoryPrice, lifetimes, local_bytes
from meshbridge.decide.refine import Refiner, moved_tensor
from meshbridge.ir.elements import element_bytes
from meshbridge.ir.mlir import ir, main_function
from meshbridge.ir.sharding import Axes, Mesh
from meshbridge.ops.rule import Interface
from meshbridge.resharding import Objective
from meshbridge.sharding_search.boundary import ends

MOVES = 20_000
"""The most changes of a dimension class that are tried from each starting point."""

CLASSES = 8
"""The most dimension classes that a starting point may split: those of the most bytes. A transformer has batch, sequence, width,
heads, hidden width, vocabulary and experts."""

MOST_STARTS = 1000
"""The most starting points that are priced: with three axes, fewer classes are combined."""


KEY_TYPE, KEY_WORDS = "ui32", (2, 4)
"""The type of a random key in a program, and the sizes that its last dimension may have."""


class Neighbour(NamedTuple):
    """A plan that differs from another in one dimension class."""

    price: float
    bytes: float
    "Bytes of the arguments and results whose dimensions are in the class."
    tensors: list[Tensor]


@dataclass
class FreeGraph:
    """The graph, and the graph with repeated layers folded."""

    graph: Graph
    folded: Graph
    standing_for: Sequence[int]
    "For every tensor of `graph`, its tensor in `folded`."

    @classmethod
    def of(
        cls, module: ir.Module, objective: Objective, pairs: Sequence[tuple[int, int]], data_axes: Sequence[str] = ()
    ) -> FreeGraph:
        """The graph of a legal program, with the user's annotations propagated. `pairs` are numbers of arguments and results: the
        caller passes each result of a step to the next step as the argument, and reshards it if the two differ. Along the
        `data_axes`, by name, arguments and such results are split only as the user's annotations propagate. The module does not
        change, except for axis numbers where an axis is split."""
        (graph,) = propagated([main_function(module)], module, Interface(), objective.plain)
        data = frozenset(chain.from_iterable(graph.mesh.runs[name] for name in data_axes))
        axes = frozenset(range(graph.mesh.rank)) - data
        arguments, results = ends(graph)
        searched = {*arguments, *(results[result] for _, result in pairs)}
        for index, tensor in enumerate(graph.tensors):
            if tensor.boundary:
                is_searched = index in searched
                fixed = [is_searched and not data.isdisjoint(along) for along in tensor.split]
                may = tuple(
                    is_open and not stays and is_worth
                    for is_open, stays, is_worth in zip(tensor.open, fixed, _worth_splitting(tensor), strict=True)
                )
                graph.describe(index, propagated_axes=tensor.propagated_axes | axes if is_searched else axes | data, open=may)
        _hand_on(graph, pairs)
        return cls(graph, *fold_layers(graph))

    @property
    def mesh(self) -> Mesh:
        """The devices."""
        return self.graph.mesh

    @property
    def is_annotated(self) -> bool:
        """Whether the user has annotated anything: then `folded` is split as the annotations propagate."""
        return any(tensor.annotated for tensor in self.folded.tensors)

    @cached_property
    def axes(self) -> list[int]:
        """The axes of more than one device."""
        return [axis for axis, size in enumerate(self.mesh.shape) if size > 1]

    @cached_property
    def _boundary(self) -> set[int]:
        """The tensors of the folded graph for arguments and results."""
        return {self.standing_for[index] for side in ends(self.graph) for index in side if index >= 0}

    @cached_property
    def _counts(self) -> list[int]:
        counts = [0] * len(self.folded.tensors)
        for index in self.standing_for:
            counts[index] += 1
        return counts

    @cached_property
    def _largest(self) -> list[dict[int, tuple[int, ...]]]:
        """The classes of the most bytes: for each, its dimensions by tensor."""
        tensors, counts = self.folded.tensors, self._counts

        def size(dimensions: Iterable[Dimension]) -> float:
            members = {tensor for tensor, _ in dimensions}
            return sum(local_bytes(tensors[tensor], self.mesh) * counts[tensor] for tensor in members)

        count = CLASSES
        while count > 1 and (count + 1) ** len(self.axes) > MOST_STARTS:
            count -= 1
        classes = sorted(classes_of(self.folded, (WIDE,)), key=size, reverse=True)[:count]
        return [_by_tensor(dimensions) for dimensions in classes]

    def starts(self) -> Iterator[list[Tensor]]:
        """Starting points of a search: tensors of the folded graph, where every axis splits one of the largest classes, or
        none."""
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
                tensors[tensor] = moved_tensor(tensors[tensor], dims, axes, size) or tensors[tensor]
        return tensors

    def priced(self, tensors: Sequence[Tensor], pricing: Pricing, memory: float = 0.0) -> Refiner:
        """The price of these shardings, ready to refine; a byte of memory costs `memory`."""
        folded = replace(self.folded, tensors=list(tensors), pricing=pricing)
        return Refiner(folded, MOVES, self._memory_prices(tensors, memory), self.axes)

    def refined(self, tensors: Sequence[Tensor], pricing: Pricing, memory: float) -> Refiner:
        """The best plan that refinement reaches from these tensors."""
        refiner = self.priced(tensors, pricing, memory)
        refiner.run(classes_of(refiner.graph, (WIDE, NARROW, BATCH)))
        refiner.run(classes_of(refiner.graph, (NARROW, STORED, BATCH)))
        return refiner

    def refined_inside(self, tensors: Sequence[Tensor], pricing: Pricing) -> Refiner:
        """The best plan that refinement reaches from these tensors with the same arguments and results."""
        graph = replace(self.folded, tensors=list(tensors))
        for index in self._boundary:
            graph.describe(index, open=(False,) * len(graph.tensors[index].shape))
        return self.refined(graph.tensors, pricing, 0.0)

    def neighbours(self, tensors: Sequence[Tensor], pricing: Pricing, memory: float) -> list[Neighbour]:
        """Plans that split one dimension class of arguments and results differently: the classes of the most bytes first, since
        the step hardly depends on small tensors, and of each class the cheapest first."""
        return sorted(self._neighbours(tensors, pricing, memory), key=lambda neighbour: (-neighbour.bytes, neighbour.price))

    def _neighbours(self, tensors: Sequence[Tensor], pricing: Pricing, memory: float) -> Iterator[Neighbour]:
        folded = replace(self.folded, tensors=list(tensors))
        for dimensions in classes_of(folded, (STORED, NARROW)):
            members = _by_tensor(dimensions)
            boundary_members = self._boundary.intersection(members)
            if not boundary_members:
                continue
            size_of_class = sum(
                prod(tensors[index].shape) * element_bytes(tensors[index].dtype) * self._counts[index]
                for index in boundary_members
            )
            for axes in self._alternatives:
                size = self.mesh.group_size(axes)
                changed = {
                    index: after for index, dims in members.items() if (after := moved_tensor(tensors[index], dims, axes, size))
                }
                if len(changed) == len(members) and any(after is not tensors[index] for index, after in changed.items()):
                    neighbour = [changed.get(index, tensor) for index, tensor in enumerate(tensors)]
                    yield Neighbour(self.priced(neighbour, pricing, memory).total, size_of_class, neighbour)

    @cached_property
    def _alternatives(self) -> list[Axes]:
        """What a class may be split along: no axis, one, or two in either order."""
        return [*chain.from_iterable(permutations(self.axes, count) for count in (0, 1, 2))]

    def unfolded(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The tensors of the graph for tensors of the folded graph."""
        return [tensors[index] for index in self.standing_for]

    def folded_as(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The tensors of the folded graph for tensors of the graph: of repeated layers the last one counts."""
        folded = list(self.folded.tensors)
        for index, tensor in zip(self.standing_for, tensors, strict=True):
            folded[index] = folded[index].with_split(tensor.split)
        return folded

    def _memory_prices(self, tensors: Sequence[Tensor], price: float) -> list[MemoryPrice]:
        """Per tensor of the folded graph, the price of its memory. The caller holds arguments and results throughout."""
        if not price:
            return []
        graph = replace(self.graph, tensors=self.unfolded(tensors))
        prices = [0.0] * len(tensors)
        for index, tensor, part in zip(self.standing_for, graph.tensors, lifetimes(graph), strict=True):
            prices[index] += price * (1.0 if tensor.boundary else part)
        return [*map(MemoryPrice, prices)]


def _worth_splitting(tensor: Tensor) -> list[bool]:
    """Which dimensions of an argument or result are worth splitting: none of size 0 or 1, and not the words of a random key,
    which are no dimension of the key in JAX."""
    last_dim = len(tensor.shape) - 1
    is_key = tensor.dtype == KEY_TYPE and tensor.shape[-1:] and tensor.shape[last_dim] in KEY_WORDS
    return [size not in (0, 1) and not (is_key and dim == last_dim) for dim, size in enumerate(tensor.shape)]


def _hand_on(graph: Graph, pairs: Iterable[tuple[int, int]]) -> None:
    """Adds what the next step begins with: an identity from each result to the argument that it becomes."""
    arguments, results = ends(graph)
    *_, terminator = graph.function.regions[0].blocks[0].operations
    for argument, result in pairs:
        before, after = results[result], arguments[argument]
        if before != after and min(before, after) >= 0:
            kind = graph.kind(identity_rule(graph.tensors[before].shape), 1, is_identity=True)
            graph.nodes.append(Node(terminator.operation, terminator.operation.name, kind, (before,), (after,), result))
            graph.uses[before] += 1
            for tensor in (before, after):
                graph.users[tensor].append(len(graph.nodes) - 1)


def _by_tensor(dimensions: Iterable[Dimension]) -> dict[int, tuple[int, ...]]:
    dims_of: dict[int, tuple[int, ...]] = {}
    for tensor, dim in dimensions:
        dims_of[tensor] = (*dims_of.get(tensor, ()), dim)
    return dims_of
