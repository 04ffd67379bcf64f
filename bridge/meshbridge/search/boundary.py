"""How the arguments and results of a program are sharded: read off a graph, and written into a module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshbridge.decide.graph import Graph, Tensor
from meshbridge.dialect import reannotate
from meshbridge.ir.mlir import ir, main_function
from meshbridge.ir.sharding import Mesh, Sharding, Split, even_split
from meshbridge.ir.subaxes import whole_split


@dataclass(frozen=True)
class Boundary:
    """The splits of all arguments and results; None for what is no ranked tensor, and for what the user has sharded."""

    arguments: tuple[Split | None, ...]
    results: tuple[Split | None, ...]

    def annotate(self, module: ir.Module, mesh: Mesh) -> None:
        """Writes it into an annotated module, as the caller's."""
        main = main_function(module)
        for index, split in enumerate(self.arguments):
            if split is not None:
                reannotate.annotate_argument(main, index, Sharding(mesh.name, split))
        for index, split in enumerate(self.results):
            if split is not None:
                reannotate.annotate_result(main, index, Sharding(mesh.name, split))


def ends(graph: Graph) -> tuple[list[int], list[int]]:
    """The tensors of a function's arguments and results, in order; -1 for what is none."""
    block = graph.function.regions[0].blocks[0]
    *_, last = block.operations
    find = graph.tensor_of.get
    return [find(value, -1) for value in block.arguments], [find(value, -1) for value in last.operation.operands]


def boundary_of(graph: Graph, tensors: Sequence[Tensor], kept_alike: Sequence[tuple[int, int]]) -> Boundary:
    """What `tensors` of the graph say, in equal shards and along whole axes. The results of `kept_alike`, pairs of an argument
    and a result by their places, are sharded as the arguments."""

    def split(index: int) -> Split | None:
        if index < 0 or tensors[index].user:
            return None
        tensor = tensors[index]
        return whole_split(graph.mesh, even_split(tensor.shape, graph.mesh, tensor.split))

    arguments, results = ([split(index) for index in side] for side in ends(graph))
    for argument, result in kept_alike:
        if results[result] is not None and arguments[argument] is not None:
            results[result] = arguments[argument]
    return Boundary(tuple(arguments), tuple(results))
