"""The sdy shardings on the boundary of a module's `main` as JAX's NamedShardings over abstract meshes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from meshbridge.ir.mlir import entries, ir, sdy
from meshbridge_converters.carriers import SHARDING

if TYPE_CHECKING:
    from jax.sharding import AbstractMesh, NamedSharding


MEMORY = "mhlo.memory_kind"
"""Attribute of an argument or result: in which memory the caller keeps it."""


def abstract_meshes(module: ir.Module, known: Iterable[NamedSharding | None]) -> dict[str, Any]:
    """The AbstractMesh of every `sdy.mesh` of `module` by symbol.

    A mesh of the same axes that one of the `known` shardings is over is taken as it is: it knows axis types and device kind. So
    is one of the same sizes where the module's axes have but numbers for names, as a mesh inferred from GSPMD's tilings does.
    """
    from jax.sharding import AbstractMesh

    used: dict[tuple[tuple[int, ...], tuple[str, ...]], AbstractMesh] = {
        (sharding.mesh.axis_sizes, sharding.mesh.axis_names): sharding.mesh.abstract_mesh
        for sharding in known
        if sharding is not None
    }
    same_sizes = {sizes: mesh for (sizes, _), mesh in used.items()}
    meshes: dict[str, AbstractMesh] = {}
    for op in module.body.operations:
        if op.operation.name == "sdy.mesh":
            declared = sdy.MeshAttr(op.operation.attributes["mesh"])
            axes = [sdy.MeshAxisAttr(axis) for axis in declared.axes]
            sizes, names = tuple(axis.size for axis in axes), tuple(axis.name for axis in axes)
            symbol = ir.StringAttr(op.operation.attributes["sym_name"]).value
            if names == tuple(map(str, range(len(names)))) and sizes in same_sizes and not list(declared.device_ids):
                meshes[symbol] = same_sizes[sizes]
            else:
                meshes[symbol] = used[sizes, names] if (sizes, names) in used else AbstractMesh(sizes, names)
    return meshes


def boundary(function: ir.Operation, attributes: str, meshes: Mapping[str, Any]) -> list[NamedSharding | None]:
    """The shardings in `arg_attrs` or `res_attrs` of a `func.func`, one for each argument or result.

    None where there is none, or one that a PartitionSpec cannot say: over a part of an axis, or over a mesh without a symbol.
    """
    found = []
    for each in entries(function, attributes):
        memory = ir.StringAttr(each[MEMORY]).value if MEMORY in each else None
        found.append(_named(sdy.TensorShardingAttr(each[SHARDING]), meshes, memory) if SHARDING in each else None)
    return found


def _named(sharding: Any, meshes: Mapping[str, Any], memory: str | None) -> NamedSharding | None:
    from jax.sharding import NamedSharding, PartitionSpec

    reference = sharding.mesh_or_ref
    if not isinstance(reference, ir.FlatSymbolRefAttr) or reference.value not in meshes:
        return None
    mesh = meshes[reference.value]
    spec: list[tuple[str, ...] | None] = []
    for dimension in sharding.dimension_shardings:
        axes = [sdy.AxisRefAttr(axis) for axis in sdy.DimensionShardingAttr(dimension).axes]
        if any(axis.sub_axis_info is not None for axis in axes):
            return None
        names = [axis.name if axis.name in mesh.axis_names else mesh.axis_names[int(axis.name)] for axis in axes]
        spec.append(tuple(names) or None)
    return NamedSharding(mesh, PartitionSpec(*spec), memory_kind=memory)
