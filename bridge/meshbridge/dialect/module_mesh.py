"""The mesh of a program, the shardings on it, and whether the program is partitioned."""

from __future__ import annotations

from collections.abc import Iterable

from meshbridge.dialect.ops import BOUNDARY_GLOBAL, BOUNDARY_MESH, MeshOp, ShardingOp
from meshbridge.ir.mlir import OpError, distinct_entries, ir, source_location, walk, walk_all
from meshbridge.ir.sharding import DYNAMIC, MAX_DEVICES, Mesh, Sharding


def find_mesh(module: ir.Module, function: ir.Operation | None = None) -> Mesh | None:
    """The mesh of a program, or of one of its functions, at any stage; None if it needs none.

    Shardings, collectives and boundaries name it. Unused meshes are ignored, and so is a mesh of one device beside a larger one.
    (JAX declares such a mesh for arguments without a sharding.) If nothing names a mesh, it is the largest one.

    Raises OpError if several meshes are in use, and for a mesh of more than MAX_DEVICES.
    """
    declared = {view.operation: view.value for view in mesh_ops(module.body)}
    if len(declared) > 1:
        named = named_meshes(walk_all(module) if function is None else walk(function))
        if function is not None and not named:
            return None
        used = {op: mesh for op, mesh in declared.items() if mesh.name in named}
        declared = used or dict([max(declared.items(), key=lambda entry: entry[1].size)])
    larger = {op: mesh for op, mesh in declared.items() if mesh.size != 1} or dict(list(declared.items())[:1])
    meshes = list(larger.values())
    if len(meshes) > 1:
        first_op, second_op = (_located_op(op, mesh, module) for op, mesh in list(larger.items())[:2])
        raise _second_mesh_error(first_op, second_op, *meshes[:2])
    if not meshes:
        return None
    refuse_too_many(next(iter(larger)), meshes[0])
    return meshes[0]


def _second_mesh_error(first_op: ir.Operation, second_op: ir.Operation, mesh: Mesh, other_mesh: Mesh) -> OpError:
    """The error about a second mesh, with the locations of both."""
    location = f", of {source_location(first_op)}" if source_location(first_op) != UNKNOWN else ""
    message = f"{_mesh_text(other_mesh)} is a second mesh beside {_mesh_text(mesh)}{location}; a program is partitioned on one"
    if (mesh.size, mesh.device_ids) != (other_mesh.size, other_mesh.device_ids):
        return OpError(second_op, message, "run what is for other devices by itself, with jax.device_put between")
    hint = (
        "these views of the same devices are not one mesh, as no axes of one are cut by those of the other; "
        "name one mesh in both places, or run what is on the second one by itself, with jax.device_put between"
    )
    return OpError(second_op, message, hint)


def _mesh_text(mesh: Mesh) -> str:
    axes = ", ".join(f"{name}={size}" for name, size in mesh.named_axes)
    order = f" of devices {', '.join(map(str, mesh.device_ids[:8]))}{', …' if mesh.size > 8 else ''}" if mesh.device_ids else ""
    return f"@{mesh.name} ({axes}){order}"


def _located_op(declaration: ir.Operation, mesh: Mesh, module: ir.Module) -> ir.Operation:
    """The op that a diagnostic about a mesh points to: its declaration if it has a location (JAX gives it none), else the first
    op with a location that names the mesh, or uses a value sharded on it."""
    waiting = [declaration, *(op for op in walk_all(module) if mesh.name in named_meshes([op]))]
    visited: set[ir.Operation] = set()
    for op in waiting:  # grows meanwhile
        if source_location(op) != UNKNOWN:
            return op
        users = {use.owner.operation: None for result in op.results for use in result.uses} if op not in visited else {}
        visited.add(op)
        waiting += users
    return declaration


UNKNOWN = "<unknown>"


def refuse_too_many(op: ir.Operation, mesh: Mesh) -> None:
    """Raises OpError at its declaration for a mesh of more than MAX_DEVICES."""
    if mesh.size > MAX_DEVICES:
        message = f"has {mesh.size} devices, expected at most {MAX_DEVICES} to partition a program on"
        raise OpError(op, message, "give it axes whose sizes multiply to the devices that run the program")


def mesh_or_single(module: ir.Module) -> Mesh:
    """`find_mesh`, or a mesh of one device if the program needs none."""
    return find_mesh(module) or Mesh("mesh", ())


def declared_meshes(block: ir.Block) -> dict[str, Mesh]:
    """The meshes that `block`, the body of a module, declares, by name; nested modules have their own."""
    return {view.sym_name: view.value for view in mesh_ops(block)}


def mesh_ops(block: ir.Block) -> list[MeshOp]:
    """The declarations of meshes in `block`."""
    return [view for view in block.operations if isinstance(view, MeshOp)]


def named_meshes(ops: Iterable[ir.Operation]) -> set[str]:
    """The meshes that ops of the dialect and boundaries of partitioned functions name."""
    names: set[str] = set()
    for op in ops:
        if op.name.startswith("mesh.") and "mesh" in op.attributes:
            names.add(ir.FlatSymbolRefAttr(op.attributes["mesh"]).value)
        elif op.name == "func.func":
            names |= {
                ir.FlatSymbolRefAttr(entry[BOUNDARY_MESH]).value for entry in distinct_entries(op) if BOUNDARY_MESH in entry
            }
    return names


def is_partitioned(module: ir.Module) -> bool:
    """True if a function of `module` is one device's program, whose arguments or results are annotated as shards."""
    return any(BOUNDARY_GLOBAL in entry for view in module.body.operations for entry in distinct_entries(view.operation))


def sharding_on(mesh: Mesh, op: ir.Operation) -> Sharding:
    """The sharding that a `mesh.sharding` declares, on `mesh`.

    Raises OpError if it is on another mesh, or has dynamic halo sizes or offsets.
    """
    sharding = ShardingOp(op).value
    if DYNAMIC in (*sharding.halo_sizes, *sharding.offsets):
        raise OpError(op, "has halo sizes or offsets that only a run knows, expected constants")
    if sharding.mesh != mesh.name:
        if not sharding.is_replicated and not _is_of_one_device(sharding.mesh, op):
            raise OpError(op, f"is on the mesh @{sharding.mesh}, but the program is partitioned on @{mesh.name}")
        return Sharding(mesh.name, ((),) * len(sharding.split_axes))
    return sharding


def _is_of_one_device(name: str, op: ir.Operation) -> bool:
    """True if the mesh `name`, in the module of `op`, has one device."""
    scope = op
    while (parent := scope.parent) is not None:
        scope = parent
    mesh = declared_meshes(scope.regions[0].blocks[0]).get(name)
    return mesh is not None and mesh.size == 1
