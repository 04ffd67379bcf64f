"""The mesh on which a program runs, the shardings that it declares there, and whether it is partitioned on it."""

from __future__ import annotations

from collections.abc import Iterable

from meshbridge.dialect.ops import BOUNDARY_GLOBAL, BOUNDARY_MESH, MeshOp, ShardingOp
from meshbridge.ir.mlir import OpError, distinct_entries, ir, source_location, walk, walk_all
from meshbridge.ir.sharding import DYNAMIC, MAX_DEVICES, Mesh, Sharding


def find_mesh(module: ir.Module, function: ir.Operation | None = None) -> Mesh | None:
    """The mesh that a program runs on, or one function of it, at any stage; None if it needs none.

    That is the mesh that its shardings, collectives and boundary name. Of several that are declared, those that nothing names do
    not count, nor does a mesh of one device, on which everything is replicated, beside a larger one. (JAX declares such a mesh
    for arguments whose sharding nobody gave.) Where nothing names a mesh, everything is replicated, and the largest stands.
    Raises OpError if several are in use: one program runs on one mesh. Also for one of more than MAX_DEVICES.
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
        first, second = (_placed(op, mesh, module) for op, mesh in list(larger.items())[:2])
        raise _second(first, second, *meshes[:2])
    if not meshes:
        return None
    refuse_too_many(next(iter(larger)), meshes[0])
    return meshes[0]


def _second(first: ir.Operation, second: ir.Operation, mesh: Mesh, other: Mesh) -> OpError:
    """The refusal of a second mesh, with the places of both."""
    said = f", of {source_location(first)}" if source_location(first) != UNKNOWN else ""
    found = f"{_shown(other)} is a second mesh beside {_shown(mesh)}{said}; a program is partitioned on one"
    if (mesh.size, mesh.device_ids) != (other.size, other.device_ids):
        return OpError(second, found, "run what is for other devices by itself, with jax.device_put between")
    hint = (
        "these views of the same devices are not one mesh, as no axes of one are cut by those of the other; "
        "name one mesh in both places, or run what is on the second one by itself, with jax.device_put between"
    )
    return OpError(second, found, hint)


def _shown(mesh: Mesh) -> str:
    axes = ", ".join(f"{name}={size}" for name, size in mesh.named_axes)
    order = f" of devices {', '.join(map(str, mesh.device_ids[:8]))}{', …' if mesh.size > 8 else ''}" if mesh.device_ids else ""
    return f"@{mesh.name} ({axes}){order}"


def _placed(declaration: ir.Operation, mesh: Mesh, module: ir.Module) -> ir.Operation:
    """What a diagnostic about a mesh points to: what declares it, or, as JAX gives that no location, the first op that names it,
    or uses what is sharded on it, and has one."""
    waiting = [declaration, *(op for op in walk_all(module) if mesh.name in named_meshes([op]))]
    seen: set[ir.Operation] = set()
    for op in waiting:  # grows meanwhile
        if source_location(op) != UNKNOWN:
            return op
        new = {use.owner.operation: None for result in op.results for use in result.uses} if op not in seen else {}
        seen.add(op)
        waiting += new
    return declaration


UNKNOWN = "<unknown>"


def refuse_too_many(op: ir.Operation, mesh: Mesh) -> None:
    """Raises OpError, about the op that declares it, for a mesh of more than MAX_DEVICES."""
    if mesh.size > MAX_DEVICES:
        found = f"has {mesh.size} devices, expected at most {MAX_DEVICES} to partition a program on"
        raise OpError(op, found, "give it axes whose sizes multiply to the devices that run the program")


def mesh_or_single(module: ir.Module) -> Mesh:
    """`find_mesh` of a program that runs somewhere in any case: a mesh of one device for one that needs none."""
    return find_mesh(module) or Mesh("mesh", ())


def declared_meshes(block: ir.Block) -> dict[str, Mesh]:
    """The meshes that stand in `block`, the body of a module, by name. Those of another program within are not its own."""
    return {view.sym_name: view.value for view in mesh_ops(block)}


def mesh_ops(block: ir.Block) -> list[MeshOp]:
    """Their declarations."""
    return [view for view in block.operations if isinstance(view, MeshOp)]


def named_meshes(ops: Iterable[ir.Operation]) -> set[str]:
    """The meshes that ops of the dialect, and boundaries of partitioned functions, name."""
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
    """Whether a function of `module` is the program of one device: then its arguments or results say what they are shards of."""
    return any(BOUNDARY_GLOBAL in entry for view in module.body.operations for entry in distinct_entries(view.operation))


def sharding_on(mesh: Mesh, op: ir.Operation) -> Sharding:
    """The sharding that a `mesh.sharding` declares, on `mesh`.

    Raises OpError if it is on another mesh, or has halo sizes or offsets that only a run knows.
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
    """Whether the mesh of that name, in the module that `op` is in, has one device: along its axes nothing is split."""
    scope = op
    while (parent := scope.parent) is not None:
        scope = parent
    mesh = declared_meshes(scope.regions[0].blocks[0]).get(name)
    return mesh is not None and mesh.size == 1
