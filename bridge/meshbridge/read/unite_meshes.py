"""Replaces views of the same devices by one mesh."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import mul
from typing import ClassVar

from meshbridge.dialect.module_mesh import mesh_ops, named_meshes
from meshbridge.dialect.renumber import may_name_axes, renumber
from meshbridge.ir.mlir import ir, walk_all
from meshbridge.ir.passes import Pass, register
from meshbridge.ir.sharding import Axes, Mesh
from meshbridge.ir.subaxes import subdivide


@register
@dataclass(frozen=True)
class UniteMeshes(Pass):
    """Makes the meshes that a program names one, where they are views of the same devices in the same order: the one with most
    axes, cut as finely as all of them ask for. Meshes of other devices stay, and are refused where one is sought.

    Input:   mesh.mesh @flat(shape = 8)
             mesh.mesh @mesh(shape = 2x4)
             %s = mesh.sharding @flat split_axes = [[0]]
    Output:  mesh.mesh @mesh(shape = 2x4)
             %s = mesh.sharding @mesh split_axes = [[0, 1]]
    """

    name: ClassVar[str] = "unite-meshes"

    def run(self, module: ir.Module) -> None:
        """Raises nothing: `find_mesh` does."""
        declared = [view.value for view in mesh_ops(module.body)]
        if len(declared) < 2:
            return
        named = named_meshes(walk_all(module))
        views = [mesh for mesh in declared if mesh.name in named and mesh.size != 1]
        if len(views) < 2 or len({(mesh.size, mesh.device_ids) for mesh in views}) > 1:
            return
        base = max(views, key=lambda mesh: mesh.rank)
        bounds = sorted({bound for mesh in views for bound in _bounds(mesh)})
        if any(outer % inner for inner, outer in pairwise(bounds)):
            return
        united = subdivide(base, dict(_cuts(base, bounds)))
        for mesh in views:
            if mesh != united:
                renumber(module, mesh, united, parts=_parts(mesh, united))
        _rename(module, {mesh.name for mesh in views} - {base.name}, base.name)


def _bounds(mesh: Mesh) -> list[int]:
    """The number of blocks of devices that the axes up to each one make, from 1 to all devices."""
    return [1, *accumulate(mesh.shape, mul)]


def _cuts(mesh: Mesh, bounds: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
    """For each axis, the products of sizes after which it is cut so that it ends at each of `bounds`."""
    for axis, (outer, inner) in enumerate(pairwise(_bounds(mesh))):
        yield axis, [bound // outer for bound in bounds if outer < bound < inner]


def _parts(mesh: Mesh, united: Mesh) -> list[Axes]:
    """The axes of the united mesh that make up each axis of a view; none for an axis of size 1."""
    places = [(axis, outer, inner) for axis, (outer, inner) in enumerate(pairwise(_bounds(united))) if outer < inner]
    return [
        tuple(axis for axis, begin, end in places if view_outer <= begin and end <= view_inner)
        for view_outer, view_inner in pairwise(_bounds(mesh))
    ]


def _rename(module: ir.Module, names: Iterable[str], name: str) -> None:
    """Names the mesh `name` wherever one of `names` is named, and removes these."""
    with module.context:
        symbols = {ir.FlatSymbolRefAttr.get(other_name) for other_name in names}
        symbol = ir.FlatSymbolRefAttr.get(name)
        for op in walk_all(module):
            if may_name_axes(op):
                for key in list(op.attributes.keys()):
                    op.attributes[key] = _renamed(op.attributes[key], symbols, symbol)
    for view in mesh_ops(module.body):
        if view.sym_name in names:
            view.operation.erase()


def _renamed(attr: ir.Attribute, symbols: Iterable[ir.Attribute], one: ir.Attribute) -> ir.Attribute:
    if isinstance(attr, ir.ArrayAttr):
        return ir.ArrayAttr.get([_renamed(entry, symbols, one) for entry in attr])
    if isinstance(attr, ir.DictAttr):
        entries = (attr[index] for index in range(len(attr)))
        return ir.DictAttr.get({entry.name: _renamed(entry.attr, symbols, one) for entry in entries})
    return one if attr in symbols else attr
