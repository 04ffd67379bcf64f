"""The mesh on which a program is partitioned, and the shardings that it declares there."""

from __future__ import annotations

from dataclasses import replace

from meshbridge.dialect.ops import MeshOp, ShardingOp
from meshbridge.mlir import OpError, ir, walk, walk_all
from meshbridge.sharding import DYNAMIC, Mesh, Sharding


def find_mesh(module: ir.Module, function: ir.Operation | None = None) -> Mesh | None:
    """The mesh that the module's shardings and collectives name, or those of one function; None if it declares none.

    A mesh of one device, on which everything is replicated, gives way to a larger one.
    Raises OpError if several are in use: one program is partitioned on one mesh.
    """
    declarations = [op.operation for op in module.body.operations if op.operation.name == MeshOp.OPERATION_NAME]
    declared = {op: MeshOp(op).value for op in declarations}
    if len(declared) > 1:
        ops = walk_all(module) if function is None else walk(function)
        named = {str(op.attributes["mesh"]) for op in ops if op.name.startswith("mesh.") and "mesh" in op.attributes}
        if function is not None and not named:
            return None
        declared = {op: mesh for op, mesh in declared.items() if f"@{mesh.name}" in named} or declared
    larger = {op: mesh for op, mesh in declared.items() if mesh.size != 1} or declared
    meshes = list(larger.values())
    if len(meshes) > 1:
        raise OpError(
            list(larger)[1], f"@{meshes[1].name} is a second mesh beside @{meshes[0].name}; a program is partitioned on one"
        )
    return meshes[0] if meshes else None


def sharding_on(mesh: Mesh, op: ir.Operation) -> Sharding:
    """The sharding that a `mesh.sharding` declares, on `mesh`.

    Raises OpError if it lies on another mesh, or has halo sizes or offsets that only a run knows.
    """
    sharding = ShardingOp(op).value
    if DYNAMIC in (*sharding.halo_sizes, *sharding.offsets):
        raise OpError(op, "has halo sizes or offsets that only a run knows, expected constants")
    if sharding.mesh != mesh.name:
        if not sharding.is_replicated:
            raise OpError(op, f"lies on the mesh @{sharding.mesh}, but the program is partitioned on @{mesh.name}")
        return replace(sharding, mesh=mesh.name)
    return sharding
