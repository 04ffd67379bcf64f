"""The meshes of device groups: by symbol in StableHLO with sdy, in place in the mesh dialect.

    #stablehlo.replica_group_mesh_axes<mesh = @m, axes = [#stablehlo.axis_ref<name = "x">]>
==>
    #stablehlo.replica_group_mesh_axes<mesh = #stablehlo.mesh<axes = [<name = "x", size = 2>]>,
                                       axes = [#stablehlo.axis_ref<name = "x">]>

JAX from 0.12 on writes the first inside `shard_map`. StableHLO's verifier looks its symbol up, and never finds a `mesh.mesh`, as
jaxlib does not register that dialect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from meshbridge.dialect.module_mesh import mesh_ops
from meshbridge.ir.builder import dense
from meshbridge.ir.groups import KNOWS_MESH_AXES, read_groups
from meshbridge.ir.mlir import OpError, find, ir, sdy, stablehlo
from meshbridge_converters import meshes, sdy_attributes

GROUPS = "replica_groups"

_GROUPED = tuple(
    f"stablehlo.{name}" for name in ("all_gather", "all_reduce", "all_to_all", "collective_broadcast", "reduce_scatter")
)


def write_in_place(module: ir.Module) -> None:
    """Writes into device groups the meshes that they name by symbol, and marks those.

    Raises OpError where no such mesh is declared.
    """
    declared = sdy_attributes.declared_meshes(module) if KNOWS_MESH_AXES else {}
    written: dict[ir.Attribute, ir.Attribute] = {}
    for op in find(module.operation, _GROUPED) if declared else ():
        groups = _by_axes(op)
        if groups is None or not isinstance(groups.mesh, ir.FlatSymbolRefAttr):
            continue
        if groups not in written:
            symbol = ir.FlatSymbolRefAttr(groups.mesh).value
            mesh = _in_stablehlo(_declared(op, symbol, declared))
            declared[symbol].attributes[meshes.NAMED_BY_GROUPS] = ir.UnitAttr.get()
            written[groups] = stablehlo.ReplicaGroupMeshAxesAttr.get(mesh, groups.axes)
        op.attributes[GROUPS] = written[groups]


def named(module: ir.Module) -> list[str]:
    """The symbols of the meshes that device groups of `module` named before they were written in place."""
    return [op.sym_name for op in mesh_ops(module.body) if meshes.NAMED_BY_GROUPS in op.operation.attributes]


def write_symbols(module: ir.Module, named: Mapping[str, ir.Attribute]) -> None:
    """The inverse of `write_in_place`: `named` are the meshes, `#sdy.mesh<…>`, that groups named by symbol."""
    symbols: dict[ir.Attribute, ir.Attribute] = {}
    for symbol, mesh in named.items():
        symbols.setdefault(_in_stablehlo(mesh), ir.FlatSymbolRefAttr.get(symbol))
    for op in find(module.operation, _GROUPED) if symbols else ():
        if (groups := _by_axes(op)) is not None and groups.mesh in symbols:
            op.attributes[GROUPS] = stablehlo.ReplicaGroupMeshAxesAttr.get(symbols[groups.mesh], groups.axes)


def list_devices(module: ir.Module) -> None:
    """Lists the devices of groups that name a mesh by its symbol, for whom there is no such mesh."""
    declared = sdy_attributes.declared_meshes(module) if KNOWS_MESH_AXES else {}
    for op in find(module.operation, _GROUPED) if declared else ():
        groups = _by_axes(op)
        if groups is not None and isinstance(groups.mesh, ir.FlatSymbolRefAttr):
            symbol = ir.FlatSymbolRefAttr(groups.mesh).value
            mesh = sdy_attributes.sdy_mesh(symbol, _declared(op, symbol, declared), ()).value
            listed = read_groups(groups, mesh)
            if listed is None:
                raise OpError(op, f"has device groups along axes that the mesh @{symbol} does not have: {groups}")
            op.attributes[GROUPS] = dense(listed)


def _declared(op: ir.Operation, symbol: str, declared: Mapping[str, ir.Operation]) -> ir.Attribute:
    """The mesh that the groups of `op` name, as `#sdy.mesh<…>`."""
    if symbol not in declared:
        raise OpError(op, f"has device groups on the mesh @{symbol}, which the module does not declare")
    return declared[symbol].attributes["mesh"]


def _by_axes(op: ir.Operation) -> Any:
    """The device groups of `op`, as stablehlo.ReplicaGroupMeshAxesAttr, where it has them by axes."""
    if GROUPS not in op.attributes or isinstance(op.attributes[GROUPS], ir.DenseElementsAttr):
        return None
    return stablehlo.ReplicaGroupMeshAxesAttr(op.attributes[GROUPS])


def _in_stablehlo(mesh: ir.Attribute) -> ir.Attribute:
    """`#stablehlo.mesh<…>` for `#sdy.mesh<…>`."""
    axes = [stablehlo.MeshAxisAttr.get(name, size) for name, size in sdy_attributes.mesh_axes(mesh)]
    ids = list(sdy.MeshAttr(mesh).device_ids)
    attr: ir.Attribute = stablehlo.MeshAttr.get(ir.ArrayAttr.get(axes), dense(np.array(ids, np.int64)) if ids else None)
    return attr
