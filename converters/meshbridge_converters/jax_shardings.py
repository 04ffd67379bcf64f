"""The sdy shardings on the boundary of a module's `main` as JAX's NamedShardings over abstract meshes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from meshbridge.ir.mlir import entries, ir
from meshbridge_converters.carriers import SHARDING
from meshbridge_converters.sdy_attributes import SdySharding, declared_meshes, sdy_mesh

if TYPE_CHECKING:
    from jax.sharding import AbstractMesh, NamedSharding


MEMORY = "mhlo.memory_kind"
"""Attribute of an argument or result: in which memory the caller keeps it."""


def abstract_meshes(module: ir.Module, known: Iterable[NamedSharding | None]) -> dict[str, Any]:
    """The AbstractMesh of every `sdy.mesh` of `module` by symbol.

    A mesh of the same axes that one of the `known` shardings is over is taken as it is: it knows axis types and device kind. So
    is one of the same sizes where the module's axes have but numbers for names, as a mesh inferred from GSPMD's tilings does.
    """
    from jax.sharding import AbstractMesh, AxisType

    used: dict[tuple[tuple[int, ...], tuple[str, ...]], AbstractMesh] = {
        (sharding.mesh.axis_sizes, sharding.mesh.axis_names): sharding.mesh.abstract_mesh
        for sharding in known
        if sharding is not None
    }
    same_sizes = {sizes: mesh for (sizes, _), mesh in used.items()}
    meshes: dict[str, AbstractMesh] = {}
    for symbol, op in declared_meshes(module).items():
        mesh = sdy_mesh(symbol, op.attributes["mesh"], ()).value
        names = tuple(mesh.runs)
        if not mesh.axis_names and mesh.shape in same_sizes and not mesh.device_ids:
            meshes[symbol] = same_sizes[mesh.shape]
        else:
            types = (AxisType.Auto,) * len(names)  # which jax 0.12 takes for Explicit where it is not said
            meshes[symbol] = used.get((mesh.shape, names)) or AbstractMesh(mesh.shape, names, axis_types=types)
    return meshes


def boundary(function: ir.Operation, attributes: str, meshes: Mapping[str, Any]) -> list[NamedSharding | None]:
    """The shardings in `arg_attrs` or `res_attrs` of a `func.func`, one for each argument or result.

    None where there is none, or one that a PartitionSpec cannot say: over a part of an axis, or over a mesh without a symbol.
    """
    said = [(each.get(SHARDING), each.get(MEMORY)) for each in entries(function, attributes)]
    distinct: dict[tuple[ir.Attribute | None, ir.Attribute | None], NamedSharding | None] = {}
    for sharding, memory in set(said):
        kind = ir.StringAttr(memory).value if memory is not None else None
        distinct[sharding, memory] = None if sharding is None else _named(SdySharding.of(sharding), meshes, kind)
    return [distinct[each] for each in said]


def _named(sharding: SdySharding, meshes: Mapping[str, Any], memory: str | None) -> NamedSharding | None:
    from jax.sharding import NamedSharding, PartitionSpec

    if sharding.mesh not in meshes or any(ref.size is not None for refs in sharding.dims for ref in refs):
        return None
    mesh = meshes[str(sharding.mesh)]
    names = [
        [ref.name if ref.name in mesh.axis_names else mesh.axis_names[int(ref.name)] for ref in refs] for refs in sharding.dims
    ]
    spec = [tuple(each) or None for each in names]
    return NamedSharding(mesh, PartitionSpec(*spec), memory_kind=memory)
