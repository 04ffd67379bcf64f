"""The graph that is decided over, of a legal program."""

from __future__ import annotations

from meshbridge.decide.build_graph import GraphBuilder
from meshbridge.decide.choice import pricing_of
from meshbridge.decide.graph import Graph
from meshbridge.dialect.module_mesh import find_mesh
from meshbridge.ir.mlir import ir, main_function
from meshbridge.ops.rule import Interface


def graph_of(module: ir.Module) -> Graph:
    """The graph of a legal program, which must outlive it."""
    mesh = find_mesh(module)
    assert mesh is not None
    with module.context:
        return GraphBuilder(main_function(module), Interface(), pricing_of(mesh)).build()
