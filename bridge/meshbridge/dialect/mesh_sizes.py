"""The axes of a program's mesh whose sizes may change, and other sizes for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

from meshbridge.dialect.attributes import integers, integers_attr
from meshbridge.dialect.module_mesh import mesh_ops
from meshbridge.dialect.ops import DEVICE_IDS, MANUAL_AXES
from meshbridge.ir.mlir import MANUAL, MeshError, ir, walk_all
from meshbridge.ir.sharding import MAX_DEVICES, Mesh


def fixed_axes(module: ir.Module, mesh: Mesh) -> dict[str, tuple[int, str]]:
    """The axes that have to keep their sizes: these, and why."""
    manual = {axis for op in walk_all(module) if op.name == MANUAL for axis in _manual_axes(op, mesh)}
    fixed = {}
    for name, axes in mesh.runs.items():
        size = mesh.group_size(axes)
        if manual & set(axes):
            fixed[name] = (size, "the program has manual computations along it")
        elif len(axes) > 1:
            fixed[name] = (size, "parts of it split tensors")
    return fixed


def _manual_axes(op: ir.Operation, mesh: Mesh) -> Iterable[int]:
    return integers(op.attributes[MANUAL_AXES]) if MANUAL_AXES in op.attributes else range(mesh.rank)


def resize(module: ir.Module, mesh: Mesh, sizes: Mapping[str, int]) -> None:
    """Changes the sizes of mesh axes in place, and drops the device order. Raises MeshError for too many devices."""
    shape = list(mesh.shape)
    for name, size in sizes.items():
        shape[mesh.runs[name][0]] = size
    if prod(shape) > MAX_DEVICES:
        raise MeshError(f"error: a mesh of {prod(shape)} devices, expected at most {MAX_DEVICES}")
    if tuple(shape) == mesh.shape:
        return
    for view in mesh_ops(module.body):
        if view.sym_name == mesh.name:
            view.operation.attributes["shape"] = integers_attr(shape)
            for name in (DEVICE_IDS, "stablehlo.mesh"):
                if name in view.operation.attributes:
                    del view.operation.attributes[name]
