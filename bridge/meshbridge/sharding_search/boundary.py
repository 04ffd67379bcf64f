"""How the arguments and results of a program are sharded: read from a graph, and written into a module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from meshbridge.decide.graph import Graph, Tensor
from meshbridge.dialect import reannotate
from meshbridge.dialect.boundary import read_boundary
from meshbridge.dialect.module_mesh import mesh_or_single
from meshbridge.ir.mlir import entries, function_type, ir, main_function
from meshbridge.ir.sharding import Mesh, Sharding, Split, even_split
from meshbridge.ir.subaxes import whole_split
from meshbridge.text import quoted, spec_text

if TYPE_CHECKING:
    from jax.sharding import PartitionSpec

Named = tuple[tuple[str, ...], ...]
"""Per dimension, the names of the mesh axes that split it. Axis numbers change where an axis is split; names do not."""


def named_axes(mesh: Mesh, split: Split) -> Named:
    """A split along whole axes, by their names."""
    return tuple(tuple(ref.name for ref in mesh.refs_of(axes)) for axes in whole_split(mesh, split))


def split_along(mesh: Mesh, named: Named) -> Split:
    """The split in the axis numbers of a mesh."""
    return tuple(tuple(chain.from_iterable(mesh.runs[name] for name in names)) for names in named)


def partition_spec(named: Named) -> PartitionSpec:
    """A split as a `PartitionSpec`."""
    from jax.sharding import PartitionSpec

    entries = [axes[0] if len(axes) == 1 else axes or None for axes in named]
    while entries and entries[-1] is None:
        entries.pop()
    return PartitionSpec(*entries)


def named_text(named: Named) -> str:
    """A split as text to paste."""
    return spec_text([quoted(axis) for axis in axes] for axes in named)


@dataclass(frozen=True)
class ShardedBoundary:
    """The splits of all arguments and results; None for unranked types, and for what the user has sharded."""

    arguments: tuple[Named | None, ...]
    results: tuple[Named | None, ...]

    def annotate(self, module: ir.Module) -> None:
        """Writes it into an annotated module, as the caller's shardings."""
        main, mesh = main_function(module), mesh_or_single(module)
        for side, annotate in ((self.arguments, reannotate.annotate_argument), (self.results, reannotate.annotate_result)):
            for index, named in enumerate(side):
                if named is not None:
                    annotate(main, index, Sharding(mesh.name, split_along(mesh, named)))


LEFT_OPEN = ShardedBoundary((), ())
"""What leaves all that nobody has sharded to `partition`."""


def ends(graph: Graph) -> tuple[list[int], list[int]]:
    """The tensors of a function's arguments and results, in order; -1 for what is none."""
    block = graph.function.regions[0].blocks[0]
    *_, terminator = block.operations
    find = graph.tensor_of.get
    return [find(value, -1) for value in block.arguments], [find(value, -1) for value in terminator.operation.operands]


def boundary_of(graph: Graph, tensors: Sequence[Tensor], kept_alike: Sequence[tuple[int, int]]) -> ShardedBoundary:
    """The boundary of a graph whose tensors are sharded as `tensors`, in equal shards and along whole axes. For each pair of an
    argument and a result in `kept_alike`, the result is sharded as the argument, or both as the user sharded one of them."""
    sides = ends(graph)
    is_said = [[index < 0 or tensors[index].annotated for index in side] for side in sides]
    arguments, results = ([_named(graph.mesh, tensors[index]) if index >= 0 else () for index in side] for side in sides)
    for argument, result in kept_alike:
        if min(sides[0][argument], sides[1][result]) < 0:
            continue
        if is_said[1][result] and not is_said[0][argument]:
            arguments[argument] = results[result]
        else:
            results[result] = arguments[argument]
    sides_left_open = (
        tuple(None if stays else named for stays, named in zip(said_of_side, side, strict=True))
        for said_of_side, side in zip(is_said, (arguments, results), strict=True)
    )
    return ShardedBoundary(*sides_left_open)


def sharded_as(partitioned: ir.Module, graph: Graph, tensors: Sequence[Tensor]) -> list[Tensor]:
    """The `tensors` of a graph with arguments and results sharded as in its program `partitioned`, in equal shards and along
    whole axes. What the user sharded stays."""
    mesh, main, resharded = mesh_or_single(partitioned), main_function(partitioned), list(tensors)
    kind = function_type(main)
    for indices, types, side in zip(ends(graph), (kind.inputs, kind.results), ("arg_attrs", "res_attrs"), strict=True):
        for index, type_, entry in zip(indices, types, entries(main, side), strict=True):
            if index >= 0 and not resharded[index].annotated:
                boundary = read_boundary(entry, ir.RankedTensorType(type_))
                named = named_axes(mesh, even_split(boundary.shape, mesh, boundary.split))
                resharded[index] = resharded[index].with_split(split_along(graph.mesh, named))
    return resharded


def _named(mesh: Mesh, tensor: Tensor) -> Named:
    return named_axes(mesh, even_split(tensor.shape, mesh, tensor.split))
