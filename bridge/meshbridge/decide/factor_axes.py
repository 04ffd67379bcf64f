"""Mesh axes in parts where a reshape cuts a dimension inside an axis: two key and value heads on four devices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import gcd
from typing import ClassVar

from meshbridge.decide.build_graph import GraphBuilder
from meshbridge.decide.graph import Graph
from meshbridge.decide.propagate import Propagator
from meshbridge.dialect.module_mesh import find_mesh
from meshbridge.dialect.ops import MeshOp
from meshbridge.dialect.renumber import renumber
from meshbridge.ir import subaxes
from meshbridge.ir.mlir import functions_to_partition, ir
from meshbridge.ir.passes import RewritePass, register
from meshbridge.ir.sharding import DYNAMIC, Axes, Mesh
from meshbridge.ops.rule import Interface, ShardingRule
from meshbridge.ops.sharding_rules import RULED

Cuts = dict[int, list[int]]
"""Per axis, after which products of sizes it is cut, from outer to inner."""


@register
@dataclass(frozen=True)
class FactorAxes(RewritePass):
    """Cuts mesh axes into parts where reshapes ask for it, so that the shards of a reshape stay where they are.

    Input:   mesh.mesh @m(shape = 4)
             %s = mesh.sharding @m split_axes = [[0]] : !mesh.sharding
             %0 = mesh.shard %x to %s : tensor<8xf32>
             %1 = stablehlo.reshape %0 : (tensor<8xf32>) -> tensor<2x4xf32>
    Output:  mesh.mesh @m(shape = 2x2) {meshbridge.axis_digits = array<i64: 2>}
             %s = mesh.sharding @m split_axes = [[0, 1]] : !mesh.sharding
             %0 = mesh.shard %x to %s : tensor<8xf32>
             %1 = stablehlo.reshape %0 : (tensor<8xf32>) -> tensor<2x4xf32>                split as [[0], [1]] from here on

    The same devices hold the same shards; only the axis has two names. Which dimensions will be split is read off a first
    propagation. Rules of custom calls and composites ask for the same by products of factors.
    """

    name: ClassVar[str] = "factor-axes"
    rewrites: ClassVar[frozenset[str]] = frozenset({"stablehlo.reshape", *RULED})

    def rewrite(self, module: ir.Module, ops: list[ir.Operation]) -> bool:
        interface = Interface()
        sizes = {size for mesh in _static_meshes(module) for size in mesh.shape if size > 1}
        rules = {interface.rule(op) for op in ops}
        if not any(_may_cut(rule, size) for rule in rules for size in sizes):
            return False
        changed = [_factor(module, function, interface) for function in functions_to_partition(module)]
        return any(changed)


def _static_meshes(module: ir.Module) -> list[Mesh]:
    found = [view.value for view in module.body.operations if isinstance(view, MeshOp)]
    return [mesh for mesh in found if DYNAMIC not in mesh.shape]


def _may_cut(rule: ShardingRule, size: int) -> bool:
    """Whether a loop of a dimension that walks several has a part of the devices along an axis of `size`, but not all."""
    several = {loop for dims in (*rule.operands, *rule.results) for loops in dims if len(loops) > 1 for loop in loops}
    return any(1 < gcd(rule.loops[loop].size, size) < size for loop in several)


def _factor(module: ir.Module, function: ir.Operation, interface: Interface) -> bool:
    """Cuts the axes of one function's mesh where its reshapes ask for it."""
    mesh = find_mesh(module, function)
    if mesh is None or DYNAMIC in mesh.shape:
        return False
    graph = GraphBuilder(function, mesh, interface).build()
    Propagator(graph).run("backward-forward")
    cuts = _wanted_cuts(graph)
    if cuts:
        renumber(module, mesh, subaxes.cut(mesh, cuts))
    return bool(cuts)


def _wanted_cuts(graph: Graph) -> Cuts:
    """The cuts that the reshapes and the rules of `graph` ask for, as far as they go together."""
    cuts: Cuts = {}
    for node in graph.nodes:
        if node.op.name not in FactorAxes.rewrites:
            continue
        for tensor, dims in zip((*node.operands, *node.results), (*node.rule.operands, *node.rule.results), strict=True):
            for axes, loops in zip(graph.tensors[tensor].split if tensor >= 0 else (), dims, strict=True):
                if axes and len(loops) > 1:
                    for axis, after in _cuts_along(axes, graph.mesh, [node.rule.loops[loop].size for loop in loops]):
                        known = cuts.setdefault(axis, [])
                        if after not in known and all(after % other == 0 or other % after == 0 for other in known):
                            known.append(after)
    return {axis: sorted(found) for axis, found in cuts.items()}


def _cuts_along(axes: Axes, mesh: Mesh, loops: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Where axes that split one dimension are to be cut so that they fill its loops from the outermost on."""
    inner = iter(loops)
    room = next(inner)
    for axis in axes:
        left = mesh.shape[axis]
        while left > 1:
            if room == 1:
                room = next(inner, 0)
            part = gcd(left, room)
            if room == 0 or part == 1:
                return
            room, left = room // part, left // part
            if left > 1:
                yield axis, mesh.shape[axis] // left
                if room > 1:
                    return  # the rest of this loop lies between the two parts
