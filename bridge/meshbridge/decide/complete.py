"""Completing annotations: the user's are spread to a fixed point, refined if asked for, settled, and written down."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence

from meshbridge.decide.annotate import Annotator
from meshbridge.decide.assign import Assigner, Assignment
from meshbridge.decide.build_graph import GraphBuilder
from meshbridge.decide.cut_axes import wanted_cuts
from meshbridge.decide.graph import Graph
from meshbridge.decide.propagate import Propagator
from meshbridge.decide.refine import refine
from meshbridge.decide.unreduced import carry_declarations
from meshbridge.dialect.module_mesh import find_mesh
from meshbridge.dialect.renumber import renumber
from meshbridge.ir.mlir import OpError, ShardingWarning, ir, walk
from meshbridge.ir.sharding import DYNAMIC, Mesh
from meshbridge.ir.subaxes import cut
from meshbridge.ops.rule import Interface


def complete(
    functions: Iterable[ir.Operation], module: ir.Module, interface: Interface, *, moves: int = 0, only_moves: bool = False
) -> None:
    """Annotates every function that names a mesh, in place. Refinement tries `moves` moves; `only_moves` leaves annotations out
    where a value is taken as it lies.

    Raises OpError where the user's annotations cannot be followed, and warns (ShardingWarning) where they contradict each other.
    """
    for graph in _propagated(list(functions), module, interface):
        for text in graph.warnings:
            warnings.warn(text, ShardingWarning, stacklevel=2)
        if moves:
            refine(graph, moves)
        write(graph, only_moves=only_moves)


def _propagated(functions: Sequence[ir.Operation], module: ir.Module, interface: Interface) -> list[Graph]:
    """The graphs of the functions that name a mesh, in which the user's annotations have been propagated.

    Where that meets a reshape which an axis fits only in part, the axis is cut in the module, and propagation starts anew.
    """
    graphs: list[Graph] = []
    for function in functions:
        mesh = find_mesh(module, function)
        if mesh is not None:
            _refuse_unknown_sizes(function, mesh)
            graph = GraphBuilder(function, mesh, interface).build()
            propagate(graph)
            if cuts := wanted_cuts(graph):
                renumber(module, mesh, cut(mesh, cuts))
                return _propagated(functions, module, interface)
            graphs.append(graph)
    return graphs


def _refuse_unknown_sizes(function: ir.Operation, mesh: Mesh) -> None:
    """Raises OpError where `mesh` has axes, or a tensor dimensions, of unknown size: what a sharding costs depends on it."""
    if DYNAMIC in mesh.shape:
        sizes = "x".join("?" if size == DYNAMIC else str(size) for size in mesh.shape)
        message = f"is to be partitioned on the mesh @{mesh.name} of shape {sizes}, expected known sizes"
        raise OpError(function, message, hint=f"mesh-opt --mesh-specialize={mesh.name}=… gives them")
    for op in walk(function):
        for value in (*op.operands, *op.results):
            if isinstance(value.type, ir.RankedTensorType) and not value.type.has_static_shape:
                message = f"has a value of type {value.type}, expected sizes that are known while partitioning"
                raise OpError(op, message, hint="--dims gives symbolic dimensions sizes")


def propagate(graph: Graph) -> None:
    """Propagates the user's annotations to a fixed point."""
    carry_declarations(graph)
    Propagator(graph).run("backward-forward")


def write(graph: Graph, *, only_moves: bool) -> list[Assignment]:
    """Annotates one function as its graph says; returns what was decided for its nodes."""
    settler = Assigner(graph)
    settled = settler.run()
    Annotator(graph, settler.defined, only_moves=only_moves).run(settled)
    return settled
